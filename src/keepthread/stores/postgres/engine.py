"""Running statements: on a connection that is free, within a deadline, again if that is safe."""

import asyncio
import os
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Final, TypeAlias, TypeVar

import psycopg

from keepthread.errors import ReadOnly, StoreClosed, Unavailable
from keepthread.loops import PerLoop
from keepthread.stores.postgres.faults import is_lost, is_undone, translate
from keepthread.stores.postgres.link import Link, Rows
from keepthread.stores.postgres.pool import Connect, Pool
from keepthread.stores.postgres.statements import SQL

T = TypeVar("T")

_FIRST_PAUSE: Final = 0.02
_LONGEST_PAUSE: Final = 1.0
_ASK_EVERY: Final = 1.0  # seconds after which a server's settings are read anew
MAX_TENANTS: Final = 10_000
"""How many tenants' numbers are remembered."""

Work: TypeAlias = Callable[[Link], Awaitable[T]]


class Engine:
    """The connections to one database, shared by every tenant on it; each loop has its own."""

    def __init__(
        self,
        connect: Connect,
        *,
        size: int,
        timeout: float,
        several: bool,
        declare: Callable[..., None],
    ) -> None:
        """Connect to nothing yet; `several` servers may take over from each other.

        `declare` is told now and then which settings decide what writes survive.
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

    def tenant_number(self, name: str) -> int:
        """Return the number of a tenant, 0 if this process does not know it."""
        return self._tenants.get(name, 0)

    def note_tenant(self, name: str, number: int) -> None:
        """Remember the number of a tenant, which never changes."""
        if len(self._tenants) >= MAX_TENANTS:
            self._tenants.clear()  # at worst a number is asked for once more
        self._tenants[name] = number

    async def close(self) -> None:
        """Let go of all connections."""
        self._closed = True
        if os.getpid() == self._pid:
            await self._pools.close()

    async def _do(self, work: Work[T], again: bool) -> T:
        self._check_open()
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
            await asyncio.sleep(pause * random.uniform(0.5, 1))  # noqa: S311 - so that not all come at once
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _ask(self, link: Link) -> None:
        """Learn what writes survive now, for settings change under open connections."""
        (settings,) = await link.run(SQL["durability"])
        self._declare(*settings)
        self._ask_at = time.monotonic() + _ASK_EVERY

    async def _take(self, pool: Pool, deadline: float) -> Link:
        if pool.is_ready:
            return await pool.take()
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                return await pool.take()
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
