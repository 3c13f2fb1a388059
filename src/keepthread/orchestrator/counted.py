"""A model that keeps account of what it took."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

from keepthread.protocols import ChatModel
from keepthread.types import Message, Reply, Usage


class Spent:
    """What several models took together."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.usage: Usage | None = None

    def add(self, usage: Usage | None) -> None:
        """Add what an answer took, if that is known."""
        if usage is not None:
            self.usage = usage.plus(self.usage or Usage())


class Counted:
    """A model, counted; it is asked whatever it is asked here."""

    def __init__(self, model: ChatModel, spent: Spent) -> None:
        """Take the model and where to count."""
        self._model = model
        self._spent = spent

    @property
    def name(self) -> str:
        """Name the model."""
        return self._model.name

    async def complete(self, messages: Sequence[Message], **asked: Any) -> Reply:
        """Return the model's answer."""
        reply = await self._model.complete(messages, **asked)
        self._spent.add(reply.usage)
        return reply

    async def stream(self, messages: Sequence[Message], **asked: Any) -> AsyncIterator[str | Reply]:
        """Give the model's answer piece by piece."""
        async for piece in self._model.stream(messages, **asked):
            if isinstance(piece, Reply):
                self._spent.add(piece.usage)
            yield piece
