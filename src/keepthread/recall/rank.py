"""Ranking: the weighted sum of the features of each candidate.

Features add up and never filter, so a slightly wrong question still finds its answer.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, NamedTuple

from keepthread.recall.candidates import NEIGHBORS, Candidate
from keepthread.recall.corpus import CorpusStats
from keepthread.recall.features import Features, features_of
from keepthread.recall.positions import LENGTH_BITS, MESSAGE
from keepthread.recall.query import Query
from keepthread.recall.weights import DEFAULT, ConversationKind, Profile, Weights
from keepthread.types import Embedding, Found, Part

SIMILAR: Final = "similar meaning"
"""A reason: the vectors of the message and the question are close."""
_STRONG: Final = 0.75
"""From this value on, a feature is mentioned as a reason."""
_WORDS: Final = 6


class Reasons:
    """The reasons why candidates match one query."""

    def __init__(
        self, query: Query, found: Found, features: Features, parts: Sequence[Part]
    ) -> None:
        """Keep the features of candidates and the places of the words."""
        self._query = query
        self._found = found
        self._parts = parts
        self._speaker = features.get("speaker", ())
        self._date = features.get("date", ())
        self._when = features.get("when", ())
        self._meaning = features.get("meaning", ())
        self._time = _time(query)

    def of(self, number: int) -> str:
        """Return the reason for a candidate, by its number."""
        part = self._parts[number]
        reasons: list[str] = []
        if words := list(islice(self._words(part.place), _WORDS)):
            reasons.append(f"matches: {', '.join(words)}")
        if self._speaker and self._speaker[number]:
            reasons.append(f"said by {part.speaker}")
        if self._date and self._date[number] >= _STRONG:
            reasons.append(self._time)
        if self._when and self._when[number]:
            reasons.append("mentions a time")
        if self._meaning and self._meaning[number] >= _STRONG:
            reasons.append(SIMILAR)
        return "; ".join(reasons) or "next to a matching message"

    def _words(self, place: int) -> Iterator[str]:
        """Yield the words of the query that a place holds, as they are written."""
        for word, spelled in self._query.spelled.items():
            lists = self._found.places.get(word, ()), self._found.older.get(word, ())
            if any(_holds(places, place) for places in lists):
                yield spelled


def _holds(places: Sequence[int], place: int) -> bool:
    at = bisect_left(places, place)
    return at < len(places) and places[at] == place


def _time(query: Query) -> str:
    """Return the reason for a match by time."""
    year, month, day = query.named or (0, 0, 0)
    return (
        f"near the {'day' if day else 'month' if month else 'year'} in the question"
        if year or month
        else ""
    )


class Ranked(NamedTuple):
    """A place, its score, and its reasons."""

    place: int
    score: float
    number: int
    reasons: Reasons

    @property
    def reason(self) -> str:
        """Return the reason; computed on demand, as few of many results need it."""
        return self.reasons.of(self.number)


def rank(
    query: Query,
    found: Found,
    candidates: Sequence[Candidate],
    parts: Mapping[int, Part],
    *,
    asked: Embedding | None = None,
    vectors: Mapping[int, Embedding] = {},
    weights: Weights = DEFAULT,
) -> list[Ranked]:
    """Return the candidates that have a part in `parts`, the best first.

    `parts` and `vectors` are keyed by place without its length. Without vectors, candidates that
    match by neither words nor date are left out.
    """
    kind = weights.assisted if CorpusStats.of(found.segments).assisted else weights.speakers
    vectors = vectors if asked and asked.vectors else {}
    known = [c for c in candidates if c.place >> LENGTH_BITS in parts]
    if not vectors:
        known = [c for c in known if c.near or c.date]
    of = [parts[c.place >> LENGTH_BITS] for c in known]
    features = features_of(query, known, of, asked, vectors)
    profile = _profile(kind, asked if vectors else None)
    scores = _weighed(features, profile, len(known))
    if profile.near > 0:
        scores = _up_to_matches(scores, known, features)
    order = sorted(range(len(known)), key=lambda n: (scores[n], known[n].own > 0), reverse=True)
    reasons = Reasons(query, found, features, of)
    return [Ranked(of[n].place, scores[n], n, reasons) for n in order]


def _profile(kind: ConversationKind, asked: Embedding | None) -> Profile:
    if asked is None:
        return kind.words
    return kind.tokens if asked.ids else kind.pooled


def _weighed(features: Features, profile: Profile, count: int) -> list[float]:
    """Return the weighted sum of the features of each candidate."""
    totals = [0.0] * count
    for name, column in features.items():
        weight: float = getattr(profile, name)
        if weight:
            totals = [t + weight * value for t, value in zip(totals, column, strict=True)]
    return totals


def _up_to_matches(
    scores: Sequence[float], known: Sequence[Candidate], features: Features
) -> list[float]:
    """Return the scores, those of neighbors not above the score of the match that brought them.

    A neighbor is a message without a word of the query. It would rank before its match by its
    length alone, and take its room. One that has what the query asks for may: an answer by the
    named speaker, a time, or a meaning nearer than the match's.
    """
    best: dict[int, int] = {}
    for n, each in enumerate(known):
        if each.own > 0:
            message = each.place >> MESSAGE
            if message not in best or each.own > known[best[message]].own:
                best[message] = n
    speaker, when = features.get("speaker"), features.get("when")
    meaning = features.get("meaning")
    limited = list(scores)
    for n, each in enumerate(known):
        if each.own > 0 or (speaker and speaker[n]) or (when and when[n]):
            continue
        message = each.place >> MESSAGE
        matches = [
            (share * known[match].own, match)
            for step, share in NEIGHBORS
            if (match := best.get(message - step)) is not None
            and known[match].segment == each.segment
        ]
        if matches:
            match = max(matches)[1]
            if not (meaning and meaning[n] > meaning[match]):
                limited[n] = min(scores[n], scores[match])
    return limited
