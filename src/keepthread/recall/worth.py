"""What a question is worth: the score of a piece that would hold all of its words."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Final

from keepthread.recall.bm25 import idf
from keepthread.recall.query import Query
from keepthread.types import Found

NOTHING: Final = (0, -1)
"""The first and the last place where a context shows nothing of what is searched."""


def worth(query: Query, found: Found, parts: int, shown: tuple[int, int] = NOTHING) -> float:
    """Return what a piece of usual length would score that holds every word of a question once.

    A word that stands nowhere in the scope, of so many parts, counts most: what lacks it lacks much
    of the question. A pair of characters that stands nowhere counts nothing if its characters are
    looked for: it is most likely the end of one word and the beginning of the next. `shown` are the
    first and the last place that a context shows, where the question itself stands.
    """
    total = 0.0
    for word in query.words:
        places = found.places.get(word, ())
        if not _is_made_of_others(word, query) or _is_outside(places, shown):
            total += query.faint.get(word, 1.0) * idf(parts, len(places))
    return total


def _is_made_of_others(word: str, query: Query) -> bool:
    """Return whether a word is a pair that is looked for by its characters too."""
    return len(word) > 1 and (word in query.faint or not query.faint.keys().isdisjoint(word))


def _is_outside(places: Sequence[int], shown: tuple[int, int]) -> bool:
    """Return whether one of some places, in order, is not among those that are shown."""
    first, last = shown
    return len(places) > bisect_right(places, last) - bisect_left(places, first)
