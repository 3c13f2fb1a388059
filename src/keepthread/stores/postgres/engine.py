"""Running statements: on a connection that is free, within a deadline, again if that is safe."""

import asyncio
import os
import random
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Final, TypeAlias, TypeVar

import psycopg

from keepthread.errors import ReadOnly, StoreClosed, Unavailable
from keepthread.stores.postgres.faults import is_lost, is_undone, translate
from keepthread.stores.postgres.pool import Connect, Connection, Pool

T = TypeVar("T")
Rows: TypeAlias = list[tuple[Any, ...]]

_FIRST_PAUSE: Final = 0.02
_LONGEST_PAUSE: Final = 1.0
_GRACE: Final = 1.0  # the server ends what takes too long; if not even that arrives, we hang up


class Link:
    """A connection in use; each statement has a time limit of its own."""

    def __init__(self, connection: Connection, timeout: float) -> None:
        """Speak through a connection."""
        self._connection = connection
        self._patience = timeout + _GRACE

    async def run(self, statement: bytes, values: Sequence[Any] = ()) -> Rows:
        """Return the rows of one statement."""
        db = self._connection
        loop = asyncio.get_running_loop()
        timer = loop.call_later(self._patience, _hang_up, db)
        try:
            cursor = await db.execute(statement, values, binary=True)
        finally:
            timer.cancel()
        return await cursor.fetchall() if cursor.description else []


Work: TypeAlias = Callable[[Link], Awaitable[T]]


class Engine:
    """The connections to one database, shared by every tenant on it."""

    def __init__(self, connect: Connect, *, size: int, timeout: float, several: bool) -> None:
        """Connect to nothing yet; `several` servers may take over from each other."""
        self._pool = Pool(connect, size)
        self._timeout = timeout
        self._several = several
        self._pid = os.getpid()
        self._closed = False
        self.tenants: dict[str, int] = {}

    async def call(
        self, statement: bytes, values: Sequence[Any] = (), *, again: bool = True
    ) -> Rows:
        """Run one statement, which is a transaction of its own, and return its rows.

        `again` says that it may be run a second time if nobody knows what became of the first.
        """
        return await self._do(lambda link: link.run(statement, values), again)

    async def transact(self, work: Work[T], *, again: bool = True) -> T:
        """Run work in one transaction."""

        async def run(link: Link) -> T:
            await link.run(b"BEGIN")
            try:
                result = await work(link)
            except Exception:
                with suppress(psycopg.Error):  # a broken connection undoes it as well
                    await link.run(b"ROLLBACK")
                raise
            await link.run(b"COMMIT")
            return result

        return await self._do(run, again)

    async def close(self) -> None:
        """Let go of all connections."""
        self._closed = True
        if os.getpid() == self._pid:
            await self._pool.close()

    async def _do(self, work: Work[T], again: bool) -> T:
        self._check_open()
        deadline = time.monotonic() + self._timeout
        pause = _FIRST_PAUSE
        while True:
            sent = False
            try:
                db = await self._take(deadline)
                sent = True
                try:
                    return await work(Link(db, self._timeout))
                finally:
                    await self._pool.give_back(db)
            except psycopg.Error as error:
                fault = translate(error)
                if time.monotonic() + pause > deadline:
                    raise fault from error
                if (is_lost(error) and (again or not sent)) or self._is_no_primary(fault):
                    await self._pool.drop_idle()
                elif not is_undone(error):
                    raise fault from error
            await asyncio.sleep(pause * random.uniform(0.5, 1))  # noqa: S311 - so that not all come at once
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _take(self, deadline: float) -> Connection:
        if self._pool.is_ready:
            return await self._pool.take()
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                return await self._pool.take()
        except TimeoutError:
            raise Unavailable(
                f"PostgreSQL: no connection was to be had within {self._timeout:g} seconds"
            ) from None

    def _is_no_primary(self, fault: Exception) -> bool:
        """Tell whether another of several servers may be the one to write to."""
        return self._several and isinstance(fault, ReadOnly)

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed("the store is closed")
        if os.getpid() != self._pid:
            raise StoreClosed("the store was opened before a fork; open it anew in each process")


def _hang_up(connection: Connection) -> None:
    """Wake whoever waits for an answer that does not come: for them the server closed the line."""
    with (
        suppress(OSError, psycopg.Error),
        socket.socket(fileno=os.dup(connection.fileno())) as line,
    ):
        line.shutdown(socket.SHUT_RDWR)
