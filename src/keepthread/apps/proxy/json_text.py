"""Where values are in a JSON text, so that text can be added to it without writing it again.

A client's bytes must reach the provider as they are: signatures and caches depend on them. These
functions decode values with the standard library's decoder, and keep their positions.
"""

import json
import math
import re
from typing import Any, Final, NamedTuple

_SPACE: Final = re.compile(r"[ \t\n\r]*")
_MOST_DIGITS: Final = 4300
"""Python converts no longer numbers."""


class JsonValue(NamedTuple):
    """A value, and where it is in the text."""

    value: Any
    start: int
    end: int
    """The position after its last character."""


def _integer(text: str) -> int | str:
    return int(text) if len(text) <= _MOST_DIGITS else text


def _float(text: str) -> float | str:
    number = float(text)
    return number if math.isfinite(number) else text


# Numbers that Python or a store cannot hold become texts: they are only recorded, never sent.
_DECODER: Final = json.JSONDecoder(parse_int=_integer, parse_float=_float, parse_constant=str)


def document(text: str) -> dict[str, JsonValue]:
    """Return the members of the object that a text consists of; raise `ValueError` otherwise."""
    found, end = members(text, _after_space(text, 0))
    if _after_space(text, end) < len(text):
        raise ValueError("unexpected text after the object")
    return found


def members(text: str, at: int) -> tuple[dict[str, JsonValue], int]:
    """Return the members of the object that begins at a position, and the position after it.

    Of members with the same name, the last counts, as for parsers. Raise `ValueError` if there is
    no object.
    """
    found: dict[str, JsonValue] = {}
    at = _after(text, at, "{")
    if text[at : at + 1] == "}":
        return found, at + 1
    while True:
        name = _value(text, at)
        if not isinstance(name.value, str):
            raise ValueError("a name is not a text")  # noqa: TRY004 - it is the JSON that is bad
        value = _value(text, _after(text, _after_space(text, name.end), ":"))
        found[name.value] = value
        at = _after_space(text, value.end)
        if text[at : at + 1] == "}":
            return found, at + 1
        at = _after(text, at, ",")


class TooManyValues(Exception):
    """A text has more values than may be read of one request."""


def check_values(text: str, most: int) -> None:
    """Raise `TooManyValues` if a text may have more values than `most`, without reading it."""
    if sum(map(text.count, "{[,")) > most:
        raise TooManyValues


def elements(text: str, at: int, most: int | None = None) -> list[JsonValue]:
    """Return the elements of the array that begins at a position; raise `ValueError` if none.

    More than `most` raise `TooManyValues`.
    """
    found: list[JsonValue] = []
    at = _after(text, at, "[")
    if text[at : at + 1] == "]":
        return found
    while True:
        if most is not None and len(found) >= most:
            raise TooManyValues
        found.append(_value(text, at))
        at = _after_space(text, found[-1].end)
        if text[at : at + 1] == "]":
            return found
        at = _after(text, at, ",")


def escaped_text(text: str) -> str:
    """Return a text as it is inside the quotation marks of a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _value(text: str, at: int) -> JsonValue:
    value, end = _DECODER.raw_decode(text, at)
    return JsonValue(value, at, end)


def _after_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


def _after(text: str, at: int, sign: str) -> int:
    """Return the position after a character and the whitespace that follows it."""
    if text[at : at + 1] != sign:
        raise ValueError(f"{sign!r} is missing")
    return _after_space(text, at + 1)
