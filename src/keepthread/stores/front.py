"""The public methods of all stores: check arguments, encode messages, bind the tenant.

So every store accepts, rejects and returns the same. `backend.Backend` does the rest.
"""

import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import replace
from typing import Final, Generic, Self, TypeVar

from keepthread.errors import InvalidInput, NotFound, SessionExists, SessionGone, Stale
from keepthread.protocols import (
    MadeRecords,
    Progress,
    Relatives,
    Searchable,
    Store,
    TokenCounter,
    Updates,
)
from keepthread.stores.backend import Append, Backend, Feed, Gather, Put, Tail
from keepthread.stores.changes import change_of_record
from keepthread.stores.codec import new_id
from keepthread.stores.cursors import decode_cursor, encode_cursor, feed_of
from keepthread.stores.links import names_in_record, nodes_above
from keepthread.stores.listing import SessionListing, idle_page
from keepthread.stores.records import (
    CHANGEABLE,
    Update,
    check_filter,
    check_keys,
    check_scope,
    check_session,
    condition,
    encode_spans,
    encode_value,
    touches,
)
from keepthread.stores.rows import AwaitedTurn, check_positions, draft, draft_copy
from keepthread.stores.tables import CheckedTables
from keepthread.stores.validation import MAX_COUNT, check_count, check_id, check_time
from keepthread.types import (
    JSON,
    Change,
    Cleaning,
    Durability,
    Gathered,
    Message,
    Page,
    Record,
    Scope,
    SessionInfo,
    SessionKey,
    Span,
    Verification,
)

B = TypeVar("B", bound=Backend)


class Front(Generic[B]):
    """A `Store` over a backend, for one tenant."""

    def __init__(
        self,
        backend: B,
        *,
        tenant: str = "default",
        clock: Callable[[], float] = time.time,
        ids: Callable[[], str] = new_id,
        closes: bool = True,
    ) -> None:
        """Serve one tenant; `closes` is whether closing this closes the backend."""
        self.backend = backend
        self._tenant = check_id(tenant, "tenant")
        self._clock = clock
        self._ids = ids
        self._closes = closes

    @property
    def durability(self) -> Durability:
        return self.backend.durability

    @property
    def max_blob(self) -> int:
        return self.backend.max_blob

    def tenant(self, name: str) -> Self:
        twin = copy(self)
        twin._tenant = check_id(name, "tenant")  # noqa: SLF001
        twin._closes = False  # noqa: SLF001
        return twin

    async def close(self) -> None:
        if self._closes:
            await self.backend.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # --- sessions ---

    async def put_session(
        self, session: SessionInfo, *, seen: SessionInfo | None = None, whole: bool = False
    ) -> SessionInfo:
        now = self._clock()
        session = check_session(session, now=now, ids=self._ids)
        if not session.key:
            return await self.backend.create_session(self._tenant, session)
        update = Update(session, seen, whole, now)
        return await self.backend.update_session(self._tenant, update)

    async def get_session(self, id: str, owner: str = "default") -> SessionInfo | None:
        check_id(owner, "owner")
        found = await self.backend.get_session(self._tenant, owner, check_id(id, "a session id"))
        # Of a damaged session only key and id are known; it was found under this owner.
        return replace(found, owner=owner) if found and found.state == "damaged" else found

    async def describe(self, session: SessionKey) -> SessionInfo:
        return await self.backend.describe(self._tenant, session)

    async def list_sessions(
        self,
        *,
        owner: str | None = None,
        limit: int = 10,
        cursor: str | None = None,
        tag: str | None = None,
        title: str | None = None,
    ) -> Page[SessionInfo]:
        check_filter(owner, "owner")
        listing = SessionListing(self.backend, self._tenant, owner, tag, title)
        return await listing.page(check_count(limit, "limit"), cursor)

    async def scan_sessions(
        self, *, owner: str | None = None, after: SessionKey | None = None, limit: int = 100
    ) -> list[SessionInfo]:
        check_filter(owner, "owner")
        most = check_count(limit, "limit")
        return await self.backend.scan_sessions(self._tenant, owner, after, most)

    async def idle_sessions(
        self, before: float, *, limit: int = 100, cursor: str | None = None
    ) -> Page[SessionInfo]:
        since = check_time(before, "before")
        return await idle_page(
            self.backend, self._tenant, since, check_count(limit, "limit"), cursor
        )

    async def relatives(self, session: SessionKey) -> Relatives:
        return await self.backend.relatives(self._tenant, session)

    async def delete_session(
        self, session: SessionKey, *, unready: bool = False, idle_since: float | None = None
    ) -> None:
        required = condition(unready=unready, idle_since=idle_since)
        await self.backend.delete_session(self._tenant, session, required)

    # --- the log ---

    async def append(
        self,
        session: SessionKey,
        messages: Sequence[Message],
        *,
        expect: int | None = None,
        turn: int | None = None,
    ) -> list[Message]:
        check_positions(expect=expect, turn=None if isinstance(turn, AwaitedTurn) else turn)
        drafts = [draft(m, clock=self._clock, ids=self._ids) for m in messages]
        new = Append(drafts, expect, turn, self._clock())
        return await self.backend.append(self._tenant, session, new)

    async def load(self, session: SessionKey, messages: Sequence[Message]) -> int:
        return await self.backend.load(self._tenant, session, [draft_copy(m) for m in messages])

    async def tail(
        self,
        session: SessionKey,
        *,
        tokens: int | None = None,
        limit: int | None = None,
        before: int | None = None,
        after: int = 0,
        min_messages: int = 0,
    ) -> list[Message]:
        check_positions(
            tokens=tokens, limit=limit, before=before, after=after, min_messages=min_messages
        )
        wanted = Tail(tokens, limit, MAX_COUNT if before is None else before, after, min_messages)
        return await self.backend.tail(self._tenant, session, wanted)

    async def gather(
        self,
        session: SessionKey,
        *,
        tokens: int,
        min_messages: int = 0,
        kinds: Sequence[str] = (),
        follow: Sequence[str] = (),
        follow_limit: int | None = None,
    ) -> Gathered:
        check_positions(tokens=tokens, min_messages=min_messages, follow_limit=follow_limit)
        for kind in (*kinds, *follow):
            check_id(kind, "kind")
        limit = MAX_COUNT if follow_limit is None else follow_limit
        followed = tuple(dict.fromkeys(follow))
        others = tuple(kind for kind in dict.fromkeys(kinds) if kind not in followed)
        wanted = Gather(tokens, min_messages, others, followed, limit)
        return await self.backend.gather(self._tenant, session, wanted)

    async def read(
        self, session: SessionKey, *, after: int = 0, until: int | None = None, limit: int = 100
    ) -> list[Message]:
        check_positions(after=after, until=until, limit=limit)
        end = MAX_COUNT if until is None else until
        return await self.backend.read(self._tenant, session, after, end, limit)

    async def find(
        self, session: SessionKey, *, ids: Iterable[str] = (), seqs: Iterable[int] = ()
    ) -> list[Message]:
        names = [check_id(id, "a message id") for id in ids]
        places = [check_count(seq, "seq") for seq in seqs]
        return await self.backend.find(self._tenant, session, names, places)

    async def erase(self, session: SessionKey, seqs: Iterable[int]) -> int:
        places = sorted({check_count(seq, "seq") for seq in seqs})
        return await self.backend.erase(self._tenant, session, places)

    async def recount(
        self, session: SessionKey, counter: TokenCounter, *, progress: Progress | None = None
    ) -> int:
        return await self.backend.recount(self._tenant, session, counter, progress)

    # --- records ---

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
        check_scope(scope)
        data, spans = encode_value(kind, key, value), encode_spans(made_of)
        names = names_in_record(kind, value) if scope.session else ()
        record = Put(kind, key, data, spans, made_of, version, epochs or {}, names)
        return await self.backend.put(self._tenant, scope, record)

    async def get(self, scope: Scope, kind: str, key: str) -> Record | None:
        check_id(kind, "kind")
        check_id(key, "key")
        return await self.backend.get(self._tenant, check_scope(scope), kind, key)

    async def scan(
        self,
        scope: Scope,
        kind: str | None = None,
        *,
        after: str | None = None,
        before: str | None = None,
        limit: int | None = None,
        without: str | None = None,
    ) -> list[Record]:
        keys = check_keys(kind, after, before, limit, without)
        return await self.backend.scan(self._tenant, check_scope(scope), kind, keys)

    async def updates(self, scope: Scope, kind: str, *, since: int = 0) -> Updates:
        check_id(kind, "kind")
        if check_scope(scope).session or change_of_record(scope, kind) is None:
            raise InvalidInput(f"changes of {kind!r} records are not numbered; use `scan` instead")
        return await self.backend.updates(self._tenant, scope, kind, check_count(since, "since"))

    async def made_of(self, session: SessionKey, seqs: Iterable[int]) -> MadeRecords:
        places = sorted({check_count(seq, "seq") for seq in seqs})
        nodes = nodes_above(places)
        found = await self.backend.made_of(self._tenant, session, nodes)
        made = [r for r in found.records if touches(r.made_of, session, places)]
        made.sort(key=lambda r: (r.scope, r.kind, r.key))
        return MadeRecords(made, sorted(found.damaged))

    async def owners(self) -> list[str]:
        return await self.backend.owners(self._tenant)

    async def blob_owners(self) -> list[str]:
        return await self.backend.blob_owners(self._tenant)

    async def drop(self, scope: Scope, kind: str, key: str, *, version: int | None = None) -> bool:
        check_id(kind, "kind")
        check_id(key, "key")
        return await self.backend.drop(self._tenant, check_scope(scope), kind, key, version)

    # --- changes ---

    async def changes(
        self, *, owner: str | None = None, after: str | None = None, limit: int = 100
    ) -> Page[Change]:
        check_filter(owner, "owner")
        of = feed_of(self._tenant, owner)
        position = None if after is None else decode_cursor(of, after)
        wanted = Feed(owner, position, check_count(limit, "limit"))
        found = await self.backend.changes(self._tenant, wanted)
        return Page(found.changes, cursor=encode_cursor(of, found.position))

    # --- integrity ---

    async def verify(self, *, progress: Progress | None = None) -> Verification:
        return await self.backend.verify(self._tenant, progress)

    async def clean(
        self,
        *,
        sessions: Sequence[SessionKey] = (),
        rewrite: bool = False,
        probes: Sequence[bytes] = (),
    ) -> Cleaning:
        return await self.backend.clean(self._tenant, sessions, rewrite, probes)

    async def finder(self) -> Searchable | None:
        return await self.backend.finder(self._tenant)

    # --- tenants ---

    async def tenants(self, *, after: str | None = None, limit: int = 100) -> list[str]:
        first = "" if after is None else check_id(after, "after")
        return await self.backend.tenants(first, check_count(limit, "limit"))

    async def drop_tenant(self, name: str, *, rewrite: bool = False) -> Cleaning:
        if check_id(name, "tenant") == self._tenant:
            raise InvalidInput(
                f"tenant {name!r} cannot be deleted through its own memory; open the memory as "
                "another tenant"
            )
        cleaning = await self.backend.drop_tenant(name, rewrite)
        if cleaning is None:
            raise NotFound(f"there is no tenant {name!r}")
        return cleaning

    # --- the tables of a server ---

    def server_tables(self) -> CheckedTables:
        return CheckedTables(self.backend.tables())


async def begin_again(store: Store, forgotten: SessionInfo, new: SessionInfo) -> SessionInfo:
    """Create a session under the id of one that was forgotten as a whole.

    Its tombstones stay, so that a late delivery of a forgotten message is still recognized. Those
    of another owner, or of a fork or a delegate, are removed.
    """
    if (forgotten.owner, forgotten.kind, new.kind) != (new.owner, "main", "main"):
        with suppress(SessionGone, Stale):  # another caller was faster
            await store.delete_session(forgotten.key, unready=True)
        return await store.put_session(new)
    again = replace(forgotten, **{name: getattr(new, name) for name in CHANGEABLE})
    try:
        return await store.put_session(again, seen=forgotten)
    except (SessionGone, Stale):  # another caller was faster
        raise SessionExists(f"session {new.id!r} already exists") from None


_PAGE: Final = 500


async def every_session(store: Store, owner: str | None = None) -> AsyncIterator[SessionInfo]:
    """Yield all sessions of an owner or of the tenant, ready or not, delegates too."""
    last: SessionKey | None = None
    while page := await store.scan_sessions(owner=owner, after=last, limit=_PAGE):
        for session in page:
            yield session
        last = page[-1].key
