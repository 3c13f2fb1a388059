"""What a terminal shows: cells with their colours, what scrolled away, and a picture of it."""

import io
import re
from collections.abc import Callable, Sequence
from html import unescape
from itertools import groupby
from typing import TypeAlias

import pyte
from pyte.screens import Char, StaticDefaultDict
from rich.cells import cell_len
from rich.color import Color
from rich.console import Console
from rich.style import Style
from rich.text import Text

Line: TypeAlias = StaticDefaultDict[int, Char]

BRACKETED_PASTE = 2004 << 5  # pyte shifts the modes that are private
OTHER_SCREEN = 1049
RUN = re.compile(
    r'(<text class="[\w-]+" )x="([\d.]+)" (y="[\d.]+" )textLength="[\d.]+"(.*?>)(.*?)</text>'
)
CELL = 12.2  # how wide rich draws one


class Faint(Char):
    """A cell in faint letters, which pyte does not know; its type goes on to what is drawn."""

    __slots__ = ()


class Emulator(pyte.Screen):
    """A screen that keeps what scrolls off its top, and answers what programs ask of it.

    What pyte leaves out is here: faint letters, the other screen, and how a window is resized.
    """

    def __init__(self, columns: int, rows: int, answer: Callable[[str], None]) -> None:
        self.scrolled: list[Line] = []
        self.scrolled_text: list[str] = []
        self._answer = answer
        self._under: tuple[dict[int, Line], int, int] | None = None
        super().__init__(columns, rows)

    @property
    def drawn(self) -> list[Line]:
        """Return the lines on the screen."""
        return [self.buffer[y] for y in range(self.lines)]

    def write_process_input(self, data: str) -> None:
        self._answer(data)

    def report_device_status(self, mode: int, **private: bool) -> None:
        # After the last column pyte counts one further; terminals stay in it.
        self.cursor.x = min(self.cursor.x, self.columns - 1)
        if not private:
            super().report_device_status(mode)

    def index(self) -> None:
        top, bottom = self.margins or (0, self.lines - 1)
        if self.cursor.y == bottom and top == 0 and self._under is None:
            self._scroll([self.buffer[0]])
        super().index()

    def set_mode(self, *modes: int, **kwargs: bool) -> None:
        super().set_mode(*modes, **kwargs)
        if OTHER_SCREEN in modes and self._under is None:
            self._under = dict(self.buffer), self.cursor.x, self.cursor.y
            self.buffer.clear()

    def reset_mode(self, *modes: int, **kwargs: bool) -> None:
        super().reset_mode(*modes, **kwargs)
        if OTHER_SCREEN in modes and self._under is not None:
            lines, self.cursor.x, self.cursor.y = self._under
            self._under = None
            self.buffer.clear()
            self.buffer.update(lines)

    def erase_in_display(self, how: int = 0, *args: int, **kwargs: bool) -> None:
        super().erase_in_display(how, *args, **kwargs)
        if how == 3:
            self.scrolled.clear()
            self.scrolled_text.clear()

    def resize(self, lines: int | None = None, columns: int | None = None) -> None:
        """Scroll only what no longer fits above the cursor, as terminals do; pyte cuts the top."""
        lines, columns = lines or self.lines, columns or self.columns
        gone = max(0, self.cursor.y - lines + 1)
        kept = self.drawn[gone:][:lines]
        self._scroll(self.drawn[:gone])
        self.buffer.clear()
        self.buffer.update(enumerate(kept))
        self.lines = lines
        super().resize(columns=columns)
        self.set_margins()
        self.cursor.y -= gone
        self.cursor.x = min(self.cursor.x, columns - 1)

    def _scroll(self, lines: Sequence[Line]) -> None:
        self.scrolled += lines
        self.scrolled_text += map(text, lines)

    def select_graphic_rendition(self, *attrs: int, **private: bool) -> None:
        if private:
            return
        super().select_graphic_rendition(*attrs)
        faint = _faint(attrs, before=isinstance(self.cursor.attrs, Faint))
        self.cursor.attrs = (Faint if faint else Char)._make(self.cursor.attrs)


def _faint(attrs: Sequence[int], *, before: bool) -> bool:
    """Tell whether letters are faint after these attributes."""
    faint, rest = before and bool(attrs), list(attrs)
    while rest:
        match rest.pop(0):
            case 38 | 48:  # a colour of its own: 5 and a number, or 2 and three
                del rest[: 2 if rest[:1] == [5] else 4]
            case 2:
                faint = True
            case 0 | 22:
                faint = False
    return faint


def text(line: Line) -> str:
    """Return what a line says, without the blanks at its end."""
    # Behind a wide letter lies an empty cell.
    return "".join(line[x].data for x in range(_width(line))).rstrip()


def _width(line: Line) -> int:
    return max(line, default=-1) + 1


def picture(lines: Sequence[Line], *, columns: int, title: str) -> str:
    """Draw lines as an SVG that fetches nothing and is the same for the same lines."""
    console = Console(
        record=True,
        width=columns,
        file=io.StringIO(),
        force_terminal=True,
        color_system="truecolor",
        legacy_windows=False,
    )
    for line in lines:
        runs = groupby((line[x] for x in range(_width(line))), _style)
        words = (("".join(cell.data for cell in cells), style) for style, cells in runs)
        console.print(Text.assemble(*words), no_wrap=True, crop=True)
    console.print()  # else the lowest letters touch the frame
    svg = console.export_svg(title=title, unique_id="terminal")
    svg = re.sub(r"@font-face\s*\{.*?\}\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r"\s*<!-- Generated with Rich .*? -->", "", svg)
    return RUN.sub(_placed, svg)


def _placed(run: re.Match[str]) -> str:
    """Give each part between wide gaps its own place: not every viewer keeps blanks and widths."""
    begin, x, row, end, words = run.groups()
    words = words.replace("&#160;", " ")
    made: list[str] = []
    for part in re.finditer(r"\S+(?: \S+)*", words):
        at = float(x) + CELL * cell_len(unescape(words[: part.start()]))
        width = CELL * cell_len(unescape(part[0]))
        said = part[0].replace(" ", "&#160;")
        made.append(f'{begin}x="{at:g}" {row}textLength="{width:g}"{end}{said}</text>')
    return "".join(made)


def _style(cell: Char) -> Style:
    return Style(
        color=_colour(cell.fg),
        bgcolor=_colour(cell.bg),
        bold=cell.bold,
        dim=isinstance(cell, Faint),
        italic=cell.italics,
        underline=cell.underscore,
        strike=cell.strikethrough,
        reverse=cell.reverse,
    )


def _colour(name: str) -> Color | None:
    """Translate pyte's name of a colour; it has brown for yellow, and one misspelt."""
    if name == "default":
        return None
    if re.fullmatch("[0-9a-f]{6}", name):
        return Color.parse(f"#{name}")
    name = name.replace("brown", "yellow").replace("bfight", "bright")
    return Color.parse(name.replace("bright", "bright_"))
