"""A model that keeps account of what it took."""

from collections.abc import AsyncIterator, Mapping, Sequence

from keepthread.protocols import ChatModel
from keepthread.types import JSON, Message, Reply, Tool, Usage


class Spent:
    """What several models took together."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.usage: Usage | None = None

    def add(self, usage: Usage | None) -> None:
        """Add what an answer took, if that is known."""
        if usage is not None:
            before = self.usage or Usage()
            self.usage = Usage(*(a + b for a, b in zip(before, usage, strict=True)))


class Counted:
    """A model, counted."""

    def __init__(self, model: ChatModel, spent: Spent) -> None:
        """Take the model and where to count."""
        self._model = model
        self._spent = spent

    @property
    def name(self) -> str:
        """Name the model."""
        return self._model.name

    async def complete(
        self,
        messages: Sequence[Message],
        *,
        system: str = "",
        tools: Sequence[Tool] = (),
        schema: Mapping[str, JSON] | None = None,
        max_tokens: int | None = None,
    ) -> Reply:
        """Return the model's answer."""
        reply = await self._model.complete(
            messages, system=system, tools=tools, schema=schema, max_tokens=max_tokens
        )
        self._spent.add(reply.usage)
        return reply

    async def stream(
        self,
        messages: Sequence[Message],
        *,
        system: str = "",
        tools: Sequence[Tool] = (),
        schema: Mapping[str, JSON] | None = None,
        max_tokens: int | None = None,
    ) -> AsyncIterator[str | Reply]:
        """Give the model's answer piece by piece."""
        pieces = self._model.stream(
            messages, system=system, tools=tools, schema=schema, max_tokens=max_tokens
        )
        async for piece in pieces:
            if isinstance(piece, Reply):
                self._spent.add(piece.usage)
            yield piece
