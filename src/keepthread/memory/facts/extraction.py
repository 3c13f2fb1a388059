"""Extraction: a model reads conversations and proposes facts, in the background.

It reads after a watermark, a batch of whole turns at a time, one process per session. People's
messages, and answers based only on them, are read separately from texts of tools, the web and
imports, so that such texts cannot be attributed to a person. A fact has the trust of its message
only if the message states it word for word; any other has the lowest trust of everything that was
read with it, and waits to be confirmed. A crash costs the current batch, and reading a batch twice
notes no fact twice.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, cast

from keepthread.context.digest import size
from keepthread.context.hidden import HiddenRanges, opens_turn
from keepthread.context.ids import derived_id
from keepthread.context.trust import lowest, origin_of
from keepthread.errors import InvalidInput, SessionGone, SessionNotFound, Stale
from keepthread.memory.facts.grounding import grounded
from keepthread.memory.facts.proposals import (
    MESSAGE_BYTES,
    ORDERS,
    SCHEMA,
    Proposal,
    proposals,
    shown,
)
from keepthread.memory.facts.provenance import MadeOf, news_in, trust_of, turn_of
from keepthread.memory.facts.repository import FactRepository, Read
from keepthread.memory.facts.resolution import QUARANTINED, said, slot_of
from keepthread.memory.facts.types import Extracted, Noted
from keepthread.memory.history import closed_turn
from keepthread.memory.material import marks_of
from keepthread.memory.tracing import RECORDS, Spans
from keepthread.protocols import ChatModel, Store
from keepthread.stores.kinds import EXTRACTED, MARKS
from keepthread.stores.leases import Leases
from keepthread.types import JSON, Message, Origin, Scope, SessionInfo, SessionKey, Span, Usage

_PAGE: Final = 100
_MOST_MESSAGES: Final = 400
"""Maximum messages in a batch, for very long turns."""
_TRIES: Final = 3
"""Invalid answers of a model before a batch is skipped."""
_MOST_TOKENS: Final = 8000
_MOST_KNOWN: Final = 10_000
_MOST_SESSIONS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Extraction:
    """How facts are extracted from conversations: by which model, and how often.

    Once `turns` closed turns are unread, they are read, in batches of about `batch_bytes`.
    """

    model: ChatModel
    turns: int = 4
    batch_bytes: int = 16_000

    def __post_init__(self) -> None:
        """Refuse numbers below 1."""
        if self.turns < 1 or self.batch_bytes < 1:
            raise InvalidInput("turns and batch_bytes must be at least 1")


class _Mark(NamedTuple):
    """How far a session has been read."""

    upto: int = 0
    turn: int = 0
    tries: int = 0
    version: int = 0


class _Proposed(NamedTuple):
    """A fact that a model proposes, the message it names, and everything that the model read."""

    fact: Noted
    source: Message
    group: Sequence[Message]


class _Batch(NamedTuple):
    """Messages that are read in one step, and the session as it was before they were read."""

    session: SessionInfo
    mark: _Mark
    messages: Sequence[Message]
    marks: HiddenRanges


class Extractor:
    """Extracts facts from the sessions of one store."""

    def __init__(
        self,
        store: Store,
        extraction: Extraction,
        *,
        leases: Leases,
        repository: Callable[[str], FactRepository],
        spans: Spans | None = None,
    ) -> None:
        """Take the store, the model, and the repositories that facts are noted in."""
        self.store = store
        self.extraction = extraction
        self.leases = leases
        self.repository = repository
        self.spans = spans or Spans()
        self._read: dict[SessionKey, int] = {}
        """The last turn that was read of each session, where that is known."""

    def may_be_due(self, session: SessionKey, turn: int) -> bool:
        """Return whether enough messages may be unread, now that a turn is closed."""
        return turn - self._read.get(session, 0) >= self.extraction.turns

    async def extract_all(self, owner: str, session: str | None = None) -> int:
        """Read the unread part of an owner's sessions, or of one; return how many facts are new."""
        if session is None:
            sessions = await self.store.list_sessions(owner=owner, limit=_MOST_SESSIONS)
        else:
            found = await self.store.get_session(session, owner)
            if found is None or not found.ready:
                raise SessionNotFound(f"{owner!r} has no session {session!r}")
            sessions = [found]
        noted = 0
        for each in sorted(sessions, key=lambda info: info.created_at):
            with suppress(SessionGone):
                noted += await self.extract(each.key, whole=True)
        return noted

    async def extract(self, session: SessionKey, *, whole: bool = False) -> int:
        """Extract facts from a session if enough is unread; return how many facts are new.

        `whole` reads everything unread, and waits if another process is reading.
        """
        if not whole and await self._next(session, whole) is None:
            return 0
        noted = 0
        scope = Scope(session=session)
        async with self.leases.held(scope, EXTRACTED, wait=whole, by_clock=True) as mine:
            goes_on = mine
            while goes_on and (batch := await self._next(session, whole)) is not None:
                with self.spans.open("upsert_memory", batch.session.id) as span:
                    new, goes_on = await self._take(batch)
                    span.set_attribute(RECORDS, new)
                noted += new
        return noted

    # --- selecting the next batch ---

    async def _next(self, session: SessionKey, whole: bool) -> _Batch | None:
        """Return the batch to read next, or None if there is not enough yet."""
        info = await self.store.describe(session)
        if info.kind == "delegate" or not info.ready:
            return None
        mark = await self._mark(info)
        if len(self._read) >= _MOST_KNOWN:
            self._read.clear()
        self._read[session] = mark.turn
        marks = marks_of(await self.store.scan(Scope(session=session), MARKS))
        closed = info.turns if whole else await closed_turn(self.store, session, marks)
        if not whole and closed - mark.turn < self.extraction.turns:
            return None
        messages = await self._messages(session, mark.upto, closed)
        return _Batch(info, mark, messages, marks) if messages else None

    async def _messages(self, session: SessionKey, after: int, closed: int) -> list[Message]:
        """Return the messages of some closed turns; a very long turn is cut."""
        found: list[Message] = []
        room = self.extraction.batch_bytes
        while page := await self.store.read(session, after=after, limit=_PAGE):
            for message in page:
                enough = room <= 0 and message.role == "user"
                if message.turn > closed or enough or len(found) >= _MOST_MESSAGES:
                    return found
                room -= min(size(message.content), MESSAGE_BYTES)
                found.append(message)
            after = page[-1].seq
        return found

    async def _mark(self, info: SessionInfo) -> _Mark:
        """Return how far a session was read; a fork's own messages come after its fork point."""
        record = await self.store.get(Scope(session=info.key), EXTRACTED, EXTRACTED)
        if record is None:
            return _Mark()
        value = cast(dict[str, Any], record.value)
        upto, turn = value["upto"], value["turn"]
        if value["session"] != info.key and info.forked_from is not None:
            upto = min(upto, info.forked_from.seq)
            # The record was copied: the source's turns after the fork point are not in this log.
            last = await self.store.find(info.key, seqs=[upto])
            turn = min(turn, last[0].turn if last else 0)
        return _Mark(upto, turn, value["tries"], record.version)

    # --- one batch ---

    async def _take(self, batch: _Batch) -> tuple[int, bool]:
        """Read a batch; return how many facts are new, and whether to continue."""
        owner = batch.session.owner
        visible = [m for m in batch.messages if not batch.marks.hides(m.seq)]
        turns = await self._turns(batch)
        with_news = [m for m in visible if news_in(m)]
        doubted = [m for m in with_news if trust_of(m, turns[m.turn], owner=owner) in QUARANTINED]
        people = [m for m in with_news if m not in doubted]
        found: list[_Proposed] = []
        for group in filter(None, (people, doubted)):
            proposed = await self._ask(batch.session, group)
            if proposed is None:
                return 0, await self._move(batch, passed=False)
            found += [_Proposed(each.fact, each.source, group) for each in proposed]
        try:
            noted = await self._note(batch.session, found, turns)
        except Stale:  # something was erased in the meantime: read it again later
            return 0, False
        return noted, await self._move(batch, passed=True)

    async def _turns(self, batch: _Batch) -> dict[int, list[Message]]:
        """Return the turns that the messages belong to, also those outside of the batch."""
        groups: dict[int, list[Message]] = {}
        for message in batch.messages:
            groups.setdefault(message.turn, []).append(message)
        for group in groups.values():
            session, hides = batch.session.key, batch.marks.hides
            if not opens_turn(group[0]):
                group.extend(await turn_of(self.store, session, group[0]))
            elif hides(group[0].seq) and (seen := [m for m in group if not hides(m.seq)]):
                # They were written after the question was rewound, so they answer another one.
                group.extend(await turn_of(self.store, session, seen[0]))
        return groups

    async def _ask(
        self, session: SessionInfo, messages: Sequence[Message]
    ) -> list[Proposal] | None:
        """Return the model's proposals; None if its answer is invalid."""
        delimiter = session.delimiter or derived_id("delimiter", session.key)[:12]
        model = self.extraction.model
        reply = await model.complete(
            [Message(role="user", content=shown(messages, delimiter))],
            system=ORDERS.format(delimiter=delimiter),
            schema=SCHEMA,
            max_tokens=_MOST_TOKENS,
        )
        taken = None if reply.truncated else proposals(reply.content, messages, session.owner)
        usage = reply.usage or Usage()
        await add_costs(
            self.store,
            session.owner,
            Extracted(
                calls=1,
                input=usage.input,
                output=usage.output,
                cached=usage.cached,
                proposed=len(taken[0]) + taken[1] if taken else 0,
                refused=taken[1] if taken else 1,
            ),
        )
        return taken[0] if taken else None

    async def _note(
        self,
        session: SessionInfo,
        found: Sequence["_Proposed"],
        turns: dict[int, list[Message]],
    ) -> int:
        """Note the facts that are new; an answer that repeats a fact does not make it new."""
        repository = self.repository(session.owner)
        index = await repository.index()
        slots = [index.slot(slot_of(fact))[1] for fact, _, _ in found]
        known = {(slot_of(f), said(f)) for slot in slots for f in slot if f.state != "quarantined"}
        noted = 0
        by = f"model:{self.extraction.model.name}"
        for fact, source, group in found:
            origin = origin_of(source)
            if origin == "assistant" and (slot_of(fact), said(fact)) in known:
                continue

            def trust(message: Message, subject: str = fact.subject) -> Origin:
                turn = turns[message.turn]
                return trust_of(message, turn, owner=session.owner, subject=subject)

            stated = grounded(fact, news_in(source))
            if stated is not None:
                stated, read = stated._replace(trust=trust(source)), Read(session, [source])
            else:  # the model may have derived it from anything it read
                stated = fact._replace(trust=lowest(map(trust, group), "tool"))
                spans = [Span(session.key, m.seq, m.seq) for m in group]
                read = Read(session, [source], MadeOf(spans))
            _, new = await repository.add(stated._replace(origin=origin, by=by), read)
            noted += new
        if noted:
            await add_costs(self.store, session.owner, Extracted(noted=noted))
        return noted

    async def _move(self, batch: _Batch, *, passed: bool) -> bool:
        """Store how far it was read, or that it was tried; return whether to continue."""
        mark, last = batch.mark, batch.messages[-1]
        tries = 0 if passed else mark.tries + 1
        passed = passed or tries >= _TRIES
        value: JSON = {
            "session": batch.session.key,
            "upto": last.seq if passed else mark.upto,
            "turn": max(m.turn for m in batch.messages) if passed else mark.turn,
            "tries": 0 if passed else tries,
        }
        try:
            await self.store.put(
                Scope(session=batch.session.key),
                EXTRACTED,
                EXTRACTED,
                value,
                version=mark.version,
                epochs={batch.session.key: batch.session.epoch},
            )
        except Stale:
            return False
        return passed


async def costs(store: Store, owner: str) -> Extracted:
    """Return what extraction has cost for an owner."""
    record = await store.get(Scope(owner=owner), EXTRACTED, EXTRACTED)
    return Extracted(**cast(dict[str, int], record.value)) if record else Extracted()


async def add_costs(store: Store, owner: str, more: Extracted) -> None:
    """Add to the costs of extraction for an owner."""
    scope = Scope(owner=owner)
    while True:
        record = await store.get(scope, EXTRACTED, EXTRACTED)
        before = Extracted(**cast(dict[str, int], record.value)) if record else Extracted()
        total = [a + b for a, b in zip(before, more, strict=True)]
        value: JSON = cast(JSON, dict(zip(Extracted._fields, total, strict=True)))
        try:
            await store.put(
                scope, EXTRACTED, EXTRACTED, value, version=record.version if record else 0
            )
        except Stale:
            continue
        return
