"""A small HTTP client: connections that stay open, and event streams that are read and counted.

It does little more than pass bytes on, so that most of what is measured is the server's.
"""

import asyncio
import json
from collections.abc import Mapping
from typing import NamedTuple, Self

_END = b"\r\n\r\n"
_LENGTH = b"content-length: "
_EVENT = b"\nevent: "


class Address(NamedTuple):
    """Where a server listens, and the headers that it wants."""

    port: int
    headers: Mapping[str, str]

    def request(self, method: str, path: str, body: object = None, **headers: str) -> bytes:
        """Return the bytes of a request."""
        data = b"" if body is None else json.dumps(body).encode()
        fields = {"Host": "localhost", **self.headers, **headers}
        if body is not None:
            fields |= {"Content-Type": "application/json", "Content-Length": str(len(data))}
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        return f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + data


class Connection(asyncio.Protocol):
    """One connection: a request, its response, the next request."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._data = bytearray()
        self._size = 0
        self._answered: asyncio.Future[bytes] | None = None
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def open(cls, address: Address) -> Self:
        """Connect to this machine."""
        made = cls(address)
        await made.connect()
        return made

    async def connect(self) -> None:
        """Connect, also again: servers close connections that were idle for some seconds."""
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: self, "127.0.0.1", self._address.port)

    async def send(self, request: bytes) -> bytes:
        """Send a request, and return its response, with its head.

        A server may close an idle connection just then; the request is sent once more.
        """
        try:
            return await self._send(request)
        except ConnectionError:
            return await self._send(request)

    async def _send(self, request: bytes) -> bytes:
        if self._transport is None or self._transport.is_closing():
            await self.connect()
        assert self._transport
        self._answered = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._answered

    def close(self) -> None:
        """Close the connection."""
        assert self._transport
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep what sends."""
        assert isinstance(transport, asyncio.Transport)
        self._transport, self._data, self._size = transport, bytearray(), 0

    def data_received(self, data: bytes) -> None:
        """Collect a response, whose length is in its head."""
        self._data += data
        if not self._size:
            end = self._data.find(_END)
            if end < 0:
                return
            start = self._data.lower().find(_LENGTH, 0, end) + len(_LENGTH)
            length = int(self._data[start : self._data.find(b"\r", start)])
            self._size = end + len(_END) + length
        if len(self._data) >= self._size and self._answered:
            answer, self._data, self._size = bytes(self._data), bytearray(), 0
            self._answered.set_result(answer)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell whoever waits."""
        if self._answered and not self._answered.done():
            self._answered.set_exception(exc or ConnectionError("the server closed the connection"))


class Listener(asyncio.Protocol):
    """A connection that reads an event stream."""

    def __init__(self, request: bytes) -> None:
        self.events = 0
        self.began = asyncio.get_running_loop().create_future()
        self._request = request
        self._tail = b""
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def open(cls, address: Address, request: bytes) -> Self:
        """Connect, and wait until the stream has begun with the present."""
        loop = asyncio.get_running_loop()
        _, made = await loop.create_connection(lambda: cls(request), "127.0.0.1", address.port)
        await made.began
        return made

    def close(self) -> None:
        """Close the connection."""
        assert self._transport
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask for the stream."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """Count the events; the first comment names the present."""
        data = self._tail + data
        self._tail = data[1 - len(_EVENT) :]
        self.events += data.count(_EVENT)
        if not self.began.done() and b": waiting" in data:
            assert b" 200 " in data or b"HTTP" not in data, data
            self.began.set_result(None)
