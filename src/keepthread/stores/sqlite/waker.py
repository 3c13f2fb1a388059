"""Waking an event loop from another thread, with one byte through a pipe.

`loop.call_soon_threadsafe` does the same for twice the CPU: it reads its socket until that is
empty, which costs an exception each time. It serves where a loop cannot watch a pipe.
"""

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

T = TypeVar("T")


class Bell(Generic[T]):
    """Carries items to one event loop; made in its thread, rung from any other."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        take: Callable[[T], None],
        *,
        with_pipe: bool = True,
    ) -> None:
        """Have `take` called in the loop for each item."""
        self.loop = loop
        self._take = take
        self._items: deque[T] = deque()
        self._lock = threading.Lock()
        self._pipe = _watched_pipe(loop, self._answer) if with_pipe else None

    def ring(self, item: T) -> None:
        """Hand an item over; a loop that is closed takes none, for nobody waits there."""
        self._items.append(item)
        with self._lock:  # a closed descriptor may be somebody else's by now
            if self._pipe and _write(self._pipe[1]):
                return
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self._drain)

    def close_in_its_loop(self) -> None:
        """Close it from any thread; the loop's own thread takes what was rung before."""
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is not self.loop:
            with suppress(RuntimeError):  # the loop is closed, and nobody waits there
                self.loop.call_soon_threadsafe(self.close)
                return
        self.close()

    def close(self) -> None:
        """Take what was rung and let go of the pipe; later items come without it."""
        with self._lock:
            if self._pipe:
                if not self.loop.is_closed():
                    self.loop.remove_reader(self._pipe[0])
                for descriptor in self._pipe:
                    os.close(descriptor)
                self._pipe = None
        if not self.loop.is_closed():
            self._drain()

    def _answer(self) -> None:
        if self._pipe:
            os.read(self._pipe[0], 4096)
        self._drain()

    def _drain(self) -> None:
        while self._items:
            self._take(self._items.popleft())


def _write(descriptor: int) -> bool:
    """Write a byte; tell whether the reader will wake."""
    try:
        os.write(descriptor, b"\0")
    except BlockingIOError:  # full: it has been rung often enough
        return True
    except OSError:  # the program closed descriptors that are not its own
        return False
    return True


def _watched_pipe(
    loop: asyncio.AbstractEventLoop, answer: Callable[[], None]
) -> tuple[int, int] | None:
    """Return a pipe whose reading end the loop watches, or None if it cannot."""
    try:
        pipe = os.pipe()
    except OSError:  # too many open files
        return None
    try:
        for descriptor in pipe:
            os.set_blocking(descriptor, False)
        loop.add_reader(pipe[0], answer)
    except (NotImplementedError, OSError):
        for descriptor in pipe:
            os.close(descriptor)
        return None
    return pipe
