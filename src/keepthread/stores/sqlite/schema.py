"""The schema a file must have: the tables, indexes and views of `schema.sql`, nothing else.

A trigger or a view that somebody else wrote runs its own SQL whenever we read or write, so a
prepared file could copy messages, change them, or retain data that `forget` removes.
"""

from __future__ import annotations

import pkgutil
import re
import sqlite3
from contextlib import closing
from functools import cache
from typing import Final, NamedTuple, TypeAlias

from keepthread.stores.validation import EXPORT


def _read(name: str) -> str:
    data = pkgutil.get_data(__package__ or "", name)
    if data is None:  # pragma: no cover - only loaders without files answer None
        raise FileNotFoundError(name)
    return data.decode()


def _by_name(text: str) -> dict[str, str]:
    parts = re.split(r"^-- name: (\w+)\n", text, flags=re.MULTILINE)[1:]
    return {name: sql.strip() for name, sql in zip(parts[::2], parts[1::2], strict=True)}


SQL: Final = _by_name(_read("statements.sql"))

FORMAT: Final = 11
"""The format this keepthread reads and writes; every edit of `schema.sql` raises it."""
READERS: Final = (
    "06bc1be",
    "3738533",
    "342397a",
    "7883e92",
    "06d9ea0",
    "3d25284",
    "91fb2ee",
    "4763f5a",
)
"""The last commits that read the formats before this one, that of the newest last."""

Entry: TypeAlias = tuple[str, str, str, str | None]
"""A row of `sqlite_schema`: type, name, table and SQL."""


class Format(NamedTuple):
    """A kind of file: its format, its tables, and what to do with a file of an older format."""

    what: str
    application_id: int
    number: int
    tables: str
    advice: str
    readers: tuple[str, ...]


STORE: Final = Format("store", 0x6B707464, FORMAT, _read("schema.sql"), EXPORT, READERS)  # "kptd"


class SchemaDifference(NamedTuple):
    """How the schema of a file differs from its format's."""

    missing: list[Entry]
    foreign: list[Entry]


def difference(db: sqlite3.Connection, kind: Format) -> SchemaDifference:
    """Compare a file's schema with that of its kind."""
    found = {entry for entry in db.execute(_SCHEMA) if not _allowed(entry)}
    expected = _expected(kind)
    return SchemaDifference(sorted(expected - found, key=str), sorted(found - expected, key=str))


def named(entry: Entry) -> str:
    """Return an entry as people know it: `trigger 'copy' on 'messages'`."""
    kind, name, table, _ = entry
    return f"{kind} {name!r}" if name == table else f"{kind} {name!r} on {table!r}"


_SCHEMA: Final = "SELECT type, name, tbl_name, sql FROM sqlite_schema"

# The tables of FTS5 may differ from one SQLite version to the next, so they are not compared; but
# they must be plain tables, without defaults, checks or computed columns.
_INDEX_TABLE: Final = re.compile(r"words_(?:data|idx|content|docsize|config)")
_COLUMN: Final = r"(?:PRIMARY KEY\(\w++(?:, \w++)*\)|\w++(?: INTEGER| BLOB)?(?: PRIMARY KEY)?)"
_PLAIN: Final = re.compile(
    rf"CREATE TABLE '?words_\w+'?\({_COLUMN}(?:, {_COLUMN})*\)(?: WITHOUT ROWID)?"
)
_STATISTICS: Final = frozenset(  # ANALYZE creates them
    {
        ("table", "sqlite_stat1", "sqlite_stat1", "CREATE TABLE sqlite_stat1(tbl,idx,stat)"),
        (
            "table",
            "sqlite_stat4",
            "sqlite_stat4",
            "CREATE TABLE sqlite_stat4(tbl,idx,neq,nlt,ndlt,sample)",
        ),
    }
)


def _allowed(entry: Entry) -> bool:
    kind, name, table, sql = entry
    if entry in _STATISTICS:
        return True
    if kind != "table" or name != table or not _INDEX_TABLE.fullmatch(name):
        return False
    return bool(_PLAIN.fullmatch(sql or ""))


@cache
def _expected(kind: Format) -> frozenset[Entry]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        db.executescript(kind.tables)
        return frozenset(entry for entry in db.execute(_SCHEMA) if not _allowed(entry))
