"""What a PostgreSQL server runs out of, or is told not to do: for P15."""

import asyncio
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any, Final

import psycopg

from keepthread.errors import Busy, StorageFull, Unavailable
from proofs.trials import (
    LONG_SESSION,
    Fault,
    SmallDisk,
    Trial,
    no_descriptors,
    write_long,
)
from servers import postgres
from servers.postgres import PostgresServer
from servers.redis import wait_for

QUICK: Final = {"deadline": 2.0}
_OURS: Final = "FROM pg_stat_activity WHERE application_name = 'keepthread'"
_CONNECTED: Final = f"SELECT pid {_OURS}"
_WAITING: Final = f"{_OURS} AND wait_event_type = 'Lock'"


@contextmanager
def new_server() -> Iterator[PostgresServer]:
    """Start a server that few may connect to, and that reads nothing by itself."""
    server = postgres.new_server(max_connections="20", autovacuum="off")
    try:
        yield server
    finally:
        server.close()


def empty(server: PostgresServer) -> str:
    """Take everything out of the database, and return how to reach it."""
    return server.empty()


# --- connections ---


async def too_many_connections(trial: Trial) -> None:
    store = await trial.begin()
    with ExitStack() as crowd:
        with suppress(psycopg.OperationalError):
            while True:
                crowd.enter_context(psycopg.connect(trial.url))
        await trial.refused("opening", trial.open(), Unavailable)
        many = [trial.attempt("one of many", trial.say(store), Unavailable) for _ in range(20)]
        await asyncio.gather(*many)
        await trial.hear_all("with no connection left", store)
    await trial.recover("with connections again", store)


@contextmanager
def session_held(trial: Trial) -> Iterator[None]:
    """Hold the session's row, so that whoever appends to it waits."""
    with psycopg.connect(trial.url) as holder:
        holder.execute("SELECT * FROM keepthread.sessions FOR UPDATE")
        yield


async def held_too_long(trial: Trial) -> None:
    store = await trial.begin()
    with session_held(trial):
        await trial.refused("an append to what another holds", trial.say(store), Busy)
        await trial.hear_all("while it is held", store)
    await trial.recover("when it is free", store)


async def interrupt(trial: Trial, function: str) -> None:
    """Do as an administrator does to a statement that waits."""
    execute = partial(trial.server.execute, database="keepthread")
    waits = partial(execute, f"SELECT pid {_WAITING}")
    await asyncio.to_thread(wait_for, "an append that waits", waits)
    await asyncio.to_thread(execute, f"SELECT {function}(pid) {_WAITING}")


async def cancelled(trial: Trial) -> None:
    store = await trial.begin()
    with session_held(trial):
        append = trial.refused("a cancelled append", trial.say(store), Busy)
        await asyncio.gather(append, interrupt(trial, "pg_cancel_backend"))
        await trial.hear_all("after it was cancelled", store)
    await trial.recover("not cancelled", store)


async def terminated(trial: Trial) -> None:
    """A connection that is ended is made anew, and the append on it is stored once."""
    store = await trial.begin()
    with ExitStack() as held:
        held.enter_context(session_held(trial))
        append = asyncio.create_task(trial.attempt("an append", trial.say(store), ()))
        await interrupt(trial, "pg_terminate_backend")
        held.close()
        await append
    await trial.hear_all("after its connection was ended", store)
    await trial.recover("connected again", store)


# --- what may not be written ---


def make_read_only(server: PostgresServer, on: str) -> None:
    server.execute(f"ALTER SYSTEM SET default_transaction_read_only = {on}")
    server.execute("SELECT pg_reload_conf()")
    shown = partial(server.execute, "SHOW default_transaction_read_only")
    wait_for("the new setting", lambda: shown() == [(on,)])


async def read_only(trial: Trial) -> None:
    store = await trial.begin()
    make_read_only(trial.server, "on")
    try:
        await trial.hear_all("a read-only server", store)
        await trial.write_nothing("a read-only server", store)
        other = await trial.attempt("opening a read-only server", trial.open(), ())
        if other:
            await trial.hear_all("a read-only server, opened anew", other)
            await trial.write_nothing("a read-only server, opened anew", other)
            await other.close()
    finally:
        make_read_only(trial.server, "off")
    await trial.recover("writable again", store)


# --- disks ---


async def open_and_read(trial: Trial, what: str) -> None:
    """Hold a full store to opening and reading, and to refusing a large append."""
    store = await trial.attempt(what, trial.open(), ())
    if store:
        await trial.hear_all(what, store)
        await trial.attempt(f"{what}, an append", trial.say(store, 900_000), StorageFull)
        await trial.hear_all(f"{what}, after an append", store)
        await store.close()


async def disk_full(trial: Trial) -> None:
    """The tables are on a small disk; the server's log is not, and the server goes on."""
    server: PostgresServer = trial.server
    disk = SmallDisk(trial, 64 << 20, server.folder / "small")
    (disk.folder / "tables").mkdir(mode=0o777)
    give_away(server, disk.folder / "tables")
    server.execute(f"CREATE TABLESPACE small LOCATION '{disk.folder / 'tables'}'")
    server.execute("CREATE DATABASE small TABLESPACE small")
    trial.url = server.url("small")
    store = await trial.begin()
    disk.fill(left=1_000_000)
    await trial.say_until_refused(store, 50_000, StorageFull)
    await trial.hear_all("while full", store)
    await open_and_read(trial, "while full, opened anew")
    disk.free()
    await trial.recover("with room again", store)
    server.execute("CHECKPOINT")  # what it has yet to write would keep the server from starting
    disk.fill(left=0)
    await asyncio.to_thread(server.restart)
    await open_and_read(trial, "while full, the server restarted")
    disk.free()
    await trial.recover("restarted, with room again")
    server.execute("DROP DATABASE small WITH (FORCE)")
    server.execute("DROP TABLESPACE small")
    disk.close()


async def log_disk_full(trial: Trial) -> None:
    """The server's own log finds no room; if the server gives up, it is started again."""
    with new_server() as server:
        disk = SmallDisk(trial, 96 << 20, server.folder / "small")
        move_log(server, disk)
        trial.url = server.url()
        store = await trial.begin()
        disk.fill(left=0)
        trial.in_doubt = True
        await trial.say_until_refused(store, 400_000, Unavailable)
        disk.free()
        if server.process and server.process.poll() is not None:
            server.process = None
            server.start()
        else:
            server.wait()
        await trial.recover("with room again", store)
        server.stop()
        disk.close()


def move_log(server: PostgresServer, disk: SmallDisk) -> None:
    log, moved = server.data / "pg_wal", disk.folder / "pg_wal"
    server.stop()
    shutil.copytree(log, moved)
    shutil.rmtree(log)
    log.symlink_to(moved)
    for path in (moved, *moved.rglob("*")):
        give_away(server, path)
    server.start()


def give_away(server: PostgresServer, path: Any) -> None:
    """Give a path to the user whom the server runs as."""
    owner = server.folder.stat()
    os.chown(path, owner.st_uid, owner.st_gid)


# --- a long session ---


async def a_long_session(trial: Trial) -> None:
    store = await trial.open()
    keys = [await write_long(store, f"{n}", n) for n in (100, LONG_SESSION)]
    await store.close()
    trial.server.execute("ANALYZE")
    blocks = [await blocks_read(trial, key) for key in keys]
    trial.errors.append(
        f"none; {blocks[1]} blocks for 50 of {LONG_SESSION}, {blocks[0]} for 50 of 100"
    )
    if blocks[1] > blocks[0] + 10:  # an index of more levels
        trial.broken.append(f"the tail of a long session reads {blocks[1]} blocks, not {blocks[0]}")


async def blocks_read(trial: Trial, key: Any) -> int:
    """Return the blocks that a tail reads, which a connection reports at its end."""
    counts: list[int] = []
    for times in (0, 1):
        store = await trial.open()
        await store.describe(key)
        before = reported(trial.server)
        for _ in range(times):
            assert len(await store.tail(key, tokens=500)) == 50
        await store.close()
        wait_for("the end of the connections", lambda: not trial.server.execute(_CONNECTED))
        counts.append(reported(trial.server) - before)
    return counts[1] - counts[0]


def reported(server: PostgresServer) -> int:
    ((count,),) = server.execute(
        "SELECT sum(heap_blks_read + heap_blks_hit + coalesce(idx_blks_read + idx_blks_hit, 0))"
        "::bigint FROM pg_statio_user_tables WHERE schemaname = 'keepthread'"
    )
    return count


FAULTS: Final = (
    Fault("too many connections", too_many_connections),
    Fault("too many files of the client", no_descriptors),
    Fault("a session held for too long", held_too_long),
    Fault("a statement cancelled", cancelled),
    Fault("a connection ended", terminated),
    Fault("read-only server", read_only),
    Fault("disk of the tables full", disk_full, needs_disk=True),
    Fault("a long session", a_long_session),
    Fault("disk of the server's log full", log_disk_full, needs_disk=True),
)
