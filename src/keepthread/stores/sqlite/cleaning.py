"""Letting go of erased bytes in a SQLite file.

`secure_delete` zeroes what is deleted, and is not enough: where pages were merged or parted, copies
of rows stay behind in the unused space of a page. Only a rewrite of the file is sure to leave none.
"""

from __future__ import annotations

import os
import sqlite3
import sys
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

from keepthread.stores.sqlite.faults import translate_os
from keepthread.stores.sqlite.file import DatabaseFile
from keepthread.stores.sqlite.uses import USES
from keepthread.types import Cleaning, Residue

if TYPE_CHECKING:
    from pathlib import Path  # its import costs a twentieth of ours

_PATIENCE: Final = 2.0
"""Seconds to wait for readers that look at an older moment of the file."""
_CHUNK: Final = 8 << 20
_HAS_WORDS: Final = "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'words'"


def clean(
    db: sqlite3.Connection, file: DatabaseFile, *, rewrite: bool, probes: Sequence[bytes]
) -> Cleaning:
    """Merge the index of words, rewrite the file, empty its log, and search both.

    The connection is one that may write and is in no transaction.
    """
    done: list[str] = []
    residues: list[Residue] = []
    rewritten = not rewrite or _rewrite(db, file.path, done, residues)
    emptied = file.empty_log(db, _PATIENCE)
    name = file.path.name
    log = file.path.with_name(f"{name}-wal")
    if emptied:
        done.append(f"the log {log.name} was emptied")
    else:
        why = "a program reads an older moment of the file, so its log cannot be emptied"
        until = "that program is done and the store is opened again"
        residues.append(Residue(f"{name}, {log.name}", why, until))
    files = [path for path in (file.path, log) if path.exists()]
    return Cleaning(
        done,
        [path.name for path in files],
        search(file.path, log, probes),
        [*residues, Residue(f"backups of {name}", "they are not looked at", "they are deleted")],
        again=not (emptied and rewritten),
    )


def _rewrite(db: sqlite3.Connection, path: Path, done: list[str], residues: list[Residue]) -> bool:
    try:
        if db.execute(_HAS_WORDS).fetchone():
            db.execute("INSERT INTO words(words) VALUES('optimize')")
            done.append("the index of words was merged")
        db.execute("VACUUM")
        done.append(f"{path.name} was rewritten")
    except sqlite3.Error as error:
        why = f"it could not be rewritten, and unused space in it may hold copies ({error})"
        residues.append(Residue(path.name, why, "it can be, and the store is opened again"))
        return False
    return True


# --- searching ---

if sys.platform == "win32":  # pragma: no cover

    def _read_at(descriptor: int, offset: int) -> bytes:
        os.lseek(descriptor, offset, os.SEEK_SET)
        return os.read(descriptor, _CHUNK)

else:

    def _read_at(descriptor: int, offset: int) -> bytes:
        return os.pread(descriptor, _CHUNK, offset)


def search(path: Path, log: Path, probes: Sequence[bytes]) -> int:
    """Return how many of these pieces are in a file that is in use, or in its log."""
    try:
        with ExitStack() as stack:
            descriptors = [USES.descriptor(path)]
            if log.exists() and log.stat().st_size:
                # SQLite has no locks on a log, so that closing it again drops none.
                descriptors.append(os.open(log, os.O_RDONLY | os.O_CLOEXEC))
                stack.callback(os.close, descriptors[-1])
            return _count_found(descriptors, probes)
    except OSError as error:
        raise translate_os(error, path) from error


def _count_found(descriptors: Iterable[int], probes: Sequence[bytes]) -> int:
    left = set(probes)
    overlap = max(map(len, probes), default=0)
    for descriptor in descriptors:
        offset, before = 0, b""
        while left and (data := _read_at(descriptor, offset)):
            offset += len(data)
            seen = before + data
            left -= {probe for probe in left if probe in seen}
            before = seen[-overlap:]
    return len(probes) - len(left)
