"""Comparing what a copy made with what it was made of: position by position, record by record."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple, TypeVar

from keepthread.errors import Conflict, Damaged, SessionExists, SessionGone, Stale
from keepthread.interchange.export import id_of
from keepthread.interchange.import_ import same_conversation
from keepthread.interchange.schema import presentable
from keepthread.protocols import Progress, Store
from keepthread.stores.codec import dumps
from keepthread.stores.front import every_session
from keepthread.stores.kinds import UNDER_WAY
from keepthread.types import Message, Record, Scope, SessionInfo, SessionKey, Span

T = TypeVar("T")
R = TypeVar("R")

PAGE: Final = 100
_LOOKED_AT: Final = 500
_ABREAST: Final = 4  # sessions at a time: a server is asked again while it answers
_BATCH_BYTES: Final = 1 << 20
_RECORDS: Final = 100
_DETAILS: Final = ("title", "title_seq", "tags", "system_prompt", "meta", "ready")


class Difference(NamedTuple):
    """Something that is not the same in both stores."""

    what: str
    session: str = ""
    seq: int = 0


@dataclass(slots=True, kw_only=True)
class Copied:
    """What a copy did, and what it met on its way."""

    sessions: int = 0
    messages: int = 0
    """Messages of these sessions; `moved` is how many of them came over now."""
    moved: int = 0
    records: int = 0
    erased: int = 0
    """Messages that were erased at the source after they had been copied, and now at the target."""
    damaged: list[str] = field(default_factory=list[str])
    """What could not be copied as it once was."""
    differences: list[Difference] = field(default_factory=list[Difference])


class Pair(NamedTuple):
    """A session in both stores."""

    id: str
    source: SessionKey
    target: SessionKey


class Copying:
    """One copy on its way; `run` it, then let a `Comparison` look at what came of it."""

    def __init__(self, source: Store, target: Store, *, replace: bool = False) -> None:
        """Name both stores; `replace` also changes what is whole at the target and differs."""
        self.source = source
        self.target = target
        self.replace = replace
        self.done = Copied()
        self.pairs: list[Pair] = []
        self.keys: dict[SessionKey, SessionKey] = {}
        self.total = 0
        """Messages of the source, as far as sessions were looked at."""
        self._there: dict[str, SessionKey] = {}
        self._passed = 0
        self._progress: Progress | None = None

    async def run(self, progress: Progress | None = None) -> None:
        """Copy what is missing; a session that is another conversation raises `SessionExists`."""
        self._progress = progress
        await self._look()
        async for session in every_session(self.source):
            id = id_of(session)
            key = self._there.get(id) or await self._make(session)
            self.pairs.append(Pair(id, session.key, key))
            self.keys[session.key] = key
            self.total += session.messages
        await abreast(self.pairs, self._fill)
        for owner in await self.source.owners():
            await self._merge(Scope(owner=owner))
        await self._merge(Scope())

    # --- sessions ---

    async def _look(self) -> None:
        """Find out whether an id is taken, before anything is made."""
        last: SessionKey | None = None
        while page := await self.source.scan_sessions(after=last, limit=_LOOKED_AT):
            await abreast(page, self._find)
            last = page[-1].key

    async def _find(self, session: SessionInfo) -> None:
        """Look for a session at the target, and refuse another conversation."""
        id = id_of(session)
        there = await self.target.get_session(id)
        if there is None:
            return
        self._there[id] = there.key
        if "damaged" not in (there.state, session.state) and not same_conversation(there, session):
            raise _taken(id)
        if there.messages > session.messages:
            raise SessionExists(
                f"session {id!r} went on at the target: it has {there.messages} messages there and"
                f" {session.messages} at the source. Delete one of the two to copy the other"
            )
        with suppress(SessionGone):  # deleted meanwhile
            mine = await self.source.find(session.key, seqs=[there.messages])
            theirs = await self.target.find(there.key, seqs=[there.messages])
            if mine and theirs and not _may_be_one(mine[0], theirs[0]):
                raise _taken(id)

    async def _make(self, session: SessionInfo) -> SessionKey:
        new = replace(session, id=id_of(session), key=SessionKey(""), ready=False, state="live")
        return (await self.target.put_session(new)).key

    async def _fill(self, pair: Pair) -> None:
        try:
            while not await self._filled(pair):
                pass
        except SessionGone:
            if await self.source.get_session(pair.id) is not None:
                raise
            there = await self.target.get_session(pair.id)  # it was deleted while it was copied
            if there and not there.ready:
                with suppress(SessionGone, Stale):  # another deleted or finished it
                    await self.target.delete_session(there.key, unready=True)

    async def _filled(self, pair: Pair) -> bool:
        """Copy a session, and return whether nothing was erased meanwhile."""
        # The shelf is read first: whatever it speaks of is in the log that is read after it.
        session = await self.source.describe(pair.source)
        records = await shelf(self.source, Scope(session=pair.source))
        there = await self.target.describe(pair.target)
        self._tell(there.messages)
        if there.state == "damaged" or not await self._may_change(session, there, records):
            return True
        if there.ready:  # so that what is broken off here is known for what it is
            there = await self.target.put_session(replace(there, ready=False))
        await self._load(pair, there.messages, session.messages)
        if records is not None:
            await self._put(Scope(session=pair.target), records, own=True)
        if (await self.source.describe(pair.source)).epoch != session.epoch:
            self._tell(-session.messages)
            return False
        await self._show(session, pair.target)
        return True

    async def _may_change(
        self, session: SessionInfo, there: SessionInfo, records: Sequence[Record] | None
    ) -> bool:
        if not there.ready or there.messages < session.messages:
            return True
        if not self.replace:
            return False
        theirs = await shelf(self.target, Scope(session=there.key))
        alike = records is None or self.mapped(records) == mapped(theirs or ())
        return details(session) != details(there) or not alike

    async def _show(self, session: SessionInfo, key: SessionKey) -> None:
        given = replace(session, key=key, state="live")
        shown = await self.target.put_session(given)
        if shown.ready and shown.updated_at < session.updated_at:  # it went on since it was made
            await self.target.put_session(given)

    # --- messages ---

    async def _load(self, pair: Pair, after: int, upto: int) -> None:
        while after < upto:
            page = await self.source.read(pair.source, after=after, upto=upto, limit=PAGE)
            if not page:
                return
            for batch in _batches(page):
                try:
                    after = await self.target.load(pair.target, batch)
                except Conflict:
                    raise _taken(pair.id) from None
                self.done.moved += len(batch)
                self._tell(len(batch))

    def _tell(self, more: int) -> None:
        self._passed += more
        if self._progress and self._passed:
            self._progress(self._passed, max(self.total, self._passed))

    # --- shelves ---

    async def _merge(self, scope: Scope) -> None:
        """Copy the shelf of an owner or the tenant; what else is there is left alone."""
        records = await shelf(self.source, scope)
        if records is not None:
            await self._put(scope, records, own=False)

    async def _put(self, scope: Scope, records: Sequence[Record], *, own: bool) -> None:
        """Put what is missing; on a shelf of its own also what differs, and take off the rest."""
        theirs = await shelf(self.target, scope) or []
        there = mapped(theirs)
        new = [r for r in records if there.get((r.kind, r.key)) != self.content(r)]

        async def put(record: Record) -> None:
            version = None if own or self.replace else 0
            place = (scope, record.kind, record.key)
            try:
                spans = self._spans(record)
                await self.target.put(*place, record.value, made_of=spans, version=version)
            except Stale:  # another value is there, and the comparison says so
                return

        await abreast(new, put, _RECORDS)
        if own:
            wanted = {(r.kind, r.key) for r in records}
            for record in theirs:
                if (record.kind, record.key) not in wanted:
                    await self.target.drop(scope, record.kind, record.key)

    def _spans(self, record: Record) -> list[Span]:
        """Return what a record is made of, by the target's keys; what is gone leaves no trace."""
        spans = record.made_of
        return [s._replace(session=self.keys[s.session]) for s in spans if s.session in self.keys]

    def content(self, record: Record) -> "Content":
        """Return what a record must be at the target."""
        return content(record, self._spans(record))

    def mapped(self, records: Sequence[Record]) -> "Contents":
        """Return what records must be at the target, by kind and key."""
        return {(record.kind, record.key): self.content(record) for record in records}


# --- what both stores hold ---

Content = tuple[bytes, tuple[Span, ...]]
Contents = dict[tuple[str, str], Content]


def content(record: Record, spans: Sequence[Span]) -> Content:
    """Return what a record says, to the byte, and what it is made of."""
    return dumps(record.value, "the value"), tuple(spans)


def mapped(records: Sequence[Record]) -> Contents:
    """Return what records are, by kind and key."""
    return {(record.kind, record.key): content(record, record.made_of) for record in records}


def details(session: SessionInfo) -> dict[str, bytes]:
    """Return what a program may change of a session, each to the byte."""
    return {name: dumps(getattr(session, name), name) for name in _DETAILS}


async def shelf(store: Store, scope: Scope) -> list[Record] | None:
    """Return the records of a shelf, or None if it is damaged."""
    try:
        records = await store.scan(scope)
    except Damaged:
        return None
    # What is going on right now is true in one store alone.
    return [record for record in records if record.kind not in UNDER_WAY]


async def abreast(
    items: Sequence[T], work: Callable[[T], Awaitable[R]], number: int = _ABREAST
) -> None:
    """Do something with each, a few at a time; what was begun ends before an error is raised."""
    for start in range(0, len(items), number):
        some = (work(item) for item in items[start : start + number])
        for answer in await asyncio.gather(*some, return_exceptions=True):
            if isinstance(answer, BaseException):
                raise answer


def _batches(page: Sequence[Message]) -> Iterator[list[Message]]:
    """Yield messages in parts that are not too large for one write."""
    batch: list[Message] = []
    size = 0
    for message in page:
        batch.append(presentable(message))
        size += len(message.content) + sum(len(call.arguments) for call in message.tool_calls)
        if size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _may_be_one(mine: Message, theirs: Message) -> bool:
    """Return whether two messages at one position are the same, one of them perhaps erased."""
    if "damaged" in (mine.state, theirs.state):
        return True
    erased = "erased" in (mine.state, theirs.state)
    return mine.id == theirs.id and (erased or mine.digest == theirs.digest)


def _taken(id: str) -> SessionExists:
    return SessionExists(
        f"session {id!r} is at the target already and is another conversation; nothing of it was"
        " changed. Delete one of the two, or copy into another tenant with --to-tenant"
    )


_LAG: Final = 1.0  # a second by which a session's latest activity may lag behind
_IDENTITY: Final = ("owner", "kind", "parent", "forked_from", "created_at")
_COUNTS: Final = ("turns", "tokens")
_MESSAGE: Final = (
    *("id", "role", "digest", "turn", "tokens", "counter", "total", "created_at", "state"),
)


class Comparison:
    """Looks at both stores behind a copy, and notes in what it did all that is not the same."""

    def __init__(self, copying: Copying) -> None:
        """Look at what a copy knows."""
        self._copying = copying
        self._source = copying.source
        self._target = copying.target
        self._done = copying.done
        self._progress: Progress | None = None

    async def run(self, progress: Progress | None = None) -> None:
        """Compare every session, and the shelves of owners and tenant.

        An erasure that the target has not seen yet is carried over.
        """
        self._progress = progress
        pairs = self._copying.pairs
        await abreast(pairs, self._session)
        for owner in await self._source.owners():
            await self._shelf(Scope(owner=owner), Scope(owner=owner), f"owner {owner!r}")
        await self._shelf(Scope(), Scope(), "the tenant")
        if await self._source.scan_sessions(after=pairs[-1].source if pairs else None, limit=1):
            self._note("sessions were made at the source meanwhile: run it again")

    def _note(self, what: str, session: str = "", seq: int = 0) -> None:
        self._done.differences.append(Difference(what, session, seq))

    async def _session(self, pair: Pair) -> None:
        try:
            session = await self._source.describe(pair.source)
        except SessionGone:
            if await self._target.get_session(pair.id):
                self._note("it was deleted at the source meanwhile, and is at the target", pair.id)
            return
        there = await self._target.describe(pair.target)
        sound = await self._log(pair, min(session.messages, there.messages))
        self._done.sessions += 1
        if (more := session.messages - there.messages) > 0:
            self._note(f"{more:,} messages came at the source meanwhile: run it again", pair.id)
            return
        if more < 0:
            self._note(f"{-more:,} messages came at the target meanwhile", pair.id)
        self._record(session, there, _IDENTITY + _COUNTS if sound else _IDENTITY)
        where = f"session {pair.id!r}"
        scopes = (Scope(session=pair.source), Scope(session=pair.target))
        await self._shelf(*scopes, where, pair.id)

    def _record(self, session: SessionInfo, there: SessionInfo, names: Sequence[str]) -> None:
        id = there.id
        if session.state == "damaged":
            self._done.damaged.append(f"the record of session {id!r}: owner, title and more")
            return
        if there.state == "damaged":
            self._note("its record at the target is damaged", id)
            return
        old, new = details(session), details(there)
        wrong = [name for name in old if old[name] != new[name]]
        wrong += [name for name in names if getattr(session, name) != getattr(there, name)]
        if there.updated_at < session.updated_at - _LAG:
            wrong.append("updated_at")
        if wrong:
            self._note(f"{', '.join(wrong)} differ", id)

    # --- messages ---

    async def _log(self, pair: Pair, upto: int) -> bool:
        """Compare two logs up to a position; return whether nothing of the source's is damaged."""
        sound = True
        wrong: list[int] = []
        erased: list[int] = []
        after = 0
        while after < upto:
            mine = await self._source.read(pair.source, after=after, upto=upto, limit=PAGE)
            theirs = await self._target.read(pair.target, after=after, upto=upto, limit=PAGE)
            for old, new in _aligned(mine, theirs, after):
                if old and new and old.state == "erased" and new.state == "live":
                    erased.append(old.seq)
                elif old is None or new is None or not _same(old, new):
                    wrong.append((old or new or mine[0]).seq)
                if old and old.state == "damaged":
                    sound = False
                    self._done.damaged.append(f"message {old.seq} of session {pair.id!r}")
            after = min(after + PAGE, upto)
            self._done.messages += len(mine)
            if self._progress:
                self._progress(self._done.messages, max(self._copying.total, self._done.messages))
        wrong += await self._erase(pair, erased)
        if wrong:
            first = min(wrong)
            self._note(f"{len(wrong):,} messages differ, the first at {first:,}", pair.id, first)
        return sound

    async def _erase(self, pair: Pair, seqs: Sequence[int]) -> list[int]:
        """Carry erasures over; return the positions that are not the same even then."""
        if not seqs:
            return []
        await self._target.erase(pair.target, seqs)
        self._done.erased += len(seqs)
        old = await self._source.find(pair.source, seqs=seqs)
        new = await self._target.find(pair.target, seqs=seqs)
        return [a.seq for a, b in zip(old, new, strict=True) if not _same(a, b)]

    # --- shelves ---

    async def _shelf(self, source: Scope, target: Scope, where: str, id: str = "") -> None:
        mine, theirs = await shelf(self._source, source), await shelf(self._target, target)
        if mine is None:
            self._done.damaged.append(f"the shelf of {where}, left out")
            return
        self._done.records += len(mine)
        if theirs is None:
            self._note(f"the shelf of {where} is damaged at the target", id)
            return
        wrong = list(_unlike(self._copying.mapped(mine), mapped(theirs), own=bool(id)))
        if wrong:
            self._note(f"{len(wrong):,} records of {where} differ, as {wrong[0]}", id)


def _aligned(
    mine: Sequence[Message], theirs: Sequence[Message], after: int
) -> Iterator[tuple[Message | None, Message | None]]:
    """Yield what both logs hold at each position of a page."""
    old, new = ({message.seq: message for message in page} for page in (mine, theirs))
    for seq in range(after + 1, max([*old, *new], default=after) + 1):
        yield old.get(seq), new.get(seq)


def _same(mine: Message, theirs: Message) -> bool:
    if mine.state == "damaged":  # what it once was, nobody knows
        return theirs.state == "damaged"
    return all(getattr(mine, name) == getattr(theirs, name) for name in _MESSAGE)


def _unlike(mine: Contents, theirs: Contents, *, own: bool) -> Iterator[str]:
    """Yield the places of a shelf that differ; one that is not its own may hold more."""
    for place in mine.keys() | theirs.keys() if own else mine:
        old: Content | None = mine.get(place)
        new: Content | None = theirs.get(place)
        if old != new:
            only = "only at the target" if old is None else "missing" if new is None else "another"
            yield f"{'/'.join(place)} ({only})"
