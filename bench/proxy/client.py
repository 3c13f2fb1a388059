"""Streams as a client sees them: when the first byte of an answer comes, and the gaps after it."""

import asyncio
import json
import time
from itertools import pairwise
from typing import NamedTuple
from urllib.parse import urlsplit


class Stream(NamedTuple):
    """One answer, with the moments at which its bytes came."""

    first: float
    """Seconds from the request to the first byte of the body."""
    gaps: list[float]
    head: str

    @property
    def memory(self) -> str:
        """Return what the proxy says about the memory."""
        for line in self.head.lower().split("\r\n"):
            if line.startswith("keepthread-memory:"):
                return line.partition(":")[2].strip().partition(";")[0]
        return ""


class Connection:
    """One connection that is kept open."""

    def __init__(self, url: str) -> None:
        """Take a base URL; nothing is opened yet."""
        self._url = urlsplit(url)
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def open(self) -> "Connection":
        """Connect."""
        assert self._url.port
        self._streams = await asyncio.open_connection("127.0.0.1", self._url.port)
        return self

    def close(self) -> None:
        """Hang up."""
        if self._streams:
            self._streams[1].close()

    async def ask(self, body: object, session: str) -> Stream:
        """Send a request of the chat API, and read its answer to the end."""
        if self._streams is None or self._streams[0].at_eof():  # it was closed after a pause
            await self.open()
        assert self._streams
        reader, writer = self._streams
        data = json.dumps(body).encode()
        head = (
            f"POST {self._url.path}/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            "Authorization: Bearer sk-bench\r\nContent-Type: application/json\r\n"
            f"Keepthread-Session: {session}\r\nContent-Length: {len(data)}\r\n\r\n"
        )
        began = time.perf_counter()
        writer.write(head.encode() + data)
        answered = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        assert answered.startswith("HTTP/1.1 200"), answered
        moments: list[float] = []
        while size := int((await reader.readline()), 16):
            await reader.readexactly(size + 2)
            moments.append(time.perf_counter())
        await reader.readline()
        gaps = [after - before for before, after in pairwise(moments)]
        return Stream(moments[0] - began, gaps, answered)
