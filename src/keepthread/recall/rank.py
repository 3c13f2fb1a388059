"""Ranking: all signs that a piece bears on a question, each with its weight, added up.

Signs are added and never filter: a question that is slightly wrong still finds what it means.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from keepthread.recall.ground import is_assisted
from keepthread.recall.lexical import Candidate
from keepthread.recall.places import LENGTH_BITS
from keepthread.recall.query import Query
from keepthread.recall.reasons import Reasons
from keepthread.recall.signs import Signs, signs_of
from keepthread.recall.weights import DEFAULT, Kind, Profile, Weights
from keepthread.types import Embedding, Found, Part


class Ranked(NamedTuple):
    """A place, how much speaks for it, and who can tell what."""

    place: int
    score: float
    number: int
    reasons: Reasons

    @property
    def reason(self) -> str:
        """Return what speaks for it; of many that are ranked, few are asked."""
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
    """Return the candidates that there is a part of, the best first.

    `parts` and `vectors` are by place without its length. Without vectors words alone speak, and
    what no word and no date speaks for is left out.
    """
    kind = weights.assisted if is_assisted(found.sittings) else weights.speakers
    vectors = vectors if asked and asked.vectors else {}
    known = [c for c in candidates if c.place >> LENGTH_BITS in parts]
    if not vectors:
        known = [c for c in known if c.near or c.date]
    of = [parts[c.place >> LENGTH_BITS] for c in known]
    signs = signs_of(query, known, of, asked, vectors)
    scores = _weighed(signs, _profile(kind, asked if vectors else None), len(known))
    order = sorted(range(len(known)), key=scores.__getitem__, reverse=True)
    reasons = Reasons(query, found, signs, of)
    return [Ranked(of[n].place, scores[n], n, reasons) for n in order]


def _profile(kind: Kind, asked: Embedding | None) -> Profile:
    if asked is None:
        return kind.words
    return kind.tokens if asked.ids else kind.pooled


def _weighed(signs: Signs, profile: Profile, count: int) -> list[float]:
    """Return the sum of the signs of each candidate, each times its weight."""
    totals = [0.0] * count
    for name, column in signs.items():
        weight: float = getattr(profile, name)
        if weight:
            totals = [t + weight * value for t, value in zip(totals, column, strict=True)]
    return totals
