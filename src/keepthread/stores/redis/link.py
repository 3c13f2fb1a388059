"""The way to the server: scripts by their name, tried again while an outage passes.

Every script may be repeated: a second attempt finds what the first did. So an answer that was lost
costs nothing but time.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from keepthread.errors import Busy, StoreClosed
from keepthread.loops import PerLoop
from keepthread.stores.redis.driver import Client, close_client, drop_idle, exceptions
from keepthread.stores.redis.faults import KNOWN, passes, translate
from keepthread.stores.redis.scripts import Script
from keepthread.stores.redis.waiting import run_and_wait

Argument: TypeAlias = str | bytes | int

_FIRST_PAUSE: Final = 0.01
_LONGEST_PAUSE: Final = 0.5
_MOST_REPLICAS: Final = 3  # to be met where a primary was, before it is taken for none


class Timeouts(NamedTuple):
    """For how many seconds to wait: to be connected, for one answer, and with new attempts."""

    connect: float = 2.0
    answer: float = 5.0
    again: float = 10.0


DEFAULT_TIMEOUTS: Final = Timeouts()


class _Line(NamedTuple):
    """A client and the places on it, of one event loop."""

    client: Client
    room: asyncio.Semaphore

    async def close(self) -> None:
        await close_client(self.client)


class Link:
    """A client for each event loop, shared by every tenant of a store."""

    def __init__(
        self,
        make: Callable[[], Client],
        *,
        timeouts: Timeouts,
        connections: int,
        replicas: int = 0,
    ) -> None:
        """Make clients when they are needed; `replicas` must have a write to acknowledge it."""
        self.replicas = replicas
        self._timeouts = timeouts
        self._lines = PerLoop(
            lambda: _Line(make(), asyncio.Semaphore(connections)), lambda line: line.close()
        )
        self._pid = os.getpid()
        self._closed = False

    @property
    def client(self) -> Client:
        """Return the client of the running loop."""
        return self._lines.current().client

    async def run(
        self,
        script: Script,
        keys: Sequence[str],
        args: Sequence[Argument],
        *,
        again: Sequence[Argument] | None = None,
    ) -> Any:
        """Run a script that only reads or may be repeated; `again` are its arguments then."""
        send = self._send_and_wait if self.replicas and script.writes else self._send
        now = args

        async def attempt() -> Any:
            nonlocal now
            given, now = now, args if again is None else again
            try:
                return await send("EVALSHA", script.sha, len(keys), *keys, *given)
            except exceptions.NoScriptError:  # the server has been restarted, or is new to us
                return await send("EVAL", script.text, len(keys), *keys, *given)

        return await self.insist(attempt)

    async def ask(self, *command: Argument) -> Any:
        """Run a command that only reads."""
        return await self.insist(lambda: self._send(*command))

    async def close(self) -> None:
        """Let go of every connection."""
        if not self._closed and os.getpid() == self._pid:
            self._closed = True
            await self._lines.close()

    async def _send(self, *command: Argument) -> Any:
        return await self.client.execute_command(*command)

    async def _send_and_wait(self, *command: Argument) -> Any:
        # Less than a connection waits for an answer, so that it is the server who says so.
        seconds = self._timeouts.answer / 2
        return await run_and_wait(self.client, command, self.replicas, seconds)

    async def insist(self, attempt: Callable[[], Awaitable[Any]]) -> Any:
        """Attempt something until it succeeds, fails for good, or time is up."""
        self._check()
        deadline = asyncio.get_running_loop().time() + self._timeouts.again
        room = self._lines.current().room
        await self._enter(room, deadline)
        try:
            return await self._attempt(attempt, deadline)
        finally:
            room.release()

    async def _enter(self, room: asyncio.Semaphore, deadline: float) -> None:
        """Wait for one of the connections."""
        if not room.locked():
            await room.acquire()
            return
        try:
            async with asyncio.timeout_at(deadline):
                await room.acquire()
        except TimeoutError:
            raise Busy("all connections to Redis were in use for too long") from None

    async def _attempt(self, attempt: Callable[[], Awaitable[Any]], deadline: float) -> Any:
        clock = asyncio.get_running_loop().time
        pause = _FIRST_PAUSE
        replicas_met = 0
        while True:
            self._check()
            try:
                return await attempt()
            except exceptions.ReadOnlyError as error:
                # The line leads to a server that is a replica now; a new one may not.
                replicas_met += 1
                if replicas_met > _MOST_REPLICAS:
                    raise translate(error) from error
                await drop_idle(self.client)
            except KNOWN as error:
                if not passes(error) or clock() + pause > deadline:
                    raise translate(error) from error
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _check(self) -> None:
        if self._closed:
            raise StoreClosed("the store is closed")
        if os.getpid() != self._pid:
            raise StoreClosed("the store was opened before a fork; open it anew in each process")
