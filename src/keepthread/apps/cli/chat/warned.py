"""Warnings of the library told as everything else is, and not written across the screen."""

import asyncio
import logging
from collections.abc import Callable, Generator
from contextlib import contextmanager


class _Telling(logging.Handler):
    """Passes on what is logged, into the loop that tells it."""

    def __init__(self, tell: Callable[[str], object]) -> None:
        super().__init__(logging.WARNING)
        self._tell = tell
        self._loop = asyncio.get_running_loop()

    def emit(self, record: logging.LogRecord) -> None:
        self._loop.call_soon_threadsafe(self._tell, record.getMessage())


@contextmanager
def warned(tell: Callable[[str], object]) -> Generator[None]:
    """Let warnings be told while the block runs."""
    logger, telling = logging.getLogger("keepthread"), _Telling(tell)
    logger.addHandler(telling)
    try:
        yield
    finally:
        logger.removeHandler(telling)
