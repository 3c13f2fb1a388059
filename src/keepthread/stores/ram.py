"""A store in the memory of one process: for tests, for trying things out, for what may be lost.

It keeps the same rows as every other backend, so what it accepts, refuses and gives back is the
same.
"""

import itertools
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, Self, TypeAlias

from keepthread.errors import (
    Conflict,
    DurabilityTooLow,
    MessageNotFound,
    SessionExists,
    SessionGone,
    Stale,
    StoreClosed,
)
from keepthread.protocols import Progress, Searchable, TokenCounter
from keepthread.stores.codec import PackedId, Row, decode, pack_id
from keepthread.stores.ids import new_id
from keepthread.stores.ram_search import RamFinder, RamIndex, exclusive
from keepthread.stores.records import (
    check_epoch,
    check_filter,
    check_keys,
    check_scope,
    check_session,
    check_version,
    condition,
    decode_details,
    decode_record,
    decode_spans,
    encode_details,
    encode_spans,
    encode_value,
    touches,
    with_changes,
)
from keepthread.stores.rows import (
    Head,
    as_stored,
    check_exchange,
    check_positions,
    check_total,
    draft,
    draft_copy,
    erased_row,
    head_after,
    next_copy,
    next_row,
    recounted_row,
    same_body,
    same_place,
)
from keepthread.stores.validation import check_count, check_id
from keepthread.types import (
    JSON,
    Cleaning,
    Damage,
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


class _Thread:
    """One session: its record and its log."""

    def __init__(self, place: int, tenant: str, info: SessionInfo, details: bytes) -> None:
        self.place = place
        self.tenant = tenant
        self.info = info
        self.details = details
        self.rows: list[Row] = []
        self.seqs: dict[PackedId, int] = {}

    @property
    def head(self) -> Head:
        return head_after(self.rows[-1]) if self.rows else Head()

    def message(self, seq: int) -> Message:
        return decode(self.place, self.rows[seq - 1])

    def described(self) -> SessionInfo:
        head = self.head
        counts = {"messages": head.seq, "exchanges": head.exchanges, "tokens": head.total}
        return replace(self.info, **counts, **decode_details(self.details))

    def extend(self, rows: Sequence[Row]) -> None:
        self.rows.extend(rows)
        self.seqs.update((row.id, row.seq) for row in rows)


class _Kept(NamedTuple):
    """One record on a shelf, as bytes, so that no caller can change it from outside."""

    value: bytes
    version: int
    made_of: bytes | None


_Shelf: TypeAlias = dict[tuple[str, str], _Kept]
"""Records by kind and key."""


class _Engine:
    """What the tenants of one store share."""

    def __init__(self, clock: Callable[[], float], ids: Callable[[], str]) -> None:
        self.clock = clock
        self.ids = ids
        self.threads: dict[SessionKey, _Thread] = {}
        self.keys: dict[tuple[str, str], SessionKey] = {}
        self.shelves: dict[tuple[str, Scope], _Shelf] = {}
        self.index = RamIndex()
        self.numbers = itertools.count(1)
        self.closed = False


class RamStore:
    """The `Store` that lives and dies with its process."""

    durability: Durability = "memory"

    @property
    def lock(self) -> threading.RLock:
        """Return what `exclusive` holds."""
        return self._engine.index.lock

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
                f"a store in memory survives nothing; {durability} was asked for"
            )
        self._tenant = check_id(tenant, "tenant")
        self._engine = _Engine(clock, ids)
        self._owns_engine = True

    def tenant(self, name: str) -> Self:
        twin = object.__new__(type(self))
        twin._tenant = check_id(name, "tenant")
        twin._engine = self._engine
        twin._owns_engine = False
        return twin

    async def close(self) -> None:
        if self._owns_engine:
            self._engine.closed = True

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # --- sessions ---

    @exclusive
    async def put_session(
        self, session: SessionInfo, *, seen: SessionInfo | None = None
    ) -> SessionInfo:
        engine = self._open()
        now = engine.clock()
        session = check_session(session, now=now, ids=engine.ids)
        if session.key:
            thread = self._thread(session.key)
            changed = with_changes(thread.described(), session, seen)
            thread.details = encode_details(changed)
            if not changed.ready:
                engine.index.forget(session.key)
            thread.info = replace(
                thread.info,
                ready=changed.ready,
                updated_at=max(thread.info.updated_at, now if thread.info.ready else 0),
            )
            return thread.described()
        details = encode_details(session)
        if (self._tenant, session.id) in engine.keys:
            raise SessionExists(f"session {session.id!r} is there already")
        place = next(engine.numbers)
        key = SessionKey(str(place))
        info = replace(session, key=key, epoch=0, state="live")
        engine.threads[key] = thread = _Thread(place, self._tenant, info, details)
        engine.keys[self._tenant, session.id] = key
        return thread.described()

    @exclusive
    async def get_session(self, id: str) -> SessionInfo | None:
        key = self._open().keys.get((self._tenant, check_id(id, "a session id")))
        return self._thread(key).described() if key else None

    @exclusive
    async def describe(self, session: SessionKey) -> SessionInfo:
        return self._thread(session).described()

    @exclusive
    async def list_sessions(
        self, *, owner: str | None = None, limit: int = 10
    ) -> list[SessionInfo]:
        check_count(limit, "limit")
        check_filter(owner, "owner")
        found = [
            thread.described()
            for thread in self._open().threads.values()
            if thread.tenant == self._tenant
            and thread.info.ready
            and thread.info.kind != "delegate"
            and owner in (None, thread.info.owner)
        ]
        found.sort(key=lambda info: (info.updated_at, int(info.key)), reverse=True)
        return found[:limit]

    @exclusive
    async def scan_sessions(
        self, *, after: SessionKey | None = None, limit: int = 100
    ) -> list[SessionInfo]:
        check_count(limit, "limit")
        if after is not None and not after.isdecimal():
            raise SessionGone("that is no session's key here")
        last = 0 if after is None else int(after)
        found = [
            thread.described()
            for thread in self._open().threads.values()
            if thread.tenant == self._tenant and thread.place > last
        ]
        return found[:limit]

    @exclusive
    async def delete_session(
        self, session: SessionKey, *, unready: bool = False, idle_since: float | None = None
    ) -> None:
        engine = self._open()
        required = condition(unready=unready, idle_since=idle_since)
        thread = self._thread(session)
        required.check(thread.info)
        del engine.threads[session]
        del engine.keys[self._tenant, thread.info.id]
        engine.index.forget(session)
        engine.shelves.pop((self._tenant, Scope(session=session)), None)

    # --- the log ---

    @exclusive
    async def append(
        self,
        session: SessionKey,
        messages: Sequence[Message],
        *,
        expect: int | None = None,
        exchange: int | None = None,
    ) -> list[Message]:
        engine = self._open()
        check_positions(expect=expect)
        drafts = [draft(m, clock=engine.clock, ids=engine.ids) for m in messages]
        thread = self._thread(session)
        head = thread.head
        check_exchange(exchange, head)
        new: dict[PackedId, Message] = {}
        rows: list[Row] = []
        answers: list[Message] = []
        for one in drafts:
            if seq := thread.seqs.get(one.packed):
                answers.append(same_body(one, thread.message(seq)))
            elif known := new.get(one.packed):
                answers.append(same_body(one, known))
            else:
                if expect is not None and expect != thread.head.seq:
                    raise Stale(f"the log ends at {thread.head.seq}, not at {expect}")
                row = next_row(thread.place, head, one, exchange)
                head = head_after(row)
                check_total(head.total)
                new[one.packed] = message = as_stored(one, row)
                rows.append(row)
                answers.append(message)
        thread.extend(rows)
        if rows:
            thread.info = replace(
                thread.info, updated_at=max(thread.info.updated_at, engine.clock())
            )
        return answers

    @exclusive
    async def load(self, session: SessionKey, messages: Sequence[Message]) -> int:
        drafts = [draft_copy(m) for m in messages]
        thread = self._thread(session)
        rows = list(thread.rows)
        seqs = dict(thread.seqs)
        head = thread.head
        for one in drafts:
            seq = one.message.seq
            if 0 < seq <= head.seq:
                same_place(one, rows[seq - 1].id, rows[seq - 1].digest)
                continue
            row = next_copy(thread.place, head, one)
            if seqs.setdefault(row.id, row.seq) != row.seq:
                raise Conflict(f"message id {one.id!r} is at another position already")
            rows.append(row)
            head = head_after(row)
        thread.rows, thread.seqs = rows, seqs
        return head.seq

    @exclusive
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
        check_positions(tokens=tokens, limit=limit, before=before, after=after, least=least)
        thread = self._thread(session)
        last = thread.head.seq if before is None else min(thread.head.seq, before - 1)
        found: list[Message] = []
        used = 0
        for seq in range(last, after, -1):
            message = thread.message(seq)
            used += message.tokens
            full = tokens is not None and used > tokens and len(found) >= least
            if full or len(found) == limit:
                break
            found.append(message)
        found.reverse()
        return found

    @exclusive
    async def gather(
        self,
        session: SessionKey,
        *,
        tokens: int,
        least: int = 0,
        kinds: Sequence[str] = (),
        follow: Sequence[str] = (),
    ) -> Gathered:
        info = self._thread(session).described()
        shelf = Scope(session=session)
        records = [r for kind in kinds for r in await self.scan(shelf, kind)]
        followed = [r for kind in follow for r in await self.scan(shelf, kind)]
        spans = [s for r in followed for s in r.made_of if s.session == session]
        seqs = [q for s in spans for q in range(s.first, min(s.last, info.messages) + 1)]
        return Gathered(
            system_prompt=info.system_prompt,
            fence=info.fence,
            messages=await self.tail(session, tokens=tokens, least=least),
            records=records + followed,
            sources=await self.find(session, seqs=seqs),
        )

    @exclusive
    async def read(
        self, session: SessionKey, *, after: int = 0, upto: int | None = None, limit: int = 100
    ) -> list[Message]:
        check_positions(after=after, upto=upto, limit=limit)
        thread = self._thread(session)
        last = thread.head.seq if upto is None else min(thread.head.seq, upto)
        return [thread.message(seq) for seq in range(after + 1, min(last, after + limit) + 1)]

    @exclusive
    async def find(
        self, session: SessionKey, *, ids: Iterable[str] = (), seqs: Iterable[int] = ()
    ) -> list[Message]:
        thread = self._thread(session)
        found = {thread.seqs.get(pack_id(check_id(id, "a message id")), 0) for id in ids}
        found.update(seq for seq in seqs if check_count(seq, "seq") <= thread.head.seq)
        return [thread.message(seq) for seq in sorted(found) if seq]

    @exclusive
    async def erase(self, session: SessionKey, seqs: Iterable[int]) -> int:
        thread = self._thread(session)
        positions = sorted(set(seqs))
        for seq in positions:
            if not 0 < check_count(seq, "seq") <= thread.head.seq:
                raise MessageNotFound(f"there is no message at position {seq}")
        rows = [thread.rows[seq - 1] for seq in positions]
        rows = [row for row in rows if row.content is not None]
        for row in rows:
            thread.rows[row.seq - 1] = erased_row(thread.place, row.seq, row)
        if rows:
            thread.info = replace(thread.info, epoch=thread.info.epoch + 1)
            erased = [row.seq for row in rows]
            self._drop_made_of(session, erased)
            self._engine.index.forget(session, erased)
        return thread.info.epoch

    @exclusive
    async def recount(
        self, session: SessionKey, counter: TokenCounter, *, progress: Progress | None = None
    ) -> int:
        thread = self._thread(session)
        rows: list[Row] = []
        total = counted = 0
        for row in thread.rows:
            message = decode(thread.place, row)
            tokens, name = message.tokens, message.counter
            if message.state == "live" and name != counter.name:
                tokens, name = counter.count(message), counter.name
                counted += 1
            total += tokens
            rows.append(recounted_row(thread.place, row, tokens, name.encode(), total))
        thread.rows = rows
        if progress:
            progress(len(rows), len(rows))
        return counted

    # --- the shelf ---

    @exclusive
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
        shelf = self._shelf(scope)
        _compare(shelf, kind, key, version)
        for session, epoch in (epochs or {}).items():
            check_epoch(self._thread(session).info.epoch, epoch)
        kept = _Kept(data, next(self._engine.numbers), spans)
        shelf[kind, key] = kept
        return kept.version

    @exclusive
    async def get(self, scope: Scope, kind: str, key: str) -> Record | None:
        kept = self._shelf(scope).get((check_id(kind, "kind"), check_id(key, "key")))
        return kept and decode_record(scope, kind, key, *kept)

    @exclusive
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
        shelf = self._shelf(scope)
        places = sorted(
            place
            for place in shelf
            if kind in (None, place[0]) and keys.after < place[1] < keys.before
        )
        last = places[max(0, len(places) - keys.limit) :]
        return [decode_record(scope, *place, *shelf[place]) for place in last]

    @exclusive
    async def owners(self) -> list[str]:
        shelves = self._open().shelves.items()
        return sorted(
            scope.owner
            for (tenant, scope), shelf in shelves
            if tenant == self._tenant and scope.owner and shelf
        )

    @exclusive
    async def drop(self, scope: Scope, kind: str, key: str, *, version: int | None = None) -> bool:
        shelf = self._shelf(scope)
        _compare(shelf, check_id(kind, "kind"), check_id(key, "key"), version)
        return shelf.pop((kind, key), None) is not None

    # --- integrity ---

    @exclusive
    async def verify(self, *, progress: Progress | None = None) -> Verification:
        engine = self._open()
        threads = [t for t in engine.threads.values() if t.tenant == self._tenant]
        damages = [
            Damage(what="the row is not what was written", session=t.info.id, seq=seq)
            for t in threads
            for seq in range(1, t.head.seq + 1)
            if t.message(seq).state == "damaged"
        ]
        messages = sum(t.head.seq for t in threads)
        if progress:
            progress(messages, messages)
        records = sum(len(s) for (name, _), s in engine.shelves.items() if name == self._tenant)
        return Verification(
            sessions=len(threads), messages=messages, records=records, damages=tuple(damages)
        )

    @exclusive
    async def finder(self) -> Searchable:
        return RamFinder(self, self._open().index)

    @exclusive
    async def clean(
        self,
        *,
        sessions: Sequence[SessionKey] = (),  # noqa: ARG002 - there is nothing but memory
        rewrite: bool = False,  # noqa: ARG002
        probes: Sequence[bytes] = (),  # noqa: ARG002
    ) -> Cleaning:
        self._open()
        return Cleaning(("memory was let go of",), (), 0)

    # --- inside ---

    def _open(self) -> _Engine:
        if self._engine.closed:
            raise StoreClosed("the store is closed")
        return self._engine

    def _thread(self, key: SessionKey) -> _Thread:
        thread = self._open().threads.get(key) if type(key) is str else None
        if thread is None or thread.tenant != self._tenant:
            raise SessionGone("the session was deleted")
        return thread

    def _shelf(self, scope: Scope) -> _Shelf:
        engine = self._open()
        if check_scope(scope).session:
            self._thread(scope.session)
        return engine.shelves.setdefault((self._tenant, scope), {})

    def _drop_made_of(self, session: SessionKey, seqs: Sequence[int]) -> None:
        shelf = self._shelf(Scope(session=session))
        for place, kept in list(shelf.items()):
            if touches(decode_spans(kept.made_of), session, seqs):
                del shelf[place]


def _compare(shelf: _Shelf, kind: str, key: str, version: int | None) -> None:
    kept = shelf.get((kind, key))
    check_version(kept.version if kept else 0, version)
