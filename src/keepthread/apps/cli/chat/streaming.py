"""Draw an answer while it arrives: finished blocks stay, the last block is redrawn."""

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from math import ceil
from typing import Final, Self, TypeAlias

from rich.cells import cell_len
from rich.console import Console
from rich.segment import ControlType, Segment, Segments
from rich.style import Style

from keepthread.apps.cli.chat.blocks import THEME, Blocks, blocks_of
from keepthread.apps.cli.chat.plain import StreamSanitizer
from keepthread.apps.cli.sanitize import sanitize

Line: TypeAlias = list[Segment]

_FRAME: Final = 0.08
"""Seconds between two drawings."""
_SHARE: Final = 4
"""How much longer to rest than a drawing took, so that keys and pieces are heard."""
_WIDEST: Final = 100
_NARROWEST: Final = 20
_DOTS: Final = ("·", "··", "···", "··")
_PATIENCE: Final = 4.0
"""Seconds of silence before it is said how to end it."""
_REFLOWING: Final = (
    "ALACRITTY_WINDOW_ID",
    "KITTY_WINDOW_ID",
    "KONSOLE_VERSION",
    "TERM_PROGRAM",
    "TMUX",
    "VTE_VERSION",
    "WT_SESSION",
)
"""Variables of terminals that rewrap lines when they become narrower."""


class Drawn:
    """Draws Markdown on a terminal; each line that leaves the screen was drawn once."""

    def __init__(self, environ: Mapping[str, str], *, every: float = _FRAME) -> None:
        """Find out what the terminal can do; `every` is the least time between two drawings."""
        self._console = Console(highlight=False, markup=False, emoji=False, theme=THEME)
        self._reflows = any(name in environ for name in _REFLOWING)
        self._pieces = StreamSanitizer()
        self._text = ""
        """The text that may still change."""
        self._frame: list[int] = []
        """The width of each line that can be redrawn; `_width` is the terminal width then."""
        self._width = 0
        self._passed = _Passed()
        self._status: list[Line] = []
        """The work for the answer so far; it stays on the screen once the answer begins."""
        self._begun = self._behind = False
        self._every = every
        self._since = time.monotonic()
        """When the latest piece arrived, or this began."""
        self._drawing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._drawing = asyncio.create_task(self._draw_on())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._drawing:
            self._drawing.cancel()
            with suppress(asyncio.CancelledError, OSError):
                await self._drawing
        self._text += self._pieces.rest()
        with suppress(OSError):  # nobody may be left to see it
            self._finish()

    def add(self, piece: str) -> None:
        """Take what arrived; the first of it is shown at once."""
        text = self._pieces.add(piece)
        self._text += text if self._begun else text.lstrip("\n")
        self._behind = True
        self._since = time.monotonic()
        if self._text and not self._begun:
            self._begun = True
            with suppress(OSError):
                self._keep_status()
                self._draw()

    def status(self, lines: Sequence[str]) -> None:
        """Show what is being done until the answer begins."""
        dim, room = Style(dim=True), max(_NARROWEST, self._console.width - 1)
        self._status = [[Segment(_fitting(line, room), dim)] for line in lines]
        if not self._begun:
            with suppress(OSError):
                self._wait()

    def _keep_status(self) -> None:
        if self._status:
            self._show([*self._status, []], [])

    async def _draw_on(self) -> None:
        rest = self._every
        while True:
            await asyncio.sleep(rest)
            began = time.monotonic()
            if not self._begun:
                self._wait()
            elif self._behind or self._is_stalled() or self._console.width != self._width:
                self._draw()
            rest = max(self._every, _SHARE * (time.monotonic() - began))

    # --- what is seen ---

    def _wait(self) -> None:
        room = max(0, self._console.height - 2)
        self._show([], [*self._status[:room], self._silence()])

    def _is_stalled(self) -> bool:
        return time.monotonic() - self._since > _PATIENCE

    def _silence(self) -> Line:
        """Return a sign that something is awaited, and after a while for how long."""
        seconds = time.monotonic() - self._since
        text = _DOTS[int(seconds * 3) % len(_DOTS)]
        if self._is_stalled():
            text = f"{text:3} {seconds:.0f} s, Ctrl-C stops it"
        return [Segment(text, Style(dim=True))]

    def _draw(self) -> None:
        """Keep finished blocks, and draw the rest over its earlier drawing."""
        self._behind = False
        *whole, self._text = blocks_of(self._text)
        done = [line for block in whole for line in [*self._unseen(block), []]]
        live = self._passed.behind(self._lines(self._text))
        silence = [self._silence()] if self._is_stalled() else []
        room = max(1, self._console.height - 1 - len(silence))
        if len(live) > room:
            self._passed.let(live[:-room], self._console.width)
            done, live = [*done, *live[:-room]], live[-room:]
        self._show(done, [*live, *silence])

    def _finish(self) -> None:
        blocks = blocks_of(f"{self._text}\n") if self._begun else []
        drawn = [self._unseen(block) for block in blocks if block.strip()]
        self._show([line for lines in drawn for line in ([], *lines)][1:], [])

    def _unseen(self, block: str) -> list[Line]:
        """Return the lines of a finished block that have not left the screen yet."""
        lines = self._passed.behind(self._lines(block))
        self._passed = _Passed()
        return lines

    def _lines(self, text: str) -> list[Line]:
        width = min(_WIDEST, max(_NARROWEST, self._console.width - 1))
        options = self._console.options.update(width=width, height=None)
        drawn = self._console.render_lines(Blocks(text), options, pad=False)
        lines = [_trimmed(line) for line in drawn]
        while lines and not lines[0]:
            lines.pop(0)
        while lines and not lines[-1]:
            lines.pop()
        self._passed.fit(lines, self._console.width)
        return lines

    def _show(self, done: Sequence[Line], live: Sequence[Line]) -> None:
        """Write lines over the frame: some for good, some that may be redrawn."""
        width = self._console.width
        up = self._height(width) - 1
        segments = [_control(f"\x1b[{up}A" if up > 0 else "")]
        lines = [*done, *live]
        for number, line in enumerate(lines):
            segments += [_control("\r\x1b[K"), *line]
            if number < len(lines) - 1 or not live:
                segments.append(Segment.line())
        segments.append(_control("\x1b[J" if lines else "\r\x1b[J"))
        self._frame = [Segment.get_line_length(line) for line in live]
        self._width = width
        self._console.print(Segments(segments), end="", crop=False, no_wrap=True)

    def _height(self, width: int) -> int:
        """Return how many rows the frame takes now."""
        if width >= self._width or not self._reflows:
            return len(self._frame)
        return sum(max(1, ceil(length / width)) for length in self._frame)


class _Passed:
    """How much of a block has left the screen already, in lines and in letters."""

    def __init__(self) -> None:
        self._lines = 0
        self._letters = 0
        self._width: int = 0

    def behind(self, lines: Sequence[Line]) -> list[Line]:
        """Return the lines that have not."""
        return list(lines[self._lines :])

    def let(self, lines: Sequence[Line], width: int) -> None:
        """Take note of lines that leave."""
        self._lines += len(lines)
        self._letters += sum(map(_letters, lines))
        self._width = width

    def fit(self, lines: Iterable[Line], width: int) -> None:
        """Find the position again in lines of another width."""
        if not self._lines or width == self._width:
            return
        left, self._lines, self._width = self._letters, 0, width
        for line in lines:
            left -= _letters(line)
            if left < 0:
                break
            self._lines += 1


def _fitting(text: str, cells: int) -> str:
    """Return the beginning of a text that fits into cells; some signs take two."""
    used = 0
    for place, letter in enumerate(text):
        used += cell_len(letter)
        if used > cells:
            return text[:place]
    return text


def _letters(line: Line) -> int:
    return sum(len("".join(segment.text.split())) for segment in line)


def _trimmed(line: Line) -> Line:
    """Return a line without blanks at its end, and harmless: entities may have hidden something."""
    made = [segment._replace(text=sanitize(segment.text)) for segment in line]
    while made and not made[-1].text.strip() and not (made[-1].style and made[-1].style.bgcolor):
        made.pop()
    if made:
        made[-1] = made[-1]._replace(text=made[-1].text.rstrip())
    return made


def _control(code: str) -> Segment:
    return Segment(code, None, [(ControlType.HOME,)])
