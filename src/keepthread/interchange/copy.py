"""Copy a tenant to another store, and compare both: message by message, record by record."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple, TypeVar

from keepthread.context.ranges import counted
from keepthread.errors import Conflict, Damaged, SessionExists, SessionGone, Stale
from keepthread.interchange.blobs import copy_chunks, is_pending, refer
from keepthread.interchange.export import name_of
from keepthread.interchange.import_ import same_conversation
from keepthread.interchange.schema import SessionName, presentable
from keepthread.protocols import Progress, Store
from keepthread.stores.codec import dumps
from keepthread.stores.front import every_session
from keepthread.stores.kinds import BLOB_CHUNK, UNDER_WAY
from keepthread.types import Message, Record, Scope, SessionInfo, SessionKey, Span

T = TypeVar("T")
R = TypeVar("R")

PAGE: Final = 100
_LOOKED_AT: Final = 500
_CONCURRENCY: Final = 4  # sessions at a time, so that a server is not idle between two answers
_BATCH_BYTES: Final = 1 << 20
_RECORDS: Final = 100
_DETAILS: Final = ("title", "title_seq", "tags", "system_prompt", "meta", "ready", "forgotten")


class CopyDifference(NamedTuple):
    """Something that differs between the two stores."""

    what: str
    session: str = ""
    seq: int = 0


@dataclass(slots=True, kw_only=True)
class Copied:
    """The report of a copy."""

    sessions: int = 0
    messages: int = 0
    """Messages of these sessions; `moved` is how many of them were copied now."""
    moved: int = 0
    records: int = 0
    erased: int = 0
    """Messages erased at the source after they had been copied, and now at the target too."""
    damaged: list[str] = field(default_factory=list[str])
    """Damaged messages and records, which could not be copied as they once were."""
    differences: list[CopyDifference] = field(default_factory=list[CopyDifference])


class Pair(NamedTuple):
    """A session in both stores."""

    id: str
    owner: str
    source: SessionKey
    target: SessionKey


class Copying:
    """One copy; `run` it, then check it with a `Comparison`."""

    def __init__(self, source: Store, target: Store, *, replace: bool = False) -> None:
        """Take both stores; `replace` also changes complete sessions at the target that differ."""
        self.source = source
        self.target = target
        self.replace = replace
        self.done = Copied()
        self.pairs: list[Pair] = []
        self.keys: dict[SessionKey, SessionKey] = {}
        self.total = 0
        """Messages of the source, in the sessions that were read so far."""
        self._there: dict[SessionName, SessionKey] = {}
        self._passed = 0
        self._progress: Progress | None = None

    async def prepare(self, progress: Progress | None = None) -> None:
        """Give each session its place, or raise `SessionExists`; the progress counts sessions."""
        total = sum([1 async for _ in every_session(self.source)]) if progress else 0
        passed = 0

        def report(more: int) -> None:
            nonlocal passed
            passed += more
            if progress:  # each session is looked up first, and then given its place
                progress(passed // 2, max(total, passed // 2))

        report(0)
        await self._look(report)
        async for session in every_session(self.source):
            name = await name_of(self.source, session)
            key = self._there.get(name) or await self._make(session, name)
            self.pairs.append(Pair(name.id or "", name.owner or "", session.key, key))
            self.keys[session.key] = key
            self.total += session.messages
            report(1)

    async def run(self, progress: Progress | None = None) -> None:
        """Prepare if that was not done, and copy what is missing; the progress counts messages."""
        self._progress = progress
        if not self.pairs:
            await self.prepare()
        await run_concurrently(self.pairs, self._fill)
        for owner in await self.source.owners():
            await self._merge(Scope(owner=owner))
        await self._merge(Scope())

    # --- sessions ---

    async def _look(self, report: Callable[[int], None]) -> None:
        """Check whether an id is taken, before anything is created."""
        last: SessionKey | None = None
        while page := await self.source.scan_sessions(after=last, limit=_LOOKED_AT):
            await run_concurrently(page, self._find)
            report(len(page))
            last = page[-1].key

    async def _find(self, session: SessionInfo) -> None:
        """Find a session at the target; refuse another conversation."""
        name = await name_of(self.source, session)
        id = name.id or ""
        there = await self.target.get_session(id, name.owner or "")
        if there is None:
            return
        self._there[name] = there.key
        if "damaged" not in (there.state, session.state) and not same_conversation(there, session):
            raise _taken(id)
        if there.messages > session.messages:
            raise SessionExists(
                f"session {id!r} continued at the target: it has {there.messages} messages there"
                f" and {session.messages} at the source. Delete one of the two to copy the other"
            )
        with suppress(SessionGone):  # deleted in the meantime
            mine = await self.source.find(session.key, seqs=[there.messages])
            theirs = await self.target.find(there.key, seqs=[there.messages])
            if mine and theirs and not _may_be_one(mine[0], theirs[0]):
                raise _taken(id)

    async def _make(self, session: SessionInfo, name: SessionName) -> SessionKey:
        new = replace(session, id=name.id, key=SessionKey(""), ready=False, state="live")
        return (await self.target.put_session(new)).key

    async def _fill(self, pair: Pair) -> None:
        try:
            while not await self._filled(pair):
                pass
        except SessionGone:
            if await self.source.get_session(pair.id, pair.owner) is not None:
                raise
            there = await self.target.get_session(pair.id, pair.owner)  # deleted during the copy
            if there and not there.ready:
                with suppress(SessionGone, Stale):  # another process deleted or finished it
                    await self.target.delete_session(there.key, unready=True)

    async def _filled(self, pair: Pair) -> bool:
        """Copy a session, and return whether nothing was erased in the meantime."""
        # The records are read first: every message they name is then in the log that is read after.
        session = await self.source.describe(pair.source)
        records = await records_of(self.source, Scope(session=pair.source))
        there = await self.target.describe(pair.target)
        self._report_progress(there.messages)
        if there.state == "damaged" or not await self._may_change(session, there, records):
            return True
        if there.ready:  # hide it, so that an interruption does not leave it half changed
            there = await self.target.put_session(replace(there, ready=False))
        await self._load(pair, there.messages, session.messages)
        if records is not None:
            await self._put(Scope(session=pair.target), records, own=True)
        if (await self.source.describe(pair.source)).epoch != session.epoch:
            self._report_progress(-session.messages)
            return False
        await self._show(session, pair.target)
        return True

    async def _may_change(
        self, session: SessionInfo, there: SessionInfo, records: Sequence[Record] | None
    ) -> bool:
        if there.forgotten and not session.forgotten:  # it was forgotten at the target
            return False
        if not there.ready or there.messages < session.messages:
            return True
        if not self.replace:
            return False
        theirs = await records_of(self.target, Scope(session=there.key))
        alike = records is None or self.mapped(records) == mapped(theirs or ())
        return changeable_fields(session) != changeable_fields(there) or not alike

    async def _show(self, session: SessionInfo, key: SessionKey) -> None:
        given = replace(session, key=key, state="live")
        shown = await self.target.put_session(given)
        if shown.ready and shown.updated_at < session.updated_at:  # it continued since it was made
            await self.target.put_session(given)

    # --- messages ---

    async def _load(self, pair: Pair, after: int, until: int) -> None:
        while after < until:
            page = await self.source.read(pair.source, after=after, until=until, limit=PAGE)
            if not page:
                return
            for batch in _batches(page):
                await refer(self.target, pair.owner, pair.target, batch)
                try:
                    after = await self.target.load(pair.target, batch)
                except Conflict:
                    raise _taken(pair.id) from None
                self.done.moved += len(batch)
                self._report_progress(len(batch))

    def _report_progress(self, more: int) -> None:
        self._passed += more
        if self._progress and self._passed:
            self._progress(self._passed, max(self.total, self._passed))

    # --- records ---

    async def _merge(self, scope: Scope) -> None:
        """Copy the records of an owner or the tenant; other records at the target stay."""
        records = await records_of(self.source, scope)
        if records is not None:
            await copy_chunks(self.source, self.target, records)
            await self._put(scope, records, own=False)

    async def _put(self, scope: Scope, records: Sequence[Record], *, own: bool) -> None:
        """Put missing records; if the scope is the copy's `own`, also replace and drop others."""
        theirs = await records_of(self.target, scope) or []
        there = mapped(theirs)
        new = [r for r in records if there.get((r.kind, r.key)) != self.content(r)]

        async def put(record: Record) -> None:
            version = None if own or self.replace else 0
            place = (scope, record.kind, record.key)
            try:
                spans = self._spans(record)
                await self.target.put(*place, record.value, made_of=spans, version=version)
            except Stale:  # the target has a different value; the comparison reports it
                return

        await run_concurrently(new, put, _RECORDS)
        if own:
            wanted = {(r.kind, r.key) for r in records}
            for record in theirs:
                if (record.kind, record.key) not in wanted:
                    await self.target.drop(scope, record.kind, record.key)

    def _spans(self, record: Record) -> list[Span]:
        """Return a record's spans with the target's keys, without those of deleted sessions."""
        spans = record.made_of
        return [s._replace(session=self.keys[s.session]) for s in spans if s.session in self.keys]

    def content(self, record: Record) -> "Content":
        """Return the content that a record must have at the target."""
        return content(record, self._spans(record))

    def mapped(self, records: Sequence[Record]) -> "Contents":
        """Return the contents that records must have at the target, by kind and key."""
        return {(record.kind, record.key): self.content(record) for record in records}


# --- reading both stores ---

Content = tuple[bytes, tuple[Span, ...]]
Contents = dict[tuple[str, str], Content]


def content(record: Record, spans: Sequence[Span]) -> Content:
    """Return a record's value as bytes, and its spans."""
    return dumps(record.value, "the value"), tuple(spans)


def mapped(records: Sequence[Record]) -> Contents:
    """Return the contents of records, by kind and key."""
    return {(record.kind, record.key): content(record, record.made_of) for record in records}


def changeable_fields(session: SessionInfo) -> dict[str, bytes]:
    """Return the fields of a session that a program may change, each as bytes."""
    return {name: dumps(getattr(session, name), name) for name in _DETAILS}


async def records_of(store: Store, scope: Scope) -> list[Record] | None:
    """Return the records of a scope, or None if one is damaged."""
    try:
        records = await store.scan(scope, without=BLOB_CHUNK)
    except Damaged:
        return None
    # Leases are about work in one store, so they are not copied.
    return [r for r in records if r.kind not in UNDER_WAY and not is_pending(r)]


async def run_concurrently(
    items: Sequence[T], work: Callable[[T], Awaitable[R]], number: int = _CONCURRENCY
) -> None:
    """Call a function for each item, a few at a time; calls in progress end before an error."""
    for start in range(0, len(items), number):
        some = (work(item) for item in items[start : start + number])
        for answer in await asyncio.gather(*some, return_exceptions=True):
            if isinstance(answer, BaseException):
                raise answer


def _batches(page: Sequence[Message]) -> Iterator[list[Message]]:
    """Yield messages in parts that are small enough for one write."""
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
    """Return whether two messages at one position are the same, one of them possibly erased."""
    if "damaged" in (mine.state, theirs.state):
        return True
    erased = "erased" in (mine.state, theirs.state)
    return mine.id == theirs.id and (erased or mine.digest == theirs.digest)


def _taken(id: str) -> SessionExists:
    return SessionExists(
        f"session {id!r} already exists at the target and is another conversation; it was not"
        " changed. Delete one of the two, or copy into another tenant with --to-tenant"
    )


_LAG: Final = 1.0  # seconds by which the time of a session's latest activity may lag
_IDENTITY: Final = ("owner", "kind", "parent", "forked_from", "created_at")
_COUNTS: Final = ("turns", "tokens")
_MESSAGE: Final = (
    *("id", "role", "digest", "turn", "tokens", "counter", "total", "created_at", "state"),
)


class Comparison:
    """Compares both stores after a copy, and adds the differences to its report."""

    def __init__(self, copying: Copying) -> None:
        """Take the copy to check."""
        self._copying = copying
        self._source = copying.source
        self._target = copying.target
        self._done = copying.done
        self._progress: Progress | None = None

    async def run(self, progress: Progress | None = None) -> None:
        """Compare every session, and the records of owners and tenant.

        Messages that were erased at the source since are erased at the target, too.
        """
        self._progress = progress
        pairs = self._copying.pairs
        await run_concurrently(pairs, self._session)
        for owner in await self._source.owners():
            await self._compare_records(Scope(owner=owner), Scope(owner=owner), f"owner {owner!r}")
        await self._compare_records(Scope(), Scope(), "the tenant")
        if await self._source.scan_sessions(after=pairs[-1].source if pairs else None, limit=1):
            self._note("sessions were created at the source during the copy: run it again")

    def _note(self, what: str, session: str = "", seq: int = 0) -> None:
        self._done.differences.append(CopyDifference(what, session, seq))

    async def _session(self, pair: Pair) -> None:
        try:
            session = await self._source.describe(pair.source)
        except SessionGone:
            if await self._target.get_session(pair.id, pair.owner):
                self._note(
                    "it was deleted at the source in the meantime, and is at the target", pair.id
                )
            return
        there = await self._target.describe(pair.target)
        sound = await self._log(pair, min(session.messages, there.messages))
        self._done.sessions += 1
        if more := session.messages - there.messages:
            added = counted(abs(more), "message was", "messages were")
            where = "source since: run it again" if more > 0 else "target since"
            self._note(f"{added} added at the {where}", pair.id)
        if more > 0:
            return
        self._record(session, there, _IDENTITY + _COUNTS if sound else _IDENTITY)
        where = f"session {pair.id!r}"
        scopes = (Scope(session=pair.source), Scope(session=pair.target))
        await self._compare_records(*scopes, where, pair.id)

    def _record(self, session: SessionInfo, there: SessionInfo, names: Sequence[str]) -> None:
        id = there.id
        if session.state == "damaged":
            self._done.damaged.append(f"the record of session {id!r}: owner, title and more")
            return
        if there.state == "damaged":
            self._note("its record at the target is damaged", id)
            return
        old, new = changeable_fields(session), changeable_fields(there)
        wrong = [name for name in old if old[name] != new[name]]
        wrong += [name for name in names if getattr(session, name) != getattr(there, name)]
        if there.updated_at < session.updated_at - _LAG:
            wrong.append("updated_at")
        if wrong:
            self._note(f"{', '.join(wrong)} differ", id)

    # --- messages ---

    async def _log(self, pair: Pair, until: int) -> bool:
        """Compare two logs up to a position; return whether no message of the source is damaged."""
        sound = True
        wrong: list[int] = []
        erased: list[int] = []
        after = 0
        while after < until:
            mine = await self._source.read(pair.source, after=after, until=until, limit=PAGE)
            theirs = await self._target.read(pair.target, after=after, until=until, limit=PAGE)
            for old, new in _aligned(mine, theirs, after):
                if old and new and old.state == "erased" and new.state == "live":
                    erased.append(old.seq)
                elif old is None or new is None or not _same(old, new):
                    wrong.append((old or new or mine[0]).seq)
                if old and old.state == "damaged":
                    sound = False
                    self._done.damaged.append(f"message {old.seq} of session {pair.id!r}")
            after = min(after + PAGE, until)
            self._done.messages += len(mine)
            if self._progress:
                self._progress(self._done.messages, max(self._copying.total, self._done.messages))
        wrong += await self._erase(pair, erased)
        if wrong:
            differ = counted(len(wrong), "message differs", "messages differ")
            self._note(f"{differ}, the first at {min(wrong):,}", pair.id, min(wrong))
        return sound

    async def _erase(self, pair: Pair, seqs: Sequence[int]) -> list[int]:
        """Erase messages at the target, too; return the positions that still differ."""
        if not seqs:
            return []
        await self._target.erase(pair.target, seqs)
        self._done.erased += len(seqs)
        old = await self._source.find(pair.source, seqs=seqs)
        new = await self._target.find(pair.target, seqs=seqs)
        return [a.seq for a, b in zip(old, new, strict=True) if not _same(a, b)]

    # --- records ---

    async def _compare_records(
        self, source: Scope, target: Scope, where: str, id: str = ""
    ) -> None:
        mine = await records_of(self._source, source)
        theirs = await records_of(self._target, target)
        if mine is None:
            self._done.damaged.append(f"the records of {where}, left out")
            return
        self._done.records += len(mine)
        if theirs is None:
            self._note(f"the records of {where} are damaged at the target", id)
            return
        wrong = list(_unlike(self._copying.mapped(mine), mapped(theirs), own=bool(id)))
        if wrong:
            self._note(f"{counted(len(wrong), 'difference')} in records of {where}: {wrong[0]}", id)


async def copy(
    source: Store, target: Store, *, replace: bool = False, progress: Progress | None = None
) -> Copied:
    """Copy a tenant into another store, and compare both; `replace` replaces what differs."""
    copying = Copying(source, target, replace=replace)
    await copying.run(progress)
    await Comparison(copying).run(progress)
    return copying.done


def _aligned(
    mine: Sequence[Message], theirs: Sequence[Message], after: int
) -> Iterator[tuple[Message | None, Message | None]]:
    """Yield the messages of both logs at each position of a page."""
    old, new = ({message.seq: message for message in page} for page in (mine, theirs))
    for seq in range(after + 1, max([*old, *new], default=after) + 1):
        yield old.get(seq), new.get(seq)


def _same(mine: Message, theirs: Message) -> bool:
    if mine.state == "damaged":
        return theirs.state == "damaged"  # its original content is unknown
    return all(getattr(mine, name) == getattr(theirs, name) for name in _MESSAGE)


def _unlike(mine: Contents, theirs: Contents, *, own: bool) -> Iterator[str]:
    """Yield the keys of records that differ; unless `own`, the target may have more."""
    for place in mine.keys() | theirs.keys() if own else mine:
        old, new = mine.get(place), theirs.get(place)
        if old != new:
            only = "only at the target" if old is None else "missing" if new is None else "another"
            yield f"{'/'.join(place)} ({only})"
