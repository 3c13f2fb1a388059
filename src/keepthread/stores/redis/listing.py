"""All sessions of a tenant: in the order they were made, and by activity.

The index has a slot of its own, so it cannot change at the same moment as a session. It is told
first, and what it says is held against the session whenever it is read: what is announced and not
there is passed over, and cleared away once nobody can be about to make it. Activity tells it again
and so heals what was lost; it may lag behind by a second.

A session with a time to live ends without telling anyone. So the index knows when each may end, and
whoever makes or lists sessions clears some of those away that did.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

from keepthread.checks import MAX_COUNT
from keepthread.errors import SessionGone
from keepthread.stores.redis import sessions
from keepthread.stores.redis.link import Link
from keepthread.stores.redis.places import index_of, owner_tag, session_place, shelf_place, tag_of
from keepthread.stores.redis.scripts import LUA
from keepthread.types import SessionInfo, SessionKey

GRACE: Final = 60_000_000
"""For how many microseconds what was announced may be about to be made: longer than any attempt."""

_PAGE: Final = 100
_SWEPT_BY_A_LIST: Final = 1000
SWEPT_BY_A_NEW_SESSION: Final = 20
"""More than one, so that the index gets shorter while sessions are made."""


def is_listed(info: SessionInfo) -> bool:
    """Tell whether a session belongs among those that people look through."""
    return info.ready and info.kind != "delegate"


async def register(link: Link, tenant: str, info: SessionInfo, ttl: int) -> SessionKey:
    """Announce a session that is about to be made, and return its key."""
    index = index_of(tenant)
    keys = (index.last, index.sessions, index.active, index.active_of(info.owner), index.ends)
    about = (tag_of(info.id), int(is_listed(info)), repr(info.updated_at))
    key: bytes = await link.run(LUA["register"], keys, (*about, ttl, GRACE, owner_tag(info.owner)))
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
    gone = 0
    if limit:
        async for keys in _by_activity(link, name, min(_PAGE, max(10, limit))):
            infos = await _there(link, tenant, keys, name)
            gone += len(keys) - len(infos)
            found += [s for s in infos if s.state == "damaged" or is_listed(s)]
            if len(found) >= limit:
                break
    if gone:
        await sweep(link, tenant, most=_SWEPT_BY_A_LIST)
    found.sort(key=lambda info: (info.updated_at, info.key), reverse=True)
    return found[:limit]


async def _by_activity(link: Link, name: str, page: int) -> AsyncIterator[list[bytes]]:
    """Yield the entries of a sorted set, latest activity first, each of them once.

    They are read by score. Ranks shift whenever an entry is cleared away or becomes active, and a
    page of ranks passes over as many others.
    """
    seen: set[bytes] = set()
    top, last, tied = b"", b"+inf", 0
    while True:
        bounds = (last, b"-inf", b"WITHSCORES", b"LIMIT", 0, page + tied)
        rows: list[bytes] = await link.ask("ZREVRANGEBYSCORE", name, *bounds)
        keys, scores = rows[::2], rows[1::2]
        new = [key for key in keys if key not in seen]
        if not new:
            break
        top, last = top or scores[0], scores[-1]
        tied = scores.count(last)
        seen.update(new)
        yield new
    if top:  # what was active while the rest was read has moved to the front
        newer: list[bytes] = await link.ask("ZREVRANGEBYSCORE", name, b"+inf", b"(" + top)
        yield [key for key in newer if key not in seen]


async def sweep(link: Link, tenant: str, *, most: int) -> None:
    """Clear away up to `most` sessions whose time to live is over."""
    index = index_of(tenant)
    while most > 0:
        entries: list[bytes] = await link.run(LUA["due"], (index.ends,), (min(most, _PAGE),))
        if not entries:
            return
        left = await asyncio.gather(*(_time_left(link, tenant, entry) for entry in entries))
        pairs = [part for pair in zip(entries, left, strict=True) for part in pair]
        await link.run(LUA["sweep"], (index.sessions, index.active, index.ends), (GRACE, *pairs))
        most -= len(entries)


async def _time_left(link: Link, tenant: str, entry: bytes) -> int:
    """Return for how many milliseconds a session lives on at least; -1 if it is gone."""
    try:
        place = session_place(tenant, SessionKey(entry.decode("utf-8", "replace").split()[0]))
    except (SessionGone, IndexError):  # a damaged entry
        return -1
    left: int = await link.ask("PTTL", place.session)
    life = await link.ask("HGET", place.session, "life")
    return max(0, left) if life == place.life.encode() else -1


async def scan(link: Link, tenant: str, after: SessionKey | None, limit: int) -> list[SessionInfo]:
    """Return every session behind a key, in the order they were made."""
    found: list[SessionInfo] = []
    async for info in every(link, tenant, after=after, page=min(limit, _PAGE)):
        if len(found) == limit:
            break
        found.append(info)
    if len(found) < limit:  # it has walked over all that ended as well
        await sweep(link, tenant, most=MAX_COUNT)
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
