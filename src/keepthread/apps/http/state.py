"""The state of one worker: the memory it serves, its tables, and what it is doing now."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Generator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from keepthread.apps.http.feeds import TenantFeed
from keepthread.apps.http.settings import HttpSettings
from keepthread.memory.memory import Memory
from keepthread.memory.session import Session
from keepthread.protocols.server import LEASE, RequestId
from keepthread.text_caches import LeastRecent, register_object

if TYPE_CHECKING:
    from keepthread.protocols.server import ServerTables

RENEWAL: Final = LEASE / 3
"""Seconds between two notes that a request is still worked on."""
_SESSIONS: Final = 4096


class UsedSessions:
    """Sessions that were used last, by tenant, owner and id: a handle of each, without a read.

    A request that finds its session gone looks it up again. A handle knows the session's title, so
    a `forget` in this process discards all of them.
    """

    def __init__(self) -> None:
        """Begin without sessions."""
        self._known: LeastRecent[tuple[str, str, str], Session] = LeastRecent(_SESSIONS)
        register_object(self._known)

    def get(self, tenant: str, owner: str, id: str) -> Session | None:
        """Return the session of an owner, if it was used lately."""
        return self._known.get((tenant, owner, id))

    def add(self, tenant: str, session: Session) -> None:
        """Keep a session; the one that was not used for the longest time makes room."""
        self._known.put((tenant, session.owner, session.id), session)

    def discard(self, tenant: str, session: Session) -> None:
        """Drop a session that may be gone."""
        self._known.discard((tenant, session.owner, session.id))


class WorkerState:
    """The state that layers and handlers of one worker share; `state_of(request)` returns it."""

    def __init__(
        self,
        memory: Memory,
        tables: "ServerTables",
        settings: HttpSettings,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Take an open memory, the server's tables and the settings."""
        self.tables = tables
        self.settings = settings
        self.clock = clock
        self.stopping = asyncio.Event()
        """Set when the server begins to stop: event streams end, and `/readyz` says so."""
        self.sessions = UsedSessions()
        self.issuer_key_ages: Callable[[], Mapping[str, float]] = dict
        """The age of the keys of each identity provider, in seconds."""
        self._memory = memory
        self._feeds: dict[str, TenantFeed] = {}
        self._cursor_key = b""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closing: list[Callable[[], Coroutine[Any, Any, None]]] = []

    async def prepare(self) -> None:
        """Load what every request needs, once; raise if the store cannot be read."""
        if not self._cursor_key:
            self._cursor_key = await self.tables.secret("cursor")

    @property
    def cursor_key(self) -> bytes:
        """Return what signs cursors; `prepare` has loaded it before any handler runs."""
        assert self._cursor_key
        return self._cursor_key

    def memory_of(self, tenant: str) -> Memory:
        """Return a tenant's memory."""
        return self._memory.tenant(tenant)

    def feed_of(self, tenant: str) -> TenantFeed:
        """Return what reads the changes of a tenant for all event streams."""
        if tenant not in self._feeds:
            self._feeds[tenant] = TenantFeed(partial(self.memory_of, tenant), tenant)
        return self._feeds[tenant]

    @contextmanager
    def renewing(self, request: RequestId, token: bytes) -> Generator[None]:
        """Keep a request for this worker while the block runs, however long it takes."""
        loop = asyncio.get_running_loop()

        def renew() -> None:
            nonlocal timer
            self.spawn(self.tables.renew_request(request, token, self.clock()))
            timer = loop.call_later(RENEWAL, renew)

        timer = loop.call_later(RENEWAL, renew)
        try:
            yield
        finally:
            timer.cancel()

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start work that outlives its request; `finish` waits for it."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # nobody else may ask, and asyncio would log its text

    def at_end(self, close: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Have something closed when the worker ends."""
        self._closing.append(close)

    async def finish(self) -> None:
        """Wait for work that outlived its request, for as long as a shutdown may take."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self.settings.drain)
        while self._closing:
            await self._closing.pop()()
