"""The nouns of a channel: who wrote what, what is asked, and when it is answered."""

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, TypeAlias

from keepthread.memory.session import Session
from keepthread.types import Attachment


class Person(NamedTuple):
    """Who writes: a number that stays, and a name that may change."""

    id: int
    name: str

    @property
    def author(self) -> str:
        """Return the stored author; it differs for two people with the same name."""
        return f"{self.name} ({self.id})"


class Heard(NamedTuple):
    """A message of a person, as it arrived."""

    id: int
    """Numbers grow with time."""
    channel: int
    person: Person
    text: str
    attachments: Sequence[Attachment] = ()
    called: bool = False
    """Whether it mentions us, or replies to us."""
    guild: int | None = None
    """None in direct messages."""
    parent: int | None = None
    """The channel that a thread is in."""
    title: str = ""
    """The place's name, for people."""
    moderates: bool = False
    """Whether the person may manage messages in this place."""
    at: float = 0.0
    """When it was written, in seconds since 1970."""


class Asked(NamedTuple):
    """A message to answer; it is stored already, under this id."""

    session: Session
    text: str
    author: str | None
    id: str
    attachments: Sequence[Attachment] = ()


Answer: TypeAlias = Callable[[Asked], Awaitable[str]]
"""Answers within a turn of that id, so that what was answered before is found again."""
