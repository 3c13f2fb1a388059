"""Bounds of what the proxy reads: size without compression, ratio, and numbers of items."""

import asyncio
import gzip
import json
import time
import tracemalloc
import zlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
import zstandard

from keepthread import Memory
from keepthread.apps.proxy.assembly import Memories, build
from keepthread.apps.proxy.encodings import decoded
from keepthread.apps.proxy.errors import ProxyError
from keepthread.apps.proxy.memory import ProxyMemory
from keepthread.apps.proxy.request import MAX_ITEMS, read_request
from keepthread.models.tokens import Estimator
from tests.proxy_requests import WIRES, history_of
from tests.proxy_world import ProxyWorld, answering, error_of, proxy_world

CHAT = "/v1/chat/completions"
MIB = 2**20
PACKERS = {
    "gzip": lambda data: gzip.compress(data, 9),
    "deflate": lambda data: zlib.compress(data, 9),
    "zstd": zstandard.compress,
    "gzip, zstd": lambda data: zstandard.compress(gzip.compress(data, 9)),
}


def body_of(items: int, text: str = "x", name: str = "messages") -> bytes:
    history = [{"role": "user", "content": text}] * items
    return json.dumps({"model": "m", name: history}).encode()


@pytest.fixture
async def world() -> AsyncIterator[ProxyWorld]:
    async with Memory.open("ram://", counter=Estimator()) as memory:
        own = Memories(memory.store.server_tables()).of(memory.for_owner("ann"), "", "local")
        async with proxy_world(answering(b"{}"), own, build) as world:
            yield world


# --- encodings ---


@pytest.mark.parametrize("name", PACKERS)
def test_decoding_stops_when_a_bound_is_passed(name: str) -> None:
    packed = PACKERS[name](b" " * (80 * MIB))
    assert len(packed) < MIB
    tracemalloc.start()
    try:
        with pytest.raises(ProxyError) as refusal:
            decoded(packed, name)
        assert tracemalloc.get_traced_memory()[1] < 40 * MIB
    finally:
        tracemalloc.stop()
    assert (refusal.value.status, refusal.value.code) == (413, "too_large")


@pytest.mark.parametrize("name", PACKERS)
def test_a_body_may_be_many_times_larger_than_what_was_sent(name: str) -> None:
    data = b" " * (7 * MIB)
    assert decoded(PACKERS[name](data), name) == data
    large = PACKERS[name](b" " * (9 * MIB))
    with pytest.raises(ProxyError):
        decoded(large, name)


# --- items ---


@pytest.mark.parametrize("wire", WIRES)
def test_a_history_has_at_most_so_many_items(wire: Any) -> None:
    name = history_of(wire)
    found = read_request(wire, body_of(MAX_ITEMS, name=name), {})
    assert found is not None
    assert len(found.messages) == MAX_ITEMS
    part = {"type": "input_text" if wire == "openai-responses" else "text", "text": "x"}
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    parts = [part] * (MAX_ITEMS // 2)
    for history in (
        [{"role": "user", "content": "x"}] * (MAX_ITEMS + 1),
        [{"role": "user", "content": parts}] * 3,
        [{"role": "assistant", "content": parts, "tool_calls": [call] * (MAX_ITEMS // 2 + 1)}],
        [{"role": "user", "content": "a <file>b</file> c"}] * (MAX_ITEMS // 2),
    ):
        with pytest.raises(ProxyError) as refusal:
            read_request(wire, json.dumps({"model": "m", name: history}).encode(), {})
        assert (refusal.value.status, refusal.value.code) == (413, "too_many_items")


def test_a_text_with_too_many_values_is_not_read() -> None:
    for value in ("{}", "[]", "0", '""'):
        text = '{"messages":[{"role":"user","content":"x"}],"a":[' + f"{value}," * 2_100_000 + "0]}"
        body = text.encode()
        start = time.process_time()
        with pytest.raises(ProxyError, match="more than"):
            read_request("openai-chat", body, {})
        assert time.process_time() - start < 2


# --- the proxy ---


@pytest.mark.parametrize("path", [CHAT, "/v1/messages"])
async def test_a_request_that_is_too_large_is_refused_as_the_provider_would(
    world: ProxyWorld, path: str
) -> None:
    bodies = [(body_of(MAX_ITEMS + 1), "", "too_many_items")]
    for name, pack in PACKERS.items():
        bodies.append((pack(b" " * (9 * MIB)), name, "too_large"))
        bodies.append((pack(body_of(MAX_ITEMS + 1)), name, "too_many_items"))
    for body, encoding, code in bodies:
        headers = {"Content-Encoding": encoding} if encoding else {}
        answer = await world.post(path, body, **headers)
        assert (answer.status_code, answer.headers["keepthread-error"]) == (413, code), encoding
        kind = "request_too_large" if path == "/v1/messages" else "invalid_request_error"
        assert error_of(answer)["type"] == kind
    assert world.upstream.requests == []
    off = await world.post(path, body_of(MAX_ITEMS + 1), **{"Keepthread-Mode": "off"})
    assert off.status_code == 200
    assert len(world.upstream.requests[0].body) > 100_000


async def test_large_requests_do_not_hold_up_the_loop() -> None:
    """The longest pause of the event loop while the largest histories are read and recorded."""
    body = json.dumps(
        {"messages": [{"role": "user", "content": f"x{n}"} for n in range(MAX_ITEMS)]}
    ).encode()
    longest, ended = 0.0, False

    async def watch() -> None:
        nonlocal longest
        while not ended:
            start = time.thread_time()  # a busy machine is not a pause of the loop
            await asyncio.sleep(0.005)
            longest = max(longest, time.thread_time() - start)

    async with Memory.open("ram://", counter=Estimator()) as memory:
        watching = asyncio.create_task(watch())
        for n in range(2):
            request = await asyncio.to_thread(read_request, "openai-chat", body, {})
            assert request is not None
            prepared = await ProxyMemory(memory.for_owner("ann"), "key").prepare(request)
            assert prepared.state == "recorded", n
        ended = True
        await watching
    assert longest < 2
