"""Reasons: what speaks for a piece, in words for people."""

from collections.abc import Iterable
from typing import Final

from keepthread.recall.query import Query
from keepthread.recall.signs import Signs
from keepthread.types import Found, Part

_STRONG: Final = 0.75
"""From here on a sign is worth mentioning."""
_WORDS: Final = 6


class Reasons:
    """Tells what speaks for the candidates of one question."""

    def __init__(self, query: Query, found: Found, signs: Signs, places: Iterable[int]) -> None:
        """Look at the signs of candidates, and at the words that stand in their places."""
        self._words: dict[int, list[str]] = {}
        among = set(places)
        for word, spelled in query.spelled.items():
            for place in among.intersection(found.places.get(word, ())):
                self._words.setdefault(place, []).append(spelled)
        self._speaker = signs.get("speaker", ())
        self._date = signs.get("date", ())
        self._when = signs.get("when", ())
        self._meaning = signs.get("meaning", ())
        self._time = _time(query)

    def of(self, number: int, part: Part) -> str:
        """Return the reason for the candidate of a number."""
        reasons: list[str] = []
        if words := self._words.get(part.place):
            reasons.append(", ".join(words[:_WORDS]))
        if self._speaker and self._speaker[number]:
            reasons.append(f"said by {part.speaker}")
        if self._date and self._date[number] >= _STRONG:
            reasons.append(self._time)
        if self._when and self._when[number]:
            reasons.append("says when")
        if self._meaning and self._meaning[number] >= _STRONG:
            reasons.append("means much the same")
        return "; ".join(reasons) or "beside what bears on it"


def _time(query: Query) -> str:
    """Return what of time is asked for."""
    year, month, day = query.named or (0, 0, 0)
    return (
        f"near the {'day' if day else 'month' if month else 'year'} asked for"
        if year or month
        else ""
    )
