"""Checks of values that every backend must store exactly, and of formats."""

import math
from collections.abc import Sequence
from datetime import datetime
from typing import Final, cast

from keepthread.errors import InvalidInput, WrongFormat
from keepthread.types import JSON, Message

MAX_BYTES: Final = 1 << 20
MAX_BLOB: Final = 64 << 20
MAX_DEPTH: Final = 64
MAX_ID: Final = 255
MAX_COUNT: Final = (1 << 53) - 1
MAX_TIME: Final = 253_402_300_800
"""The year 10000 begins, in seconds since 1970."""

EXPORT: Final = (
    "Export it with keepthread at commit {} (`keepthread export`), then import it into a new store"
)
"""What to do with a store of an earlier development version."""
_LAST_MIGRATION: Final = "4ce31d9"
"""The last commit that migrates formats, so it reads all that were earlier."""


def check_format(
    what: str, found: int, known: int, readers: Sequence[str], *, advice: str = EXPORT
) -> None:
    """Refuse a format that another version wrote; until the first release, only one is read.

    `readers` are the last commits that read the formats right before the known one; those before
    them were migrated.
    """
    if found > known:
        raise WrongFormat(
            f"{what} has format {found}, which a newer keepthread wrote; this"
            f" keepthread reads format {known}. Install a newer keepthread"
        )
    if found < known:
        reader = readers[found - known] if known - found <= len(readers) else _LAST_MIGRATION
        raise WrongFormat(
            f"{what} has format {found}, which an earlier development version wrote; this"
            f" keepthread reads format {known}. {advice.format(reader)}"
        )


def check_id(value: object, what: str) -> str:
    """Return an id or a name: 1 to 255 printable characters."""
    if type(value) is str and 0 < len(value) <= MAX_ID and value.isprintable():
        return value
    raise InvalidInput(f"{what} must be 1 to {MAX_ID} printable characters, not {show(value)}")


def check_count(value: object, what: str) -> int:
    """Return a whole number from 0 to 2**53 - 1, which every engine and JSON keep."""
    if type(value) is int and 0 <= value <= MAX_COUNT:
        return value
    raise InvalidInput(f"{what} must be a whole number from 0 to 2**53 - 1, not {show(value)}")


def check_time(value: object, what: str) -> float:
    """Return seconds since 1970 as a finite float."""
    if type(value) is int or type(value) is float:
        try:
            seconds = float(value) + 0.0  # SQLite would turn -0.0 into 0.0
        except OverflowError:
            seconds = math.inf
        if 0 <= seconds < math.inf:
            return seconds
    raise InvalidInput(f"{what} must be seconds since 1970, not {show(value)}")


def check_date(value: object, what: str) -> float:
    """Return seconds since 1970 of a year up to 9999; larger numbers are likely milliseconds."""
    seconds = check_time(value, what)
    if seconds < MAX_TIME:
        return seconds
    raise InvalidInput(
        f"{what} must be seconds since 1970, before the year 10000, not {show(value)};"
        " divide milliseconds by 1,000"
    )


def seconds_of(value: float | datetime | None, what: str) -> float | None:
    """Return a time as seconds since 1970; a datetime must have a time zone."""
    if not isinstance(value, datetime):
        return value
    if value.tzinfo is None:
        raise InvalidInput(
            f"{what} has no time zone; write datetime(…, tzinfo=UTC), or value.astimezone() if it"
            " is local time"
        )
    return value.timestamp()


def check_message(value: object) -> Message:
    """Return a message; what is not one is refused with how to make one."""
    if type(value) is Message:
        return value
    raise InvalidInput(
        f"expected a Message, not {show(value)}; write Message(role='user', content='…')"
    )


def check_text(value: object, what: str) -> str:
    """Return any text, NUL and lone surrogates included."""
    if type(value) is str:
        return value
    raise InvalidInput(f"{what} must be text, not {show(value)}")


def plain(value: object, what: str, *, ordered: bool = False) -> JSON:
    """Return a copy made of JSON's own types; keys are sorted unless `ordered` keeps theirs."""
    return _Plain(what, ordered).copy(value, MAX_DEPTH)


class _Plain:
    """One copying; it ends early where the copy could not be stored anyway."""

    def __init__(self, what: str, ordered: bool) -> None:
        self.what = what
        self.ordered = ordered
        self.values = 0

    def copy(self, value: object, depth: int) -> JSON:
        self.values += 1
        if self.values > MAX_BYTES:  # a list may hold itself twice over, and again
            raise InvalidInput(f"{self.what} has more than {MAX_BYTES} values")
        kind = type(value)
        if value is None or kind is bool or kind is str or kind is int:
            return cast(JSON, value)
        if kind is float:
            if math.isfinite(cast(float, value)):
                return cast(float, value)
            raise InvalidInput(f"{self.what} contains {value}, which JSON cannot represent")
        if kind is not list and kind is not dict:
            raise InvalidInput(
                f"{self.what} contains a value of type {kind.__name__}; only None, bool, int, "
                "float, str, list and dict are allowed"
            )
        if depth == 0:
            raise InvalidInput(f"{self.what} is nested more than {MAX_DEPTH} deep")
        if kind is list:
            return [self.copy(item, depth - 1) for item in cast(list[object], value)]
        return self._copy_map(cast(dict[object, object], value), depth)

    def _copy_map(self, value: dict[object, object], depth: int) -> JSON:
        items = [(check_text(key, f"a key of {self.what}"), item) for key, item in value.items()]
        if not self.ordered:
            items.sort(key=lambda item: item[0])
        return {key: self.copy(item, depth - 1) for key, item in items}


def show(value: object) -> str:
    """Return a short ASCII form of any value, for error messages."""
    try:
        text = ascii(value)
    except ValueError:  # an int of more digits than Python prints
        text = f"a {type(value).__name__}"
    return text if len(text) <= 60 else f"{text[:50]}…"
