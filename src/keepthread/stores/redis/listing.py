"""All sessions of a tenant: in the order they were made, and by activity.

The index has a slot of its own, so it cannot change at the same moment as a session. It is told
first, and what it says is held against the session whenever it is read: what is announced and not
there is passed over, and cleared away once nobody can be about to make it. Activity tells it again
and so heals what was lost; it may lag behind by a second.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

from keepthread.errors import SessionGone
from keepthread.stores.redis import sessions
from keepthread.stores.redis.link import Link
from keepthread.stores.redis.places import index_of, session_place, shelf_place, tag_of
from keepthread.stores.redis.scripts import LUA
from keepthread.types import SessionInfo, SessionKey

GRACE: Final = 60_000_000
"""For how many microseconds what was announced may be about to be made: longer than any attempt."""

_PAGE: Final = 100


def is_listed(info: SessionInfo) -> bool:
    """Tell whether a session belongs among those that people look through."""
    return info.ready and info.kind != "delegate"


async def register(link: Link, tenant: str, info: SessionInfo) -> SessionKey:
    """Announce a session that is about to be made, and return its key."""
    index = index_of(tenant)
    keys = (index.last, index.sessions, index.active, index.active_of(info.owner))
    args = (tag_of(info.id), int(is_listed(info)), repr(info.updated_at))
    key: bytes = await link.run(LUA["register"], keys, args)
    return SessionKey(key.decode())


async def tell(link: Link, tenant: str, info: SessionInfo) -> None:
    """Tell the index of a session's activity, and whether it is listed."""
    index = index_of(tenant)
    keys = (index.sessions, index.active, index.active_of(info.owner))
    number = info.key.partition("-")[0]
    args = (info.key, number, int(is_listed(info)), repr(info.updated_at))
    await link.run(LUA["list"], keys, args)


async def withdraw(link: Link, tenant: str, key: SessionKey, owner: str) -> None:
    """Take a session out of the index."""
    index = index_of(tenant)
    keys = (index.sessions, index.active, index.active_of(owner))
    await link.run(LUA["clear"], keys, (-GRACE, key))


async def latest(link: Link, tenant: str, owner: str | None, limit: int) -> list[SessionInfo]:
    """Return listed sessions, latest activity first."""
    index = index_of(tenant)
    name = index.active if owner is None else index.active_of(owner)
    found: list[SessionInfo] = []
    start = 0
    while len(found) < limit:
        page = min(_PAGE, max(10, limit - len(found)))
        keys = await link.ask("ZREVRANGE", name, start, start + page - 1)
        infos = await _there(link, tenant, keys, name)
        found += [s for s in infos if s.state == "damaged" or is_listed(s)]
        if len(keys) < page:
            break
        start += page
    found.sort(key=lambda info: (info.updated_at, info.key), reverse=True)
    return found[:limit]


async def scan(link: Link, tenant: str, after: SessionKey | None, limit: int) -> list[SessionInfo]:
    """Return every session behind a key, in the order they were made."""
    found: list[SessionInfo] = []
    async for info in every(link, tenant, after=after, page=min(limit, _PAGE)):
        if len(found) == limit:
            break
        found.append(info)
    return found


async def every(
    link: Link, tenant: str, *, after: SessionKey | None = None, page: int = _PAGE
) -> AsyncIterator[SessionInfo]:
    """Yield every session behind a key, or from the first."""
    name = index_of(tenant).sessions
    last = f"({after.partition('-')[0]}" if after else "-inf"
    while page > 0:
        keys = await link.ask("ZRANGEBYSCORE", name, last, "+inf", "LIMIT", 0, page)
        for info in await _there(link, tenant, keys, name):
            yield info
        if len(keys) < page:
            return
        last = f"({keys[-1].decode().partition('-')[0]}"


async def _there(link: Link, tenant: str, keys: Sequence[bytes], met_in: str) -> list[SessionInfo]:
    """Return the sessions of these keys that there are; clear away the others."""
    found = await asyncio.gather(*(_describe(link, tenant, key) for key in keys))
    gone = [key for key, info in zip(keys, found, strict=True) if info is None]
    if gone:
        index = index_of(tenant)
        await link.run(LUA["clear"], (index.sessions, index.active, met_in), (GRACE, *gone))
    return [info for info in found if info is not None]


async def _describe(link: Link, tenant: str, key: bytes) -> SessionInfo | None:
    try:
        return await sessions.describe(link, session_place(tenant, SessionKey(key.decode())))
    except SessionGone:
        return None


# --- owners of records ---


async def announce_owner(link: Link, tenant: str, owner: str) -> None:
    """Note that an owner is about to have a record."""
    await link.run(LUA["announce"], (index_of(tenant).owners,), (owner,))


async def owners(link: Link, tenant: str) -> list[str]:
    """Return the owners who have a record."""
    name = index_of(tenant).owners
    known: list[bytes] = await link.ask("ZRANGE", name, 0, -1)
    places = [shelf_place(tenant, owner.decode()) for owner in known]
    asked: list[Any] = await asyncio.gather(*(link.ask("EXISTS", p.records) for p in places))
    gone = [owner for owner, there in zip(known, asked, strict=True) if not there]
    if gone:
        await link.run(LUA["clear"], (name,), (GRACE, *gone))
    return sorted(owner.decode() for owner in known if owner not in gone)
