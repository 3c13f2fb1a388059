"""The log in PostgreSQL: each append or read is one call of one SQL function."""

import struct
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from typing import Any, Final

from keepthread.errors import Conflict, Damaged, MessageNotFound, SessionGone
from keepthread.stores import codec
from keepthread.stores.backend import Append, Gather, Tail
from keepthread.stores.changes import ADDED, ERASED
from keepthread.stores.codec import PackedId, Row, pack_id
from keepthread.stores.links import names_in_messages, nodes_above
from keepthread.stores.postgres import records, sessions
from keepthread.stores.postgres.engine import PgEngine, PgLink, Taken
from keepthread.stores.postgres.schema import SQL
from keepthread.stores.rows import (
    Head,
    PreparedMessage,
    as_stored,
    check_turn,
    erased_row,
    head_after,
    next_copy,
    same_place,
    without_gaps,
)
from keepthread.stores.validation import MAX_COUNT
from keepthread.types import Gathered, Message, Record

_PACKED: Final = 16  # bytes of an id that is 32 hexadecimal digits

_pack_numbers = struct.Struct(">6qd").pack


def guard_of(
    place: int,
    seq: int,
    tokens: int,
    counter: bytes,
    turn: int,
    turns: int,
    total: int,
    created_at: float,
    digest: bytes,
) -> bytes:
    """Return the checksum of a row's digest and its other values, as `guard_of` in SQL does.

    The position and the totals are given inside the server, and SHA-256 is what it knows there.
    """
    numbers = _pack_numbers(place, seq, tokens, turn, turns, total, created_at)
    return sha256(digest + numbers + counter).digest()[:8]


def id_to_bytes(id: PackedId) -> bytes:
    """Return an id as it is stored; a name of 16 bytes gets a NUL, to differ from packed ids."""
    if isinstance(id, bytes):
        return id
    data = id.encode()
    return data if len(data) != _PACKED else data + b"\0"


def id_from_bytes(data: bytes) -> PackedId:
    """Return the id that `id_to_bytes` wrote, or a printable form of damaged bytes."""
    return data if len(data) == _PACKED else data.rstrip(b"\0").decode("utf-8", "replace")


def decode(place: int, row: tuple[Any, ...]) -> Message:
    """Return a row's message; its state is `damaged` if the row is not what was written."""
    id = row[1]
    if len(id) != _PACKED:
        row = (row[0], id_from_bytes(id), *row[2:])
    return codec.decode(place, row, guard_of)


def columns(rows: Sequence[Row]) -> list[list[Any]]:
    """Return rows as columns, for one statement."""
    stored = (row._replace(id=id_to_bytes(row.id), extra=row.extra or b"") for row in rows)
    return [list(column) for column in zip(*stored, strict=True)]


_APPEND: Final = SQL["append"]
_TAIL: Final = SQL["tail"]
_PAGE: Final = 200


async def append(engine: PgEngine, tenant: int, sid: int, new: Append) -> list[Message]:
    """Store new messages at the end, return known ones, and record activity if it is due."""
    drafts = new.drafts
    if not drafts:
        info = await sessions.by_sid(engine, tenant, sid)
        check_turn(new.turn, Head(info.messages, info.turns))
        return []
    try:
        placed = await _append(engine, tenant, sid, new)
    except Conflict:
        damaged = await _damaged_digests(engine, tenant, sid, drafts)
        if not damaged:
            raise
        drafts = [_agree(draft, damaged) for draft in drafts]
        placed = await _append(engine, tenant, sid, new._replace(drafts=drafts))
    known = [seq for is_known, seq, _, _ in placed if is_known]
    if not known:
        return [_stored(draft, *row[1:]) for draft, row in zip(drafts, placed, strict=True)]
    found = {m.seq: m for m in await find(engine, tenant, sid, (), known)}
    return [
        found[row[1]] if row[0] else _stored(draft, *row[1:])
        for draft, row in zip(drafts, placed, strict=True)
    ]


async def _append(engine: PgEngine, tenant: int, sid: int, new: Append) -> list[tuple[Any, ...]]:
    """Return for each draft whether it was known, its position, turn and total.

    The ids are fixed, so it is safe to retry when the outcome is unknown.
    """
    drafts, *conditions = new
    rows = [_values(draft) for draft in drafts]
    if names := names_in_messages(drafts):
        columns = map(list, zip(*rows, strict=True))
        values = (tenant, sid, records.encoded(names), tenant, sid, *columns, *conditions)
        return await engine.call(SQL["append_naming"], values)
    if len(rows) == 1:
        values = (tenant, sid, *rows[0], *conditions)
        try:
            return await engine.call(_APPEND, values)
        except Taken:  # the message is known
            return await engine.call(SQL["append_with_care"], values)
    columns = map(list, zip(*rows, strict=True))
    return await engine.call(SQL["append_all"], (tenant, sid, *columns, *conditions))


def _values(draft: PreparedMessage) -> tuple[Any, ...]:
    _, _, packed, (role, content, extra, digest), tokens, counter, at = draft
    return (id_to_bytes(packed), role, content, extra or b"", tokens, counter, at, digest)


def _stored(draft: PreparedMessage, seq: int, turn: int, total: int) -> Message:
    _, _, packed, body, tokens, counter, at = draft
    around = (tokens, counter, turn, 0, total, at, body.digest, b"")
    return as_stored(draft, Row(seq, packed, body.role, None, None, *around))


async def _damaged_digests(
    engine: PgEngine, tenant: int, sid: int, drafts: Sequence[PreparedMessage]
) -> dict[bytes, bytes]:
    """Return the stored digests of damaged rows with these ids."""
    ids = [id_to_bytes(draft.packed) for draft in drafts]
    rows = await engine.call(SQL["find"], (tenant, sid, ids, []))
    return {row[1]: row[11] for row in rows if decode(sid, row).state == "damaged"}


def _agree(draft: PreparedMessage, damaged: Mapping[bytes, bytes]) -> PreparedMessage:
    """Return a draft that does not conflict with a damaged message, whose body is unknown."""
    digest = damaged.get(id_to_bytes(draft.packed), draft.body.digest)
    return draft._replace(body=draft.body._replace(digest=digest))


async def tail(engine: PgEngine, tenant: int, sid: int, wanted: Tail) -> list[Message]:
    """Return the newest messages that fit."""
    rows = await engine.call(_TAIL, (tenant, sid, *wanted))
    if not rows:
        raise SessionGone("the session was deleted")
    first = rows[0][0]
    found = [decode(sid, row) for row in rows[1:]]
    if any(message.state == "damaged" for message in found):
        return await careful_tail(engine, tenant, sid, wanted)
    return without_gaps(found, first - 1)


async def careful_tail(engine: PgEngine, tenant: int, sid: int, wanted: Tail) -> list[Message]:
    """Read a damaged log backwards: damaged rows cost nothing, whatever they contain."""
    tokens, limit, before, after, min_messages = wanted

    async def step_back(link: PgLink) -> list[Message]:
        await link.run(SQL["name_tenant"], (str(tenant),))
        end = min(before, await _end(link, tenant, sid) + 1)
        found: list[Message] = []
        left = tokens
        while rows := await link.run(SQL["newest"], (tenant, sid, end, after, _PAGE)):
            for message in (decode(sid, row) for row in rows):
                full = left is not None and message.tokens > left and len(found) >= min_messages
                if full or len(found) == limit:
                    return without_gaps(found[::-1])
                left = left and left - message.tokens
                found.append(message)
            end = rows[-1][0]
        return without_gaps(found[::-1], after)

    return await engine.transact(step_back)


async def read(
    engine: PgEngine, tenant: int, sid: int, after: int, until: int, limit: int
) -> list[Message]:
    """Return the messages after a position, oldest first."""
    rows = await engine.call(SQL["read"], (tenant, sid, after, until, limit))
    found = [decode(sid, row) for row in rows]
    if not found or found[-1].state == "damaged":
        end = (await sessions.by_sid(engine, tenant, sid)).messages
        while found and found[-1].state == "damaged" and found[-1].seq > end:
            found.pop()
    return without_gaps(found, after)[:limit]


async def find(
    engine: PgEngine, tenant: int, sid: int, ids: Iterable[str], seqs: Iterable[int]
) -> list[Message]:
    """Return the messages with these ids or positions."""
    names = [id_to_bytes(pack_id(id)) for id in ids]
    rows = await engine.call(SQL["find"], (tenant, sid, names, list(seqs)))
    if not rows:
        await sessions.by_sid(engine, tenant, sid)
    found = {row[0]: decode(sid, row) for row in rows}
    return [found[seq] for seq in sorted(found)]


async def _end(link: PgLink, tenant: int, sid: int) -> int:
    (head,) = await link.run(SQL["head"], (tenant, sid))
    return head[0]


async def lock(link: PgLink, tenant: int, sid: int) -> tuple[int, bool]:
    """Lock a session until the transaction ends; return its epoch, and whether it is intact."""
    rows = await link.run(SQL["lock_session"], (tenant, sid))
    if not rows:
        raise SessionGone("the session was deleted")
    return rows[0][0], rows[0][1]


async def load(link: PgLink, tenant: int, sid: int, drafts: Sequence[PreparedMessage]) -> int:
    """Copy messages to the end, skipping stored positions."""
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
            raise Conflict(f"message id {draft.id!r} is already at another position")
        head = head_after(row)
        by_seq[row.seq] = row
        taken.add(row.id)
        new.append(row)
    if new:
        await link.run(SQL["insert_messages"], (tenant, sid, *columns(new)))
        if names := names_in_messages(drafts):
            await link.run(SQL["name_sessions"], (tenant, sid, records.encoded(names)))
        await _note(link, tenant, ADDED, sid, new)
    return head.seq


async def erase(link: PgLink, tenant: int, sid: int, places: Sequence[int]) -> int:
    """Erase messages and the records made of them; return the new epoch."""
    epoch, intact = await lock(link, tenant, sid)
    if not intact:  # a new checksum would hide the damage
        raise Damaged("the record of the session is damaged; run `verify`")
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
    await link.run(SQL["drop_made_of"], (tenant, sid, erased, nodes_above(erased)))
    await link.run(SQL["unindex"], (tenant, sid, erased))
    ((epoch,),) = await link.run(SQL["next_epoch"], (tenant, sid))
    await link.run(SQL["seal_session"], (tenant, sid))
    await _note(link, tenant, ERASED, sid, graves)
    return epoch


async def _note(link: PgLink, tenant: int, kind: int, sid: int, rows: Sequence[Row]) -> None:
    ids = [id_to_bytes(row.id) for row in rows]
    await link.run(SQL["note_change"], (tenant, kind, sid, ids))


def _row(row: tuple[Any, ...]) -> Row:
    return Row._make((row[0], id_from_bytes(row[1]), *row[2:]))


_GATHER: Final = SQL["gather"]
_MESSAGE, _RECORD, _SOURCE = 1, 2, 3  # parts of what it returns


async def gather(engine: PgEngine, tenant: int, sid: int, wanted: Gather) -> Gathered:
    """Return a session's prompt, tail, records and the messages those are made of."""
    tokens, min_messages, kinds, follow, limit = wanted
    arrays = (_array(tuple(kinds)), _array(tuple(follow)))
    rows = await engine.call(_GATHER, (tenant, sid, tokens, min_messages, *arrays, limit))
    messages: list[Message] = []
    records: dict[bytes, list[Record]] = {}
    sources: dict[int, Message] = {}
    session = None
    for row in rows:
        part = row[0]
        if part == _MESSAGE:
            messages.append(decode(sid, row[2:]))
        elif part == _RECORD:
            records.setdefault(row[8], []).append(_record(sid, row))
        elif part == _SOURCE:
            sources[row[2]] = decode(sid, row[2:])
        else:
            session = row
    if session is None:
        raise SessionGone("the session was deleted")
    if not session[1]:
        name = session[3].decode("utf-8", "replace")
        raise Damaged(f"the record of session {name!r} is damaged; run `verify`")
    prompt, delimiter = sessions.prompt_and_delimiter(session[5])
    messages.reverse()
    if any(message.state == "damaged" for message in messages):
        messages = await careful_tail(
            engine, tenant, sid, Tail(tokens, None, MAX_COUNT, 0, min_messages)
        )
    else:
        messages = without_gaps(messages, session[2] - 1)
    more = [kind for kind in follow if _cut(records.get(kind.encode(), []), limit)]
    for found in records.values():
        found.sort(key=lambda record: record.key)  # text sorts by code point, as keys do
    chosen = [record for kind in (*kinds, *follow) for record in records.get(kind.encode(), ())]
    made_of = [sources[seq] for seq in sorted(sources)]
    return Gathered(prompt, messages, chosen, made_of, delimiter, more)


def _cut(records: list[Record], limit: int) -> bool:
    """Remove the oldest of one record too many; return whether there was one."""
    if len(records) <= limit:
        return False
    records.sort(key=lambda record: record.version)
    del records[0]
    return True


@lru_cache
def _array(kinds: tuple[str, ...]) -> str:
    """Return kinds as PostgreSQL writes an array, which costs less to pass than a list does."""
    inside = ",".join(rf'"\\x{kind.encode().hex()}"' for kind in kinds)
    return f"{{{inside}}}"


def _record(sid: int, row: tuple[Any, ...]) -> Record:
    _, intact, version, key, _, value, made_of, _, kind, *_ = row
    if not intact:
        raise records.damaged(kind, key)
    return records.record(sid, b"", kind, key, value, version, made_of)
