"""Sessions in Redis: each function is one operation."""

from dataclasses import replace

from keepthread.errors import Damaged, SessionGone, Stale
from keepthread.stores.details import NOT_DELETED, Condition, damaged_session, with_changes
from keepthread.stores.drafts import Head
from keepthread.stores.redis.heads import find_head
from keepthread.stores.redis.link import Link
from keepthread.stores.redis.places import Place, session_name, session_place, tag_of
from keepthread.stores.redis.rows import pack_head, unpack_head
from keepthread.stores.redis.scripts import LUA
from keepthread.stores.redis.state import (
    State,
    alive,
    pack_active,
    pack_record,
    pack_time,
    read_state,
    state_of,
    undamaged,
    unpack_active,
    unpack_damaged,
    unpack_record,
)
from keepthread.types import SessionInfo, SessionKey


async def create(link: Link, place: Place, tenant: str, info: SessionInfo, ttl: int) -> bool:
    """Make a session; tell whether its id was free."""
    values = (
        pack_head(place, Head(), ttl),
        pack_active(place, info.updated_at),
        pack_record(place, tenant, info, ttl),
    )
    return bool(await link.run(LUA["create"], place.keys, (place.life, place.mark, *values)))


async def update(
    link: Link,
    place: Place,
    tenant: str,
    given: SessionInfo,
    seen: SessionInfo | None,
    now: float,
) -> SessionInfo:
    """Replace title, tags, system prompt, meta and readiness."""
    while True:
        state = await read_state(link, place)
        known = await describe_state(link, place, state)
        ttl = undamaged(place, state.record).ttl
        record = pack_record(place, tenant, with_changes(known, given, seen), ttl)
        active = pack_active(place, now) if known.ready else b""
        args = (place.life, place.mark, state.revision, state.next_revision, record, active)
        if alive(await link.run(LUA["update"], place.keys, args)):
            return await describe(link, place)


async def delete(link: Link, place: Place, required: Condition) -> None:
    """Remove a session with all it has, if it meets the condition."""
    unready, since = required
    args = (int(unready), b"" if since is None else pack_time(since))
    keyed = (place.life, place.mark)
    again = (*keyed, 1, *args)
    outcome = alive(await link.run(LUA["delete"], place.keys, (*keyed, 0, *args), again=again))
    reason = outcome.decode()
    if reason == "damaged":
        raise damaged_session((await describe(link, place)).id)
    if reason != "deleted":
        raise Stale(NOT_DELETED[reason])


async def by_id(link: Link, tenant: str, id: str) -> SessionInfo | None:
    """Return the session of an id, or None."""
    state = state_of(await link.ask("HGETALL", session_name(tenant, id)))
    if not state.life:
        return None
    key = SessionKey(f"{state.life.decode('ascii', 'replace')}-{tag_of(id)}")
    try:
        return await describe_state(link, session_place(tenant, key), state)
    except SessionGone:
        raise Damaged(f"the record of session {id!r} is damaged; run `verify`") from None


async def describe(link: Link, place: Place) -> SessionInfo:
    """Return what is known of a session."""
    return await describe_state(link, place, await read_state(link, place))


async def epoch_of(link: Link, place: Place) -> int:
    """Return how often something was erased in a session."""
    life, record = await link.ask("HMGET", place.session, "life", "record")
    if life != place.life.encode():
        raise SessionGone("the session was deleted")
    return undamaged(place, record or b"").info.epoch


async def describe_state(link: Link, place: Place, state: State) -> SessionInfo:
    """Return what a session's hash says."""
    head, _ = unpack_head(place, state.head) or (await find_head(link, place), 0)
    described = unpack_record(place, state.record)
    active = unpack_active(place, state.active)
    sound = described is not None and active is not None
    known = described.info if described else unpack_damaged(state.record)
    return replace(
        known if sound else SessionInfo(id=known.id, epoch=known.epoch, state="damaged"),
        key=place.key,
        updated_at=active if sound and active is not None else 0.0,
        messages=head.seq,
        exchanges=head.exchanges,
        tokens=head.total,
    )
