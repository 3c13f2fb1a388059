"""Models that count their usage, or fall back to other models; and an answer within a time."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

from keepthread.errors import ModelCut, ModelError, ModelRefused, ModelUnavailable
from keepthread.orchestrator.types import AnswerPiece, EventHandler
from keepthread.protocols import ChatModel
from keepthread.types import Message, Reply, Usage

NO_TEXT: Final = "the model returned no text"


class Spent:
    """The usage of several models together."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.usage: Usage | None = None

    def add(self, usage: Usage | None) -> None:
        """Add the usage of an answer, if it is known."""
        if usage is not None:
            self.usage = usage.plus(self.usage or Usage())


class Counted:
    """A model whose usage is counted; all calls are passed on."""

    def __init__(self, model: ChatModel, spent: Spent) -> None:
        """Take the model and the counter."""
        self._model = model
        self._spent = spent

    @property
    def name(self) -> str:
        """Return the model's name."""
        return self._model.name

    async def complete(self, messages: Sequence[Message], **asked: Any) -> Reply:
        """Return the model's answer."""
        reply = await self._model.complete(messages, **asked)
        self._spent.add(reply.usage)
        return reply

    async def stream(self, messages: Sequence[Message], **asked: Any) -> AsyncIterator[str | Reply]:
        """Yield the model's answer piece by piece."""
        async for piece in self._model.stream(messages, **asked):
            if isinstance(piece, Reply):
                self._spent.add(piece.usage)
            yield piece


class Fallback:
    """Several models as one: if a model is unavailable, the next gets the same request.

    >>> Fallback(AnthropicModel("claude-sonnet-4-5", key="…"), OpenAIModel("gpt-5", key="…"))
    """

    def __init__(self, first: ChatModel, *others: ChatModel) -> None:
        """Take the models in order, the best first."""
        self._models = (first, *others)

    @property
    def name(self) -> str:
        """Return the name of the first."""
        return self._models[0].name

    async def complete(self, messages: Sequence[Message], **asked: Any) -> Reply:
        """Return the answer of the first that gives one."""
        *others, last = self._models
        for model in others:
            with suppress(ModelError):
                return await model.complete(messages, **asked)
        return await last.complete(messages, **asked)

    async def stream(self, messages: Sequence[Message], **asked: Any) -> AsyncIterator[str | Reply]:
        """Yield the answer of the first that begins one."""
        for number, model in enumerate(self._models, 1):
            said = False
            try:
                async for piece in model.stream(messages, **asked):
                    said = True
                    yield piece
            except ModelError:
                if said or number == len(self._models):
                    raise
            else:
                return


async def streamed(
    pieces: AsyncIterator[str | Reply], *, stage: str, seconds: float, on_event: EventHandler
) -> Reply:
    """Return a model's answer, and pass each piece on; what broke off is returned as truncated."""
    said, reply = "", None
    try:
        async with deadline(seconds, stage):
            async for piece in pieces:
                if isinstance(piece, Reply):
                    reply = piece
                else:
                    said += piece
                    on_event(AnswerPiece(piece))
    except (ModelCut, ModelUnavailable):
        if not said:
            raise
    reply = reply or Reply(content=said, truncated=True)
    if not reply.content.strip() and not reply.tool_calls:
        raise ModelRefused(NO_TEXT)
    return reply


@asynccontextmanager
async def deadline(seconds: float, stage: str) -> AsyncGenerator[None]:
    """Raise `ModelUnavailable` if the block takes longer."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise ModelUnavailable(f"the {stage} took longer than {seconds:g} seconds") from None
