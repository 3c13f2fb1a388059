"""The store on Redis: sessions shared by many processes, with or without a time to live."""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final, Self

from keepthread.errors import InvalidInput, SessionExists, Unavailable
from keepthread.protocols import (
    MadeRecords,
    Progress,
    Relatives,
    Searchable,
    TokenCounter,
    Updates,
)
from keepthread.stores.backend import (
    Append,
    Feed,
    FeedPage,
    Gather,
    Listing,
    Position,
    Put,
    RecentActivity,
    Tail,
)
from keepthread.stores.changes import change_of_record
from keepthread.stores.codec import new_id
from keepthread.stores.front import Front
from keepthread.stores.kinds import WHY
from keepthread.stores.links import names_in_session
from keepthread.stores.records import Condition, Keys, Update, encode_details
from keepthread.stores.redis import changes, log, maintenance, sessions, tables, tenants
from keepthread.stores.redis.changes import PlaceWriter
from keepthread.stores.redis.engine import DEFAULT_TIMEOUTS, RedisLink, Timeouts, make_client
from keepthread.stores.redis.keys import Place, scope_place, session_place
from keepthread.stores.redis.records import ScopedRecords, made_of, relatives
from keepthread.stores.redis.server import require
from keepthread.stores.redis.tables import RedisTables
from keepthread.stores.redis.verify import RedisInspection
from keepthread.stores.rows import PreparedMessage
from keepthread.stores.validation import MAX_BLOB, MAX_COUNT, check_id
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

_CONNECTIONS: Final = 16
_MOST_KNOWN: Final = 10_000


class RedisBackend:
    """One server or cluster, for every tenant on it."""

    max_blob: int = MAX_BLOB // 4  # all of it is in the server's memory

    def __init__(self, link: RedisLink, durability: Durability, ttl: int) -> None:
        """Work on a link; sessions made here live for `ttl` milliseconds, 0 for ever."""
        self.link = link
        self.durability: Durability = durability
        self._ttl = ttl
        self._activity = RecentActivity()
        self._announcer = changes.Announcer(link)
        self._tables = RedisTables(link)
        self._known: dict[SessionKey, tuple[str, str]] = {}

    async def close(self) -> None:
        await self.link.close()

    # --- sessions ---

    async def create_session(self, tenant: str, session: SessionInfo) -> SessionInfo:
        session = replace(session, epoch=0, state="live")
        encode_details(session)  # refuse it before it is announced
        key = await sessions.register(self.link, tenant, session, self._ttl)
        place = session_place(tenant, key)
        writer = PlaceWriter(self._announcer, tenant, place, session.owner, session.id)
        await writer.name(names_in_session(session))
        # After the session is in the index: a tenant that is being deleted is listed again then.
        is_new, _ = await asyncio.gather(
            sessions.create(writer, tenant, session, self._ttl),
            tenants.enroll(self.link, tenant),
        )
        if is_new:
            if self._ttl:
                await self._sweep(tenant)
            return await sessions.describe(self.link, place)
        await self._withdraw(tenant, key, session.owner)
        raise SessionExists(f"session {session.id!r} already exists")

    async def update_session(self, tenant: str, update: Update) -> SessionInfo:
        place = session_place(tenant, update.key)
        known = await sessions.describe(self.link, place)
        if known.state == "live" and update.of(known).ready:
            at = max(known.updated_at, update.now) if known.ready else known.updated_at
            await sessions.update_index(
                self.link, tenant, replace(known, ready=True, updated_at=at)
            )
        writer = PlaceWriter(self._announcer, tenant, place, known.owner, known.id)
        changed = await sessions.update(writer, tenant, update)
        if not changed.ready:
            await sessions.update_index(self.link, tenant, changed)
        return changed

    async def get_session(self, tenant: str, owner: str, id: str) -> SessionInfo | None:
        return await sessions.by_id(self.link, tenant, owner, id)

    async def describe(self, tenant: str, session: SessionKey) -> SessionInfo:
        return await sessions.describe(self.link, session_place(tenant, session))

    async def list_sessions(
        self, tenant: str, owner: str | None, wanted: Listing
    ) -> list[tuple[Position, SessionInfo]]:
        return await sessions.listed(self.link, tenant, owner, wanted)

    async def scan_sessions(
        self, tenant: str, owner: str | None, after: SessionKey | None, limit: int
    ) -> list[SessionInfo]:
        if after is not None:
            session_place(tenant, after)  # raises if it is not a key
        return await sessions.scan(self.link, tenant, owner, after, limit)

    async def relatives(self, tenant: str, session: SessionKey) -> Relatives:
        return await relatives(self.link, tenant, session_place(tenant, session))

    async def delete_session(self, tenant: str, session: SessionKey, required: Condition) -> None:
        place = session_place(tenant, session)
        known = await sessions.describe(self.link, place)
        await sessions.delete(await self._writer(tenant, session), required)
        await self._withdraw(tenant, session, known.owner)

    async def _sweep(self, tenant: str) -> None:
        with suppress(Unavailable):  # the session exists; the next creation tries again
            await sessions.sweep(self.link, tenant, most=sessions.SWEPT_BY_A_NEW_SESSION)

    async def _withdraw(self, tenant: str, session: SessionKey, owner: str) -> None:
        with suppress(Unavailable):  # it is deleted; its entry is removed when it is read
            await sessions.withdraw(self.link, tenant, session, owner)

    # --- the log ---

    async def append(self, tenant: str, session: SessionKey, new: Append) -> list[Message]:
        place = session_place(tenant, session)
        due = self._activity.is_due(session, new.now)
        writer = await self._writer(tenant, session)
        answers, record = await log.append(writer, new, with_record=due)
        if record:
            await self._touch(tenant, place, record, new.now)
        return answers

    async def _touch(self, tenant: str, place: Place, record: bytes, now: float) -> None:
        described = sessions.unpack_record(place, record)
        if described is None:
            return  # `describe` reports the damage
        info = replace(described.info, key=place.key, updated_at=now)
        with suppress(Unavailable):  # the messages are stored; the next append updates the index
            await sessions.update_index(self.link, tenant, info)
            self._activity.note(place.key, now)

    async def load(
        self, tenant: str, session: SessionKey, drafts: Sequence[PreparedMessage]
    ) -> int:
        return await log.load(await self._writer(tenant, session), drafts)

    async def tail(self, tenant: str, session: SessionKey, wanted: Tail) -> list[Message]:
        return await log.tail(self.link, session_place(tenant, session), wanted)

    async def gather(self, tenant: str, session: SessionKey, wanted: Gather) -> Gathered:
        return await log.gather(self._records(tenant, Scope(session=session)), wanted)

    async def read(
        self, tenant: str, session: SessionKey, after: int, until: int, limit: int
    ) -> list[Message]:
        place = session_place(tenant, session)
        return await log.read(self.link, place, after, min(until, after + limit))

    async def find(
        self, tenant: str, session: SessionKey, ids: Sequence[str], seqs: Sequence[int]
    ) -> list[Message]:
        return await log.find(self.link, session_place(tenant, session), ids, seqs)

    async def erase(self, tenant: str, session: SessionKey, seqs: Sequence[int]) -> int:
        return await log.erase(await self._writer(tenant, session), tenant, seqs)

    async def recount(
        self, tenant: str, session: SessionKey, counter: TokenCounter, progress: Progress | None
    ) -> int:
        place = session_place(tenant, session)
        return await maintenance.recount(self.link, place, counter, progress)

    # --- records ---

    async def put(self, tenant: str, scope: Scope, record: Put) -> int:
        records = self._records(tenant, scope)
        if not scope.session:
            announced = [tenants.enroll(self.link, tenant)]
            if scope.owner:
                announced.append(
                    tenants.announce_owner(self.link, tenant, scope.owner, record.kind)
                )
            await asyncio.gather(*announced)
        writer, change = await self._record_writer(tenant, scope, record.kind)
        return await records.put(record, writer, change)

    async def get(self, tenant: str, scope: Scope, kind: str, key: str) -> Record | None:
        return await self._records(tenant, scope).get(kind, key)

    async def scan(self, tenant: str, scope: Scope, kind: str | None, keys: Keys) -> list[Record]:
        return await self._records(tenant, scope).scan(kind, keys)

    async def updates(self, tenant: str, scope: Scope, kind: str, since: int) -> Updates:
        return await self._records(tenant, scope).updates(kind, since)

    async def made_of(
        self, tenant: str, session: SessionKey, nodes: Sequence[int] | None
    ) -> MadeRecords:
        return await made_of(self.link, tenant, session, nodes)

    async def owners(self, tenant: str) -> list[str]:
        return await tenants.owners(self.link, tenant)

    async def blob_owners(self, tenant: str) -> list[str]:
        return await tenants.blob_owners(self.link, tenant)

    async def drop(
        self, tenant: str, scope: Scope, kind: str, key: str, version: int | None
    ) -> bool:
        writer, change = await self._record_writer(tenant, scope, kind)
        return await self._records(tenant, scope).drop(kind, key, version, writer, change)

    def _records(self, tenant: str, scope: Scope) -> ScopedRecords:
        return ScopedRecords(self.link, tenant, scope_place(tenant, scope), scope)

    async def _record_writer(
        self, tenant: str, scope: Scope, kind: str
    ) -> tuple[PlaceWriter, int | None]:
        """Return the writer of a scope, and the change that writing a record there is, if any."""
        change = change_of_record(scope, kind)
        if scope.session and (change is not None or kind == WHY):  # both name the owner
            return await self._writer(tenant, scope.session), change
        place = scope_place(tenant, scope)
        return PlaceWriter(self._announcer, tenant, place, scope.owner), change

    # --- changes ---

    async def changes(self, tenant: str, wanted: Feed) -> FeedPage:
        return await changes.read(self.link, tenant, wanted)

    async def _writer(self, tenant: str, session: SessionKey) -> PlaceWriter:
        """Return the writer of a session; its owner and id never change."""
        place = session_place(tenant, session)
        known = self._known.get(session)
        if known is None:
            known = await sessions.owner_and_id(self.link, place)
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            if known[0]:
                self._known[session] = known
        return PlaceWriter(self._announcer, tenant, place, *known)

    # --- integrity ---

    async def verify(self, tenant: str, progress: Progress | None) -> Verification:
        return await RedisInspection(self.link, tenant, progress).run()

    async def clean(self, tenant: str, *_: object) -> Cleaning:
        """Make the server rewrite its whole log; a client cannot read the server's files."""
        await tables.drop_answers(self.link, tenant)
        return await maintenance.clean(self.link)

    async def finder(self, tenant: str) -> Searchable | None:  # noqa: ARG002 - no tenant can
        return None

    # --- tenants ---

    async def tenants(self, after: str, limit: int) -> list[str]:
        return await tenants.names(self.link, after, limit)

    async def drop_tenant(self, tenant: str, rewrite: bool) -> Cleaning | None:  # noqa: ARG002 - as `clean`
        had_keys = await tables.drop(self.link, tenant)
        existed = await tenants.drop(self.link, tenant) or had_keys
        return await self.clean(tenant) if existed else None

    def tables(self) -> RedisTables:
        return self._tables


class RedisStore(Front[RedisBackend]):
    """The `Store` on a server or a cluster; open it with `await RedisStore.open(url)`."""

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        tenant: str = "default",
        durability: Durability | None = None,
        replicas: int = 0,
        ttl: float | None = None,
        clock: Callable[[], float] = time.time,
        ids: Callable[[], str] = new_id,
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
        connections: int = _CONNECTIONS,
    ) -> Self:
        """Connect to a server (`redis://`, `rediss://`) or a cluster (`redis+cluster://`).

        `durability` is the minimum that the server's settings must provide; None accepts
        any. `replicas` is how many must have a write before it is acknowledged. Sessions
        made here live for `ttl` seconds from their latest activity, or forever.
        """
        check_id(tenant, "tenant")
        cache_turns = _milliseconds(ttl)
        make = partial(
            make_client,
            url,
            connect=timeouts.connect,
            answer=timeouts.answer,
            connections=connections,
        )
        link = RedisLink(make, timeouts=timeouts, connections=connections, replicas=replicas)
        try:
            backend = RedisBackend(link, await require(link, durability), cache_turns)
        except BaseException:
            await link.close()
            raise
        return cls(backend, tenant=tenant, clock=clock, ids=ids)


def _milliseconds(ttl: float | None) -> int:
    if ttl is None:
        return 0
    if not 0 < ttl < MAX_COUNT // 1000:
        raise InvalidInput(f"ttl must be more than 0 seconds, not {ttl!r}")
    return max(1, round(ttl * 1000))
