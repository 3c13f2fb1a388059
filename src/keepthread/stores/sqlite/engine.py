"""One SQLite file: one thread that writes, one that reads; waiting jobs share a commit.

A job is a function of a connection. The writer runs all waiting jobs in one transaction and commits
once; each job is atomic, in its own savepoint if there are several.
"""

from __future__ import annotations

import asyncio
import sqlite3
from typing import Final, TypeVar

from keepthread.errors import Busy, StoreClosed
from keepthread.stores.sqlite.file import LOG_LIMIT, PAGE, SQLITE_ERRORS, DatabaseFile, translate
from keepthread.stores.sqlite.worker import Job, JobResult, Work, Worker, attempt, deliver, settle

T = TypeVar("T")

CHECKPOINT_PAGES: Final = LOG_LIMIT // PAGE
_PAGES_PER_COMMIT: Final = 3  # a leaf of the table and one of each of its two indexes


class _Reader(Worker):
    """Runs jobs that only read, one at a time; every statement sees one moment of the file."""

    def is_current(self) -> bool:
        """Return whether the connection sees writes made since it was opened."""
        return self._live

    def connect(self) -> sqlite3.Connection:
        db, self._live, self._stamp = self.file.open_for_reading()
        return db

    def serve(self, db: sqlite3.Connection, batch: list[Job]) -> None:
        for job in batch:
            job.bell.ring([self._checked(attempt(job, db, self.file.path))])

    def _checked(self, answer: JobResult) -> JobResult:
        """Raise `Busy` if another process wrote to the file while it was read without locks."""
        if self._stamp is None or self.file.is_unchanged(self._stamp):
            return answer
        changed = Busy(f"{self.file.path} changed while it was read; try again")
        return answer._replace(result=None, error=changed)


class _Maintainer(Worker):
    """Runs jobs that begin their own transactions, such as VACUUM."""

    def connect(self) -> sqlite3.Connection:
        return self.file.open_for_writing()

    def serve(self, db: sqlite3.Connection, batch: list[Job]) -> None:
        deliver([attempt(job, db, self.file.path) for job in batch])


class _Writer(Worker):
    """Runs all waiting jobs in one transaction and commits once."""

    def __init__(self, file: DatabaseFile, name: str) -> None:
        self.commits = 0
        self._pages = 0
        self._tolerated = LOG_LIMIT
        self._gathered: dict[asyncio.AbstractEventLoop, list[Job]] = {}
        super().__init__(file, name)

    def send(self, job: Job) -> None:
        """Submit together the jobs that tasks of one event loop start in the same iteration."""
        loop = job.bell.loop
        gathered = self._gathered.get(loop)
        if gathered is None:
            self._gathered[loop] = [job]
            loop.call_soon(self._send_gathered, loop)
        else:
            gathered.append(job)

    def _send_gathered(self, loop: asyncio.AbstractEventLoop) -> None:
        jobs = self._gathered.pop(loop, [])
        if self.closed:
            error = StoreClosed("the store is closed; open it again")
            settle([JobResult(job, None, error) for job in jobs])
        elif jobs:
            self.hand_over(jobs)

    async def close(self) -> None:
        """Finish waiting jobs, then end the thread."""
        self._send_gathered(asyncio.get_running_loop())
        await super().close()

    def connect(self) -> sqlite3.Connection:
        db = self.file.open_for_writing()
        self._bound_log(db)
        return db

    def before_closing(self, db: sqlite3.Connection) -> None:
        """Checkpoint, so that other processes do not inherit a long log."""
        if not db.in_transaction:
            self._bound_log(db)

    def serve(self, db: sqlite3.Connection, batch: list[Job]) -> None:
        deliver(self._commit(db, batch))
        self._bound_log(db)

    def _bound_log(self, db: sqlite3.Connection) -> None:
        """Checkpoint after many of our own pages, or if the log is long because of any writer."""
        size = self.file.log_size() or 0
        if size <= LOG_LIMIT:
            self._tolerated = LOG_LIMIT
        if self._pages >= CHECKPOINT_PAGES or size > self._tolerated:
            self._pages = 0
            self.file.checkpoint(db)
            # The next commit shortens the log, unless a reader still needs it; then we do
            # not try again with every commit.
            self._tolerated = max(LOG_LIMIT, size + LOG_LIMIT // 4)

    def _commit(self, db: sqlite3.Connection, batch: list[Job]) -> list[JobResult]:
        try:
            db.execute("BEGIN IMMEDIATE")
            answers = self._attempt_all(db, batch)
            if not db.in_transaction:  # SQLite rolled back the whole transaction
                return [JobResult(job, None, answers[-1].error) for job in batch]
            if all(answer.error for answer in answers):
                db.execute("ROLLBACK")
                return answers
            db.execute("COMMIT")
        except SQLITE_ERRORS as error:
            if db.in_transaction:
                db.execute("ROLLBACK")  # if that also fails, the connection is closed
            failure = translate(error, self.file.path)
            return [JobResult(job, None, failure) for job in batch]
        self.commits += 1
        self._pages += _PAGES_PER_COMMIT + sum(job.size for job in batch) // PAGE
        return answers

    def _attempt_all(self, db: sqlite3.Connection, batch: list[Job]) -> list[JobResult]:
        if len(batch) == 1:
            return [attempt(batch[0], db, self.file.path)]
        answers: list[JobResult] = []
        for job in batch:
            answers.append(self._attempt_in_company(job, db))
            if not db.in_transaction:  # a savepoint would start its own transaction
                break
        return answers

    def _attempt_in_company(self, job: Job, db: sqlite3.Connection) -> JobResult:
        """Run one of several jobs; if it fails, only its own changes are undone."""
        db.execute("SAVEPOINT one")
        answer = attempt(job, db, self.file.path)
        if answer.error and db.in_transaction:
            db.execute("ROLLBACK TO one")
        if db.in_transaction:
            db.execute("RELEASE one")
        return answer


class Engine:
    """A file with its writer and its reader, shared by every tenant on it."""

    def __init__(self, file: DatabaseFile) -> None:
        """Start both threads; nothing is opened yet."""
        self.file = file
        self._writer = _Writer(file, f"keepthread writer {file.path.name}")
        try:
            self._reader = _Reader(file, f"keepthread reader {file.path.name}")
        except BaseException:  # the system cannot start another thread
            self._writer.stop()
            raise

    @property
    def commits(self) -> int:
        """Count the transactions committed."""
        return self._writer.commits

    async def write(self, work: Work[T], size: int = 0) -> T:
        """Run a job in a transaction, which others may share; return once it is committed.

        `size` is about how many bytes it writes.
        """
        return await self._writer.do(work, size)

    async def read(self, work: Work[T]) -> T:
        """Run a job that only reads."""
        return await self._reader.do(work)

    async def read_apart(self, work: Work[T]) -> T:
        """Run a long job that only reads, in its own thread and connection."""
        return await self._apart(_Reader, work)

    async def maintain(self, work: Work[T]) -> T:
        """Run a job that begins its own transactions, in its own thread and connection."""
        return await self._apart(_Maintainer, work)

    async def _apart(self, kind: type[Worker], work: Work[T]) -> T:
        apart = kind(self.file, f"keepthread apart {self.file.path.name}", once=True)
        try:
            return await apart.do(work)
        finally:
            await apart.close()

    async def close(self) -> None:
        """Finish waiting jobs and close the file."""
        await self._reader.close()
        await self._writer.close()
