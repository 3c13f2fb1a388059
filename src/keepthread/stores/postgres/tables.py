"""The tables of a server in PostgreSQL, on connections of their own.

The role that other connections take may not use these tables. So these take the role
`keepthread_server` if the login has it, or else use the rights of the login itself.
"""

from collections.abc import Collection
from typing import Any, Final

import psycopg

from keepthread.errors import Unavailable, Unsupported
from keepthread.stores.backend import Claim, RequestRow
from keepthread.stores.postgres.engine import PgEngine, Rows
from keepthread.stores.postgres.schema import SQL
from keepthread.stores.postgres.server import PgServer

_CONNECTIONS: Final = 4
_REFUSED: Final = (
    "this login has no access to the server tables; grant it the role keepthread_server, or connect"
    " as the owner of keepthread's tables"
)


class PostgresTables:
    """The tables in one database, for every tenant in it."""

    def __init__(self, server: PgServer) -> None:
        """Connect later."""
        self._engine = PgEngine(
            server.connect_for_tables,
            size=_CONNECTIONS,
            timeout=server.seconds,
            several=server.several,
            declare=server.declare,
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._engine.close()

    # --- API keys ---

    async def insert_key(self, id: str, tenant: str, data: bytes) -> bool:
        values = (id.encode(), tenant.encode(), data)
        return bool(await self._call("insert_key", *values)) or await self.get_key(id) == data

    async def get_key(self, id: str) -> bytes | None:
        rows = await self._call("key", id.encode())
        return rows[0][0] if rows else None

    async def list_keys(
        self, tenant: str | None, after: str, limit: int
    ) -> list[tuple[str, bytes]]:
        if tenant is None:
            rows = await self._call("keys", after.encode(), limit)
        else:
            rows = await self._call("keys_of_tenant", tenant.encode(), after.encode(), limit)
        return [(id.decode(), data) for id, data in rows]

    async def replace_key(self, id: str, old: bytes, new: bytes) -> bool:
        return bool(await self._call("replace_key", new, id.encode(), old, new))

    # --- secrets ---

    async def secret(self, name: str, new: bytes) -> bytes:
        rows = await self._call("secret", name.encode())
        if not rows:
            await self._call("insert_secret", name.encode(), new)
            rows = await self._call("secret", name.encode())
        return rows[0][0]

    # --- requests ---

    async def begin(self, claim: Claim) -> RequestRow | None:
        values = (claim.id, claim.tenant.encode(), *claim[2:])
        rows = await self._call("begin_request", *values)
        return RequestRow._make(rows[0]) if rows else None

    async def end(self, claim: Claim, head: bytes, body: bytes | None) -> bool:
        return bool(await self._call("end_request", head, body, claim.id, claim.token))

    async def renew(self, claim: Claim) -> bool:
        return bool(await self._call("renew_request", claim.at, claim.id, claim.token))

    async def abandon(self, claim: Claim) -> bool:
        return bool(await self._call("abandon_request", claim.id, claim.token))

    async def purge(self, before: float) -> int:
        ((count,),) = await self._call("purge_requests", before)
        return count

    # --- the audit log ---

    async def append(self, tenant: str, data: bytes) -> int:
        ((number,),) = await self._call("append_entry", tenant.encode(), data)
        return number

    async def entries(self, tenant: str | None, after: int, limit: int) -> list[tuple[int, bytes]]:
        if tenant is None:
            rows = await self._call("entries", after, limit)
        else:
            rows = await self._call("entries_of_tenant", tenant.encode(), after, limit)
        return [(number, data) for number, data in rows]

    async def prune(self, until: int, tenants: Collection[str]) -> int:  # noqa: ARG002 - one table
        ((count,),) = await self._call("prune_entries", until)
        return count

    async def _call(self, name: str, *values: Any) -> Rows:
        try:
            return await self._engine.call(SQL[name], values)
        except Unavailable as error:
            if isinstance(error.__cause__, psycopg.errors.InsufficientPrivilege):
                raise Unsupported(_REFUSED) from error
            raise
