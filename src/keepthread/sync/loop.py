"""The hop from any thread to an event loop on a thread of its own, and back."""

import asyncio
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, wait
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Final, ParamSpec, TypeAlias, TypeVar, cast

from keepthread.errors import StoreClosed

T = TypeVar("T")
P = ParamSpec("P")
Close: TypeAlias = Callable[[], Coroutine[Any, Any, None]]
_MOST_WAIT: Final = 0.5


class Loop:
    """An event loop on a thread of its own, which ends with a call of `close`.

    The thread does not know this object, so that a memory nobody holds any more is closed, and it
    is a daemon, so that one that was never closed does not keep the interpreter from leaving.
    """

    def __init__(self, close: Close) -> None:
        self._loop = asyncio.new_event_loop()
        self._pid = os.getpid()
        self._gate = threading.RLock()  # a signal's handler may call while its thread is in here
        self._closed = False
        self._ended: Future[None] = Future()
        closing: asyncio.Future[Close] = self._loop.create_future()
        thread = threading.Thread(
            target=_serve, args=(self._loop, closing, self._ended), name="keepthread", daemon=True
        )
        thread.start()
        self._thread = thread
        self._close = weakref.finalize(self, _begin_to_end, self._loop, closing, close, self._pid)
        self._close.atexit = False

    def run(
        self, call: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run an asynchronous function in the loop and return what it returns."""
        return Call(self).run(call, *args, **kwargs)

    def post(self, call: Callable[..., object], *args: Any) -> None:
        """Have a plain function called in the loop."""
        if os.getpid() != self._pid:
            raise StoreClosed("the memory was opened before a fork; open it anew in each process")
        self._refuse_own_thread()
        with self._gate:
            if self._closed:
                raise StoreClosed("the memory is closed")
            self._loop.call_soon_threadsafe(call, *args)

    def reply(self, call: Callable[..., object], *args: Any) -> None:
        """Have a function called for a task that waits for it, which closing waits for as well."""
        if os.getpid() == self._pid:
            with suppress(RuntimeError):  # the task was broken off and the loop has ended
                self._loop.call_soon_threadsafe(call, *args)

    def end(self) -> None:
        """Close, let calls of other threads come to their end, and wait for the thread's."""
        if os.getpid() != self._pid:
            return  # the store is open in the parent alone
        self._refuse_own_thread()
        with self._gate:
            self._closed = True
            self._close()
        while self._thread.is_alive() and not self._ended.done():
            wait([self._ended], timeout=_MOST_WAIT)
        if self._ended.done():
            self._ended.result()
        self._thread.join()

    @property
    def is_alive(self) -> bool:
        """Tell whether anybody is left who can answer."""
        return self._thread.is_alive()

    def _refuse_own_thread(self) -> None:
        if threading.get_ident() == self._thread.ident:
            raise RuntimeError("a blocking call from inside its own event loop would never end")


def _begin_to_end(
    loop: asyncio.AbstractEventLoop, closing: asyncio.Future[Close], close: Close, pid: int
) -> None:
    if os.getpid() == pid:
        with suppress(RuntimeError):  # the loop has ended already
            loop.call_soon_threadsafe(closing.set_result, close)


def _serve(
    loop: asyncio.AbstractEventLoop, closing: asyncio.Future[Close], ended: Future[None]
) -> None:
    """Run a loop, in its thread, until it is to be closed."""
    error: BaseException | None = None
    try:
        loop.run_until_complete(_wind_up(closing))
    except BaseException as failure:  # noqa: BLE001 - whoever waits is told
        error = failure
    finally:
        loop.close()
    if error is None:
        ended.set_result(None)
    else:
        ended.set_exception(error)


async def _wind_up(closing: asyncio.Future[Close]) -> None:
    close = await closing
    try:
        await close()
    finally:
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.gather(*others, return_exceptions=True)
        await asyncio.get_running_loop().shutdown_default_executor()


def _settle(answer: asyncio.Future[Any], outcome: object) -> None:
    if not answer.done():  # who asked may have been cancelled
        answer.set_result(outcome)


class Call:
    """One call: what it does goes to the loop, and the caller waits here for what comes back.

    `loop.call_soon_threadsafe` and a queue cost half of `asyncio.run_coroutine_threadsafe`.
    """

    __slots__ = ("_back", "_error", "_given_up", "_loop", "_result", "_task")

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._back: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._task: asyncio.Task[None] | None = None
        self._given_up = False
        self._result: Any = None
        self._error: BaseException | None = None

    def run(
        self, call: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run an asynchronous function in the loop and return what it returns, or raise it."""
        self._loop.post(self._start, partial(call, *args, **kwargs))
        try:
            while (callback := self._next()) is not None:
                callback()
        except BaseException:  # the caller is interrupted, or its own callback failed
            self._given_up = True
            self._loop.reply(self._cancel)
            raise
        error, self._error = self._error, None
        if error is None:
            return self._result
        try:
            raise error
        finally:
            del error  # its traceback knows this frame

    def here(self, callback: Callable[P, object]) -> Callable[P, None]:
        """Return a function for any thread that has the callback called where the caller waits."""

        def send(*args: P.args, **kwargs: P.kwargs) -> None:
            if self._given_up:
                raise StoreClosed("the caller waits no longer")
            self._back.put(partial(callback, *args, **kwargs))

        return send

    def ask(self, callback: Callable[P, T]) -> Callable[P, Coroutine[Any, Any, T]]:
        """Return a function for the loop that has the callback called where the caller waits.

        What the callback returns or raises is given back to the loop.
        """

        async def asked(*args: P.args, **kwargs: P.kwargs) -> T:
            answer: asyncio.Future[tuple[T | None, Exception | None]]
            answer = asyncio.get_running_loop().create_future()
            self.here(self._answer)(answer, partial(callback, *args, **kwargs))
            value, error = await answer
            try:
                if error is not None:
                    raise error
            finally:
                del answer, error  # its traceback knows this frame
            return cast(T, value)

        return asked

    def _answer(self, answer: asyncio.Future[Any], callback: Callable[[], object]) -> None:
        """Call a callback, in the caller's thread, and tell the loop what came of it."""
        outcome: tuple[object, Exception | None]
        try:
            outcome = callback(), None
        except Exception as error:  # noqa: BLE001 - whoever asked is told
            outcome = None, error
        self._loop.reply(_settle, answer, outcome)
        del answer, outcome  # an error's traceback knows this frame

    def _next(self) -> Callable[[], object] | None:
        """Return the next callback, or None at the end."""
        while True:
            # A signal that came just before the wait is not seen until it is over.
            with suppress(Empty):
                return self._back.get(timeout=_MOST_WAIT)
            if not self._loop.is_alive and self._back.empty():
                raise StoreClosed("the thread of the memory has ended")

    # --- in the loop's thread ---

    def _start(self, call: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        self._task = asyncio.get_running_loop().create_task(self._finish(call))

    async def _finish(self, call: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        try:
            self._result = await call()
        except BaseException as error:  # noqa: BLE001 - it is the caller's
            self._error = error
        finally:
            self._back.put(None)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
