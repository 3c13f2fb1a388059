"""Sessions in PostgreSQL: each function is one call of one SQL function."""

from functools import lru_cache
from math import inf
from typing import Any, cast

from keepthread.errors import SessionExists, SessionGone, Stale
from keepthread.protocols import Relatives
from keepthread.stores.backend import Listing, Position
from keepthread.stores.links import names_in_session
from keepthread.stores.postgres.engine import PgEngine
from keepthread.stores.postgres.schema import SQL
from keepthread.stores.records import (
    KINDS,
    NOT_DELETED,
    Condition,
    Update,
    damaged_session,
    decode_details,
    encode_details,
    sid_of,
)
from keepthread.text_caches import register_cache
from keepthread.types import SessionInfo, SessionKey


async def create(engine: PgEngine, tenant: int, session: SessionInfo) -> SessionInfo:
    """Create a session."""
    details = encode_details(session)
    id, owner, kind = session.id.encode(), session.owner.encode(), KINDS.index(session.kind)
    times = (session.created_at, session.updated_at)
    names = [name.encode() for name in names_in_session(session)]
    values = (tenant, id, owner, kind, session.ready, *times, details, names)
    ((sid,),) = await engine.call(SQL["create_session"], values, again=False)
    if sid is None:
        raise SessionExists(f"session {session.id!r} already exists")
    return await by_sid(engine, tenant, sid)


async def update(engine: PgEngine, tenant: int, update: Update) -> SessionInfo:
    """Replace title, tags, system prompt, meta and readiness."""
    sid = sid_of(update.key)
    while True:
        row = await _row(engine, tenant, sid)
        known = _decode(row)
        if known.state == "damaged":
            raise damaged_session(known.id)
        changed = update.of(known)
        values = (tenant, sid, changed.ready, encode_details(changed), update.now)
        read = (known.epoch, known.ready, row[8])
        ((outcome,),) = await engine.call(SQL["update_session"], (*values, *read))
        if outcome == "gone":
            raise SessionGone("the session was deleted")
        if outcome == "damaged":
            raise damaged_session(known.id)
        if outcome == "updated":
            return await by_sid(engine, tenant, sid)


async def by_id(engine: PgEngine, tenant: int, owner: str, id: str) -> SessionInfo | None:
    """Return an owner's session with an id, or None."""
    rows = await engine.call(SQL["session_by_id"], (tenant, owner.encode(), id.encode()))
    return _decode(rows[0]) if rows else None


async def by_sid(engine: PgEngine, tenant: int, sid: int) -> SessionInfo:
    """Return the session with a key."""
    return _decode(await _row(engine, tenant, sid))


async def _row(engine: PgEngine, tenant: int, sid: int) -> tuple[Any, ...]:
    rows = await engine.call(SQL["session_by_sid"], (tenant, sid))
    if not rows:
        raise SessionGone("the session was deleted")
    return rows[0]


async def listed(
    engine: PgEngine, tenant: int, owner: str | None, wanted: Listing
) -> list[tuple[Position, SessionInfo]]:
    """Return sessions by activity."""
    name = None if owner is None else owner.encode()
    place = wanted.after or wanted.before
    bound = (place.at, sid_of(place.key)) if place else (inf, 0)
    if wanted.unlisted:
        rows = await engine.call(SQL["unlisted_sessions"], (tenant, *bound, wanted.limit))
    else:
        values = (tenant, name, *bound, wanted.after is not None, wanted.limit)
        rows = await engine.call(SQL["list_sessions"], values)
    return [(Position(row[7], SessionKey(str(row[0]))), _decode(row)) for row in rows]


async def behind(
    engine: PgEngine, tenant: int, owner: str | None, after: int, limit: int
) -> list[SessionInfo]:
    """Return every session after a key."""
    values = (tenant, None if owner is None else owner.encode(), after, limit)
    return [_decode(row) for row in await engine.call(SQL["sessions_behind"], values)]


async def relatives(engine: PgEngine, tenant: int, sid: int) -> Relatives:
    """Return the sessions of the same owner that may repeat messages of this one."""
    rows = await engine.call(SQL["relatives"], (tenant, sid))
    copies = [_decode(row[1:]) for row in rows if row[0]]
    return Relatives(copies, [_decode(row[1:]) for row in rows if not row[0]])


async def delete(engine: PgEngine, tenant: int, sid: int, required: Condition) -> None:
    """Remove a session and all its data, if it meets the condition."""
    values = (tenant, sid, *required)
    ((outcome,),) = await engine.call(SQL["delete_session"], values, again=False)
    if outcome == "gone":
        raise SessionGone("the session was deleted")
    if outcome == "damaged":
        raise damaged_session((await by_sid(engine, tenant, sid)).id)
    if outcome != "deleted":
        raise Stale(NOT_DELETED[outcome])


@lru_cache(maxsize=1024)
def prompt_and_delimiter(details: bytes) -> tuple[str | None, str]:
    """Return a session's system prompt and delimiter, which a context needs."""
    # Every context needs it, and it rarely changes.
    fields = decode_details(details)
    return fields["system_prompt"], fields.get("delimiter", "")


def _decode(row: tuple[Any, ...]) -> SessionInfo:
    sid, id, owner, kind, ready, epoch, created_at, active_at, details, intact = row[:10]
    messages, turns, tokens = row[10:]
    key = SessionKey(str(sid))
    if not intact:
        return SessionInfo(
            id=id.decode("utf-8", "replace"),
            key=key,
            messages=messages,
            turns=turns,
            tokens=tokens,
            epoch=epoch,
            state="damaged",
        )
    return SessionInfo(
        id=id.decode(),
        key=key,
        owner=owner.decode(),
        kind=KINDS[cast(int, kind)],
        ready=ready,
        epoch=epoch,
        created_at=created_at,
        updated_at=active_at,
        messages=messages,
        turns=turns,
        tokens=tokens,
        **decode_details(details),
    )


register_cache(prompt_and_delimiter.cache_clear)
