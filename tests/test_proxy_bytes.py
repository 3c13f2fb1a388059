"""Byte fidelity of the whole proxy: a provider receives what the client wrote, and the additions.

A real proxy with a real memory stands between real sockets. The requests have the shapes that known
clients send.
"""

import json
import re
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

import httpx2
import pytest

from keepthread import Memory
from keepthread.apps.proxy.assembly import build
from keepthread.apps.proxy.memory import ProxyMemory
from keepthread.apps.proxy.types import Prepared, ProviderAnswer, ReadRequest, WireName
from tests.proxy_requests import WIRES, history_of
from tests.proxy_shapes import Shape, shapes
from tests.proxy_world import ProxyWorld, Sent, answering, proxy_world

FEW = 48
ALL = 500
KNOWN = "The dog Rex lives in Oslo, in the yellow house by the river."
ANSWER = json.dumps(
    {
        "choices": [{"message": {"role": "assistant", "content": "Yes."}}],
        "content": [{"type": "text", "text": "Yes."}],
        "output": [{"type": "message", "role": "assistant", "content": "Yes."}],
    }
).encode()
_INSIDE = r"<keepthread-memory id=[0-9a-f]+>(?:[^\"\\]|\\.)*?</keepthread-memory>"
_ADDED = re.compile(rf'\\n\\n{_INSIDE}(?=")|,{{"type":"(?:input_)?text","text":"{_INSIDE}"}}')
"""An addition in the JSON of a request: at the end of a text, or a part of its own."""


class EachTheirOwn:
    """Gives each request an owner of its own, so that there is nothing to recall."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._owners = 0

    async def addition_key(self) -> bytes:
        return b"a key"

    async def prepare(self, request: ReadRequest, *, records: bool = True) -> Prepared:
        self._owners += 1
        owner = self._memory.for_owner(f"owner-{self._owners}")
        return await ProxyMemory(owner, "local").prepare(request, records=records)

    async def record(self, prepared: Prepared, answer: ProviderAnswer | None) -> None:
        await ProxyMemory(self._memory.for_owner("any"), "local").record(prepared, answer)


async def relayed(world: ProxyWorld, shape: Shape, **headers: str) -> tuple[Sent, httpx2.Response]:
    """Send a request, and return what arrived upstream, and what came back."""
    response = await world.post(shape.path, shape.body, **shape.headers, **headers)
    assert response.status_code == 200
    assert response.content == ANSWER
    sent = world.upstream.requests[-1]
    assert sent.target == shape.path
    return sent, response


def assert_same(sent: Sent, shape: Shape) -> None:
    assert sent.body == shape.body
    assert sent.headers.get("content-encoding") == shape.headers.get("content-encoding")


@asynccontextmanager
async def knowing() -> AsyncGenerator[Memory]:
    """Open a memory that knows something about the questions."""
    async with Memory.open("ram://") as memory:
        session = await memory.for_owner("ann").session("earlier")
        await session.add_message("user", KNOWN)
        yield memory


async def keeps_bytes(given: Sequence[Shape]) -> None:
    async with (
        Memory.open("ram://") as memory,
        proxy_world(answering(ANSWER), EachTheirOwn(memory), build) as world,
    ):
        for shape in given:
            sent, response = await relayed(world, shape)
            assert response.headers["keepthread-tokens-added"] == "0"
            assert response.headers["keepthread-memory"] == "recorded"
            assert_same(sent, shape)
            sent, response = await relayed(world, shape, **{"Keepthread-Mode": "off"})
            assert response.headers["keepthread-mode"] == "off"
            assert_same(sent, shape)


async def adds_spans(given: Sequence[Shape]) -> Counter[str]:
    """Send requests that something is added to; return how many per client."""
    found: Counter[str] = Counter()
    async with knowing() as memory:
        ours = ProxyMemory(memory.for_owner("ann"), "local")
        async with proxy_world(answering(ANSWER), ours, build) as world:
            for shape in given:
                sent, response = await relayed(world, shape)
                assert response.headers["keepthread-memory"].startswith(("recorded", "not-rec"))
                if response.headers["keepthread-tokens-added"] == "0":
                    assert_same(sent, shape)
                    continue
                text = sent.body.decode()
                rest, number = _ADDED.subn("", text)
                assert rest == shape.text
                assert number == 1
                assert "content-encoding" not in sent.headers
                found[shape.client] += 1
            await world.proxy.idle()
    return found


async def test_a_provider_receives_the_bytes_that_the_client_sent() -> None:
    await keeps_bytes(list(shapes(FEW)))


async def test_an_addition_is_the_only_difference() -> None:
    found = await adds_spans(list(shapes(FEW)))
    assert min(found[shape.client] for shape in shapes(FEW)) >= FEW // 8 // 2


PETS = {"dog Rex": "Oslo", "cat Mia": "Bergen", "parrot Zed": "Tromsø", "horse Ivo": "Narvik"}


@pytest.mark.parametrize("wire", WIRES)
async def test_each_request_begins_as_the_one_before_it(wire: WireName) -> None:
    """So a provider's cache has it. Additions stay at their questions, and say nothing twice."""
    path = {"openai-chat": "/v1/chat/completions", "openai-responses": "/v1/responses"}
    history: list[dict[str, str]] = []
    before = ""
    counts: list[int] = []
    async with Memory.open("ram://") as memory:
        owner = memory.for_owner("ann")
        session = await owner.session("earlier")
        for pet, place in PETS.items():
            await session.add_message("user", f"The {pet} lives in {place} since spring.")
        ours = ProxyMemory(owner, "local")
        async with proxy_world(answering(ANSWER), ours, build) as world:
            for pet in PETS:
                history.append({"role": "user", "content": f"Where does the {pet} live?"})
                body = json.dumps({"model": "m", history_of(wire): history})
                await world.post(
                    path.get(wire, "/v1/messages"), body.encode(), **{"x-session-id": "s"}
                )
                await world.proxy.idle()
                sent = world.upstream.requests[-1].body.decode()
                assert sent.startswith(before)
                rest, number = _ADDED.subn("", sent)
                assert rest == body
                counts.append(number)
                before = sent.removesuffix("]}")
                history.append({"role": "assistant", "content": "Yes."})
    assert counts[0] == 1
    assert counts == sorted(counts)
    assert counts[-1] > 1


@pytest.mark.nightly
async def test_500_requests_keep_their_bytes() -> None:
    given = list(shapes(ALL, seed=1))
    await keeps_bytes(given)
    found = await adds_spans(given)
    assert found.total() >= 0.8 * ALL
    assert set(found) == {shape.client for shape in given}
