"""Words as evidence: which places are worth a closer look.

All that is matched is weighed by sums over packed numbers; objects are made for the best alone.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import compress
from typing import Final, NamedTuple

from keepthread.recall.bm25 import of_messages, of_pieces, of_sittings, word_of
from keepthread.recall.corpus import Ground
from keepthread.recall.positions import LENGTH_BITS, MESSAGE, MOST_PARTS
from keepthread.recall.query import Query, nearness
from keepthread.types import Found

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
_SAMPLED: Final = 8
"""With so many times what is asked for, the best are first guessed from one in `_STEP`."""
_STEP: Final = 16
_PART: Final = MOST_PARTS - 1 << LENGTH_BITS


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


class _Evidence(NamedTuple):
    """What words say, by place, by message and by sitting."""

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
    ground: Ground | None = None,
    confined: bool = False,
) -> list[Candidate]:
    """Return the places that words, neighbours or a named time speak for, the best first.

    A small scope is returned whole, so that vectors can speak for what no word does. `also` are
    places that something else speaks for; `ground` is that of what was found, if it is known. If
    what was found is confined to some messages, their neighbours are not among the candidates of a
    large scope: they may be others, and would take the place of some.
    """
    if not found.sittings:
        return []
    ground = ground or Ground.of(found.sittings)
    everywhere = ground.parts <= _SMALL
    most = max(most, ground.parts) if everywhere else most
    dates = _dates(query, ground)
    own, near, whole, theme = _evidence(query, found, ground, most)
    if confined and not everywhere:
        near = {place: score for place, score in near.items() if place in own}
    else:
        _add_wordless(near, range(len(ground.sittings)) if everywhere else dates, ground)
    weights = _with_first(near, own) if ground.assisted else list(near.values())
    weights = _with_date(near, weights, dates, ground) if dates else weights
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
            sitting := ground.at(message),
            theme.get(sitting, 0.0),
            dates.get(sitting, 0.0),
        )
        for place in best
    ]


def _evidence(query: Query, found: Found, ground: Ground, most: int) -> _Evidence:
    """Weigh what holds a word, and what stands beside it."""
    there = [word for word in query.words if found.places.get(word)]
    words = [word_of(word, found, ground, query.faint.get(word, 1.0)) for word in there]
    own = of_pieces(words, ground.length / max(1, ground.parts))
    if not ground.assisted:
        own = _best(own, list(own.values()), _MATCHED * most)
        return _Evidence(own, _with_neighbours(own, ground), theme=of_sittings(words, ground))
    own = _best(own, _with_first(own, own), _MATCHED * most)
    whole = of_messages(words, own)
    near = _with_message(own, whole)
    if len(whole) < most:
        _add_lent(near, whole, ground)
    return _Evidence(own, near, whole=whole)


def _dates(query: Query, ground: Ground) -> dict[int, float]:
    """Return the sittings that a question's date names, and how near each is to it."""
    if query.named is None:
        return {}
    near = ((n, nearness(query.named, s.started_at)) for n, s in enumerate(ground.sittings))
    return {number: score for number, score in near if score}


def _best(scores: dict[int, float], weights: Sequence[float], most: int) -> dict[int, float]:
    """Return the scores of about so many places that weigh most; weights are in their order."""
    if len(scores) <= most:
        return scores
    least = _least(weights, most)
    heavy = [weight >= least for weight in weights]
    return dict(compress(scores.items(), heavy))


def _least(weights: Sequence[float], most: int) -> float:
    """Return the least of so many of the greatest; of many, a few tell about where that is."""
    if len(weights) > _SAMPLED * most:
        sample = sorted(weights[::_STEP])
        about = sample[-2 * most // _STEP - 1]
        some = [weight for weight in weights if weight >= about]
        weights = some if len(some) >= most else weights
    return sorted(weights)[-most]


def _with_first(scores: Mapping[int, float], own: Mapping[int, float]) -> list[float]:
    """Return scores with what it is worth to be the first piece of a message."""
    worth = _FIRST * max(own.values(), default=1.0)
    return [score if p & _PART else score + worth for p, score in scores.items()]


def _with_date(
    places: Iterable[int], scores: Sequence[float], dates: Mapping[int, float], ground: Ground
) -> list[float]:
    """Return the scores of places with what it is worth to be of the time that was named."""
    worth = _NAMED * (max(scores, default=0.0) or 1.0)
    get, at = dates.get, ground.at
    both = zip(places, scores, strict=True)
    return [score + worth * get(at(place >> MESSAGE), 0.0) for place, score in both]


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
    get, starts, ends = lent.get, ground.starts, ground.ends
    for message, score in scores.items():
        sitting = ground.at(message)
        first, end = starts[sitting], ends[sitting]
        for step, share in NEIGHBOURS:
            if first <= (other := message + step) < end:
                lent[other] = get(other, 0.0) + share * score
    near.update((m << MESSAGE, score) for m, score in lent.items() if m not in scores)
    return lent


def _with_message(own: Mapping[int, float], whole: Mapping[int, float]) -> dict[int, float]:
    """Return what each place has with what its message and the next are worth."""
    worth = _WHOLE * max(own.values(), default=0.0) / (max(whole.values(), default=0.0) or 1.0)
    get = whole.get
    both = {message: worth * (score + get(message + 1, 0.0)) for message, score in whole.items()}
    get = both.get
    return {place: score + get(place >> MESSAGE, 0.0) for place, score in own.items()}


def _add_wordless(near: dict[int, float], sittings: Collection[int], ground: Ground) -> None:
    """Add the messages of sittings that hold no word of the question."""
    known = {place >> MESSAGE for place in near} if sittings else set[int]()
    for sitting in sittings:
        for message in ground.messages(sitting):
            if message not in known:
                near[message << MESSAGE] = 0.0
