"""BM25 over the scope asked for: what the words of a question say for pieces and what holds them.

Everything is a sum over packed numbers; a word's rarity and the lengths are those of the scope.
"""

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Final, NamedTuple

from keepthread.recall.corpus import Ground
from keepthread.recall.positions import MESSAGE, MOST_LENGTH
from keepthread.recall.query import Query
from keepthread.types import Found

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


_K: Final = 1.2
_B: Final = 0.75
_FAINT: Final = 1000
"""Of a word that counts less than others, the last so many places will do."""


class Word(NamedTuple):
    """Where a word of the question stands once, twice and three times, and what it is worth."""

    lists: Sequence[Sequence[int]]
    idf: float
    share: float = 1.0
    """What it counts beside other words; in `idf` already."""


def word_of(word: str, found: Found, ground: Ground, share: float = 1.0) -> Word:
    """Return a word of a question, as it was found; `share` is what it counts beside others."""
    lists = [found.places.get(word + mark, ()) for mark in ("", "²", "³")]
    df = len(lists[0])
    if df >= CUT:  # it is taken to be as frequent before the first place that is known
        known = ground.sittings[ground.at(lists[0][0] >> MESSAGE) :]
        df = max(df, df * ground.parts // max(1, sum(sitting.parts for sitting in known)))
    first = since(lists[0], ground)
    if share < 1 and df > _FAINT:
        first = max(first, lists[0][-_FAINT])
    return Word([_from(places, first) for places in lists], share * idf(ground.parts, df), share)


def _from(places: Sequence[int], first: int) -> Sequence[int]:
    """Return the places from one on; what stands there twice must stand there once."""
    return places[bisect_left(places, first) :] if places and places[0] < first else places


def idf(total: int, df: int) -> float:
    """Return what a word is worth that stands in so many of all."""
    return math.log(1 + max(0.0, total - df + 0.5) / (df + 0.5))


def _saturated(times: int, length: float) -> float:
    """Return what a word says that stands so many times in a text of a length, 1 the average."""
    return times * (_K + 1) / (times + _K * (1 - _B + _B * length))


_OFTEN: Final = 15
_WHOLE_GAIN: Final = [_saturated(times, 1.0) for times in range(_OFTEN + 1)]


@lru_cache(maxsize=64)
def _rises(average: int) -> Sequence[Sequence[float]]:
    """Return by length what a word adds that stands there once, a second and a third time."""
    lengths = [length / max(1, average) for length in range(MOST_LENGTH + 1)]
    each = [[_saturated(times, length) for length in lengths] for times in (0, 1, 2, 3)]
    return [[b - a for a, b in zip(*pair, strict=True)] for pair in pairwise(each)]


def of_pieces(words: Iterable[Word], average: float) -> dict[int, float]:
    """Return BM25 of each place that holds a word."""
    rises = _rises(round(average))
    scores: dict[int, float] = {}
    get = scores.get
    for lists, rarity, _ in words:
        for places, rise in zip(lists, rises, strict=True):
            if len(places) > MOST_LENGTH:  # then each length is worth weighing beforehand
                gain = [rarity * each for each in rise]
                for place in places:
                    scores[place] = get(place, 0.0) + gain[place & MOST_LENGTH]
            else:
                for place in places:
                    scores[place] = get(place, 0.0) + rarity * rise[place & MOST_LENGTH]
    return scores


def of_messages(words: Iterable[Word], places: Iterable[int]) -> dict[int, float]:
    """Return BM25 of the messages of places and of those behind them, whatever their length."""
    wanted = {place >> MESSAGE for place in places}
    wanted |= {message + 1 for message in wanted}
    whole: dict[int, float] = {}
    get = whole.get
    for lists, rarity, _ in words:
        held = [message for place in lists[0] if (message := place >> MESSAGE) in wanted]
        for message, times in Counter(held).items():
            whole[message] = get(message, 0.0) + rarity * _WHOLE_GAIN[min(times, _OFTEN)]
    return whole


def of_sittings(words: Iterable[Word], ground: Ground) -> dict[int, float]:
    """Return BM25 of each sitting that holds a word."""
    total = len(ground.sittings)
    average = max(1.0, ground.length / total)
    themes: dict[int, float] = {}
    for word in words:
        times: dict[int, int] = {}
        for places in word.lists:
            for sitting, count in ground.runs(places):
                times[sitting] = times.get(sitting, 0) + count
        rarity = word.share * idf(total, len(times))
        for sitting, count in times.items():
            length = ground.sittings[sitting].length / average
            themes[sitting] = themes.get(sitting, 0.0) + rarity * _saturated(count, length)
    return themes


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
