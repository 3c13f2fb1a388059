"""A model that asks the next one when the first cannot answer."""

from collections.abc import AsyncIterator, Mapping, Sequence

from keepthread.errors import ModelError
from keepthread.protocols import ChatModel
from keepthread.types import JSON, Message, Reply, Tool


class Fallback:
    """Several models behind one; the next is asked if nothing came of the one before.

    >>> Fallback(AnthropicModel("claude-sonnet-4-5", key="…"), OpenAIModel("gpt-5", key="…"))
    """

    def __init__(self, first: ChatModel, *others: ChatModel) -> None:
        """Take them in order, the best first."""
        self._models = (first, *others)

    @property
    def name(self) -> str:
        """Name the first."""
        return self._models[0].name

    async def complete(
        self,
        messages: Sequence[Message],
        *,
        system: str = "",
        tools: Sequence[Tool] = (),
        schema: Mapping[str, JSON] | None = None,
        max_tokens: int | None = None,
    ) -> Reply:
        """Return the answer of the first that gives one."""
        *others, last = self._models
        for model in others:
            try:
                return await model.complete(
                    messages, system=system, tools=tools, schema=schema, max_tokens=max_tokens
                )
            except ModelError:
                continue
        return await last.complete(
            messages, system=system, tools=tools, schema=schema, max_tokens=max_tokens
        )

    async def stream(
        self,
        messages: Sequence[Message],
        *,
        system: str = "",
        tools: Sequence[Tool] = (),
        schema: Mapping[str, JSON] | None = None,
        max_tokens: int | None = None,
    ) -> AsyncIterator[str | Reply]:
        """Give the answer of the first that begins one."""
        for number, model in enumerate(self._models, 1):
            said = False
            pieces = model.stream(
                messages, system=system, tools=tools, schema=schema, max_tokens=max_tokens
            )
            try:
                async for piece in pieces:
                    said = True
                    yield piece
            except ModelError:
                if said or number == len(self._models):
                    raise
            else:
                return
