"""Counting a log anew in Redis: the slow part while others write, the exchange in one go."""

import asyncio
import os
from collections.abc import Sequence
from typing import Final

from keepthread.checks import MAX_COUNT
from keepthread.codec import Row, decode
from keepthread.protocols import Progress, TokenCounter
from keepthread.stores.drafts import check_total, recounted_row
from keepthread.stores.redis.heads import sound_head
from keepthread.stores.redis.link import Link
from keepthread.stores.redis.places import Place
from keepthread.stores.redis.rows import guard_of, pack_row, unpack_row
from keepthread.stores.redis.scripts import LUA
from keepthread.stores.redis.state import alive, read_state

_PAGE: Final = 200


async def recount(
    link: Link, place: Place, counter: TokenCounter, progress: Progress | None
) -> int:
    """Count what another counter counted; return how many messages that were."""
    who = (place.life, place.mark)
    while True:
        beside = (*place.keys, f"{place.messages}:{os.urandom(8).hex()}")
        state = await read_state(link, place)
        done = await _count_apart(link, place, beside, counter, progress)
        moved = (done.total - done.before).to_bytes(8, "little", signed=True)
        revisions = (state.revision, state.next_revision)
        args = (*who, *revisions, done.rows, done.last, moved)
        reply = await link.run(LUA["recount"], beside, (*args, 0), again=(*args, 1))
        if alive(reply) < 0:  # messages that arrived in the meantime are counted as well
            check_total(MAX_COUNT + 1)
        if reply:
            return done.counted


async def _count_apart(
    link: Link,
    place: Place,
    beside: Sequence[str],
    counter: TokenCounter,
    progress: Progress | None,
) -> "_Count":
    """Count page by page and put the new rows beside the old ones."""
    count = _Count(place, counter)
    while True:
        args = (place.life, place.mark, count.last + 1, count.last + _PAGE)
        data, rows = alive(await link.run(LUA["read"], place.keys, args))
        head = await sound_head(link, place, data)
        if head is None:
            continue
        if not rows:
            return count
        new = await asyncio.to_thread(count.page, rows)
        if progress:
            await asyncio.to_thread(progress, count.last, head[0].seq)
        parts = (part for row in new for part in row)
        alive(await link.run(LUA["stage"], beside, (place.life, place.mark, *parts)))


class _Count:
    """A counting, and how far it has come."""

    def __init__(self, place: Place, counter: TokenCounter) -> None:
        self.place = place
        self.counter = counter
        self.name = counter.name.encode()
        self.last = 0
        self.rows = 0
        self.counted = 0
        self.before = 0
        self.total = 0

    def page(self, rows: Sequence[bytes]) -> list[tuple[int, bytes]]:
        """Return positions and new rows for the next ones of the log."""
        new: list[tuple[int, bytes]] = []
        for data in rows:
            self.last += 1
            if data:  # a missing row stays missing
                new.append((self.last, self._row(unpack_row(self.last, data), data)))
        self.rows += len(new)
        return new

    def _row(self, row: Row, data: bytes) -> bytes:
        if not _is_guarded(self.place, row):
            return data  # a new guard would make the damage look sound
        message = decode(self.place.number, row, guard_of)
        tokens, counter = row.tokens, row.counter
        if message.state == "live" and counter != self.name:
            tokens, counter = self.counter.count(message), self.name
            self.counted += 1
        self.before = row.total
        self.total += 0 if message.state == "damaged" else tokens
        number = self.place.number
        return pack_row(recounted_row(number, row, tokens, counter, self.total, guard_of))


def _is_guarded(place: Place, row: Row) -> bool:
    numbers = (row.exchange, row.exchanges, row.total, row.created_at, row.digest)
    return row.guard == guard_of(place.number, row.seq, row.tokens, row.counter, *numbers)
