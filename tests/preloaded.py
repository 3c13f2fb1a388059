"""The `keepthread` command, started as a fork of a process that has loaded its modules.

A chat loads for about a second of CPU, and the tests start hundreds of them. Here each is a process
of its own as well, with its own terminal or pipes, environment and folder; it is only loaded
already. `KEEPTHREAD_TEST_COLD=1` starts every program from nothing.
"""

import atexit
import contextlib
import gc
import importlib
import io
import json
import os
import pkgutil
import selectors
import signal
import socket
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple, NoReturn

from keepthread.errors import Unavailable
from keepthread.models.tokens import Estimator, Tiktoken

KEEPTHREAD = Path(sysconfig.get_path("scripts")) / "keepthread"
ROOT = Path(__file__).parents[1]
PACKAGES = tuple(
    f"keepthread.{name}" for name in ("apps.cli", "memory", "models", "orchestrator", "stores")
)
MODULES = (
    *("openai.resources.chat", "openai.types.chat", "anthropic.resources.messages"),
    *("prompt_toolkit.shortcuts", "prompt_toolkit.application", "prompt_toolkit.key_binding"),
    *("prompt_toolkit.patch_stdout", "prompt_toolkit.input.vt100", "prompt_toolkit.output.vt100"),
    *("rich.console", "rich.markdown", "rich.live", "rich.table", "tiktoken", "sqlite3"),
    *("anyio._backends._asyncio", "platformdirs.unix", "mcp", "mcp.client.streamable_http"),
)
LARGEST = 1 << 17
LONGEST = 250.0
"""Seconds that a command may take."""


class Ended(NamedTuple):
    """How a program ended, a signal as a negative number, and the seconds of CPU it took."""

    code: int
    cpu: float


def may_start(program: Sequence[str], env: Mapping[str, str]) -> bool:
    """Return whether a program is our command, and its environment concerns no interpreter."""
    reads = ("PYTHON", "LC_", "LANG", "OPENAI_LOG", "TIKTOKEN")
    special = any(
        os.environ.get(name) != env.get(name)
        for name in {*env, *os.environ}
        if name.startswith(reads)
    )
    cold = os.environ.get("KEEPTHREAD_TEST_COLD")
    return program[0] == str(KEEPTHREAD) and not special and not cold


class Started:
    """A program that was started: its process id, and its end."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.pid = int(connection.recv(100))

    def wait(self, timeout: float | None = None) -> Ended:
        """Wait for the end."""
        self._connection.settimeout(timeout)
        code, cpu = self._connection.recv(100).split()
        self._connection.close()
        return Ended(int(code), float(cpu))


def start(
    program: Sequence[str],
    env: Mapping[str, str],
    cwd: str | Path | None,
    *,
    terminal: int | None = None,
    pipes: Sequence[int] = (),
) -> Started:
    """Start the command in a terminal, or with three open files."""
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    wish = {
        "program": list(program),
        "env": dict(env),
        "cwd": str(cwd or Path.cwd()),
        "terminal": os.ttyname(terminal) if terminal is not None else "",
    }
    files = pipes if terminal is None else (terminal,)  # while it is open, its reader waits
    with theirs:
        control, lock = _loaded()
        with lock:
            socket.send_fds(control, [json.dumps(wish).encode()], [theirs.fileno(), *files])
    return Started(mine)


def run(
    program: Sequence[str], env: Mapping[str, str], cwd: Path, said: bytes, timeout: float
) -> subprocess.CompletedProcess[bytes]:
    """Run the command with pipes for its input and its output, as `subprocess.run` does."""
    if not may_start(program, env):
        return subprocess.run(
            program, env=env, cwd=cwd, input=said, capture_output=True, timeout=timeout, check=False
        )
    (input_, give), (out, output), (error, errors) = os.pipe(), os.pipe(), os.pipe()
    started = start(program, env, cwd, pipes=(input_, output, errors))
    for end in (input_, output, errors):
        os.close(end)
    found = _talk(give, said, out, error, time.monotonic() + timeout)
    return subprocess.CompletedProcess(program, started.wait(timeout).code, *found)


def command(
    *arguments: str | Path, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `keepthread` with these arguments and no input, and return what it wrote as text."""
    program = [str(KEEPTHREAD), *map(str, arguments)]
    done = run(program, {**os.environ, **(env or {})}, cwd or Path.cwd(), b"", LONGEST)
    texts = done.stdout.decode(), done.stderr.decode()
    return subprocess.CompletedProcess(program, done.returncode, *texts)


def _talk(give: int, said: bytes, out: int, error: int, end: float) -> tuple[bytes, bytes]:
    """Give a program its input and take what it writes, until it writes no more."""
    found = {out: b"", error: b""}
    with selectors.DefaultSelector() as selector:
        for fd in found:
            selector.register(fd, selectors.EVENT_READ)
        selector.register(give, selectors.EVENT_WRITE)
        os.set_blocking(give, False)
        while selector.get_map():
            assert time.monotonic() < end, "the program still runs"
            for key, _ in selector.select(1):
                fd = key.fd
                if fd != give:
                    data = os.read(fd, LARGEST)
                    found[fd] += data
                    done = not data
                else:
                    try:
                        said = said[os.write(give, said) :] if said else b""
                    except BrokenPipeError:
                        said = b""
                    done = not said
                if done:
                    selector.unregister(fd)
                    os.close(fd)
    return found[out], found[error]


@cache
def _loaded() -> tuple[socket.socket, Lock]:
    """Start the process that loads the modules, once for each process of the tests."""
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        command = [sys.executable, "-m", "tests.preloaded", str(theirs.fileno())]
        process = subprocess.Popen(
            command, cwd=ROOT, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL
        )

    def end() -> None:
        mine.close()
        process.wait()

    atexit.register(end)
    return mine, Lock()


# --- in the process that has loaded the modules ---


def _load() -> None:
    for name in PACKAGES:
        package = importlib.import_module(name)
        for module in pkgutil.walk_packages(package.__path__, f"{name}."):
            with contextlib.suppress(ImportError):  # of an extra that is not installed
                importlib.import_module(module.name)
    for name in MODULES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    Estimator()
    with contextlib.suppress(Unavailable):
        Tiktoken()  # takes most of a second of CPU; tiktoken keeps the vocabulary
    gc.collect()
    gc.freeze()


def _serve(control: socket.socket) -> None:
    """Fork for each wish; return in the forked process, and never in this one."""
    children: dict[int, socket.socket] = {}
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    with selectors.DefaultSelector() as selector:
        selector.register(control, selectors.EVENT_READ)
        selector.register(woken, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fd == woken:
                    os.read(woken, LARGEST)
                    _report(children)
                    continue
                data, fds, _, _ = socket.recv_fds(control, LARGEST, 8)
                if not data:
                    os._exit(0)
                pid = os.fork()
                if not pid:
                    signal.set_wakeup_fd(-1)
                    for fd in (control.fileno(), woken, wake, fds[0]):
                        os.close(fd)
                    for connection in children.values():
                        connection.close()
                    _become(json.loads(data), fds[1:])
                    return
                children[pid] = socket.socket(fileno=fds[0])
                children[pid].send(str(pid).encode())
                for fd in fds[1:]:
                    os.close(fd)


def _report(children: dict[int, socket.socket]) -> None:
    """Report the processes that have ended."""
    while children:
        pid, status, usage = os.wait4(-1, os.WNOHANG)
        if not pid:
            return
        with children.pop(pid) as connection, contextlib.suppress(OSError):
            code = os.waitstatus_to_exitcode(status)
            connection.send(f"{code} {usage.ru_utime + usage.ru_stime}".encode())


def _become(wish: Mapping[str, Any], pipes: Sequence[int]) -> None:
    """Take the place, the environment and the files of the program that was asked for."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if wish["terminal"]:
        os.setsid()
        controlling = os.open(wish["terminal"], os.O_RDWR)  # the first to be opened controls us
        pipes = (controlling, controlling, controlling, *pipes)
    for number, fd in enumerate(pipes[:3]):
        os.dup2(fd, number)
    for fd in set(pipes):
        os.close(fd)
    os.chdir(wish["cwd"])
    os.environ.clear()
    os.environ.update(wish["env"])
    time.tzset()
    sys.argv = wish["program"]
    sys.stdin = sys.__stdin__ = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = sys.__stdout__ = _writer(1, "strict")
    sys.stderr = sys.__stderr__ = _writer(2, "backslashreplace")


def _writer(fd: int, errors: str) -> io.TextIOWrapper:
    lines = os.isatty(fd) or fd == 2
    return open(
        fd, "w", encoding="utf-8", errors=errors, buffering=1 if lines else -1, closefd=False
    )


def _end(code: int) -> NoReturn:
    """End as an interpreter does, but take no module apart.

    For that a fork copies whatever it shares with the process it comes from: most of the CPU that a
    short command takes.
    """
    threading._shutdown()  # pyright: ignore[reportAttributeAccessIssue]
    atexit._run_exitfuncs()
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)  # which says what could not be written


if __name__ == "__main__":
    _load()
    _serve(socket.socket(fileno=int(sys.argv[1])))
    from keepthread.apps.cli import main

    _end(main())
