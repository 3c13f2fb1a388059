"""What a program writes to its standard error: read on and on, and the end of it kept."""

import asyncio
import os
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

    def open(self) -> TextIO:
        """Return a file to write to, and begin to read it."""
        self._reading, writing = os.pipe()
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
        with os.fdopen(self._reading, "rb", buffering=0) as pipe:
            while data := pipe.read(_MOST):
                self._heard = (self._heard + data)[-_MOST:]
