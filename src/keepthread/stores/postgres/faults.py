"""PostgreSQL's errors in our words, and which of them mean that the server went away."""

from typing import Final

import psycopg

from keepthread.errors import (
    Busy,
    Conflict,
    Damaged,
    InvalidInput,
    KeepthreadError,
    ReadOnly,
    SessionGone,
    Stale,
    StorageFull,
    Unavailable,
    WrongFormat,
)


class Taken(Unavailable):
    """A key is in an index already; nobody but a store sees this."""


_OURS: Final[dict[str, type[KeepthreadError]]] = {
    "KT001": SessionGone,
    "KT002": Stale,
    "KT003": Conflict,
    "KT004": InvalidInput,
}

_BY_CODE: Final[dict[str, tuple[type[KeepthreadError], str]]] = {
    "23505": (Taken, "a key is there already"),
    "25006": (ReadOnly, "the server can be read but not written"),
    "40001": (Busy, "others changed the same rows for too long"),
    "40P01": (Busy, "others waited for the same rows for too long"),
    "42501": (Unavailable, "the role may not do this"),
    "53100": (StorageFull, "the server's disk is full"),
    "53200": (Unavailable, "the server's memory ran out"),
    "53300": (Busy, "the server has too many connections"),
    "55P03": (Busy, "another held the session for too long"),
    "57014": (Busy, "the server did not answer in time"),
    "58030": (Unavailable, "the server's disk failed to read or write"),
    "3F000": (WrongFormat, "this is no keepthread database; run `keepthread migrate`"),
    "42P01": (WrongFormat, "a table is missing; run `keepthread migrate`"),
    "42883": (WrongFormat, "a function is missing; run `keepthread migrate`"),
    "XX001": (Damaged, "the server's files are damaged"),
    "XX002": (Damaged, "an index of the server is damaged"),
}

_BY_CLASS: Final[dict[str, tuple[type[KeepthreadError], str]]] = {
    "28": (Unavailable, "the server refused the role or its password"),
    "3D": (Unavailable, "there is no such database"),
}

_LOST: Final = ("08", "57P")
_TRY_AGAIN: Final = ("40", "53300")


def translate(error: psycopg.Error) -> KeepthreadError:
    """Return our error for one of PostgreSQL's; its own words stay readable behind ours."""
    code = error.sqlstate or ""
    said = error.diag.message_primary or str(error).strip() or type(error).__name__
    if kind := _OURS.get(code):
        return kind(said)
    known = _BY_CODE.get(code) or _BY_CLASS.get(code[:2])
    kind, meaning = known or (Unavailable, "the server cannot be reached or failed")
    return kind(f"PostgreSQL: {meaning} ({said})")


def is_lost(error: psycopg.Error) -> bool:
    """Tell whether the connection broke, so that nobody knows what became of the statement."""
    if error.sqlstate is None:
        return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    return error.sqlstate.startswith(_LOST)


def is_undone(error: psycopg.Error) -> bool:
    """Tell whether the server undid the work itself and asks to try again."""
    return (error.sqlstate or "").startswith(_TRY_AGAIN)
