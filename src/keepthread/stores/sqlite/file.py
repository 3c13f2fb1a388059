"""The database file: opening it with the right settings, its format, its checkpoints."""

from __future__ import annotations

import codecs
import errno
import os
import sqlite3
import sys
import time
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Final, NamedTuple, Self, TypeAlias

from keepthread.errors import (
    Busy,
    Damaged,
    KeepthreadError,
    ReadOnly,
    StorageFull,
    Unavailable,
    WrongFormat,
)
from keepthread.stores.sqlite.schema import STORE, Format, difference, named
from keepthread.stores.sqlite.uses import USES
from keepthread.stores.validation import check_format

if TYPE_CHECKING:
    from pathlib import Path  # slow to import

_BY_CODE = {
    sqlite3.SQLITE_BUSY: (Busy, "another process held the store for too long"),
    sqlite3.SQLITE_LOCKED: (Busy, "another connection held the store for too long"),
    sqlite3.SQLITE_FULL: (StorageFull, "the disk is full"),
    sqlite3.SQLITE_READONLY: (ReadOnly, "the store cannot be written"),
    sqlite3.SQLITE_PERM: (ReadOnly, "the store cannot be written"),
    sqlite3.SQLITE_CANTOPEN: (Unavailable, "the file cannot be opened"),
    sqlite3.SQLITE_IOERR: (Unavailable, "the disk failed to read or write"),
    sqlite3.SQLITE_NOMEM: (Unavailable, "out of memory"),
    sqlite3.SQLITE_CORRUPT: (Damaged, "the file is damaged"),
    sqlite3.SQLITE_NOTADB: (
        Damaged,
        "the file is not an SQLite database, or its header is damaged",
    ),
    sqlite3.SQLITE_ERROR: (Damaged, "the file's schema is damaged"),
}

_BY_ERRNO = {
    errno.EROFS: ReadOnly,
    errno.EACCES: ReadOnly,
    errno.EPERM: ReadOnly,
    errno.ENOSPC: StorageFull,
    errno.EDQUOT: StorageFull,
}


_HEADER: Final = 100
"""Bytes of the header of a SQLite file."""
SQLITE_ERRORS: Final = (sqlite3.Error, UnicodeDecodeError)
"""The errors that SQLite raises; decoding a message with the name of a damaged table may fail."""


def translate(error: sqlite3.Error | UnicodeDecodeError, path: Path) -> KeepthreadError:
    """Return our error for one of SQLite's; the text includes SQLite's."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    if code == sqlite3.SQLITE_IOERR_SHMSIZE:  # no space for the shared memory file
        code = sqlite3.SQLITE_FULL
    if code & 0xFF == sqlite3.SQLITE_NOTADB and _is_text(path):
        return WrongFormat(f"{path} is a text file, not a keepthread store; check the path")
    kind, meaning = _BY_CODE.get(code & 0xFF, (Unavailable, "SQLite failed"))
    return kind(f"{path}: {meaning} ({error})")


def _is_text(path: Path) -> bool:
    """Return whether a file begins with text; the header of a database is full of zeros."""
    try:
        with path.open("rb") as file:
            head = file.read(_HEADER)
        text = codecs.getincrementaldecoder("utf-8")().decode(head)  # the last character may be cut
    except (OSError, UnicodeDecodeError):
        return False
    return bool(text) and all(character >= " " or character in "\t\r\n" for character in text)


def translate_os(error: OSError, path: Path) -> KeepthreadError:
    """Return our error for one of the operating system's."""
    kind = _BY_ERRNO.get(error.errno or 0, Unavailable)
    return kind(f"{path}: {error.strerror or error}")


if sys.platform == "win32":  # pragma: no cover
    import msvcrt

    # Windows lets nobody read a locked byte, and the text of an owner's file is read: so the
    # byte is one that no such file has.
    _LOCKED: Final = 1 << 30

    def _try_lock(descriptor: int) -> None:
        os.lseek(descriptor, _LOCKED, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)

    def _unlock(descriptor: int) -> None:
        os.lseek(descriptor, _LOCKED, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def _try_lock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _unlock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_UN)


_DESCRIPTORS: Final[set[int]] = set()
"""Descriptors of all locks that this process holds or tries to take."""


def _close_inherited() -> None:
    """Close a forked child's copies: an open copy would hold the lock while the child lives."""
    for descriptor in _DESCRIPTORS:
        with suppress(OSError):
            os.close(descriptor)
    _DESCRIPTORS.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_inherited)


# A planted link must not make us create or change a file elsewhere; Windows has no O_NOFOLLOW.
_FLAGS: Final[int] = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)


class FileLock:
    """A lock between processes; the system releases it if its holder dies."""

    def __init__(self, path: Path) -> None:
        """Set the lock file's path; the file is created on first use and kept."""
        self._path = path
        self._descriptor = -1
        self._pid = 0

    def take(self, *, timeout: float = 0.0) -> bool:
        """Take the lock within `timeout` seconds; return whether that worked."""
        deadline = time.monotonic() + timeout
        descriptor = os.open(self._path, _FLAGS, 0o600)
        _DESCRIPTORS.add(descriptor)
        while True:
            try:
                _try_lock(descriptor)
            except OSError:
                if time.monotonic() >= deadline:
                    _close(descriptor)
                    return False
                time.sleep(0.002)
            else:
                self._descriptor, self._pid = descriptor, os.getpid()
                return True

    def release(self) -> None:
        """Release the lock; a forked child does not release its parent's."""
        # Reset before releasing: another thread may take the lock immediately.
        descriptor, self._descriptor = self._descriptor, -1
        if os.getpid() == self._pid:
            # Closing alone would leave the lock to a child that has a copy of the descriptor.
            _unlock(descriptor)
            _close(descriptor)

    def __enter__(self) -> Self:
        """Hold the lock that `take` took."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Release the lock."""
        self.release()


def _close(descriptor: int) -> None:
    _DESCRIPTORS.discard(descriptor)
    os.close(descriptor)


PAGE: Final = 4096
LOG_LIMIT: Final = 1000 * PAGE
"""Size in bytes at which the write-ahead log is checkpointed, and to which it is truncated."""
_GUARD_WAIT: Final = 1.0
"""Seconds that a checkpoint waits for another process's transaction."""

Connect: TypeAlias = Callable[[str], sqlite3.Connection]
"""Opens a connection by URI, in autocommit mode; tests replace it to inject faults."""


def connect(uri: str, factory: type[sqlite3.Connection] = sqlite3.Connection) -> sqlite3.Connection:
    """Open a connection that leaves transactions to us; proofs give a factory that watches them."""
    return sqlite3.connect(
        uri, uri=True, isolation_level=None, cached_statements=256, timeout=0, factory=factory
    )


class FileFacts(NamedTuple):
    """Facts about a store's file; sizes are in bytes."""

    path: Path
    size: int
    wal_size: int
    journal_mode: str
    synchronous: str
    sqlite_version: str
    format: int
    writable: bool


Stamp: TypeAlias = tuple[int, int, int]


class Reading(NamedTuple):
    """A connection for reading."""

    db: sqlite3.Connection
    live: bool
    """Whether it sees later writes; if not, use it once and open another."""
    stamp: Stamp | None
    """The file's stamp if it is read without locks: results are valid while it stays the same."""


class _Way(NamedTuple):
    """A way to open a file for reading."""

    query: str
    pragmas: tuple[str, ...] = ()


# Connections share an index file of the log; a full or read-only disk has no space for it.
_SHARED = _Way("mode=ro")
# Without a log, the file can be read as it is, without locks and without that index.
_STILL = _Way("immutable=1")
# With a log, the index can be in this connection's memory while no other process has the file open.
_ALONE = _Way("mode=rw", ("PRAGMA locking_mode = EXCLUSIVE", "PRAGMA query_only = ON"))


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
        """Set the path and settings; nothing is opened yet."""
        self.path = path.absolute()
        self._kind = kind
        self._synchronous = synchronous
        self._timeout = timeout
        self._connect = connect
        self._lock = FileLock(self.path.with_name(f"{self.path.name}-lock"))

    def open_for_writing(self) -> sqlite3.Connection:
        """Open or create the file; one process at a time."""
        USES.check(self.path)
        try:
            if not self._lock.take(timeout=self._timeout):
                raise Busy(f"{self.path}: another process is preventing it from being opened")
            with self._lock:
                # Only the owner may read conversations; SQLite would create the file with mode
                # 0644. An existing file is not opened here: closing it would drop SQLite's locks.
                with suppress(FileExistsError):
                    os.close(os.open(self.path, os.O_CREAT | os.O_EXCL, 0o600))
                if not self._writable():
                    raise PermissionError(errno.EACCES, "the file is write-protected")
                return self._prepared(self._connect(self._uri("mode=rw")))
        except (OSError, *SQLITE_ERRORS) as error:
            raise self._ours(error) from error

    def open_for_reading(self) -> Reading:
        """Open the file as it is, even on a disk that is full or write-protected."""
        USES.check(self.path)
        log_size = self.log_size()
        ways = [_SHARED, _ALONE if log_size else _STILL]
        # SQLite would create files beside a read-only file that stay read-only too.
        if log_size is None and not self._writable():
            ways.reverse()
        failure: OSError | sqlite3.Error | UnicodeDecodeError | None = None
        for way in ways:
            try:
                stamp = self._stamp() if way is _STILL else None
                return Reading(self._readable(way), live=way is _SHARED, stamp=stamp)
            except (OSError, *SQLITE_ERRORS) as error:
                failure = failure or error
                if isinstance(self._ours(error), (Damaged, Busy)):
                    break  # another way would return damaged or half-written data
        assert failure is not None
        raise self._ours(failure) from failure

    def log_size(self) -> int | None:
        """Return the bytes of the write-ahead log, or None if there is no log."""
        try:
            return self.path.with_name(f"{self.path.name}-wal").stat().st_size
        except FileNotFoundError:
            return None

    def is_unchanged(self, stamp: Stamp) -> bool:
        """Return whether the file has not been written since it had this stamp."""
        try:
            return self._stamp() == stamp
        except OSError:
            return False

    def _stamp(self) -> Stamp:
        found = self.path.stat()
        return found.st_ino, found.st_size, found.st_mtime_ns

    def _writable(self) -> bool:
        return os.access(self.path, os.W_OK)

    def checkpoint(self, db: sqlite3.Connection) -> None:
        """Move the write-ahead log into the file unless another process is writing.

        SQLite 3.7.0 to 3.51.2 may lose writes if another connection commits while a log is
        checkpointed that was checkpointed before. So automatic checkpoints are off, and ours run
        while nobody can commit. A failure only makes the log longer: the next checkpoint retries.
        """
        with suppress(OSError, sqlite3.Error):
            if self._lock.take():
                with self._lock, self._without_commits():
                    db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    @contextmanager
    def _without_commits(self) -> Generator[None]:
        """Hold SQLite's own write lock, which other programs respect too.

        A checkpoint in mode FULL would take it, but runs without it if another connection has it,
        and would keep everyone from writing while it waits for readers.
        """
        with closing(self._connect(self._uri("mode=rw"))) as guard:
            guard.execute(f"PRAGMA busy_timeout = {round(min(self._timeout, _GUARD_WAIT) * 1000)}")
            guard.execute("BEGIN IMMEDIATE")
            try:
                yield
            finally:
                guard.execute("ROLLBACK")

    def empty_log(self, db: sqlite3.Connection, patience: float) -> bool:
        """Move the whole log into the file and truncate it; return whether that worked.

        It fails while a reader uses an older snapshot of the file; this call waits for it.
        """
        if not self._lock.take(timeout=self._timeout):
            return False
        with self._lock:
            db.execute(f"PRAGMA busy_timeout = {round(patience * 1000)}").fetchall()
            (busy, _, _) = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        return not busy

    def facts(self, db: sqlite3.Connection) -> FileFacts:
        """Return facts about the file, from any connection to it."""
        return FileFacts(
            path=self.path,
            size=self.path.stat().st_size,
            wal_size=self.log_size() or 0,
            journal_mode=db.execute("PRAGMA journal_mode").fetchone()[0],
            synchronous=self._synchronous,
            sqlite_version=sqlite3.sqlite_version,
            format=db.execute("PRAGMA user_version").fetchone()[0],
            writable=self._writable(),
        )

    def _prepared(self, db: sqlite3.Connection) -> sqlite3.Connection:
        try:
            self._configure(db)
            is_new = self._is_empty(db)
            if not is_new:  # first, so that a foreign file is not changed
                self._check_schema(db)
            db.execute("PRAGMA journal_mode = WAL").fetchall()
            db.execute(f"PRAGMA synchronous = {self._synchronous}")
            db.execute("PRAGMA fullfsync = ON")  # on macOS, fsync alone does not reach the disk
            db.execute("PRAGMA checkpoint_fullfsync = ON")
            db.execute("PRAGMA wal_autocheckpoint = 0").fetchall()
            db.execute(f"PRAGMA journal_size_limit = {LOG_LIMIT}").fetchall()
            db.execute("PRAGMA secure_delete = ON").fetchall()
            if is_new:
                db.executescript(
                    f"BEGIN IMMEDIATE; {self._kind.tables}"
                    f"PRAGMA user_version = {self._kind.number};"
                    f"PRAGMA application_id = {self._kind.application_id}; COMMIT;"
                )
        except BaseException:
            db.close()
            raise
        return db

    def _readable(self, way: _Way) -> sqlite3.Connection:
        db = self._connect(self._uri(way.query))
        try:
            self._configure(db)
            for pragma in way.pragmas:
                db.execute(pragma).fetchall()
            if self._is_empty(db):
                raise WrongFormat(f"{self.path} is empty; open it once with write access")
            self._check_schema(db)
        except BaseException:
            db.close()
            raise
        return db

    def _configure(self, db: sqlite3.Connection) -> None:
        db.execute(f"PRAGMA busy_timeout = {round(self._timeout * 1000)}").fetchall()
        db.execute("PRAGMA trusted_schema = OFF")  # the file may come from someone else
        db.text_factory = _lenient

    def _is_empty(self, db: sqlite3.Connection) -> bool:
        """Return whether the file is new; raise `WrongFormat` if it is not ours."""
        (application,) = db.execute("PRAGMA application_id").fetchone()
        (found,) = db.execute("PRAGMA user_version").fetchone()
        (tables,) = db.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        if application == 0 and found == 0 and tables == 0:
            return True
        if application != self._kind.application_id or found < 1:
            raise WrongFormat(f"{self.path} is a database, but not a keepthread {self._kind.what}")
        kind = self._kind
        check_format(str(self.path), found, kind.number, kind.readers, advice=kind.advice)
        return False

    def _check_schema(self, db: sqlite3.Connection) -> None:
        """Raise an error if the file's schema is not exactly that of its format."""
        missing, foreign = difference(db, self._kind)
        if missing:
            raise Damaged(f"{self.path}: the file's schema is damaged; restore it from a backup")
        if foreign:
            raise WrongFormat(
                f"{self.path} contains {', '.join(map(named, foreign[:3]))}, which keepthread did"
                " not create. It was not opened, because such a file can run SQL of its own; drop"
                " them with the sqlite3 program if you trust the file"
            )

    def _uri(self, query: str) -> str:
        return f"{self.path.as_uri()}?{query}"

    def _ours(self, error: OSError | sqlite3.Error | UnicodeDecodeError) -> KeepthreadError:
        if isinstance(error, OSError):
            return translate_os(error, self.path)
        return translate(error, self.path)


def _lenient(data: bytes) -> str:
    # A flipped bit in a text must fail the row's checksum, not the whole query.
    return data.decode("utf-8", "surrogateescape")
