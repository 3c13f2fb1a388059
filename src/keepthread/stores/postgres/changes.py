"""Copying to and erasing from a log in PostgreSQL: each is one transaction on a locked session."""

from collections.abc import Iterable, Sequence
from typing import Any

from keepthread.codec import Row
from keepthread.errors import Conflict, Damaged, MessageNotFound, SessionGone
from keepthread.stores.drafts import (
    Draft,
    Head,
    erased_row,
    head_after,
    next_copy,
    same_place,
)
from keepthread.stores.postgres.link import Link
from keepthread.stores.postgres.rows import columns, guard_of, id_from_bytes, id_to_bytes
from keepthread.stores.postgres.statements import SQL


async def lock(link: Link, tenant: int, sid: int) -> tuple[int, bool]:
    """Keep others from a session until the end; return its epoch, and whether it is intact."""
    rows = await link.run(SQL["lock_session"], (tenant, sid))
    if not rows:
        raise SessionGone("the session was deleted")
    return rows[0][0], rows[0][1]


async def load(link: Link, tenant: int, sid: int, drafts: Sequence[Draft]) -> int:
    """Copy messages to the end, passing over what is there."""
    await lock(link, tenant, sid)
    (numbers,) = await link.run(SQL["head"], (tenant, sid))
    head = Head._make(numbers)
    seqs = [draft.message.seq for draft in drafts]
    ids = [id_to_bytes(draft.packed) for draft in drafts]
    found = [_row(row) for row in await link.run(SQL["find"], (tenant, sid, ids, seqs))]
    by_seq = {row.seq: row for row in found}
    taken = {row.id for row in found}
    new: list[Row] = []
    for draft in drafts:
        if draft.message.seq <= head.seq:
            known = by_seq.get(draft.message.seq)
            if known is None:
                raise Damaged(f"position {draft.message.seq} is missing; run `verify`")
            same_place(draft, known.id, known.digest)
            continue
        row = next_copy(sid, head, draft, guard_of)
        if row.id in taken:
            raise Conflict(f"message id {draft.id!r} is at another position already")
        head = head_after(row)
        by_seq[row.seq] = row
        taken.add(row.id)
        new.append(row)
    if new:
        await link.run(SQL["insert_messages"], (tenant, sid, *columns(new)))
    return head.seq


async def erase(link: Link, tenant: int, sid: int, seqs: Iterable[int]) -> int:
    """Erase messages and what is made of them; return the epoch in force behind that."""
    epoch, intact = await lock(link, tenant, sid)
    if not intact:  # a new guard would make the damage look sound
        raise Damaged("the record of the session is damaged; run `verify`")
    places = sorted(set(seqs))
    found = {row[0]: _row(row) for row in await link.run(SQL["find"], (tenant, sid, [], places))}
    for seq in places:
        if seq not in found:
            raise MessageNotFound(f"there is no message at position {seq}")
    graves = [
        erased_row(sid, row.seq, row, guard_of)
        for row in (found[seq] for seq in places)
        if row.content is not None or row.extra is not None
    ]
    if not graves:
        return epoch
    await link.run(SQL["replace_messages"], (tenant, sid, *columns(graves)))
    erased = [row.seq for row in graves]
    await link.run(SQL["drop_made_of"], (tenant, sid, erased))
    await link.run(SQL["unindex"], (tenant, sid, erased))
    ((epoch,),) = await link.run(SQL["next_epoch"], (tenant, sid))
    await link.run(SQL["seal_session"], (tenant, sid))
    return epoch


def _row(row: tuple[Any, ...]) -> Row:
    return Row._make((row[0], id_from_bytes(row[1]), *row[2:]))
