"""Marks: what `clear` and `rewind` hide, kept in one small record so that both cost the same."""

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, NamedTuple

from keepthread.types import JSON, Hidden, Message

CLEARED = "cleared"
REWOUND = "rewound"


class Marks(NamedTuple):
    """The hidden ranges of a session, in order, none touching another's positions."""

    hidden: Sequence[Hidden] = ()

    @classmethod
    def from_json(cls, value: Any) -> "Marks":
        """Return the marks of a record's value."""
        return cls(hidden=tuple(Hidden(**span) for span in value))

    def to_json(self) -> JSON:
        """Return the value of a record."""
        return [
            {"first": s.first, "last": s.last, "tokens": s.tokens, "reason": s.reason}
            for s in self.hidden
        ]

    def hide(self, first: int, last: int, tokens: int, reason: str) -> "Marks":
        """Return these marks with one more range up to the log's end, which swallows others."""
        kept = [span for span in self.hidden if span.last < first]
        new = Hidden(first=first, last=last, tokens=tokens, reason=reason)
        return Marks(sorted([*kept, new], key=lambda span: span.first))

    def upto(self, seq: int) -> "Marks":
        """Return the marks as they were for a log that ended at a position."""
        return Marks([s for s in self.hidden if s.last <= seq])

    def hides(self, seq: int) -> bool:
        """Tell whether a position is hidden."""
        return self.behind(seq) != seq

    def behind(self, seq: int) -> int:
        """Return a position, or the first one behind the range that hides it."""
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
        spans = self.hidden[: bisect_right(self.hidden, seq, key=lambda span: span.first)]
        return sum(s.last - s.first + 1 for s in spans), sum(s.tokens for s in spans)

    def totals(self, messages: Sequence[Message]) -> list[int]:
        """Return the running totals of visible messages, hidden ones left out."""
        if not self.hidden:
            return [message.total for message in messages]
        return [message.total - self.hidden_before(message.seq)[1] for message in messages]

    def _before(self, seq: int) -> Hidden | None:
        index = bisect_right(self.hidden, seq, key=lambda span: span.first)
        return self.hidden[index - 1] if index else None
