"""Kinds of settings: each checks the value of a file or the text of a variable."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from math import isfinite
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias, TypeGuard, cast
from urllib.parse import quote, unquote

from keepthread.apps.cli.stores import store_url
from keepthread.stores.validation import MAX_COUNT, MAX_ID

_TRUTHS: Final = {
    **dict.fromkeys(("true", "yes", "on", "1"), True),
    **dict.fromkeys(("false", "no", "off", "0"), False),
}


ToolName: TypeAlias = tuple[str, str]
"""The name of a server in `mcp.json`, and the server's own name of a tool."""
_VERSION: Final = re.compile(r"@([0-9a-f]{20}\.[0-9a-f]{20}\.[0-9a-f]{20})$")
"""The version of a tool after its name, in which `@` is escaped."""


class AllowedTool(NamedTuple):
    """A tool that may run without a question."""

    name: ToolName
    version: str = ""
    """Digests of what was allowed (see `apps.cli.chat.tool_calls`); empty: whatever it is."""


class ValueKind(NamedTuple):
    """One kind of value; `expected` says it in words, after "it must be"."""

    expected: str
    fits: Callable[[object], bool]
    parse: Callable[[str], Any] = str
    """Makes a value of a text, or raises ValueError."""
    optional: bool = False
    private: bool = False
    """Whether a wrong value is not shown: it may be a secret in the wrong place."""
    a_path: bool = False
    aliases: Mapping[str, str] = {}
    """Other names of values; the value is kept under its own name."""
    separator: str = ""
    """Separates the entries of a list in a text; empty if the value is not a list."""

    def take(self, value: Any) -> Any:
        """Return a value as it is kept, or raise ValueError; a list is kept as a tuple."""
        if self.separator:
            value = _entries(value, self.separator)
        if isinstance(value, str):
            value = self.aliases.get(value, value)
        if (value is None and self.optional) or self.fits(value):
            return value
        raise ValueError

    def take_text(self, text: str) -> Any:
        """Return what a text says, `null` being none, or raise ValueError."""
        if self.optional and text == "null":
            return None
        return self.take(self.parse(text))


def setting(
    default: Any,
    kind: ValueKind,
    meaning: str,
    *,
    project: bool = True,
    flag: str = "",
    variable: str = "",
    stands_for: str = "",
) -> Any:
    """Return a field; `stands_for` says in the reference what an empty default stands for."""
    known = {"kind": kind, "meaning": meaning, "project": project, "stands_for": stands_for}
    return field(default=default, metadata={**known, "flag": flag, "variable": variable})


def optional(kind: ValueKind) -> ValueKind:
    """Return a kind that may be left empty."""
    return kind._replace(optional=True, expected=f"{kind.expected}, or null for none")


def whole(least: int, most: int = MAX_COUNT) -> ValueKind:
    """Return the whole numbers of a range."""

    def fits(value: object) -> bool:
        return _is_number(value) and isinstance(value, int) and least <= value <= most

    upto = "" if most == MAX_COUNT else f" to {most}"
    return ValueKind(f"a whole number from {least}{upto}", fits, int)


def whole_or(word: str, least: int) -> ValueKind:
    """Return the whole numbers from one on, and a word."""
    numbers = whole(least)

    def fits(value: object) -> bool:
        return value == word or numbers.fits(value)

    def parse(text: str) -> int | str:
        return text if text == word else int(text)

    return ValueKind(f"{numbers.expected}, or {word}", fits, parse)


def number(expected: str, within: Callable[[float], bool]) -> ValueKind:
    """Return the numbers within some bounds."""

    def fits(value: object) -> bool:
        return _is_number(value) and isfinite(value) and within(value)

    return ValueKind(expected, fits, float)


def choice(*names: str, aliases: Mapping[str, str] | None = None) -> ValueKind:
    """Return some names, perhaps with other names for them."""

    def fits(value: object) -> bool:
        return value in names

    return ValueKind(f"one of {', '.join(names)}", fits, aliases=aliases or {})


def listed(kind: ValueKind, separator: str, expected: str) -> ValueKind:
    """Return lists of a kind, in a file also as a text with separators."""

    def fits(value: object) -> bool:
        return isinstance(value, tuple) and all(map(kind.fits, cast("tuple[object, ...]", value)))

    return ValueKind(expected, fits, separator=separator)


def _entries(value: object, separator: str) -> object:
    """Return the entries of a list, without empty ones in a text."""
    if isinstance(value, str):
        return tuple(entry.strip() for entry in value.split(separator) if entry.strip())
    return tuple(cast("list[object]", value)) if isinstance(value, list | tuple) else value


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_truth(value: object) -> bool:
    return isinstance(value, bool)


def _truth(text: str) -> bool:
    if text.lower() not in _TRUTHS:
        raise ValueError
    return _TRUTHS[text.lower()]


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _is_name(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= MAX_ID and value.isprintable()


def _is_web(value: object) -> bool:
    if not isinstance(value, str) or not value.startswith(("http://", "https://")):
        return False
    host = value.partition("://")[2][:1]
    return value.isprintable() and " " not in value and (host.isalnum() or host == "[")


def _are_numbers(value: object) -> bool:
    numbers = numbers_of(value) if isinstance(value, str) else [value]
    return bool(numbers) and all(_is_number(n) and isinstance(n, int) and n > 0 for n in numbers)


def numbers_of(value: object) -> list[int]:
    """Return the numbers in a setting, 0 for anything else."""
    words = str("" if value is None else value).replace(",", " ").split()
    return [int(word) if word.isascii() and word.isdigit() else 0 for word in words]


def _are_tools(value: object) -> bool:
    names = [each.name for each in tools_of(value)]
    return isinstance(value, str) and bool(names) and all(map(all, names))


def tools_of(value: object) -> list[AllowedTool]:
    """Return the tools in a setting; one that is not SERVER/TOOL lacks a name."""
    words = str("" if value is None else value).replace(",", " ").split()
    return [_tool_of(word) for word in words]


def _tool_of(word: str) -> AllowedTool:
    found = _VERSION.search(word)
    server, _, tool = word[: found.start() if found else None].partition("/")
    name = _read(server), "" if "/" in tool else _read(tool)
    return AllowedTool(name, found[1] if found else "")


def tools_text(tools: Iterable[AllowedTool]) -> str:
    """Return tools as a setting has them; a server chooses the names, so separators are escaped."""
    return ", ".join(
        f"{_written(server)}/{_written(tool)}{version and f'@{version}'}"
        for (server, tool), version in tools
    )


def _read(name: str) -> str:
    return unquote(name, errors="surrogatepass")


def _written(name: str) -> str:
    return quote(name, safe="", errors="surrogatepass")


def _is_variable(value: object) -> bool:
    return isinstance(value, str) and value.isascii() and value.isidentifier() and value.isupper()


def default_path() -> Path:
    """Return where conversations are kept if nothing says otherwise."""
    import platformdirs  # noqa: PLC0415 - what the extra brings

    return platformdirs.user_data_path("keepthread", appauthor=False) / "memory.db"


FILE_ONLY: Final = "none"
"""In place of a variable's name: only a person's own settings file may set it."""
TRUTH: Final = ValueKind("true or false", _is_truth, _truth)
TEXT: Final = ValueKind("a text; write it in quotes", _is_text)
NAME: Final = ValueKind(
    f"a name of at most {MAX_ID} printable characters; write it in quotes", _is_name
)
PATH: Final = ValueKind("the path of a file or folder", _is_text, a_path=True)
STORE: Final = ValueKind(
    "the address of a store, such as postgresql://HOST/NAME", _is_text, store_url, private=True
)
WEB: Final = ValueKind("an address such as http://localhost:11434/v1", _is_web, private=True)
VARIABLE: Final = ValueKind(
    "the name of an environment variable, in capitals, such as OPENAI_API_KEY",
    _is_variable,
    private=True,
)
COMMAND: Final = ValueKind("a command and its arguments", _is_text, private=True)
NUMBERS: Final = ValueKind(
    "one or several numbers such as 812345678901234567, with commas between them", _are_numbers
)
NAMES: Final = listed(NAME, ",", "one or several names, as a list or with commas between them")
LINES: Final = listed(TEXT, "\n", "one or several texts, as a list or each on its own line")
TOOLS: Final = ValueKind(
    "tools as SERVER/TOOL, such as weather/alert, with commas between them", _are_tools
)
POSITIVE: Final = number("a number greater than 0", lambda value: value > 0)
NOT_NEGATIVE: Final = number("a number of 0 or more", lambda value: value >= 0)
