"""Filling a server through the store itself: a hundred messages to a call, which is one script."""

from typing import NamedTuple

from bench import Run
from bench.corpus import messages
from bench.rates import TASKS
from bench.tasks import EACH, Tasks
from keepthread import SessionInfo
from keepthread.stores.redis import RedisStore
from servers.redis import RedisServer

_AT_ONCE = 500
_SHOW_EVERY = 100


class Filled(NamedTuple):
    """A server and what is in it."""

    server: RedisServer
    store: RedisStore
    tasks: Tasks
    bytes: int
    """What a message takes in memory, with its session's share."""


async def fill(run: Run, server: RedisServer, size: int, sessions: int, long: int = 0) -> Filled:
    """Store so many sessions of messages, and perhaps a long one beside."""
    store = await RedisStore.open(server.url, connections=TASKS)
    before = used(server)
    some = messages(size, EACH)
    for number in range(1, sessions + 1):
        if not number % _SHOW_EVERY:
            run.progress(f"{number:,} of {sessions:,} sessions stored")
        session = await store.put_session(SessionInfo(id=f"s{number}"))
        await store.append(session.key, some)
    taken = used(server) - before
    if long:
        await _fill_long(run, store, size, long)
    tasks = Tasks(store, sessions, size, long)
    await tasks.begin(verify=run.quick)
    return Filled(server, store, tasks, taken)


async def _fill_long(run: Run, store: RedisStore, size: int, number: int) -> None:
    session = await store.put_session(SessionInfo(id="long"))
    for done in range(0, number, _AT_ONCE):
        run.progress(f"{done:,} of {number:,} messages stored in one session")
        await store.append(session.key, messages(size, min(_AT_ONCE, number - done)))


def used(server: RedisServer) -> int:
    """Return the bytes of memory that a server has in use."""
    return server.ask("INFO", "memory")["used_memory"]
