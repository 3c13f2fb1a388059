"""Letting go of erased bytes in a SQLite file.

`secure_delete` zeroes what is deleted, and is not enough: where pages were merged or parted, copies
of rows stay behind in the unused space of a page. Only a rewrite of the file is sure to leave none.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterable, Sequence
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Final

from keepthread.stores.sqlite.file import DatabaseFile
from keepthread.types import Cleaning, Residue

if TYPE_CHECKING:
    from pathlib import Path  # its import costs a twentieth of ours

_PATIENCE: Final = 2.0
"""Seconds to wait for readers that look at an older moment of the file."""
_CHUNK: Final = 8 << 20
_HAS_WORDS: Final = "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'words'"


def clean(file: DatabaseFile, *, rewrite: bool, probes: Sequence[bytes]) -> Cleaning:
    """Merge the index of words, rewrite the file, empty its log, and search both."""
    done: list[str] = []
    residues: list[Residue] = []
    with closing(file.open_for_writing()) as db:
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
        search(files, probes),
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


def search(files: Iterable[Path], probes: Sequence[bytes]) -> int:
    """Return how many of these pieces are in one of the files."""
    left = set(probes)
    overlap = max(map(len, probes), default=0)
    for path in files:
        with suppress(FileNotFoundError), _LOCK:
            descriptor, before = _held(path), b""
            os.lseek(descriptor, 0, os.SEEK_SET)
            while left and (data := os.read(descriptor, _CHUNK)):
                seen = before + data
                left -= {probe for probe in left if probe in seen}
                before = seen[-overlap:]
    return len(probes) - len(left)


_DESCRIPTORS: Final[dict[tuple[int, int], int]] = {}
_LOCK: Final = threading.Lock()


def _held(path: Path) -> int:
    """Return a descriptor that is never closed: closing one would drop SQLite's locks on the file.

    There is one for each file that was ever searched.
    """
    facts = path.stat()
    known = _DESCRIPTORS.get((facts.st_dev, facts.st_ino))
    if known is None:
        known = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        _DESCRIPTORS[facts.st_dev, facts.st_ino] = known
    return known
