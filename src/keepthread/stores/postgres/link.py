"""A connection and the cursor that all its statements go through, each within its time."""

import asyncio
import os
import selectors
import socket
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, TypeAlias

import psycopg
from psycopg import AsyncConnection
from psycopg.pq import TransactionStatus

Connection: TypeAlias = AsyncConnection[tuple[Any, ...]]
Rows: TypeAlias = list[tuple[Any, ...]]

_GRACE: Final = 1.0  # the server ends what takes too long; if not even that arrives, we hang up


class Link:
    """A connection in use; each statement has a time limit of its own."""

    def __init__(self, connection: Connection, timeout: float) -> None:
        """Speak through a connection."""
        self._connection = connection
        self._cursor = connection.cursor(binary=True)  # one knows by now how to pass each type
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
        return await cursor.fetchall() if has_rows else []  # a description would be made anew

    @property
    def is_idle(self) -> bool:
        """Tell whether others may have it: it is neither broken nor in the middle of something."""
        return self._connection.pgconn.transaction_status == TransactionStatus.IDLE

    def is_quiet(self) -> bool:
        """Tell whether nothing came while idle; if something did, the server may have hung up."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._connection, selectors.EVENT_READ)
            return not selector.select(0)

    async def close(self) -> None:
        """Let go of the connection."""
        await self._connection.close()


@contextmanager
def hung_up_after(connection: Connection, seconds: float) -> Generator[None]:
    """Close a line on which no answer comes within some seconds: whoever waits gets an error.

    Canceling the task would not do: psycopg then waits for the server to confirm it.
    """
    timer = asyncio.get_running_loop().call_later(seconds, _hang_up, connection)
    try:
        yield
    finally:
        timer.cancel()


def _hang_up(connection: Connection) -> None:
    with (
        suppress(OSError, psycopg.Error),
        socket.socket(fileno=os.dup(connection.fileno())) as line,
    ):
        line.shutdown(socket.SHUT_RDWR)
