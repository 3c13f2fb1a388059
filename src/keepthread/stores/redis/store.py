"""The store on Redis: for sessions that many processes share, for a while or for long."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final, Self

from keepthread.errors import InvalidInput, SessionExists, Unavailable
from keepthread.protocols import Progress, Searchable, TokenCounter
from keepthread.stores.ids import new_id
from keepthread.stores.records import (
    check_filter,
    check_keys,
    check_scope,
    check_session,
    condition,
    encode_details,
    encode_spans,
    encode_value,
    with_changes,
)
from keepthread.stores.redis import log as gathering
from keepthread.stores.redis import log as reading
from keepthread.stores.redis import sessions
from keepthread.stores.redis import sessions as listing
from keepthread.stores.redis.engine import DEFAULT_TIMEOUTS, Link, Timeouts, make_client
from keepthread.stores.redis.keys import Place, scope_place, session_place
from keepthread.stores.redis.log import append, erase, load
from keepthread.stores.redis.maintenance import clean, recount
from keepthread.stores.redis.records import Shelf
from keepthread.stores.redis.server import require
from keepthread.stores.redis.sessions import unpack_record
from keepthread.stores.redis.verify import Inspection
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

_MOST_TOUCHED: Final = 10_000
_CONNECTIONS: Final = 16


class RedisStore:
    """The `Store` on a server or a cluster; open it with `await RedisStore.open(url)`."""

    def __init__(
        self,
        link: Link,
        *,
        tenant: str,
        durability: Durability,
        clock: Callable[[], float],
        ids: Callable[[], str],
        ttl: int,
        touched: dict[SessionKey, float],
        owns_link: bool,
    ) -> None:
        """Stand behind one tenant's wall; callers use `open` and `tenant`."""
        self.durability: Durability = durability
        self._link = link
        self._tenant = check_id(tenant, "tenant")
        self._clock = clock
        self._ids = ids
        self._ttl = ttl
        self._touched = touched
        self._owns_link = owns_link

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
        make = partial(
            make_client,
            url,
            connect=timeouts.connect,
            answer=timeouts.answer,
            connections=connections,
        )
        link = Link(make, timeouts=timeouts, connections=connections, replicas=replicas)
        try:
            return cls(
                link,
                tenant=tenant,
                durability=await require(link, durability),
                clock=clock,
                ids=ids,
                ttl=_milliseconds(ttl),
                touched={},
                owns_link=True,
            )
        except BaseException:
            await link.close()
            raise

    def tenant(self, name: str) -> Self:
        return type(self)(
            self._link,
            tenant=name,
            durability=self.durability,
            clock=self._clock,
            ids=self._ids,
            ttl=self._ttl,
            touched=self._touched,
            owns_link=False,
        )

    async def close(self) -> None:
        if self._owns_link:
            await self._link.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # --- sessions ---

    async def put_session(
        self, session: SessionInfo, *, seen: SessionInfo | None = None
    ) -> SessionInfo:
        now = self._clock()
        session = check_session(session, now=now, ids=self._ids)
        if not session.key:
            return await self._create(replace(session, epoch=0, state="live"))
        place = self._place(session.key)
        known = await sessions.describe(self._link, place)
        if known.state == "live" and with_changes(known, session, seen).ready:
            at = max(known.updated_at, now) if known.ready else known.updated_at
            await self._tell(replace(known, ready=True, updated_at=at))
        changed = await sessions.update(self._link, place, self._tenant, session, seen, now)
        if not changed.ready:
            await self._tell(changed)
        return changed

    async def _tell(self, session: SessionInfo) -> None:
        await listing.tell(self._link, self._tenant, session)

    async def _create(self, session: SessionInfo) -> SessionInfo:
        encode_details(session)  # refuse it before anybody hears of it
        key = await listing.register(self._link, self._tenant, session, self._ttl)
        place = self._place(key)
        if await sessions.create(self._link, place, self._tenant, session, self._ttl):
            if self._ttl:
                await self._sweep()
            return await sessions.describe(self._link, place)
        await self._withdraw(key, session.owner)
        raise SessionExists(f"session {session.id!r} is there already")

    async def get_session(self, id: str) -> SessionInfo | None:
        return await sessions.by_id(self._link, self._tenant, check_id(id, "a session id"))

    async def describe(self, session: SessionKey) -> SessionInfo:
        return await sessions.describe(self._link, self._place(session))

    async def list_sessions(
        self, *, owner: str | None = None, limit: int = 10
    ) -> list[SessionInfo]:
        check_count(limit, "limit")
        check_filter(owner, "owner")
        return await listing.latest(self._link, self._tenant, owner, limit)

    async def scan_sessions(
        self, *, after: SessionKey | None = None, limit: int = 100
    ) -> list[SessionInfo]:
        check_count(limit, "limit")
        if after is not None:
            self._place(after)
        return await listing.scan(self._link, self._tenant, after, limit)

    async def delete_session(
        self, session: SessionKey, *, unready: bool = False, idle_since: float | None = None
    ) -> None:
        required = condition(unready=unready, idle_since=idle_since)
        place = self._place(session)
        known = await sessions.describe(self._link, place)
        await sessions.delete(self._link, place, required)
        await self._withdraw(session, known.owner)

    async def _sweep(self) -> None:
        with suppress(Unavailable):  # the session is made; whoever makes the next one tries again
            most = listing.SWEPT_BY_A_NEW_SESSION
            await listing.sweep(self._link, self._tenant, most=most)

    async def _withdraw(self, session: SessionKey, owner: str) -> None:
        with suppress(Unavailable):  # it is gone, and whoever meets its entry clears it away
            await listing.withdraw(self._link, self._tenant, session, owner)

    # --- the log ---

    async def append(
        self,
        session: SessionKey,
        messages: Sequence[Message],
        *,
        expect: int | None = None,
        exchange: int | None = None,
    ) -> list[Message]:
        place = self._place(session)
        check_positions(expect=expect)
        drafts = [draft(m, clock=self._clock, ids=self._ids) for m in messages]
        now = self._clock()
        due = self._is_due(session, now)
        answers, record = await append(
            self._link, place, drafts, expect, exchange, now, with_record=due
        )
        if record:
            await self._touch(place, record, now)
        return answers

    def _is_due(self, session: SessionKey, now: float) -> bool:
        """Tell whether to note activity in the index, which is done once a second."""
        last = self._touched.get(session)
        return last is None or not 0 <= now - last < 1

    async def _touch(self, place: Place, record: bytes, now: float) -> None:
        described = unpack_record(place, record)
        if described is None:
            return  # whoever looks at the session is told
        info = replace(described.info, key=place.key, updated_at=now)
        try:
            await self._tell(info)
        except Unavailable:
            return  # the messages are stored; the list may lag, and the next ones tell it again
        if len(self._touched) >= _MOST_TOUCHED:
            self._touched.clear()
        self._touched[place.key] = now

    async def load(self, session: SessionKey, messages: Sequence[Message]) -> int:
        place = self._place(session)
        return await load(self._link, place, [draft_copy(m) for m in messages])

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
        place = self._place(session)
        check_positions(tokens=tokens, limit=limit, before=before, after=after, least=least)
        return await reading.tail(self._link, place, tokens, limit, before, after, least)

    async def gather(
        self,
        session: SessionKey,
        *,
        tokens: int,
        least: int = 0,
        kinds: Sequence[str] = (),
        follow: Sequence[str] = (),
    ) -> Gathered:
        shelf = self._shelf(Scope(session=session))
        check_positions(tokens=tokens, least=least)
        return await gathering.gather(shelf, gathering.Wish(tokens, least, kinds, follow))

    async def read(
        self, session: SessionKey, *, after: int = 0, upto: int | None = None, limit: int = 100
    ) -> list[Message]:
        place = self._place(session)
        check_positions(after=after, upto=upto, limit=limit)
        end = min(MAX_COUNT, after + limit)
        return await reading.read(self._link, place, after, end if upto is None else min(upto, end))

    async def find(
        self, session: SessionKey, *, ids: Iterable[str] = (), seqs: Iterable[int] = ()
    ) -> list[Message]:
        place = self._place(session)
        names = [check_id(id, "a message id") for id in ids]
        places = [check_count(seq, "seq") for seq in seqs]
        return await reading.find(self._link, place, names, places)

    async def erase(self, session: SessionKey, seqs: Iterable[int]) -> int:
        place = self._place(session)
        places = [check_count(seq, "seq") for seq in seqs]
        return await erase(self._link, place, self._tenant, places)

    async def recount(
        self, session: SessionKey, counter: TokenCounter, *, progress: Progress | None = None
    ) -> int:
        return await recount(self._link, self._place(session), counter, progress)

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
        shelf = self._shelf(scope)
        data, spans = encode_value(kind, key, value), encode_spans(made_of)
        if scope.owner:
            await listing.announce_owner(self._link, self._tenant, scope.owner)
        return await shelf.put(kind, key, data, spans, version, epochs or {})

    async def get(self, scope: Scope, kind: str, key: str) -> Record | None:
        shelf = self._shelf(scope)
        return await shelf.get(check_id(kind, "kind"), check_id(key, "key"))

    async def scan(
        self,
        scope: Scope,
        kind: str | None = None,
        *,
        after: str | None = None,
        before: str | None = None,
        limit: int | None = None,
    ) -> list[Record]:
        shelf = self._shelf(scope)
        return await shelf.scan(kind, check_keys(kind, after, before, limit))

    async def owners(self) -> list[str]:
        return await listing.owners(self._link, self._tenant)

    async def drop(self, scope: Scope, kind: str, key: str, *, version: int | None = None) -> bool:
        shelf = self._shelf(scope)
        return await shelf.drop(check_id(kind, "kind"), check_id(key, "key"), version)

    # --- integrity ---

    async def verify(self, *, progress: Progress | None = None) -> Verification:
        return await Inspection(self._link, self._tenant, progress).run()

    async def finder(self) -> Searchable | None:
        return None

    async def clean(
        self,
        *,
        sessions: Sequence[SessionKey] = (),  # noqa: ARG002 - a log is written anew as a whole
        rewrite: bool = False,  # noqa: ARG002 - and locks nobody out
        probes: Sequence[bytes] = (),  # noqa: ARG002 - a client sees none of the server's files
    ) -> Cleaning:
        return await clean(self._link)

    # --- inside ---

    def _place(self, session: SessionKey) -> Place:
        return session_place(self._tenant, session)

    def _shelf(self, scope: Scope) -> Shelf:
        place = scope_place(self._tenant, check_scope(scope))
        return Shelf(self._link, self._tenant, place, scope)


def _milliseconds(ttl: float | None) -> int:
    if ttl is None:
        return 0
    if not 0 < ttl < MAX_COUNT // 1000:
        raise InvalidInput(f"ttl must be a number of seconds above 0, not {ttl!r}")
    return max(1, round(ttl * 1000))
