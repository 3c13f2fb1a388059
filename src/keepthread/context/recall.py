"""Recalled messages as one quotation, in order of time, under their days.

Between the delimiters each line is a speaker and a text; continuation lines are indented, so that
no text can pass for another speaker. Omitted pieces of a message are dots.
"""

from collections.abc import Sequence, Set
from datetime import UTC, datetime
from functools import lru_cache
from itertools import islice
from typing import Final, NamedTuple

from keepthread.context.quoting import CUT, flat, sanitize, speaker
from keepthread.context.trust import LOWEST_ORIGIN, lowest, trust_in
from keepthread.context.why import WhyBuilder, facts_of
from keepthread.protocols import KnownFact, Recalled, Recollection, TokenCounter
from keepthread.recall.snippet import pack
from keepthread.references import ChunkReference, Reference
from keepthread.types import Choice, Message, Origin

_HEAD: Final = "[recalled, quoted, delimiter {}]"
_END: Final = "[end of quote, delimiter {}]"
_NEAR: Final = 3
"""Number of pieces that just did not fit to mention in `why`."""
_LETTER: Final = 0.22
"""Minimum tokens per letter, until a piece with fewer is counted."""
_SURELY: Final = 0.75
"""Share of that estimate used as a lower bound: a piece above the room is not counted."""
_LABEL: Final = 5
"""Tokens of a line that are not of the piece itself."""
_NO_DAY: Final = "unknown day"
_NO_ROOM: Final = "relevant, but the recall section has reached its share of the budget"


class _RecallLine(NamedTuple):
    """One piece as the quotation shows it."""

    hit: Recollection
    day: str
    text: str
    tokens: int


def recollect(
    recalled: Recalled,
    facts: Sequence[KnownFact],
    room: int,
    counter: TokenCounter,
    delimiter: str,
    account: WhyBuilder,
    *,
    seen: Set[str],
) -> Message | None:
    """Return the best recalled messages in up to `room` tokens, each once.

    `seen` are the ids of messages that are shown elsewhere in the context.
    """
    writer = _RecallWriter(counter, delimiter, facts, _each_once(recalled.hits, seen))
    left = room - writer.frame
    chosen = pack(writer.days, left, _day_tokens(counter), writer.cost) if left > 0 else []
    message = writer.message(chosen)
    while message.tokens > room and chosen:  # joined pieces may cost more than the sum
        chosen = chosen[:-1]
        message = writer.message(chosen)
    _explain_misses(writer, chosen, account)
    if message.tokens > room or not (chosen or writer.facts):
        return None
    account.add_facts(facts)
    shown = [writer.hits[n] for n in chosen]
    chunks = [ChunkReference(hit.id, hit.message.seq, hit.part, hit.segment_start) for hit in shown]
    account.made.append((message, Reference("recalled", facts=facts_of(facts), chunks=chunks)))
    _explain(message, [writer.line(n) for n in chosen], recalled.notes, account)
    return message


def recalled_quotation(
    hits: Sequence[Recollection], facts: Sequence[KnownFact], counter: TokenCounter, delimiter: str
) -> Message:
    """Return the message that shows these pieces and facts."""
    return _RecallWriter(counter, delimiter, facts, hits).message(range(len(hits)))


def _each_once(hits: Sequence[Recollection], seen: Set[str]) -> list[Recollection]:
    """Return the pieces that are not shown elsewhere; copies in forks count as one."""
    found: dict[tuple[str, bytes, int], Recollection] = {}
    for hit in hits:
        if hit.message.id not in seen:
            found.setdefault((hit.message.id, hit.message.digest, hit.part), hit)
    return list(found.values())


class _RecallWriter:
    """Renders pieces and caches their costs."""

    def __init__(
        self,
        counter: TokenCounter,
        delimiter: str,
        facts: Sequence[KnownFact],
        hits: Sequence[Recollection],
    ) -> None:
        self.counter = counter
        self.delimiter = delimiter
        self.facts = [f"Known: {flat(sanitize(fact.text, delimiter))}" for fact in facts]
        self._known = facts
        self.hits = hits
        self.frame = self.message(()).tokens
        self.days = self._days()
        self._labels: dict[str, str] = {}
        self._lines: dict[int, _RecallLine] = {}
        self._cheapest = 0.0
        """The fewest tokens per letter so far."""

    def _days(self) -> list[str]:
        days = {at: _day(at) for at in {hit.segment_start for hit in self.hits}}
        return [days[hit.segment_start] for hit in self.hits]

    def cost(self, number: int, room: int) -> int:
        """Return what a piece costs; one that is far too long for a room is not counted."""
        if _SURELY * self._cheapest * len(self.hits[number].text) > room:
            return room + 1
        return self.line(number).tokens

    def line(self, number: int) -> _RecallLine:
        """Return a piece as the quotation shows it."""
        if (line := self._lines.get(number)) is None:
            line = self._lines[number] = self._line(number)
            rate = (line.tokens - _LABEL) / max(1, len(line.hit.text))
            self._cheapest = min(rate, self._cheapest or _LETTER)
        return line

    def _line(self, number: int) -> _RecallLine:
        hit = self.hits[number]
        body = sanitize(hit.text, self.delimiter).splitlines()
        label = f"{CUT} " if hit.part else self._label(speaker(hit.message))
        text = label + "\n  ".join(body)
        return _RecallLine(hit, self.days[number], text, _cost(self.counter, f"{text}\n"))

    def message(self, numbers: Sequence[int]) -> Message:
        """Return the quotation of these pieces."""
        written = [_HEAD.format(self.delimiter), *self.facts]
        day = ""
        for line in sorted([self.line(n) for n in numbers], key=_in_time):
            if line.day != day:
                day = line.day
                written.append(day)
            written.append(line.text)
        content = "\n".join([*written, _END.format(self.delimiter)])
        message = Message(role="user", content=content, origin="user")
        return Message(
            role="user",
            content=content,
            origin="user",
            meta={LOWEST_ORIGIN: self._trust(numbers)},
            tokens=self.counter.count(message),
            counter=self.counter.name,
        )

    def _trust(self, numbers: Sequence[int]) -> Origin:
        """Return the least trusted origin of the facts and of these pieces."""
        known = lowest(fact.trust for fact in self._known)
        return lowest((trust_in(self.hits[n].message) for n in numbers), known)

    def _label(self, who: str) -> str:
        if who not in self._labels:
            self._labels[who] = f"{flat(sanitize(who, self.delimiter))}: "
        return self._labels[who]


def _day(at: float) -> str:
    try:
        return datetime.fromtimestamp(at, UTC).date().isoformat()
    except (OverflowError, OSError, ValueError):  # stored before times had a bound
        return _NO_DAY


def _cost(counter: TokenCounter, text: str) -> int:
    """Return what a text adds to a message."""
    return counter.count(Message(role="user", content=text)) - _bare(counter)


@lru_cache(maxsize=64)
def _bare(counter: TokenCounter) -> int:
    return counter.count(Message(role="user"))


@lru_cache(maxsize=64)
def _day_tokens(counter: TokenCounter) -> int:
    return _cost(counter, "2026-11-15\n")


def _in_time(line: _RecallLine) -> tuple[str, float, str, int, int]:
    hit = line.hit
    return line.day, hit.segment_start, hit.id, hit.message.seq, hit.part


def _explain(
    message: Message, lines: Sequence[_RecallLine], notes: Sequence[str], account: WhyBuilder
) -> None:
    """Record each shown piece, and the tokens of the quotation around them."""
    left = message.tokens
    for line in lines:
        tokens = min(left, line.tokens)
        left -= tokens
        account.choices.append(_choice(line, tokens, "recalled", line.hit.reason))
    around = "; ".join(["the quotation around recalled messages", *notes])
    account.add_range(0, 0, 1, left, "recalled", around)


def _explain_misses(writer: _RecallWriter, chosen: Sequence[int], account: WhyBuilder) -> None:
    """Record the pieces that would have been next."""
    taken = set(chosen)
    missed = islice((n for n in range(len(writer.hits)) if n not in taken), _NEAR)
    for line in map(writer.line, missed):
        account.choices.append(_choice(line, line.tokens, "", f"{_NO_ROOM}; {line.hit.reason}"))


def _choice(line: _RecallLine, tokens: int, section: str, reason: str) -> Choice:
    seq = line.hit.message.seq
    return Choice(seq, seq, 1, tokens, section, reason, line.hit.id)
