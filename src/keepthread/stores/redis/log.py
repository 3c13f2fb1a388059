"""The log in Redis: an append is one script, which numbers the new messages.

The script stores all or nothing, and answers with what it found; reasons to refuse are decided
here, so that every backend refuses the same input for the same reason.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from keepthread.errors import Conflict, Damaged, MessageNotFound, Stale
from keepthread.stores.backend import Append, Gather, Tail
from keepthread.stores.changes import ADDED, ERASED
from keepthread.stores.codec import PackedId, Row, pack_id, unpack_id
from keepthread.stores.links import names_in_messages
from keepthread.stores.records import forgotten_session
from keepthread.stores.redis.changes import PlaceWriter
from keepthread.stores.redis.engine import LUA, RedisLink
from keepthread.stores.redis.keys import Place
from keepthread.stores.redis.records import Kept, ScopedRecords
from keepthread.stores.redis.rows import (
    guard_of,
    id_field,
    message_at,
    pack_head,
    pack_rest,
    pack_row,
    unpack_row,
    whole,
)
from keepthread.stores.redis.sessions import (
    alive,
    pack_active,
    pack_record,
    read_state,
    sound_head,
    undamaged,
)
from keepthread.stores.rows import (
    Head,
    PreparedMessage,
    as_stored,
    check_total,
    check_turn,
    erased_row,
    head_after,
    next_copy,
    next_row,
    same_body,
    same_place,
)
from keepthread.stores.validation import MAX_COUNT, show
from keepthread.types import Gathered, Message

_STORED: Final = 1
_FORGOTTEN: Final = 2
_BEGINS: Final = 3


async def append(
    writer: PlaceWriter, wanted: Append, *, with_record: bool
) -> tuple[list[Message], bytes]:
    """Store new messages at the end, return known ones, and the session's record if wanted."""
    link, place = writer.link, writer.place
    drafts, expect, turn, now = wanted
    known: dict[PackedId, Message] = {}
    begins = False
    await writer.name(names_in_messages(drafts))
    while True:
        fresh = [d for d in drafts if d.packed not in known]
        first = {d.packed: d for d in reversed(fresh)}
        new = [d for d in fresh if first[d.packed] is d]
        agree = all(d.body.digest == first[d.packed].body.digest for d in fresh)
        args = (
            place.life,
            place.mark,
            "" if expect is None else expect,
            "" if turn is None else _count(turn),
            int(agree) + (agree and begins),
            pack_active(place, now),
            int(with_record),
            *(part for d in new for part in (id_field(d.packed), pack_rest(d))),
        )
        change = ADDED if new else None
        reply = await writer.run("append", args, change, [d.id for d in new])
        data, stored, record, *found = alive(reply)
        head = await sound_head(link, place, data)
        if head is None:
            continue
        if stored == _BEGINS:
            await writer.begin(new[0].id, new[0].created_at)
            begins = True
            continue
        if stored == _STORED:
            return _answers(place, drafts, known, head[0], turn), record if new else b""
        known |= _known(place, new, found)
        if stored == _FORGOTTEN and any(d.packed not in known for d in drafts):
            check_turn(turn, head[0])
            raise forgotten_session()
        _judge(drafts, known, head[0], expect, turn)
        if all(d.packed in known for d in drafts):
            return [known[d.packed] for d in drafts], b""


def _count(turn: object) -> int:
    """Return a turn as the script takes it; an invalid one is rejected later."""
    return turn if type(turn) is int else 0


def _known(
    place: Place, new: Sequence[PreparedMessage], found: Sequence[bytes]
) -> dict[PackedId, Message]:
    """Return the stored messages with the drafts' ids."""
    by_field = {id_field(d.packed): d for d in new}
    known: dict[PackedId, Message] = {}
    for field, seq, row in zip(found[::3], found[1::3], found[2::3], strict=True):
        draft = by_field[field]
        message = message_at(place, whole(seq), row)
        if message.state != "damaged" and message.id != draft.id:
            raise Damaged("the index of message ids is corrupted; run `verify`")
        known[draft.packed] = message
    return known


def _judge(
    drafts: Sequence[PreparedMessage],
    known: Mapping[PackedId, Message],
    head: Head,
    expect: int | None,
    turn: int | None,
) -> None:
    """Raise the first reason why the messages cannot be stored, if any."""
    check_turn(turn, head)
    total = head.total
    new: dict[PackedId, PreparedMessage] = {}
    for one in drafts:
        if message := known.get(one.packed):
            same_body(one, message)
        elif one.packed not in new:
            if expect is not None and expect != head.seq:
                raise Stale(f"the log ends at {head.seq}, not at {expect}")
            total += one.tokens
            check_total(total)
            new[one.packed] = one
        elif new[one.packed].body.digest != one.body.digest:
            raise Conflict(f"message id {show(one.id)} is used twice with different bodies")


def _answers(
    place: Place,
    drafts: Sequence[PreparedMessage],
    known: Mapping[PackedId, Message],
    head: Head,
    turn: int | None,
) -> list[Message]:
    """Return the stored messages; numbers the new ones in the same way as the script."""
    messages = dict(known)
    for one in drafts:
        if one.packed not in messages:
            row = next_row(place.number, head, one, turn)
            head = head_after(row)
            messages[one.packed] = as_stored(one, row)
    return [messages[one.packed] for one in drafts]


_ROWS_AT_ONCE: Final = 1000


async def erase(writer: PlaceWriter, tenant: str, positions: Sequence[int]) -> int:
    """Replace messages by tombstones; return the new epoch."""
    link, place = writer.link, writer.place
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
        ids = [unpack_id(row.id) for row in rows]
        if alive(await writer.run("erase", args, ERASED, ids, frees=True)):
            return epoch


async def _rows_at(link: RedisLink, place: Place, positions: Sequence[int]) -> list[Row]:
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


async def load(writer: PlaceWriter, drafts: Sequence[PreparedMessage]) -> int:
    """Copy messages to the end, skipping stored positions."""
    link, place = writer.link, writer.place
    ids = [id_field(d.packed) for d in drafts]
    seqs = [d.message.seq for d in drafts]
    await writer.name(names_in_messages(drafts))
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
        if not head.seq:
            await writer.begin(unpack_id(rows[0].id), rows[0].created_at)
        end = head_after(rows[-1])
        parts = (part for row in rows for part in (id_field(row.id), row.seq, pack_row(row)))
        args = (place.life, place.mark, data, pack_head(place, end, ttl), *parts)
        new = [unpack_id(row.id) for row in rows]
        if alive(await writer.run("extend", args, ADDED, new)):
            return end.seq


def _new_copies(
    place: Place,
    drafts: Sequence[PreparedMessage],
    head: Head,
    taken: dict[bytes, int],
    present: Mapping[int, bytes],
) -> list[Row]:
    """Return the rows of copied messages after the end of the log."""
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
            raise Conflict(f"message id {one.id!r} is already at another position")
        rows.append(row)
        head = head_after(row)
    return rows


async def tail(link: RedisLink, place: Place, wanted: Tail) -> list[Message]:
    """Return the newest messages that fit, oldest first."""
    tokens, limit, before, after, min_messages = wanted
    found: list[Message] = []
    last = before - 1
    while True:
        left = None if tokens is None else tokens - sum(m.tokens for m in found)
        room = None if limit is None else limit - len(found)
        bounds = (last, after, _or_empty(left), _or_empty(room))
        args = (place.life, place.mark, *bounds, max(0, min_messages - len(found)))
        data, rows = alive(await link.run(LUA["tail"], place.keys, args))
        head = await sound_head(link, place, data)
        if head is None:
            continue
        end = min(head[0].seq, last)
        newest = newest_first(place, end, rows)
        found += newest
        # The script cannot know that a damaged message costs nothing: more may fit.
        if tokens is None or all(m.state != "damaged" for m in newest):
            return found[::-1]
        last = end - len(newest)


def newest_first(place: Place, end: int, rows: Sequence[bytes]) -> list[Message]:
    """Return the messages of rows that are ordered backwards from a position."""
    return [message_at(place, end - n, row) for n, row in enumerate(rows)]


async def read(link: RedisLink, place: Place, after: int, until: int) -> list[Message]:
    """Return the messages after a position, oldest first."""
    while True:
        args = (place.life, place.mark, after + 1, until)
        data, rows = alive(await link.run(LUA["read"], place.keys, args))
        if await sound_head(link, place, data):
            return [message_at(place, after + n, row) for n, row in enumerate(rows, 1)]


async def find(
    link: RedisLink, place: Place, ids: Sequence[str], seqs: Sequence[int]
) -> list[Message]:
    """Return the messages with these ids or positions."""
    fields = [id_field(pack_id(id)) for id in ids]
    args = (place.life, place.mark, len(ids), *fields, *seqs)
    _, places, rows = alive(await link.run(LUA["look"], place.keys, args))
    at = [whole(seq) for seq in places] + list(seqs)
    found = {seq: message_at(place, seq, row) for seq, row in zip(at, rows, strict=True) if row}
    for id, seq in zip(ids, at, strict=False):
        if seq in found and found[seq].state != "damaged" and found[seq].id != id:
            raise Damaged("the index of message ids is corrupted; run `verify`")
    return [found[seq] for seq in sorted(found)]


def _or_empty(value: int | None) -> int | str:
    return "" if value is None else value


async def gather(records: ScopedRecords, wish: Gather) -> Gathered:
    """Return prompt, tail and records of a session."""
    place, link = records.place, records.link
    limit = -1 if wish.follow_limit == MAX_COUNT else wish.follow_limit
    numbers = (wish.tokens, wish.min_messages, place.key, len(wish.kinds), limit)
    args = (place.life, place.mark, *numbers, *wish.kinds, *wish.follow)
    while True:
        record, data, *parts = alive(await link.run(LUA["gather"], place.keys, args))
        info = undamaged(place, record).info
        head = await sound_head(link, place, data)
        if head is None:
            continue
        rows, plain, followed, sources, more = parts
        lists = [sorted(records.unpack_all(found), key=_name) for found in (*plain, *followed)]
        kept = [one for found in lists for one in found]
        if not await records.settled(kept):
            continue
        messages = newest_first(place, head[0].seq, rows)[::-1]
        if any(m.state == "damaged" for m in messages):  # more may fit
            messages = await tail(
                link, place, Tail(wish.tokens, None, head[0].seq + 1, 0, wish.min_messages)
            )
        pairs = zip(sources[::2], sources[1::2], strict=True)
        found = {seq: message_at(place, seq, row) for seq, row in pairs}
        return Gathered(
            system_prompt=info.system_prompt,
            delimiter=info.delimiter,
            messages=messages,
            records=[one.record for _, one in kept],
            sources=[found[seq] for seq in sorted(found)],
            more=[kind for kind, is_cut in zip(wish.follow, more, strict=True) if is_cut],
        )


def _name(one: tuple[bytes, Kept]) -> bytes:
    return one[0]
