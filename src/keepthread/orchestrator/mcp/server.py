"""The link to one server, which restarts it after it died."""

import asyncio
from typing import TYPE_CHECKING, Any, Final

from keepthread.errors import ToolError, ToolUnavailable
from keepthread.orchestrator.mcp.connection import Connection
from keepthread.orchestrator.mcp.sdk import Gone
from keepthread.orchestrator.mcp.types import Server

if TYPE_CHECKING:
    from mcp import types

_PAUSES: Final = (0.0, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Seconds from a server's end to the next start, by how often it ended without a result."""


class RestartingServer:
    """A server that is restarted when it is called after it died."""

    def __init__(self, server: Server, *, start_seconds: float) -> None:
        """Take the server; it is not started yet."""
        self.server = server
        self._start_seconds = start_seconds
        self._lives: list[Connection] = []
        self._choosing = asyncio.Lock()
        self._deaths = 0
        self._closed = False

    @property
    def running(self) -> bool:
        """Return whether it runs, as far as is known."""
        return bool(self._lives) and self._lives[-1].running

    async def start(self) -> Connection:
        """Start it, and return its first connection."""
        return await self._alive()

    async def close(self) -> None:
        """End it; calls in progress fail."""
        self._closed = True
        await asyncio.gather(*(life.close() for life in self._lives))

    async def call(
        self, tool: str, arguments: dict[str, Any], *, side_effects: bool
    ) -> "types.CallToolResult":
        """Call a tool within the server's deadline.

        If the server dies in the meantime, it is restarted, and a tool without side effects is
        called once more.
        """
        try:
            async with asyncio.timeout(self.server.timeout):
                return await self._called(tool, arguments, side_effects=side_effects)
        except TimeoutError:
            seconds = f"{self.server.timeout:g} seconds"
            raise ToolUnavailable(
                f"{tool} of {self.server.name} took longer than {seconds}"
            ) from None
        except ToolError as error:
            raise type(error)(self.server.without_secrets(str(error))) from None

    async def _called(
        self, tool: str, arguments: dict[str, Any], *, side_effects: bool
    ) -> "types.CallToolResult":
        for again in (False, True):
            life = await self._alive()
            try:
                return await life.call(tool, arguments)
            except Gone as gone:
                if again or (gone.began and side_effects):
                    break
        done = "it may have been completed" if side_effects else "call it again later"
        raise ToolUnavailable(f"{self.server.name} died while it ran {tool}; {done}")

    async def _alive(self) -> Connection:
        """Return the current connection, or a new one.

        A start continues even if the caller that began it stops waiting.
        """
        async with self._choosing:
            if not self._lives or self._lives[-1].lost_at is not None:
                await self._begin()
            life = self._lives[-1]
        await life.started()
        return life

    async def _begin(self) -> None:
        deaths = 0
        if self._lives:
            last = self._lives[-1]
            deaths = 1 if last.served else self._deaths + 1
            pause = _PAUSES[min(deaths, len(_PAUSES)) - 1]
            now = asyncio.get_running_loop().time()
            await asyncio.sleep((last.lost_at or now) + pause - now)
        if self._closed:
            raise ToolUnavailable(f"{self.server.name} was closed")
        self._deaths = deaths
        self._lives = [each for each in self._lives if not each.over]
        self._lives.append(Connection(self.server, self._start_seconds))
