"""What an outbox file holds, and what it says of itself."""

from collections.abc import Sequence
from typing import NamedTuple

from keepthread.types import Message, SessionKey


class Batch(NamedTuple):
    """The messages of one append, all or none."""

    number: int
    """Its place in the outbox, never used again; 0 until it has one."""
    key: SessionKey
    session: str
    """The session's id, for people."""
    turn: int | None
    opened_by: str | None
    """The user message whose turn they belong to, if that was queued before them."""
    messages: Sequence[Message]


class Waiting(NamedTuple):
    """How much of a session is not delivered yet."""

    session: str
    messages: int
    bytes: int


class Dropped(NamedTuple):
    """A message that was not delivered because its session, or its text, had been deleted."""

    session: str
    id: str
    reason: str
    at: float


class Settled(NamedTuple):
    """What became of a batch: delivered but for what was dropped, or refused for a reason."""

    batch: Batch
    dropped: Sequence[Dropped] = ()
    reason: str | None = None


class SetAside(NamedTuple):
    """Messages that the store refused, kept until someone looked."""

    session: str
    reason: str
    messages: Sequence[Message]


class Survey(NamedTuple):
    """All that an outbox file says of itself."""

    target: str
    tenant: str
    owner: str
    """The process that has it open; empty if none does."""
    waiting: Sequence[Waiting]
    dropped: Sequence[Dropped]
    set_aside: Sequence[SetAside]

    @property
    def messages(self) -> int:
        """Return how many messages wait."""
        return sum(each.messages for each in self.waiting)
