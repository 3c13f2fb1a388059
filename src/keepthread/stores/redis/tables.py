"""The tables of a server in Redis.

Keys, secrets and the audit log share one slot of a cluster; requests are in the slot of their
tenant, because there are many. Requests expire automatically after a day.
"""

from collections.abc import Collection, Sequence
from typing import Any, Final

from keepthread.protocols.server import KEPT
from keepthread.stores.backend import Claim, RequestRow
from keepthread.stores.redis.engine import LUA, RedisLink
from keepthread.stores.redis.keys import SERVER, RequestKeys, owner_tag, requests_of

_MOST_ANNOUNCED: Final = 10_000
_PURGED: Final = 1000
_DIGEST: Final = 32
_HEAD: Final = 48  # after the digest and the token
_ENDS: Final = round(KEPT * 1000) + 3_600_000


class RedisTables:
    """The tables on one server or cluster, for every tenant on it."""

    def __init__(self, link: RedisLink) -> None:
        """Use a link."""
        self._link = link
        self._announced: set[str] = set()

    # --- API keys ---

    async def insert_key(self, id: str, tenant: str, data: bytes) -> bool:
        keys = (SERVER.keys, SERVER.order, _order_of(tenant))
        return bool(await self._link.run(LUA["key_add"], keys, (id, data)))

    async def get_key(self, id: str) -> bytes | None:
        return await self._link.ask("HGET", SERVER.keys, id)

    async def list_keys(
        self, tenant: str | None, after: str, limit: int
    ) -> list[tuple[str, bytes]]:
        order = SERVER.order if tenant is None else _order_of(tenant)
        first = f"({after}" if after else "-"
        ids: list[bytes] = await self._link.ask("ZRANGEBYLEX", order, first, "+", "LIMIT", 0, limit)
        found: list[Any] = await self._link.ask("HMGET", SERVER.keys, *ids) if ids else []
        return [(id.decode(), data) for id, data in zip(ids, found, strict=True) if data]

    async def replace_key(self, id: str, old: bytes, new: bytes) -> bool:
        return bool(await self._link.run(LUA["key_replace"], (SERVER.keys,), (id, old, new)))

    # --- secrets ---

    async def secret(self, name: str, new: bytes) -> bytes:
        return await self._link.run(LUA["secret"], (SERVER.secrets,), (name, new))

    # --- requests ---

    async def begin(self, claim: Claim) -> RequestRow | None:
        await self._announce(claim.tenant)
        at = requests_of(claim.tenant)
        times = (repr(claim.at), repr(claim.dead), repr(claim.old))
        values = (claim.id, claim.digest, claim.token, *times, _ENDS)
        found = await self._link.run(LUA["request_begin"], at, values)
        if not found:
            return None
        known = found[0]
        body = found[1] if len(found) > 1 else None
        return RequestRow(known[:_DIGEST], known[_HEAD:] or None, body)

    async def _announce(self, tenant: str) -> None:
        """Note that a tenant has requests, so that they are found when old ones are purged."""
        if tenant not in self._announced:
            await self._link.run(LUA["enroll"], (SERVER.requesting,), (tenant,))
            if len(self._announced) >= _MOST_ANNOUNCED:
                self._announced.clear()
            self._announced.add(tenant)

    async def end(self, claim: Claim, head: bytes, body: bytes | None) -> bool:
        at = requests_of(claim.tenant)
        values = (claim.id, claim.token, head, _ENDS, *([] if body is None else [body]))
        keys = (at.requests, at.bodies, at.open)
        return bool(await self._link.run(LUA["request_end"], keys, values))

    async def renew(self, claim: Claim) -> bool:
        at = requests_of(claim.tenant)
        values = (claim.id, claim.token, repr(claim.at), _ENDS)
        return bool(await self._link.run(LUA["request_renew"], at, values))

    async def abandon(self, claim: Claim) -> bool:
        at = requests_of(claim.tenant)
        keys = (at.requests, at.began, at.open)
        return bool(await self._link.run(LUA["request_abandon"], keys, (claim.id, claim.token)))

    async def purge(self, before: float) -> int:
        tenants: list[bytes] = await self._link.ask("ZRANGE", SERVER.requesting, 0, -1)
        return sum([await self._purge(requests_of(name.decode()), before) for name in tenants])

    async def _purge(self, at: RequestKeys, before: float) -> int:
        total = 0
        while count := await self._link.run(LUA["request_purge"], at, (repr(before), _PURGED)):
            total += count
        return total

    # --- the audit log ---

    async def append(self, tenant: str, data: bytes) -> int:
        keys = (SERVER.last, SERVER.audit, _audit_of(tenant))
        return await self._link.run(LUA["audit"], keys, (data,))

    async def entries(self, tenant: str | None, after: int, limit: int) -> list[tuple[int, bytes]]:
        if not limit:
            return []
        name = SERVER.audit if tenant is None else _audit_of(tenant)
        found: Sequence[Any] = await self._link.ask(
            "XRANGE", name, f"{after + 1}-0", "+", "COUNT", limit
        )
        return [(int(id.partition(b"-")[0]), fields[b"data"]) for id, fields in found]

    async def prune(self, until: int, tenants: Collection[str]) -> int:
        logs = (SERVER.audit, *map(_audit_of, sorted(tenants)))
        return await self._link.run(LUA["audit_prune"], logs, (until + 1,))


async def drop_answers(link: RedisLink, tenant: str) -> None:
    """Delete the bodies of answers, also of those to come, which may repeat what is forgotten."""
    at = requests_of(tenant)
    await link.run(LUA["unlink"], (at.open, at.bodies), (2, 0))


async def drop(link: RedisLink, tenant: str) -> bool:
    """Delete the keys and requests of a tenant; return whether there were keys."""
    keys = (SERVER.keys, SERVER.order, _order_of(tenant))
    dropped = await link.run(LUA["key_drop"], keys, ())
    at = requests_of(tenant)
    await link.run(LUA["unlink"], at, (len(at), 0))
    return bool(dropped)


def _order_of(tenant: str) -> str:
    return f"{SERVER.order}:{owner_tag(tenant)}"


def _audit_of(tenant: str) -> str:
    return f"{SERVER.audit}:{owner_tag(tenant)}"
