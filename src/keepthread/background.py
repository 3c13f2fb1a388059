"""Work off the caller's path: tasks that follow a turn, waited for when a memory is closed."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable
from typing import Final, TypeAlias

from keepthread.errors import SessionGone, StoreClosed

GRACE: Final = 5.0
"""Seconds that closing waits for work that was begun."""

Work: TypeAlias = Callable[[], Awaitable[object]]

_log: Final = logging.getLogger("keepthread")


class Background:
    """Runs one piece of work a name at a time; asked again meanwhile, the latest comes next.

    A name is a session, or what is done for it.
    """

    def __init__(self) -> None:
        """Begin with nothing to do."""
        self._tasks: dict[Hashable, asyncio.Task[None]] = {}
        self._next: dict[Hashable, Work] = {}
        self._closed = False

    def soon(self, name: Hashable, work: Work) -> None:
        """Have work done, now or behind what is being done under its name."""
        if self._closed:
            return
        if name in self._tasks:
            self._next[name] = work
            return
        self._tasks[name] = asyncio.get_running_loop().create_task(self._run(name, work))

    async def _run(self, name: Hashable, work: Work | None) -> None:
        try:
            while work is not None:
                await work()
                work = self._next.pop(name, None)
        except (SessionGone, StoreClosed):
            return
        except Exception as error:  # noqa: BLE001 - nobody waits for it, and the next turn tries again
            _log.warning("upkeep of a session failed: %s", type(error).__name__)
        finally:
            self._next.pop(name, None)
            del self._tasks[name]

    async def done(self, name: Hashable) -> None:
        """Wait until nothing is being done under a name."""
        while task := self._tasks.get(name):
            await asyncio.wait([task])

    async def settle(self) -> None:
        """Wait until nothing is being done."""
        while self._tasks:
            await asyncio.wait(list(self._tasks.values()))

    async def close(self, grace: float = GRACE) -> None:
        """Wait a while for what was begun, then break it off; a later turn takes it up again."""
        self._closed = True
        if self._tasks:
            await asyncio.wait(list(self._tasks.values()), timeout=grace)
        for task in list(self._tasks.values()):
            task.cancel()
        if self._tasks:
            await asyncio.wait(list(self._tasks.values()))
