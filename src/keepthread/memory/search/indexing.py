"""Index new messages by their words, a page at a time.

Searches that start together would all index the same messages, and all but one would be refused
each time. So a process runs one indexing task for an owner, and everyone who needs it waits for it.
"""

import asyncio
import threading
import time
from concurrent.futures import Future
from contextlib import suppress
from typing import Final, NamedTuple

from keepthread.errors import SessionGone, Stale
from keepthread.event_loops import LOOK, SILENCE
from keepthread.protocols import Progress, Searchable, Store
from keepthread.recall.chunks import parts_of, segments_of
from keepthread.recall.positions import VIEW
from keepthread.types import SessionKey, Unread

_PAGE: Final = 200


class _Scope(NamedTuple):
    """The messages to index: of one owner or all, one session or all."""

    owner: str | None
    session: SessionKey | None


class Indexing:
    """Indexes new messages for everyone who waits for it, in one task for each scope."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()  # event loops in several threads may share it
        self._tasks: dict[_Scope, _IndexingTask] = {}
        self._count = 0
        """The number of tasks that were started."""

    async def catch_up(
        self,
        finder: Searchable,
        *,
        owner: str | None,
        session: SessionKey | None,
        progress: Progress | None = None,
    ) -> None:
        """Index the messages written before this call; `progress` counts messages.

        A task that was already running may have listed the new messages too early. So its end is
        waited for, and then a task that started after this call.
        """
        scope = _Scope(owner, session)
        before = self._count
        while True:
            task = self._join(scope, finder)
            try:
                await task.wait(progress)
            finally:
                self._leave(scope, task)
            if task.error is not None:
                raise task.error
            if task.number > before and task.is_complete:
                return

    def _join(self, scope: _Scope, finder: Searchable) -> "_IndexingTask":
        """Return the running task of a scope, or start one in this event loop."""
        with self._lock:
            task = self._tasks.get(scope)
            if task is None or task.has_ended or not task.is_alive:
                self._count += 1
                task = _IndexingTask(self._store, finder, scope, self._count)
                self._tasks[scope] = task
            task.waiters += 1
            return task

    def _leave(self, scope: _Scope, task: "_IndexingTask") -> None:
        with self._lock:
            task.waiters -= 1
            if task.waiters:
                return
            if self._tasks.get(scope) is task:
                del self._tasks[scope]
        task.cancel()  # nobody waits for it any more


class _IndexingTask:
    """Indexes what a scope has when it starts, in the event loop that started it."""

    def __init__(self, store: Store, finder: Searchable, scope: _Scope, number: int) -> None:
        self.number = number
        self.waiters = 0
        self.is_complete = False
        """Whether it ran to its end; it did not if its event loop ended."""
        self.error: Exception | None = None
        self._store = store
        self._finder = finder
        self._scope = scope
        self._done = self._total = 0
        self._alive_at = time.monotonic()
        self._ended: Future[None] = Future()
        self._ended.set_running_or_notify_cancel()  # no waiter can cancel it
        self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(self._run())

    async def wait(self, progress: Progress | None) -> None:
        """Wait until it has ended or its event loop no longer runs it, and report its progress."""
        ended = asyncio.wrap_future(self._ended)
        reported = 0
        while not ended.done() and self.is_alive:
            await asyncio.wait([ended], timeout=LOOK)
            if progress is not None and self._done > reported:
                reported = self._done
                progress(min(self._done, self._total), self._total)
            if not ended.done():
                with suppress(RuntimeError):  # its loop is closed
                    self._loop.call_soon_threadsafe(self._note_alive)

    @property
    def has_ended(self) -> bool:
        return self._ended.done()

    @property
    def is_alive(self) -> bool:
        """Return whether its event loop runs, and is not blocked for long."""
        if self._loop is asyncio.get_running_loop():
            return True
        return self._loop.is_running() and time.monotonic() - self._alive_at < SILENCE

    def cancel(self) -> None:
        if not self.has_ended:
            with suppress(RuntimeError):  # its loop is closed
                self._loop.call_soon_threadsafe(self._task.cancel)

    def _note_alive(self) -> None:
        self._alive_at = time.monotonic()

    async def _run(self) -> None:
        try:
            await self._index()
            self.is_complete = True
        except Exception as error:  # noqa: BLE001 - raised by those who wait for it
            self.error = error
        finally:
            self._ended.set_result(None)

    async def _index(self) -> None:
        owner, session = self._scope
        is_left = True
        while is_left:
            is_left = False
            unread = await self._finder.unread(VIEW, owner=owner, session=session)
            self._total = max(
                self._total, self._done + sum(each.last - each.until for each in unread)
            )
            for each in unread:
                is_left |= not await self._index_session(each)

    async def _index_session(self, read: Unread) -> bool:
        """Index a session up to the end that was seen; return whether none of it is left."""
        try:
            while read.until < read.last:
                until = read.until
                read = await _index_page(self._store, self._finder, read)
                self._done += read.until - until
                self._note_alive()
        except SessionGone:
            return True
        except Stale:  # another process indexed some of it, or a message was erased
            return False
        return True


async def _index_page(store: Store, finder: Searchable, read: Unread) -> Unread:
    messages = await store.read(read.session, after=read.until, until=read.last, limit=_PAGE)
    until = messages[-1].seq if messages else read.last
    number = int(read.session)
    parts = [part for message in messages for part in parts_of(number, message)]
    segments = segments_of(read, messages, parts)
    await finder.index(VIEW, read, until, parts, segments)
    return read._replace(until=until, segment=segments[-1] if segments else read.segment)
