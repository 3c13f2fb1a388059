"""BM25 over the searched scope: scores of pieces, messages and segments for the words of a query.

Everything is a sum over packed numbers; rarity and average lengths are those of the scope.
"""

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Final, NamedTuple

from keepthread.recall.corpus import CorpusStats
from keepthread.recall.positions import MESSAGE, MOST_LENGTH
from keepthread.recall.query import Query
from keepthread.types import Found

MARKS: Final = ("", "²", "³")
"""Suffixes of a word that a piece has once, twice, and three times."""
CUT: Final = 5000
"""Number of places at which the list of a word was cut off: there may be earlier ones."""
_SHARE: Final = 2
"""A word is frequent if it is in at least one of this number of pieces."""
_MANY: Final = 1000
"""Up to this number, all places of a word are used."""
_LAST: Final = 500
"""Places that are used of a frequent word."""


def first_used(places: Sequence[int], stats: CorpusStats) -> int:
    """Return the first place of a word to use, 0 if it has none; of frequent terms a late one."""
    if len(places) <= _MANY:
        return places[0] if places else 0
    pieces: float = stats.parts
    if len(places) >= CUT:  # assume the same frequency before the first known place
        pieces = stats.between(places[0] >> MESSAGE, places[-1] >> MESSAGE)
    return places[-_LAST if _SHARE * len(places) >= pieces else 0]


def newest(
    found: Mapping[str, Sequence[int]], max_places: int
) -> tuple[dict[str, Sequence[int]], dict[str, Sequence[int]]]:
    """Return the newest places of each word, and the older ones that also hold a rarer word.

    A word is frequent here if it is at more than `max_places` places. Without the older ones, an
    old piece that holds all words of a question would rank as if it held the rare ones alone.
    """
    cut = {word: len(places) - max_places for word, places in found.items()}
    places = {word: each[max(0, cut[word]) :] for word, each in found.items()}
    plain = [word for word in found if not word.endswith(MARKS[1:])]
    frequent = [word for word in plain if cut[word] > 0]
    if not frequent:
        return places, {}
    rare = {place for word in plain if cut[word] < 0 for place in found[word]}
    older = {
        word: [place for place in found[word][: cut[word]] if place in rare] for word in frequent
    }
    return places, {word: each[max(0, len(each) - max_places) :] for word, each in older.items()}


_K: Final = 1.2
_B: Final = 0.75
_FAINT: Final = 1000
"""Places that are used of a word with a share below 1."""


class Word(NamedTuple):
    """The places that hold a word of the query once, twice and three times, and its weight."""

    lists: Sequence[Sequence[int]]
    idf: float
    share: float = 1.0
    """Its weight relative to other words; already part of `idf`."""


def word_of(word: str, found: Found, stats: CorpusStats, share: float = 1.0) -> Word:
    """Return a word of a query as it was found; `share` is its weight relative to others."""
    lists = [found.places.get(word + mark, ()) for mark in MARKS]
    df = len(lists[0])
    if df >= CUT:  # assume the same frequency before the first known place
        known = stats.parts_from(lists[0][0] >> MESSAGE)
        df = max(df, df * stats.parts // max(1, known))
    first = first_used(lists[0], stats)
    if share < 1 and df > _FAINT:
        first = max(first, lists[0][-_FAINT])
    lists = [_from(places, first) for places in lists]
    if found.older:
        older = [found.older.get(word + mark, ()) for mark in MARKS]
        lists = [sorted({*a, *b}) if a else b for a, b in zip(older, lists, strict=True)]
    return Word(lists, share * idf(stats.parts, df), share)


def _from(places: Sequence[int], first: int) -> Sequence[int]:
    """Return the places from `first` on; the lists of a word must agree on where they begin."""
    return places[bisect_left(places, first) :] if places and places[0] < first else places


def idf(total: int, df: int) -> float:
    """Return the weight of a word that is in `df` of `total` documents."""
    return math.log(1 + max(0.0, total - df + 0.5) / (df + 0.5))


def _saturated(times: int, length: float) -> float:
    """Return the score of a word that occurs `times` times; `length` 1.0 is the average length."""
    return times * (_K + 1) / (times + _K * (1 - _B + _B * length))


_OFTEN: Final = 15
_WHOLE_GAIN: Final = [_saturated(times, 1.0) for times in range(_OFTEN + 1)]


@lru_cache(maxsize=64)
def _rises(average: int) -> Sequence[Sequence[float]]:
    """Return, by length, what the first, second and third occurrence of a word add."""
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
            if len(places) > MOST_LENGTH:  # then it pays to compute each length once
                gain = [rarity * each for each in rise]
                for place in places:
                    scores[place] = get(place, 0.0) + gain[place & MOST_LENGTH]
            else:
                for place in places:
                    scores[place] = get(place, 0.0) + rarity * rise[place & MOST_LENGTH]
    return scores


def of_messages(words: Iterable[Word], places: Iterable[int]) -> dict[int, float]:
    """Return BM25 of the messages of places and of the next messages, whatever their length."""
    wanted = {place >> MESSAGE for place in places}
    wanted |= {message + 1 for message in wanted}
    whole: dict[int, float] = {}
    get = whole.get
    for lists, rarity, _ in words:
        held = [message for place in lists[0] if (message := place >> MESSAGE) in wanted]
        for message, times in Counter(held).items():
            whole[message] = get(message, 0.0) + rarity * _WHOLE_GAIN[min(times, _OFTEN)]
    return whole


def of_segments(words: Iterable[Word], stats: CorpusStats) -> dict[int, float]:
    """Return BM25 of each segment that holds a word."""
    total = len(stats)
    average = max(1.0, stats.length / total)
    themes: dict[int, float] = {}
    for word in words:
        times: dict[int, int] = {}
        for places in word.lists:
            for segment, count in stats.runs(places):
                times[segment] = times.get(segment, 0) + count
        rarity = word.share * idf(total, len(times))
        for segment, count in times.items():
            length = stats.lengths[segment] / average
            themes[segment] = themes.get(segment, 0.0) + rarity * _saturated(count, length)
    return themes


NOTHING: Final = (0, -1)
"""First and last shown place, where a context shows nothing of the searched scope."""


def ideal_score(query: Query, found: Found, parts: int, shown: tuple[int, int] = NOTHING) -> float:
    """Return the score of a piece of average length that holds every word of a query once.

    A word that is nowhere in the scope of `parts` pieces counts most: a piece without it lacks
    much of the query. A pair of characters that is nowhere counts nothing if its characters are
    searched too: it is most likely the end of one word and the beginning of the next. `shown` are
    the first and the last place that a context shows, which hold the question itself.
    """
    total = 0.0
    for word in query.words:
        places = found.places.get(word, ())
        if not _is_made_of_others(word, query) or _is_outside(places, shown):
            total += query.faint.get(word, 1.0) * idf(parts, len(places))
    return total


def _is_made_of_others(word: str, query: Query) -> bool:
    """Return whether a word is a pair whose single characters are searched too."""
    return len(word) > 1 and (word in query.faint or not query.faint.keys().isdisjoint(word))


def _is_outside(places: Sequence[int], shown: tuple[int, int]) -> bool:
    """Return whether any of the sorted places is outside the shown range."""
    first, last = shown
    return len(places) > bisect_right(places, last) - bisect_left(places, first)
