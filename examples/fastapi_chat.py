"""A chat over HTTP: answers are streamed, and every user has a conversation of their own.

    pip install 'keepthread[openai]' fastapi uvicorn
    OPENAI_API_KEY=… python examples/fastapi_chat.py
    curl -N localhost:8000/chat/ana --json '{"text": "Hello, I am Ana."}'

Who the user is must be known before: here it is in the address, in your service it comes from a
login. KEEPTHREAD_STORE may name a server, such as postgresql://…, that several processes share.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from fastapi import FastAPI
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

from keepthread import Memory
from keepthread.errors import ModelError
from keepthread.models import OpenAIModel

STORE = os.environ.get("KEEPTHREAD_STORE", "sqlite:///chat.db")


class Said(BaseModel):
    """What a user says; an id makes it safe to send it twice."""

    text: str
    id: str | None = None


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Open memory and model once, for as long as the service runs."""
    key, url = os.environ["OPENAI_API_KEY"], os.environ.get("OPENAI_BASE_URL")
    app.state.model = OpenAIModel(os.environ.get("MODEL", "gpt-5-mini"), key=key, base_url=url)
    async with Memory.open(STORE) as app.state.memory:
        yield
    await app.state.model.close()


app = FastAPI(lifespan=lifespan)


@app.post("/chat/{user}")
async def chat(user: str, said: Said) -> StreamingResponse:
    """Answer, piece by piece."""
    return StreamingResponse(answer(user, said), media_type="text/plain; charset=utf-8")


async def answer(user: str, said: Said) -> AsyncIterator[str]:
    """Ask the model with this user's conversation around it."""
    session = await app.state.memory.session(user, owner=user, system_prompt="You are brief.")
    async with session.turn(said.text, id=said.id) as turn:  # stored first
        if turn.answer is not None:  # it was sent twice
            yield turn.answer.content
            return
        context, text = await turn.context(budget=4000), ""
        try:
            async for piece in app.state.model.stream(context.messages, system=context.system):
                if isinstance(piece, str):
                    text += piece
                    yield piece
            await turn.finish(text)  # stored last
        except ModelError as error:  # the question stays, so it can be sent again under its id
            yield f"\n(no answer: {error})"


if __name__ == "__main__":
    uvicorn.run(app, port=int(os.environ.get("PORT", "8000")))
