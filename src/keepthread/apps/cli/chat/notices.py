"""Notices in a chat: warnings and logs of the library, and hints after a model error.

Warnings are shown like other notices, so that they do not overwrite the screen.
"""

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from keepthread.apps.cli.report_types import counted
from keepthread.apps.cli.settings.secrets import source_of
from keepthread.errors import InvalidInput, ModelDenied, ModelError, ModelRefused

if TYPE_CHECKING:
    from keepthread.apps.cli.settings.settings import ModelSettings


def without_tools(model: str, reason: str) -> str:
    """Return the notice that a model's service takes no tools."""
    return f"{model} does not support tools and was asked without them: {reason}"


Log = Annotated[
    str | None,
    typer.Option("--log", metavar="FILE", help="Log each context to a file (ids and sizes)."),
]
Debug = Annotated[
    bool,
    typer.Option("--debug", help="Also log message texts; without --log, to stderr."),
]


class _NoticeHandler(logging.Handler):
    """Passes each log record to `notify`, in the event loop that shows it."""

    def __init__(self, notify: Callable[[str], object]) -> None:
        super().__init__(logging.WARNING)
        self._notify = notify
        self._loop = asyncio.get_running_loop()

    def emit(self, record: logging.LogRecord) -> None:
        self._loop.call_soon_threadsafe(self._notify, record.getMessage())


@contextmanager
def show_warnings(notify: Callable[[str], object]) -> Generator[None]:
    """Pass logged warnings to `notify` while the block runs."""
    logger, handler = logging.getLogger("keepthread"), _NoticeHandler(notify)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


@contextmanager
def logged(file: str | None, *, debug: bool) -> Generator[None]:
    """Log each context that the block builds, to a file that its owner alone can read.

    With `debug`, it also has the texts of messages. Without a file it goes to standard error.
    """
    if file is None and not debug:
        yield
        return
    loggers = [
        logging.getLogger(name) for name in ("keepthread.context", "keepthread.context.text")
    ]
    levels = [logger.level for logger in loggers]
    with _log_stream(file) as stream:
        handler = logging.StreamHandler(stream)
        handler.setFormatter(logging.Formatter("%(asctime)s %(name)s\n%(message)s"))
        for logger in loggers[: 2 if debug else 1]:
            logger.setLevel(logging.DEBUG)
        loggers[0].addHandler(handler)  # the other passes its records on to it
        try:
            yield
        finally:
            loggers[0].removeHandler(handler)
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


@contextmanager
def _log_stream(file: str | None) -> Generator[TextIO]:
    if file is None:
        yield sys.stderr
        return
    flags: int = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
    try:
        descriptor = os.open(Path(file).expanduser(), flags, 0o600)
    except OSError as error:
        raise InvalidInput(f"--log {file}: the file cannot be written: {error.strerror}") from None
    with os.fdopen(descriptor, "a", encoding="utf-8", errors="backslashreplace") as stream:
        yield stream


def pruned(sessions: int, days: int) -> str:
    """Return the notice that idle sessions were deleted."""
    return f"deleted {counted(sessions, 'session')} without activity for {counted(days, 'day')}"


def chat_hint(failure: ModelError, settings: "ModelSettings") -> str:
    """Return what to do after a model error in a chat; the error itself cannot know it."""
    if isinstance(failure, ModelDenied):
        about = _about_key(settings)
        return f"{about[0].upper()}{about[1:]}; after fixing it, `keepthread chat -c` continues"
    if isinstance(failure, ModelRefused):
        return "/model NAME switches the model, /retry asks again"
    return "/retry asks again"


def one_shot_hint(failure: ModelError, settings: "ModelSettings") -> str:
    """Return what to check after a model error when one question was asked."""
    if isinstance(failure, ModelDenied):
        return _about_key(settings)
    named = "--model NAME asks another model, and " if isinstance(failure, ModelRefused) else ""
    return f"{named}`keepthread config model` shows the current settings"


def _about_key(settings: "ModelSettings") -> str:
    name, source = settings.key_variable, source_of(settings.key_variable, os.environ)
    if settings.key_command and source != "environment":
        return "the key comes from model.key_command"
    if source:
        return f"the key is in {name}" if source == "environment" else f"the keyring has {name}"
    return f"export {name}=… with your key"
