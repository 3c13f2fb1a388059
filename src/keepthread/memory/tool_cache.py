"""Tool cache: results are looked up before a tool runs and stored after, for a number of turns.

An entry is a record of a session and names the message that holds the result, so that results that
are erased or hidden are not used. It stores the turn in which it ends, not a countdown.
"""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import Final, NamedTuple, cast

from keepthread.context.hidden import HiddenRanges
from keepthread.context.tool_results import TOOL, CacheEntry
from keepthread.errors import SessionGone, Stale
from keepthread.memory.material import marks_of
from keepthread.memory.tool_calls import ToolRequest
from keepthread.protocols import Store
from keepthread.stores.codec import dumps
from keepthread.stores.kinds import MARKS
from keepthread.stores.leases import Leases, Locks
from keepthread.stores.validation import check_id
from keepthread.types import JSON, CachedTool, Message, Record, Scope, SessionKey, Span


class Recorded(NamedTuple):
    """A stored result, and the id of the message with its call."""

    call: str
    result: Message
    fresh: bool = True
    """False if the call already had another result, which then stays."""


class Log(NamedTuple):
    """Messages of a session's log at some positions, and the session's hidden ranges."""

    messages: Mapping[int, Message]
    marks: HiddenRanges


class CacheHit(NamedTuple):
    """A cached result that can be used."""

    record: Record
    entry: CacheEntry
    result: Message


class ToolCache(NamedTuple):
    """The cached tool results that a session uses: its own, or its parent's."""

    store: Store
    leases: Leases
    locks: Locks
    log: SessionKey
    """The session that records calls and results."""
    session: SessionKey
    """The session that the entries belong to."""
    owner: str

    def key(self, request: ToolRequest, author: str | None) -> str:
        """Return the key of an entry: two authors never share a result.

        Tenant and session are not part of it: a record belongs to its session, and a session to its
        tenant. So a fork, which copies both logs and records, uses the copied results.
        """
        person = self.owner if author is None else check_id(author, "author")
        who = [self.owner, person, request.name, request.arguments]
        return sha256(dumps(who, "the key")).hexdigest()

    async def once(
        self,
        request: ToolRequest,
        author: str | None,
        turn: int,
        cache_turns: int,
        *,
        run: Callable[[], Awaitable[Recorded]],
        repeat: Callable[[str], Awaitable[Recorded]] | None = None,
    ) -> str:
        """Return a cached result, or run the tool and cache its result.

        Of concurrent callers, in any process, one runs it. `repeat` records a cached text again,
        for a call that must be answered.
        """
        key = self.key(request, author)

        async def is_there() -> bool:
            return await self.lookup(key, turn) is not None

        async with self.locks.of(self.session, key):
            while (hit := await self.lookup(key, turn)) is None:
                lease = self.leases.held(self._scope, f"{TOOL} {key}", wait=True, needless=is_there)
                async with lease as held:
                    if not held or await is_there():
                        continue
                    recorded = await run()
                    if recorded.fresh:
                        await self.remember(request, author, turn, cache_turns, recorded)
                    return recorded.result.content
            repeated = await repeat(hit.result.content) if repeat else None
            await self._use(hit, turn, repeated if repeated and repeated.fresh else None)
            return (repeated or hit).result.content

    async def remember(
        self,
        request: ToolRequest,
        author: str | None,
        turn: int,
        cache_turns: int,
        recorded: Recorded,
    ) -> None:
        """Cache a result for `cache_turns` turns, `turn` the first of them."""
        result = recorded.result
        entry = CacheEntry(
            name=request.name,
            arguments=request.arguments,
            author=self.owner if author is None else author,
            call=result.tool_call_id or "",
            result=result.id,
            last=turn + cache_turns - 1,
            cache_turns=cache_turns,
            at=result.created_at,
            **await self._ends(),
            sources=await self._spans(recorded),
        )
        key = self.key(request, author)
        while True:
            with suppress(Stale):  # something was erased in the meantime, maybe another message
                return await self._keep(key, entry)

    async def find(self, request: ToolRequest, author: str | None, turn: int) -> str | None:
        """Return a cached result that can be used in a turn, or None; its lifetime starts again."""
        hit = await self.lookup(self.key(request, author), turn)
        if hit is None:
            return None
        await self._use(hit, turn)
        return hit.result.content

    async def lookup(self, key: str, turn: int) -> CacheHit | None:
        """Return the result that can be used under a key in a turn."""
        record = await self.store.get(self._scope, TOOL, key)
        hits = await self._serving([record] if record else [], turn)
        return hits[0] if hits else None

    async def remembered(self, turn: int) -> list[CachedTool]:
        """Return the results that can be used in a turn, oldest first."""
        hits = await self._serving(await self.store.scan(self._scope, TOOL), turn)
        return [
            CachedTool(
                name=entry.name,
                arguments=_parsed(entry.arguments),
                left=entry.last - turn + 1,
                cache_turns=entry.cache_turns,
                call_id=entry.call,
                at=entry.at,
                author=entry.author,
                result=result.content,
            )
            for _, entry, result in sorted(hits, key=self._place)
        ]

    # --- inside ---

    @property
    def _scope(self) -> Scope:
        return Scope(session=self.session)

    async def _spans(self, recorded: Recorded) -> list[Span]:
        (call,) = await self.store.find(self.log, ids=[recorded.call])
        seqs = (call.seq, recorded.result.seq)
        return [Span(session=self.log, first=seq, last=seq) for seq in seqs]

    async def _ends(self) -> dict[str, int]:
        """Return where the log of the session with the entries ends, to compare positions later.

        A result in that session's own log is compared by its own position.
        """
        if self.log == self.session:
            return {"log_end": 0, "visible_end": 0}
        record = await self.store.get(self._scope, MARKS, MARKS)
        end = (await self.store.describe(self.session)).messages
        visible = marks_of([record] if record else []).visible_before(end + 1)
        return {"log_end": end, "visible_end": visible[1] if visible else 0}

    def _place(self, hit: CacheHit) -> tuple[bool, SessionKey, int]:
        """Return the sort key: this log's own results first, by position."""
        span = hit.entry.sources[-1]
        return span.session != self.session, span.session, span.last

    async def _use(self, hit: CacheHit, turn: int, repeated: Recorded | None = None) -> None:
        """Renew an entry's lifetime from a turn; let it name the result that repeated it."""
        used: CacheHit | None = hit
        while used:
            key, version = used.record.key, used.record.version
            entry = used.entry.used(turn)
            try:
                if repeated:
                    await self._keep(key, await self._repointed(entry, repeated), version)
                elif entry != used.entry:
                    await self._put(key, entry, version)
            except Stale:  # another call used it, too
                used = await self.lookup(key, turn)
            else:
                return

    async def _repointed(self, entry: CacheEntry, repeated: Recorded) -> CacheEntry:
        """Return an entry that names another result; the messages it was first made of stay."""
        return entry._replace(
            call=repeated.result.tool_call_id or "",
            result=repeated.result.id,
            at=repeated.result.created_at,
            **await self._ends(),
            sources=[*entry.sources[:2], *await self._spans(repeated)],
        )

    async def _keep(self, key: str, entry: CacheEntry, version: int | None = None) -> None:
        """Store an entry with new sources, unless one of them is gone."""
        sessions = {span.session for span in entry.sources}
        with suppress(SessionGone):
            # Read before the sources are: the put fails if something is erased after that.
            epochs = {session: (await self.store.describe(session)).epoch for session in sessions}
            if self._served(entry, await self._logs([entry])):
                await self._put(key, entry, version, epochs)

    async def _put(
        self,
        key: str,
        entry: CacheEntry,
        version: int | None,
        epochs: Mapping[SessionKey, int] | None = None,
    ) -> None:
        value, spans = entry.to_json(), entry.sources
        await self.store.put(
            self._scope, TOOL, key, value, made_of=spans, version=version, epochs=epochs
        )

    async def _serving(self, records: Sequence[Record], turn: int) -> list[CacheHit]:
        """Return the records that can be used in a turn."""
        entries = [(record, CacheEntry.of(record)) for record in records]
        alive = [(record, entry) for record, entry in entries if entry and entry.last >= turn]
        logs = await self._logs([entry for _, entry in alive])
        found = [(record, entry, self._served(entry, logs)) for record, entry in alive]
        return [CacheHit(record, entry, result) for record, entry, result in found if result]

    async def _logs(self, entries: Sequence[CacheEntry]) -> dict[SessionKey, Log]:
        """Return the messages that entries are made of, by session."""
        seqs: dict[SessionKey, set[int]] = {}
        for span in (span for entry in entries for span in entry.sources):
            seqs.setdefault(span.session, set()).update((span.first, span.last))
        if any(_is_foreign(entry, self.session) for entry in entries):
            seqs.setdefault(self.session, set())
        return {session: await self._log(session, places) for session, places in seqs.items()}

    def _served(self, entry: CacheEntry, logs: Mapping[SessionKey, Log]) -> Message | None:
        """Return the result that an entry names, if it can still be used.

        It can if nothing that the entry is made of was erased or damaged, and the result is not
        hidden. For a result in another session's log, this session's messages right before and
        after it must not be hidden either.
        """
        found = [logs[s.session].messages.get(n) for s in entry.sources for n in (s.first, s.last)]
        if not found or any(message is None or message.state != "live" for message in found):
            return None
        result, log = found[-1], logs[entry.sources[-1].session]
        if result is None or result.id != entry.result or log.marks.hides(result.seq):
            return None
        if _is_foreign(entry, self.session):
            own = logs[self.session].marks
            if own.hides(entry.visible_end) or own.hides(entry.log_end + 1):
                return None
        return result

    async def _log(self, session: SessionKey, seqs: set[int]) -> Log:
        try:
            marks = await self.store.get(Scope(session=session), MARKS, MARKS)
            found = await self.store.find(session, seqs=seqs)
        except SessionGone:  # a delegated task's session was deleted
            found, marks = [], None
        return Log({message.seq: message for message in found}, marks_of([marks] if marks else []))


def _is_foreign(entry: CacheEntry, session: SessionKey) -> bool:
    """Return whether the result is in another session's log than the entry."""
    return bool(entry.sources) and entry.sources[-1].session != session


def made_after(entry: CacheEntry, session: SessionKey, position: int) -> bool:
    """Return whether a result in another log was recorded when this log was beyond a position.

    The position itself counts as beyond: its message was stored before the result.
    """
    return _is_foreign(entry, session) and entry.log_end >= position


def _parsed(arguments: str) -> Mapping[str, JSON]:
    """Return arguments as values; imported ones may not be valid JSON."""
    try:
        value: object = json.loads(arguments)
    except (ValueError, RecursionError):
        return {}
    return cast(dict[str, JSON], value) if isinstance(value, dict) else {}


_PAGE: Final = 100


class Dropping(NamedTuple):
    """The result of looking at some of a session's entries."""

    left: int
    """How many of them are still valid."""
    before: str | None
    """The key to continue before; None after the first entry."""


async def drop_ended(
    store: Store, session: SessionKey, turn: int, before: str | None = None
) -> Dropping:
    """Remove entries of a session that ended with a turn, from the last hundred before a key."""
    scope, left = Scope(session=session), 0
    found = await store.scan(scope, TOOL, before=before, limit=_PAGE)
    for record in found:
        entry = CacheEntry.of(record)
        if entry and entry.last > turn:
            left += 1
            continue
        try:
            await store.drop(scope, TOOL, record.key, version=record.version)
        except Stale:  # it was used in the meantime
            left += 1
    return Dropping(left, found[0].key if len(found) == _PAGE else None)
