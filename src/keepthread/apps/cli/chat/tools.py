"""The tools of a chat that orchestrates: its servers start while the first line is typed."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

from keepthread.orchestrator import Runnable
from keepthread.orchestrator.mcp import Server, Servers, State


class Tools:
    """MCP servers that run as long as the chat does."""

    def __init__(self, servers: Sequence[Server], tell: Callable[[str], object]) -> None:
        """Begin to start them."""
        self._servers = Servers(servers, tell=tell)
        self._ready = asyncio.Event()
        self._over = asyncio.Event()
        self._running = asyncio.create_task(self._run())

    async def ready(self) -> Sequence[Runnable]:
        """Return the tools, once all servers have started or failed to."""
        waiting = asyncio.create_task(self._ready.wait())
        await asyncio.wait({waiting, self._running}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if self._running.done():
            self._running.result()
        return self._servers.tools

    @property
    def started(self) -> bool:
        """Return whether all servers have started, or failed to."""
        return self._ready.is_set() or self._running.done()

    @property
    def states(self) -> list[State]:
        """Return the state of each server."""
        return self._servers.states

    async def close(self) -> None:
        """End the servers."""
        self._over.set()
        if not self._ready.is_set():
            self._running.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.wait([self._running])

    async def _run(self) -> None:
        # One task enters and leaves them, as the library below requires.
        async with self._servers:
            self._ready.set()
            await self._over.wait()
