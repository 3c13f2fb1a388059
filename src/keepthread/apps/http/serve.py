"""`keepthread serve`: bind the address, check that it is safe to, and run the workers.

With several workers, each is a process with its own memory, and this one replaces workers that die.
"""

import asyncio
import multiprocessing
import os
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from typing import Any, Final

from keepthread.apps.http.access import LOG
from keepthread.apps.http.metrics import FOLDER_VARIABLE, expose, sum_of_workers
from keepthread.apps.http.settings import is_loopback
from keepthread.apps.http.worker import BACKLOG, STARTUP_FAILED, Work, log_lines, run_process, serve
from keepthread.errors import InvalidInput, Unavailable

_TICK: Final = 0.5
_PAUSE: Final = 1.0
"""Seconds before a worker is replaced, which may die at once again."""
_PAGE: Final = 100
_CLOSING: Final = 15.0
"""Seconds that a worker may take to close its memory after its last request."""


@dataclass(frozen=True, kw_only=True)
class Bind:
    """Where the server listens."""

    host: str = "127.0.0.1"
    port: int = 8765
    workers: int = 1
    metrics: tuple[str, int] | None = None


def run(work: Work, bind: Bind, announce: Callable[[str], object]) -> int:
    """Serve until a signal; return the exit status."""
    for note in asyncio.run(check(work, bind)):
        announce(note)
    scheme = "https" if work.tls_cert else "http"
    with _listener(bind) as listener:
        host, port = listener.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        announce(f"serving on {scheme}://{shown}:{port}; Ctrl-C stops it")
        log_lines()
        if bind.workers > 1:
            return _supervise(work, bind, listener)
        asyncio.run(serve(replace(work, metrics=bind.metrics), listener))
    return 0


async def check(work: Work, bind: Bind) -> list[str]:
    """Open the store once; refuse unsafe configurations, and return warnings for the user."""
    async with work.open_memory() as memory:
        tables = memory.store.server_tables()
        await tables.secret("cursor")  # made once, before several workers would
        now = time.time()
        after, valid = None, False
        while not valid and (page := await tables.list_keys(after=after, limit=_PAGE)):
            valid = any(key.is_valid(now) for key in page)
            after = page[-1].id
    notes: list[str] = []
    if not valid and not work.settings.issuers:
        if not is_loopback(bind.host):
            raise InvalidInput(
                f"{bind.host} can be reached from other machines, and no API key exists yet: "
                "create one with `keepthread keys create NAME`, or set an identity provider "
                "(server.issuer)"
            )
        notes.append("there is no valid API key yet: `keepthread keys create NAME` creates one")
    if not is_loopback(bind.host) and not work.tls_cert:
        notes.append(
            "without TLS, keys and messages can be read in transit: use --tls-cert and --tls-key, "
            "or a reverse proxy with TLS"
        )
    return notes


@contextmanager
def _listener(bind: Bind) -> Generator[socket.socket]:
    try:
        found = socket.getaddrinfo(bind.host, bind.port, type=socket.SOCK_STREAM)
        family, *_, address = found[0]
        listener = socket.create_server(address[:2], family=family, backlog=BACKLOG)
    except OSError as error:
        raise Unavailable(
            f"cannot listen on {bind.host}:{bind.port}: {error.strerror or error}; if the port is "
            "in use, choose another with --port"
        ) from None
    with listener:
        listener.setblocking(False)
        yield listener


def _supervise(work: Work, bind: Bind, listener: socket.socket) -> int:
    """Keep as many workers running as were asked for, until a signal."""
    with tempfile.TemporaryDirectory(prefix="keepthread-metrics-") as folder:
        shown = None
        if bind.metrics:
            os.environ[FOLDER_VARIABLE] = folder
            shown = expose(*bind.metrics, sum_of_workers(folder))
        settings = work.settings
        patience = settings.stop_delay + settings.drain + _CLOSING
        workers = Workers(lambda: _start(work, listener), bind.workers, patience=patience)
        try:
            return workers.run()
        finally:
            os.environ.pop(FOLDER_VARIABLE, None)
            if shown is not None:
                shown.shutdown()


def _start(work: Work, listener: socket.socket) -> BaseProcess:
    process = multiprocessing.get_context("spawn").Process(
        target=run_process, args=(work, listener), name="keepthread-worker"
    )
    process.start()
    return process


class Workers:
    """Several processes that do the same; one that dies is replaced."""

    def __init__(self, start: Callable[[], BaseProcess], number: int, *, patience: float) -> None:
        """Take what starts one, and for how many seconds one may take to stop."""
        self._start = start
        self._number = number
        self._patience = patience
        self._running: list[BaseProcess] = []
        self._signals = 0

    def run(self) -> int:
        """Keep them running until a signal or a failure to start; return the exit status."""
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, self._note)
        status = 0
        while not self._signals and not status:
            status = self._replace()
            wait([each.sentinel for each in self._running], _TICK)
        self._stop()
        return status

    def _note(self, *_: Any) -> None:
        self._signals += 1

    def _replace(self) -> int:
        """Start those that are missing; return a status if they cannot start."""
        ended = [each for each in self._running if not each.is_alive()]
        for each in ended:
            LOG.error("worker ended", extra={"fields": {"pid": each.pid, "status": each.exitcode}})
        # Sending the signal again could hide the exit of a worker that ends at this moment.
        self._running = [each for each in self._running if each not in ended]
        if any(each.exitcode == STARTUP_FAILED for each in ended):
            return STARTUP_FAILED
        if ended:
            time.sleep(_PAUSE)
        while len(self._running) < self._number and not self._signals:
            self._running.append(self._start())
        return 0

    def _stop(self) -> None:
        """Ask all to stop, ask again at each further signal, and end those that do not."""
        asked, until = 0, time.monotonic() + self._patience
        while self._running and time.monotonic() < until:
            if asked < max(1, self._signals):
                asked = max(1, self._signals)
                for each in self._running:
                    each.terminate()
            wait([each.sentinel for each in self._running], _TICK)
            self._running = [each for each in self._running if each.is_alive()]
        for each in self._running:
            each.kill()
