"""One SQLite file: one thread that writes, one that reads, and commits shared by whoever waits.

Work is a function of a connection. The writer takes all that waits, runs it in one transaction
and commits once; each piece of work is all or none, in a savepoint of its own if it has company.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar

from keepthread.errors import StoreClosed
from keepthread.stores.sqlite.bell import Bell
from keepthread.stores.sqlite.faults import translate
from keepthread.stores.sqlite.file import DatabaseFile

if TYPE_CHECKING:
    from pathlib import Path  # its import costs a twentieth of ours

T = TypeVar("T")
Work: TypeAlias = Callable[[sqlite3.Connection], T]

MAX_BATCH: Final = 256
CHECKPOINT_PAGES: Final = 1000
_PAGES_PER_COMMIT: Final = 3  # a leaf of the table and one of each of its two indexes
_PAGE: Final = 4096


class _Job(NamedTuple):
    bell: Bell[list[_Answer]]
    future: asyncio.Future[Any]
    work: Work[Any]
    size: int


class _Answer(NamedTuple):
    job: _Job
    result: Any
    error: BaseException | None


class _Worker:
    """A thread with a connection of its own and a queue of work."""

    def __init__(self, file: DatabaseFile, name: str) -> None:
        self.file = file
        self._jobs: SimpleQueue[list[_Job] | None] = SimpleQueue()
        self._bells: dict[asyncio.AbstractEventLoop, Bell[list[_Answer]]] = {}
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._closed = False
        self._tell_end: Callable[[], object] = lambda: None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    async def do(self, work: Work[T], size: int = 0) -> T:
        """Run work on the connection and return what it returns."""
        if self._closed:
            raise StoreClosed("the store is closed")
        if os.getpid() != self._pid:
            raise StoreClosed("the store was opened before a fork; open it anew in each process")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self.send(_Job(self._bells.get(loop) or self._new_bell(loop), future, work, size))
        return await future

    def send(self, job: _Job) -> None:
        """Hand a job to the thread."""
        self._jobs.put([job])

    async def close(self) -> None:
        """Finish what waits, then end the thread."""
        if self._closed or os.getpid() != self._pid:  # a forked process has no such thread
            return
        loop = asyncio.get_running_loop()
        ended = loop.create_future()
        self._tell_end = lambda: _tell(loop, ended)
        self._closed = True
        self._jobs.put(None)
        await ended
        self._thread.join()
        with self._lock:
            bells = list(self._bells.values())
        for bell in bells:
            # Another loop may still be about to read what was rung: its own thread must let go.
            if bell.loop is loop or bell.loop.is_closed():
                bell.close()
            else:
                bell.loop.call_soon_threadsafe(bell.close)

    def _new_bell(self, loop: asyncio.AbstractEventLoop) -> Bell[list[_Answer]]:
        bell: Bell[list[_Answer]] = Bell(loop, _settle)
        with self._lock:
            for old in [old for old in self._bells if old.is_closed()]:
                self._bells.pop(old).close()
            self._bells[loop] = bell
        return bell

    def _run(self) -> None:
        db: sqlite3.Connection | None = None
        while batch := self._next_batch():
            try:
                db = db or self.connect()
            except Exception as error:  # noqa: BLE001 - whoever waits is told
                _deliver([_Answer(job, None, error) for job in batch])
                continue
            self.serve(db, batch)
        if db:
            db.close()
        self._tell_end()

    def _next_batch(self) -> list[_Job]:
        """Return all that waits, at least one; nothing when the end has come."""
        batch: list[_Job] = []
        jobs = self._jobs.get()
        while jobs is not None:
            batch += jobs
            if self._jobs.empty() or len(batch) >= MAX_BATCH:
                return batch
            jobs = self._jobs.get()
        if batch:
            self._jobs.put(None)  # come back to the end after this batch
        return batch

    def connect(self) -> sqlite3.Connection:
        raise NotImplementedError

    def serve(self, db: sqlite3.Connection, batch: list[_Job]) -> None:
        raise NotImplementedError


class _Reader(_Worker):
    """Runs each piece of work by itself; every statement sees one moment of the file."""

    def connect(self) -> sqlite3.Connection:
        return self.file.open_for_reading()

    def serve(self, db: sqlite3.Connection, batch: list[_Job]) -> None:
        for job in batch:
            job.bell.ring([_attempt(job, db, self.file.path)])


class _Writer(_Worker):
    """Runs all that waits in one transaction and commits once."""

    def __init__(self, file: DatabaseFile, name: str) -> None:
        self.commits = 0
        self._pages = 0
        self._gathered: dict[asyncio.AbstractEventLoop, list[_Job]] = {}
        super().__init__(file, name)

    def send(self, job: _Job) -> None:
        """Hand over together what tasks of one loop ask for in the same turn of it."""
        loop = job.bell.loop
        gathered = self._gathered.get(loop)
        if gathered is None:
            self._gathered[loop] = [job]
            loop.call_soon(self._send_gathered, loop)
        else:
            gathered.append(job)

    def _send_gathered(self, loop: asyncio.AbstractEventLoop) -> None:
        jobs = self._gathered.pop(loop, [])
        if self._closed:
            error = StoreClosed("the store is closed")
            _settle([_Answer(job, None, error) for job in jobs])
        elif jobs:
            self._jobs.put(jobs)

    async def close(self) -> None:
        """Finish what waits, then end the thread."""
        self._send_gathered(asyncio.get_running_loop())
        await super().close()

    def connect(self) -> sqlite3.Connection:
        return self.file.open_for_writing()

    def serve(self, db: sqlite3.Connection, batch: list[_Job]) -> None:
        _deliver(self._commit(db, batch))
        if self._pages >= CHECKPOINT_PAGES:
            self._pages = 0
            self.file.checkpoint(db)

    def _commit(self, db: sqlite3.Connection, batch: list[_Job]) -> list[_Answer]:
        try:
            db.execute("BEGIN IMMEDIATE")
            answers = self._attempt_all(db, batch)
            if not db.in_transaction:  # with one statement SQLite gave up the whole transaction
                return [_Answer(job, None, answers[-1].error) for job in batch]
            if all(answer.error for answer in answers):
                db.execute("ROLLBACK")
                return answers
            db.execute("COMMIT")
        except sqlite3.Error as error:
            if db.in_transaction:
                db.execute("ROLLBACK")
            failure = translate(error, self.file.path)
            return [_Answer(job, None, failure) for job in batch]
        self.commits += 1
        self._pages += _PAGES_PER_COMMIT + sum(job.size for job in batch) // _PAGE
        return answers

    def _attempt_all(self, db: sqlite3.Connection, batch: list[_Job]) -> list[_Answer]:
        if len(batch) == 1:
            return [_attempt(batch[0], db, self.file.path)]
        answers: list[_Answer] = []
        for job in batch:
            answers.append(self._attempt_in_company(job, db))
            if not db.in_transaction:  # a savepoint now would begin a transaction of its own
                break
        return answers

    def _attempt_in_company(self, job: _Job, db: sqlite3.Connection) -> _Answer:
        """Run one of several pieces of work; its failure undoes it alone."""
        db.execute("SAVEPOINT one")
        answer = _attempt(job, db, self.file.path)
        if answer.error and db.in_transaction:
            db.execute("ROLLBACK TO one")
        if db.in_transaction:
            db.execute("RELEASE one")
        return answer


def _tell(loop: asyncio.AbstractEventLoop, ended: asyncio.Future[None]) -> None:
    """Tell who waits that the thread has ended; if closing was broken off, nobody does."""
    with suppress(RuntimeError):  # the loop itself may have ended
        loop.call_soon_threadsafe(lambda: ended.done() or ended.set_result(None))


def _attempt(job: _Job, db: sqlite3.Connection, path: Path) -> _Answer:
    try:
        return _Answer(job, job.work(db), None)
    except sqlite3.Error as error:
        return _Answer(job, None, translate(error, path))
    except Exception as error:  # noqa: BLE001 - it is the caller's
        return _Answer(job, None, error)


def _deliver(answers: list[_Answer]) -> None:
    """Wake each waiting event loop once for all its answers."""
    by_bell: dict[Bell[list[_Answer]], list[_Answer]] = {}
    for answer in answers:
        by_bell.setdefault(answer.job.bell, []).append(answer)
    for bell, mine in by_bell.items():
        bell.ring(mine)


def _settle(answers: list[_Answer]) -> None:
    for job, result, error in answers:
        if job.future.done():
            continue  # the caller went away
        if error is None:
            job.future.set_result(result)
        else:
            job.future.set_exception(error)


class Engine:
    """A file with its writer and its reader, shared by every tenant on it."""

    def __init__(self, file: DatabaseFile) -> None:
        """Start both threads; nothing is opened yet."""
        self.file = file
        self._writer = _Writer(file, f"keepthread writer {file.path.name}")
        self._reader = _Reader(file, f"keepthread reader {file.path.name}")

    @property
    def commits(self) -> int:
        """Count the transactions committed."""
        return self._writer.commits

    async def write(self, work: Work[T], size: int = 0) -> T:
        """Run work in a transaction, perhaps shared, and return once it is committed.

        `size` is about how many bytes it writes.
        """
        return await self._writer.do(work, size)

    async def read(self, work: Work[T]) -> T:
        """Run work that only reads."""
        return await self._reader.do(work)

    async def read_apart(self, work: Work[T]) -> T:
        """Run long work that only reads, on a connection and a thread of its own."""
        apart = _Reader(self.file, f"keepthread apart {self.file.path.name}")
        try:
            return await apart.do(work)
        finally:
            await apart.close()

    async def close(self) -> None:
        """Finish what waits and close the file."""
        await self._reader.close()
        await self._writer.close()
