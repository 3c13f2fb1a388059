"""The nouns of facts: what is known, where it was said, and what loading a document changed."""

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple, TypeAlias

from keepthread.types import Origin

FactState: TypeAlias = Literal["live", "future", "superseded", "ended", "quarantined"]

OWNER: Final = "owner"
"""Who noted a fact that no model proposed."""


class Source(NamedTuple):
    """A message that a fact comes from."""

    session: str
    """The session's id."""
    seq: int
    id: str
    """The message's id."""


class Wording(NamedTuple):
    """What a fact said before its owner edited it."""

    text: str
    value: str
    since: float
    until: float


class Noted(NamedTuple):
    """A fact as it lies on the shelf; whether it is true follows from all the others."""

    key: str
    text: str
    at: float
    """When it was said, in seconds since 1970; an edit says it anew."""
    subject: str = ""
    """Whom or what it is about; nothing is the owner."""
    attribute: str = ""
    """What of the subject it tells, such as `city`; nothing for a fact that stands by itself."""
    value: str = ""
    many: bool = False
    """Whether the subject can have several values of this attribute at a time."""
    messages: Sequence[Source] = ()
    place: tuple[str, int] | None = None
    """The session and position it was said at; None if its owner wrote it."""
    origin: Origin = "user"
    trust: Origin = "user"
    """The lowest trust of what it comes from."""
    since: float | None = None
    until: float | None = None
    """When it became and ceased to be true, if that was said."""
    noted_at: float = 0.0
    by: str = OWNER
    confirmed_at: float | None = None
    wordings: Sequence[Wording] = ()
    offset: int = 0
    """Where its message states it: of two facts of one message the latter counts as said later."""
    end_added: bool = False
    """Whether its end was added by an edit: then what it replaced stays replaced."""


class Fact(NamedTuple):
    """What is known: its text, who says so, and whether it holds.

    `state` is `live`; `future`, if it will hold later; `superseded` by another of its slot;
    `ended`, if it holds no longer and nothing took its place; or `quarantined`, until its owner
    confirms it.
    """

    key: str
    text: str
    subject: str
    """Whom or what it is about; nothing is the owner."""
    attribute: str
    """What of the subject it tells, such as `city`; nothing for a fact that stands by itself."""
    value: str
    many: bool
    """Whether the subject can have several values of this attribute at a time."""
    messages: Sequence[Source]
    """Where it was said; nowhere if its owner wrote it."""
    origin: Origin
    """Whose word it is."""
    trust: Origin
    """How much it counts: as the lowest of what it comes from, or as its owner's word."""
    state: FactState
    since: float
    """When it became true, in seconds since 1970."""
    until: float | None
    """When it ceased to be true."""
    replaced_by: str
    """The key of the fact that stands in its place; nothing if none does."""
    replaces: str
    """The key of the fact whose place it took; nothing if there was none."""
    noted_at: float
    by: str
    """Who noted it: `owner`, or `model:NAME`."""
    confirmed: bool


Found: TypeAlias = list[Fact]


class Loaded(NamedTuple):
    """What loading a document changed, by the keys of the facts."""

    added: Sequence[str] = ()
    edited: Sequence[str] = ()
    confirmed: Sequence[str] = ()
    forgotten: Sequence[str] = ()
    passed: Sequence[str] = ()
    """Facts of the document that are forgotten here, or replaced since: they stay as they are."""


class Extracted(NamedTuple):
    """What extraction took for one owner, and what came of it."""

    calls: int = 0
    input: int = 0
    output: int = 0
    cached: int = 0
    proposed: int = 0
    """Facts that models proposed."""
    noted: int = 0
    """Those that were new."""
    refused: int = 0
    """Proposals, and whole answers, that could not be taken."""
