"""A real program in a real terminal, seen as a person sees it."""

import os
import pty
import re
import select
import signal
import subprocess
import termios
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import pyte

from tests import preloaded
from tests.emulator import BRACKETED_PASTE, Emulator, picture, text
from tests.preloaded import Ended

# A session's first terminal to be opened becomes the one that controls it. A shell opens it, and
# then becomes the program: nothing of ours runs between fork and exec.
SHELL = ("/bin/sh", "-c", 'exec "$@" 0<>"$0" 1>&0 2>&0')

# What would tell a program of another terminal than this one.
ELSEWHERE = (
    *("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"),
    *("ALACRITTY_WINDOW_ID", "KITTY_WINDOW_ID", "KONSOLE_VERSION", "TERM_PROGRAM", "TMUX"),
    *("VTE_VERSION", "WT_SESSION"),
)

KEYS = {
    "enter": "\r",
    "tab": "\t",
    "shift-tab": "\x1b[Z",
    "escape": "\x1b",
    "backspace": "\x7f",
    "delete": "\x1b[3~",
    "up": "\x1b[A",
    "down": "\x1b[B",
    "right": "\x1b[C",
    "left": "\x1b[D",
    "home": "\x1b[H",
    "end": "\x1b[F",
    "page-up": "\x1b[5~",
    "page-down": "\x1b[6~",
}


class Terminal:
    """A program in a pty, with a keyboard to press and a screen to look at.

    `env` is added to the environment of the test, so that coverage is measured in there as well;
    None takes a variable away. Leaving the block ends the program, politely first.
    """

    def __init__(
        self,
        program: Sequence[str | Path],
        *,
        env: Mapping[str, str | None] | None = None,
        cwd: str | Path | None = None,
        columns: int = 100,
        rows: int = 30,
    ) -> None:
        self._emulator = Emulator(columns, rows, self._send)
        self._stream = pyte.ByteStream(self._emulator)
        self._raw = bytearray()
        self._arrived = time.monotonic()
        self._silent = False  # nobody holds the other end any more
        self._ended: Ended | None = None
        self._closed = False
        self._changed = threading.Condition()
        self._master, slave = pty.openpty()
        self._stop_reading, self._stop = os.pipe()
        termios.tcsetwinsize(slave, (rows, columns))
        command, whole = [*map(str, program)], _environment(env or {})
        self._process: subprocess.Popen[bytes] | preloaded.Started
        if preloaded.may_start(command, whole):
            self._process = preloaded.start(command, whole, cwd, terminal=slave)
        else:
            self._process = subprocess.Popen(
                [*SHELL, os.ttyname(slave), *command],
                stdin=slave,
                stdout=slave,
                stderr=slave,
                env=whole,
                cwd=cwd,
                start_new_session=True,
            )
        os.close(slave)
        self._threads = [
            threading.Thread(target=work, daemon=True) for work in (self._read, self._wait)
        ]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    # ------------------------------------------------------------ the keyboard

    def type(self, words: str) -> None:
        """Type letters as they are."""
        self._send(words)

    def enter(self) -> None:
        """Press the key that ends a line."""
        self.key("enter")

    def key(self, name: str) -> None:
        """Press a key by its name: `tab`, `ctrl-c`, `alt-enter`."""
        if name.startswith("alt-"):
            self._send("\x1b" + _letters(name.removeprefix("alt-")))
        else:
            self._send(_letters(name))

    def paste(self, words: str) -> None:
        """Paste, in brackets if the program asked for them; lines end as by the enter key."""
        words = words.replace("\n", "\r")
        with self._changed:
            bracketed = BRACKETED_PASTE in self._emulator.mode
        self._send(f"\x1b[200~{words}\x1b[201~" if bracketed else words)

    def resize(self, columns: int, rows: int) -> None:
        """Change the window's size; the kernel tells the program."""
        with self._changed:
            self._emulator.resize(rows, columns)
            termios.tcsetwinsize(self._master, (rows, columns))

    def _send(self, words: str) -> None:
        data = words.encode()
        while data:
            data = data[os.write(self._master, data) :]

    # -------------------------------------------------------------- the screen

    @property
    def screen(self) -> list[str]:
        """Return the lines that are seen now."""
        with self._changed:
            return [text(line) for line in self._emulator.drawn]

    @property
    def transcript(self) -> str:
        """Return all lines, those that scrolled away as well."""
        with self._changed:
            return self._everything()

    @property
    def raw(self) -> bytes:
        """Return every byte that the program wrote."""
        with self._changed:
            return bytes(self._raw)

    @property
    def cursor(self) -> tuple[int, int]:
        """Return column and row of the cursor, from 0."""
        with self._changed:
            return self._emulator.cursor.x, self._emulator.cursor.y

    def wait_for(self, what: str | re.Pattern[str], seconds: float = 20, *, times: int = 1) -> None:
        """Wait until a text, or a pattern, was shown that many times; else fail with the screen."""
        pattern = re.compile(re.escape(what)) if isinstance(what, str) else what
        self._until(
            lambda: len(pattern.findall(self._everything())) >= times,
            seconds,
            f"{pattern.pattern if what is pattern else what!r} was not shown"
            + (f" {times} times" if times > 1 else ""),
        )

    def wait_until(
        self, seen: Callable[[list[str]], bool], seconds: float = 20, *, what: str = "it"
    ) -> None:
        """Wait until the lines of the screen satisfy `seen`; else fail with the screen."""
        self._until(
            lambda: seen([text(line) for line in self._emulator.drawn]),
            seconds,
            f"{what} was not seen",
        )

    def settle(self, quiet: float = 0.2, seconds: float = 20) -> None:
        """Wait until nothing was written for a while, as for a picture."""
        end = time.monotonic() + seconds
        with self._changed:
            while not self._silent and (now := time.monotonic()) < self._arrived + quiet:
                if now > end:
                    raise AssertionError(self._drawn("the program goes on writing"))
                self._changed.wait(self._arrived + quiet - now)

    def _everything(self) -> str:
        lines = [*self._emulator.scrolled_text, *map(text, self._emulator.drawn)]
        return "\n".join(lines).rstrip("\n")

    def _until(self, holds: Callable[[], bool], seconds: float, complaint: str) -> None:
        with self._changed:
            # A program that has ended shows nothing more: that is told at once.
            self._changed.wait_for(lambda: holds() or (self._silent and self._ended), seconds)
            if not holds():
                late = f"the program ended with {self._ended.code}" if self._ended else ""
                late = late or f"{seconds:g} s have passed"
                raise AssertionError(self._drawn(f"{complaint}; {late}"))

    def _drawn(self, complaint: str) -> str:
        edge = "─" * self._emulator.columns
        lines = [text(line) for line in self._emulator.drawn]
        body = "\n".join(f"│{line:{self._emulator.columns}}│" for line in lines)
        above = len(self._emulator.scrolled)
        return f"{complaint}\n┌{edge}┐ {above} lines above\n{body}\n└{edge}┘"

    def _read(self) -> None:
        """Show what the program writes, until nobody is left who could write."""
        while True:
            ready, _, _ = select.select([self._master, self._stop_reading], [], [])
            try:
                data = os.read(self._master, 65536) if self._master in ready else b""
            except OSError:  # Linux says so when the other end is closed
                data = b""
            with self._changed:
                self._raw += data
                self._stream.feed(data)
                self._arrived = time.monotonic()
                self._silent = not data
                self._changed.notify_all()
            if not data:
                return

    # ------------------------------------------------------------- the program

    @property
    def pid(self) -> int:
        """Return the program's process id."""
        return self._process.pid

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the program alone; Ctrl-C on the keyboard reaches its children too."""
        with self._changed:
            if self._ended is None:
                with suppress(ProcessLookupError):  # it has just ended, and we hear of it soon
                    os.kill(self.pid, number)

    def exit_code(self, seconds: float = 20) -> int:
        """Wait for the end; return the exit code, or the negative number of the signal."""
        with self._changed:
            # Its last words are on the screen when this returns.
            self._changed.wait_for(lambda: self._ended and self._silent, seconds)
            if self._ended is None:
                raise AssertionError(self._drawn(f"the program still runs after {seconds:g} s"))
            return self._ended.code

    def cpu(self) -> float:
        """Return the seconds of CPU that the program took so far, or in all."""
        with self._changed:
            return self._ended.cpu if self._ended else _cpu(self.pid)

    def close(self) -> None:
        """End the program and all that it started, and give the terminal back."""
        if self._closed:
            return
        self._closed = True
        self.signal(signal.SIGTERM)
        with self._changed:
            if not self._changed.wait_for(lambda: self._ended, 5):
                os.killpg(self.pid, signal.SIGKILL)
        os.close(self._stop)
        for thread in self._threads:
            thread.join()
        os.close(self._master)
        os.close(self._stop_reading)

    def _wait(self) -> None:
        if isinstance(self._process, preloaded.Started):
            ended = self._process.wait()
            with self._changed:
                self._ended = ended
                self._changed.notify_all()
            return
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        with self._changed:  # the id is ours until it is waited for, and no signal comes between
            _, status, usage = os.wait4(self.pid, 0)
            code = os.waitstatus_to_exitcode(status)
            self._process.returncode = code
            self._ended = Ended(code, usage.ru_utime + usage.ru_stime)
            self._changed.notify_all()


def svg(terminal: Terminal, title: str, *, whole: bool = False) -> str:
    """Draw what is seen as an SVG; `whole` draws what scrolled away as well.

    Empty lines at the bottom, and above a line of status there, are left out.
    """
    with terminal._changed:
        emulator = terminal._emulator
        lines = [*(emulator.scrolled if whole else []), *emulator.drawn]
        while lines and not text(lines[-1]):
            lines.pop()
        while len(lines) > 2 and not text(lines[-2]) and not text(lines[-3]):
            del lines[-2]
        return picture(lines, columns=emulator.columns, title=title)


def _environment(extra: Mapping[str, str | None]) -> dict[str, str]:
    here = {name: value for name, value in os.environ.items() if name not in ELSEWHERE}
    named = {**here, "TERM": "xterm-256color", "COLORTERM": "truecolor", **extra}
    return {name: value for name, value in named.items() if value is not None}


def _letters(key: str) -> str:
    if key.startswith("ctrl-"):
        return chr(ord(key.removeprefix("ctrl-").upper()) ^ 64)
    return key if len(key) == 1 else KEYS[key]


def _cpu(pid: int) -> float:
    """Read a running process' CPU seconds: by its clock on Linux, by `ps` elsewhere."""
    if Path("/proc/self/stat").exists():
        return time.clock_gettime(~pid << 3 | 2)
    clock = subprocess.check_output(["ps", "-o", "time=", "-p", str(pid)], text=True)
    hours, minutes, seconds = ["0", *clock.strip().split(":")][-3:]
    return int(hours) * 3600 + int(minutes) * 60 + float(seconds)
