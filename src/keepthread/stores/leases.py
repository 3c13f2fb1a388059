"""Leases: one of several processes does a task, and another takes over if it dies.

A record in the store marks the task as taken. Its holder writes it again three times per lease
length, and each write has a new version. So clocks need not agree: a process that has seen the same
version for a whole lease length, by its own clock, may take over.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Final, NamedTuple, TypeVar, cast
from weakref import WeakValueDictionary

from keepthread.errors import KeepthreadError, Stale, Unavailable
from keepthread.protocols import Store
from keepthread.stores.kinds import LEASE
from keepthread.types import Record, Scope

T = TypeVar("T")

SECONDS: Final = 30.0
_FIRST_PAUSE: Final = 0.01
_MAX_PAUSE: Final = 0.2


class Leases(NamedTuple):
    """The leases of a store."""

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
        """Hold a lease while the block runs; yield whether it is held.

        It is not held if another process holds it and `wait` is False, or if `needless`, called
        while waiting, returns that nothing is left to do. `by_clock` takes over immediately if the
        lease has expired by this machine's clock; use it for work that may be done twice. A lease
        is not a guarantee: after a pause longer than the lease, two processes may hold it.
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
        """Take or renew a lease with this version, and return its new version."""
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
                with suppress(Stale):  # another process was faster
                    return await self._take(scope, key, version)
                continue
            if not wait or (needless and await needless()):
                return None
            await self.sleep(pause)
            pause = min(2 * pause, _MAX_PAUSE)

    async def _take(self, scope: Scope, key: str, version: int) -> int:
        """Take a lease; a caller that is canceled in the meantime releases it."""
        taking = asyncio.create_task(self.put(scope, key, version))
        try:
            return await _complete(taking)
        except asyncio.CancelledError:
            if not taking.cancelled() and not taking.exception():
                await self.drop(scope, key, taking.result())
            raise

    async def drop(self, scope: Scope, key: str, version: int) -> None:
        """Release a lease, unless another process has taken over."""
        with suppress(KeepthreadError):  # it expires
            await _complete(
                asyncio.create_task(self.store.drop(scope, LEASE, key, version=version))
            )

    def _ended(self, record: Record, since: float, by_clock: bool) -> bool:
        if by_clock and cast(dict[str, float], record.value)["until"] <= self.clock():
            return True
        return self.monotonic() - since >= self.seconds


class _Holding:
    """A held lease; a background task renews it until it is released."""

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
                    return  # another process has it, or the session is gone; the holder continues

    async def release(self) -> None:
        """Release it."""
        await _complete(asyncio.create_task(self._release()))

    async def _release(self) -> None:
        # Not during a put: its version would be unknown.
        await self._putting.acquire()
        self._task.cancel()
        await self._leases.drop(self._scope, self._key, self._version)


async def _complete(task: "asyncio.Task[T]") -> T:
    """Return the result of a task; a caller that is canceled waits until the task has ended."""
    canceled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:  # perhaps not the first
            canceled = error
    if canceled:
        if not task.cancelled():
            task.exception()  # there is no other consumer
        raise canceled
    return task.result()


class Locks:
    """Named locks; each exists as long as a task holds it or waits for it."""

    def __init__(self) -> None:
        """Start without locks."""
        self._locks: WeakValueDictionary[tuple[object, ...], asyncio.Lock] = WeakValueDictionary()

    def of(self, *name: str) -> asyncio.Lock:
        """Return the lock of that name in the running loop."""
        key = (asyncio.get_running_loop(), *name)
        return self._locks.setdefault(key, asyncio.Lock())
