"""A proxy for tests: real sockets on both sides, and small parts in place of the memory."""

import asyncio
import json
import socket
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import httpx2
import uvicorn

from keepthread.apps.proxy.app import Proxy, Wires
from keepthread.apps.proxy.local import LocalApp, uvicorn_settings
from keepthread.apps.proxy.settings import ProxySettings
from keepthread.apps.proxy.types import (
    Prepared,
    ProviderAnswer,
    ReadRequest,
    TextPlace,
    UserTurn,
    WireName,
)
from keepthread.types import Message

TOKEN = "a-token-of-this-test-that-nobody-can-guess"
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter, "Sent"], Coroutine[Any, Any, None]]


@dataclass
class Sent:
    """A request as it arrived upstream, byte by byte."""

    head: str
    body: bytes = b""

    @property
    def target(self) -> str:
        return self.head.split(" ")[1]

    @property
    def headers(self) -> dict[str, str]:
        lines = self.head.split("\r\n")[1:]
        return {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines)}


@dataclass
class RawUpstream:
    """A server that notes the bytes of requests, and answers as a test says."""

    answer: Handler
    port: int = 0
    requests: list[Sent] = field(default_factory=list[Sent])
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the head of a request has arrived."""
    tasks: set[Any] = field(default_factory=set[Any])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.tasks.add(asyncio.current_task())
        with suppress(asyncio.IncompleteReadError, OSError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").rstrip()
                sent = Sent(head)
                self.requests.append(sent)
                self.arrived.set()
                sent.body = await _body(reader, sent.headers)
                await self.answer(reader, writer, sent)
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


async def _body(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> bytes:
    if "content-length" in headers:
        return await reader.readexactly(int(headers["content-length"]))
    parts: list[bytes] = []
    if headers.get("transfer-encoding") == "chunked":
        while size := int((await reader.readline()).strip(), 16):
            parts.append(await reader.readexactly(size))
            await reader.readline()
        await reader.readline()
    return b"".join(parts)


def answering(
    body: bytes, *headers: str, status: str = "200 OK", kind: str = "application/json"
) -> Handler:
    """Return a handler that answers every request alike."""

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter, __: Sent) -> None:
        lines = [f"HTTP/1.1 {status}", f"content-type: {kind}", f"content-length: {len(body)}"]
        writer.write("\r\n".join([*lines, *headers, "", ""]).encode() + body)
        await writer.drain()

    return answer


@dataclass
class FixedMemory:
    """Adds a fixed text to the newest turn, and notes what it is asked to record."""

    addition: str = ""
    fails: BaseException | None = None
    waits: asyncio.Event | None = None
    prepared: list[ReadRequest] = field(default_factory=list[ReadRequest])
    recorded: list[tuple[Prepared, ProviderAnswer | None]] = field(
        default_factory=list[tuple[Prepared, ProviderAnswer | None]]
    )
    counted: int = 0
    done: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when something was recorded."""

    async def addition_key(self) -> bytes:
        return b"a key"

    async def prepare(self, request: ReadRequest, *, records: bool = True) -> Prepared:
        self.prepared.append(request)
        self.counted += not records
        if self.waits is not None:
            await self.waits.wait()
        if self.fails is not None:
            raise self.fails
        additions = {request.turns[-1].digest: self.addition} if self.addition else {}
        return Prepared(
            mode="alongside", session="trip", additions=additions, tokens_added=3, why="why-1"
        )

    async def record(self, prepared: Prepared, answer: ProviderAnswer | None) -> None:
        self.recorded.append((prepared, answer))
        self.done.set()


class TextReader:
    """Takes all bytes as the answer; `END` at the end says that it is complete."""

    def __init__(self) -> None:
        self.data = b""

    def feed(self, data: bytes) -> None:
        if b"BREAK" in data:
            raise ValueError("a secret text")
        self.data += data

    def finish(self) -> ProviderAnswer | None:
        text = self.data.decode()
        said = Message(role="assistant", content=text or "nothing")
        return ProviderAnswer([said], complete="END" in text)


def read(
    wire: WireName, body: bytes, headers: Mapping[str, str], addition_key: bytes
) -> ReadRequest | None:
    """Read requests whose last text ends with `Q`; what is added goes before it."""
    del headers, addition_key
    text = body.decode()
    if b"UNKNOWN" in body:
        return None
    if b"BROKEN" in body:
        raise ValueError("a secret text")
    turn = UserTurn("digest", "Q", TextPlace(text.rindex("Q"), "", ""))
    return ReadRequest(
        wire=wire,
        text=text,
        model="m",
        messages=(),
        turns=[turn],
        ends_with_user=True,
        items=(0, 0),
        mode="off" if "OFF" in text else "alongside",
    )


def splice(request: ReadRequest, additions: Mapping[str, str], history: str | None = None) -> bytes:
    del history
    place = request.turns[-1].place
    assert place is not None
    return (request.text[: place.at] + additions["digest"] + request.text[place.at :]).encode()


WIRES = Wires(read, splice, lambda _, __: TextReader(), lambda body, name: None if name else body)


@dataclass
class ProxyWorld:
    """A proxy that listens, its upstream and its memory."""

    upstream: RawUpstream
    memory: FixedMemory
    proxy: Proxy
    port: int
    client: httpx2.AsyncClient

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.port}/k/{TOKEN}"

    async def post(self, path: str, body: bytes = b'"Q"', **headers: str) -> httpx2.Response:
        return await self.client.post(f"{self.base}{path}", content=body, headers=headers)

    async def raw(self, data: bytes) -> bytes:
        """Send bytes, and return all that comes back until the connection is closed."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(data)
        try:
            return await asyncio.wait_for(reader.read(), 20)
        finally:
            writer.close()
            await writer.wait_closed()

    async def recorded(self) -> list[tuple[Prepared, ProviderAnswer | None]]:
        """Return what was recorded, when nothing is left to record."""
        await self.proxy.idle()
        return self.memory.recorded


@asynccontextmanager
async def proxy_world(
    answer: Handler,
    memory: Any = None,
    build: Callable[[ProxySettings], Proxy] = lambda settings: Proxy(settings, WIRES),
    **settings: Any,
) -> AsyncGenerator[ProxyWorld]:
    """Serve a proxy before an upstream; `memory` is a `FixedMemory` if it is not given."""
    upstream = RawUpstream(answer)
    server = await asyncio.start_server(upstream.serve, "127.0.0.1", 0)
    upstream.port = server.sockets[0].getsockname()[1]
    made = ProxySettings(openai=f"{upstream.url}/v1", anthropic=upstream.url, memory_deadline=30)
    memory = memory or FixedMemory()
    proxy = build(replace(made, **settings))
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn_settings(LocalApp(proxy, memory, TOKEN))
    serving = uvicorn.Server(config)
    task = asyncio.create_task(serving.serve([listener]))
    try:
        async with httpx2.AsyncClient(trust_env=False, timeout=30) as client:
            yield ProxyWorld(upstream, memory, proxy, listener.getsockname()[1], client)
    finally:
        serving.should_exit = True
        await task
        await proxy.close()
        server.close()
        await asyncio.gather(*upstream.tasks)


def error_of(response: httpx2.Response) -> dict[str, Any]:
    """Return the error in a response of either provider."""
    return json.loads(response.content)["error"]
