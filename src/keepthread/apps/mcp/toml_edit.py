"""Changes one table in a TOML text; everything else stays as it is.

The standard library reads TOML and does not write it. A table of our own is written as lines, and
`clients` compares what the text means before and after.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from keepthread.errors import InvalidInput


def with_value(text: str, place: tuple[str, str], value: Mapping[str, Any]) -> str:
    """Return a text in which a table has a value."""
    lines = text.splitlines(keepends=True)
    written = [f"[{'.'.join(place)}]\n", *(f"{k} = {_written(v)}\n" for k, v in value.items())]
    found = _table(lines, place)
    if found is not None:
        start, end = found
        return "".join([*lines[:start], *written, *lines[end:]])
    if lines and not lines[-1].endswith("\n"):
        lines[-1] += "\n"
    return "".join([*lines, *(["\n"] if lines else []), *written])


def without_value(text: str, place: tuple[str, str]) -> str:
    """Return a text without the table, and without the blank line before it."""
    lines = text.splitlines(keepends=True)
    found = _table(lines, place)
    if found is None:
        return text
    start, end = found
    if start and not lines[start - 1].strip():
        start -= 1
    return "".join([*lines[:start], *lines[end:]])


def _table(lines: Sequence[str], place: tuple[str, str]) -> tuple[int, int] | None:
    """Return the lines of a table, with its inner tables, without blanks and comments after it."""
    names = r"\s*\.\s*".join(rf"[\"']?{re.escape(each)}[\"']?" for each in place)
    own = re.compile(rf"\s*\[\s*{names}\s*(?:\.[^\]]*)?\]")
    start = next((n for n, line in enumerate(lines) if own.match(line)), None)
    if start is None:
        return None
    end = start + 1
    for n in range(start + 1, len(lines)):
        line = lines[n].strip()
        if line.startswith("[") and not own.match(lines[n]):
            break
        if line and not line.startswith("#"):
            end = n + 1
    return start, end


def _written(value: Any) -> str:
    """Return a text or a list of texts; a string of JSON is one of TOML, too."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, list):
        return f"[{', '.join(_written(each) for each in value)}]"  # pyright: ignore[reportUnknownVariableType] - texts
    raise InvalidInput("only texts and lists of texts can be written as TOML")
