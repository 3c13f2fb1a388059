"""An answer as plain text, as it comes: for pipes, and for terminals that draw nothing."""

import sys
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Final, Literal, Protocol, Self, TypeAlias

from keepthread.apps.cli.sanitize import StreamSanitizer

DRAWN: Final = "keepthread.apps.cli.chat.streaming"
"""Where answers are drawn as Markdown; it loads rich, and so is loaded late."""
_MODERN: Final = ("WT_SESSION", "TERM_PROGRAM", "TERM")
"""Variables that a terminal on Windows sets if it obeys escape sequences."""
Permission: TypeAlias = Literal["yes", "always", "no"]


class Drawing(Protocol):
    """Shows an answer while it arrives; leaving the block completes it."""

    async def __aenter__(self) -> Self:
        """Show that an answer is awaited."""
        ...

    async def __aexit__(self, *_: object) -> None:
        """Show all of it, and end the line."""
        ...

    def add(self, piece: str) -> None:
        """Take what arrived."""
        ...

    def status(self, lines: Sequence[str]) -> None:
        """Show what is being done for the answer, in place of what was shown of it before."""
        ...


class ToolDisplay(Protocol):
    """Shows which tools are called; in between, the answer is drawn."""

    async def working(self, lines: Sequence[str]) -> None:
        """Show what is being done now."""
        ...

    async def called(self, line: str) -> None:
        """Show a call that ended, in one line."""
        ...


class Plain:
    """Writes an answer as it comes."""

    def __init__(self, write: Callable[[str], object]) -> None:
        """Take what writes a text and lets it be seen."""
        self._write = write
        self._pieces = StreamSanitizer()
        self._open = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._show(self._pieces.rest())
        if self._open:
            self._write("\n")

    def status(self, lines: Sequence[str]) -> None:
        """Write nothing: what is written cannot be changed."""

    def add(self, piece: str) -> None:
        """Write a piece."""
        self._show(self._pieces.add(piece))

    def _show(self, text: str) -> None:
        if text:
            self._write(text)
            self._open = not text.endswith("\n")


class Parts:
    """Shows an answer in parts, so that something else can be shown or asked in between."""

    def __init__(self, make: Callable[[], Drawing]) -> None:
        """Take what makes a drawing for each part."""
        self._make = make
        self._part = make()
        self._begun = False

    async def __aenter__(self) -> Self:
        await self._part.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._part.__aexit__(*error)

    def status(self, lines: Sequence[str]) -> None:
        """Show what is being done for this part."""
        self._part.status(lines)

    def add(self, piece: str) -> None:
        """Take what arrived."""
        self._begun = True
        self._part.add(piece)

    async def working(self, lines: Sequence[str]) -> None:
        """Show what is being done, after the text that arrived so far."""
        if self._begun:
            async with self.between():
                pass
        self.status(lines)

    @asynccontextmanager
    async def between(self) -> AsyncGenerator[None]:
        """Complete a part, and begin the next after the block."""
        await self._part.__aexit__(None, None, None)
        try:
            yield
        finally:
            self._part, self._begun = self._make(), False
            await self._part.__aenter__()


def draws(environ: Mapping[str, str], *, markdown: bool) -> bool:
    """Return whether answers are drawn: if that is wanted, on a terminal that can."""
    plain = environ.get("NO_COLOR") or is_dumb(environ) or not _moves_cursor(environ)
    return markdown and not plain and sys.stdout.isatty()


def _moves_cursor(environ: Mapping[str, str]) -> bool:
    """Return whether a terminal obeys escape sequences; the old console of Windows shows them."""
    return sys.platform != "win32" or any(name in environ for name in _MODERN)


def is_dumb(environ: Mapping[str, str]) -> bool:
    """Return whether a terminal can only write text; on Windows, none says what it can."""
    unnamed = () if sys.platform == "win32" else ("",)
    return environ.get("TERM", "") in (*unnamed, "dumb", "unknown")


def drawing_of(environ: Mapping[str, str], *, markdown: bool) -> Drawing:
    """Return what shows an answer here."""
    if draws(environ, markdown=markdown):
        return import_module(DRAWN).Drawn(environ)
    return Plain(_write)


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
