"""Candidates: the places that match the words of a query best.

All matches are scored by sums over packed numbers; objects are made only for the best.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import compress
from typing import Final, NamedTuple

from keepthread.recall.bm25 import of_messages, of_pieces, of_segments, word_of
from keepthread.recall.corpus import CorpusStats
from keepthread.recall.positions import LENGTH_BITS, MESSAGE, MOST_PARTS
from keepthread.recall.query import Query, nearness
from keepthread.types import Found

NEIGHBORS: Final = ((1, 0.5), (-1, 0.3), (2, 0.35), (-2, 0.1))
"""Pairs of offset and share: the share of its score that a message adds to a neighbor."""
_SMALL: Final = 1000
"""In a scope of up to this number of pieces, all are candidates."""
_MATCHED: Final = 2
"""Places whose scores are shared with neighbors, per requested candidate."""
_NAMED: Final = 0.7
"""Weight of a named time, relative to the best score by words."""
_WHOLE: Final = 0.5
"""Weight of the words of the whole message, and of the next, relative to the best piece."""
_FIRST: Final = 0.6
"""Weight of the first piece of a message, relative to the best: answers have many pieces."""
_SAMPLED: Final = 8
"""From this multiple of the requested number on, the limit is estimated from one in `_STEP`."""
_STEP: Final = 16
_DAY: Final = 86_400.0
_PART: Final = MOST_PARTS - 1 << LENGTH_BITS


class Candidate(NamedTuple):
    """A place that may answer the query, and its scores by words.

    The place of a message that holds no word of the query has part 0 and length 0. Therefore look
    places up by message and part, not by length.
    """

    place: int
    own: float
    """BM25 of the piece."""
    near: float
    """The same, plus the shares of its neighbors."""
    message: float
    """BM25 of the whole message; only where an assistant takes part."""
    answer: float
    """BM25 of the next message; only where an assistant takes part."""
    segment: int
    """The number of its segment."""
    theme: float
    """BM25 of the segment; only where named speakers talk."""
    date: float
    """How near it is to the time that the query names."""


class _Evidence(NamedTuple):
    """Scores by words: of places, messages and segments."""

    own: Mapping[int, float]
    near: dict[int, float]
    whole: Mapping[int, float] = {}
    theme: Mapping[int, float] = {}


def candidates(
    query: Query,
    found: Found,
    *,
    most: int = 400,
    also: Sequence[int] = (),
    stats: CorpusStats | None = None,
    confined: bool = False,
) -> list[Candidate]:
    """Return the places that match by words, neighbors or a named time, the best first.

    A small scope is returned whole, so that vectors can rank pieces that share no word with the
    query. `also` are places found in another way; `stats` are the statistics of `found`, if known.
    If the search is `confined` to some messages, neighbors are not candidates in a large scope:
    they may be outside the filter and would displace others.
    """
    stats = stats or CorpusStats.of(found.segments)
    if not stats:
        return []
    everywhere = stats.parts <= _SMALL
    most = max(most, stats.parts) if everywhere else most
    dates = _dates(query, stats)
    own, near, whole, theme = _evidence(query, found, stats, most)
    if confined and not everywhere:
        near = {place: score for place, score in near.items() if place in own}
    else:
        _add_wordless(near, range(len(stats)) if everywhere else dates, stats)
    weights = _with_first(near, own) if stats.assisted else list(near.values())
    weights = _with_date(near, weights, dates, stats) if dates else weights
    weighed = _best(dict(zip(near, weights, strict=True)), weights, most)
    best = sorted(weighed, key=weighed.__getitem__, reverse=True)[:most]
    known = {place >> LENGTH_BITS for place in best} if also else set[int]()
    best += [place for place in also if place >> LENGTH_BITS not in known]
    return [
        Candidate(
            place,
            own.get(place, 0.0),
            near.get(place, 0.0),
            whole.get(message := place >> MESSAGE, 0.0),
            whole.get(message + 1, 0.0),
            segment := stats.at(message),
            theme.get(segment, 0.0),
            dates.get(segment, 0.0),
        )
        for place in best
    ]


def _evidence(query: Query, found: Found, stats: CorpusStats, most: int) -> _Evidence:
    """Score the pieces that hold a word, and their neighbors."""
    there = [word for word in query.words if found.places.get(word)]
    words = [word_of(word, found, stats, query.faint.get(word, 1.0)) for word in there]
    own = of_pieces(words, stats.length / max(1, stats.parts))
    if not stats.assisted:
        own = _best(own, list(own.values()), _MATCHED * most)
        return _Evidence(own, _with_neighbors(own, stats), theme=of_segments(words, stats))
    own = _best(own, _with_first(own, own), _MATCHED * most)
    whole = of_messages(words, own)
    near = _with_message(own, whole)
    if len(whole) < most:
        _add_lent(near, whole, stats)
    return _Evidence(own, near, whole=whole)


def _dates(query: Query, stats: CorpusStats) -> dict[int, float]:
    """Return the segments near the date that a query names, and how near each is."""
    if query.named is None:
        return {}
    days = [at // _DAY for at in stats.started]
    near = {day: nearness(query.named, day * _DAY) for day in set(days)}
    return {number: near[day] for number, day in enumerate(days) if near[day]}


def _best(scores: dict[int, float], weights: Sequence[float], most: int) -> dict[int, float]:
    """Return the scores of about `most` places with the highest weights, given in their order."""
    if len(scores) <= most:
        return scores
    least = _least(weights, most)
    heavy = [weight >= least for weight in weights]
    return dict(compress(scores.items(), heavy))


def _least(weights: Sequence[float], most: int) -> float:
    """Return the `most`-th highest weight; of many, a sample is sorted first."""
    if len(weights) > _SAMPLED * most:
        sample = sorted(weights[::_STEP])
        about = sample[-2 * most // _STEP - 1]
        some = [weight for weight in weights if weight >= about]
        weights = some if len(some) >= most else weights
    return sorted(weights)[-most]


def _with_first(scores: Mapping[int, float], own: Mapping[int, float]) -> list[float]:
    """Return the scores, plus a bonus for the first piece of a message."""
    worth = _FIRST * max(own.values(), default=1.0)
    return [score if p & _PART else score + worth for p, score in scores.items()]


def _with_date(
    places: Iterable[int], scores: Sequence[float], dates: Mapping[int, float], stats: CorpusStats
) -> list[float]:
    """Return the scores, plus a bonus for being of the named time."""
    worth = _NAMED * (max(scores, default=0.0) or 1.0)
    get, at = dates.get, stats.at
    both = zip(places, scores, strict=True)
    return [score + worth * get(at(place >> MESSAGE), 0.0) for place, score in both]


def _with_neighbors(own: Mapping[int, float], stats: CorpusStats) -> dict[int, float]:
    """Return the scores, plus the shares of neighbors in the same segment."""
    best: dict[int, float] = {}
    for place, score in own.items():
        message = place >> MESSAGE
        if score > best.get(message, 0.0):
            best[message] = score
    near = dict(own)
    lent = _add_lent(near, best, stats)
    for place in own:
        near[place] += lent.get(place >> MESSAGE, 0.0)
    return near


def _add_lent(
    near: dict[int, float], scores: Mapping[int, float], stats: CorpusStats
) -> dict[int, float]:
    """Return what neighbors add to each message; add messages without a score of their own."""
    lent: dict[int, float] = {}
    get, starts = lent.get, stats.starts
    for message, score in scores.items():
        segment = stats.at(message)
        first, end = starts[segment], stats.end_of(segment)
        for step, share in NEIGHBORS:
            if first <= (other := message + step) < end:
                lent[other] = get(other, 0.0) + share * score
    near.update((m << MESSAGE, score) for m, score in lent.items() if m not in scores)
    return lent


def _with_message(own: Mapping[int, float], whole: Mapping[int, float]) -> dict[int, float]:
    """Return the scores, plus a share of the scores of the whole message and the next."""
    worth = _WHOLE * max(own.values(), default=0.0) / (max(whole.values(), default=0.0) or 1.0)
    get = whole.get
    both = {message: worth * (score + get(message + 1, 0.0)) for message, score in whole.items()}
    get = both.get
    return {place: score + get(place >> MESSAGE, 0.0) for place, score in own.items()}


def _add_wordless(near: dict[int, float], segments: Collection[int], stats: CorpusStats) -> None:
    """Add the messages of segments that hold no word of the query."""
    known = {place >> MESSAGE for place in near} if segments else set[int]()
    for segment in segments:
        for message in stats.messages(segment):
            if message not in known:
                near[message << MESSAGE] = 0.0
