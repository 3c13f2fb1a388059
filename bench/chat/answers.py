"""The first piece of an answer: by the bare SDK, by our model alone, and with memory around it."""

import importlib
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from itertools import cycle
from typing import Any, NamedTuple, TypeAlias, cast

from bench import Bar, Row, Run
from bench.chat.home import MODEL, Home
from bench.chat.programs import Spent
from bench.measure import median, middle_half, no_collection
from keepthread import Context
from keepthread.apps.cli.chat.talk import VIEW, Talk
from keepthread.models.base import RemoteModel
from keepthread.stores.codec import new_id

Pieces: TypeAlias = AsyncGenerator[Any, None]
_ADDED = Bar(10)
_LONGEST_ANSWER = 1024
_WARM = 3


class Wire(NamedTuple):
    """A provider's wire as its bare SDK speaks it."""

    package: str
    client: str
    request: Callable[[Context], dict[str, Any]]
    ask: Callable[[Any, Mapping[str, Any]], Pieces]


async def _ask_openai(client: Any, request: Mapping[str, Any]) -> Pieces:
    usage = {"include_usage": True}
    stream = await client.chat.completions.create(stream=True, stream_options=usage, **request)
    async for chunk in stream:
        if chunk.choices and (piece := chunk.choices[0].delta.content):
            yield piece


async def _ask_anthropic(client: Any, request: Mapping[str, Any]) -> Pieces:
    stream = await client.messages.create(stream=True, max_tokens=_LONGEST_ANSWER, **request)
    async for event in stream:
        if event.type == "content_block_delta" and event.delta.type == "text_delta":
            yield event.delta.text


WIRES = {
    "openai": Wire("openai", "AsyncOpenAI", Context.to_openai_chat, _ask_openai),
    "anthropic": Wire("anthropic", "AsyncAnthropic", Context.to_anthropic, _ask_anthropic),
}


class Asked(NamedTuple):
    """What the first piece took on each way, and the parts of the way through memory."""

    bare: Spent
    model: Spent
    memory: Spent
    storing: Spent
    choosing: Spent


class Asking:
    """One chat and the bare SDK, asked in turn over connections that are kept.

    The bare SDK and our model alone are asked the same each time: what the chat's model was once
    asked. The chat is asked one question after another, and its log grows.
    """

    def __init__(self, talk: Talk, wire: Wire, url: str, questions: Sequence[str]) -> None:
        sdk = importlib.import_module(wire.package)
        self._client = getattr(sdk, wire.client)(base_url=url, api_key="none", max_retries=0)
        self._talk = talk
        self._wire = wire
        self._questions = cycle(questions)
        self._context: Context
        self._request: dict[str, Any]

    async def warm(self) -> None:
        """Load everything and connect, and take one question for what is always asked."""
        for _ in range(_WARM):
            await self._through_memory()
            await self._by_hand()
        assert self._talk.last
        self._context = self._talk.last.context
        self._request = {"model": MODEL, **self._wire.request(self._context)}
        for _ in range(_WARM):
            await self._bare()
            await self._through_model()

    async def round(self, count: int) -> list[Asked]:
        """Ask so many questions on all ways, beginning with another each time."""
        found: list[Asked] = []
        with no_collection():
            for number in range(count):
                ways = [self._bare, self._through_model, self._through_memory, self._by_hand]
                taken: dict[int, Any] = {}
                for place in range(len(ways)):
                    way = (number + place) % len(ways)
                    taken[way] = await ways[way]()
                bare, model, memory, (storing, choosing) = (taken[n] for n in range(len(ways)))
                found.append(Asked(bare, model, memory, storing, choosing))
        return found

    async def close(self) -> None:
        await self._client.close()
        await cast(RemoteModel, self._talk.model).close()
        await self._talk.persistence.close()

    async def _bare(self) -> Spent:
        return await _first(self._wire.ask(self._client, self._request))

    async def _through_model(self) -> Spent:
        context = self._context
        return await _first(self._talk.model.stream(context.messages, system=context.system))

    async def _through_memory(self) -> Spent:
        spent = await _first(self._talk.ask(next(self._questions)))
        assert self._talk.last
        assert self._talk.last.answer
        await self._talk.persistence.idle()  # as a person's next question finds it
        return spent

    async def _by_hand(self) -> tuple[Spent, Spent]:
        """Do what the chat does, step by step; return what storing and choosing took."""
        session = await self._talk.session()
        begun = _now()
        async with session.turn(next(self._questions), id=new_id()) as turn:
            stored = _now()
            context = await turn.context(VIEW)
            chosen = _now()
            reply = await self._talk.model.complete(context.messages, system=context.system)
            await turn.finish(reply.content)
        await self._talk.persistence.idle()
        return stored.less(begun), chosen.less(stored)


async def _first(pieces: Any) -> Spent:
    """Hear an answer to its end; return what its first piece took."""
    async with aclosing(pieces):
        begun = _now()
        await anext(pieces)
        spent = _now().less(begun)
        async for _ in pieces:
            pass
    return spent


def _now() -> Spent:
    return Spent(time.process_time(), time.perf_counter())


async def measure(
    run: Run, home: Home, url: str, questions: Sequence[str], *, of: str, provider: str = "openai"
) -> list[Row]:
    """Return the rows of one log on one wire."""
    asking = Asking(await home.talk(), WIRES[provider], url, questions)
    asked: list[Asked] = []
    try:
        await asking.warm()
        for number in range(run.rounds):
            run.progress(f"first pieces, {of}: round {number + 1} of {run.rounds}")
            asked += await asking.round(2 if run.quick else 16)
    finally:
        await asking.close()
    return list(_rows(asked, of))


def _rows(asked: Sequence[Asked], of: str) -> Iterator[Row]:
    added = [each.memory.less(each.model) for each in asked]
    figures = {
        "the bare SDK": [each.bare for each in asked],
        "our model, less the bare SDK": [each.model.less(each.bare) for each in asked],
        "with memory, less the bare SDK": [each.memory.less(each.bare) for each in asked],
        "added by memory": added,
        "of that: storing the question": [each.storing for each in asked],
        "of that: choosing the context": [each.choosing for each in asked],
    }
    for name, spent in figures.items():
        bar = _ADDED if spent is added else None
        yield _milliseconds(f"to the first piece, {of}", f"{name}, {of}", spent, "wall", bar)
    for name, spent in figures.items():
        yield _milliseconds(f"the same, CPU, {of}", f"{name}, CPU, {of}", spent, "cpu", None)


def _milliseconds(
    group: str, name: str, spent: Sequence[Spent], clock: str, bar: Bar | None
) -> Row:
    found = [1000 * getattr(each, clock) for each in spent]
    return Row(
        group=group, name=name, value=median(found), unit="ms", spread=middle_half(found), bar=bar
    )
