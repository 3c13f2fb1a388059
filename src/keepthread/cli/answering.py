"""What answers in a channel: a model with memory around it, or the orchestrator."""

from collections.abc import AsyncGenerator, Sequence
from typing import Final

from keepthread.channels.nouns import Answer, Asked
from keepthread.cli.chat.talk import VIEW, meta_of
from keepthread.errors import ModelCut
from keepthread.orchestrator import Models, Runnable, orchestrate
from keepthread.protocols import ChatModel
from keepthread.turn import Turn
from keepthread.types import Message, Reply

_BROKEN_OFF: Final = "\n-# (the answer broke off)"


def chatting(model: ChatModel) -> Answer:
    """Return what asks a model, as a chat does."""

    async def answer(asked: Asked) -> str:
        exchange = asked.session.exchange(
            asked.text, id=asked.id, author=asked.author, attachments=asked.attachments
        )
        async with exchange as turn:
            stored = turn.answer or await _said(turn, model)
        if stored is None:
            return ""
        return stored.content + (_BROKEN_OFF if stored.meta.get("cut") else "")

    return answer


async def _said(turn: Turn, model: ChatModel) -> Message | None:
    """Return what a model says, as stored; None if it says nothing."""
    context = await turn.context(VIEW)
    text, reply = "", Reply(cut=True)
    stream = model.stream(context.messages, system=context.system)
    try:
        async for piece in stream:
            if isinstance(piece, Reply):
                reply = piece
            else:
                text += piece
    except ModelCut:
        if not text:
            raise
    finally:
        if isinstance(stream, AsyncGenerator):
            await stream.aclose()
    if not text.strip():
        return None
    meta = meta_of(model.name, reply.usage, cut=reply.cut)
    return await turn.finish(Message(role="assistant", content=text, meta=meta))


def orchestrating(models: Models, tools: Sequence[Runnable] = ()) -> Answer:
    """Return what routes, plans and carries out a request."""

    async def answer(asked: Asked) -> str:
        answered = await orchestrate(
            asked.text,
            asked.session,
            tools,
            models,
            id=asked.id,
            author=asked.author,
            attachments=asked.attachments,
        )
        return answered.text

    return answer
