"""Tenants in Redis: one sorted set of names, deleting all keys of one, and the owners of records.

A tenant is enrolled before its first session or record is created. Nothing is searched for with
SCAN: the keys of a tenant are known from its index.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from keepthread.errors import SessionGone
from keepthread.stores.kinds import OF_REFERENCES
from keepthread.stores.redis.engine import LUA, RedisLink
from keepthread.stores.redis.keys import (
    TENANTS,
    Index,
    changed_place,
    index_of,
    records_place,
    session_place,
)
from keepthread.stores.redis.sessions import GRACE, unpack_record, withdraw
from keepthread.types import SessionKey

_PAGE: Final = 100
_DAY: Final = 86_400_000  # milliseconds


async def enroll(link: RedisLink, tenant: str) -> None:
    """Note that a tenant is about to have something."""
    await link.run(LUA["enroll"], (TENANTS,), (tenant,))


async def names(link: RedisLink, after: str, limit: int) -> list[str]:
    """Return the names of tenants after a name."""
    first = f"({after}" if after else "-"
    found: list[bytes] = await link.ask("ZRANGEBYLEX", TENANTS, first, "+", "LIMIT", 0, limit)
    return [name.decode() for name in found]


async def drop(link: RedisLink, tenant: str) -> bool:
    """Delete everything of a tenant, some keys at a time; return whether it existed."""
    index = index_of(tenant)
    if not await _exists(link, tenant, index):
        return False
    await _drop_sessions(link, tenant, index)
    await _drop_owners(link, tenant, index)
    await _drop_feed(link, tenant, index)
    own = records_place(tenant, "")
    await _unlink(link, (*own.keys, own.changes))
    # Numbers of sessions never return: the last one outlives clocks that are set back.
    await _unlink(link, (index.ends, index.unlisted, index.links, index.blob_owners), (index.last,))
    await link.run(LUA["strike"], (TENANTS,), (tenant,))
    if await _exists(link, tenant, index):  # others have written in the meantime
        await enroll(link, tenant)
    return True


async def _exists(link: RedisLink, tenant: str, index: Index) -> bool:
    if await link.ask("ZSCORE", TENANTS, tenant) is not None:
        return True
    for key in (index.sessions, index.owners, records_place(tenant, "").records):
        if await link.ask("EXISTS", key):
            return True
    return False


async def _drop_sessions(link: RedisLink, tenant: str, index: Index) -> None:
    last = "-inf"
    while keys := await link.ask(
        "ZRANGEBYSCORE", index.sessions, last, "+inf", "WITHSCORES", "LIMIT", 0, _PAGE
    ):
        await asyncio.gather(*(_drop_session(link, tenant, index, key) for key in keys[::2]))
        last = f"({keys[-1].decode()}"


async def _drop_session(link: RedisLink, tenant: str, index: Index, key: bytes) -> None:
    name = SessionKey(key.decode("utf-8", "replace"))
    try:
        place = session_place(tenant, name)
    except SessionGone:  # a damaged entry
        await link.run(LUA["strike"], (index.sessions,), (key,))
        return
    life, record = await link.ask("HMGET", place.session, "life", "record")
    if life != place.life.encode():  # it is gone, or announced and not created yet
        await link.run(LUA["clear"], (index.sessions, index.active), (GRACE, key))
        return
    known = unpack_record(place, record or b"")
    await _unlink(link, (*place.keys, place.changes))
    await withdraw(link, tenant, name, known.info.owner if known else "")


async def _drop_owners(link: RedisLink, tenant: str, index: Index) -> None:
    while owners := await link.ask("ZRANGE", index.owners, 0, _PAGE - 1):
        for owner in owners:
            place = records_place(tenant, owner.decode("utf-8", "replace"))
            await _unlink(link, (*place.keys, place.changes))
            await link.run(LUA["strike"], (index.owners,), (owner,))


async def _drop_feed(link: RedisLink, tenant: str, index: Index) -> None:
    """Delete the feeds of changes; streams that they do not name any more expire."""
    while places := await link.ask("ZRANGEBYLEX", index.feed, "-", "+", "LIMIT", 0, _PAGE):
        names = {place.decode().partition(":")[2] for place in places}
        streams = [changed_place(tenant, name) for name in sorted(names)]
        await asyncio.gather(*(_unlink(link, (stream,)) for stream in streams))
        await asyncio.gather(*(link.run(LUA["strike"], (index.feed,), (one,)) for one in places))
    fields: list[bytes] = await link.ask("HKEYS", index.feed_state)
    for field in fields:
        if field.startswith(b"owner:"):
            await _unlink(link, (f"{index.feed}:{field.decode().partition(':')[2]}",))
    await _unlink(link, (index.feed, index.feed_state))


async def _unlink(link: RedisLink, keys: Sequence[str], ending: Sequence[str] = ()) -> None:
    await link.run(LUA["unlink"], (*keys, *ending), (len(keys), _DAY))


# --- owners of records ---


async def announce_owner(link: RedisLink, tenant: str, owner: str, kind: str) -> None:
    """Announce an owner before a record of some kind is stored."""
    index = index_of(tenant)
    await link.run(LUA["announce"], (index.owners,), (owner,))
    if kind in OF_REFERENCES:
        await link.run(LUA["announce"], (index.blob_owners,), (owner,))


async def owners(link: RedisLink, tenant: str) -> list[str]:
    """Return the owners who have a record."""
    return await _owners(link, tenant, index_of(tenant).owners, ("-", "+"))


async def blob_owners(link: RedisLink, tenant: str) -> list[str]:
    """Return the owners who have blobs; no kind is between these two."""
    bounds = (f"[{min(OF_REFERENCES)}\0", f"({max(OF_REFERENCES)}\1")
    return await _owners(link, tenant, index_of(tenant).blob_owners, bounds)


async def _owners(link: RedisLink, tenant: str, name: str, names: tuple[str, str]) -> list[str]:
    known: list[bytes] = await link.ask("ZRANGE", name, 0, -1)
    places = [records_place(tenant, owner.decode()) for owner in known]
    asked: list[Any] = await asyncio.gather(
        *(link.ask("ZRANGEBYLEX", p.order, *names, "LIMIT", 0, 1) for p in places)
    )
    gone = [owner for owner, there in zip(known, asked, strict=True) if not there]
    if gone:
        await link.run(LUA["clear"], (name,), (GRACE, *gone))
    return sorted(owner.decode() for owner in known if owner not in gone)
