"""The bare driver: the same columns in a plain table, as many connections, no keepthread."""

from itertools import count as counting
from itertools import cycle, islice
from typing import Any, Self

import psycopg
from psycopg.types.numeric import Int8BinaryDumper

from bench.corpus import COUNTER, texts, tokens_of
from bench.rates import TASKS, together
from bench.tasks import READ
from keepthread.stores.codec import new_id

TABLE = "CREATE TABLE bare (LIKE keepthread.messages, PRIMARY KEY (tenant, sid, seq))"
"""The columns of ours in their order, neither walls nor partitions, one index."""
COPY = "INSERT INTO bare SELECT * FROM keepthread.messages ORDER BY seq, sid"
INSERT = b"""
INSERT INTO bare (
    sid, seq, tokens, turn, turns, total, created_at, tenant, role, id, counter, digest,
    guard, extra, content
) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)
"""
NEWEST = f"""
SELECT seq, id, role, content, extra, tokens, counter, turn, turns, total, created_at,
       digest, guard
FROM bare WHERE tenant = {{}} AND sid = {{}} ORDER BY seq DESC LIMIT {READ}
"""
NEWEST_OF = NEWEST.format("%s", "%s").encode()


class Bare:
    """Tasks with a connection each, which is used as psycopg's documentation shows it."""

    def __init__(self, connections: list[Any], tenant: int, sids: list[int], size: int) -> None:
        self._connections = connections
        self._tenant = tenant
        self._sids = [cycle(sids[task::TASKS]) for task in range(TASKS)]
        self._contents = [text.encode() for text in texts(size)]
        self._tokens = tokens_of(size)
        self._places = [counting(1) for _ in range(TASKS)]

    @classmethod
    async def open(cls, url: str, tenant: int, sids: list[int], size: int) -> Self:
        """Connect, prepared statements and binary numbers as keepthread has them."""
        connections: list[Any] = []
        for _ in range(TASKS):
            db = await psycopg.AsyncConnection.connect(url, autocommit=True, prepare_threshold=0)
            db.adapters.register_dumper(int, Int8BinaryDumper)
            connections.append(db)
        return cls(connections, tenant, sids, size)

    async def append(self, count: int) -> None:
        """Insert a row, so many times; each is a commit."""
        await together(count, self._append)

    async def _append(self, task: int, count: int) -> None:
        execute = self._connections[task].execute
        for row in [self._row(task, seq) for seq in islice(self._places[task], count)]:
            await execute(INSERT, row)

    def _row(self, task: int, seq: int) -> tuple[Any, ...]:
        id, text = bytes.fromhex(new_id()), self._contents[seq % len(self._contents)]
        numbers = (
            self._tokens,
            seq,
            seq,
            seq * self._tokens,
            1.8e9 + seq,
            self._tenant,
            seq % 2 + 1,
        )
        return (-task, seq, *numbers, id, COUNTER.encode(), id * 2, id[:8], b"", text)

    async def newest(self, count: int) -> None:
        """Read the last rows of a session, so many times."""
        await together(count, self._newest)

    async def _newest(self, task: int, count: int) -> None:
        execute = self._connections[task].execute
        for sid in islice(self._sids[task], count):
            cursor = await execute(NEWEST_OF, (self._tenant, sid), binary=True)
            assert len(await cursor.fetchall()) == READ

    async def close(self) -> None:
        """Close the connections."""
        for connection in self._connections:
            await connection.close()
