"""Signals: Ctrl-C interrupts what is being done; SIGTERM and SIGHUP end it, and the program."""

import asyncio
import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Final

INTERRUPTED: Final = 130
HUNG_UP: Final = 129
_ENDING: Final = {"SIGTERM": 143, "SIGHUP": HUNG_UP}


class Signals:
    """Hears signals, and passes them on to whatever is being done."""

    def __init__(self) -> None:
        """Hear nothing yet."""
        self.status = 0
        """The exit status, as soon as the program is to end."""
        self.presses = 0
        """How often Ctrl-C was pressed in what is being done."""
        self._stop: Callable[[], object] = lambda: None

    def listen(self) -> None:
        """Begin to hear, in the running loop."""
        _handle(signal.SIGINT, self._interrupted)
        for name, status in _ENDING.items():
            if hasattr(signal, name):  # Windows has no SIGHUP
                _handle(getattr(signal, name), partial(self._ended, status))

    @contextmanager
    def during(self, stop: Callable[[], object]) -> Generator[None]:
        """Let a signal call `stop` while the block runs."""
        before, self._stop, self.presses = self._stop, stop, 0
        try:
            yield
        finally:
            self._stop = before

    def _interrupted(self) -> None:
        self.presses += 1
        self._stop()

    def _ended(self, status: int) -> None:
        self.status = self.status or status
        self._stop()


def _handle(number: signal.Signals, handler: Callable[[], object]) -> None:
    """Let a signal call a handler in the running loop, also where loops have no such handlers."""
    loop = asyncio.get_running_loop()
    try:
        loop.add_signal_handler(number, handler)
    except NotImplementedError:
        # As on Windows. Without this, Ctrl-C would cancel whatever runs and end the program.
        def received(number: int, frame: FrameType | None) -> None:
            if loop.is_closed():
                signal.default_int_handler(number, frame)
            loop.call_soon_threadsafe(handler)

        signal.signal(number, received)
