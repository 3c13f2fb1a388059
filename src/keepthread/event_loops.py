"""Several event loops that share one memory: a resource for each loop, and calls into another.

Connections and asyncio's locks belong to one loop. What can be had once for each loop is; what
must exist once lives in one loop, and the others send their calls there.
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
"""Seconds that closing waits for other loops to close what is theirs."""
SILENCE: Final = 30.0
"""Seconds for which a loop may be blocked before calls into it are given up."""
LOOK: Final = 0.2
"""Seconds between two looks whether another loop still runs."""


class LoopEnded(Exception):
    """The loop that was asked ended first: nobody knows what became of the call."""


class _Held(NamedTuple, Generic[T]):
    resource: T
    closing: AsyncGenerator[None]


class PerLoop(Generic[T]):
    """One resource for each event loop: made on its first use, closed with its loop.

    A loop closes its asynchronous generators when it ends, as `asyncio.run` does; each resource
    is held by one.
    """

    def __init__(self, make: Callable[[], T], close: Callable[[T], Awaitable[None]]) -> None:
        """Make none yet; `make` and `close` are called in the loop that the resource is for."""
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
        """Close all of them, each in its loop; one whose loop does not run is closed at its end."""
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
        with suppress(StopIteration):  # it runs to its `yield`, and from now on its loop knows it
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
    """Have a resource of another loop closed there, as long as that loop runs."""

    async def close() -> None:
        with suppress(RuntimeError):  # its loop ends now, and is at it
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
    errand: _Errand[T] = _Errand(loop, call)
    try:
        loop.call_soon_threadsafe(errand.start)
        return await errand.answered()
    except RuntimeError:
        if loop.is_closed():
            raise LoopEnded from None
        raise
    finally:
        errand.give_up()


class _Errand(Generic[T]):
    """One call into another loop."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, call: Callable[[], Coroutine[Any, Any, T]]
    ) -> None:
        self._loop = loop
        self._call = call
        self._task: asyncio.Task[T] | None = None
        self._given_up = False
        self._answer: Future[T] = Future()
        self._answer.set_running_or_notify_cancel()  # from now on no waiter can cancel it
        self._alive_at = time.monotonic()

    async def answered(self) -> T:
        """Wait for the answer, and look now and then whether anybody is at it."""
        answer = asyncio.wrap_future(self._answer)
        while not answer.done():
            await asyncio.wait([answer], timeout=LOOK)
            if not answer.done():
                self._check_alive()
        return answer.result()

    def give_up(self) -> None:
        """Cancel the call, unless it has ended."""
        self._given_up = True
        if not self._answer.done():
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._cancel)

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
        if not self._given_up:
            self._task = self._loop.create_task(self._call())
            self._task.add_done_callback(self._tell)

    def _note_alive(self) -> None:
        self._alive_at = time.monotonic()

    def _cancel(self) -> None:
        if self._task:
            self._task.cancel()

    def _tell(self, task: asyncio.Task[T]) -> None:
        if task.cancelled():
            self._answer.set_exception(LoopEnded())
        elif error := task.exception():
            self._answer.set_exception(error)
        else:
            self._answer.set_result(task.result())
