"""The database file: opening it with the right settings, its format, its checkpoints."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from keepthread.errors import Busy, Damaged, KeepthreadError, WrongFormat
from keepthread.stores.sqlite.faults import translate, translate_os
from keepthread.stores.sqlite.lock import FileLock
from keepthread.stores.sqlite.statements import FORMAT, migration

if TYPE_CHECKING:
    from pathlib import Path  # its import costs a twentieth of ours

Connect: TypeAlias = Callable[[str], sqlite3.Connection]
"""Opens a connection by URI, in autocommit mode; a test may put faults behind it."""


class Format(NamedTuple):
    """What kind of file it is; `script` gives what leads to a format from the one before."""

    what: str
    application_id: int
    newest: int
    script: Callable[[int], str]


STORE: Final = Format("store", 0x6B707464, FORMAT, migration)  # "kptd"


def connect(uri: str) -> sqlite3.Connection:
    """Open a connection that leaves transactions to us."""
    return sqlite3.connect(uri, uri=True, isolation_level=None, cached_statements=256, timeout=0)


class FileFacts(NamedTuple):
    """What a store's file is like; sizes are in bytes."""

    path: Path
    size: int
    wal_size: int
    journal_mode: str
    synchronous: str
    sqlite_version: str
    format: int
    writable: bool


class DatabaseFile:
    """One file in write-ahead mode; `synchronous` is FULL or NORMAL."""

    def __init__(
        self,
        path: Path,
        *,
        synchronous: str,
        timeout: float,
        connect: Connect,
        kind: Format = STORE,
    ) -> None:
        """Name the file; nothing is touched yet."""
        self.path = path.absolute()
        self._kind = kind
        self._synchronous = synchronous
        self._timeout = timeout
        self._connect = connect
        self._lock = FileLock(self.path.with_name(f"{self.path.name}-lock"))

    def open_for_writing(self) -> sqlite3.Connection:
        """Open, create or migrate the file; one process at a time."""
        try:
            if not self._lock.take(timeout=self._timeout):
                raise Busy(f"{self.path}: another process keeps it from being opened")
            with self._lock:
                # Conversations are their owner's alone; SQLite by itself would make it 0644. A
                # file that is there is not touched: closing it would drop SQLite's locks on it.
                with suppress(FileExistsError):
                    os.close(os.open(self.path, os.O_CREAT | os.O_EXCL, 0o600))
                if not self._writable():
                    raise PermissionError(errno.EACCES, "the file is write-protected")
                return self._prepared(self._connect(self._uri("mode=rw")))
        except (OSError, sqlite3.Error) as error:
            raise self._ours(error) from error

    def open_for_reading(self) -> sqlite3.Connection:
        """Open the file as it is, even on a disk that cannot be written."""
        # Without a log to read, a still picture will do where shared memory has no place; and
        # beside a write-protected file SQLite would leave files that stay write-protected.
        still = not self.path.with_name(f"{self.path.name}-wal").exists()
        modes = ["mode=ro", "immutable=1"] if still else ["mode=ro"]
        if still and not self._writable():
            modes.reverse()
        failure: OSError | sqlite3.Error | None = None
        for mode in modes:
            try:
                return self._readable(mode)
            except (OSError, sqlite3.Error) as error:
                failure = failure or error
        assert failure is not None
        raise self._ours(failure) from failure

    def _writable(self) -> bool:
        return os.access(self.path, os.W_OK)

    def checkpoint(self, db: sqlite3.Connection) -> None:
        """Move the write-ahead log into the file unless another process is at it.

        SQLite 3.7.0 to 3.51.2 may lose a write when two connections reset the log at once; so
        automatic checkpoints are off, and ours hold a lock. A failure costs nothing but a longer
        log: the next one tries again.
        """
        with suppress(OSError, sqlite3.Error):
            if self._lock.take():
                with self._lock:
                    db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    def empty_log(self, db: sqlite3.Connection, patience: float) -> bool:
        """Move the whole log into the file and cut it to nothing; tell whether that worked.

        It does not while somebody reads an older moment of the file; that is waited for.
        """
        if not self._lock.take(timeout=self._timeout):
            return False
        with self._lock:
            db.execute(f"PRAGMA busy_timeout = {round(patience * 1000)}").fetchall()
            (busy, _, _) = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        return not busy

    def facts(self, db: sqlite3.Connection) -> FileFacts:
        """Return what the file is like, asked over any connection to it."""
        log = self.path.with_name(f"{self.path.name}-wal")
        return FileFacts(
            path=self.path,
            size=self.path.stat().st_size,
            wal_size=log.stat().st_size if log.exists() else 0,
            journal_mode=db.execute("PRAGMA journal_mode").fetchone()[0],
            synchronous=self._synchronous,
            sqlite_version=sqlite3.sqlite_version,
            format=db.execute("PRAGMA user_version").fetchone()[0],
            writable=self._writable(),
        )

    def _prepared(self, db: sqlite3.Connection) -> sqlite3.Connection:
        try:
            self._configure(db)
            found = self._format(db)  # before anything is changed in a file that is not ours
            if found == self._kind.newest:
                self._check_schema(db)
            db.execute("PRAGMA journal_mode = WAL").fetchall()
            db.execute(f"PRAGMA synchronous = {self._synchronous}")
            db.execute("PRAGMA fullfsync = ON")  # on macOS, fsync alone does not reach the disk
            db.execute("PRAGMA checkpoint_fullfsync = ON")
            db.execute("PRAGMA wal_autocheckpoint = 0").fetchall()
            db.execute("PRAGMA secure_delete = ON").fetchall()
            for number in range(found + 1, self._kind.newest + 1):
                db.executescript(
                    f"BEGIN IMMEDIATE; {self._kind.script(number)}"
                    f"PRAGMA user_version = {number};"
                    f"PRAGMA application_id = {self._kind.application_id}; COMMIT;"
                )
        except BaseException:
            db.close()
            raise
        return db

    def _readable(self, mode: str) -> sqlite3.Connection:
        db = self._connect(self._uri(mode))
        try:
            self._configure(db)
            if (found := self._format(db)) != self._kind.newest:
                raise WrongFormat(
                    f"{self.path} has format {found} and cannot be written; open it once where it"
                    f" can, to bring it to format {self._kind.newest}"
                )
            self._check_schema(db)
        except BaseException:
            db.close()
            raise
        return db

    def _configure(self, db: sqlite3.Connection) -> None:
        db.execute(f"PRAGMA busy_timeout = {round(self._timeout * 1000)}").fetchall()
        db.text_factory = _lenient

    def _format(self, db: sqlite3.Connection) -> int:
        """Return the file's format, 0 for an empty file, or refuse what is not ours."""
        (application,) = db.execute("PRAGMA application_id").fetchone()
        (found,) = db.execute("PRAGMA user_version").fetchone()
        (tables,) = db.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        if application == 0 and found == 0 and tables == 0:
            return 0
        what, application_id, newest, _ = self._kind
        if application != application_id or found < 1:
            raise WrongFormat(f"{self.path} is a database, but not a keepthread {what}")
        if found > newest:
            raise WrongFormat(
                f"{self.path} has format {found}; this keepthread knows formats up to {newest}."
                " Install a newer keepthread."
            )
        return found

    def _check_schema(self, db: sqlite3.Connection) -> None:
        """Refuse a file whose tables are not those that the migrations made."""
        if not schema(self._kind) <= set(db.execute(_SCHEMA)):
            raise Damaged(f"{self.path}: the file's schema is damaged; restore it from a backup")

    def _uri(self, query: str) -> str:
        return f"{self.path.as_uri()}?{query}"

    def _ours(self, error: OSError | sqlite3.Error) -> KeepthreadError:
        if isinstance(error, OSError):
            return translate_os(error, self.path)
        return translate(error, self.path)


# What FTS5 keeps its index in is its own business, and may differ from one SQLite to the next.
_SCHEMA: Final = "SELECT type, name, tbl_name, sql FROM sqlite_schema WHERE name NOT GLOB 'words_*'"


@cache
def schema(kind: Format) -> set[tuple[Any, ...]]:
    """Return the tables and indexes of a sound file of the newest format."""
    with closing(connect(":memory:")) as db:
        for number in range(1, kind.newest + 1):
            db.executescript(kind.script(number))
        return set(db.execute(_SCHEMA))


def _lenient(data: bytes) -> str:
    # A flipped bit in a text must be seen by the row's check, not end the whole query.
    return data.decode("utf-8", "surrogateescape")
