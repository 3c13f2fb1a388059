"""Ask a real model through our adapters and memory, and check what can be checked of it.

`python scripts/smoke.py PYTHON` with an interpreter that has xllamacpp; see scripts/smoke.
"""

import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from smoke_chat import chat_with_tools
from smoke_server import NAME, Server, served

from keepthread import Memory, Message
from keepthread.context.context import Context
from keepthread.errors import ModelCut, ModelRefused, ModelUnavailable
from keepthread.models import AnthropicModel, OpenAIModel
from keepthread.types import Reply

SYSTEM = "You are a travel guide. Answer in one or two sentences."
QUESTIONS = ("What is the weather like in Jakarta?", "How about Tokyo?")
STORY = [Message(role="user", content="Tell me a long story about the sea.")]
TOO_LONG = [Message(role="user", content="sea " * 5000)]
PLACE = [Message(role="user", content="Where is the Tokyo Tower? Answer as JSON.")]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "country": {"type": "string"}},
    "required": ["city", "country"],
    "additionalProperties": False,
}
LONGEST = 100


class Asked(NamedTuple):
    """What a question was sent with, what the model read of it, and what came back."""

    question: str
    context: Context
    read: str
    pieces: list[str]
    reply: Reply
    first: float
    seconds: float


class Checks:
    """Says of each thing whether it held, and counts those that did not."""

    def __init__(self) -> None:
        """Begin with none."""
        self.failed = 0

    def __call__(self, what: str, held: object) -> None:
        """Print one of them."""
        self.failed += not held
        print(f"  {'ok ' if held else 'NOT'} {what}")


async def ask(
    model: OpenAIModel | AnthropicModel, server: Server, store: str, question: str
) -> Asked:
    """Ask once, with memory opened anew: what it remembers comes from the file."""
    async with Memory.open(store) as memory:
        session = await memory.session(type(model).__name__, system_prompt=SYSTEM)
        async with session.turn(question) as turn:
            context = await turn.context(budget=1000)
            said, times, began = [], [], time.monotonic()
            stream = model.stream(context.messages, system=context.system, max_tokens=LONGEST)
            async for piece in stream:
                said.append(piece)
                times.append(time.monotonic() - began)
            *pieces, reply = said
            usage = reply.usage._asdict() if reply.usage else None
            await turn.finish(reply.content, usage=usage, truncated=reply.truncated)
    read = await asyncio.to_thread(server.read)
    return Asked(question, context, read, pieces, reply, times[0], times[-1])


def show(asked: Asked) -> None:
    """Print what was asked, sent and said."""
    sent, said = asked.context, asked.reply
    print(f"\n> {asked.question}")
    print(f"  sent: {len(sent.messages)} messages, {sent.tokens} tokens by our count")
    print("\n".join(f"  | {line}" for line in sent.text.splitlines()))
    print(
        f"  came: {len(asked.pieces)} pieces, {asked.first:.2f} to {asked.seconds:.2f} s, ", end=""
    )
    print(f"{said.usage}, cut={said.truncated}")
    print("\n".join(f"  | {line}" for line in said.content.splitlines()))


async def talk(
    model: OpenAIModel | AnthropicModel, server: Server, store: str, check: Checks
) -> None:
    """Hold the conversation of two questions on one wire."""
    print(f"\n== {model!r}")
    await model.warm()
    first, second = [await ask(model, server, store, question) for question in QUESTIONS]
    for asked in (first, second):
        show(asked)
        usage = asked.reply.usage
        check("it answered, piece by piece", asked.reply.content.strip() and len(asked.pieces) > 1)
        check("the pieces add up to the answer", "".join(asked.pieces) == asked.reply.content)
        check("usage was told", usage and usage.input > 0 and usage.output > 0)
        limit = usage and usage.output >= LONGEST
        check(f"it is marked as cut only at its limit: {limit}", asked.reply.truncated is limit)
        check("the model read the system prompt", f"{SYSTEM}<|im_end|>" in asked.read)
    told = [first.question, first.reply.content.strip(), second.question]
    places = [second.read.find(words) for words in told]
    check(
        "it read the first question, its answer, the second", 0 < places[0] < places[1] < places[2]
    )
    known = first.reply.usage.input if first.reply.usage else 0
    cached = second.reply.usage.cached if second.reply.usage else 0
    check(f"of the second prompt {cached} tokens were known, of the first {known}", cached >= known)


async def limits(model: OpenAIModel | AnthropicModel, check: Checks) -> None:
    """Try what ends an answer early, what shapes it, and what is refused."""
    reply = await model.complete(STORY, max_tokens=5)
    check(f"an answer at its limit is marked as cut: {reply.content!r}", reply.truncated)
    if isinstance(model, OpenAIModel):  # on the other wire this server knows of no schema
        reply = await model.complete(PLACE, schema=SCHEMA, max_tokens=LONGEST)
        obeyed = set(json.loads(reply.content)) == set(SCHEMA["required"])
        check(f"a schema is obeyed: {reply.content!r}", obeyed)
    try:
        await model.complete(TOO_LONG)
        check("too much is refused", held=False)
    except ModelRefused as error:
        check(f"too much is refused: {error}", held=True)


async def outage(model: OpenAIModel, server: Server, check: Checks) -> None:
    """Kill the server in the middle of an answer, and ask again."""
    arrived: list[str] = []
    try:
        async for piece in model.stream(STORY):
            if isinstance(piece, str):
                arrived.append(piece)
            if len(arrived) == 5:
                server.process.kill()
        check("a cut stream is told", held=False)
    except ModelCut as error:
        check(
            f"a cut stream is reported, with its text: {error}", error.partial == "".join(arrived)
        )
    try:
        await model.complete(STORY)
        check("a server that is gone is told", held=False)
    except ModelUnavailable as error:
        check(f"a server that is gone is told: {error}", held=True)


async def main(python: str) -> int:
    """Talk on both wires; return 1 if something did not hold."""
    check = Checks()
    with tempfile.TemporaryDirectory() as folder, served(python) as server:
        chat = OpenAIModel(NAME, base_url=f"{server.url}/v1")
        messages = AnthropicModel(NAME, base_url=server.url)
        for model in (chat, messages):
            await talk(model, server, f"sqlite:///{folder}/memory.db", check)
            await limits(model, check)
        await asyncio.to_thread(chat_with_tools, server.url, Path(folder), check)
        await outage(chat, server, check)
        await chat.close()
        await messages.close()
    print(f"\n{check.failed} did not hold" if check.failed else "\nall held")
    return bool(check.failed)


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1])))
