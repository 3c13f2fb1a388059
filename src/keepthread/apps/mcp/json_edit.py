"""Changes one value in a JSON text, with comments or without; everything else stays as it is.

Editors accept comments and trailing commas in their settings. Parsing and writing such a file again
would lose the comments and the order that a person gave it.
"""

import json
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

from keepthread.errors import InvalidInput

_BLANK: Final = re.compile(r"(?:\s|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
_STRING: Final = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_ATOM: Final = re.compile(r"[^\s,\[\]{}/:\"]+")
_STEP: Final = "  "


class _JsonMember(NamedTuple):
    """A member of an object: its key, and where both begin and end."""

    key: str
    start: int
    value: int
    end: int


def with_value(text: str, place: tuple[str, str], value: Any) -> str:
    """Return a text in which the entry of a container has a value."""
    container, name = place
    text = text if plain(text) else "{}\n"
    root = _skip(text, 0)
    outer = _find(text, root, container)
    if outer is None:
        return _added(text, root, container, {name: value})
    inner = _find(text, outer.value, name)
    if inner is None:
        return _added(text, outer.value, name, value)
    written = _written(value, _indent(text, inner.start) or "")
    return text[: inner.value] + written + text[inner.end :]


def without_value(text: str, place: tuple[str, str]) -> str:
    """Return a text without the entry; a container that it leaves empty stays."""
    if not plain(text):
        return text
    outer = _find(text, _skip(text, 0), place[0])
    members = _members(text, outer.value) if outer else []
    at = next((n for n, each in enumerate(members) if each.key == place[1]), None)
    if outer is None or at is None:
        return text
    mine = members[at]
    start = len(text[: mine.start].rstrip())
    after = _skip(text, mine.end)
    if text[after] == ",":
        text = text[:start] + text[after + 1 :]
    elif at:
        comma = text.index(",", _blank_end(text, members[at - 1].end))
        text = text[:comma] + text[comma + 1 : start] + text[mine.end :]
    else:
        text = text[:start] + text[mine.end :]
    end = _value_end(text, outer.value)
    blank = not text[outer.value + 1 : end - 1].strip()
    return text[: outer.value] + "{}" + text[end:] if blank else text


def plain(text: str) -> str:
    """Return a text as JSON: without comments and trailing commas."""
    parts: list[str] = []
    at = 0
    while at < len(text):
        if string := _STRING.match(text, at):
            parts.append(string.group())
            at = string.end()
        elif (end := _blank_end(text, at)) > at:
            parts.append(" ")
            at = end
        else:
            parts.append(text[at])
            at += 1
    return _without_trailing_commas(parts).strip()


def _without_trailing_commas(parts: Sequence[str]) -> str:
    solid = [n for n, part in enumerate(parts) if part != " "]
    trailing = {n for n, then in pairwise(solid) if parts[then] in "]}"}
    return "".join(p for n, p in enumerate(parts) if not (p == "," and n in trailing))


# --- adding ---


def _added(text: str, start: int, key: str, value: Any) -> str:
    """Return a text with a new member at the end of an object."""
    members = _members(text, start)
    end = _value_end(text, start) - 1
    outer = _line_indent(text, start)
    indent = _indent(text, members[-1].start) if members else None
    indent = outer + _STEP if indent is None else indent
    member = f"\n{indent}{json.dumps(key)}: {_written(value, indent)}"
    tail = len(text[:end].rstrip())
    if not members:
        return text[:tail] + member + f"\n{outer}" + text[end:]
    last = members[-1].end
    before, after = ("", ",") if text[_skip(text, last)] == "," else (",", "")
    closing = text[tail:] if "\n" in text[tail:end] else f"\n{outer}{text[end:]}"
    return text[:last] + before + text[last:tail] + member + after + closing


def _written(value: Any, indent: str) -> str:
    """Return a value as text; its lines after the first one are indented."""
    lines = json.dumps(value, indent=len(_STEP), ensure_ascii=False).split("\n")
    return f"\n{indent}".join(lines)


def _indent(text: str, start: int) -> str | None:
    """Return the blanks before a key that begins its line; None if it does not."""
    line = text[text.rfind("\n", 0, start) + 1 : start]
    return None if line.strip() else line


def _line_indent(text: str, at: int) -> str:
    line = text[text.rfind("\n", 0, at) + 1 : at]
    return line[: len(line) - len(line.lstrip())]


# --- reading ---


def _find(text: str, start: int, key: str) -> _JsonMember | None:
    return next((each for each in _members(text, start) if each.key == key), None)


def _members(text: str, start: int) -> list[_JsonMember]:
    return list(_each_member(text, start))


def _each_member(text: str, start: int) -> Iterator[_JsonMember]:
    _expect(text, start, "{")
    at = _skip(text, start + 1)
    while text[at] != "}":
        key = _STRING.match(text, at)
        if key is None:
            raise _unreadable()
        colon = _skip(text, key.end())
        _expect(text, colon, ":")
        value = _skip(text, colon + 1)
        end = _value_end(text, value)
        yield _JsonMember(json.loads(key.group()), at, value, end)
        at = _skip(text, end)
        if text[at] == ",":
            at = _skip(text, at + 1)


def _value_end(text: str, at: int) -> int:
    """Return where a value ends."""
    if found := _STRING.match(text, at) or _ATOM.match(text, at):
        return found.end()
    if text[at] not in "[{":
        raise _unreadable()
    depth = 0
    while True:
        if string := _STRING.match(text, at):
            at = string.end()
        else:
            depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(text[at], 0)
            at += 1
        if not depth:
            return at
        at = _skip(text, at)


def _skip(text: str, at: int) -> int:
    """Return the position of the next character after whitespace and comments."""
    end = _blank_end(text, at)
    if end >= len(text):
        raise _unreadable()
    return end


def _blank_end(text: str, at: int) -> int:
    found = _BLANK.match(text, at)
    return found.end() if found else at


def _expect(text: str, at: int, sign: str) -> None:
    if text[at] != sign:
        raise _unreadable()


def _unreadable() -> InvalidInput:
    return InvalidInput("the file is not a JSON object; repair it first, or change it by hand")
