"""Backup, cleaning and recounting of a SQLite file while it is in use."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from keepthread.errors import InvalidInput
from keepthread.protocols import Progress, TokenCounter
from keepthread.stores.codec import Row, decode, guarded
from keepthread.stores.private_files import BINARY, private_copy
from keepthread.stores.rows import recounted_row
from keepthread.stores.sqlite.file import DatabaseFile, translate, translate_os
from keepthread.stores.sqlite.log import check_session
from keepthread.stores.sqlite.schema import SQL
from keepthread.stores.sqlite.uses import USES
from keepthread.types import Cleaning, Residue

if TYPE_CHECKING:
    from pathlib import Path  # slow to import

_PAGES: Final = 1000


def copy_file(db: sqlite3.Connection, target: Path, progress: Progress | None) -> None:
    """Copy the file of a connection; the copy gets its name once it is complete."""
    target = target.absolute()
    try:
        if os.path.lexists(target):
            raise FileExistsError  # before anything is copied
        with private_copy(target) as part:
            _copy(db, part, progress)
    except FileExistsError:
        raise InvalidInput(f"{target} already exists; a backup never overwrites a file") from None
    except OSError as error:
        raise translate_os(error, target) from error
    except sqlite3.Error as error:
        raise translate(error, target) from error


def _copy(db: sqlite3.Connection, part: Path, progress: Progress | None) -> None:
    def report(_: int, remaining: int, total: int) -> None:
        if progress:
            progress(total - remaining, total)

    # An open transaction keeps the view of one moment; without it, every write by another
    # process would restart the copy.
    db.execute("BEGIN")
    try:
        db.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        with closing(sqlite3.connect(part)) as copy:
            db.backup(copy, pages=_PAGES, progress=report)
    finally:
        db.execute("COMMIT")


_PATIENCE: Final = 2.0
"""Seconds to wait for readers of an older state of the file."""
_CHUNK: Final = 256 << 10
"""Bytes that are searched at a time: as many as stay in a processor's cache."""
_HAS_WORDS: Final = "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'words'"


SMALL: Final = 4 << 20
"""Bytes of a file that is rewritten after every erasure; that takes some 30 ms."""


def clean_erased(
    db: sqlite3.Connection,
    file: DatabaseFile,
    *,
    erased: bool,
    rewrite: bool,
    probes: Sequence[bytes],
) -> Cleaning:
    """Clean a file after an erasure; a large one is rewritten only if that is asked for.

    SQLite overwrites what is erased with zeros. Two things may be left: copies that it made when it
    moved rows from page to page, in the unused space of pages, and single words in the index of
    words. Only a rewrite removes these, and it takes as long as the file is large. The search for
    the probes reads the whole file, but does not change it.
    """
    small = file.path.stat().st_size <= SMALL
    cleaning = clean(db, file, rewrite=rewrite or (erased and small), probes=probes)
    if not erased or rewrite or small:
        return cleaning
    why = "unused space and the word index may contain pieces too short to search for"
    until = "it is rewritten (rewrite=True does that now)"
    return cleaning._replace(residues=[Residue(file.path.name, why, until), *cleaning.residues])


def clean(
    db: sqlite3.Connection, file: DatabaseFile, *, rewrite: bool, probes: Sequence[bytes]
) -> Cleaning:
    """Merge the word index, rewrite the file, empty its log, and search both for the probes.

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
        why = "a program is reading an older snapshot of the file, so its log cannot be emptied"
        until = "that program finishes and the store is opened again"
        residues.append(Residue(f"{name}, {log.name}", why, until))
    files = [path for path in (file.path, log) if path.exists()]
    return Cleaning(
        done,
        [path.name for path in files],
        search(file.path, log, probes),
        [*residues, Residue(f"backups of {name}", "they are not searched", "they are deleted")],
        again=not (emptied and rewritten),
    )


def _rewrite(db: sqlite3.Connection, path: Path, done: list[str], residues: list[Residue]) -> bool:
    try:
        if db.execute(_HAS_WORDS).fetchone():
            db.execute("INSERT INTO words(words) VALUES('optimize')")
            done.append("the word index was merged")
        db.execute("VACUUM")
        done.append(f"{path.name} was rewritten")
    except sqlite3.Error as error:
        why = f"it could not be rewritten, and unused space in it may hold copies ({error})"
        residues.append(Residue(path.name, why, "that is possible and the store is opened again"))
        return False
    return True


# --- searching ---

if hasattr(os, "pread"):

    def _read_at(descriptor: int, offset: int) -> bytes:
        return os.pread(descriptor, _CHUNK, offset)

else:  # pragma: no cover - Windows

    def _read_at(descriptor: int, offset: int) -> bytes:
        os.lseek(descriptor, offset, os.SEEK_SET)
        return os.read(descriptor, _CHUNK)


def search(path: Path, log: Path, probes: Sequence[bytes]) -> list[int]:
    """Return which probes are in a file or its log, while it is in use."""
    try:
        with ExitStack() as stack:
            descriptors = [USES.descriptor(path)]
            if log.exists() and log.stat().st_size:
                # SQLite holds no locks on the log, so closing it drops none.
                descriptors.append(os.open(log, os.O_RDONLY | BINARY))
                stack.callback(os.close, descriptors[-1])
            return _find(descriptors, probes)
    except OSError as error:
        raise translate_os(error, path) from error


def _find(descriptors: Iterable[int], probes: Sequence[bytes]) -> list[int]:
    left = set(probes)
    overlap = max(map(len, probes), default=0)
    for descriptor in descriptors:
        offset, before = 0, b""
        while left and (data := _read_at(descriptor, offset)):
            offset += len(data)
            seen = before + data
            left -= {probe for probe in left if probe in seen}
            before = seen[-overlap:]
    return [n for n, probe in enumerate(probes) if probe not in left]


_PAGE: Final = 1000

Counts: TypeAlias = dict[int, tuple[bytes, int]]
"""By position: the digest of the message that was counted, and its tokens."""


class _Numbers(NamedTuple):
    """A row without its text."""

    seq: int
    tokens: int
    counter: bytes
    turn: int
    turns: int
    total: int
    created_at: float
    digest: bytes
    guard: int


def count_apart(
    db: sqlite3.Connection,
    tenant: str,
    sid: int,
    counter: TokenCounter,
    progress: Progress | None,
) -> Counts:
    """Count the messages that another counter counted, without blocking others."""
    check_session(db, tenant, sid)
    name = counter.name.encode()
    (count,) = db.execute(SQL["last_position"], (sid,)).fetchone()
    counts: Counts = {}
    for numbers in _pages(db, sid):
        if numbers.counter != name and (tokens := _count(db, sid, numbers.seq, counter)) >= 0:
            counts[numbers.seq] = (numbers.digest, tokens)
        if progress and (numbers.seq % _PAGE == 0 or numbers.seq == count):
            progress(numbers.seq, count)
    return counts


def apply(
    db: sqlite3.Connection, tenant: str, sid: int, counter: TokenCounter, counts: Counts
) -> int:
    """Write counts and running totals; messages that arrived since are counted now."""
    check_session(db, tenant, sid)
    name = counter.name.encode()
    total = counted = 0
    for numbers in _pages(db, sid):
        if not guarded(sid, numbers):
            continue  # a new checksum would hide the damage
        digest, tokens = counts.get(numbers.seq, (b"", -1))
        if digest != numbers.digest:
            known = numbers.counter == name
            tokens = numbers.tokens if known else _count(db, sid, numbers.seq, counter)
        else:
            counted += 1
        total += max(0, tokens)
        _write(db, sid, numbers, (tokens, name, total))
    return counted


def _write(db: sqlite3.Connection, sid: int, old: _Numbers, new: tuple[int, bytes, int]) -> None:
    tokens, counter, total = new if new[0] >= 0 else (old.tokens, old.counter, new[2])
    if (tokens, counter, total) == (old.tokens, old.counter, old.total):
        return
    row = Row(old.seq, "", 0, None, None, *old[1:])
    row = recounted_row(sid, row, tokens, counter, total)
    values = (row.tokens, row.counter, row.total, row.guard, sid, row.seq)
    db.execute(SQL["recount_message"], values)


def _count(db: sqlite3.Connection, sid: int, seq: int, counter: TokenCounter) -> int:
    """Return a live message's tokens, -1 for a tombstone or a damaged one."""
    row: tuple[Any, ...] | None = db.execute(SQL["message_by_seq"], (sid, seq)).fetchone()
    message = decode(sid, row) if row else None
    return counter.count(message) if message and message.state == "live" else -1


def _pages(db: sqlite3.Connection, sid: int) -> Iterator[_Numbers]:
    """Yield every row of a log, page by page, so that rows may be written in between."""
    last = 0
    while rows := db.execute(SQL["counts"], (sid, last, _PAGE)).fetchall():
        yield from map(_Numbers._make, rows)
        last = rows[-1][0]
