"""Bare FastAPI routes over the same rows: one INSERT, one SELECT, and nothing around them.

`python -m bench.http.bare URL PORT WORKERS` serves them. Bodies and replies are checked by models,
as FastAPI's documentation shows it; there are no keys, limits, logs or retries.
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import uvicorn
from fastapi import FastAPI
from psycopg.types.numeric import Int8BinaryDumper
from pydantic import BaseModel

from bench.corpus import COUNTER
from bench.postgres.bare import INSERT, NEWEST_OF
from keepthread.stores.codec import new_id

URL = "KEEPTHREAD_BENCH_URL"
"""The variable that gives workers the address of the database."""
CONNECTIONS = 10
"""Connections of one worker, as keepthread opens them by default."""
_ROLES = ("system", "user", "assistant", "tool")


class Row(BaseModel):
    """A message as it is sent and returned."""

    role: str
    content: str
    id: str = ""
    tokens: int = 0
    counter: str = COUNTER
    seq: int = 0
    turn: int = 0
    turns: int = 0
    total: int = 0
    created_at: float = 0.0
    digest: str = ""
    guard: str = ""
    extra: str = ""


class Rows(BaseModel):
    """Rows of one session, oldest first."""

    items: list[Row]


class Pool:
    """Connections that requests take in turn."""

    def __init__(self) -> None:
        self._free: asyncio.Queue[psycopg.AsyncConnection] = asyncio.Queue()

    async def open(self, url: str) -> None:
        """Connect, prepared statements and binary numbers as keepthread has them."""
        for _ in range(CONNECTIONS):
            db = await psycopg.AsyncConnection.connect(url, autocommit=True, prepare_threshold=0)
            db.adapters.register_dumper(int, Int8BinaryDumper)
            self._free.put_nowait(db)

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[psycopg.AsyncConnection]:
        """Give a connection for one statement."""
        taken = await self._free.get()
        try:
            yield taken
        finally:
            self._free.put_nowait(taken)


pool = Pool()


@asynccontextmanager
async def _opened(_: FastAPI) -> AsyncIterator[None]:
    await pool.open(os.environ[URL])
    yield


app = FastAPI(lifespan=_opened)


@app.post("/sessions/{tenant}/{sid}/messages", status_code=201)
async def append(tenant: int, sid: int, row: Row) -> Row:
    """Insert a row; it is a commit."""
    id = bytes.fromhex(new_id())
    numbers = (row.tokens, row.seq, row.seq, row.seq * row.tokens, 1.8e9 + row.seq, tenant, 1)
    bytes_ = (id, COUNTER.encode(), id * 2, id[:8], b"", row.content.encode())
    async with pool.connection() as db:
        await db.execute(INSERT, (sid, row.seq, *numbers, *bytes_))
    return row.model_copy(update={"id": id.hex(), "digest": (id * 2).hex(), "guard": id[:8].hex()})


@app.get("/sessions/{tenant}/{sid}/newest")
async def newest(tenant: int, sid: int) -> Rows:
    """Return the last rows of a session."""
    async with pool.connection() as db:
        cursor = await db.execute(NEWEST_OF, (tenant, sid), binary=True)
        found = await cursor.fetchall()
    return Rows(items=[_row(*each) for each in reversed(found)])


def _row(seq: int, id: bytes, role: int, content: bytes, extra: bytes, *rest: Any) -> Row:
    tokens, counter, turn, turns, total, created_at, digest, guard = rest
    return Row.model_construct(
        role=_ROLES[role],
        content=content.decode(),
        id=id.hex(),
        tokens=tokens,
        counter=counter.decode(),
        seq=seq,
        turn=turn,
        turns=turns,
        total=total,
        created_at=created_at,
        digest=digest.hex(),
        guard=guard.hex(),
        extra=extra.hex(),
    )


def main(url: str, port: str, workers: str) -> None:
    """Serve until a signal."""
    os.environ[URL] = url
    uvicorn.run(
        "bench.http.bare:app",
        port=int(port),
        workers=int(workers),
        http="h11",  # the parser that keepthread uses
        timeout_keep_alive=60,
        access_log=False,
        log_level="error",
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
