"""SQLite's errors in our words."""

from __future__ import annotations

import errno
import sqlite3
from typing import TYPE_CHECKING, Final

from keepthread.errors import (
    Busy,
    Damaged,
    KeepthreadError,
    ReadOnly,
    StorageFull,
    Unavailable,
)

if TYPE_CHECKING:
    from pathlib import Path  # its import costs a twentieth of ours

_BY_CODE = {
    sqlite3.SQLITE_BUSY: (Busy, "another process held the store for too long"),
    sqlite3.SQLITE_LOCKED: (Busy, "another connection held the store for too long"),
    sqlite3.SQLITE_FULL: (StorageFull, "the disk is full"),
    sqlite3.SQLITE_READONLY: (ReadOnly, "the store cannot be written"),
    sqlite3.SQLITE_PERM: (ReadOnly, "the store cannot be written"),
    sqlite3.SQLITE_CANTOPEN: (Unavailable, "the file cannot be opened"),
    sqlite3.SQLITE_IOERR: (Unavailable, "the disk failed to read or write"),
    sqlite3.SQLITE_NOMEM: (Unavailable, "memory ran out"),
    sqlite3.SQLITE_CORRUPT: (Damaged, "the file is damaged"),
    sqlite3.SQLITE_NOTADB: (Damaged, "the file is no database any more"),
    sqlite3.SQLITE_ERROR: (Damaged, "the file's schema is damaged"),
}

_BY_ERRNO = {
    errno.EROFS: ReadOnly,
    errno.EACCES: ReadOnly,
    errno.EPERM: ReadOnly,
    errno.ENOSPC: StorageFull,
    errno.EDQUOT: StorageFull,
}


SQLITE_ERRORS: Final = (sqlite3.Error, UnicodeDecodeError)
"""What SQLite raises. Its message may name a damaged table, which cannot be decoded then."""


def translate(error: sqlite3.Error | UnicodeDecodeError, path: Path) -> KeepthreadError:
    """Return our error for one of SQLite's; its own words stay readable behind ours."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    if code == sqlite3.SQLITE_IOERR_SHMSIZE:  # no room for the shared memory beside the file
        code = sqlite3.SQLITE_FULL
    kind, meaning = _BY_CODE.get(code & 0xFF, (Unavailable, "SQLite failed"))
    return kind(f"{path}: {meaning} ({error})")


def translate_os(error: OSError, path: Path) -> KeepthreadError:
    """Return our error for one of the operating system's."""
    kind = _BY_ERRNO.get(error.errno or 0, Unavailable)
    return kind(f"{path}: {error.strerror or error}")
