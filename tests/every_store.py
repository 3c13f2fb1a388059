"""A fixture that opens each store in turn, empty."""

import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from keepthread.protocols import Store
from keepthread.stores import PostgresStore, RamStore, RedisStore, SQLiteStore
from keepthread.stores.outbox.store import OutboxStore


@pytest.fixture(params=["ram", "sqlite", "postgres", "redis", "outbox"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    """Open a store; a test that has a fixture `clock` gets that clock in it."""
    clock: Callable[[], float] = time.time
    if "clock" in request.fixturenames:
        clock = request.getfixturevalue("clock")
    opened: Store
    if request.param == "ram":
        opened = RamStore(clock=clock)
    elif request.param == "sqlite":
        opened = await SQLiteStore.open(tmp_path / "store.db", clock=clock)
    elif request.param == "postgres":
        server = request.getfixturevalue("postgres")
        opened = await PostgresStore.open(server.empty(), clock=clock)
    elif request.param == "redis":
        redis = request.getfixturevalue("redis_server")
        redis.ask("FLUSHALL")
        opened = await RedisStore.open(redis.url, clock=clock)
    else:
        target = tmp_path / "target.db"
        opened = await OutboxStore.open(
            tmp_path / "outbox.db",
            lambda: SQLiteStore.open(target, clock=clock),
            target="file",
            clock=clock,
        )
    try:
        yield opened
    finally:
        await opened.close()
