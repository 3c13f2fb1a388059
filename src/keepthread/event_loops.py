"""Several event loops that share one memory: a resource for each loop, and calls into another.

Connections and asyncio's locks belong to one loop. Each loop gets its own where possible; a
resource that must exist only once lives in one loop, and the others send their calls there.
"""

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Final, Generic, NamedTuple, TypeVar

from keepthread.errors import Unavailable

T = TypeVar("T")

CLOSING: Final = 5.0
"""Seconds that closing waits for other loops to close their resources."""
SILENCE: Final = 30.0
"""Seconds for which a loop may be blocked before calls into it fail."""
LOOK: Final = 0.2
"""Seconds between two checks whether another loop still runs."""


class LoopEnded(Exception):
    """The other loop ended before the call returned: its outcome is unknown."""


class _Held(NamedTuple, Generic[T]):
    resource: T
    closing: AsyncGenerator[None]


class PerLoop(Generic[T]):
    """One resource for each event loop: created on its first use, closed with its loop.

    Each resource is held by an asynchronous generator, because a loop closes these when it ends
    (as `asyncio.run` does).
    """

    def __init__(self, make: Callable[[], T], close: Callable[[T], Awaitable[None]]) -> None:
        """Create nothing yet; `make` and `close` are called in the loop that uses the resource."""
        self._make = make
        self._close = close
        self._lock = threading.Lock()
        self._held: dict[asyncio.AbstractEventLoop, _Held[T]] = {}

    def current(self) -> T:
        """Return the resource of the running loop."""
        loop = asyncio.get_running_loop()
        held = self._held.get(loop)
        return held.resource if held else self._hold(loop)

    async def close(self) -> None:
        """Close each resource in its loop; if a loop is not running, when that loop ends."""
        here = asyncio.get_running_loop()
        with self._lock:
            held, self._held = self._held, {}
        closing = [_closed(loop, each.closing) for loop, each in held.items() if loop is not here]
        if here in held:
            await held[here].closing.aclose()
        await asyncio.gather(*closing)

    def _hold(self, loop: asyncio.AbstractEventLoop) -> T:
        resource = self._make()
        closing = self._until_closed(loop, resource)
        with suppress(StopIteration):  # runs to the `yield`, which registers it with its loop
            closing.__anext__().send(None)
        with self._lock:
            self._forget_ended()
            self._held[loop] = _Held(resource, closing)
        return resource

    async def _until_closed(
        self, loop: asyncio.AbstractEventLoop, resource: T
    ) -> AsyncGenerator[None]:
        try:
            yield
        finally:
            with self._lock:
                held = self._held.get(loop)
                if held and held.resource is resource:
                    del self._held[loop]
            await self._close(resource)

    def _forget_ended(self) -> None:
        for loop in [loop for loop in self._held if loop.is_closed()]:
            del self._held[loop]


async def _closed(loop: asyncio.AbstractEventLoop, closing: AsyncGenerator[None]) -> None:
    """Close a resource of another loop in that loop, if it is running."""

    async def close() -> None:
        with suppress(RuntimeError):  # its loop is ending and already closes it
            await closing.aclose()

    if loop.is_running():
        with suppress(LoopEnded, TimeoutError):
            async with asyncio.timeout(CLOSING):
                await run_in(loop, close)


async def run_in(loop: asyncio.AbstractEventLoop, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine in another loop and return its result.

    Raise `LoopEnded` if that loop ends first, and `Unavailable` if it is blocked for long.
    """
    if loop is asyncio.get_running_loop():
        return await call()
    remote: _RemoteCall[T] = _RemoteCall(loop, call)
    try:
        loop.call_soon_threadsafe(remote.start)
        return await remote.result()
    except RuntimeError:
        if loop.is_closed():
            raise LoopEnded from None
        raise
    finally:
        remote.cancel()


class _RemoteCall(Generic[T]):
    """A call into another loop."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, call: Callable[[], Coroutine[Any, Any, T]]
    ) -> None:
        self._loop = loop
        self._call = call
        self._task: asyncio.Task[T] | None = None
        self._canceled = False
        self._answer: Future[T] = Future()
        self._answer.set_running_or_notify_cancel()  # a waiter can no longer cancel it
        self._alive_at = time.monotonic()

    async def result(self) -> T:
        """Wait for the result, and check now and then whether the other loop still runs."""
        answer = asyncio.wrap_future(self._answer)
        while not answer.done():
            await asyncio.wait([answer], timeout=LOOK)
            if not answer.done():
                self._check_alive()
        return answer.result()

    def cancel(self) -> None:
        """Cancel the call, unless it has ended."""
        self._canceled = True
        if not self._answer.done():
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._cancel_task)

    def _check_alive(self) -> None:
        if not self._loop.is_running():
            raise LoopEnded
        if time.monotonic() - self._alive_at > SILENCE:
            raise Unavailable(
                f"the event loop that delivers has been blocked for {SILENCE:g} seconds"
            )
        self._loop.call_soon_threadsafe(self._note_alive)

    # --- in the other loop ---

    def start(self) -> None:
        if not self._canceled:
            self._task = self._loop.create_task(self._call())
            self._task.add_done_callback(self._report)

    def _note_alive(self) -> None:
        self._alive_at = time.monotonic()

    def _cancel_task(self) -> None:
        if self._task:
            self._task.cancel()

    def _report(self, task: asyncio.Task[T]) -> None:
        if task.cancelled():
            self._answer.set_exception(LoopEnded())
        elif error := task.exception():
            self._answer.set_exception(error)
        else:
            self._answer.set_result(task.result())
