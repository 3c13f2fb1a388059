"""Data types of facts, of their sources, and of what loading a document changed."""

import json
from collections.abc import Sequence
from hashlib import sha256
from typing import Final, Literal, NamedTuple, TypeAlias

from keepthread.types import Origin

FactState: TypeAlias = Literal["live", "future", "superseded", "ended", "quarantined"]

OWNER: Final = "owner"
"""The author of facts that no model proposed."""


class Source(NamedTuple):
    """A message that a fact comes from."""

    session: str
    """The session's id."""
    seq: int
    id: str
    """The message's id."""
    owner: str = ""
    """The session's owner, if the fact is of somebody else who took part in it."""


class Wording(NamedTuple):
    """An earlier wording of a fact, before its owner edited it."""

    text: str
    value: str
    since: float
    until: float


class Noted(NamedTuple):
    """A stored fact; whether it is current depends on all the others."""

    key: str
    text: str
    at: float
    """When it was said, in seconds since 1970; an edit counts as said again."""
    subject: str = ""
    """Whom or what it is about; empty means the owner."""
    attribute: str = ""
    """The property of the subject, such as `city`; empty for a fact without one."""
    value: str = ""
    many: bool = False
    """Whether the subject can have several values of this attribute at a time."""
    messages: Sequence[Source] = ()
    place: tuple[str, int] | None = None
    """The session and position it was said at; None if its owner wrote it."""
    origin: Origin = "user"
    trust: Origin = "user"
    """The lowest trust of the messages it comes from."""
    since: float | None = None
    until: float | None = None
    """When it became and ceased to be true, if that is known."""
    noted_at: float = 0.0
    by: str = OWNER
    confirmed_at: float | None = None
    wordings: Sequence[Wording] = ()
    offset: int = 0
    """Where its message states it: of two facts in one message the second counts as said later."""
    end_added: bool = False
    """Whether its end was added by an edit: then what it replaced stays replaced."""
    agent: str = ""
    """The agent that alone is shown it, for this owner; empty for a fact of the owner."""
    source: str = ""
    """Where it came from, if no message states it, such as `mcp:CLIENT`."""


class Fact(NamedTuple):
    """A fact: its text, its source, and whether it is current.

    `state` is `live`; `future`, if it will hold later; `superseded` by another of its slot;
    `ended`, if it holds no longer and nothing took its place; or `quarantined`, until its owner
    confirms it.
    """

    key: str
    text: str
    subject: str
    """Whom or what it is about; empty means the owner."""
    attribute: str
    """The property of the subject, such as `city`; empty for a fact without one."""
    value: str
    many: bool
    """Whether the subject can have several values of this attribute at a time."""
    messages: Sequence[Source]
    """The messages that state it; empty if its owner wrote it."""
    origin: Origin
    """Whose statement it is."""
    trust: Origin
    """Its trust: the lowest among its messages, or that of its owner's statement."""
    state: FactState
    since: float
    """When it became true, in seconds since 1970."""
    until: float | None
    """When it ceased to be true."""
    replaced_by: str
    """The key of the fact that replaced it; empty if there is none."""
    replaces: str
    """The key of the fact that it replaced; empty if there is none."""
    noted_at: float
    by: str
    """Who noted it: `owner`, or `model:NAME`."""
    confirmed: bool
    agent: str = ""
    """The agent that alone is shown it, for this owner; empty for a fact of the owner."""
    source: str = ""
    """Where it came from, if no message states it, such as `mcp:CLIENT`."""

    @property
    def version(self) -> str:
        """Return a text that differs once its text, subject, attribute or value were changed."""
        return version_of(self)


def version_of(fact: Noted | Fact) -> str:
    """Return a text that differs between two wordings of a fact."""
    words = (fact.text, fact.subject, fact.attribute, fact.value)
    return sha256(json.dumps(words).encode()).hexdigest()[:16]


Found: TypeAlias = list[Fact]


class Loaded(NamedTuple):
    """The changes made by loading a document, by the keys of the facts."""

    added: Sequence[str] = ()
    edited: Sequence[str] = ()
    confirmed: Sequence[str] = ()
    forgotten: Sequence[str] = ()
    passed: Sequence[str] = ()
    """Facts of the document that were forgotten here, replaced since, or moved between agents.

    They stay as they are.
    """


class Extracted(NamedTuple):
    """Costs and results of extraction for one owner."""

    calls: int = 0
    input: int = 0
    output: int = 0
    cached: int = 0
    proposed: int = 0
    """Number of facts that models proposed."""
    noted: int = 0
    """Number of new facts."""
    refused: int = 0
    """Proposals, and whole answers, that were invalid."""
