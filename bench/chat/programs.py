"""Programs that are run to be measured: in pipes to their end, or in a terminal to a line to type.

CPU is that of the whole process with all its threads.
"""

import os
import pty
import select
import subprocess
import sys
import sysconfig
import termios
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Self

KEEPTHREAD = Path(sysconfig.get_path("scripts")) / "keepthread"
TELLS_CPU = sys.platform == "linux"
"""Whether another process' CPU can be read while it runs."""
_SERVER = (sys.executable, "-m", "keepthread.testing.server")
# A session's first terminal to be opened becomes the one that controls it.
_SHELL = ("/bin/sh", "-c", 'exec "$@" 0<>"$0" 1>&0 2>&0')
_SIZE = (30, 100)
_ASKS_WHERE, _IS_HERE = b"\x1b[6n", b"\x1b[2;1R"
_DRAWN = b"\x1b[?2004h"
"""What a line editor writes first, when the keys are already its own."""
_TYPED = "Ω"
_LONGEST = 30.0
_REST, _LOOK, _STILL = 0.5, 0.02, 0.005


class Spent(NamedTuple):
    """Seconds of CPU and on the clock."""

    cpu: float
    wall: float

    def less(self, other: "Spent") -> "Spent":
        """Return what this took more than another."""
        return Spent(self.cpu - other.cpu, self.wall - other.wall)


def run(program: Sequence[str | Path], env: Mapping[str, str], folder: Path) -> Spent:
    """Run a program in pipes to its end, which must be a good one."""
    begun = time.perf_counter()
    process = subprocess.Popen(
        program, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=env, cwd=folder
    )
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - begun
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, [str(each) for each in program])
    return Spent(usage.ru_utime + usage.ru_stime, wall)


@contextmanager
def served(script: Path) -> Iterator[tuple[str, str]]:
    """Serve a script by a process of its own; give its addresses for OpenAI and for Anthropic."""
    command = [*_SERVER, "--script", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        try:
            openai, anthropic = (process.stdout.readline().split()[1] for _ in range(2))
            yield openai, anthropic
        finally:
            process.terminate()


class Seen(NamedTuple):
    """What a program took until a line was drawn, until a letter stood in it, until all rested."""

    drawn: Spent
    typed: Spent
    rested: Spent


class InTerminal:
    """A program in a terminal that is not looked at closely."""

    def __init__(self, program: Sequence[str | Path], env: Mapping[str, str], folder: Path) -> None:
        self._master, slave = pty.openpty()
        termios.tcsetwinsize(slave, _SIZE)
        self._begun = time.perf_counter()
        self._process = subprocess.Popen(
            [*_SHELL, os.ttyname(slave), *program],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**env, "TERM": "xterm-256color"},
            cwd=folder,
            start_new_session=True,
        )
        os.close(slave)
        self._written = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        while self._process.poll() is None:  # its last words must not keep it
            self._read(_LOOK)
        os.close(self._master)

    def look(self) -> Seen:
        """Wait for a line, type a letter, and wait until nothing is being loaded any more."""
        self._await(_DRAWN)
        drawn = self._spent()
        os.write(self._master, _TYPED.encode())
        self._await(_TYPED.encode())
        return Seen(drawn, self._spent(), self._rested())

    def _await(self, sign: bytes) -> None:
        until = time.perf_counter() + _LONGEST
        while sign not in self._written:
            if self._process.poll() is not None or time.perf_counter() > until:
                raise RuntimeError(f"no line came: {self._written.decode(errors='replace')}")
            self._read(_LOOK)

    def _rested(self) -> Spent:
        last = self._spent()
        while (now := self._spent()).wall < last.wall + _REST:
            if now.cpu > last.cpu + _STILL:
                last = now
            self._read(_LOOK)
        return last

    def _read(self, seconds: float) -> None:
        if not select.select([self._master], [], [], seconds)[0]:
            return
        try:
            new = os.read(self._master, 65536)
        except OSError:  # Linux says so when the other end is closed
            time.sleep(seconds)
            return
        self._written += new
        os.write(self._master, _IS_HERE * new.count(_ASKS_WHERE))

    def _spent(self) -> Spent:
        cpu = time.clock_gettime(~self._process.pid << 3 | 2)  # that process' clock, on Linux
        return Spent(cpu, time.perf_counter() - self._begun)
