"""The store in a PostgreSQL database: for teams, for many sessions, past one machine."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Self

from keepthread.errors import SessionGone
from keepthread.protocols import Progress, Searchable, TokenCounter
from keepthread.stores.ids import new_id
from keepthread.stores.postgres import (
    log,
    sessions,
)
from keepthread.stores.postgres import (
    log as changes,
)
from keepthread.stores.postgres import (
    log as gather,
)
from keepthread.stores.postgres import (
    maintenance as recount,
)
from keepthread.stores.postgres import (
    records as shelf,
)
from keepthread.stores.postgres.engine import Engine
from keepthread.stores.postgres.maintenance import Touched, clean
from keepthread.stores.postgres.schema import SQL
from keepthread.stores.postgres.search import PostgresFinder
from keepthread.stores.postgres.server import Server
from keepthread.stores.postgres.sessions import sid_of
from keepthread.stores.postgres.verify import Inspection
from keepthread.stores.records import (
    check_filter,
    check_keys,
    check_scope,
    check_session,
    condition,
    encode_spans,
    encode_value,
)
from keepthread.stores.rows import check_positions, draft, draft_copy
from keepthread.stores.validation import MAX_COUNT, check_count, check_id
from keepthread.types import (
    JSON,
    Cleaning,
    Durability,
    Gathered,
    Message,
    Record,
    Scope,
    SessionInfo,
    SessionKey,
    Span,
    Verification,
)

_PARTITIONS: Final = 16  # enough on one server; each is a lock more in every statement


class PostgresStore:
    """The `Store` in a PostgreSQL database; open it with `await PostgresStore.open(url)`."""

    def __init__(
        self,
        server: Server,
        engine: Engine,
        *,
        tenant: str,
        clock: Callable[[], float],
        ids: Callable[[], str],
        owns_engine: bool,
    ) -> None:
        """Stand behind one tenant's wall; callers use `open` and `tenant`."""
        self._server = server
        self._engine = engine
        self._tenant = check_id(tenant, "tenant")
        self._clock = clock
        self._ids = ids
        self._owns_engine = owns_engine

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

        The URL may name several hosts: writes follow the one that accepts them. `durability` is
        the least that is accepted; the server is asked what it gives. `connections` is how many to
        open at most. `deadline` is how many seconds a call waits for a server that went away;
        opening does not wait for one that is away.
        """
        check_id(tenant, "tenant")
        server = Server(url, timeout=deadline, least=durability)
        await server.begin(migrate=migrate, partitions=_PARTITIONS)
        engine = Engine(
            server.connect,
            size=connections,
            timeout=deadline,
            several=server.several,
            declare=server.declare,
        )
        return cls(server, engine, tenant=tenant, clock=clock, ids=ids, owns_engine=True)

    @property
    def durability(self) -> Durability:
        return self._server.durability

    def tenant(self, name: str) -> Self:
        return type(self)(
            self._server,
            self._engine,
            tenant=name,
            clock=self._clock,
            ids=self._ids,
            owns_engine=False,
        )

    async def close(self) -> None:
        if self._owns_engine:
            await self._engine.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _number(self, *, make: bool = False) -> int:
        """Return the tenant's number, 0 as long as it has none."""
        number = self._engine.tenant_number(self._tenant)
        if not number:
            values = (self._tenant.encode(), make)
            ((number,),) = await self._engine.call(SQL["tenant_number"], values)
            if number:
                self._engine.note_tenant(self._tenant, number)
        return number

    # --- sessions ---

    async def put_session(
        self, session: SessionInfo, *, seen: SessionInfo | None = None
    ) -> SessionInfo:
        now = self._clock()
        session = check_session(session, now=now, ids=self._ids)
        if not session.key:
            return await sessions.create(self._engine, await self._number(make=True), session)
        sid = sid_of(session.key)
        return await sessions.update(self._engine, await self._number(), sid, session, seen, now)

    async def get_session(self, id: str) -> SessionInfo | None:
        check_id(id, "a session id")
        return await sessions.by_id(self._engine, await self._number(), id)

    async def describe(self, session: SessionKey) -> SessionInfo:
        sid = sid_of(session)
        return await sessions.by_sid(self._engine, await self._number(), sid)

    async def list_sessions(
        self, *, owner: str | None = None, limit: int = 10
    ) -> list[SessionInfo]:
        check_count(limit, "limit")
        check_filter(owner, "owner")
        return await sessions.latest(self._engine, await self._number(), owner, limit)

    async def scan_sessions(
        self, *, after: SessionKey | None = None, limit: int = 100
    ) -> list[SessionInfo]:
        sid = 0 if after is None else sid_of(after)
        check_count(limit, "limit")
        return await sessions.behind(self._engine, await self._number(), sid, limit)

    async def delete_session(
        self, session: SessionKey, *, unready: bool = False, idle_since: float | None = None
    ) -> None:
        required = condition(unready=unready, idle_since=idle_since)
        sid = sid_of(session)
        await sessions.delete(self._engine, await self._number(), sid, required)

    # --- the log ---

    async def append(
        self,
        session: SessionKey,
        messages: Sequence[Message],
        *,
        expect: int | None = None,
        exchange: int | None = None,
    ) -> list[Message]:
        sid = sid_of(session)
        check_positions(expect=expect, exchange=exchange)
        drafts = [draft(m, clock=self._clock, ids=self._ids) for m in messages]
        tenant = await self._number()
        now = self._clock()
        return await log.append(self._engine, tenant, sid, drafts, expect, exchange, now)

    async def load(self, session: SessionKey, messages: Sequence[Message]) -> int:
        sid = sid_of(session)
        drafts = [draft_copy(m) for m in messages]
        tenant = await self._number()
        return await self._engine.transact(lambda link: changes.load(link, tenant, sid, drafts))

    async def tail(
        self,
        session: SessionKey,
        *,
        tokens: int | None = None,
        limit: int | None = None,
        before: int | None = None,
        after: int = 0,
        least: int = 0,
    ) -> list[Message]:
        sid = sid_of(session)
        check_positions(tokens=tokens, limit=limit, before=before, after=after, least=least)
        end = MAX_COUNT if before is None else before
        tenant = await self._number()
        return await log.tail(self._engine, tenant, sid, tokens, limit, end, after, least)

    async def gather(
        self,
        session: SessionKey,
        *,
        tokens: int,
        least: int = 0,
        kinds: Sequence[str] = (),
        follow: Sequence[str] = (),
    ) -> Gathered:
        sid = sid_of(session)
        check_positions(tokens=tokens, least=least)
        for kind in (*kinds, *follow):
            check_id(kind, "kind")
        tenant = await self._number()
        return await gather.gather(self._engine, tenant, sid, tokens, least, kinds, follow)

    async def read(
        self, session: SessionKey, *, after: int = 0, upto: int | None = None, limit: int = 100
    ) -> list[Message]:
        sid = sid_of(session)
        check_positions(after=after, upto=upto, limit=limit)
        end = MAX_COUNT if upto is None else upto
        return await log.read(self._engine, await self._number(), sid, after, end, limit)

    async def find(
        self, session: SessionKey, *, ids: Iterable[str] = (), seqs: Iterable[int] = ()
    ) -> list[Message]:
        sid = sid_of(session)
        names = [check_id(id, "a message id") for id in ids]
        places = [check_count(seq, "seq") for seq in seqs]
        return await log.find(self._engine, await self._number(), sid, names, places)

    async def erase(self, session: SessionKey, seqs: Iterable[int]) -> int:
        sid = sid_of(session)
        places = [check_count(seq, "seq") for seq in seqs]
        tenant = await self._number()
        return await self._engine.transact(lambda link: changes.erase(link, tenant, sid, places))

    async def recount(
        self, session: SessionKey, counter: TokenCounter, *, progress: Progress | None = None
    ) -> int:
        sid = sid_of(session)
        return await recount.recount(self._engine, await self._number(), sid, counter, progress)

    # --- the shelf ---

    async def put(
        self,
        scope: Scope,
        kind: str,
        key: str,
        value: JSON,
        *,
        made_of: Sequence[Span] = (),
        version: int | None = None,
        epochs: Mapping[SessionKey, int] | None = None,
    ) -> int:
        data, spans = encode_value(kind, key, value), encode_spans(made_of)
        seen = {sid_of(session): epoch for session, epoch in (epochs or {}).items()}
        place = await self._shelf(scope, make=True)
        own = [s for s in made_of if s.session == scope.session and s.first <= s.last]
        record = shelf.New(scope.owner, kind, key, data, spans, own)
        return await shelf.put(self._engine, place, record, version, seen)

    async def get(self, scope: Scope, kind: str, key: str) -> Record | None:
        place = await self._shelf(scope)
        check_id(kind, "kind")
        check_id(key, "key")
        return await shelf.get(self._engine, place, kind, key)

    async def scan(
        self,
        scope: Scope,
        kind: str | None = None,
        *,
        after: str | None = None,
        before: str | None = None,
        limit: int | None = None,
    ) -> list[Record]:
        keys = check_keys(kind, after, before, limit)
        return await shelf.scan(self._engine, await self._shelf(scope), kind, keys)

    async def owners(self) -> list[str]:
        return await shelf.owners(self._engine, await self._number())

    async def drop(self, scope: Scope, kind: str, key: str, *, version: int | None = None) -> bool:
        place = await self._shelf(scope)
        check_id(kind, "kind")
        check_id(key, "key")
        return await shelf.drop(self._engine, place, kind, key, version)

    async def _shelf(self, scope: Scope, *, make: bool = False) -> shelf.Shelf:
        check_scope(scope)
        sid = sid_of(scope.session) if scope.session else 0
        return shelf.shelf_of(await self._number(make=make), sid, scope.owner)

    # --- integrity ---

    async def verify(self, *, progress: Progress | None = None) -> Verification:
        tenant = await self._number()
        return await self._engine.transact(lambda link: Inspection(link, tenant, progress).run())

    async def finder(self) -> Searchable:
        return PostgresFinder(self._engine, self._number)

    async def clean(
        self,
        *,
        sessions: Sequence[SessionKey] = (),
        rewrite: bool = False,
        probes: Sequence[bytes] = (),  # noqa: ARG002 - a client sees none of the server's files
    ) -> Cleaning:
        tenant = await self._number()
        infos = [await self._described(session) for session in sessions]
        owners = {info.owner for info in infos if info is not None}
        touched = Touched(tenant, [sid_of(session) for session in sessions], sorted(owners))
        return await clean(self._server, touched, rewrite=rewrite)

    async def _described(self, session: SessionKey) -> SessionInfo | None:
        try:
            return await self.describe(session)
        except SessionGone:
            return None
