"""Run coroutines from any thread on an event loop that has its own thread."""

import asyncio
import inspect
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
_MAX_WAIT: Final = 0.5


class Loop:
    """An event loop in its own thread; when it ends, it awaits `close`.

    The thread holds no reference to this object, so an unreferenced memory closes itself. The
    thread is a daemon, so a memory that was never closed does not keep the interpreter running.
    """

    def __init__(self, close: Close) -> None:
        self._loop = asyncio.new_event_loop()
        self._pid = os.getpid()
        self._gate = threading.RLock()  # a signal handler may call while its thread holds it
        self._closed = False
        self._ended: Future[None] = Future()
        closing: asyncio.Future[Close] = self._loop.create_future()
        thread = threading.Thread(
            target=_serve, args=(self._loop, closing, self._ended), name="keepthread", daemon=True
        )
        thread.start()
        self._thread = thread
        self._close = weakref.finalize(self, _request_close, self._loop, closing, close, self._pid)
        self._close.atexit = False

    def run(
        self, call: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run a coroutine function in the loop and return its result."""
        return Call(self).run(call, *args, **kwargs)

    def post(self, call: Callable[..., object], *args: Any) -> None:
        """Schedule a plain function in the loop."""
        if os.getpid() != self._pid:
            raise StoreClosed("the memory was opened before a fork; open it again in each process")
        self._refuse_own_thread()
        with self._gate:
            if self._closed:
                raise StoreClosed("the memory is closed")
            self._loop.call_soon_threadsafe(call, *args)

    def reply(self, call: Callable[..., object], *args: Any) -> None:
        """Schedule a function that a task waits for; it also runs while the loop is closing."""
        if os.getpid() == self._pid:
            with suppress(RuntimeError):  # the task was canceled and the loop has ended
                self._loop.call_soon_threadsafe(call, *args)

    def end(self) -> None:
        """Close, let calls of other threads finish, and wait for the loop's thread to end."""
        if os.getpid() != self._pid:
            return  # after a fork only the parent has the store open
        self._refuse_own_thread()
        with self._gate:
            self._closed = True
            self._close()
        while self._thread.is_alive() and not self._ended.done():
            wait([self._ended], timeout=_MAX_WAIT)
        if self._ended.done():
            self._ended.result()
        self._thread.join()

    @property
    def is_alive(self) -> bool:
        """Return whether the thread of the loop runs."""
        return self._thread.is_alive()

    def _refuse_own_thread(self) -> None:
        if threading.get_ident() == self._thread.ident:
            raise RuntimeError(
                "a blocking call from inside its own event loop would deadlock; callbacks that run "
                "there must not call the memory"
            )


def _request_close(
    loop: asyncio.AbstractEventLoop, closing: asyncio.Future[Close], close: Close, pid: int
) -> None:
    if os.getpid() == pid:
        with suppress(RuntimeError):  # the loop has ended already
            loop.call_soon_threadsafe(closing.set_result, close)


def _serve(
    loop: asyncio.AbstractEventLoop, closing: asyncio.Future[Close], ended: Future[None]
) -> None:
    """Run a loop in its thread until it is closed."""
    error: BaseException | None = None
    try:
        loop.run_until_complete(_close_when_asked(closing))
    except BaseException as failure:  # noqa: BLE001 - `end` raises it
        error = failure
    finally:
        loop.close()
    if error is None:
        ended.set_result(None)
    else:
        ended.set_exception(error)


async def _close_when_asked(closing: asyncio.Future[Close]) -> None:
    close = await closing
    try:
        await close()
    finally:
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.gather(*others, return_exceptions=True)
        loop = asyncio.get_running_loop()
        await loop.shutdown_asyncgens()  # closes the connections of models that were used here
        await loop.shutdown_default_executor()


def _set_result(answer: asyncio.Future[Any], outcome: object) -> None:
    if not answer.done():  # its task may be canceled
        answer.set_result(outcome)


class Call:
    """One blocking call: a task in the loop, and a queue on which the caller waits for it.

    `loop.call_soon_threadsafe` and a queue cost half as much as
    `asyncio.run_coroutine_threadsafe`.
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
        """Run a coroutine function in the loop and return its result, or raise its error."""
        try:
            # An interrupt may arrive as soon as the task is scheduled; it must be canceled then.
            self._loop.post(self._start, partial(call, *args, **kwargs))
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
            del error  # its traceback refers to this frame

    def notify_caller(self, callback: Callable[P, object]) -> Callable[P, None]:
        """Return a function that runs the callback in the caller's thread, without waiting."""

        def send(*args: P.args, **kwargs: P.kwargs) -> None:
            if self._given_up:
                raise StoreClosed("the caller no longer waits for this call")
            self._back.put(partial(callback, *args, **kwargs))

        return send

    def call_caller(self, callback: Callable[P, T]) -> Callable[P, Coroutine[Any, Any, T]]:
        """Return a coroutine function that runs the callback in the caller's thread.

        It returns the callback's result, or raises its error.
        """

        async def called(*args: P.args, **kwargs: P.kwargs) -> T:
            answer: asyncio.Future[tuple[T | None, Exception | None]]
            answer = asyncio.get_running_loop().create_future()
            self.notify_caller(self._answer)(answer, partial(callback, *args, **kwargs))
            value, error = await answer
            try:
                if error is not None:
                    raise error
            finally:
                del answer, error  # its traceback refers to this frame
            return cast(T, value)

        return called

    def tool_in_caller(self, run: Callable[..., Any]) -> Callable[..., Coroutine[Any, Any, Any]]:
        """Return it as `call_caller` does; a coroutine that it returns is awaited in the loop."""
        called = self.call_caller(run)

        async def ran(*args: Any, **kwargs: Any) -> Any:
            value = await called(*args, **kwargs)
            return await value if inspect.isawaitable(value) else value

        return ran

    def _answer(self, answer: asyncio.Future[Any], callback: Callable[[], object]) -> None:
        """Call a callback in the caller's thread and send its outcome to the loop."""
        outcome: tuple[object, Exception | None]
        try:
            outcome = callback(), None
        except Exception as error:  # noqa: BLE001 - the coroutine raises it
            outcome = None, error
        self._loop.reply(_set_result, answer, outcome)
        del answer, outcome  # an error's traceback refers to this frame

    def _next(self) -> Callable[[], object] | None:
        """Return the next callback, or None when the call is done."""
        while True:
            # A signal that arrives just before the wait is seen only after it.
            with suppress(Empty):
                return self._back.get(timeout=_MAX_WAIT)
            if not self._loop.is_alive and self._back.empty():
                raise StoreClosed("the event loop of the memory has ended; open the memory again")

    # --- in the loop's thread ---

    def _start(self, call: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        self._task = asyncio.get_running_loop().create_task(self._finish(call))

    async def _finish(self, call: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        try:
            self._result = await call()
        except BaseException as error:  # noqa: BLE001 - the caller raises it
            self._error = error
        finally:
            self._back.put(None)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
