"""Reasons: what speaks for a piece, in words for people."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

from keepthread.recall.query import Query
from keepthread.recall.signs import Signs
from keepthread.types import Found, Part

_STRONG: Final = 0.75
"""From here on a sign is worth mentioning."""
_WORDS: Final = 6


class Reasons:
    """Tells what speaks for the candidates of one question."""

    def __init__(self, query: Query, found: Found, signs: Signs, parts: Sequence[Part]) -> None:
        """Keep what there is to look at: the signs of candidates, and where the words stand."""
        self._query = query
        self._found = found
        self._parts = parts
        self._speaker = signs.get("speaker", ())
        self._date = signs.get("date", ())
        self._when = signs.get("when", ())
        self._meaning = signs.get("meaning", ())
        self._time = _time(query)

    def of(self, number: int) -> str:
        """Return the reason for the candidate of a number."""
        part = self._parts[number]
        reasons: list[str] = []
        if words := list(islice(self._words(part.place), _WORDS)):
            reasons.append(", ".join(words))
        if self._speaker and self._speaker[number]:
            reasons.append(f"said by {part.speaker}")
        if self._date and self._date[number] >= _STRONG:
            reasons.append(self._time)
        if self._when and self._when[number]:
            reasons.append("says when")
        if self._meaning and self._meaning[number] >= _STRONG:
            reasons.append("means much the same")
        return "; ".join(reasons) or "beside what bears on it"

    def _words(self, place: int) -> Iterator[str]:
        """Yield the words of the question that stand in a place, as they are written."""
        for word, spelled in self._query.spelled.items():
            places = self._found.places.get(word, ())
            at = bisect_left(places, place)
            if at < len(places) and places[at] == place:
                yield spelled


def _time(query: Query) -> str:
    """Return what of time is asked for."""
    year, month, day = query.named or (0, 0, 0)
    return (
        f"near the {'day' if day else 'month' if month else 'year'} asked for"
        if year or month
        else ""
    )
