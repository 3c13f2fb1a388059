"""Run statements: on a free connection, within a deadline, with a retry if that is safe."""

import asyncio
import os
import random
import selectors
import socket
import time
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, TypeAlias, TypeVar

import psycopg
from psycopg import AsyncConnection
from psycopg.pq import TransactionStatus

from keepthread.errors import (
    Busy,
    Conflict,
    Damaged,
    InvalidInput,
    KeepthreadError,
    ReadOnly,
    SessionGone,
    Stale,
    StorageFull,
    StoreClosed,
    Unavailable,
    WrongFormat,
)
from keepthread.event_loops import PerLoop
from keepthread.stores.postgres.schema import SQL
from keepthread.stores.postgres.words import StatsCache


class Taken(Unavailable):
    """A key already exists in an index; only used inside this store."""


_OURS: Final[dict[str, type[KeepthreadError]]] = {
    "KT001": SessionGone,
    "KT002": Stale,
    "KT003": Conflict,
    "KT004": InvalidInput,
}

_BY_CODE: Final[dict[str, tuple[type[KeepthreadError], str]]] = {
    "23505": (Taken, "a key already exists"),
    "25006": (ReadOnly, "the server can be read but not written"),
    "40001": (Busy, "other transactions kept changing the same rows"),
    "40P01": (Busy, "lock conflicts on the same rows lasted too long"),
    "42501": (Unavailable, "the role lacks permission for this"),
    "53100": (StorageFull, "the server's disk is full"),
    "53200": (Unavailable, "the server is out of memory"),
    "53300": (Busy, "the server has too many connections"),
    "55P03": (Busy, "another client held the session for too long"),
    "57014": (Busy, "the server's response timed out"),
    "58030": (Unavailable, "the server's disk failed to read or write"),
    "3F000": (WrongFormat, "this is not a keepthread database; run `keepthread migrate`"),
    "42P01": (WrongFormat, "a table is missing; run `keepthread migrate`"),
    "42883": (WrongFormat, "a function is missing; run `keepthread migrate`"),
    "XX001": (Damaged, "the server's files are damaged"),
    "XX002": (Damaged, "an index of the server is damaged"),
}

_BY_CLASS: Final[dict[str, tuple[type[KeepthreadError], str]]] = {
    "28": (Unavailable, "the server refused the role or its password"),
    "3D": (Unavailable, "there is no such database"),
}

_LOST: Final = ("08", "57P")
_TRY_AGAIN: Final = ("40", "53300")


def translate(error: psycopg.Error) -> KeepthreadError:
    """Return our error for one of PostgreSQL's; the text includes PostgreSQL's."""
    code = error.sqlstate or ""
    said = error.diag.message_primary or " ".join(str(error).split()) or type(error).__name__
    if kind := _OURS.get(code):
        return kind(said)
    known = _BY_CODE.get(code) or _BY_CLASS.get(code[:2])
    kind, meaning = known or (Unavailable, "the server cannot be reached or failed")
    return kind(f"PostgreSQL: {meaning} ({said})")


def is_lost(error: psycopg.Error) -> bool:
    """Return whether the connection broke, so that the statement's outcome is unknown."""
    if error.sqlstate is None:
        return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    return error.sqlstate.startswith(_LOST)


def is_undone(error: psycopg.Error) -> bool:
    """Return whether the server rolled back the work and asks for a retry."""
    return (error.sqlstate or "").startswith(_TRY_AGAIN)


PgConnection: TypeAlias = AsyncConnection[tuple[Any, ...]]
Rows: TypeAlias = list[tuple[Any, ...]]

_GRACE: Final = 1.0  # seconds for the server to cancel a slow statement before we disconnect


class PgLink:
    """A connection in use; each statement has its own time limit."""

    def __init__(self, connection: PgConnection, timeout: float) -> None:
        """Wrap a connection."""
        self._connection = connection
        self._cursor = connection.cursor(binary=True)  # reused: it has cached how to pass each type
        self._patience = timeout + _GRACE

    async def run(self, statement: bytes, values: Sequence[Any] = ()) -> Rows:
        """Return the rows of one statement."""
        cursor = self._cursor
        timer = asyncio.get_running_loop().call_later(self._patience, _hang_up, self._connection)
        try:
            await cursor.execute(statement, values)
        finally:
            timer.cancel()
        has_rows = cursor.pgresult is not None and cursor.pgresult.nfields
        return await cursor.fetchall() if has_rows else []  # `description` would be computed again

    @property
    def is_idle(self) -> bool:
        """Return whether it can be reused: it is neither broken nor in a transaction."""
        return self._connection.pgconn.transaction_status == TransactionStatus.IDLE

    def is_quiet(self) -> bool:
        """Return whether nothing arrived while idle; data may mean that the server disconnected."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._connection, selectors.EVENT_READ)
            return not selector.select(0)

    async def close(self) -> None:
        """Close the connection."""
        await self._connection.close()


@contextmanager
def hung_up_after(connection: PgConnection, seconds: float) -> Generator[None]:
    """Close a connection without an answer after some seconds: the waiting caller gets an error.

    Canceling the task would not do: psycopg then waits for the server to confirm it.
    """
    timer = asyncio.get_running_loop().call_later(seconds, _hang_up, connection)
    try:
        yield
    finally:
        timer.cancel()


def _hang_up(connection: PgConnection) -> None:
    with (
        suppress(OSError, psycopg.Error),
        socket.socket(fileno=os.dup(connection.fileno())) as line,
    ):
        line.shutdown(socket.SHUT_RDWR)


Connect: TypeAlias = Callable[[], Awaitable[PgConnection]]


class Pool:
    """A limited number of connections, used from one event loop."""

    def __init__(self, connect: Connect, size: int, timeout: float) -> None:
        """Start without connections; a statement may take `timeout` seconds."""
        self._connect = connect
        self._timeout = timeout
        self._room = asyncio.Semaphore(size)
        self._idle: list[PgLink] = []
        self._closed = False

    @property
    def is_ready(self) -> bool:
        """Return whether a connection is available without waiting."""
        return bool(self._idle) and not self._room.locked()

    async def take(self) -> PgLink:
        """Return a connection for exclusive use, a new one if necessary."""
        await self._room.acquire()
        if self._idle:
            return self._idle.pop()
        try:
            return PgLink(await self._connect(), self._timeout)
        except BaseException:
            self._room.release()
            raise

    async def give_back(self, link: PgLink) -> None:
        """Return a connection to the pool, unless it is broken or in a transaction."""
        self._room.release()
        if link.is_idle and not self._closed:
            self._idle.append(link)
        else:
            await link.close()

    async def drop_idle(self) -> None:
        """Close idle connections: their server is gone, or is not the primary any more."""
        while self._idle:
            await self._idle.pop().close()

    async def close(self) -> None:
        """Close all connections; those in use are closed when they are returned."""
        self._closed = True
        await self.drop_idle()


T = TypeVar("T")

_FIRST_PAUSE: Final = 0.02
_LONGEST_PAUSE: Final = 1.0
_ASK_EVERY: Final = 1.0  # seconds after which a server's settings are read again
MAX_TENANTS: Final = 10_000
"""The number of tenants whose numbers are cached."""

Work: TypeAlias = Callable[[PgLink], Awaitable[T]]


class PgEngine:
    """The connections to one database, shared by all tenants; each event loop has its own."""

    def __init__(
        self,
        connect: Connect,
        *,
        size: int,
        timeout: float,
        several: bool,
        declare: Callable[..., None],
    ) -> None:
        """Connect later; with `several` servers, another may take over.

        `declare` gets from time to time the settings that decide what writes survive.
        """
        self._pools = PerLoop(lambda: Pool(connect, size, timeout), Pool.close)
        self._declare = declare
        self._ask_at = time.monotonic() + _ASK_EVERY
        self._timeout = timeout
        self._several = several
        self._pid = os.getpid()
        self._closed = False
        self._tenants: dict[str, int] = {}
        self.vectors_put = 0
        self.stats = StatsCache()

    async def call(
        self, statement: bytes, values: Sequence[Any] = (), *, again: bool = True
    ) -> Rows:
        """Run one statement in its own transaction, and return its rows.

        `again` allows a retry if the outcome of the first attempt is unknown.
        """
        return await self._do(lambda link: link.run(statement, values), again)

    async def transact(self, work: Work[T], *, again: bool = True) -> T:
        """Run work in one transaction."""

        async def run(link: PgLink) -> T:
            await link.run(b"BEGIN")
            try:
                result = await work(link)
            except Exception:
                with suppress(psycopg.Error):  # a broken connection is rolled back as well
                    await link.run(b"ROLLBACK")
                raise
            await link.run(b"COMMIT")
            return result

        return await self._do(run, again)

    def tenant_number(self, name: str) -> int:
        """Return the number of a tenant, 0 if it is not cached."""
        return self._tenants.get(name, 0)

    def note_tenant(self, name: str, number: int) -> None:
        """Cache the number of a tenant, which never changes."""
        if len(self._tenants) >= MAX_TENANTS:
            self._tenants.clear()  # at worst, a number is read again
        self._tenants[name] = number

    async def close(self) -> None:
        """Close all connections."""
        self._closed = True
        if os.getpid() == self._pid:
            await self._pools.close()

    async def _do(self, work: Work[T], again: bool) -> T:
        self.check_open()
        pool = self._pools.current()
        deadline = time.monotonic() + self._timeout
        pause = _FIRST_PAUSE
        while True:
            sent = False
            try:
                link = await self._take(pool, deadline)
                try:
                    if time.monotonic() > self._ask_at or not (again or link.is_quiet()):
                        await self._ask(link)
                    sent = True
                    return await work(link)
                finally:
                    await pool.give_back(link)
            except psycopg.Error as error:
                fault = translate(error)
                if time.monotonic() + pause > deadline:
                    raise fault from error
                if (is_lost(error) and (again or not sent)) or self._is_no_primary(fault):
                    await pool.drop_idle()
                elif not is_undone(error):
                    raise fault from error
            await asyncio.sleep(pause * random.uniform(0.5, 1))  # noqa: S311 - spreads the retries of many clients
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _ask(self, link: PgLink) -> None:
        """Read the server's durability again: settings may change while connections are open."""
        (settings,) = await link.run(SQL["durability"])
        self._declare(*settings)
        self._ask_at = time.monotonic() + _ASK_EVERY

    async def _take(self, pool: Pool, deadline: float) -> PgLink:
        if pool.is_ready:
            return await pool.take()
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                return await pool.take()
        except TimeoutError:
            raise Unavailable(
                f"PostgreSQL: no connection became available within {self._timeout:g} seconds"
            ) from None

    def _is_no_primary(self, fault: Exception) -> bool:
        """Return whether a different server may be the primary."""
        return self._several and isinstance(fault, ReadOnly)

    def check_open(self) -> None:
        """Raise `StoreClosed` if it was closed, or opened in another process."""
        if self._closed:
            raise StoreClosed("the store is closed; open it again")
        if os.getpid() != self._pid:
            raise StoreClosed("the store was opened before a fork; open it again in each process")
