"""Dense words: those that stand in so many pieces that they tell little; their last places will do.

Whoever keeps an index may stop there, and need not: whoever weighs words stops there too.
"""

from collections.abc import Sequence
from typing import Final

from keepthread.recall.ground import Ground
from keepthread.recall.places import MESSAGE

CUT: Final = 5000
"""So many places of a word mean that there may be more before them."""
_SHARE: Final = 2
"""A word is dense if it stands in one piece of so many, or more often."""
_MANY: Final = 1000
"""Fewer places are no trouble."""
_LAST: Final = 500


def since(places: Sequence[int], ground: Ground) -> int:
    """Return from which place on a word is to be looked at; 0 if it stands nowhere."""
    if len(places) <= _MANY:
        return places[0] if places else 0
    pieces: float = ground.parts
    if len(places) >= CUT:  # it is taken to be as frequent before the first place that is known
        pieces = ground.between(places[0] >> MESSAGE, places[-1] >> MESSAGE)
    return places[-_LAST if _SHARE * len(places) >= pieces else 0]
