"""Notices in a chat: warnings that the library logs, and hints after a model error.

Warnings are shown like other notices, so that they do not overwrite the screen.
"""

import asyncio
import logging
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from keepthread.errors import ModelDenied, ModelError, ModelRefused

if TYPE_CHECKING:
    from keepthread.apps.cli.settings.settings import ModelSettings


class _NoticeHandler(logging.Handler):
    """Passes each log record to `tell`, in the event loop that shows it."""

    def __init__(self, tell: Callable[[str], object]) -> None:
        super().__init__(logging.WARNING)
        self._tell = tell
        self._loop = asyncio.get_running_loop()

    def emit(self, record: logging.LogRecord) -> None:
        self._loop.call_soon_threadsafe(self._tell, record.getMessage())


@contextmanager
def show_warnings(tell: Callable[[str], object]) -> Generator[None]:
    """Pass logged warnings to `tell` while the block runs."""
    logger, handler = logging.getLogger("keepthread"), _NoticeHandler(tell)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def chat_hint(failure: ModelError, settings: "ModelSettings") -> str:
    """Return what to do after a model error in a chat; the error itself cannot know it."""
    if isinstance(failure, ModelDenied):
        return (
            f"The key is in {settings.key_variable}; with another, `keepthread chat -c` continues"
        )
    if isinstance(failure, ModelRefused):
        return "/model NAME lets another model answer, /retry asks again"
    return "/retry asks again"


def one_shot_hint(failure: ModelError, settings: "ModelSettings") -> str:
    """Return what to check after a model error when one question was asked."""
    if isinstance(failure, ModelDenied):
        return f"the key is in {settings.key_variable}"
    named = "--model NAME asks another, and " if isinstance(failure, ModelRefused) else ""
    return f"{named}`keepthread config model` shows what is set"
