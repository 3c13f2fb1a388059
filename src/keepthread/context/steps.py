"""Where a window starts: the newest units that fit, less what shares a step with one that does not.

A unit has a place, the running total before it, which never changes, and a size, what it takes to
show it now. A unit that cannot be shown any more has a place and no size. Places are divided
into steps of equal length; a step is left out as a whole once one of its units does not fit.
"""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple


class Start(NamedTuple):
    """The first unit of a window, and the unit whose arrival made it start there."""

    unit: int
    since: int


class Extent:
    """The places of units, ascending, and their sizes, in tokens or in messages."""

    def __init__(self, places: Sequence[int], sizes: Sequence[int]) -> None:
        """Add the sizes up from the end."""
        self.places = places
        self.after = [*accumulate(reversed(sizes), initial=0)][::-1]
        """The size of each unit and all units after it; 0 at the end."""

    def slide(self, room: int) -> int:
        """Return the first unit from which on all fit."""
        # Negated, because bisection needs ascending values.
        return min(bisect_left(self.after, -room, key=int.__neg__), len(self.places))

    def start(self, room: int, step: int) -> Start:
        """Return where a window starts that moves in steps; a step of 0 slides."""
        unit = self.slide(room)
        if not unit or not step:
            return Start(unit, len(self.places) - 1)
        edge = self.places[unit - 1] // step * step
        return Start(bisect_left(self.places, edge + step, lo=unit), self._outgrown(edge, room))

    def _outgrown(self, edge: int, room: int) -> int:
        """Return the unit with which all from a place on became more than fits."""
        unread = max(0, self.places[0] - edge)
        first = self.after[bisect_left(self.places, edge)]
        # The first unit after which less is left than required.
        after = bisect_left(self.after, room - unread - first + 1, key=int.__neg__)
        return max(0, min(after, len(self.places)) - 1)
