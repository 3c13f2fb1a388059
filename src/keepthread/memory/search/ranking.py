"""Rank what an index finds, by words, by context, and by vectors if there is an embedder."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Final, NamedTuple, TypeAlias

from keepthread.memory.search.vectors import Vectors
from keepthread.protocols import Searchable
from keepthread.recall.bm25 import MARKS, NOTHING, ideal_score
from keepthread.recall.candidates import candidates
from keepthread.recall.corpus import CorpusStats
from keepthread.recall.positions import LENGTH_BITS, VIEW
from keepthread.recall.query import Query
from keepthread.recall.rank import Ranked, rank
from keepthread.recall.weights import Weights
from keepthread.types import Embedding, Found, MessageFilter, Part, SessionKey, Unread

CANDIDATES: Final = 400
_RELEVANT: Final = 0.15
"""The weighted share of a question's words that a relevant piece must hold."""
_BY_MEANING: Final = 8
_NEAREST: Final = 100
"""Pieces that are nearest by meaning, where a text has one vector."""
_SPARE: Final = 20
"""Pieces beyond those that fill the budget: some cannot be shown, and near misses are named."""


ReadOn: TypeAlias = Callable[[Sequence[Unread]], Awaitable[bool]]
"""Indexes what is unread, if a caller waits for it; returns whether it did."""


class Ranking(NamedTuple):
    """Pieces related to a question, the best first, with the data they were ranked by."""

    ranked: Sequence[Ranked]
    parts: Mapping[int, Part]
    """By place without its length."""
    stats: CorpusStats
    strengths: Mapping[int, float]
    """Score by words of each candidate, by position without its length."""
    ideal_score: float
    """Score by words of a piece that holds all of them."""
    by_vectors: bool

    def relevant(self) -> list[Ranked]:
        """Return the pieces that hold, or are next to, a good part of the question's words.

        With vectors the first few are included as well: they may use other words.
        """
        least, first = _RELEVANT * self.ideal_score, _BY_MEANING if self.by_vectors else 0
        strengths = self.strengths
        return [
            each
            for n, each in enumerate(self.ranked)
            if n < first or strengths.get(each.place >> LENGTH_BITS, 0.0) >= least > 0
        ]

    def that_may_fit(self, some: Sequence[Ranked], room: int) -> Iterator[Ranked]:
        """Yield the best pieces that fill a budget, and some more: not all of them can be shown."""
        spare = _SPARE
        for each in some:
            room -= self.parts[each.place >> LENGTH_BITS].tokens
            spare -= room < 0
            if spare < 0:
                return
            yield each


class SearchScope(NamedTuple):
    """The messages to search: of one owner or all, one session or all, with a filter or all."""

    owner: str | None
    session: SessionKey | None
    only: MessageFilter | None = None


async def ranked(
    finder: Searchable,
    asked: Query,
    scope: SearchScope,
    *,
    vectors: Vectors | None,
    weights: Weights,
    most: int = CANDIDATES,
    neighbours: bool = True,
    shown: tuple[int, int] = NOTHING,
    read_on: ReadOn | None = None,
) -> Ranking:
    """Return pieces related to a question, the best first.

    `neighbours` includes pieces with none of its words next to pieces with some. `shown` are the
    first and the last position that a context shows anyway. `read_on` is given what is not indexed
    yet; if it indexed some of that, the words are looked up again.
    """
    found, vector = await _found(finder, asked, scope, vectors)
    while read_on is not None and await read_on(found.unread):
        found, vector = await _found(finder, asked, scope, vectors)
    also: Sequence[int] = ()
    if vectors is not None and vector is not None and not vector.ids:
        also = await finder.nearest(vectors.view, vector, **scope._asdict(), limit=_NEAREST)
    stats = CorpusStats.of(found.segments)
    found = found._replace(segments=stats)
    confined = scope.only is not None
    best = candidates(asked, found, most=most, also=also, stats=stats, confined=confined)
    if not neighbours and vector is None:
        best = [each for each in best if each.own]
    places = [each.place for each in best]
    parts = {part.place >> LENGTH_BITS: part for part in await finder.parts(VIEW, places)}
    kept: dict[int, Embedding] = {}
    if vectors is not None and vector is not None:
        near = await finder.vectors(vectors.view, places)
        kept = {place >> LENGTH_BITS: each for place, each in near.items()}
    return Ranking(
        ranked=rank(asked, found, best, parts, asked=vector, vectors=kept, weights=weights),
        parts=parts,
        stats=stats,
        strengths={each.place >> LENGTH_BITS: each.near for each in best},
        ideal_score=ideal_score(asked, found, stats.parts, shown),
        by_vectors=vector is not None,
    )


async def _found(
    finder: Searchable,
    asked: Query,
    scope: SearchScope,
    vectors: Vectors | None,
) -> tuple[Found, Embedding | None]:
    """Return the positions of a question's words, and its vectors if there is an embedder."""
    places = finder.places(VIEW, _looked_for(asked), **scope._asdict())
    if vectors is None:
        return _with_forms(asked, await places), None
    found, vector = await asyncio.gather(places, vectors.asked(asked.text))
    return _with_forms(asked, found), vector


def _looked_for(asked: Query) -> list[str]:
    """Return the terms to look up: words, their counts, and their other forms."""
    plain = [word for word in asked.words if word not in asked.faint]
    words = [f"{word}{mark}" for word in plain for mark in MARKS]
    return [*words, *asked.faint, *chain.from_iterable(asked.forms.values())]


def _with_forms(asked: Query, found: Found) -> Found:
    """Return the found positions, with those of other forms of a word among its own."""
    places, older = dict(found.places), dict(found.older)
    for lists in (places, older):
        for word, forms in asked.forms.items():
            others = [lists.get(form, ()) for form in forms]
            if any(others):
                lists[word] = sorted({*lists.get(word, ()), *chain.from_iterable(others)})
    return found._replace(places=places, older=older)
