"""Lines as a dumb terminal gives them: nothing is drawn, completed or brought back."""

import asyncio
import os
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Final

from keepthread.apps.cli.chat.prompt import LEAVES, MARK, drop_input, show

_MOST: Final = 65_536
"""Bytes that are read at a time."""


class LineInput:
    """Asks for what to say next, one line at a time."""

    def __init__(self) -> None:
        """Ask nothing yet."""
        self._arrived = b""
        self._asked: asyncio.Future[str] | None = None
        self._mark = MARK
        self._thread: threading.Thread | None = None
        self._ended = False

    @property
    def asking(self) -> bool:
        """Return whether a line is awaited."""
        return self._asked is not None

    async def ask(self, offer: str = "", mark: str = MARK) -> str:
        """Return what was typed; `EOFError` at its end."""
        self._mark = mark
        _write(f"{offer}\n{mark}" if offer else mark)
        self._asked = asyncio.get_running_loop().create_future()
        try:
            with self._reading():
                return await self._asked
        finally:
            self._asked = None

    async def agrees(self, question: str) -> bool:
        """Ask for a yes; everything else is a no."""
        try:
            return (await self.ask(mark=f"{question} [y/N] ")).strip().lower() in ("y", "yes")
        except EOFError:
            return False

    async def choose(self, question: str) -> str:
        """Return what is typed after a question; what was typed before it does not count."""
        self._arrived = b""
        drop_input()
        return await self.ask(mark=question)

    def end(self) -> None:
        """Await nothing any more."""
        if self._asked and not self._asked.done():
            self._asked.set_exception(EOFError())

    def interrupt(self) -> None:
        """Do as Ctrl-C does; the terminal has let go of the line already."""
        self.above(LEAVES)

    def above(self, text: str) -> None:
        """Show a text, and ask again."""
        _write("\n")
        show(text)
        _write(self._mark)

    def refresh(self) -> None:
        """Draw nothing: there is no line below."""

    @contextmanager
    def _reading(self) -> Generator[None]:
        """Read while a line is awaited; in a thread where a loop cannot watch the input."""
        loop, fd = asyncio.get_running_loop(), sys.stdin.fileno()
        self._give()
        try:
            loop.add_reader(fd, lambda: self._take(os.read(fd, _MOST)))
        except NotImplementedError:  # as on Windows
            alive = self._thread is not None and self._thread.is_alive()
            if not alive and self._asked is not None and not self._asked.done():
                self._thread = threading.Thread(target=self._listen, args=(loop, fd), daemon=True)
                self._thread.start()
            yield
            return
        try:
            yield
        finally:
            loop.remove_reader(fd)

    def _listen(self, loop: asyncio.AbstractEventLoop, fd: int) -> None:
        data = b" "
        with suppress(OSError, RuntimeError):  # the input or the loop was closed
            while data:
                data = os.read(fd, _MOST)
                loop.call_soon_threadsafe(self._take, data)

    def _take(self, data: bytes) -> None:
        self._arrived += data
        self._ended = not data
        self._give()

    def _give(self) -> None:
        """Give the awaited line what arrived; the rest stays for the next one."""
        if self._asked is None or self._asked.done():
            return
        line, end, rest = self._arrived.partition(b"\n")
        if end:
            self._arrived = rest
            self._asked.set_result(line.decode(errors="replace"))
        elif self._ended:
            self._ended = False
            self._asked.set_exception(EOFError())


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
