"""Lines as a dumb terminal gives them: nothing is drawn, completed or brought back."""

import asyncio
import os
import sys

from keepthread.apps.cli.chat.prompt import LEAVES, MARK, drop_input, show


class LineInput:
    """Asks for what to say next, one line at a time."""

    def __init__(self) -> None:
        """Ask nothing yet."""
        self._arrived = b""
        self._asked: asyncio.Future[str] | None = None
        self._mark = MARK

    @property
    def asking(self) -> bool:
        """Return whether a line is awaited."""
        return self._asked is not None

    async def ask(self, offer: str = "", mark: str = MARK) -> str:
        """Return what was typed; `EOFError` at its end."""
        loop, self._mark = asyncio.get_running_loop(), mark
        _write(f"{offer}\n{mark}" if offer else mark)
        self._asked = loop.create_future()
        loop.add_reader(sys.stdin.fileno(), self._read, self._asked)
        try:
            return await self._asked
        finally:
            loop.remove_reader(sys.stdin.fileno())
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

    def _read(self, asked: asyncio.Future[str]) -> None:
        data = os.read(sys.stdin.fileno(), 65_536)
        line, end, self._arrived = (self._arrived + data).partition(b"\n")
        if asked.done():
            self._arrived = line + end + self._arrived
        elif end:
            asked.set_result(line.decode(errors="replace"))
        elif not data:
            asked.set_exception(EOFError())
        else:
            self._arrived = line


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
