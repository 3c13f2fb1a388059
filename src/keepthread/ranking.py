"""Ranking what an index finds: its places, what is known of them, vectors if there are any."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from keepthread.protocols import Searchable
from keepthread.recall.ground import Ground
from keepthread.recall.lexical import candidates
from keepthread.recall.places import LENGTH_BITS
from keepthread.recall.query import Query
from keepthread.recall.rank import Ranked, rank
from keepthread.recall.view import VIEW
from keepthread.recall.weights import Weights
from keepthread.recall.worth import worth
from keepthread.types import Embedding, Found, Part, SessionKey
from keepthread.vectors import Vectors

CANDIDATES: Final = 400
_MARKS: Final = ("", "²", "³")
_TELLING: Final = 0.15
"""The share of a question's words, by what they are worth, that a piece must hold to be telling."""
_BY_MEANING: Final = 8
_NEAREST: Final = 100
"""Pieces that are nearest by meaning, where a text has one vector."""
_SPARE: Final = 20
"""Pieces beyond what a room can hold: some fall away, and near misses are named."""


class Ranking(NamedTuple):
    """What bears on a question, the best first, and what is known of it."""

    ranked: Sequence[Ranked]
    parts: Mapping[int, Part]
    """By place without its length."""
    ground: Ground
    strengths: Mapping[int, float]
    """What words say for each candidate, without its length."""
    worth: float
    """What they would say for one that holds all of them."""
    by_vectors: bool

    def telling(self) -> list[Ranked]:
        """Return those that hold, or stand beside, a good part of what is asked.

        With vectors the first few are let in as well: they may say it in other words.
        """
        least, first = _TELLING * self.worth, _BY_MEANING if self.by_vectors else 0
        strengths = self.strengths
        return [
            each
            for n, each in enumerate(self.ranked)
            if n < first or strengths.get(each.place >> LENGTH_BITS, 0.0) >= least > 0
        ]

    def that_may_fit(self, some: Sequence[Ranked], room: int) -> Iterator[Ranked]:
        """Yield the best that fill a room, and some more: not all of them will do."""
        spare = _SPARE
        for each in some:
            room -= self.parts[each.place >> LENGTH_BITS].tokens
            spare -= room < 0
            if spare < 0:
                return
            yield each


async def ranked(
    finder: Searchable,
    asked: Query,
    *,
    owner: str | None,
    session: SessionKey | None,
    vectors: Vectors | None,
    weights: Weights,
    most: int = CANDIDATES,
    flags: int = 0,
    neighbours: bool = True,
) -> Ranking:
    """Return what bears on a question, the best first.

    `flags` are the roles it is confined to, 0 if it is not; `neighbours` lets in what holds none of
    its words, but stands beside what does.
    """
    found, vector = await _found(finder, asked, owner, session, vectors)
    also: Sequence[int] = ()
    if vectors is not None and vector is not None and not vector.ids:
        also = await finder.nearest(
            vectors.view, vector, owner=owner, session=session, limit=_NEAREST
        )
    ground = Ground.of(found.sittings)
    best = candidates(asked, found, most=most, also=also, ground=ground)
    if not neighbours and vector is None:
        best = [each for each in best if each.own]
    places = [each.place for each in best]
    parts = {part.place >> LENGTH_BITS: part for part in await finder.parts(VIEW, places)}
    if flags:
        parts = {key: part for key, part in parts.items() if part.flags & flags}
    kept: dict[int, Embedding] = {}
    if vectors is not None and vector is not None:
        near = await finder.vectors(vectors.view, places)
        kept = {place >> LENGTH_BITS: each for place, each in near.items()}
    return Ranking(
        ranked=rank(asked, found, best, parts, asked=vector, vectors=kept, weights=weights),
        parts=parts,
        ground=ground,
        strengths={each.place >> LENGTH_BITS: each.near for each in best},
        worth=worth(asked, found, ground.parts),
        by_vectors=vector is not None,
    )


async def _found(
    finder: Searchable,
    asked: Query,
    owner: str | None,
    session: SessionKey | None,
    vectors: Vectors | None,
) -> tuple[Found, Embedding | None]:
    """Return where the words of a question stand, and its vectors, if there is an embedder."""
    words = [f"{word}{mark}" for word in asked.words for mark in _MARKS]
    places = finder.places(VIEW, words, owner=owner, session=session)
    if vectors is None:
        return await places, None
    found, vector = await asyncio.gather(places, vectors.asked(asked.text))
    return found, vector
