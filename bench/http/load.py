"""Load on a server: as much as it takes, or so many requests a second."""

import asyncio
import time
from collections.abc import Iterator, Sequence
from itertools import count

from bench.http.client import Address, Connection
from bench.http.served import check
from bench.rates import TASKS

_CONNECTIONS = 64
"""Connections of a load that does not wait for answers before it sends."""


class Clients:
    """Some connections to a server, each with one request at a time."""

    def __init__(self, connections: Sequence[Connection]) -> None:
        self._connections = connections

    @classmethod
    async def open(cls, address: Address, number: int = TASKS) -> "Clients":
        """Connect."""
        return cls([await Connection.open(address) for _ in range(number)])

    async def send(self, requests: Sequence[bytes]) -> None:
        """Send all requests, each connection the next one when it has an answer."""
        coming = iter(requests)
        await asyncio.gather(*(self._send(each, coming) for each in self._connections))

    async def _send(self, connection: Connection, coming: Iterator[bytes]) -> None:
        for request in coming:
            check(await connection.send(request))

    async def ask(self, request: bytes) -> bytes:
        """Send one request, and return its response."""
        answer = await self._connections[0].send(request)
        check(answer)
        return answer

    def close(self) -> None:
        """Close the connections."""
        for each in self._connections:
            each.close()


async def latencies(address: Address, requests: Sequence[bytes], rate: float) -> list[float]:
    """Send so many requests a second, whatever the answers do; return the seconds of each.

    A request's time begins when it is due, so one that waits for a free connection counts whole.
    """
    free: asyncio.Queue[Connection] = asyncio.Queue()
    connections = [await Connection.open(address) for _ in range(_CONNECTIONS)]
    for each in connections:
        free.put_nowait(each)
    begun = time.perf_counter() + 0.01
    found: list[float] = []

    async def send(request: bytes, due: float) -> None:
        connection = await free.get()
        check(await connection.send(request))
        free.put_nowait(connection)
        found.append(time.perf_counter() - due)

    async with asyncio.TaskGroup() as group:
        for number, request in zip(count(), requests, strict=False):
            due = begun + number / rate
            if (left := due - time.perf_counter()) > 0:
                await asyncio.sleep(left)
            group.create_task(send(request, due))
    for each in connections:
        each.close()
    return sorted(found)


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the value that a share of the values does not exceed."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
