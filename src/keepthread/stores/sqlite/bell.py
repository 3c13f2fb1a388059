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

    def __init__(self, loop: asyncio.AbstractEventLoop, take: Callable[[T], None]) -> None:
        """Have `take` called in the loop for each item."""
        self.loop = loop
        self._take = take
        self._items: deque[T] = deque()
        self._lock = threading.Lock()
        self._pipe = _watched_pipe(loop, self._answer)

    def ring(self, item: T) -> None:
        """Hand an item over; a loop that is closed takes none, for nobody waits there."""
        self._items.append(item)
        with self._lock:  # a closed descriptor may be somebody else's by now
            if self._pipe:
                with suppress(BlockingIOError):  # full: it has been rung often enough
                    os.write(self._pipe[1], b"\0")
                return
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self._drain)

    def close(self) -> None:
        """Let go of the pipe, once nobody rings any more."""
        with self._lock:
            if self._pipe:
                if not self.loop.is_closed():
                    self.loop.remove_reader(self._pipe[0])
                for descriptor in self._pipe:
                    os.close(descriptor)
                self._pipe = None

    def _answer(self) -> None:
        if self._pipe:
            os.read(self._pipe[0], 4096)
        self._drain()

    def _drain(self) -> None:
        while self._items:
            self._take(self._items.popleft())


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
