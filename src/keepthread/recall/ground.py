"""The ground that is searched: the sittings of a scope, in the order of places."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from keepthread.recall.places import MESSAGE, SEQ_BITS
from keepthread.types import Found, Sitting


def is_assisted(sittings: Sequence[Sitting]) -> bool:
    """Tell whether an assistant takes part in most sittings."""
    return 2 * sum([sitting.answers > 0 for sitting in sittings]) > len(sittings)


class Ground(NamedTuple):
    """The sittings of a scope in order, and how much they hold in all."""

    starts: Sequence[int]
    """The first message of each: its place without part and length."""
    sittings: Sequence[Sitting]
    parts: int
    length: int
    assisted: bool
    """Whether an assistant takes part in most sittings."""

    @classmethod
    def of(cls, found: Found) -> "Ground":
        """Return the ground that was searched."""
        begun = sorted((int(s.session) << SEQ_BITS | s.first, n) for n, s in enumerate(found[1]))
        return cls(
            starts=[start for start, _ in begun],
            sittings=[found.sittings[n] for _, n in begun],
            parts=sum([sitting.parts for sitting in found.sittings]),
            length=sum([sitting.length for sitting in found.sittings]),
            assisted=is_assisted(found.sittings),
        )

    def at(self, message: int) -> int:
        """Return which sitting a message is in."""
        return max(0, bisect_right(self.starts, message) - 1)

    def end(self, sitting: int) -> int:
        """Return the first message behind a sitting."""
        if sitting + 1 < len(self.starts):
            return self.starts[sitting + 1]
        return (self.starts[sitting] >> SEQ_BITS) + 1 << SEQ_BITS

    def messages(self, sitting: int) -> range:
        """Return the messages that a sitting may have; it has at most as many as parts."""
        start = self.starts[sitting]
        return range(start, min(self.end(sitting), start + self.sittings[sitting].parts))

    def runs(self, places: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Yield the sittings that places are in, and how many are in each."""
        first = 0
        while first < len(places):
            sitting = self.at(places[first] >> MESSAGE)
            last = bisect_left(places, self.end(sitting) << MESSAGE, first + 1)
            yield sitting, last - first
            first = last
