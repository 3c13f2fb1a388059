"""A proxy before a real server, to be a bad network: it can hang, cut a line, or lose an answer."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final, Self, TypeAlias

Line: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]
"""One side of a connection."""
CHUNK: Final = 1 << 16


class Proxy:
    """Passes bytes on as long as nothing else is asked of it."""

    def __init__(self, port: int) -> None:
        self.target = port
        self.port = 0
        self.accepted = 0
        """How many connections came."""
        self.hangs = False
        """Swallow everything, in both directions, and never answer."""
        self.lose_answers = 0
        """How many answers still to lose: what was asked arrives, and then the line is cut."""
        self._lines: set[asyncio.StreamWriter] = set()

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[Self]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            self.cut()
            await server.wait_closed()
            while self._lines:  # noqa: ASYNC110 - what passes bytes on notices in a moment
                await asyncio.sleep(0)

    def cut(self) -> None:
        """Cut every line."""
        for line in list(self._lines):
            line.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.transport.abort()
            return
        self._lines |= {writer, far_writer}
        try:
            await self._carry((reader, writer), (far_reader, far_writer))
        finally:
            self._lines -= {writer, far_writer}
            writer.transport.abort()
            far_writer.transport.abort()

    async def _carry(self, near: Line, far: Line) -> None:
        """Pass on the bytes of one connection, in both directions, until it ends."""
        await asyncio.gather(
            self._pass_on(near[0], far[1], answers=False),
            self._pass_on(far[0], near[1], answers=True),
        )

    async def _pass_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answers: bool
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(CHUNK):
                if self.hangs:
                    continue
                if answers and self.lose_answers:
                    self.lose_answers -= 1
                    break
                writer.write(data)
                await writer.drain()
        writer.transport.abort()
