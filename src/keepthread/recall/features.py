"""Features of candidates: columns of numbers that are multiplied by weights."""

import math
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

from keepthread.recall.candidates import Candidate
from keepthread.recall.chunks import ASKS, FIRST, NUMBERED, STANDING, TIMED, USER, total_of
from keepthread.recall.maxsim import meaning_of
from keepthread.recall.positions import LENGTH_BITS, MESSAGE
from keepthread.recall.query import Query
from keepthread.recall.words import words_of
from keepthread.types import Embedding, Part

Column: TypeAlias = Sequence[float]
Features: TypeAlias = Mapping[str, Column]
"""By the name of the weight, a number for each candidate."""

_BESIDE: Final = ((-1, 0.9), (1, 0.85), (-2, 0.85), (2, 0.8))
"""Pairs of offset and share: how much the meaning of a neighboring message counts."""


def features_of(
    query: Query,
    candidates: Sequence[Candidate],
    parts: Sequence[Part],
    asked: Embedding | None = None,
    vectors: Mapping[int, Embedding] = {},
) -> Features:
    """Return the features of candidates, whose parts these are; equal columns are left out."""
    if not candidates:
        return {}
    features = _of_words(candidates) | _of_flags(query, parts)
    if asked and vectors:
        features |= _of_meaning(candidates, asked, vectors)
    return {name: column for name, column in features.items() if column}


def _of_words(candidates: Sequence[Candidate]) -> dict[str, Column]:
    near = _shares([c.near for c in candidates])
    segments = [c.segment for c in candidates]
    return {
        "own": _shares([c.own for c in candidates]),
        "near": near,
        "message": _shares([c.message for c in candidates]),
        "answer": _shares([c.answer for c in candidates]),
        "segment": _spread(_best_by(segments, near)),
        "theme": _spread([c.theme for c in candidates]),
        "date": [c.date for c in candidates] if any(c.date for c in candidates) else (),
    }


def _of_flags(query: Query, parts: Sequence[Part]) -> dict[str, Column]:
    flags = [part.flags for part in parts]
    log = math.log
    features: dict[str, Column] = {
        "asks": [flag & ASKS for flag in flags],
        "user": [(flag & USER) / USER for flag in flags],
        "first": [(flag & FIRST) / FIRST for flag in flags],
        "standing": [(flag & STANDING) / STANDING for flag in flags],
        "numbered": [(flag & NUMBERED) / NUMBERED for flag in flags],
        "length": [log(part.tokens) for part in parts],
        "total": [log(max(1, total_of(flag))) for flag in flags],
    }
    if query.when:
        features["when"] = [(flag & TIMED) / TIMED for flag in flags]
    if who := _speaker(query, parts):
        features["speaker"] = [float(part.speaker == who) for part in parts]
    return features


def _speaker(query: Query, parts: Sequence[Part]) -> str:
    """Return the only speaker that the query names, or an empty string."""
    speakers = {part.speaker for part in parts if part.speaker}
    named = [who for who in speakers if query.spoken.intersection(words_of(who)[:1])]
    return named[0] if len(named) == 1 else ""


def _of_meaning(
    candidates: Sequence[Candidate],
    asked: Embedding,
    vectors: Mapping[int, Embedding],
) -> dict[str, Column]:
    messages = [c.place >> MESSAGE for c in candidates]
    numbers: dict[int, int] = {}
    for number, message in enumerate(messages):
        numbers.setdefault(message, number)

    def beside(step: int) -> list[int]:
        found = [numbers.get(message + step, -1) for message in messages]
        return [
            other if other >= 0 and candidates[other].segment == c.segment else -1
            for other, c in zip(found, candidates, strict=True)
        ]

    meaning = meaning_of(
        asked,
        [c.place >> LENGTH_BITS for c in candidates],
        vectors,
        [(share, beside(step)) for step, share in _BESIDE],
    )
    own, near = _spread(meaning.own), _spread(meaning.near)
    best = _best_by(messages, own)
    return {
        "meaning": own,
        "meaning_near": near,
        "meaning_message": best,
        "meaning_answer": [best[n] if n >= 0 else 0.0 for n in beside(1)] if best else (),
        "meaning_segment": _spread(_best_by([c.segment for c in candidates], near)),
    }


def _shares(column: Column) -> Column:
    """Return the numbers divided by the greatest."""
    most = max(column)
    return [value / most for value in column] if most > 0 else ()


def _spread(column: Column) -> Column:
    """Return the numbers scaled from 0 for the least to 1 for the greatest."""
    least, most = min(column, default=0.0), max(column, default=0.0)
    return [(value - least) / (most - least) for value in column] if most > least else ()


def _best_by(groups: Sequence[int], column: Column) -> Column:
    """Return for each the greatest number of its group."""
    best: dict[int, float] = {}
    for group, value in zip(groups, column, strict=False):
        if value > best.get(group, -math.inf):
            best[group] = value
    return [best[group] for group in groups] if best else ()
