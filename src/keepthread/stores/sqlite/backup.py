"""Copying a SQLite file while it is in use, through SQLite's own online backup."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Final

from keepthread.errors import InvalidInput
from keepthread.private_files import private_copy
from keepthread.protocols import Progress
from keepthread.stores.sqlite.faults import translate, translate_os

if TYPE_CHECKING:
    from pathlib import Path  # its import costs a twentieth of ours

_PAGES: Final = 1000


def copy_file(db: sqlite3.Connection, target: Path, progress: Progress | None) -> None:
    """Copy the file behind a connection; the copy gets its name once it is whole."""
    target = target.absolute()
    try:
        if os.path.lexists(target):
            raise FileExistsError  # before anything is copied
        with private_copy(target) as part:
            _copy(db, part, progress)
    except FileExistsError:
        raise InvalidInput(f"{target} exists already; a backup overwrites nothing") from None
    except OSError as error:
        raise translate_os(error, target) from error
    except sqlite3.Error as error:
        raise translate(error, target) from error


def _copy(db: sqlite3.Connection, part: Path, progress: Progress | None) -> None:
    def tell(_: int, remaining: int, total: int) -> None:
        if progress:
            progress(total - remaining, total)

    # An open transaction keeps one moment in view; without it every write by another process
    # would make the copy begin again.
    db.execute("BEGIN")
    try:
        db.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        with closing(sqlite3.connect(part)) as copy:
            db.backup(copy, pages=_PAGES, progress=tell)
    finally:
        db.execute("COMMIT")
