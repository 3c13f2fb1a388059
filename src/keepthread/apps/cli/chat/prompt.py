"""The line that a person types: its keys, its history, and the line below it."""

import os
import re
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from shutil import get_terminal_size
from typing import Final

from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app, get_app_or_none
from prompt_toolkit.application.current import get_app_session
from prompt_toolkit.completion import Completer
from prompt_toolkit.enums import DEFAULT_BUFFER
from prompt_toolkit.filters import has_focus
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.history import History
from prompt_toolkit.input.typeahead import clear_typeahead
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.renderer import print_formatted_text
from prompt_toolkit.styles import Style
from prompt_toolkit.utils import get_cwidth

from keepthread.apps.cli.chat.plain import is_dumb

LEAVES: Final = "Ctrl-D quits"
MARK: Final = "> "
_STYLE: Final = Style.from_dict(
    {
        "prompt": "bold ansicyan",
        "bottom-toolbar": "noreverse dim",
        "dim": "dim",
        "bad": "ansired",
        "good": "bold",
        # In the terminal's own colors, dark or light.
        "completion-menu.completion": "noinherit",
        "completion-menu.completion.current": "noinherit bold ansicyan",
        "completion-menu.meta.completion": "noinherit dim",
        "completion-menu.meta.completion.current": "noinherit",
        "scrollbar.background": "noinherit",
        "scrollbar.button": "noinherit",
    }
)


class Interrupted(Exception):
    """Ctrl-C was pressed where a yes was asked for."""


class Prompt:
    """Asks for what to say next."""

    def __init__(self, completer: Completer, history: History, status: Callable[[], str]) -> None:
        """Take what Tab offers, what was said before, and what to show below."""
        self._status = status
        self._hint = ""
        self._session = PromptSession[str](
            [("class:prompt", MARK)],
            multiline=True,
            prompt_continuation=" " * len(MARK),
            completer=completer,
            complete_while_typing=False,
            reserve_space_for_menu=6,
            history=history,
            search_ignore_case=True,
            key_bindings=self._keys(),
            bottom_toolbar=self._below,
            style=_STYLE,
            enable_suspend=True,
        )
        self._session.default_buffer.on_text_changed += self._forget_hint

    @property
    def asking(self) -> bool:
        """Return whether a prompt is on the screen, this one or one that asks for a yes."""
        app = get_app_or_none()
        return app is not None and not app.is_done

    async def ask(self, offer: str = "") -> str:
        """Return what was typed; `EOFError` at its end."""
        self._hint = ""
        try:
            return await self._session.prompt_async(
                default=offer, handle_sigint=False, set_exception_handler=False
            )
        finally:
            _take_pastes_whole(True)  # also what is pasted before the next line is asked for

    async def agrees(self, question: str) -> bool:
        """Ask for a yes; everything else is a no."""
        try:
            answer = await self._answer(f"{question} [y/N] ")
        except (EOFError, Interrupted):
            return False
        return answer.strip().lower() in ("y", "yes")

    async def choose(self, question: str) -> str:
        """Return what is typed after a question; what was typed before it does not count.

        Raises `EOFError` at its end, and `Interrupted` for Ctrl-C.
        """
        clear_typeahead(self._session.input)
        drop_input()
        return await self._answer(question)

    async def _answer(self, question: str) -> str:
        session = PromptSession[str](style=_STYLE, interrupt_exception=Interrupted)
        return await session.prompt_async(
            question, handle_sigint=False, set_exception_handler=False
        )

    def above(self, text: str) -> None:
        """Show a text above the line that is being typed."""
        app = get_app()
        # By hand: with the function of prompt_toolkit, keys appear on the screen in the meantime.
        app.renderer.erase()
        show(text, "class:dim")
        app.renderer.request_absolute_cursor_position()
        app.invalidate()

    def end(self) -> None:
        """Take the line away, as Ctrl-D does."""
        app = self._session.app
        if app.is_running and not app.is_done:
            app.exit(exception=EOFError())

    def interrupt(self) -> None:
        """Do as Ctrl-C does."""
        if self._session.app.is_running:
            self._session.app.key_processor.send_sigint()

    def refresh(self) -> None:
        """Redraw the line below."""
        if self._session.app.is_running:
            self._session.app.invalidate()

    # --- inside ---

    def _forget_hint(self, _: object) -> None:
        self._hint = ""

    def _below(self) -> StyleAndTextTuples:
        return [("", self._hint or self._status())]

    def _keys(self) -> KeyBindings:
        keys = KeyBindings()
        typing = has_focus(DEFAULT_BUFFER)

        @keys.add("enter", filter=typing)
        def _(event: KeyPressEvent) -> None:
            event.current_buffer.validate_and_handle()

        @keys.add("escape", "enter", filter=typing)
        @keys.add("c-j", filter=typing)
        def _(event: KeyPressEvent) -> None:
            event.current_buffer.newline(copy_margin=False)

        @keys.add("c-c", filter=typing)
        @keys.add("<sigint>")
        def _(event: KeyPressEvent) -> None:
            line = event.current_buffer
            self._hint = "" if line.text else LEAVES
            line.history_forward(count=sys.maxsize)
            line.text = ""

        return keys


def show(text: str, style: str = "") -> None:
    """Write a sanitized text, in the terminal's colors if it has any."""
    if is_dumb(os.environ):
        sys.stdout.write(f"{text}\n")
    else:
        text = "\n".join(map(_wrapped, text.split("\n")))
        print_formatted_text(get_app_session().output, [(style, f"{text}\n")], _STYLE)
    sys.stdout.flush()


def _wrapped(line: str) -> str:
    """Return a line in as many as the terminal needs, no word torn; some signs take two cells."""
    width = get_terminal_size().columns
    if get_cwidth(line) <= width:
        return line
    rows: list[str] = []
    row, used = "", 0
    for part in re.findall(r"\s+|\S+", line):
        cells = get_cwidth(part)
        if used + cells <= width or not row.strip():
            row, used = row + part, used + cells
        else:
            rows.append(row.rstrip())
            row, used = ("", 0) if part.isspace() else (part, cells)
    return "\n".join([*rows, row.rstrip()])


def shortened(text: str, cells: int) -> str:
    """Return a text that takes up to `cells` cells; one that is cut ends with an ellipsis."""
    if get_cwidth(text) <= cells:
        return text
    kept, used = "", 1
    for letter in text:
        used += get_cwidth(letter)
        if used > cells:
            break
        kept += letter
    return f"{kept}…"


def drop_input() -> None:
    """Let go of what was typed and not read yet."""
    if sys.platform != "win32":
        import termios  # noqa: PLC0415 - not on every platform

        with suppress(termios.error):
            termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)


@contextmanager
def unheard() -> Generator[None]:
    """Let keys wait, unseen, while nothing is asked; the next line takes them. Ctrl-C is heard."""
    if sys.platform == "win32" or is_dumb(os.environ):
        yield
        return
    import termios  # noqa: PLC0415 - not on every platform

    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    during = termios.tcgetattr(fd)
    # Return stays Return, and is not taken for the line feed that begins a new line.
    during[0] &= ~(termios.ICRNL | termios.INLCR)
    during[3] &= ~(termios.ECHO | termios.ICANON)
    termios.tcsetattr(fd, termios.TCSADRAIN, during)
    try:
        yield
    finally:
        _take_pastes_whole(False)
        with suppress(termios.error):  # the terminal may be gone
            termios.tcsetattr(fd, termios.TCSADRAIN, before)


@contextmanager
def lent_terminal() -> Generator[None]:
    """Lend the terminal to another program, in the mode that programs expect; then take it back."""
    if sys.platform == "win32" or is_dumb(os.environ):
        yield
        return
    import termios  # noqa: PLC0415 - not on every platform

    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    lent = termios.tcgetattr(fd)
    lent[0] |= termios.ICRNL
    lent[3] |= termios.ECHO | termios.ICANON | termios.ISIG
    _take_pastes_whole(False)
    termios.tcsetattr(fd, termios.TCSADRAIN, lent)
    try:
        yield
    finally:
        with suppress(termios.error):  # the terminal may be gone
            termios.tcsetattr(fd, termios.TCSADRAIN, before)


def _take_pastes_whole(whole: bool) -> None:
    """Let the terminal put what is pasted in brackets, or not."""
    if sys.platform == "win32":
        return
    with suppress(OSError):
        sys.stdout.write("\x1b[?2004h" if whole else "\x1b[?2004l")
        sys.stdout.flush()
