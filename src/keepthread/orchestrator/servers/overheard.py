"""What a program writes to its standard error: read on and on, and the end of it kept."""

import asyncio
import os
import selectors
import sys
import threading
from typing import Final, TextIO

_MOST: Final = 2000
_PATIENCE: Final = 0.5
"""Seconds to hear the rest of what a program said that has ended."""


class Overheard:
    """The last words; heard in a thread, for no loop reads pipes on every system."""

    def __init__(self) -> None:
        """Have heard nothing."""
        self._heard = b""
        self._file: TextIO | None = None
        self._listening = threading.Thread(target=self._listen, daemon=True)

    def __enter__(self) -> "Overheard":
        return self

    def __exit__(self, *error: object) -> None:
        if self._file:
            self._file.close()
            os.close(self._stop)  # whoever listens sees the end of that pipe

    def open(self) -> TextIO:
        """Return a file to write to, and begin to read it."""
        self._reading, writing = os.pipe()
        self._stopped, self._stop = os.pipe()
        self._file = os.fdopen(writing, "w")
        self._listening.start()
        return self._file

    async def last_line(self) -> str:
        """Return the last line that says something."""
        if self._file:
            self._file.close()
            await asyncio.to_thread(self._listening.join, _PATIENCE)
        lines = self._heard.decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    def _listen(self) -> None:
        """Read to the end, or until nobody listens: a child of the program may keep the pipe."""
        with (
            os.fdopen(self._stopped, "rb", buffering=0) as stopped,
            os.fdopen(self._reading, "rb", buffering=0) as pipe,
            selectors.DefaultSelector() as selector,
        ):
            if sys.platform != "win32":  # there, pipes cannot be waited for
                selector.register(stopped, selectors.EVENT_READ)
                selector.register(pipe, selectors.EVENT_READ)
            while not any(key.fileobj is stopped for key, _ in _ready(selector)):
                if not (data := pipe.read(_MOST)):
                    break
                self._heard = (self._heard + data)[-_MOST:]


def _ready(selector: selectors.BaseSelector) -> list[tuple[selectors.SelectorKey, int]]:
    return selector.select() if selector.get_map() else []
