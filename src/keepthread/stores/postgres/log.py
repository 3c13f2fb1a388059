"""Appending to and reading a log in PostgreSQL: each is one call of one function there."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from keepthread.codec import Row, pack_id
from keepthread.errors import Conflict, SessionGone
from keepthread.stores.drafts import Draft, Head, as_stored, check_exchange
from keepthread.stores.gaps import without_gaps
from keepthread.stores.postgres import sessions
from keepthread.stores.postgres.engine import Engine
from keepthread.stores.postgres.faults import Taken
from keepthread.stores.postgres.link import Link
from keepthread.stores.postgres.rows import decode, id_to_bytes
from keepthread.stores.postgres.statements import SQL
from keepthread.types import Message

_APPEND: Final = SQL["append"]
_TAIL: Final = SQL["tail"]
_PAGE: Final = 200


async def append(
    engine: Engine,
    tenant: int,
    sid: int,
    drafts: Sequence[Draft],
    expect: int | None,
    exchange: int | None,
    now: float,
) -> list[Message]:
    """Store what is new at the end, answer what is known, note activity if it is time to."""
    if not drafts:
        info = await sessions.by_sid(engine, tenant, sid)
        check_exchange(exchange, Head(info.messages, info.exchanges))
        return []
    try:
        placed = await _append(engine, tenant, sid, drafts, expect, exchange, now)
    except Conflict:
        damaged = await _damaged_digests(engine, tenant, sid, drafts)
        if not damaged:
            raise
        drafts = [_agree(draft, damaged) for draft in drafts]
        placed = await _append(engine, tenant, sid, drafts, expect, exchange, now)
    known = [seq for is_known, seq, _, _ in placed if is_known]
    if not known:
        return [_stored(draft, *row[1:]) for draft, row in zip(drafts, placed, strict=True)]
    found = {m.seq: m for m in await find(engine, tenant, sid, (), known)}
    return [
        found[row[1]] if row[0] else _stored(draft, *row[1:])
        for draft, row in zip(drafts, placed, strict=True)
    ]


async def _append(
    engine: Engine,
    tenant: int,
    sid: int,
    drafts: Sequence[Draft],
    expect: int | None,
    exchange: int | None,
    now: float,
) -> list[tuple[Any, ...]]:
    """Return for each draft whether it was known, its position, exchange and total.

    Their ids are fixed, so it may be done again whenever nobody knows how it went.
    """
    rows = [_values(draft) for draft in drafts]
    if len(rows) == 1:
        values = (tenant, sid, *rows[0], expect, exchange, now)
        try:
            return await engine.call(_APPEND, values)
        except Taken:  # the message is known
            return await engine.call(SQL["append_with_care"], values)
    columns = map(list, zip(*rows, strict=True))
    return await engine.call(SQL["append_all"], (tenant, sid, *columns, expect, exchange, now))


def _values(draft: Draft) -> tuple[Any, ...]:
    _, _, packed, (role, content, extra, digest), tokens, counter, at = draft
    return (id_to_bytes(packed), role, content, extra or b"", tokens, counter, at, digest)


def _stored(draft: Draft, seq: int, exchange: int, total: int) -> Message:
    _, _, packed, body, tokens, counter, at = draft
    around = (tokens, counter, exchange, 0, total, at, body.digest, b"")
    return as_stored(draft, Row(seq, packed, body.role, None, None, *around))


async def _damaged_digests(
    engine: Engine, tenant: int, sid: int, drafts: Sequence[Draft]
) -> dict[bytes, bytes]:
    """Return what stands for a digest in damaged rows under these ids."""
    ids = [id_to_bytes(draft.packed) for draft in drafts]
    rows = await engine.call(SQL["find"], (tenant, sid, ids, []))
    return {row[1]: row[11] for row in rows if decode(sid, row).state == "damaged"}


def _agree(draft: Draft, damaged: Mapping[bytes, bytes]) -> Draft:
    """Return a draft that is no conflict with a damaged message: what that said is not known."""
    digest = damaged.get(id_to_bytes(draft.packed), draft.body.digest)
    return draft._replace(body=draft.body._replace(digest=digest))


async def tail(
    engine: Engine,
    tenant: int,
    sid: int,
    tokens: int | None,
    limit: int | None,
    before: int,
    after: int,
    least: int,
) -> list[Message]:
    """Return the newest messages that fit."""
    rows = await engine.call(_TAIL, (tenant, sid, tokens, limit, before, after, least))
    if not rows:
        raise SessionGone("the session was deleted")
    first = rows[0][0]
    found = [decode(sid, row) for row in rows[1:]]
    if any(message.state == "damaged" for message in found):
        return await careful_tail(engine, tenant, sid, tokens, limit, before, after, least)
    return without_gaps(found, first - 1)


async def careful_tail(
    engine: Engine,
    tenant: int,
    sid: int,
    tokens: int | None,
    limit: int | None,
    before: int,
    after: int,
    least: int,
) -> list[Message]:
    """Step back through a log with damage: what is damaged costs nothing, whatever it says."""

    async def step_back(link: Link) -> list[Message]:
        await link.run(SQL["name_tenant"], (str(tenant),))
        end = min(before, await _end(link, tenant, sid) + 1)
        found: list[Message] = []
        left = tokens
        while rows := await link.run(SQL["newest"], (tenant, sid, end, after, _PAGE)):
            for message in (decode(sid, row) for row in rows):
                full = left is not None and message.tokens > left and len(found) >= least
                if full or len(found) == limit:
                    return without_gaps(found[::-1])
                left = left and left - message.tokens
                found.append(message)
            end = rows[-1][0]
        return without_gaps(found[::-1], after)

    return await engine.transact(step_back)


async def read(
    engine: Engine, tenant: int, sid: int, after: int, upto: int, limit: int
) -> list[Message]:
    """Return messages behind a position, oldest first."""
    rows = await engine.call(SQL["read"], (tenant, sid, after, upto, limit))
    found = [decode(sid, row) for row in rows]
    if not found or found[-1].state == "damaged":
        end = (await sessions.by_sid(engine, tenant, sid)).messages
        while found and found[-1].state == "damaged" and found[-1].seq > end:
            found.pop()
    return without_gaps(found, after)[:limit]


async def find(
    engine: Engine, tenant: int, sid: int, ids: Iterable[str], seqs: Iterable[int]
) -> list[Message]:
    """Return the messages of these ids and positions."""
    names = [id_to_bytes(pack_id(id)) for id in ids]
    rows = await engine.call(SQL["find"], (tenant, sid, names, list(seqs)))
    if not rows:
        await sessions.by_sid(engine, tenant, sid)
    found = {row[0]: decode(sid, row) for row in rows}
    return [found[seq] for seq in sorted(found)]


async def _end(link: Link, tenant: int, sid: int) -> int:
    (head,) = await link.run(SQL["head"], (tenant, sid))
    return head[0]
