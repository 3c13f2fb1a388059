"""A lease: one of several processes does a thing, and another takes over should it die.

A record on a shelf says that somebody is at it. Its holder puts it anew three times in a lease's
length, and each put has a version of its own. So no two clocks need to agree: whoever has seen one
version for a whole length, by its own clock, may take over.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Final, NamedTuple, cast
from weakref import WeakValueDictionary

from keepthread.errors import KeepthreadError, Stale, Unavailable
from keepthread.protocols import Store
from keepthread.stores.kinds import LEASE
from keepthread.types import Record, Scope

SECONDS: Final = 30.0
_FIRST_PAUSE: Final = 0.01
_MOST_PAUSE: Final = 0.2


class Leases(NamedTuple):
    """The leases on the shelves of a store."""

    store: Store
    clock: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    seconds: float = SECONDS

    @asynccontextmanager
    async def held(
        self,
        scope: Scope,
        key: str,
        *,
        wait: bool,
        by_clock: bool = False,
        needless: Callable[[], Awaitable[bool]] | None = None,
    ) -> AsyncGenerator[bool, None]:
        """Hold a lease while the block runs, and tell whether it is held.

        It is not if another has it and `wait` is False, or `needless`, asked while waiting, says
        that there is nothing left to do. `by_clock` takes over at once what has ended by this
        machine's clock, for work that may be done twice. Holding on is tried, not promised: after
        a pause longer than the lease another may be at it too.
        """
        version = await self._acquire(scope, key, wait, by_clock, needless)
        if version is None:
            yield False
            return
        holding = _Holding(self, scope, key, version)
        try:
            yield True
        finally:
            await holding.release()

    async def put(self, scope: Scope, key: str, version: int) -> int:
        """Take or renew a lease that is at a version, and return its new one."""
        until = {"until": self.clock() + self.seconds}
        return await self.store.put(scope, LEASE, key, until, version=version)

    async def _acquire(
        self,
        scope: Scope,
        key: str,
        wait: bool,
        by_clock: bool,
        needless: Callable[[], Awaitable[bool]] | None,
    ) -> int | None:
        pause, seen, since = _FIRST_PAUSE, -1, 0.0
        while True:
            record = await self.store.get(scope, LEASE, key)
            version = record.version if record else 0
            if version != seen:
                seen, since = version, self.monotonic()
            if record is None or self._ended(record, since, by_clock):
                with suppress(Stale):  # another was faster
                    return await self.put(scope, key, version)
                continue
            if not wait or (needless and await needless()):
                return None
            await self.sleep(pause)
            pause = min(2 * pause, _MOST_PAUSE)

    def _ended(self, record: Record, since: float, by_clock: bool) -> bool:
        if by_clock and cast(dict[str, float], record.value)["until"] <= self.clock():
            return True
        return self.monotonic() - since >= self.seconds


class _Holding:
    """A lease that is held: renewed by a task of its own until it is released."""

    def __init__(self, leases: Leases, scope: Scope, key: str, version: int) -> None:
        self._leases = leases
        self._scope = scope
        self._key = key
        self._version = version
        self._putting = asyncio.Lock()
        self._task = asyncio.create_task(self._renew())

    async def _renew(self) -> None:
        while True:
            await self._leases.sleep(self._leases.seconds / 3)
            async with self._putting:
                try:
                    self._version = await self._leases.put(self._scope, self._key, self._version)
                except Unavailable:
                    continue  # there is time to try again
                except KeepthreadError:
                    return  # another has it, or the session is gone; the holder goes on

    async def release(self) -> None:
        """Let go of it; one that another took over stays with the other."""
        try:
            # Not in the midst of a put: nobody would know the version it gave.
            await self._putting.acquire()
        finally:
            self._task.cancel()
        with suppress(KeepthreadError):  # it ends by itself
            await self._leases.store.drop(self._scope, LEASE, self._key, version=self._version)


class Locks:
    """Each lock exists as long as somebody holds it or waits for it."""

    def __init__(self) -> None:
        """Begin without any."""
        self._locks: WeakValueDictionary[tuple[object, ...], asyncio.Lock] = WeakValueDictionary()

    def of(self, *name: str) -> asyncio.Lock:
        """Return the lock of that name in the running loop."""
        key = (asyncio.get_running_loop(), *name)
        return self._locks.setdefault(key, asyncio.Lock())
