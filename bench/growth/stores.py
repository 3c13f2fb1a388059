"""The stores that are measured: where each is, how it is opened, its CPU and its calls.

A call is what the client sends: a statement on SQLite and PostgreSQL, a command or a script on
Redis; commands that are sent together are one call.
"""

import functools
import sqlite3
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from bench import Run
from bench.rates import children, quarter_of_memory, server_cpu
from keepthread.protocols import Store
from keepthread.stores import PostgresStore, RedisStore, SQLiteStore
from keepthread.stores.postgres.engine import PgLink
from keepthread.stores.postgres.schema import SQL
from keepthread.stores.redis.engine import RedisLink
from keepthread.stores.sqlite.file import connect
from servers import postgres, redis

STORES = ("sqlite", "postgres", "redis")
_CONNECTIONS = 16


class Cost(NamedTuple):
    """What one operation takes: seconds of CPU on both sides, and calls of the store."""

    client: float = 0.0
    server: float = 0.0
    calls: float = 0.0

    @property
    def cpu(self) -> float:
        """Return the CPU of both sides."""
        return self.client + self.server


class Calls:
    """Counts the calls of all open stores."""

    number = 0


class CountingConnection(sqlite3.Connection):
    """A connection that counts its statements."""

    def execute(self, *args: Any) -> sqlite3.Cursor:
        Calls.number += 1
        return super().execute(*args)

    def executemany(self, *args: Any) -> sqlite3.Cursor:
        Calls.number += 1
        return super().executemany(*args)


@contextmanager
def counting() -> Iterator[None]:
    """Count what is sent to servers."""
    with ExitStack() as stack:
        for kind, name in ((PgLink, "run"), (RedisLink, "_send"), (RedisLink, "_send_together")):
            original = getattr(kind, name)
            setattr(kind, name, _counted(original))
            stack.callback(setattr, kind, name, original)
        yield


def _counted(send: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    @functools.wraps(send)
    async def counted(self: Any, *args: Any) -> Any:
        if args[0] != SQL["durability"]:  # it is asked once a second, whatever is done
            Calls.number += 1
        return await send(self, *args)

    return counted


Pids: TypeAlias = Callable[[], list[int]]


class Meter:
    """Measures what runs inside of `with`, and adds it up."""

    def __init__(self, pids: Pids) -> None:
        self._pids = pids
        self._start = Cost()
        self.spent = Cost()

    def __enter__(self) -> None:
        server = server_cpu(self._pids())
        self._start = Cost(time.process_time(), server, Calls.number)

    def __exit__(self, *_: object) -> None:
        client, calls = time.process_time(), Calls.number
        end = Cost(client, server_cpu(self._pids()), calls)
        spent = zip(self.spent, end, self._start, strict=True)
        self.spent = Cost(*(before + after - start for before, after, start in spent))


class Site(NamedTuple):
    """Where one store is: how to open it, and the processes that serve it."""

    open: Callable[[], Awaitable[Store]]
    pids: Pids
    settle: Callable[[], object]
    """Lets the engine finish what filling left to do."""


@contextmanager
def sites(run: Run, name: str, number: int) -> Iterator[list[Site]]:
    """Give so many empty stores of one kind."""
    if name == "sqlite":
        yield [_file(run.memory / f"{number}-{place}.db") for place in range(number)]
        for path in run.memory.glob("*.db*"):
            path.unlink()
    elif name == "postgres":
        settings = {"autovacuum_naptime": "1h", "max_wal_size": "8GB"}
        if not run.quick:
            settings["shared_buffers"] = quarter_of_memory()
        with closing(postgres.new_server(**settings)) as server:
            yield [_database(server, f"growth{place}") for place in range(number)]
    else:
        with ExitStack() as stack:
            servers = [stack.enter_context(closing(redis.new_server())) for _ in range(number)]
            yield [_server(server) for server in servers]


def _file(path: Path) -> Site:
    async def opened() -> Store:
        return await SQLiteStore.open(path, connect=lambda uri: connect(uri, CountingConnection))

    return Site(opened, list, lambda: None)


def _database(server: postgres.PostgresServer, name: str) -> Site:
    url = server.create_database(name)
    process = server.process
    assert process

    async def opened() -> Store:
        return await PostgresStore.open(url, connections=_CONNECTIONS)

    def backends() -> list[int]:
        return [pid for pid in children(process.pid) if _serves(pid, name)]

    def settle() -> None:
        server.execute("VACUUM ANALYZE", database=name)
        server.execute("CHECKPOINT", database=name)

    return Site(opened, backends, settle)


def _serves(pid: int, database: str) -> bool:
    """Tell whether a process serves clients of a database, by the title it gives itself."""
    try:
        return f" {database} " in Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    except OSError:  # it has ended
        return False


def _server(server: redis.RedisServer) -> Site:
    async def opened() -> Store:
        return await RedisStore.open(server.url, connections=_CONNECTIONS)

    assert server.process
    pid = server.process.pid
    return Site(opened, lambda: [pid], lambda: None)
