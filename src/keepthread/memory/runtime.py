"""Background work after turns, the negative cache of facts, and maintenance of sessions."""

import asyncio
import logging
import os
import threading
import time
from collections.abc import Awaitable, Callable, Hashable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from keepthread.context.blocks import is_answer
from keepthread.errors import KeepthreadError, SessionGone, StoreClosed
from keepthread.event_loops import LOOK
from keepthread.memory.facts.profile import FactCache
from keepthread.memory.summaries import Compactor
from keepthread.memory.tool_cache import drop_ended
from keepthread.memory.tracing import Spans
from keepthread.protocols import Store
from keepthread.stores.leases import SECONDS, Leases, Locks
from keepthread.text_caches import LeastRecent
from keepthread.types import Message, SessionKey

if TYPE_CHECKING:
    from keepthread.memory.facts.extraction import Extractor  # loaded when there is one

GRACE: Final = 5.0
"""Seconds that closing waits for running work."""

T = TypeVar("T")

Work: TypeAlias = Callable[[], Awaitable[object]]

_log: Final = logging.getLogger("keepthread")


class _Running:
    """Work of one name, in the event loop that first asked for it."""

    def __init__(self, work: Work) -> None:
        self.loop = asyncio.get_running_loop()
        self.work = work
        self.task: asyncio.Task[None] | None = None
        self.ended: Future[None] = Future()
        self.ended.set_running_or_notify_cancel()  # no waiter can cancel it

    @property
    def is_alive(self) -> bool:
        """Return whether its event loop still runs."""
        return self.loop.is_running()

    def cancel(self) -> None:
        """Break it off, in its own loop."""
        if self.task:
            with suppress(RuntimeError):  # the loop is closed
                self.loop.call_soon_threadsafe(self.task.cancel)


class Background:
    """Runs one piece of work per name at a time; the latest one asked for since runs next.

    A name is a session, or a kind of work for it. Event loops may share it: work runs in the loop
    that asked first. If that loop ends, the next loop that asks or waits for the work takes over.
    """

    def __init__(self) -> None:
        """Start without work."""
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._running: dict[Hashable, _Running] = {}
        self._next: dict[Hashable, Work] = {}
        self._left: dict[Hashable, Work] = {}
        """Work whose loop ended before it was done."""
        self._closed = False

    def soon(self, name: Hashable, work: Work) -> None:
        """Run work in the background, now or after the work that runs under its name."""
        if self._is_forked:
            return
        with self._lock:
            if self._closed:
                return
            running = self._running.get(name)
            if running and running.is_alive:
                self._next[name] = work
            else:
                self._start(name, work)

    async def finish(self, name: Hashable, work: Callable[[], Awaitable[T]]) -> T:
        """Run work to its end, even if the caller is canceled, and return its result.

        It begins after work of the same name. If its event loop ends first, it begins again in the
        next loop that waits for background work.
        """
        if self._is_forked:  # there is nothing to wait for
            return await work()
        result: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        while True:
            await self.done(name)
            with self._lock:
                if self._closed:
                    raise StoreClosed("the memory is closed")
                if name not in self._running:
                    self._start(name, lambda: _deliver(work, result))
                    break
        return await result

    @property
    def _is_forked(self) -> bool:
        """Return whether this is a copy in a forked process, where no thread does the work."""
        return os.getpid() != self._pid

    def _start(self, name: Hashable, work: Work) -> None:
        self._left.pop(name, None)
        running = self._running[name] = _Running(work)
        running.task = running.loop.create_task(self._run(name, running))

    async def _run(self, name: Hashable, running: _Running) -> None:
        done = True
        try:
            while True:
                await running.work()
                if not self._take_next(name, running):
                    return
        except (SessionGone, StoreClosed):
            return
        except asyncio.CancelledError:
            done = False
            raise
        except Exception as error:  # noqa: BLE001 - nobody waits for it, and the next turn tries again
            _log.warning("background work failed: %s", type(error).__name__)
        finally:
            self._end(name, running, done=done)

    def _take_next(self, name: Hashable, running: _Running) -> bool:
        """Return whether there is more to do under a name; if not, mark it as ended."""
        with self._lock:
            work = self._next.pop(name, None)
            if work is None:
                self._forget(name, running)
                return False
            running.work = work
            return True

    def _end(self, name: Hashable, running: _Running, *, done: bool) -> None:
        with self._lock:
            if self._running.get(name) is running:
                following = self._next.pop(name, None)
                if not done and not self._closed:
                    self._left[name] = following or running.work
            self._forget(name, running)
        running.ended.set_result(None)

    def _forget(self, name: Hashable, running: _Running) -> None:
        if self._running.get(name) is running:
            del self._running[name]

    # --- waiting ---

    def is_free(self, name: Hashable) -> bool:
        """Return whether no work runs under a name."""
        with self._lock:
            return name not in self._running

    async def done(self, name: Hashable) -> None:
        """Wait until no work runs under a name."""
        while running := self._taken_over([name]):
            await _ended(running)

    async def settle(self) -> None:
        """Wait until no work runs."""
        while running := self._taken_over():
            await _ended(running)

    async def close(self, grace: float = GRACE) -> None:
        """Wait a while for running work, then cancel it; a later turn resumes it."""
        if self._is_forked:
            return
        running = self._taken_over()
        with self._lock:
            self._closed = True
        deadline = time.monotonic() + grace
        while running and time.monotonic() < deadline:
            await _ended(running, deadline - time.monotonic())
            running = self._alive()
        for each in running:
            each.cancel()
        deadline = time.monotonic() + grace
        while running and time.monotonic() < deadline:
            await _ended(running, deadline - time.monotonic())
            running = self._alive()
        if running:
            _log.warning("%d background tasks did not end when they were cancelled", len(running))

    def _taken_over(self, names: Sequence[Hashable] | None = None) -> list[_Running]:
        """Return the work that runs under names, or all of it, with what an ended loop left."""
        if self._is_forked:
            return []
        with self._lock:
            wanted = {*self._running, *self._left} if names is None else set(names)
            for name in () if self._closed else wanted:
                running = self._running.get(name)
                if running is None and name in self._left:
                    self._start(name, self._left[name])
                elif running and not running.is_alive:
                    self._start(name, self._next.pop(name, running.work))
            return [self._running[name] for name in wanted if name in self._running]

    def _alive(self) -> list[_Running]:
        with self._lock:
            return [running for running in self._running.values() if running.is_alive]


async def _deliver(work: Callable[[], Awaitable[T]], result: "asyncio.Future[T]") -> None:
    """Run work, and give its result or its error to the caller that waits for it."""
    try:
        value = await work()
    except asyncio.CancelledError:
        if not result.done():
            result.set_exception(StoreClosed("the memory was closed before the work ended"))
        raise
    except BaseException as error:
        if result.done():  # the caller was canceled
            raise
        result.set_exception(error)
    else:
        if not result.done():
            result.set_result(value)


async def _ended(running: Sequence[_Running], seconds: float = LOOK) -> None:
    """Wait until all have ended, but no longer than until the next look at their loops."""
    ends = [asyncio.wrap_future(each.ended) for each in running]
    await asyncio.wait(ends, timeout=min(seconds, LOOK))


_SECONDS: Final = 10.0
"""How long an owner is cached as having no facts."""
_MOST: Final = 10_000


class NegativeCache:
    """Negative cache: owners known to have no facts.

    Another process may add a fact in the meantime, so entries expire after some seconds.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Begin with no owner."""
        self._monotonic = monotonic
        self._since: dict[str, float] = {}

    def contains(self, owner: str) -> bool:
        """Return whether an owner had no facts a moment ago."""
        since = self._since.get(owner)
        return since is not None and self._monotonic() - since < _SECONDS

    def add(self, owner: str) -> None:
        """Add an owner without facts."""
        if len(self._since) >= _MOST:
            self._since.clear()
        self._since[owner] = self._monotonic()

    def discard(self, owner: str) -> None:
        """Remove an owner, who may have facts now."""
        self._since.pop(owner, None)


class Runtime:
    """Shared by a memory and its tenants; tests pass their own clocks and sleep."""

    def __init__(
        self,
        *,
        spans: Spans | None = None,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        lease_seconds: float = SECONDS,
    ) -> None:
        """Begin with no lock held and no work."""
        self.locks = Locks()
        self.background = Background()
        self.fact_cache = FactCache()
        self.spans = spans or Spans()
        self.clock = clock
        self.monotonic = monotonic
        self.sleep = sleep
        self.lease_seconds = lease_seconds

    def leases(self, store: Store) -> Leases:
        """Return the leases of a store."""
        return Leases(
            store=store,
            clock=self.clock,
            monotonic=self.monotonic,
            sleep=self.sleep,
            seconds=self.lease_seconds,
        )


_MOST_KNOWN = 10_000


class Maintenance:
    """Runs what is due after turns, for the sessions of one store."""

    def __init__(
        self,
        *,
        store: Store,
        compactor: Compactor,
        needs_summaries: bool,
        background: Background,
        extractor: "Extractor | None" = None,
    ) -> None:
        """Take the compactor and the extractor; `needs_summaries`: some view shows summaries."""
        self.store = store
        self.compactor = compactor
        self.needs_summaries = needs_summaries
        self.background = background
        self.extractor = extractor
        self.without_tools: set[SessionKey] = set()
        """Sessions known to have no cached tool results."""
        self._dropping: LeastRecent[SessionKey, str] = LeastRecent(_MOST_KNOWN)
        """Where to continue to look for results that ended, in sessions with many."""

    def after(self, session: SessionKey, turn: int) -> None:
        """Start what is due after a turn was closed, in the background."""
        extractor = self.extractor
        if extractor is not None and extractor.may_be_due(session, turn):
            self.background.soon(("facts", session), lambda: extractor.extract(session))
        is_due = self.needs_summaries and self.compactor.may_be_due(session, turn)
        if not is_due and session in self.without_tools:
            return

        async def work() -> None:
            await self._let_go(session, turn)
            if is_due:
                await self.compactor.compact(session)

        self.background.soon(session, work)

    def after_append(self, session: SessionKey, messages: Sequence[Message]) -> None:
        """Start what is due if an answer was appended without a turn, in the background."""
        if self.needs_summaries or self.extractor is not None:
            answered = [m.turn for m in messages if is_answer(m) and m.turn]
            if answered:
                self.after(session, max(answered))

    def remembers(self, session: SessionKey) -> None:
        """Note that a session has cached tool results."""
        self.without_tools.discard(session)

    async def _let_go(self, session: SessionKey, turn: int) -> None:
        """Remove cached tool results that ended; of many, some after each turn."""
        if session in self.without_tools:
            return
        start = self._dropping.get(session)
        found = await drop_ended(self.store, session, turn, start)
        if found.before is not None:
            self._dropping.put(session, found.before)
            return
        self._dropping.discard(session)
        if found.left or start is not None:
            return
        if len(self.without_tools) >= _MOST_KNOWN:
            self.without_tools.clear()
        self.without_tools.add(session)


async def at_last(work: Awaitable[object], error: BaseException | None, failing: str) -> None:
    """Run work that must be done when a turn ends, without replacing the error that ended it."""
    try:
        # Also when the task is being cancelled: the next context must be valid.
        await asyncio.shield(work)
    except KeepthreadError as failure:
        if error is None:
            raise
        error.add_note(f"{failing}: {failure}")
