"""Words as evidence: which places are worth a closer look, by BM25 over the scope asked for.

All that is matched is weighed by sums over packed numbers; objects are made for the best alone.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Final, NamedTuple

from keepthread.recall.ground import Ground
from keepthread.recall.places import LENGTH_BITS, MESSAGE, MOST_LENGTH, MOST_PARTS
from keepthread.recall.query import Query, nearness
from keepthread.types import Found

CUT: Final = 5000
"""So many places of a word mean that there may be more before them."""
NEIGHBOURS: Final = ((1, 0.5), (-1, 0.3), (2, 0.35), (-2, 0.1))
"""What a message lends to the one so many positions behind it."""
_SMALL: Final = 1000
"""Up to so many parts, all are worth a closer look."""
_MATCHED: Final = 2
"""Places that lend, for each candidate asked for."""
_NAMED: Final = 0.7
"""What a named time is worth, beside the best by words."""
_WHOLE: Final = 0.5
"""What the words of a whole message, and of the next, are worth beside those of the best piece."""
_FIRST: Final = 0.6
"""What the first piece of a message is worth beside the best: answers have many pieces."""
_PART: Final = MOST_PARTS - 1 << LENGTH_BITS
_K: Final = 1.2
_B: Final = 0.75


class Candidate(NamedTuple):
    """A place worth a closer look, and what words say for it.

    A message that holds no word of the question itself is known by its number alone: its place has
    part 0 and length 0. So whoever looks a place up goes by message and part, not by length.
    """

    place: int
    own: float
    """BM25 of the piece."""
    near: float
    """The same, and what stands beside it adds."""
    message: float
    """BM25 of the whole message; where an assistant takes part."""
    answer: float
    """BM25 of the next message; where an assistant takes part."""
    sitting: int
    """Which sitting it stands in."""
    theme: float
    """BM25 of the sitting; where named speakers talk."""
    date: float
    """How near it is to the time that the question names."""


class _Word(NamedTuple):
    """Where a word of the question stands once, twice and three times, and what it is worth."""

    lists: Sequence[Sequence[int]]
    idf: float


def candidates(query: Query, found: Found, *, most: int = 400) -> list[Candidate]:
    """Return the places that words, neighbours or a named time speak for, the best first.

    A small scope is returned whole, so that vectors can speak for what no word does.
    """
    if not found.sittings:
        return []
    ground = Ground.of(found)
    everywhere = ground.parts <= _SMALL
    most = max(most, ground.parts) if everywhere else most
    dates = _dates(query, ground)
    words = [_word(word, found, ground) for word in query.words if found.places.get(word)]
    own = _scores(words, ground.length / max(1, ground.parts))
    whole: Mapping[int, float] = {}
    theme: Mapping[int, float] = {}
    if ground.assisted:
        own = _best(_with_first(own, own), own, _MATCHED * most)
        whole = _whole(words, own)
        near = _with_message(own, whole)
        if len(whole) < most:
            _add_lent(near, whole, ground)
    else:
        own = _best(own, own, _MATCHED * most)
        near = _with_neighbours(own, ground)
        theme = _themes(words, ground)
    _add_wordless(near, range(len(ground.sittings)) if everywhere else dates, ground)
    weighed = _with_first(near, own) if ground.assisted else near
    weighed = _with_date(weighed, dates, ground) if dates else weighed
    best = _best(weighed, near, most)
    evidence = _Evidence(own, whole, theme, dates, ground)
    order = sorted(best, key=weighed.__getitem__, reverse=True)[:most]
    return [evidence.candidate(place, near[place]) for place in order]


class _Evidence(NamedTuple):
    """All that words and dates say, by place, message or sitting."""

    own: Mapping[int, float]
    whole: Mapping[int, float]
    theme: Mapping[int, float]
    dates: Mapping[int, float]
    ground: Ground

    def candidate(self, place: int, near: float) -> Candidate:
        """Return all that is known of one place."""
        message = place >> MESSAGE
        sitting = self.ground.at(message)
        return Candidate(
            place,
            self.own.get(place, 0.0),
            near,
            self.whole.get(message, 0.0),
            self.whole.get(message + 1, 0.0),
            sitting,
            self.theme.get(sitting, 0.0),
            self.dates.get(sitting, 0.0),
        )


def _dates(query: Query, ground: Ground) -> dict[int, float]:
    """Return the sittings that a question's date names, and how near each is to it."""
    if query.named is None:
        return {}
    near = ((n, nearness(query.named, s.started_at)) for n, s in enumerate(ground.sittings))
    return {number: score for number, score in near if score}


def _word(word: str, found: Found, ground: Ground) -> _Word:
    lists = [found.places.get(word + mark, ()) for mark in ("", "²", "³")]
    df = len(lists[0])
    if df >= CUT:  # it is taken to be as frequent before the first place that is known
        known = ground.sittings[ground.at(lists[0][0] >> MESSAGE) :]
        df = max(df, df * ground.parts // max(1, sum(sitting.parts for sitting in known)))
    return _Word(lists, _idf(ground.parts, df))


def _idf(total: int, df: int) -> float:
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


def _scores(words: Iterable[_Word], average: float) -> dict[int, float]:
    """Return BM25 of each place that holds a word."""
    rises = _rises(round(average))
    scores: dict[int, float] = {}
    get = scores.get
    for word in words:
        for places, rise in zip(word.lists, rises, strict=True):
            gain = [word.idf * each for each in rise]
            for place in places:
                scores[place] = get(place, 0.0) + gain[place & MOST_LENGTH]
    return scores


def _best(weighed: Mapping[int, float], scores: dict[int, float], most: int) -> dict[int, float]:
    """Return the scores of about so many places that weigh most."""
    if len(scores) <= most:
        return scores
    least = sorted(weighed.values())[-most]
    return {place: scores[place] for place, weight in weighed.items() if weight >= least}


def _with_first(scores: Mapping[int, float], own: Mapping[int, float]) -> dict[int, float]:
    """Return scores with what it is worth to be the first piece of a message."""
    worth = _FIRST * max(own.values(), default=1.0)
    return {p: score if p & _PART else score + worth for p, score in scores.items()}


def _with_date(
    scores: Mapping[int, float], dates: Mapping[int, float], ground: Ground
) -> dict[int, float]:
    """Return scores with what it is worth to be of the time that was named."""
    worth = _NAMED * (max(scores.values(), default=0.0) or 1.0)
    get, at = dates.get, ground.at
    return {p: score + worth * get(at(p >> MESSAGE), 0.0) for p, score in scores.items()}


def _with_neighbours(own: Mapping[int, float], ground: Ground) -> dict[int, float]:
    """Return what each place has with what its neighbours in the sitting lend."""
    best: dict[int, float] = {}
    for place, score in own.items():
        message = place >> MESSAGE
        if score > best.get(message, 0.0):
            best[message] = score
    near = dict(own)
    lent = _add_lent(near, best, ground)
    for place in own:
        near[place] += lent.get(place >> MESSAGE, 0.0)
    return near


def _add_lent(
    near: dict[int, float], scores: Mapping[int, float], ground: Ground
) -> dict[int, float]:
    """Return what messages lend each other, and add those that have no score of their own."""
    lent: dict[int, float] = {}
    for message, score in scores.items():
        sitting = ground.at(message)
        first, end = ground.starts[sitting], ground.end(sitting)
        for step, share in NEIGHBOURS:
            if first <= (other := message + step) < end:
                lent[other] = lent.get(other, 0.0) + share * score
    near.update((m << MESSAGE, score) for m, score in lent.items() if m not in scores)
    return lent


def _whole(words: Iterable[_Word], places: Iterable[int]) -> dict[int, float]:
    """Return BM25 of the messages of places and of those behind them, whatever their length."""
    wanted = set(map(MESSAGE.__rrshift__, places))
    wanted |= {message + 1 for message in wanted}
    whole: dict[int, float] = {}
    get = whole.get
    for word in words:
        times = Counter(map(MESSAGE.__rrshift__, word.lists[0]))
        gain = [word.idf * each for each in _WHOLE_GAIN]
        for message in wanted & times.keys():
            whole[message] = get(message, 0.0) + gain[min(times[message], _OFTEN)]
    return whole


def _with_message(own: Mapping[int, float], whole: Mapping[int, float]) -> dict[int, float]:
    """Return what each place has with what its message and the next are worth."""
    worth = _WHOLE * max(own.values(), default=0.0) / (max(whole.values(), default=0.0) or 1.0)
    get = whole.get
    both = {message: worth * (score + get(message + 1, 0.0)) for message, score in whole.items()}
    return {place: score + both[place >> MESSAGE] for place, score in own.items()}


def _add_wordless(near: dict[int, float], sittings: Collection[int], ground: Ground) -> None:
    """Add the messages of sittings that hold no word of the question."""
    known = {place >> MESSAGE for place in near} if sittings else set[int]()
    for sitting in sittings:
        for message in ground.messages(sitting):
            if message not in known:
                near[message << MESSAGE] = 0.0


def _themes(words: Iterable[_Word], ground: Ground) -> dict[int, float]:
    """Return BM25 of each sitting that holds a word."""
    total = len(ground.sittings)
    average = max(1.0, ground.length / total)
    themes: dict[int, float] = {}
    for word in words:
        times: dict[int, int] = {}
        for places in word.lists:
            for sitting, count in ground.runs(places):
                times[sitting] = times.get(sitting, 0) + count
        idf = _idf(total, len(times))
        for sitting, count in times.items():
            length = ground.sittings[sitting].length / average
            themes[sitting] = themes.get(sitting, 0.0) + idf * _saturated(count, length)
    return themes
