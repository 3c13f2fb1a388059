"""Queues that run concurrently; each runs one job at a time, lowest number first."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from heapq import heappop, heappush
from typing import Final, TypeAlias

Work: TypeAlias = Callable[[], Awaitable[object]]

_log: Final = logging.getLogger("keepthread.discord")


class Lanes:
    """Lanes by number; each has a task of its own as long as something waits in it."""

    def __init__(self) -> None:
        """Be open, with nothing to do."""
        self._waiting: dict[int, dict[int, Work]] = {}
        self._order: dict[int, list[int]] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._open = asyncio.Event()
        self._open.set()
        self._closed = False

    def put(self, lane: int, number: int, work: Work) -> None:
        """Queue a job; a waiting job with the same number is not added twice."""
        waiting = self._waiting.setdefault(lane, {})
        if number in waiting or self._closed:
            return
        waiting[number] = work
        heappush(self._order.setdefault(lane, []), number)
        if lane not in self._tasks:
            self._tasks[lane] = asyncio.create_task(self._run(lane))

    def hold(self) -> None:
        """Start no new job for now: one with a lower number may still arrive."""
        self._open.clear()

    def go_on(self) -> None:
        """Begin again."""
        self._open.set()

    async def close(self) -> None:
        """Cancel all jobs, and start no new ones."""
        self._closed = True
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, lane: int) -> None:
        waiting, order = self._waiting[lane], self._order[lane]
        try:
            while waiting and not self._closed:
                await self._open.wait()
                work = waiting.pop(heappop(order))
                try:
                    await work()
                except Exception as error:  # noqa: BLE001 - a lane must continue after any error
                    _log.warning("a message could not be handled: %s", type(error).__name__)
                    _log.debug("that was", exc_info=error)
        finally:
            del self._waiting[lane], self._order[lane], self._tasks[lane]
