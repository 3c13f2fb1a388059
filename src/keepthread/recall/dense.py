"""Dense words: those that stand in so many pieces that they tell little; their last places will do.

Whoever keeps an index may stop there, and need not: whoever weighs words stops there too.
"""

from collections.abc import Sequence
from typing import Final

_SHARE: Final = 2
"""A word is dense if it stands in one piece of so many, or more often."""
_MANY: Final = 1000
"""Fewer places are no trouble."""
_LAST: Final = 500


def since(places: Sequence[int], parts: int) -> int:
    """Return from which place on a word is to be looked at, in a scope of so many parts."""
    dense = len(places) > _MANY and _SHARE * len(places) >= parts
    return places[-_LAST] if dense else places[0] if places else 0
