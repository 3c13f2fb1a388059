"""Counting a log anew in SQLite: the slow part while others write, the writing in one go."""

import sqlite3
from collections.abc import Iterator
from typing import Any, Final, NamedTuple, TypeAlias

from keepthread.codec import Row, decode, guarded
from keepthread.protocols import Progress, TokenCounter
from keepthread.stores.drafts import recounted_row
from keepthread.stores.sqlite.log import check_session
from keepthread.stores.sqlite.statements import SQL

_PAGE: Final = 1000

Counts: TypeAlias = dict[int, tuple[bytes, int]]
"""By position: the digest of the message that was counted, and its tokens."""


class _Numbers(NamedTuple):
    """A row without its text."""

    seq: int
    tokens: int
    counter: bytes
    exchange: int
    exchanges: int
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
    """Count what another counter counted, without holding anyone up."""
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
    """Write counts and running totals; what arrived meanwhile is counted now."""
    check_session(db, tenant, sid)
    name = counter.name.encode()
    total = counted = 0
    for numbers in _pages(db, sid):
        if not guarded(sid, numbers):
            continue  # a new guard would make the damage look sound
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
    """Yield every row of a log, read page by page, so that rows may be written in between."""
    last = 0
    while rows := db.execute(SQL["counts"], (sid, last, _PAGE)).fetchall():
        yield from map(_Numbers._make, rows)
        last = rows[-1][0]
