"""The bare engine: what SQLite itself takes for the same rows, one thread, no keepthread."""

import sqlite3
from collections.abc import Iterable, Iterator
from itertools import cycle, islice
from pathlib import Path
from typing import TypeAlias

from bench.corpus import session_names, texts
from keepthread.stores.codec import new_id

BareRow: TypeAlias = tuple[str, int, bytes, str, str, float]

_TABLE = """
CREATE TABLE messages (
    session    TEXT    NOT NULL,
    seq        INTEGER NOT NULL,
    id         BLOB    NOT NULL,
    role       TEXT    NOT NULL,
    content    TEXT    NOT NULL,
    created_at REAL    NOT NULL,
    UNIQUE (session, seq),
    UNIQUE (session, id)
)
"""
_INSERT = "INSERT INTO messages VALUES (?, ?, ?, ?, ?, ?)"
_READ = """
SELECT seq, id, role, content, extra, tokens, counter, turn, turns, total, created_at,
       digest, guard
FROM messages WHERE sid = ? ORDER BY seq DESC LIMIT ?
"""
_SESSION = "SELECT * FROM sessions WHERE sid = ?"
_SOME_TIME = 1_800_000_000.0


def rows(size: int, number: int, *, sessions: int = 1) -> list[BareRow]:
    """Return rows ready to be inserted, the sessions by turns."""
    names = list(islice(session_names(), sessions))
    made = zip(range(number), cycle(names), cycle(texts(size)), strict=False)
    return [
        (
            name,
            place // sessions + 1,
            bytes.fromhex(new_id()),
            ("user", "assistant")[place // sessions % 2],
            text,
            _SOME_TIME + place,
        )
        for place, name, text in made
    ]


class Bare:
    """A table in a file of its own, as durable as ours, each INSERT a commit."""

    def __init__(self, path: Path, rows: Iterable[BareRow]) -> None:
        self._db = sqlite3.connect(path, isolation_level=None)
        self._db.execute("PRAGMA journal_mode = WAL").fetchall()
        self._db.execute("PRAGMA synchronous = FULL")
        self._db.execute(_TABLE)
        self._cursor = self._db.cursor()
        self._rows: Iterator[BareRow] = iter(rows)

    def append(self, count: int) -> None:
        """Insert the next rows."""
        execute = self._cursor.execute
        for row in islice(self._rows, count):
            execute(_INSERT, row)

    def fill(self) -> None:
        """Insert all that is left, in one transaction, and move the log into the file."""
        self._db.execute("BEGIN")
        self._cursor.executemany(_INSERT, self._rows)
        self._db.execute("COMMIT")
        self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def close(self) -> None:
        """Close the file."""
        self._db.close()


class BareReader:
    """Reads the newest rows of our own table, with all its columns, as tuples."""

    def __init__(self, path: Path, sid: int, limit: int) -> None:
        self._db = sqlite3.connect(path, isolation_level=None)
        self._cursor = self._db.cursor()
        self._what = (sid, limit)

    def read(self, count: int) -> None:
        """Read them so many times."""
        execute, what = self._cursor.execute, self._what
        for _ in range(count):
            execute(_READ, what).fetchall()

    def read_with_session(self, count: int) -> None:
        """Read them and their session's row so many times."""
        execute, what = self._cursor.execute, self._what
        for _ in range(count):
            execute(_SESSION, what[:1]).fetchall()
            execute(_READ, what).fetchall()

    def close(self) -> None:
        """Close the file."""
        self._db.close()
