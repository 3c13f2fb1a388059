"""Erasing messages in Redis: tombstones are made here, and put in their place by one script."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from keepthread.codec import Row
from keepthread.errors import MessageNotFound
from keepthread.stores.drafts import erased_row
from keepthread.stores.redis.link import Link
from keepthread.stores.redis.places import Place
from keepthread.stores.redis.rows import guard_of, pack_row, unpack_row
from keepthread.stores.redis.scripts import LUA
from keepthread.stores.redis.state import alive, pack_record, read_state, undamaged

_ROWS_AT_ONCE: Final = 1000


async def erase(link: Link, place: Place, tenant: str, seqs: Iterable[int]) -> int:
    """Replace messages by tombstones; return the epoch in force behind that."""
    positions = sorted(set(seqs))
    while True:
        state = await read_state(link, place)
        info, ttl = undamaged(place, state.record)
        rows = [row for row in await _rows_at(link, place, positions) if _has_text(row)]
        if not rows:
            return info.epoch
        epoch = info.epoch + 1
        record = pack_record(place, tenant, replace(info, epoch=epoch), ttl)
        graves = [erased_row(place.number, row.seq, row, guard_of) for row in rows]
        parts = (part for row in graves for part in (row.seq, pack_row(row)))
        revisions = (state.revision, state.next_revision)
        args = (place.life, place.mark, *revisions, record, place.key, *parts)
        if alive(await link.run(LUA["erase"], place.keys, args)):
            return epoch


async def _rows_at(link: Link, place: Place, positions: Sequence[int]) -> list[Row]:
    rows: list[Row] = []
    for start in range(0, len(positions), _ROWS_AT_ONCE):
        seqs = positions[start : start + _ROWS_AT_ONCE]
        args = (place.life, place.mark, 0, *seqs)
        _, _, found = alive(await link.run(LUA["look"], place.keys, args))
        for seq, row in zip(seqs, found, strict=True):
            if not row:
                raise MessageNotFound(f"there is no message at position {seq}")
            rows.append(unpack_row(seq, row))
    return rows


def _has_text(row: Row) -> bool:
    return row.content is not None or row.extra is not None
