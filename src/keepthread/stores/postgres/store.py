"""The store in a PostgreSQL database: for many sessions and several machines."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, Self

from keepthread.errors import SessionGone
from keepthread.protocols import (
    MadeRecords,
    Progress,
    Relatives,
    Searchable,
    TokenCounter,
    Updates,
)
from keepthread.stores.backend import Append, Feed, FeedPage, Gather, Listing, Position, Put, Tail
from keepthread.stores.changes import FeedHolder
from keepthread.stores.codec import new_id
from keepthread.stores.front import Front
from keepthread.stores.postgres import changes, log, maintenance, records, sessions, tenants
from keepthread.stores.postgres.engine import PgEngine
from keepthread.stores.postgres.schema import SQL
from keepthread.stores.postgres.search import PostgresFinder
from keepthread.stores.postgres.server import PgServer
from keepthread.stores.postgres.tables import PostgresTables
from keepthread.stores.postgres.verify import PostgresInspection
from keepthread.stores.records import Condition, Keys, Update, sid_of
from keepthread.stores.rows import PreparedMessage
from keepthread.stores.validation import MAX_BLOB, check_id
from keepthread.types import (
    Cleaning,
    Durability,
    Gathered,
    Message,
    Record,
    Scope,
    SessionInfo,
    SessionKey,
    Verification,
)

_PARTITIONS: Final = 16  # enough for one server; each adds a lock to every statement


class PostgresBackend:
    """One database, for every tenant in it."""

    max_blob: int = MAX_BLOB

    def __init__(self, server: PgServer, engine: PgEngine) -> None:
        """Use the connections of a server."""
        self._server = server
        self.engine = engine
        self._tables = PostgresTables(server)

    @property
    def durability(self) -> Durability:
        return self._server.durability

    async def close(self) -> None:
        await self._tables.close()
        await self.engine.close()

    async def number(self, tenant: str, *, make: bool = False) -> int:
        """Return a tenant's number, 0 if it has none yet."""
        number = self.engine.tenant_number(tenant)
        if not number:
            ((number,),) = await self.engine.call(SQL["tenant_number"], (tenant.encode(), make))
            if number:
                self.engine.note_tenant(tenant, number)
        return number

    # --- sessions ---

    async def create_session(self, tenant: str, session: SessionInfo) -> SessionInfo:
        return await sessions.create(self.engine, await self.number(tenant, make=True), session)

    async def update_session(self, tenant: str, update: Update) -> SessionInfo:
        return await sessions.update(self.engine, await self.number(tenant), update)

    async def get_session(self, tenant: str, owner: str, id: str) -> SessionInfo | None:
        return await sessions.by_id(self.engine, await self.number(tenant), owner, id)

    async def describe(self, tenant: str, session: SessionKey) -> SessionInfo:
        sid = sid_of(session)
        return await sessions.by_sid(self.engine, await self.number(tenant), sid)

    async def list_sessions(
        self, tenant: str, owner: str | None, wanted: Listing
    ) -> list[tuple[Position, SessionInfo]]:
        return await sessions.listed(self.engine, await self.number(tenant), owner, wanted)

    async def scan_sessions(
        self, tenant: str, owner: str | None, after: SessionKey | None, limit: int
    ) -> list[SessionInfo]:
        sid = 0 if after is None else sid_of(after)
        return await sessions.behind(self.engine, await self.number(tenant), owner, sid, limit)

    async def relatives(self, tenant: str, session: SessionKey) -> Relatives:
        sid = sid_of(session)
        return await sessions.relatives(self.engine, await self.number(tenant), sid)

    async def delete_session(self, tenant: str, session: SessionKey, required: Condition) -> None:
        sid = sid_of(session)
        await sessions.delete(self.engine, await self.number(tenant), sid, required)

    # --- the log ---

    async def append(self, tenant: str, session: SessionKey, new: Append) -> list[Message]:
        sid = sid_of(session)
        return await log.append(self.engine, await self.number(tenant), sid, new)

    async def load(
        self, tenant: str, session: SessionKey, drafts: Sequence[PreparedMessage]
    ) -> int:
        sid, number = sid_of(session), await self.number(tenant)
        return await self.engine.transact(lambda link: log.load(link, number, sid, drafts))

    async def tail(self, tenant: str, session: SessionKey, wanted: Tail) -> list[Message]:
        sid = sid_of(session)
        return await log.tail(self.engine, await self.number(tenant), sid, wanted)

    async def gather(self, tenant: str, session: SessionKey, wanted: Gather) -> Gathered:
        sid = sid_of(session)
        return await log.gather(self.engine, await self.number(tenant), sid, wanted)

    async def read(
        self, tenant: str, session: SessionKey, after: int, until: int, limit: int
    ) -> list[Message]:
        sid = sid_of(session)
        return await log.read(self.engine, await self.number(tenant), sid, after, until, limit)

    async def find(
        self, tenant: str, session: SessionKey, ids: Sequence[str], seqs: Sequence[int]
    ) -> list[Message]:
        sid = sid_of(session)
        return await log.find(self.engine, await self.number(tenant), sid, ids, seqs)

    async def erase(self, tenant: str, session: SessionKey, seqs: Sequence[int]) -> int:
        sid, number = sid_of(session), await self.number(tenant)
        return await self.engine.transact(lambda link: log.erase(link, number, sid, seqs))

    async def recount(
        self, tenant: str, session: SessionKey, counter: TokenCounter, progress: Progress | None
    ) -> int:
        sid, number = sid_of(session), await self.number(tenant)
        return await maintenance.recount(self.engine, number, sid, counter, progress)

    # --- records ---

    async def put(self, tenant: str, scope: Scope, record: Put) -> int:
        epochs = {sid_of(session): epoch for session, epoch in record.epochs.items()}
        where = await self._scope(tenant, scope, make=True)
        return await records.put(self.engine, where, scope, record, epochs)

    async def get(self, tenant: str, scope: Scope, kind: str, key: str) -> Record | None:
        return await records.get(self.engine, await self._scope(tenant, scope), kind, key)

    async def scan(self, tenant: str, scope: Scope, kind: str | None, keys: Keys) -> list[Record]:
        return await records.scan(self.engine, await self._scope(tenant, scope), kind, keys)

    async def updates(self, tenant: str, scope: Scope, kind: str, since: int) -> Updates:
        return await records.updates(self.engine, await self._scope(tenant, scope), kind, since)

    async def made_of(
        self, tenant: str, session: SessionKey, nodes: Sequence[int] | None
    ) -> MadeRecords:
        sid = sid_of(session)
        return await records.made_of(self.engine, await self.number(tenant), sid, nodes)

    async def owners(self, tenant: str) -> list[str]:
        return await records.owners(self.engine, await self.number(tenant))

    async def blob_owners(self, tenant: str) -> list[str]:
        return await records.blob_owners(self.engine, await self.number(tenant))

    async def drop(
        self, tenant: str, scope: Scope, kind: str, key: str, version: int | None
    ) -> bool:
        where = await self._scope(tenant, scope)
        return await records.drop(self.engine, where, scope, kind, key, version)

    async def _scope(self, tenant: str, scope: Scope, *, make: bool = False) -> records.PgScope:
        sid = sid_of(scope.session) if scope.session else 0
        return records.scope_of(await self.number(tenant, make=make), sid, scope.owner)

    # --- changes ---

    async def changes(self, tenant: str, wanted: Feed) -> FeedPage:
        return await changes.read(self.engine, await self.number(tenant), wanted)

    # --- integrity ---

    async def verify(self, tenant: str, progress: Progress | None) -> Verification:
        number = await self.number(tenant)
        return await self.engine.transact(
            lambda link: PostgresInspection(link, number, progress).run()
        )

    async def clean(
        self,
        tenant: str,
        touched: Sequence[SessionKey],
        rewrite: bool,
        probes: Sequence[bytes],  # noqa: ARG002 - a client cannot read the server's files
    ) -> Cleaning:
        await self.engine.call(SQL["drop_answers"], (tenant.encode(),))
        owners: set[str] = set()
        for session in touched:
            with suppress(SessionGone):
                owners.add((await self.describe(tenant, session)).owner)
        sids = [sid_of(session) for session in touched]
        what = maintenance.Touched(await self.number(tenant), sids, sorted(owners))
        return await maintenance.clean(self._server, what, rewrite=rewrite)

    async def finder(self, tenant: str) -> Searchable:
        return PostgresFinder(self.engine, lambda: self.number(tenant))

    # --- tenants ---

    async def tenants(self, after: str, limit: int) -> list[str]:
        self.engine.check_open()
        return await tenants.names(self._server, after, limit)

    async def drop_tenant(self, tenant: str, rewrite: bool) -> Cleaning | None:
        self.engine.check_open()
        return await tenants.drop(self._server, self.engine, tenant, rewrite=rewrite)

    def tables(self) -> PostgresTables:
        return self._tables


class PostgresStore(Front[PostgresBackend]):
    """The `Store` in a PostgreSQL database; open it with `await PostgresStore.open(url)`."""

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        tenant: str = "default",
        durability: Durability | None = None,
        connections: int = 16,
        deadline: float = 30.0,
        migrate: bool = True,
        clock: Callable[[], float] = time.time,
        ids: Callable[[], str] = new_id,
    ) -> Self:
        """Open a database by its URL, and create its tables unless `migrate` is False.

        The URL may name several hosts: writes follow the one that accepts them. `durability` is the
        minimum; the server reports what it provides. `connections` is the maximum number of
        connections. `deadline` is how many seconds a call waits for a server that became
        unavailable; opening does not wait.
        """
        check_id(tenant, "tenant")
        server = PgServer(url, timeout=deadline, least=durability)
        await server.begin(migrate=migrate, partitions=_PARTITIONS)
        engine = PgEngine(
            server.connect,
            size=connections,
            timeout=deadline,
            several=server.several,
            declare=server.declare,
        )
        return cls(PostgresBackend(server, engine), tenant=tenant, clock=clock, ids=ids)

    async def finder(self) -> Searchable:
        return await self.backend.finder(self._tenant)

    async def feed_holder(self) -> FeedHolder | None:
        """Return the oldest transaction that the feed waits for, in any database of the server."""
        return await changes.holder(self.backend.engine)
