"""MaxSim: how similar the vectors of a query are to those of pieces.

With a vector for each token, each token of the query is compared with the most similar token of
a piece or its neighbors, and rare tokens count more. With one vector per text, it is their cosine.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from keepthread.types import Embedding

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


_RARE: Final = 1.5
"""Exponent of the BM25 rarity of a token: how much more a rare token counts."""


class Meaning(NamedTuple):
    """Similarity of each piece to the query, alone and together with its neighbors."""

    own: Sequence[float]
    near: Sequence[float]


def meaning_of(
    asked: Embedding,
    keys: Sequence[int],
    vectors: Mapping[int, Embedding],
    beside: Sequence[tuple[float, Sequence[int]]],
) -> Meaning:
    """Return the similarity of each piece to the query.

    `keys` name the pieces. `beside` has shares, each with one neighbor per piece: its number in
    `keys`, or -1 for none. A piece without vectors is as similar as the least similar one.
    """
    import numpy as np  # noqa: PLC0415 - an optional package, needed from here on

    have = [n for n, key in enumerate(keys) if _is_comparable(vectors.get(key), asked)]
    if not have:
        return Meaning([0.0] * len(keys), [0.0] * len(keys))
    pieces = [vectors[keys[n]] for n in have]
    ends = np.cumsum([len(piece.vectors) // piece.dimensions for piece in pieces])
    stacked = np.frombuffer(b"".join(piece.vectors for piece in pieces), np.int8)
    matrix = stacked.reshape(-1, asked.dimensions).astype(np.float32)
    question = np.frombuffer(asked.vectors, np.int8).reshape(-1, asked.dimensions)
    cosines = matrix @ (question.astype(np.float32).T / 127**2)
    best = np.maximum.reduceat(cosines, np.concatenate(([0], ends[:-1])), axis=0)
    every = np.full((len(keys), best.shape[1]), best.min(axis=0), np.float32)
    every[have] = best
    weights = _rarity(asked.ids, [piece.ids for piece in pieces])
    return Meaning((every @ weights).tolist(), (_with_beside(every, beside) @ weights).tolist())


def _is_comparable(piece: Embedding | None, asked: Embedding) -> bool:
    """Return whether a piece has vectors of as many dimensions as the question's."""
    return piece is not None and bool(piece.vectors) and piece.dimensions == asked.dimensions


def _rarity(asked: Sequence[int], pieces: Sequence[Sequence[int]]) -> "NDArray[np.float32]":
    """Return the weight of each token of the query, rare ones more; the sum is 1."""
    import numpy as np  # noqa: PLC0415

    if not asked:
        return np.ones(1, np.float32)
    wanted = set(asked)
    seen: dict[int, int] = dict.fromkeys(wanted, 0)
    for ids in pieces:
        for token in wanted.intersection(ids):
            seen[token] += 1
    total = len(pieces)
    df = np.array([seen[token] for token in asked], np.float32)
    worth = np.log(1 + (total - df + 0.5) / (df + 0.5)) ** _RARE
    return worth / worth.sum()


def _with_beside(
    every: "NDArray[np.float32]", beside: Sequence[tuple[float, Sequence[int]]]
) -> "NDArray[np.float32]":
    """Return the best cosines of each piece and its neighbors."""
    import numpy as np  # noqa: PLC0415

    near = every.copy()
    none = np.full((1, every.shape[1]), -1, np.float32)
    others = np.concatenate((every, none))  # -1 is the last row
    for share, numbers in beside:
        np.maximum(near, share * others[numbers], out=near)
    return near
