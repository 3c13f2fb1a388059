"""A store in the memory of one process: for tests, experiments and data that may be lost.

It stores the same rows as every other backend, so it accepts, rejects and returns the same.
"""

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from keepthread.errors import (
    DurabilityTooLow,
    MessageNotFound,
    SessionExists,
    SessionGone,
    StoreClosed,
)
from keepthread.protocols import (
    MadeRecords,
    Progress,
    Relatives,
    Searchable,
    TokenCounter,
    Updates,
)
from keepthread.stores.backend import Append, Feed, FeedPage, Gather, Listing, Position, Put, Tail
from keepthread.stores.changes import ADDED, CREATED, DELETED, ERASED, UPDATED, change_of_record
from keepthread.stores.codec import new_id, unpack_id
from keepthread.stores.front import Front
from keepthread.stores.kinds import OF_REFERENCES
from keepthread.stores.links import names_in_messages, names_in_session, nodes_above
from keepthread.stores.ram_changes import RamChanges
from keepthread.stores.ram_log import (
    RamLinks,
    RamLog,
    RecordPlace,
    RecordsByName,
    StoredRecord,
    check_record,
    names_between,
    newest_of,
)
from keepthread.stores.ram_search import RamFinder, RamIndex, exclusive
from keepthread.stores.ram_tables import RamTables
from keepthread.stores.records import (
    ALL_KEYS,
    Condition,
    Keys,
    Update,
    check_epoch,
    decode_record,
    decode_spans,
    encode_details,
    is_listed,
    sid_of,
    touches,
)
from keepthread.stores.rows import (
    PreparedMessage,
    erased_row,
)
from keepthread.stores.validation import MAX_BLOB, MAX_COUNT
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


class RamBackend:
    """Sessions and records in dictionaries, shared by all tenants."""

    durability: Durability = "memory"
    max_blob: int = MAX_BLOB

    def __init__(self) -> None:
        """Start empty."""
        self.threads: dict[SessionKey, RamLog] = {}
        self.index = RamIndex()
        self.feed = RamChanges()
        self._tables = RamTables(self.index, self._check_open)
        self._links = RamLinks()
        self._keys: dict[tuple[str, str, str], SessionKey] = {}
        self._by_scope: dict[tuple[str, Scope], RecordsByName] = {}
        self._numbers = itertools.count(1)
        self._closed = False

    @property
    def lock(self) -> threading.RLock:
        """Return the lock that `exclusive` holds."""
        return self.index.lock

    async def close(self) -> None:
        self._closed = True

    # --- sessions ---

    @exclusive
    async def create_session(self, tenant: str, session: SessionInfo) -> SessionInfo:
        self._check_open()
        details = encode_details(session)
        if (tenant, session.owner, session.id) in self._keys:
            raise SessionExists(f"session {session.id!r} already exists")
        place = next(self._numbers)
        key = SessionKey(str(place))
        info = replace(session, key=key, epoch=0, state="live")
        self.threads[key] = thread = RamLog(place, tenant, info, details)
        self._keys[tenant, session.owner, session.id] = key
        self._links.name(thread, names_in_session(session))
        self._note(thread, CREATED)
        return thread.described()

    @exclusive
    async def update_session(self, tenant: str, update: Update) -> SessionInfo:
        thread = self._thread(tenant, update.key)
        changed = update.of(thread.described())
        thread.details = encode_details(changed)
        if not changed.ready:
            self.index.forget(update.key)
        at = max(thread.info.updated_at, update.now if thread.info.ready else 0)
        thread.info = replace(thread.info, ready=changed.ready, updated_at=at)
        self._note(thread, UPDATED)
        return thread.described()

    @exclusive
    async def get_session(self, tenant: str, owner: str, id: str) -> SessionInfo | None:
        self._check_open()
        key = self._keys.get((tenant, owner, id))
        return self.threads[key].described() if key else None

    @exclusive
    async def describe(self, tenant: str, session: SessionKey) -> SessionInfo:
        return self._thread(tenant, session).described()

    @exclusive
    async def list_sessions(
        self, tenant: str, owner: str | None, wanted: Listing
    ) -> list[tuple[Position, SessionInfo]]:
        before, after = (
            place and (place.at, sid_of(place.key)) for place in (wanted.before, wanted.after)
        )
        places = {
            (thread.info.updated_at, thread.place): thread
            for thread in self._threads(tenant)
            if is_listed(thread.info) != wanted.unlisted and owner in (None, thread.info.owner)
        }
        chosen = [
            place
            for place in sorted(places, reverse=after is None)
            if (before is None or place < before) and (after is None or place > after)
        ]
        return [
            (Position(at, SessionKey(str(sid))), places[at, sid].described())
            for at, sid in chosen[: wanted.limit]
        ]

    @exclusive
    async def scan_sessions(
        self, tenant: str, owner: str | None, after: SessionKey | None, limit: int
    ) -> list[SessionInfo]:
        last = 0 if after is None else sid_of(after)
        threads = [t for t in self._threads(tenant) if owner in (None, t.info.owner)]
        return [t.described() for t in threads if t.place > last][:limit]

    @exclusive
    async def relatives(self, tenant: str, session: SessionKey) -> Relatives:
        self._check_open()
        thread = self.threads.get(session)
        if thread is None or thread.tenant != tenant:
            return Relatives((), ())
        return Relatives._make(
            [self.threads[key].described() for key in keys]
            for keys in self._links.relatives(thread)
        )

    @exclusive
    async def delete_session(self, tenant: str, session: SessionKey, required: Condition) -> None:
        thread = self._thread(tenant, session)
        required.check(thread.info)
        del self.threads[session]
        del self._keys[tenant, thread.info.owner, thread.info.id]
        self.index.forget(session)
        scope = Scope(session=session)
        for place in self._by_scope.pop((tenant, scope), ()):
            self._links.drop(RecordPlace(tenant, scope, *place))
        self._links.end(thread)
        self._note(thread, DELETED)

    # --- the log ---

    @exclusive
    async def append(self, tenant: str, session: SessionKey, new: Append) -> list[Message]:
        thread = self._thread(tenant, session)
        rows, answers = thread.append(new)
        self._links.begin(thread)
        self._links.name(thread, names_in_messages(new.drafts))
        if rows:
            at = max(thread.info.updated_at, new.now)
            thread.info = replace(thread.info, updated_at=at)
            self._note(thread, ADDED, [unpack_id(row.id) for row in rows])
        return answers

    @exclusive
    async def load(
        self, tenant: str, session: SessionKey, drafts: Sequence[PreparedMessage]
    ) -> int:
        thread = self._thread(tenant, session)
        new = thread.copy(drafts)
        self._links.begin(thread)
        self._links.name(thread, names_in_messages(drafts))
        if new:
            self._note(thread, ADDED, [unpack_id(row.id) for row in new])
        return thread.head.seq

    @exclusive
    async def tail(self, tenant: str, session: SessionKey, wanted: Tail) -> list[Message]:
        return self._thread(tenant, session).tail(wanted)

    @exclusive
    async def gather(self, tenant: str, session: SessionKey, wanted: Gather) -> Gathered:
        tokens, min_messages, kinds, follow, limit = wanted
        thread, scope = self._thread(tenant, session), Scope(session=session)
        info = thread.described()
        records = [r for kind in kinds for r in await self.scan(tenant, scope, kind, ALL_KEYS)]
        kept = self._records_of(tenant, scope)
        newest = {kind: newest_of(kept, kind, limit) for kind in follow}
        places = [place for found, _ in newest.values() for place in found]
        followed = [decode_record(scope, *place, *kept[place]) for place in places]
        spans = [s for r in followed for s in r.made_of if s.session == session]
        seqs = [q for s in spans for q in range(s.first, min(s.last, info.messages) + 1)]
        return Gathered(
            system_prompt=info.system_prompt,
            delimiter=info.delimiter,
            messages=thread.tail(Tail(tokens, None, MAX_COUNT, 0, min_messages)),
            records=records + followed,
            sources=await self.find(tenant, session, (), seqs),
            more=[kind for kind, (_, is_cut) in newest.items() if is_cut],
        )

    @exclusive
    async def read(
        self, tenant: str, session: SessionKey, after: int, until: int, limit: int
    ) -> list[Message]:
        thread = self._thread(tenant, session)
        last = min(thread.head.seq, until, after + limit)
        return [thread.message(seq) for seq in range(after + 1, last + 1)]

    @exclusive
    async def find(
        self, tenant: str, session: SessionKey, ids: Sequence[str], seqs: Sequence[int]
    ) -> list[Message]:
        thread = self._thread(tenant, session)
        return thread.find(ids, seqs)

    @exclusive
    async def erase(self, tenant: str, session: SessionKey, seqs: Sequence[int]) -> int:
        thread = self._thread(tenant, session)
        for seq in seqs:
            if not 0 < seq <= thread.head.seq:
                raise MessageNotFound(f"there is no message at position {seq}")
        rows = [row for seq in seqs if (row := thread.rows[seq - 1]).content is not None]
        for row in rows:
            thread.rows[row.seq - 1] = erased_row(thread.place, row.seq, row)
        if rows:
            thread.info = replace(thread.info, epoch=thread.info.epoch + 1)
            erased = [row.seq for row in rows]
            scope = Scope(session=session)
            records = self._records_of(tenant, scope)
            for place in self._links.made_of(tenant, session, nodes_above(erased)):
                at = place.kind, place.key
                spans = decode_spans(records[at].made_of) if place.scope == scope else ()
                if touches(spans, session, erased):
                    del records[at]
                    self._links.drop(place)
            self.index.forget(session, erased)
            self._note(thread, ERASED, [unpack_id(row.id) for row in rows])
        return thread.info.epoch

    @exclusive
    async def recount(
        self, tenant: str, session: SessionKey, counter: TokenCounter, progress: Progress | None
    ) -> int:
        thread = self._thread(tenant, session)
        if progress:
            progress(len(thread.rows), len(thread.rows))
        return thread.recount(counter)

    # --- records ---

    @exclusive
    async def put(self, tenant: str, scope: Scope, record: Put) -> int:
        records = self._records_of(tenant, scope)
        check_record(records, record.kind, record.key, record.version)
        for session, epoch in record.epochs.items():
            check_epoch(self._thread(tenant, session).info.epoch, epoch)
        kept = StoredRecord(record.value, next(self._numbers), record.made_of)
        records[record.kind, record.key] = kept
        self._links.put(RecordPlace(tenant, scope, record.kind, record.key), record.spans)
        if record.names:
            self._links.name(self._thread(tenant, scope.session), record.names)
        self._note_record(tenant, scope, record.kind, record.key)
        return kept.version

    @exclusive
    async def get(self, tenant: str, scope: Scope, kind: str, key: str) -> Record | None:
        kept = self._records_of(tenant, scope).get((kind, key))
        return kept and decode_record(scope, kind, key, *kept)

    @exclusive
    async def scan(self, tenant: str, scope: Scope, kind: str | None, keys: Keys) -> list[Record]:
        records = self._records_of(tenant, scope)
        last = names_between(records, kind, keys)
        return [decode_record(scope, *place, *records[place]) for place in last]

    @exclusive
    async def updates(self, tenant: str, scope: Scope, kind: str, since: int) -> Updates:
        known = self.feed.of_records(tenant, scope.owner, kind)
        keys = known.since(since)
        if keys is None:
            return Updates(known.number, True, await self.scan(tenant, scope, kind, ALL_KEYS))
        found = [await self.get(tenant, scope, kind, key) for key in keys]
        dropped = [key for key, record in zip(keys, found, strict=True) if record is None]
        return Updates(known.number, False, [record for record in found if record], dropped)

    @exclusive
    async def made_of(
        self, tenant: str, session: SessionKey, nodes: Sequence[int] | None
    ) -> MadeRecords:
        self._check_open()
        places = self._links.made_of(tenant, session, nodes)
        kept = [(p, self._by_scope[tenant, p.scope][p.kind, p.key]) for p in places]
        return MadeRecords([decode_record(p.scope, p.kind, p.key, *k) for p, k in kept], ())

    @exclusive
    async def owners(self, tenant: str) -> list[str]:
        return sorted(scope.owner for scope, records in self._of_owners(tenant) if records)

    @exclusive
    async def blob_owners(self, tenant: str) -> list[str]:
        found = self._of_owners(tenant)
        return sorted(s.owner for s, rs in found if any(kind in OF_REFERENCES for kind, _ in rs))

    def _of_owners(self, tenant: str) -> list[tuple[Scope, RecordsByName]]:
        self._check_open()
        kept = self._by_scope.items()
        return [(scope, rs) for (name, scope), rs in kept if name == tenant and scope.owner]

    @exclusive
    async def drop(
        self, tenant: str, scope: Scope, kind: str, key: str, version: int | None
    ) -> bool:
        records = self._records_of(tenant, scope)
        check_record(records, kind, key, version)
        if records.pop((kind, key), None) is None:
            return False
        self._links.drop(RecordPlace(tenant, scope, kind, key))
        self._note_record(tenant, scope, kind, key)
        return True

    # --- changes ---

    @exclusive
    async def changes(self, tenant: str, wanted: Feed) -> FeedPage:
        self._check_open()
        return self.feed.read(tenant, wanted)

    def _note(self, thread: RamLog, kind: int, ids: Sequence[str] = ()) -> None:
        self.feed.note(thread.tenant, kind, thread.info.owner, thread.info, ids)

    def _note_record(self, tenant: str, scope: Scope, kind: str, key: str) -> None:
        change = change_of_record(scope, kind)
        if change is None:
            return
        if scope.session:
            self._note(self._thread(tenant, scope.session), change)
        else:
            self.feed.note_record(tenant, scope, change, kind, key)

    # --- integrity ---

    @exclusive
    async def verify(self, tenant: str, progress: Progress | None) -> Verification:
        threads = self._threads(tenant)
        damages = [damage for thread in threads for damage in thread.damages()]
        messages = sum(t.head.seq for t in threads)
        if progress:
            progress(messages, messages)
        records = sum(len(s) for (name, _), s in self._by_scope.items() if name == tenant)
        counts = {"sessions": len(threads), "messages": messages, "records": records}
        return Verification(**counts, damages=tuple(damages))

    @exclusive
    async def clean(self, tenant: str, *_: object) -> Cleaning:
        self._check_open()
        self._tables.drop_answers(tenant)
        return Cleaning(("memory was let go of",), (), ())

    async def finder(self, tenant: str) -> Searchable:
        self._check_open()
        return RamFinder(self, tenant, self.index)

    # --- tenants ---

    @exclusive
    async def tenants(self, after: str, limit: int) -> list[str]:
        return sorted(name for name in self._tenants() if name > after)[:limit]

    @exclusive
    async def drop_tenant(self, tenant: str, rewrite: bool) -> Cleaning | None:  # noqa: ARG002 - as `clean`
        had_keys = self._tables.drop(tenant)
        if not had_keys and tenant not in self._tenants():
            return None
        for thread in self._threads(tenant):
            await self.delete_session(tenant, thread.info.key, Condition())
        for name, scope in [place for place in self._by_scope if place[0] == tenant]:
            for place in self._by_scope.pop((name, scope)):
                self._links.drop(RecordPlace(name, scope, *place))
        self.feed.drop(tenant)
        return await self.clean(tenant)

    def _tenants(self) -> set[str]:
        self._check_open()
        kept = {name for (name, _), records in self._by_scope.items() if records}
        return kept | {thread.tenant for thread in self.threads.values()}

    def tables(self) -> RamTables:
        return self._tables

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed("the store is closed; open it again")

    def _threads(self, tenant: str) -> list[RamLog]:
        self._check_open()
        return [thread for thread in self.threads.values() if thread.tenant == tenant]

    def _thread(self, tenant: str, key: SessionKey) -> RamLog:
        self._check_open()
        thread = self.threads.get(key) if type(key) is str else None
        if thread is None or thread.tenant != tenant:
            raise SessionGone("the session was deleted")
        return thread

    def _records_of(self, tenant: str, scope: Scope) -> RecordsByName:
        self._check_open()
        if scope.session:
            self._thread(tenant, scope.session)
        return self._by_scope.setdefault((tenant, scope), {})


class RamStore(Front[RamBackend]):
    """A `Store` whose data is lost when the process ends."""

    def __init__(
        self,
        *,
        tenant: str = "default",
        durability: Durability | None = None,
        clock: Callable[[], float] = time.time,
        ids: Callable[[], str] = new_id,
    ) -> None:
        """Open an empty store for one tenant."""
        if durability not in (None, "memory"):
            raise DurabilityTooLow(
                f"an in-memory store provides `memory` at most, but `{durability}` was requested"
            )
        super().__init__(RamBackend(), tenant=tenant, clock=clock, ids=ids)

    async def finder(self) -> Searchable:
        return await self.backend.finder(self._tenant)
