"""A thread with its own connection, which runs jobs for any event loop.

Every job gets an answer: whatever goes wrong in a job, in SQLite or in this module ends that
batch, not the thread; and what is handed over after the end is refused.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeAlias, TypeVar

from keepthread.errors import StoreClosed, Unavailable
from keepthread.stores.sqlite.file import SQLITE_ERRORS, DatabaseFile, translate
from keepthread.stores.sqlite.uses import USES, Use

if TYPE_CHECKING:
    from pathlib import Path  # slow to import

T = TypeVar("T")
Work: TypeAlias = Callable[[sqlite3.Connection], T]

MAX_BATCH: Final = 256


class Bell(Generic[T]):
    """Wakes one event loop with items, through a pipe; created in its thread, used from any other.

    `loop.call_soon_threadsafe` does the same for twice the CPU: it reads its socket until that is
    empty, which costs an exception each time. It serves where a loop cannot watch a pipe.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        take: Callable[[T], None],
        *,
        with_pipe: bool = True,
    ) -> None:
        """Call `take` in the loop for each item."""
        self.loop = loop
        self._take = take
        self._items: deque[T] = deque()
        self._lock = threading.Lock()
        self._pipe = _watched_pipe(loop, self._answer) if with_pipe else None

    def ring(self, item: T) -> None:
        """Pass an item to the loop; if the loop is closed, discard it: there is no waiter."""
        self._items.append(item)
        with self._lock:  # a closed descriptor may have been reused by now
            if self._pipe and _write(self._pipe[1]):
                return
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self._drain)

    def close_in_its_loop(self) -> None:
        """Close it from any thread; the loop's thread still takes earlier items."""
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is not self.loop:
            with suppress(RuntimeError):  # the loop is closed, so there is no waiter
                self.loop.call_soon_threadsafe(self.close)
                return
        self.close()

    def close(self) -> None:
        """Take waiting items and close the pipe; later items come without it."""
        with self._lock:
            if self._pipe:
                if not self.loop.is_closed():
                    self.loop.remove_reader(self._pipe[0])
                for descriptor in self._pipe:
                    os.close(descriptor)
                self._pipe = None
        if not self.loop.is_closed():
            self._drain()

    def _answer(self) -> None:
        if self._pipe:
            os.read(self._pipe[0], 4096)
        self._drain()

    def _drain(self) -> None:
        while self._items:
            self._take(self._items.popleft())


def _write(descriptor: int) -> bool:
    """Write a byte; return whether the reader will wake up."""
    try:
        os.write(descriptor, b"\0")
    except BlockingIOError:  # full: the reader will wake up anyway
        return True
    except OSError:  # the program closed descriptors it does not own
        return False
    return True


def _watched_pipe(
    loop: asyncio.AbstractEventLoop, answer: Callable[[], None]
) -> tuple[int, int] | None:
    """Return a pipe whose reading end the loop watches, or None if it cannot."""
    if sys.platform == "win32" or not hasattr(os, "set_blocking"):  # loops there watch sockets only
        return None
    try:
        pipe = os.pipe()
    except OSError:  # too many open files
        return None
    try:
        for descriptor in pipe:
            os.set_blocking(descriptor, False)
        loop.add_reader(pipe[0], answer)
    except (NotImplementedError, OSError):
        for descriptor in pipe:
            os.close(descriptor)
        return None
    return pipe


class Job(NamedTuple):
    """Work, and the caller that waits for its result."""

    bell: Bell[list[JobResult]]
    future: asyncio.Future[Any]
    work: Work[Any]
    size: int


class JobResult(NamedTuple):
    """The outcome of a job."""

    job: Job
    result: Any
    error: Exception | None


class Worker:
    """A thread with its own connection and a queue of jobs."""

    def __init__(self, file: DatabaseFile, name: str, *, once: bool = False) -> None:
        """Start the thread; one that is used once saves the descriptors of a pipe."""
        self.file = file
        self._once = once
        self.closed = False
        self._jobs: SimpleQueue[list[Job] | None] = SimpleQueue()
        self._bells: dict[asyncio.AbstractEventLoop, Bell[list[JobResult]]] = {}
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._use = Use(file.path, lambda: self._jobs.put([]))
        self._ended = False
        self._end: Future[None] = Future()
        self._end.set_running_or_notify_cancel()  # waiters cannot cancel it
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    async def do(self, work: Work[T], size: int = 0) -> T:
        """Run a job on the connection and return its result."""
        if os.getpid() != self._pid:
            raise StoreClosed("the store was opened before a fork; open it again in this process")
        if self.closed:
            raise StoreClosed("the store is closed; open it again")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self.send(Job(self._bells.get(loop) or self._new_bell(loop), future, work, size))
        return await future

    def send(self, job: Job) -> None:
        """Pass a job to the thread."""
        self.hand_over([job])

    def hand_over(self, jobs: list[Job]) -> None:
        """Put jobs into the queue; after the thread has ended, they fail."""
        self._jobs.put(jobs)
        if self._ended:  # the thread no longer takes them
            self._refuse_rest()

    def stop(self) -> None:
        """Make the thread end after the jobs in its queue."""
        self.closed = True
        self._jobs.put(None)

    async def close(self) -> None:
        """Finish waiting jobs, then end the thread."""
        if os.getpid() != self._pid:  # a forked process has no such thread
            return
        self.stop()
        await asyncio.wrap_future(self._end)
        self._thread.join()
        with self._lock:
            bells = list(self._bells.values())
        for bell in bells:
            bell.close_in_its_loop()

    def _new_bell(self, loop: asyncio.AbstractEventLoop) -> Bell[list[JobResult]]:
        bell: Bell[list[JobResult]] = Bell(loop, settle, with_pipe=not self._once)
        with self._lock:
            for old in [old for old in self._bells if old.is_closed()]:
                self._bells.pop(old).close()
            self._bells[loop] = bell
        return bell

    # --- in the thread ---

    def _run(self) -> None:
        db: sqlite3.Connection | None = None
        try:
            while (batch := self._next_batch()) is not None:
                if USES.forks:  # the next batch connects again, after the fork
                    db = self._disconnect(db)
                if batch:
                    db = self._attempt_batch(db, batch)
            self._disconnect(db)
        except Forked:
            # This is the child of a fork inside a job. Closing the connection here would
            # checkpoint and delete the log that the parent uses.
            _INHERITED.append(db)
        finally:
            self.closed = self._ended = True
            self._refuse_rest()
            self._end.set_result(None)

    def _next_batch(self) -> list[Job] | None:
        """Return waiting jobs, an empty list to check for a fork, or None at the end."""
        batch: list[Job] = []
        jobs = self._jobs.get()
        while jobs is not None:
            batch += jobs
            if self._jobs.empty() or len(batch) >= MAX_BATCH:
                return batch
            jobs = self._jobs.get()
        if not batch:
            return None
        self._jobs.put(None)  # come back to the end after this batch
        return batch

    def _attempt_batch(
        self, db: sqlite3.Connection | None, batch: list[Job]
    ) -> sqlite3.Connection | None:
        """Run a batch; after an unexpected failure, answer it and return no connection."""
        try:
            if db is None:
                USES.begin(self._use)
                db = self.connect()
            self.serve(db, batch)
        except Forked:
            raise
        except BaseException as error:  # noqa: BLE001 - every waiting caller gets an answer
            failure = _ours(error, self.file.path)
            deliver(JobResult(job, None, failure) for job in batch)
            return self._disconnect(db)
        # A connection that sees no later writes may also block others: use it for one batch.
        return db if self.is_current() else self._disconnect(db)

    def _disconnect(self, db: sqlite3.Connection | None) -> None:
        """Close the connection, which also ends a transaction that could not be rolled back."""
        if db:
            with suppress(sqlite3.Error, OSError, MemoryError):
                self.before_closing(db)
            with suppress(sqlite3.Error):
                db.close()
        USES.end(self._use)

    def _refuse_rest(self) -> None:
        error = StoreClosed("the store is closed; open it again")
        with suppress(Empty):
            while True:
                jobs = self._jobs.get_nowait() or []
                deliver(JobResult(job, None, error) for job in jobs)
                for job in jobs:
                    job.bell.close_in_its_loop()

    # --- overridden by each kind of worker ---

    def connect(self) -> sqlite3.Connection:
        raise NotImplementedError

    def is_current(self) -> bool:
        """Return whether the connection sees writes made since it was opened."""
        return True

    def before_closing(self, db: sqlite3.Connection) -> None:
        """Do the last work on the connection."""

    def serve(self, db: sqlite3.Connection, batch: list[Job]) -> None:
        raise NotImplementedError


class Forked(BaseException):
    """The process was forked inside a job, and this is the child."""


_SUSPENDABLE: Final = 0x20 | 0x80 | 0x200  # generators and coroutines, as `inspect` knows them
_INHERITED: Final[list[sqlite3.Connection | None]] = []


def attempt(job: Job, db: sqlite3.Connection, path: Path) -> JobResult:
    """Run one job; its own errors belong to its caller."""
    pid = os.getpid()
    try:
        answer = JobResult(job, job.work(db), None)
    except BaseException as error:  # noqa: BLE001 - it is passed to the caller
        _drop_cursors(error)
        answer = JobResult(job, None, _ours(error, path))
    if os.getpid() != pid:
        raise Forked
    return answer


def _drop_cursors(error: BaseException) -> None:
    """Clear the frames of a traceback: a cursor in one would keep the file open after `close`."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if not frame.f_code.co_flags & _SUSPENDABLE:
            with suppress(RuntimeError):  # it is still running
                frame.clear()


def _ours(error: BaseException, path: Path) -> Exception:
    if isinstance(error, SQLITE_ERRORS):
        return translate(error, path)
    if isinstance(error, MemoryError):
        return Unavailable(f"{path}: out of memory")
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    # A future rejects StopIteration; the others would end the caller's event loop or task.
    return RuntimeError(f"work on the store raised {type(error).__name__}")


def deliver(answers: Iterable[JobResult]) -> None:
    """Wake each waiting event loop once for all its answers."""
    by_bell: dict[Bell[list[JobResult]], list[JobResult]] = {}
    for answer in answers:
        by_bell.setdefault(answer.job.bell, []).append(answer)
    for bell, mine in by_bell.items():
        bell.ring(mine)


def settle(answers: Iterable[JobResult]) -> None:
    """Pass results to the callers, each in its event loop."""
    for job, result, error in answers:
        if job.future.done():
            continue  # the caller was canceled
        if error is None:
            job.future.set_result(result)
        else:
            job.future.set_exception(error)
