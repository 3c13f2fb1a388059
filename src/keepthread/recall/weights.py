"""Weights of the features of ranking, measured on benchmarks."""

from dataclasses import dataclass, field
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The weight of each feature; all but lengths and flags are between 0 and 1 for a query."""

    # words
    own: float = 0.0
    """Words of the query in the piece."""
    near: float = 0.0
    """The same, with its neighbors in the segment."""
    message: float = 0.0
    """Words of the query in the whole message."""
    answer: float = 0.0
    """Words of the query in the next message."""
    segment: float = 0.0
    """The best piece of its segment."""
    theme: float = 0.0
    """Words of the query in the whole segment."""

    # flags of the piece
    speaker: float = 0.0
    """The query names its speaker, and nobody else."""
    date: float = 0.0
    """The query names its time."""
    when: float = 0.0
    """The query asks when, and the piece holds an expression of time."""
    asks: float = 0.0
    user: float = 0.0
    first: float = 0.0
    standing: float = 0.0
    numbered: float = 0.0
    length: float = 0.0
    """The logarithm of its tokens."""
    total: float = 0.0
    """The logarithm of its message's tokens."""

    # meaning, by the vectors of tokens or of the whole piece
    meaning: float = 0.0
    meaning_near: float = 0.0
    """With its neighbors in the segment."""
    meaning_message: float = 0.0
    """The best of its message."""
    meaning_answer: float = 0.0
    """The best of the next message."""
    meaning_segment: float = 0.0
    """The best of its segment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationKind:
    """Profiles for a kind of conversation: words only, token vectors, pooled vectors."""

    words: Profile
    tokens: Profile
    pooled: Profile


_SPEAKERS: Final = ConversationKind(
    words=Profile(
        near=5.5,
        segment=1,
        theme=1.5,
        speaker=2.5,
        date=4,
        when=2,
        asks=-0.7,
        numbered=0.8,
        length=0.57,
    ),
    tokens=Profile(
        own=-0.8,
        near=2.75,
        segment=0.1,
        theme=1.05,
        speaker=2.2,
        date=4.6,
        when=2,
        asks=-0.75,
        numbered=0.85,
        length=0.46,
        meaning=1.6,
        meaning_near=4.6,
        meaning_segment=1.2,
    ),
    pooled=Profile(
        near=4.5,
        segment=1,
        theme=1,
        speaker=2.5,
        date=4,
        when=2,
        asks=-0.7,
        numbered=0.8,
        length=0.86,
        meaning=1.5,
        meaning_near=3,
        meaning_segment=0.5,
    ),
)

# Dates and names of speakers have half the weight of above: BEAM, the benchmark, has neither.
_ASSISTED: Final = ConversationKind(
    words=Profile(
        own=2.9,
        near=-0.2,
        message=1.9,
        answer=1.35,
        segment=0.3,
        speaker=1.25,
        date=2,
        user=1.32,
        first=0.5,
        standing=0.21,
        numbered=0.27,
        length=-0.69,
        total=-0.63,
    ),
    tokens=Profile(
        own=1.45,
        message=1.9,
        answer=0.67,
        speaker=1.25,
        date=2,
        user=1.76,
        standing=0.55,
        numbered=0.17,
        length=-0.84,
        total=-0.47,
        meaning=1.35,
        meaning_message=1,
        meaning_answer=1,
    ),
    pooled=Profile(
        own=1.45,
        message=1.9,
        answer=0.67,
        speaker=1.25,
        date=2,
        user=1.76,
        standing=0.55,
        numbered=0.17,
        length=-0.84,
        total=-0.47,
        meaning=1.35,
        meaning_message=1,
        meaning_answer=1,
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """Weights for conversations among named speakers and with an assistant."""

    speakers: ConversationKind = field(default=_SPEAKERS)
    assisted: ConversationKind = field(default=_ASSISTED)


DEFAULT: Final = Weights()
