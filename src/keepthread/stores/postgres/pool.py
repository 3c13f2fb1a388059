"""A few connections that take turns: made when needed, the one used last goes first.

Smaller than a pool that keeps itself filled, and it tells at once why it cannot connect: whoever
needs a connection makes it, within their own deadline.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from keepthread.stores.postgres.link import Connection, Link

Connect: TypeAlias = Callable[[], Awaitable[Connection]]


class Pool:
    """At most so many connections, used from one event loop."""

    def __init__(self, connect: Connect, size: int, timeout: float) -> None:
        """Begin without any; a statement may take so many seconds."""
        self._connect = connect
        self._timeout = timeout
        self._room = asyncio.Semaphore(size)
        self._idle: list[Link] = []
        self._closed = False

    @property
    def is_ready(self) -> bool:
        """Tell whether a connection can be had without waiting."""
        return bool(self._idle) and not self._room.locked()

    async def take(self) -> Link:
        """Return a connection of one's own, a new one if need be."""
        await self._room.acquire()
        if self._idle:
            return self._idle.pop()
        try:
            return Link(await self._connect(), self._timeout)
        except BaseException:
            self._room.release()
            raise

    async def give_back(self, link: Link) -> None:
        """Let others have a connection, unless it is broken or left in the middle of something."""
        self._room.release()
        if link.is_idle and not self._closed:
            self._idle.append(link)
        else:
            await link.close()

    async def drop_idle(self) -> None:
        """Close what waits to be used: the server it leads to went away, or is no primary now."""
        while self._idle:
            await self._idle.pop().close()

    async def close(self) -> None:
        """Close everything; what is in use is closed when it is given back."""
        self._closed = True
        await self.drop_idle()
