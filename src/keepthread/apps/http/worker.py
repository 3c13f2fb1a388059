"""One worker: opens the memory, serves until a signal, and shuts down without losing data.

To stop means: `/readyz` says so and event streams end, running requests finish, then the memory is
closed, which waits for work in the background.
"""

import asyncio
import contextlib
import logging
import multiprocessing
import signal
import socket
import sys
from collections.abc import Callable, Generator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final, TypeAlias

import uvicorn

from keepthread.apps.http.access import LOG, JsonLines
from keepthread.apps.http.app import create_app
from keepthread.apps.http.connections import BoundedProtocol
from keepthread.apps.http.metrics import Metrics, expose, watch_feed, watch_keys
from keepthread.apps.http.settings import KIB, HttpSettings
from keepthread.apps.http.state import WorkerState
from keepthread.errors import KeepthreadError
from keepthread.memory.memory import Memory
from keepthread.memory.tracing import server_tracer
from keepthread.stores.changes import HoldableFeed
from keepthread.text_caches import clear_text_caches

STARTUP_FAILED: Final = 3
STORE_AWAY: Final = 4
"""The exit status of a worker that can be restarted: its store was busy or unavailable."""
BACKLOG: Final = 1024
"""Connections that the system queues; a client waits until those before it are taken."""
_TAKEN_AT_ONCE: Final = 64
"""Connections that are taken before those that have sent something are read.

More would make room for each other before the first of them is heard.
"""
_KEEP_ALIVE: Final = 15
_MAX_HEAD: Final = 32 * KIB
_DAY: Final = 24 * 3600.0
_BETWEEN: Final = 600.0
_PAUSE: Final = 0.01

OpenMemory: TypeAlias = Callable[[], AbstractAsyncContextManager[Memory]]
"""Opens the memory of a worker; it can be sent to another process."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """The task of a worker; it can be sent to another process."""

    open_memory: OpenMemory
    settings: HttpSettings
    tls_cert: str | None = None
    tls_key: str | None = None
    metrics: tuple[str, int] | None = None
    """Where this process shows its own metrics; None if it does not, as one of several."""


class QuietServer(uvicorn.Server):
    """uvicorn, whose signals are handled by the worker, so that it outlives the server."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and let the system queue more connections than are taken at once."""
        await super().startup(sockets)
        for each in sockets or ():
            each.listen(BACKLOG)

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """Leave the signals alone."""
        yield


def run_process(work: Work, listener: socket.socket) -> None:
    """Run a worker as a process of its own, until it gets a signal or its parent is gone."""
    log_lines()
    try:
        asyncio.run(serve(work, listener))
    except (KeepthreadError, OSError) as error:
        LOG.error("failed to start", extra={"fields": {"error": type(error).__name__}})
        is_away = isinstance(error, KeepthreadError) and error.retryable
        sys.exit(STORE_AWAY if is_away else STARTUP_FAILED)


async def serve(
    work: Work, listener: socket.socket, *, started: Callable[[], object] | None = None
) -> None:
    """Serve on a listening socket until a signal; then finish what runs, and close the memory."""
    async with work.open_memory() as memory:
        metrics = Metrics()
        tables, tracer = memory.store.server_tables(), server_tracer()
        app = create_app(memory, tables, work.settings, count=metrics.count, tracer=tracer)
        state: WorkerState = app.state.keepthread
        await state.prepare()
        shown = expose(*work.metrics, metrics.registry) if work.metrics else None
        server = QuietServer(uvicorn_config(work, app))
        with _signals(state, server):
            if started is not None:
                started()
            watching = watch_keys(state, metrics)
            tasks = [asyncio.create_task(_purge(state)), asyncio.create_task(watching)]
            if isinstance(memory.store, HoldableFeed):
                tasks.append(asyncio.create_task(watch_feed(memory.store, metrics)))
            await server.serve([listener])
            for task in tasks:
                task.cancel()
        await state.finish()
        if shown is not None:
            shown.shutdown()


def uvicorn_config(work: Work, app: Any) -> uvicorn.Config:
    """Return how uvicorn runs: HTTP/1.1 only, bounded, without logs or headers of its own."""
    return uvicorn.Config(
        app,
        http=BoundedProtocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=_TAKEN_AT_ONCE,
        timeout_keep_alive=_KEEP_ALIVE,
        timeout_graceful_shutdown=int(work.settings.drain),
        h11_max_incomplete_event_size=_MAX_HEAD,
        ssl_certfile=work.tls_cert,
        ssl_keyfile=work.tls_key,
    )


@contextlib.contextmanager
def _signals(state: WorkerState, server: uvicorn.Server) -> Generator[None]:
    """Stop at SIGTERM, at Ctrl-C, and when the process that started this one is gone."""
    loop = asyncio.get_running_loop()

    def leave() -> None:
        server.should_exit = True

    def stop() -> None:
        if state.stopping.is_set():
            server.force_exit = server.should_exit = True  # the second signal stops immediately
            return
        state.stopping.set()
        LOG.info("stopping")
        loop.call_later(state.settings.stop_delay, leave)

    def handle(_: int, __: FrameType | None) -> None:
        loop.call_soon_threadsafe(stop)

    before = {each: signal.signal(each, handle) for each in (signal.SIGINT, signal.SIGTERM)}
    parent = multiprocessing.parent_process()
    if parent is not None:
        loop.add_reader(parent.sentinel, _once(loop, parent.sentinel, stop))
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _once(loop: asyncio.AbstractEventLoop, sentinel: int, stop: Callable[[], None]) -> Any:
    def gone() -> None:
        loop.remove_reader(sentinel)
        stop()

    return gone


async def _purge(state: WorkerState) -> None:
    """Delete expired data, and cached text that other workers may have erased."""
    while True:
        with contextlib.suppress(KeepthreadError):
            await purge(state)
        await asyncio.sleep(_BETWEEN)
        clear_text_caches()


async def purge(state: WorkerState) -> None:
    """Delete responses after a day, and old entries of the audit log, some at a time."""
    now = state.clock()
    await state.tables.purge_requests(now - _DAY)
    before = now - state.settings.audit_days * _DAY
    more = True
    while more:
        more = await state.tables.prune_audit(before) > 0
        await asyncio.sleep(_PAUSE)  # let other writers proceed


def log_lines() -> None:
    """Write logs to stderr as JSON lines, of every logger."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines())
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    for name in ("keepthread", "uvicorn.error"):
        logging.getLogger(name).setLevel(logging.INFO)
