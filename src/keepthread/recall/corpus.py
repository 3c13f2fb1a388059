"""Corpus statistics: the sittings of the searched scope, in the order of places."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from keepthread.recall.positions import MESSAGE, MOST_SEQ, SEQ_BITS, span
from keepthread.types import Sitting

PAUSE: Final = 6 * 3600.0
"""Seconds of silence after which a new sitting begins."""


def is_assisted(sittings: Sequence[Sitting]) -> bool:
    """Return whether an assistant takes part in most sittings."""
    return 2 * sum([sitting.answers > 0 for sitting in sittings]) > len(sittings)


def spans_within(sittings: Sequence[Sitting], since: float, until: float) -> list[tuple[int, int]]:
    """Return the lowest and highest places between which messages of a time may be, in order.

    A range may include messages of other times, because times of messages need not rise: inside a
    sitting a message may be up to `PAUSE` earlier than the one before.
    """
    spans: list[tuple[int, int]] = []
    ordered = sorted(sittings, key=lambda sitting: (int(sitting.session), sitting.first))
    for number, sitting in enumerate(ordered):
        if sitting.ended_at < since or sitting.started_at - PAUSE >= until:
            continue
        following = ordered[number + 1] if number + 1 < len(ordered) else None
        same = following is not None and following.session == sitting.session
        last = following.first - 1 if following and same else MOST_SEQ
        low, high = span(int(sitting.session), sitting.first, last)
        if spans and spans[-1][1] + 1 == low:
            low = spans.pop()[0]
        spans.append((low, high))
    return spans


class CorpusStats(NamedTuple):
    """The sittings of a scope in order, and their totals."""

    starts: Sequence[int]
    """The first message of each: its place without part and length."""
    ends: Sequence[int]
    """The first message after each."""
    sittings: Sequence[Sitting]
    parts: int
    length: int
    assisted: bool
    """Whether an assistant takes part in most sittings."""

    @classmethod
    def of(cls, sittings: Sequence[Sitting]) -> "CorpusStats":
        """Return the statistics of these sittings."""
        begun = sorted([(int(s[0]) << SEQ_BITS | s[1], n) for n, s in enumerate(sittings)])
        starts = [start for start, _ in begun]
        return cls(
            starts=starts,
            ends=[*starts[1:], ((starts[-1] if starts else 0) >> SEQ_BITS) + 1 << SEQ_BITS],
            sittings=[sittings[n] for _, n in begun],
            parts=sum([sitting.parts for sitting in sittings]),
            length=sum([sitting.length for sitting in sittings]),
            assisted=is_assisted(sittings),
        )

    def at(self, message: int) -> int:
        """Return which sitting a message is in."""
        return max(0, bisect_right(self.starts, message) - 1)

    def messages(self, sitting: int) -> range:
        """Return the messages that a sitting may have; it has at most as many as parts."""
        start = self.starts[sitting]
        return range(start, min(self.ends[sitting], start + self.sittings[sitting].parts))

    def began(self, message: int) -> float | None:
        """Return when the sitting of a message began, or None if it is in no sitting."""
        n = bisect_right(self.starts, message) - 1
        if n < 0 or self.starts[n] >> SEQ_BITS != message >> SEQ_BITS:
            return None
        return self.sittings[n].started_at

    def between(self, first: int, last: int) -> float:
        """Return about how many parts there are from one message to another, both included."""
        begin, end = self.at(first), self.at(last)
        parts = sum([sitting.parts for sitting in self.sittings[begin:end]])
        return parts - self._before(first, begin, last) + self._before(last + 1, end, last)

    def _before(self, message: int, sitting: int, last: int) -> float:
        """Return about how many parts of a sitting are before a message; it may end at `last`."""
        start, end = self.starts[sitting], min(self.ends[sitting], last + 1)
        share = (message - start) / max(1, end - start)
        return self.sittings[sitting].parts * min(1.0, max(0.0, share))

    def runs(self, places: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Yield the sittings that places are in, and how many are in each."""
        starts, ends = self.starts, self.ends
        first, count = 0, len(places)
        while first < count:
            sitting = max(0, bisect_right(starts, places[first] >> MESSAGE) - 1)
            last = bisect_left(places, ends[sitting] << MESSAGE, first + 1)
            yield sitting, last - first
            first = last
