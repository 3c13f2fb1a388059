"""Hidden ranges: messages that `clear` and `rewind` hide.

They are stored in one small record, so that both take constant time.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any, Final

from keepthread.text_caches import LeastRecent
from keepthread.types import JSON, Hidden, Message

CLEARED = "cleared"
REWOUND = "rewound"


_KEPT: Final[LeastRecent[int, tuple[object, "HiddenRanges"]]] = LeastRecent(64)
"""Ranges by the identity of what they were made from, which is kept with them."""
_MANY: Final = 16
"""Fewer ranges are made again at no cost."""


@dataclass(frozen=True)
class HiddenRanges:
    """The hidden ranges of a session, in order, none touching another's positions."""

    hidden: Sequence[Hidden] = ()
    inner: Sequence[Hidden] = ()
    """Ranges that were hidden before a later one covered them; a fork from between needs them."""

    @classmethod
    def from_json(cls, value: Any) -> "HiddenRanges":
        """Return the hidden ranges of a record's value."""
        if known := _known(value):
            return known
        hidden = tuple([_hidden(span) for span in value if not span.get("inner")])
        inner = tuple([_hidden(span) for span in value if span.get("inner")])
        return _keep(value, _keep(hidden, cls(hidden, inner)))

    @classmethod
    def of(cls, hidden: Sequence[Hidden]) -> "HiddenRanges":
        """Return ranges that are in order, as every context has them."""
        return _known(hidden) or _keep(hidden, cls(hidden))

    @cached_property
    def _firsts(self) -> list[int]:
        return [span.first for span in self.hidden]

    @cached_property
    def _messages(self) -> list[int]:
        """Return how many messages are hidden before each range."""
        return [*accumulate([s.last - s.first + 1 for s in self.hidden], initial=0)]

    @cached_property
    def _tokens(self) -> list[int]:
        """Return how many tokens are hidden before each range."""
        return [*accumulate([span.tokens for span in self.hidden], initial=0)]

    def to_json(self) -> JSON:
        """Return the value of a record."""
        outer: list[JSON] = [span._asdict() for span in self.hidden]
        return outer + [{**span._asdict(), "inner": True} for span in self.inner]

    def hide(self, first: int, last: int, tokens: int, reason: str) -> "HiddenRanges":
        """Return the ranges plus one more up to the end of the log, which covers others."""
        kept = [span for span in self.hidden if span.last < first]
        new = Hidden(first=first, last=last, tokens=tokens, reason=reason)
        # Hidden again though nothing was added, a range takes the place of its equal.
        later = [span for span in self.hidden if span.last >= first]
        covered = [span for span in later if span[:2] != new[:2]]
        hidden = sorted([*kept, new], key=lambda span: span.first)
        return HiddenRanges(hidden, [*self.inner, *covered])

    def showing(self, message: Message, before: int) -> "HiddenRanges":
        """Return the ranges without one message, which its own turn shows though it is hidden.

        `before` is the running total where the range begins that hides it.
        """
        span = self.hiding(message.seq)
        if span is None:
            return self
        older = min(span.tokens, max(0, message.total - message.tokens - before))
        newer = max(0, span.tokens - older - message.tokens)
        parts = [
            span._replace(last=message.seq - 1, tokens=older),
            span._replace(first=message.seq + 1, tokens=newer),
        ]
        others = [each for each in self.hidden if each != span]
        kept = [*others, *(part for part in parts if part.first <= part.last)]
        return HiddenRanges(sorted(kept, key=lambda each: each.first))

    def hiding(self, seq: int) -> Hidden | None:
        """Return the range that hides a position."""
        span = self._before(seq)
        return span if span is not None and seq <= span.last else None

    def until(self, seq: int) -> "HiddenRanges":
        """Return the ranges as they were for a log that ended at a position."""
        return _nested([span for span in (*self.hidden, *self.inner) if span.last <= seq])

    def without_latest(self) -> "HiddenRanges":
        """Return the ranges before the one that was hidden last; those it covered are back."""
        return _nested([*self.hidden[:-1], *self.inner])

    def hides(self, seq: int) -> bool:
        """Return whether a position is hidden."""
        return self.next_visible(seq) != seq

    def next_visible(self, seq: int) -> int:
        """Return the position, or the first one after the range that hides it."""
        span = self._before(seq)
        return span.last + 1 if span is not None and seq <= span.last else seq

    def visible_before(self, seq: int) -> tuple[int, int] | None:
        """Return the nearest range of visible positions that ends before `seq`, or None."""
        last = seq - 1
        while (span := self._before(last)) is not None and last <= span.last:
            last = span.first - 1
        if last < 1:
            return None
        return (span.last + 1 if span else 1), last

    def hidden_before(self, seq: int) -> tuple[int, int]:
        """Return how many messages and tokens are hidden before a position."""
        index = bisect_right(self._firsts, seq)
        return self._messages[index], self._tokens[index]

    def within(self, first: int, last: int) -> Sequence[Hidden]:
        """Return the ranges that share a position with another range."""
        start = bisect_right(self._firsts, first)
        if start and self.hidden[start - 1].last >= first:
            start -= 1
        return self.hidden[start : bisect_right(self._firsts, last)]

    def totals(self, messages: Sequence[Message]) -> list[int]:
        """Return the running totals of visible messages, hidden ones left out."""
        if not self.hidden:
            return [message.total for message in messages]
        return [message.total - self.hidden_before(message.seq)[1] for message in messages]

    def _before(self, seq: int) -> Hidden | None:
        index = bisect_right(self._firsts, seq)
        return self.hidden[index - 1] if index else None


def _nested(spans: Sequence[Hidden]) -> HiddenRanges:
    """Return ranges of which some may be inside others; those inside are kept as `inner`."""
    hidden: list[Hidden] = []
    inner: list[Hidden] = []
    last = 0
    for span in sorted(spans, key=lambda span: (span.first, -span.last)):
        (inner if span.last <= last else hidden).append(span)
        last = max(last, span.last)
    return HiddenRanges(hidden, inner)


def _hidden(span: Any) -> Hidden:
    return Hidden(span["first"], span["last"], span["tokens"], span["reason"])


def _known(made_from: object) -> HiddenRanges | None:
    found = _KEPT.get(id(made_from))
    return found[1] if found else None


def _keep(made_from: Sequence[object], ranges: HiddenRanges) -> HiddenRanges:
    if len(made_from) >= _MANY:
        _KEPT.put(id(made_from), (made_from, ranges))
    return ranges


def opens_turn(message: Message) -> bool:
    """Return whether a message is the question of a turn."""
    return message.role == "user" and message.turn > 0


class QuestionTracker:
    """Tracks the visible questions of a log; pass it all messages in order."""

    def __init__(self, marks: HiddenRanges | None = None) -> None:
        """Begin with no question; without ranges, pass visible messages only."""
        spans = (*marks.hidden, *marks.inner) if marks else ()
        self._spans = sorted(spans, key=lambda span: span.last, reverse=True)
        self._seen: dict[int, int] = {}
        """The positions of the questions, by their turns, in order."""

    def turn(self, message: Message) -> int:
        """Return the turn that the next message belongs to."""
        while self._spans and self._spans[-1].last < message.seq:  # it was hidden by then
            span = self._spans.pop()
            while self._seen and next(reversed(self._seen.values())) >= span.first:
                self._seen.popitem()
        if opens_turn(message):
            self._seen.setdefault(message.turn, message.seq)
        if message.turn in self._seen or not self._seen:
            return message.turn
        latest = next(reversed(self._seen))
        return min(latest, message.turn)
