"""Where the courier decides: in one event loop, to which the others send their calls."""

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from keepthread.errors import StoreClosed, Unavailable
from keepthread.loops import LoopEnded, run_in
from keepthread.spool.courier import Courier

T = TypeVar("T")


class Home:
    """The courier and its event loop; another loop takes over when that one has ended."""

    def __init__(self, courier: Courier) -> None:
        """Begin in the loop in which the courier has begun."""
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._courier = courier

    @property
    def is_forked(self) -> bool:
        """Tell whether this is a copy in a forked process: the parent delivers."""
        return os.getpid() != self._pid

    @property
    def courier(self) -> Courier:
        """Return the courier, for what may be read from any loop."""
        return self._courier

    async def call(self, what: Callable[[Courier], Coroutine[Any, Any, T]]) -> T:
        """Run something that may be repeated where the courier lives."""
        while True:
            courier = self._living()
            with suppress(LoopEnded):  # then this loop, or another, takes over
                return await run_in(courier.loop, lambda c=courier: _when_begun(c, what))

    def note(self, error: Unavailable) -> None:
        """Tell the courier what the target raised."""
        courier = self._living()
        if courier.loop is asyncio.get_running_loop():
            courier.note(error)
        else:
            with suppress(RuntimeError):  # its loop ended: who takes over will notice
                courier.loop.call_soon_threadsafe(courier.note, error)

    def _living(self) -> Courier:
        """Return the courier, a new one in this loop if the old one's has ended."""
        if self.is_forked:
            raise StoreClosed("the store was opened before a fork; open it again in this process")
        with self._lock:
            if not self._courier.loop.is_running():
                self._courier = self._courier.moved()
            return self._courier


async def _when_begun(courier: Courier, what: Callable[[Courier], Coroutine[Any, Any, T]]) -> T:
    await courier.begun()
    return await what(courier)
