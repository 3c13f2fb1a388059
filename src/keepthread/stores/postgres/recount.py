"""Counting a log anew in PostgreSQL: the slow part while others write, the writing in one go."""

import asyncio
from collections.abc import AsyncIterator
from typing import Final, NamedTuple, TypeAlias

from keepthread.codec import Row
from keepthread.errors import SessionGone
from keepthread.protocols import Progress, TokenCounter
from keepthread.stores.drafts import recounted_row
from keepthread.stores.postgres.changes import lock
from keepthread.stores.postgres.engine import Engine
from keepthread.stores.postgres.link import Link, Rows
from keepthread.stores.postgres.rows import decode, guard_of
from keepthread.stores.postgres.statements import SQL

_PAGE: Final = 500

Counts: TypeAlias = dict[int, tuple[bytes, int]]
"""By position: the digest of the message that was counted, and its tokens (-1: none to count)."""


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
    guard: bytes


async def recount(
    engine: Engine, tenant: int, sid: int, counter: TokenCounter, progress: Progress | None
) -> int:
    """Count what another counter counted, set the totals right; return how many were counted."""
    name = counter.name.encode()
    counts: Counts = {}
    last = 0
    rows = await engine.call(SQL["session_by_sid"], (tenant, sid))
    if not rows:
        raise SessionGone("the session was deleted")
    end = rows[0][10]
    while rows := await engine.call(SQL["read"], (tenant, sid, last, end, _PAGE)):
        other = [row for row in rows if row[6] != name]
        counts |= await asyncio.to_thread(_count, sid, other, counter)
        last = rows[-1][0]
        if progress:
            await asyncio.to_thread(progress, last, end)
    return await engine.transact(lambda link: _apply(link, tenant, sid, counter, counts))


def _count(sid: int, rows: Rows, counter: TokenCounter) -> Counts:
    counts: Counts = {}
    for row in rows:
        message = decode(sid, row)
        tokens = counter.count(message) if message.state == "live" else -1
        counts[row[0]] = (row[11], tokens)
    return counts


async def _apply(link: Link, tenant: int, sid: int, counter: TokenCounter, counts: Counts) -> int:
    """Write counts and running totals; what arrived meanwhile is counted now."""
    await lock(link, tenant, sid)
    name = counter.name.encode()
    total = counted = 0
    async for page in _pages(link, tenant, sid):
        changed: list[Row] = []
        unknown = [n.seq for n in page if n.counter != name and not _is_known(n, counts)]
        if unknown:
            found = await link.run(SQL["find"], (tenant, sid, [], unknown))
            counts = counts | await asyncio.to_thread(_count, sid, found, counter)
        for old in page:
            if old.guard != guard_of(sid, *old[:-1]):
                continue  # a new guard would make the damage look sound
            tokens, by = old.tokens, old.counter
            if old.counter != name and counts[old.seq][1] >= 0:
                tokens, by = counts[old.seq][1], name
                counted += 1
            elif old.counter != name:
                tokens = 0
            total += tokens
            row = Row(old.seq, "", 0, None, None, *old[1:])
            if (tokens, by, total) != (old.tokens, old.counter, old.total):
                changed.append(recounted_row(sid, row, tokens, by, total, guard_of))
        if changed:
            fields = [[r.seq, r.tokens, r.counter, r.total, r.guard] for r in changed]
            columns = map(list, zip(*fields, strict=True))
            await link.run(SQL["recount_messages"], (tenant, sid, *columns))
    return counted


def _is_known(numbers: _Numbers, counts: Counts) -> bool:
    return counts.get(numbers.seq, (b"",))[0] == numbers.digest


async def _pages(link: Link, tenant: int, sid: int) -> AsyncIterator[list[_Numbers]]:
    last = 0
    while rows := await link.run(SQL["counts"], (tenant, sid, last, _PAGE)):
        yield [_Numbers._make(row) for row in rows]
        last = rows[-1][0]
