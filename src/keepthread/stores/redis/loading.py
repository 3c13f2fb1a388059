"""Copying rows to the end of a log in Redis."""

from collections.abc import Mapping, Sequence

from keepthread.codec import Row
from keepthread.errors import Conflict, Damaged
from keepthread.stores.drafts import Draft, Head, head_after, next_copy, same_place
from keepthread.stores.redis.heads import sound_head
from keepthread.stores.redis.link import Link
from keepthread.stores.redis.places import Place
from keepthread.stores.redis.rows import (
    guard_of,
    id_field,
    pack_head,
    pack_row,
    unpack_row,
    whole,
)
from keepthread.stores.redis.scripts import LUA
from keepthread.stores.redis.state import alive


async def load(link: Link, place: Place, drafts: Sequence[Draft]) -> int:
    """Copy messages to the end, passing over what is there."""
    ids = [id_field(d.packed) for d in drafts]
    seqs = [d.message.seq for d in drafts]
    while True:
        args = (place.life, place.mark, len(ids), *ids, *seqs)
        data, places, found = alive(await link.run(LUA["look"], place.keys, args))
        known = await sound_head(link, place, data)
        if known is None:
            continue
        head, ttl = known
        taken = {id: whole(seq) for id, seq in zip(ids, places, strict=True) if seq}
        present = dict(zip(seqs, found[len(ids) :], strict=True))
        rows = _new_copies(place, drafts, head, taken, present)
        if not rows:
            return head.seq
        end = head_after(rows[-1])
        parts = (part for row in rows for part in (id_field(row.id), row.seq, pack_row(row)))
        args = (place.life, place.mark, data, pack_head(place, end, ttl), *parts)
        if alive(await link.run(LUA["extend"], place.keys, args)):
            return end.seq


def _new_copies(
    place: Place,
    drafts: Sequence[Draft],
    head: Head,
    taken: dict[bytes, int],
    present: Mapping[int, bytes],
) -> list[Row]:
    """Return the rows that copies become behind a head."""
    rows: list[Row] = []
    for one in drafts:
        seq = one.message.seq
        if seq <= head.seq:
            row = next((row for row in rows if row.seq == seq), None)
            if row is None:
                if not present[seq]:
                    raise Damaged(f"position {seq} is missing; run `verify`")
                row = unpack_row(seq, present[seq])
            same_place(one, row.id, row.digest)
            continue
        row = next_copy(place.number, head, one, guard_of)
        if taken.setdefault(id_field(row.id), row.seq) != row.seq:
            raise Conflict(f"message id {one.id!r} is at another position already")
        rows.append(row)
        head = head_after(row)
    return rows
