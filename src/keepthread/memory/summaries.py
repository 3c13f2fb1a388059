"""Compaction: old turns become a running summary in the background; the log is unchanged.

A compaction takes the oldest closed turns that no summary covers, a range of positions without
gaps, and stores a record of its own: the summary of everything up to its end. So nothing is
compacted twice or skipped, a crash loses only the compaction that was running, and a compaction
that covers hidden or erased messages is skipped in favor of the newest one that does not.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple, cast

from keepthread.context.blocks import is_answer
from keepthread.context.digest import size, turn_line
from keepthread.context.hidden import HiddenRanges, QuestionTracker
from keepthread.context.importance import Cues
from keepthread.context.quoting import in_short
from keepthread.context.trust import lowest, trust_in
from keepthread.errors import InvalidInput, Stale
from keepthread.memory.history import closed_turn
from keepthread.memory.material import marks_of, newest_summary, position_key, summary_of
from keepthread.memory.tracing import RECORDS, Spans
from keepthread.models.summarizers import EXTRACTIVE, Extractive, shortened
from keepthread.protocols import Progress, Scorer, Store, Summarizer, TokenCounter
from keepthread.stores.kinds import COSTS, DIGEST, FOLD, MARKS
from keepthread.stores.leases import Leases
from keepthread.types import (
    JSON,
    Message,
    Origin,
    Scope,
    SessionInfo,
    SessionKey,
    Span,
    Summary,
    Usage,
)

_PAGE: Final = 100
_QUESTION_BYTES: Final = 300
_MOST_KNOWN: Final = 10_000
_DENSE: Final = 32
"""The newest 2 × `_DENSE` compactions all stay; of older ones, fewer the older they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compaction:
    """How old turns become a summary; sizes are bytes of UTF-8.

    More than `turns` closed turns: the oldest `batch_size` are compacted. A summary over
    `summary_bytes` is compressed to `compressed_bytes`; answers over `answer_bytes` are shown and
    compacted as digests of about `digest_bytes`. Up to
    `max_important` important messages are remembered.
    """

    summarizer: Summarizer = field(default_factory=Extractive)
    scorer: Scorer = field(default_factory=Cues)
    turns: int = 10
    batch_size: int = 5
    answer_bytes: int = 750
    digest_bytes: int = 500
    summary_bytes: int = 4000
    compressed_bytes: int = 3000
    max_important: int = 24

    def __post_init__(self) -> None:
        """Refuse sizes that contradict each other."""
        if not 0 < self.batch_size <= self.turns:
            raise InvalidInput("batch_size must be at least 1 and at most `turns`")
        if not 0 < self.digest_bytes <= self.answer_bytes:
            raise InvalidInput("digest_bytes must be at least 1 and at most `answer_bytes`")
        if not 0 < self.compressed_bytes <= self.summary_bytes:
            raise InvalidInput("compressed_bytes must be at least 1 and at most `summary_bytes`")


class Costs(NamedTuple):
    """Tokens and calls that models took to shorten texts of one session."""

    calls: int = 0
    input: int = 0
    output: int = 0
    cached: int = 0
    compressions: int = 0
    """Summaries that a model compressed; digests of long answers do not count."""
    refused: int = 0
    """Answers of a model that could not be used."""


class Compactor:
    """Compacts the sessions of one store."""

    def __init__(
        self,
        *,
        store: Store,
        counter: TokenCounter,
        compaction: Compaction,
        leases: Leases,
        spans: Spans | None = None,
    ) -> None:
        """Take the store and the settings."""
        self.store = store
        self.counter = counter
        self.compaction = compaction
        self.leases = leases
        self.spans = spans or Spans()
        self.compacted: dict[SessionKey, int] = {}
        """The last turn that each session's summary covers, where that is known."""

    def may_be_due(self, session: SessionKey, turn: int) -> bool:
        """Return whether a compaction may be due, now that a turn is closed."""
        return turn - self.compacted.get(session, 0) > self.compaction.turns

    async def compact(
        self, session: SessionKey, *, wait: bool = False, progress: Progress | None = None
    ) -> int:
        """Compact old turns; return the number of compactions.

        One process at a time compacts a session; with `wait`, this call waits for the other one.
        `progress` counts turns.
        """
        made = total = 0
        begun: int | None = None
        if not wait and await self._next(session) is None:
            return 0
        lease = self.leases.held(Scope(session=session), FOLD, wait=wait, by_clock=True)
        async with lease as mine:
            while mine and (due := await self._next(session)) is not None:
                begun = due.compacted if begun is None else begun
                total = self._count_due(due.closed - begun)
                if progress:
                    progress(min(due.compacted - begun, total), total)
                with self.spans.open("upsert_memory", due.id) as span:
                    span.set_attribute(RECORDS, 1)
                    span.set_attribute("keepthread.messages", len(due.messages))
                    made += await self._compact(session, due)
            if progress and total:
                progress(total, total)
        return made

    # --- selecting the next range ---

    async def _next(self, session: SessionKey) -> "_Due | None":
        """Return the next range to compact, or None if nothing is due."""
        head = await self.store.describe(session)
        marks = marks_of(await self.store.scan(Scope(session=session), MARKS))
        previous = await newest_summary(self.store, session, marks.hidden, before=head.messages + 1)
        compacted = previous.turn if previous else 0
        if len(self.compacted) >= _MOST_KNOWN:
            self.compacted.clear()
        self.compacted[session] = compacted
        if head.turns - compacted <= self.compaction.turns:
            return None
        closed = await closed_turn(self.store, session, marks)
        if closed - compacted <= self.compaction.turns:
            return None
        due = _Due(previous, marks, head, closed)
        return due if await self._read(session, due) else None

    def _count_due(self, uncompacted: int) -> int:
        """Return how many of the closed turns that no summary covers are to be compacted."""
        over = uncompacted - self.compaction.turns
        return -(-over // self.compaction.batch_size) * self.compaction.batch_size

    async def _read(self, session: SessionKey, due: "_Due") -> bool:
        """Read messages until enough closed turns are known; return whether there are enough."""
        after = due.previous.last if due.previous else 0
        opened = 0
        while page := await self.store.read(
            session, after=due.marks.next_visible(after + 1) - 1, limit=_PAGE
        ):
            for message in page:
                if due.marks.hides(message.seq):
                    continue
                if message.role == "user" and message.turn <= due.closed:
                    opened += 1
                if opened > self.compaction.turns:
                    return True
                if opened <= self.compaction.batch_size:
                    due.messages.append(message)
            after = page[-1].seq
        return False

    # --- one compaction ---

    async def _compact(self, session: SessionKey, due: "_Due") -> bool:
        """Make one compaction; return whether it was stored."""
        epochs = {session: due.epoch}
        digests = await self._digests(session, due, epochs)
        text = "\n".join(filter(None, [due.text, *_lines(due.messages, self.compaction, digests)]))
        by = "lines"
        if size(text) > self.compaction.summary_bytes:
            limit = self.compaction.compressed_bytes
            text, by = await self._shorten(session, text, limit, is_summary=True)
        last = due.messages[-1]
        value: JSON = {
            "text": text,
            "last": last.seq,
            "turn": max(m.turn for m in due.messages),
            "number": due.number,
            "tokens": last.total - due.marks.hidden_before(last.seq)[1],
            "origin": due.origin,
            "kept": [list(each) for each in self._important(due)],
            "head": due.head,
            "by": by,
        }
        try:
            await self.store.put(
                Scope(session=session),
                FOLD,
                position_key(last.seq),
                value,
                made_of=due.spans(session),
                version=0,
                epochs=epochs,
            )
        except Stale:  # erased in the meantime, or compacted by a process that took the lease
            return False
        if due.number % _DENSE == 0:
            await self._thin(session, due.number)
        return True

    async def _digests(
        self, session: SessionKey, due: "_Due", epochs: Mapping[SessionKey, int]
    ) -> dict[int, str]:
        """Return the digests of long answers; make those that are missing."""
        scope = Scope(session=session)
        made: dict[int, str] = {}
        answers = [m for m in due.messages if is_answer(m) and m.state == "live"]
        for message in answers:
            if size(message.content) <= self.compaction.answer_bytes:
                continue
            key = position_key(message.seq)
            known = await self.store.get(scope, DIGEST, key)
            if known is not None:
                made[message.seq] = cast(list[str], known.value)[0]
                continue
            text, by = await self._shorten(session, message.content, self.compaction.digest_bytes)
            text = text if by == EXTRACTIVE else in_short(text)
            short = replace(message, content=text, native=None, attachments=())
            tokens = self.counter.count(short)
            span = Span(session=session, first=message.seq, last=message.seq)
            value = [text, tokens, self.counter.name, due.head]
            try:
                await self.store.put(
                    scope, DIGEST, key, value, made_of=[span], version=0, epochs=epochs
                )
            except Stale:  # storing the compaction will fail for the same reason
                continue
            made[message.seq] = text
        return made

    def _important(self, due: "_Due") -> list[tuple[int, float, str]]:
        """Return the most important messages so far, by position."""
        found = list(due.previous.important) if due.previous else []
        for message in due.messages:
            mark = self.compaction.scorer.score(message) if message.state == "live" else None
            if mark is not None:
                found.append((message.seq, mark.score, mark.reason))
        found.sort(key=lambda each: (each[1], each[0]))
        return sorted(found[max(0, len(found) - self.compaction.max_important) :])

    async def _thin(self, session: SessionKey, newest: int) -> None:
        """Drop most of the older compactions: the older, the fewer are needed."""
        scope = Scope(session=session)
        for record in await self.store.scan(scope, FOLD):
            if not _stays(summary_of(record).number, newest):
                await self.store.drop(scope, FOLD, record.key)

    # --- shortening and its cost ---

    async def _shorten(
        self, session: SessionKey, text: str, limit: int, *, is_summary: bool = False
    ) -> tuple[str, str]:
        """Return a text in up to `limit` bytes, and the name of what shortened it."""
        summarizer = self.compaction.summarizer
        short, usage, refusal = await shortened(summarizer, text, limit)
        if not isinstance(summarizer, Extractive):
            refused = bool(refusal)
            compressed = is_summary and not refused
            await self._note(session, usage or Usage(), compressed=compressed, refused=refused)
        return short, EXTRACTIVE if refusal else summarizer.name

    async def _note(
        self, session: SessionKey, usage: Usage, *, compressed: bool, refused: bool
    ) -> None:
        """Add a model's call to the costs of the session."""
        scope = Scope(session=session)
        while True:
            record = await self.store.get(scope, COSTS, COSTS)
            before = costs_of(record.value if record else None)
            value: JSON = {
                "calls": before.calls + 1,
                "input": before.input + usage.input,
                "output": before.output + usage.output,
                "cached": before.cached + usage.cached,
                "compressions": before.compressions + compressed,
                "refused": before.refused + refused,
            }
            try:
                version = record.version if record else 0
                await self.store.put(scope, COSTS, COSTS, value, version=version)
            except Stale:
                continue
            return


def costs_of(value: JSON) -> Costs:
    """Return the costs from a record's value."""
    return Costs(**cast(dict[str, int], value)) if value else Costs()


class _Due:
    """A range that is to be compacted: the summary before it, and its messages."""

    def __init__(
        self, previous: Summary | None, marks: HiddenRanges, session: SessionInfo, closed: int
    ) -> None:
        self.previous = previous
        self.marks = marks
        self.closed = closed
        self.id = session.id
        self.epoch = session.epoch
        self.head = session.messages
        self.messages: list[Message] = []

    @property
    def text(self) -> str:
        return self.previous.text if self.previous else ""

    @property
    def compacted(self) -> int:
        """Return the last turn that the summary before covers."""
        return self.previous.turn if self.previous else 0

    @property
    def number(self) -> int:
        return self.previous.number + 1 if self.previous else 1

    @property
    def origin(self) -> Origin:
        """Return the lowest trust among what the summary is made from."""
        origins: list[Origin] = [trust_in(m) for m in self.messages if m.state == "live"]
        if self.previous:
            origins.append(self.previous.origin)
        return lowest(origins) if origins else "user"

    def spans(self, session: SessionKey) -> list[Span]:
        """Return the ranges that the summary is made of, with those of the summary before."""
        ranges = [(span.first, span.last) for span in self.previous.spans] if self.previous else []
        for message in self.messages:
            if ranges and ranges[-1][1] == message.seq - 1:
                ranges[-1] = (ranges[-1][0], message.seq)
            else:
                ranges.append((message.seq, message.seq))
        return [Span(session=session, first=first, last=last) for first, last in ranges]


def _lines(
    messages: Sequence[Message], compaction: Compaction, digests: Mapping[int, str]
) -> list[str]:
    """Return a line for each turn, in the order in which they began."""
    groups: dict[int, list[Message]] = {}
    questions = QuestionTracker()
    for message in messages:
        groups.setdefault(questions.turn(message), []).append(message)
    limits = {"user": _QUESTION_BYTES, "answer": compaction.answer_bytes}
    return [turn_line(group, **limits, digests=digests) for group in groups.values()]


def _stays(number: int, newest: int) -> bool:
    """Return whether a compaction stays: by age every one, second, fourth or eighth stays."""
    sparse = max(1, (newest - number) // _DENSE)
    return number % (1 << (sparse.bit_length() - 1)) == 0
