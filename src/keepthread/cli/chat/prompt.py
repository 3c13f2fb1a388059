"""The line that a person types: its keys, its history, and what stands below it."""

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import Final

from prompt_toolkit import PromptSession
from prompt_toolkit.application import run_in_terminal
from prompt_toolkit.completion import Completer
from prompt_toolkit.enums import DEFAULT_BUFFER
from prompt_toolkit.filters import has_focus
from prompt_toolkit.formatted_text import FormattedText, StyleAndTextTuples
from prompt_toolkit.history import History
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.shortcuts import print_formatted_text
from prompt_toolkit.styles import Style
from prompt_toolkit.utils import is_dumb_terminal

LEAVES: Final = "Ctrl-D leaves"
MARK: Final = "> "
_STYLE: Final = Style.from_dict(
    {
        "prompt": "bold ansicyan",
        "bottom-toolbar": "noreverse dim",
        "dim": "dim",
        "bad": "ansired",
        "good": "bold",
    }
)


class Interrupted(Exception):
    """Ctrl-C was pressed."""


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
            interrupt_exception=Interrupted,
        )

    @property
    def asking(self) -> bool:
        """Tell whether the line is on the screen."""
        return self._session.app.is_running

    async def ask(self, offer: str = "") -> str:
        """Return what was typed; `EOFError` at its end, `Interrupted` on a dumb terminal."""
        self._hint = ""
        try:
            return await self._session.prompt_async(
                default=offer, handle_sigint=False, set_exception_handler=False
            )
        finally:
            _take_pastes_whole(True)  # also what is pasted before the next line is asked for

    def end(self) -> None:
        """Take the line away, as Ctrl-D does."""
        app = self._session.app
        if app.is_running and not app.is_done:
            app.exit(exception=EOFError())

    def interrupt(self) -> None:
        """Do as Ctrl-C does."""
        if self.asking:
            self._session.app.key_processor.send_sigint()

    def refresh(self) -> None:
        """Draw anew what stands below."""
        if self.asking:
            self._session.app.invalidate()

    # --- inside ---

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
            self._hint = "" if event.current_buffer.text else LEAVES
            event.current_buffer.reset()

        return keys


async def agreed(question: str) -> bool:
    """Ask for a yes; everything else is a no."""
    session = PromptSession[str](style=_STYLE, interrupt_exception=Interrupted)
    try:
        answer = await session.prompt_async(
            f"{question} [y/N] ", handle_sigint=False, set_exception_handler=False
        )
    except (EOFError, Interrupted):
        return False
    return answer.strip().lower() in ("y", "yes")


def show(text: str, style: str = "") -> None:
    """Write a text that is harmless, in the colours of the terminal."""
    print_formatted_text(FormattedText([(style, text)]), style=_STYLE)
    sys.stdout.flush()


def above(text: str, style: str = "") -> None:
    """Write a text above the line that is being typed."""
    run_in_terminal(lambda: show(text, style))


@contextmanager
def unheard() -> Generator[None]:
    """Let keys wait, unseen, while nothing is asked; the next line takes them. Ctrl-C is heard."""
    if sys.platform == "win32":
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


def _take_pastes_whole(whole: bool) -> None:
    """Let the terminal put what is pasted in brackets, or not."""
    if not is_dumb_terminal():
        with suppress(OSError):
            sys.stdout.write("\x1b[?2004h" if whole else "\x1b[?2004l")
            sys.stdout.flush()
