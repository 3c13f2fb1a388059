"""Hostile requests to a server, and the process that sends them.

Each takes what a server has to give: connections, memory, time of its processor. Those with a name
were seen to work once; the others are made by chance from a size, an encoding, a number of items, a
pace and a path.
"""

import asyncio
import gzip
import json
import random
import ssl
import time
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Final, NamedTuple

from proofs.http_flood import raise_limit

SOURCE: Final = "127.0.0.2"
"""Where hostile requests come from: another address than that of the ordinary client."""
MOST: Final = 600
"""Connections of one hostile request: more than a worker has."""
KIB: Final = 1024
MIB: Final = 1024 * KIB
ENOUGH: Final = "enough"
_DRIP: Final = 0.2
_AT_ONCE: Final = 50


class Target(NamedTuple):
    """Where to send requests, and two keys of other clients."""

    port: int
    is_tls: bool
    keys: tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class Hostile:
    """One hostile request, which is sent on some connections at once."""

    name: str
    path: str
    method: str = "POST"
    body: bytes = b""
    declared: int = 0
    """The announced length of the body, if it never ends."""
    encoding: str = ""
    media_type: str = "application/json"
    connections: int = 1
    pace: int = 0
    """Bytes of the body that are sent at once, before a pause; 0 sends all."""
    has_key: bool = True

    def head(self, key: str) -> bytes:
        lines = [f"{self.method} {self.path} HTTP/1.1", "Host: localhost"]
        if self.has_key:
            name = (
                "Keepthread-Key: " if self.path.startswith("/proxy/") else "Authorization: Bearer "
            )
            lines.append(name + key)
        if self.encoding:
            lines.append(f"Content-Encoding: {self.encoding}")
        if self.method != "GET":
            lines.append(f"Content-Type: {self.media_type}")
            lines.append(f"Content-Length: {self.declared or len(self.body)}")
        return "\r\n".join([*lines, "", ""]).encode()


# --- those that were seen ---


def _messages(count: int) -> Any:
    return {"messages": [{"role": "user", "content": f"x{n}"} for n in range(count)]}


def _dumped(value: object) -> bytes:
    return json.dumps(value).encode()


def known_requests() -> list[Hostile]:
    """Return those that stopped a server once, each of another kind first."""
    messages = "/v1/sessions/hostile/messages"
    document = "/v1/facts/documents/markdown"
    unfinished: dict[str, Any] = {"body": b"[", "declared": 4_000_000, "connections": MOST}
    bomb = _dumped({"model": "m", "messages": [{"role": "user", "content": "x " * 10}] * 50_000})
    return [
        Hostile(name="unfinished bodies without a key", path="/livez", has_key=False, **unfinished),
        Hostile(name="event streams", method="GET", path="/v1/events", connections=MOST),
        Hostile(
            name="lines of facts", path=document, body=_dumped({"text": "- a fact\n" * 400_000})
        ),
        Hostile(name="many messages", path=messages, body=_dumped(_messages(60_000))),
        Hostile(name="unfinished bodies with keys", path=messages, **unfinished),
        Hostile(name="a history", path=f"{messages}/align", body=_dumped(_messages(60_000))),
        Hostile(
            name="lists",
            path="/v1/search",
            body=b'{"query":[' + b",".join([b"[]"] * 1_300_000) + b"]}",
            connections=4,
        ),
        Hostile(
            name="wrong messages", path=messages, body=_dumped({"messages": [{"z": 1}] * 300_000})
        ),
        Hostile(
            name="many facts",
            path="/v1/facts/documents/json",
            body=_dumped({"facts": [{"fact": f"f{n}"} for n in range(90_000)]}),
        ),
        Hostile(
            name="a long question",
            path="/v1/search",
            body=_dumped({"query": " ".join(f"w{n}" for n in range(400_000))}),
        ),
        Hostile(
            name="large bodies that do not end",
            path=messages,
            body=b" " * (2 * MIB),
            declared=4_000_000,
            connections=100,
        ),
        Hostile(
            name="a line of facts with spaces",
            path=document,
            body=_dumped({"text": "- a" + " " * 1500 + "x"}),
        ),
        Hostile(
            name="compressed messages",
            path="/proxy/v1/chat/completions",
            body=gzip.compress(bomb, 9, mtime=0),
            encoding="gzip",
            connections=2,
        ),
    ]


# --- those that are made by chance ---

_PATHS: Final = (
    *("/livez", "/readyz", "/openapi.json", "/v1/nothing", "/v1/search", "/v1/sessions"),
    *("/v1/sessions/hostile/messages", "/v1/sessions/hostile/messages/align", "/v1/blobs"),
    *("/v1/sessions/hostile/context", "/v1/facts/documents/markdown", "/v1/facts/documents/json"),
    *("/mcp", "/proxy/v1/chat/completions", "/proxy/v1/messages", "/proxy/v1/responses"),
)
_BODIES: Final[Mapping[str, Callable[[int], Any]]] = {
    "messages": _messages,
    "lines": lambda count: {"text": "- a fact\n" * count},
    "facts": lambda count: {"facts": [{"fact": f"f{n}"} for n in range(count)]},
    "question": lambda count: {"query": "w " * count, "text": "w" * count},
    "lists": lambda count: {"input": [[]] * count, "messages": [[]] * count},
    "chat": lambda count: {"model": "m", "max_tokens": 1, **_messages(count)},
    "spaces": lambda count: {"text": "- a" + " " * count + "x"},
}
_BYTES: Final = 64 * MIB
"""Bytes that one request sends on all its connections."""


def chance_request(rng: random.Random, number: int) -> Hostile:
    """Return a request of random size, encoding, items, pace and path."""
    shape, path = rng.choice([*_BODIES]), rng.choice(_PATHS)
    items = rng.choice([1, 100, 10_000, 100_000, 300_000])
    body = _dumped(_BODIES[shape](items))
    encoding = rng.choice(["", "", "gzip", "deflate"])
    if encoding:
        body = gzip.compress(body, 6, mtime=0) if encoding == "gzip" else zlib.compress(body, 6)
    body = body[: 8 * MIB]
    connections = rng.choice([1, 4, 64, MOST])
    connections = max(1, min(connections, _BYTES // max(1, len(body))))
    pace = rng.choice([0, 0, 1, 16 * KIB])
    declared = len(body) + 1000 if rng.random() < 0.3 else 0
    has_key = rng.random() < 0.7
    name = (
        f"chance {number}: {path}, {items} {shape}, {len(body)} bytes {encoding or 'plain'},"
        f" {connections} connections, {pace or 'all'} at once,"
        f" {'unfinished' if declared else 'whole'}, {'with' if has_key else 'without'} a key"
    )
    return Hostile(
        name=name,
        path=path,
        body=body,
        declared=declared,
        encoding=encoding,
        connections=connections,
        pace=pace,
        has_key=has_key,
    )


# --- the process that sends them ---


def send_until_told(pipe: Connection) -> None:
    """Send each request that arrives for some seconds, and answer when it is over.

    `ENOUGH` ends one before its time.
    """
    raise_limit(2 * MOST)
    while (order := pipe.recv()) is not None:
        if order != ENOUGH:
            target, hostile, seconds = order
            asyncio.run(_send(target, hostile, time.monotonic() + seconds, pipe))
            pipe.send(None)


async def _send(target: Target, hostile: Hostile, until: float, pipe: Connection) -> None:
    """Keep the request's connections open; what ends is sent again."""
    secure = None
    if target.is_tls:
        secure = ssl.create_default_context()
        secure.check_hostname = False
        secure.verify_mode = ssl.CERT_NONE
    room = asyncio.Semaphore(_AT_ONCE)

    async def one(number: int) -> None:
        head = hostile.head(target.keys[number % 2])
        while True:
            with suppress(OSError):
                async with room:
                    opened = await asyncio.open_connection(
                        "127.0.0.1", target.port, ssl=secure, local_addr=(SOURCE, 0)
                    )
                await _one_request(hostile, head, *opened)
            await asyncio.sleep(_DRIP)

    tasks = [asyncio.create_task(one(number)) for number in range(hostile.connections)]
    while time.monotonic() < until and not pipe.poll():
        await asyncio.wait(tasks, timeout=_DRIP)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


async def _one_request(
    hostile: Hostile, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Send a request at its pace, and read until its connection ends."""
    answer = asyncio.ensure_future(reader.read())
    try:
        writer.write(head)
        step = hostile.pace or len(hostile.body) or 1
        for start in range(0, len(hostile.body), step):
            writer.write(hostile.body[start : start + step])
            await writer.drain()
            if hostile.pace:
                await asyncio.wait([answer], timeout=_DRIP)
            if answer.done():
                return
        while hostile.declared and not answer.done():
            await asyncio.wait([answer], timeout=_DRIP)
            writer.write(b" ")
        await answer
    finally:
        answer.cancel()
        writer.transport.abort()
