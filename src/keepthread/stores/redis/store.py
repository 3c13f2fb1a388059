"""The store on Redis: sessions shared by many processes, with or without a time to live."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final, Self

from keepthread.errors import InvalidInput, SessionExists, Unavailable
from keepthread.protocols import Progress, Searchable, TokenCounter
from keepthread.stores.backend import Append, Gather, Listing, Position, Put, RecentActivity, Tail
from keepthread.stores.codec import new_id
from keepthread.stores.front import Front
from keepthread.stores.records import Condition, Keys, Update, encode_details
from keepthread.stores.redis import log, maintenance, sessions
from keepthread.stores.redis.engine import DEFAULT_TIMEOUTS, RedisLink, Timeouts, make_client
from keepthread.stores.redis.keys import Place, scope_place, session_place
from keepthread.stores.redis.records import ScopedRecords
from keepthread.stores.redis.server import require
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


class RedisBackend:
    """One server or cluster, for every tenant on it."""

    max_blob: int = MAX_BLOB // 4  # all of it is in the server's memory

    def __init__(self, link: RedisLink, durability: Durability, ttl: int) -> None:
        """Work on a link; sessions made here live for `ttl` milliseconds, 0 for ever."""
        self.link = link
        self.durability: Durability = durability
        self._ttl = ttl
        self._activity = RecentActivity()

    async def close(self) -> None:
        await self.link.close()

    # --- sessions ---

    async def create_session(self, tenant: str, session: SessionInfo) -> SessionInfo:
        session = replace(session, epoch=0, state="live")
        encode_details(session)  # refuse it before anybody hears of it
        key = await sessions.register(self.link, tenant, session, self._ttl)
        place = session_place(tenant, key)
        if await sessions.create(self.link, place, tenant, session, self._ttl):
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
            await sessions.tell(self.link, tenant, replace(known, ready=True, updated_at=at))
        changed = await sessions.update(self.link, place, tenant, update)
        if not changed.ready:
            await sessions.tell(self.link, tenant, changed)
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
        self, tenant: str, after: SessionKey | None, limit: int
    ) -> list[SessionInfo]:
        if after is not None:
            session_place(tenant, after)  # raises if it is not a key
        return await sessions.scan(self.link, tenant, after, limit)

    async def delete_session(self, tenant: str, session: SessionKey, required: Condition) -> None:
        place = session_place(tenant, session)
        known = await sessions.describe(self.link, place)
        await sessions.delete(self.link, place, required)
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
        answers, record = await log.append(self.link, place, new, with_record=due)
        if record:
            await self._touch(tenant, place, record, new.now)
        return answers

    async def _touch(self, tenant: str, place: Place, record: bytes, now: float) -> None:
        described = sessions.unpack_record(place, record)
        if described is None:
            return  # `describe` reports the damage
        info = replace(described.info, key=place.key, updated_at=now)
        with suppress(Unavailable):  # the messages are stored; the next append updates the index
            await sessions.tell(self.link, tenant, info)
            self._activity.note(place.key, now)

    async def load(
        self, tenant: str, session: SessionKey, drafts: Sequence[PreparedMessage]
    ) -> int:
        return await log.load(self.link, session_place(tenant, session), drafts)

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
        return await log.erase(self.link, session_place(tenant, session), tenant, seqs)

    async def recount(
        self, tenant: str, session: SessionKey, counter: TokenCounter, progress: Progress | None
    ) -> int:
        place = session_place(tenant, session)
        return await maintenance.recount(self.link, place, counter, progress)

    # --- records ---

    async def put(self, tenant: str, scope: Scope, record: Put) -> int:
        records = self._records(tenant, scope)
        if scope.owner:
            await sessions.announce_owner(self.link, tenant, scope.owner)
        return await records.put(record)

    async def get(self, tenant: str, scope: Scope, kind: str, key: str) -> Record | None:
        return await self._records(tenant, scope).get(kind, key)

    async def scan(self, tenant: str, scope: Scope, kind: str | None, keys: Keys) -> list[Record]:
        return await self._records(tenant, scope).scan(kind, keys)

    async def owners(self, tenant: str) -> list[str]:
        return await sessions.owners(self.link, tenant)

    async def drop(
        self, tenant: str, scope: Scope, kind: str, key: str, version: int | None
    ) -> bool:
        return await self._records(tenant, scope).drop(kind, key, version)

    def _records(self, tenant: str, scope: Scope) -> ScopedRecords:
        return ScopedRecords(self.link, tenant, scope_place(tenant, scope), scope)

    # --- integrity ---

    async def verify(self, tenant: str, progress: Progress | None) -> Verification:
        return await RedisInspection(self.link, tenant, progress).run()

    async def clean(self, *_: object) -> Cleaning:
        """Make the server rewrite its whole log; a client cannot read the server's files."""
        return await maintenance.clean(self.link)

    async def finder(self, tenant: str) -> Searchable | None:  # noqa: ARG002 - no tenant can
        return None


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

        `durability` is the least that is accepted of what the server's settings give; None takes
        what there is. `replicas` is how many must have a write before it is acknowledged. Sessions
        made here live for `ttl` seconds from their latest activity, or for ever.
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
        raise InvalidInput(f"ttl must be a number of seconds above 0, not {ttl!r}")
    return max(1, round(ttl * 1000))
