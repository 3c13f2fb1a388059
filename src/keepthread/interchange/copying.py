"""Copying everything of a tenant into another store: resumable, and done twice as done once.

Every id is looked at before anything is made. Then the sessions that are missing are made, in order
and unready; each is filled and shown. A copy that was broken off is continued by running it again.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple, TypeVar

from keepthread.codec import dumps
from keepthread.errors import Conflict, Damaged, SessionExists, SessionGone, Stale
from keepthread.interchange.exporting import every_session, id_of
from keepthread.interchange.importing import same_conversation
from keepthread.interchange.nouns import presentable
from keepthread.leases import UNDER_WAY
from keepthread.protocols import Progress, Store
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
        """Copy a session, and tell whether nothing was erased meanwhile."""
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
    """Tell whether two messages at one position are the same, one of them perhaps erased."""
    if "damaged" in (mine.state, theirs.state):
        return True
    erased = "erased" in (mine.state, theirs.state)
    return mine.id == theirs.id and (erased or mine.digest == theirs.digest)


def _taken(id: str) -> SessionExists:
    return SessionExists(
        f"session {id!r} is at the target already and is another conversation; nothing of it was"
        " changed. Delete one of the two, or copy into another tenant with --to-tenant"
    )
