"""What a Redis server runs out of, or cannot do: for P15."""

import asyncio
import signal
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from typing import Any, Final

from redis import Redis, ResponseError

from keepthread.errors import Busy, ReadOnly, StorageFull, Unavailable
from keepthread.stores.redis import Timeouts
from proofs.trials import (
    LONG_SESSION,
    Fault,
    SmallDisk,
    Trial,
    no_descriptors,
    write_long,
)
from servers import redis
from servers.redis import RedisServer, wait_for

QUICK: Final = {"timeouts": Timeouts(connect=1.0, answer=1.0, again=1.0)}
_SLOWLY: Final = {  # microseconds for each key of its snapshot; bytes after which it answers
    "key-load-delay": "4000",
    "loading-process-events-interval-bytes": "1024",
}
_ON_DISK: Final = {"appendonly": "yes", "appendfsync": "always"}


@contextmanager
def new_server(**config: str) -> Iterator[RedisServer]:
    """Start a server that writes its log before it answers."""
    server = redis.new_server(**(_ON_DISK | config))
    try:
        yield server
    finally:
        server.close()


def empty(server: RedisServer) -> str:
    """Take everything out, and return how to reach it."""
    server.ask("FLUSHALL")
    return server.url


def tells(server: RedisServer, section: str, name: str, value: Any) -> bool:
    """Tell whether a server's INFO says so."""
    return server.ask("INFO", section).get(name) == value


# --- memory, connections, time ---


async def memory_full(trial: Trial) -> None:
    store = await trial.begin()
    used = trial.server.ask("INFO", "memory")["used_memory"]
    trial.server.ask("CONFIG", "SET", "maxmemory", used + 2_000_000)
    await trial.say_until_refused(store, 50_000, StorageFull)
    await trial.hear_all("while full", store)
    other = await trial.attempt("opening a full store", trial.open(), ())
    if other:
        await trial.hear_all("while full, opened anew", other)
        await other.close()
    trial.server.ask("CONFIG", "SET", "maxmemory", "0")
    await trial.recover("with room again", store)


async def too_many_clients(trial: Trial) -> None:
    store = await trial.begin()
    with Redis(port=trial.server.port, protocol=2) as admin:
        connected = admin.info("clients")["connected_clients"]  # pyright: ignore[reportIndexIssue]
        admin.config_set("maxclients", connected)
        try:
            await trial.refused("opening", trial.open(), Unavailable)
            await trial.attempt("an append", trial.say(store), ())
            await trial.hear_all("with no connection left", store)
            many = [trial.attempt("one of many", trial.say(store), Unavailable) for _ in range(20)]
            await asyncio.gather(*many)
        finally:
            admin.config_set("maxclients", 10_000)
    await trial.recover("with connections again", store)


async def busy_script(trial: Trial) -> None:
    """Another's script runs without end; the store says so until it is killed."""
    store = await trial.begin()
    trial.server.ask("CONFIG", "SET", "busy-reply-threshold", "100")
    with Redis(port=trial.server.port, protocol=2) as other:
        endless = asyncio.create_task(asyncio.to_thread(other.eval, "while true do end", 0))
        await asyncio.to_thread(wait_for, "a busy server", partial(is_busy, trial.server))
        await trial.refused("an append to a busy server", trial.say(store), Busy)
        await trial.refused("opening a busy server", trial.open(), Busy)
        trial.server.ask("SCRIPT", "KILL")
        with suppress(ResponseError):
            await endless
    await trial.recover("no longer busy", store)


def is_busy(server: RedisServer) -> bool:
    try:
        return not server.ask("PING")
    except Exception as error:  # noqa: BLE001 - the driver has several errors for it
        return "BUSY" in str(error)


async def loading(trial: Trial) -> None:
    """A server that is still loading is waited for, but not for ever."""
    with new_server() as server:
        trial.url = server.url
        store = await trial.begin()
        for number in range(200):
            await write_long(store, f"{number}", 1)
        server.ask("BGREWRITEAOF")
        rewrites = ("aof_rewrite_in_progress", "aof_rewrite_scheduled")
        wait_for("a snapshot", lambda: all(tells(server, "persistence", r, 0) for r in rewrites))
        server.config |= _SLOWLY
        trial.in_doubt = True  # what waits for an answer is sent, and may be done later
        back = asyncio.create_task(asyncio.to_thread(server.restart))
        seen: set[str] = set()
        while not back.done():
            try:
                await trial.say(store)
            except Unavailable as error:
                seen.add(str(error))
        await back
        trial.errors += ["Unavailable"] if seen else []
        if not any("loading" in text for text in seen):
            trial.broken.append(f"the server was never seen loading: {seen}")
        await trial.recover("loaded", store)


# --- what may not be written ---


async def a_replica(trial: Trial) -> None:
    first = await trial.begin()
    await first.close()
    with closing(trial.server.replica()) as replica:
        store = await trial.open(replica.url)
        await trial.hear_all("a replica", store)
        await trial.write_nothing("a replica", store)
        replica.promote()
        await trial.recover("promoted", store)


async def cannot_save(trial: Trial) -> None:
    """A snapshot that cannot be written makes the server refuse to write."""
    store = await trial.begin()
    server: RedisServer = trial.server
    in_the_way = server.folder / "dump.rdb"
    in_the_way.mkdir()
    server.ask("CONFIG", "SET", "save", "3600 1")
    server.ask("BGSAVE")
    status = partial(tells, server, "persistence", "rdb_last_bgsave_status")
    wait_for("a failed snapshot", lambda: status("err"))
    await trial.hear_all("a server that cannot save", store)
    await trial.write_nothing("a server that cannot save", store)
    in_the_way.rmdir()
    server.ask("BGSAVE")
    wait_for("a snapshot", lambda: status("ok"))
    await trial.recover("saving again", store)
    server.ask("CONFIG", "SET", "save", "")


# --- disks ---


@contextmanager
def on_small_disk(trial: Trial, **config: str) -> Iterator[tuple[RedisServer, SmallDisk]]:
    disk = SmallDisk(trial, 8 << 20, trial.folder / config["appendfsync"])
    before, tempfile.tempdir = tempfile.tempdir, str(disk.folder)
    try:
        with new_server(**config) as server:
            trial.url = server.url
            yield server, disk
    finally:
        tempfile.tempdir = before
        disk.close()


async def disk_full(trial: Trial) -> None:
    """A server that leaves syncing to the kernel says so when its log finds no room."""
    with on_small_disk(trial, appendfsync="no") as (server, disk):
        store = await trial.begin()
        disk.fill(left=500_000)
        await trial.say_until_refused(store, 50_000, (StorageFull, ReadOnly))
        await trial.hear_all("while full", store)
        disk.free()
        wait_for("its log", lambda: tells(server, "persistence", "aof_last_write_status", "ok"))
        await trial.recover("with room again", store)
        disk.fill(left=0)
        await restart_while_full(trial, server)
        disk.free()
        wait_for("its log", lambda: tells(server, "persistence", "aof_last_write_status", "ok"))
        await trial.recover("restarted, with room again")


async def restart_while_full(trial: Trial, server: RedisServer) -> None:
    """A server that is started on a full disk has all that its log holds, and can be read."""
    await asyncio.to_thread(server.restart, how=signal.SIGKILL)
    store = await trial.attempt("while full, restarted", trial.open(), ())
    if store:
        await trial.hear_all("while full, restarted", store)
        await store.close()


async def disk_full_always(trial: Trial) -> None:
    """A server that syncs each write gives up when its log finds no room, and is started again."""
    with on_small_disk(trial, appendfsync="always") as (server, disk):
        store = await trial.begin()
        disk.fill(left=500_000)
        trial.in_doubt = True
        await trial.say_until_refused(store, 50_000, Unavailable)
        disk.free()
        assert server.process
        server.process.wait(timeout=10)
        server.process = None
        server.start()
        await trial.recover("with room again", store)


# --- a long session ---


async def a_long_session(trial: Trial) -> None:
    store = await trial.open()
    keys = [await write_long(store, f"{n}", n) for n in (100, LONG_SESSION)]
    costs = [await tail_cost(trial.server, store, key) for key in keys]
    await store.close()
    trial.errors.append(
        f"none; {costs[1]} commands for 50 of {LONG_SESSION}, {costs[0]} for 50 of 100"
    )
    if costs[1] > costs[0] * 1.2:
        trial.broken.append(f"the tail of a long session takes {costs[1]} commands")


async def tail_cost(server: RedisServer, store: Any, key: Any) -> int:
    """Return the commands that a script runs to read a tail."""
    await store.tail(key, tokens=500)
    server.ask("CONFIG", "RESETSTAT")
    assert len(await store.tail(key, tokens=500)) == 50
    stats = server.ask("INFO", "commandstats")
    return sum(one["calls"] for name, one in stats.items() if "config" not in name)


FAULTS: Final = (
    Fault("memory full", memory_full),
    Fault("too many clients", too_many_clients),
    Fault("too many files of the client", no_descriptors),
    Fault("a script that does not end", busy_script),
    Fault("a server that is loading", loading),
    Fault("a replica", a_replica),
    Fault("a server that cannot save", cannot_save),
    Fault("disk full, synced by the kernel", disk_full, needs_disk=True),
    Fault("disk full, synced each time", disk_full_always, needs_disk=True),
    Fault("a long session", a_long_session),
)
