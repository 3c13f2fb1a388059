"""Corpus statistics: the segments of the searched scope, in the order of places."""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, Final, NamedTuple, cast, overload

from keepthread.recall.positions import MESSAGE, MOST_SEQ, SEQ_BITS, span
from keepthread.types import Segment, SessionKey

PAUSE: Final = 6 * 3600.0
"""Seconds of silence after which a new segment begins."""
_TYPES: Final = "ddqqq"
"""Of the columns: a segment without its session and first position."""


class _Totals(NamedTuple):
    """Sums over all segments."""

    length: int
    answered: int
    """Segments in which an assistant takes part."""
    before: "array[int]"
    """The parts before each segment, and at the end those of all."""


class CorpusStats(Sequence[Segment]):
    """The segments of a scope in the order of places, and their totals. It never changes.

    Segments are stored as columns of numbers: a scope may have a hundred thousand of them, and
    `changed` copies them whenever a session was indexed further.
    """

    def __init__(
        self,
        starts: Sequence[int] = (),
        columns: Sequence[Sequence[Any]] = ((),) * len(_TYPES),
        totals: _Totals | None = None,
    ) -> None:
        """Take the first message of each segment, and the columns; totals only if known."""
        self.starts = list(starts)
        """The first message of each: its place without part and length."""
        self._columns = [array(kind, column) for kind, column in zip(_TYPES, columns, strict=True)]
        self.started, self._ended, self._parts, self.lengths, self._answers = self._columns
        self._end = ((starts[-1] if starts else 0) >> SEQ_BITS) + 1 << SEQ_BITS
        if totals is None:
            answered = sum([answers > 0 for answers in self._answers])
            before = array("q", accumulate(self._parts, initial=0))
            totals = _Totals(sum(self.lengths), answered, before)
        self._totals = totals
        self._before = totals.before

    @classmethod
    def of(cls, segments: Sequence[Segment]) -> "CorpusStats":
        """Return the statistics of these segments, given in any order."""
        if isinstance(segments, CorpusStats):
            return segments
        rows = sorted([(int(s[0]) << SEQ_BITS | s[1], *s[2:]) for s in segments])
        if not rows:
            return cls()
        starts, *columns = zip(*rows, strict=True)
        return cls(starts, columns)

    def changed(self, sessions: Mapping[int, Sequence[Segment]]) -> "CorpusStats":
        """Return the statistics with other segments of some sessions, by their numbers."""
        starts, columns = self.starts.copy(), [column[:] for column in self._columns]
        _, _, parts, lengths, answers = columns
        length, answered, before = self._totals
        lowest = len(starts)
        for number, segments in sessions.items():
            first = bisect_left(starts, number << SEQ_BITS)
            last = bisect_left(starts, number + 1 << SEQ_BITS, first)
            rows = sorted([s[1:] for s in segments])
            length += sum([row[4] for row in rows]) - sum(lengths[first:last])
            answered += sum([row[5] > 0 for row in rows])
            answered -= sum([answer > 0 for answer in answers[first:last]])
            starts[first:last] = [number << SEQ_BITS | row[0] for row in rows]
            for n, (kind, column) in enumerate(zip(_TYPES, columns, strict=True), 1):
                column[first:last] = array(kind, [row[n] for row in rows])
            lowest = min(lowest, first)
        rest = accumulate(parts[lowest:], initial=before[lowest])
        totals = _Totals(length, answered, before[:lowest] + array("q", rest))
        return CorpusStats(starts, columns, totals)

    @property
    def length(self) -> int:
        """Return the total number of words."""
        return self._totals.length

    @property
    def parts(self) -> int:
        """Return the total number of parts."""
        return self._before[-1]

    @property
    def assisted(self) -> bool:
        """Return whether an assistant takes part in at least half of the segments.

        With one earlier conversation, the segment of a question without an answer is the other
        half.
        """
        return 0 < len(self.starts) <= 2 * self._totals.answered

    def __eq__(self, other: object) -> bool:
        """Return whether another sequence has the same segments."""
        return isinstance(other, Sequence) and list(self) == list(cast(Sequence[Any], other))

    __hash__ = None  # pyright: ignore[reportAssignmentType] - as of a list

    def __len__(self) -> int:
        """Return the number of segments."""
        return len(self.starts)

    @overload
    def __getitem__(self, index: int) -> Segment: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Segment]: ...

    def __getitem__(self, index: int | slice) -> Segment | Sequence[Segment]:
        """Return a segment by its number, or several."""
        if isinstance(index, slice):
            return [self[n] for n in range(*index.indices(len(self)))]
        start = self.starts[index]
        row = [column[index] for column in self._columns]
        return Segment(SessionKey(str(start >> SEQ_BITS)), start & MOST_SEQ, *row)

    def at(self, message: int) -> int:
        """Return which segment a message is in."""
        return max(0, bisect_right(self.starts, message) - 1)

    def end_of(self, segment: int) -> int:
        """Return the first message after a segment."""
        return self.starts[segment + 1] if segment + 1 < len(self.starts) else self._end

    def messages(self, segment: int) -> range:
        """Return the messages that a segment may have; it has at most as many as parts."""
        start = self.starts[segment]
        return range(start, min(self.end_of(segment), start + self._parts[segment]))

    def began(self, message: int) -> float | None:
        """Return when the segment of a message began, or None if it is in no segment."""
        n = bisect_right(self.starts, message) - 1
        if n < 0 or self.starts[n] >> SEQ_BITS != message >> SEQ_BITS:
            return None
        return self.started[n]

    def parts_from(self, message: int) -> int:
        """Return how many parts there are from the segment of a message on."""
        return self.parts - self._before[self.at(message)]

    def between(self, first: int, last: int) -> float:
        """Return about how many parts there are from one message to another, both included."""
        begin, end = self.at(first), self.at(last)
        parts = self._before[end] - self._before[begin]
        return parts - self._share(first, begin, last) + self._share(last + 1, end, last)

    def _share(self, message: int, segment: int, last: int) -> float:
        """Return about how many parts of a segment are before a message; it may end at `last`."""
        start, end = self.starts[segment], min(self.end_of(segment), last + 1)
        share = (message - start) / max(1, end - start)
        return self._parts[segment] * min(1.0, max(0.0, share))

    def runs(self, places: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Yield the segments that places are in, and how many are in each."""
        starts, end_of = self.starts, self.end_of
        first, count = 0, len(places)
        while first < count:
            segment = max(0, bisect_right(starts, places[first] >> MESSAGE) - 1)
            last = bisect_left(places, end_of(segment) << MESSAGE, first + 1)
            yield segment, last - first
            first = last

    def spans_within(self, since: float, until: float) -> list[tuple[int, int]]:
        """Return the lowest and highest places between which messages of a time may be, in order.

        A range may include messages of other times, because times of messages need not rise: inside
        a segment a message may be up to `PAUSE` earlier than the one before.
        """
        spans: list[tuple[int, int]] = []
        for number, (started, ended) in enumerate(zip(self.started, self._ended, strict=True)):
            if ended < since or started - PAUSE >= until:
                continue
            start, end = self.starts[number], self.end_of(number)
            session = start >> SEQ_BITS
            last = end - 1 & MOST_SEQ if (end - 1) >> SEQ_BITS == session else MOST_SEQ
            low, high = span(session, start & MOST_SEQ, last)
            if spans and spans[-1][1] + 1 == low:
                low = spans.pop()[0]
            spans.append((low, high))
        return spans
