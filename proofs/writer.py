"""A writer that appends until it is killed, as a process of its own: `python -m proofs.writer`.

It keeps one byte of shared memory up to date, which says where in a transaction it is; the byte
outlives the process, so every death is counted by the place where it happened. On a file the
store's connection keeps it, through the store's `connect`; a server's transactions are the server's
own, and the byte says whether an append was sent and not answered. A second byte is set by the
proof: the place where the writer is to stop until the byte is changed; a third says that it did.
"""

import asyncio
import mmap
import os
import random
import sqlite3
import sys
import time
import zlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple, TypeAlias

from keepthread.errors import SessionExists
from keepthread.protocols import Store
from keepthread.stores.sqlite import engine, worker
from keepthread.stores.sqlite.file import DatabaseFile, connect
from keepthread.stores.sqlite.uses import Uses
from keepthread.stores.url import store_at
from keepthread.types import Message, SessionInfo, SessionKey

TASKS: Final = 8
SESSIONS: Final = ("red", "green", "blue")
LENGTHS: Final = (10, 10, 100, 100, 100, 1_000, 1_000, 4_000, 10_000, 60_000)

OUTSIDE, INSIDE, COMMITTING, CHECKPOINTING = range(4)
STEPS: Final = {  # what is noted before a statement runs, and after it returned
    "BEGIN IMMEDIATE": (None, INSIDE),
    "COMMIT": (COMMITTING, OUTSIDE),
    "ROLLBACK": (None, OUTSIDE),
    "PRAGMA wal_checkpoint(PASSIVE)": (CHECKPOINTING, OUTSIDE),
}

Append: TypeAlias = Callable[[SessionKey, Sequence[Message]], Awaitable[list[Message]]]


class Ack(NamedTuple):
    """One acknowledged batch; its id ends with its size."""

    session: str
    batch: str
    seq: int

    @property
    def ids(self) -> list[str]:
        size = int(self.batch.rpartition(".")[2])
        return [f"{self.batch}.{i}" for i in range(size)]


def content_of(id: str) -> str:
    """Return the text that belongs to a message id, so that nobody needs to note it."""
    length = LENGTHS[zlib.crc32(id.encode()) % len(LENGTHS)]
    return (f"{id} " * (length // len(id) + 1))[:length]


# --- where it is ---


class MarkedConnection(sqlite3.Connection):
    """Notes in shared memory how far its transaction is."""

    place: ClassVar[mmap.mmap]

    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        before, after = STEPS.get(sql, (None, None))
        self._be_at(before)
        cursor = super().execute(sql, *values)
        self._be_at(after)
        return cursor

    def _be_at(self, place: int | None) -> None:
        if place is not None:
            self.place[0] = place
            while place and self.place[1] == place:
                self.place[2] = place
                time.sleep(0.001)  # the proof does something at this moment, or kills


def connect_marked(uri: str) -> sqlite3.Connection:
    """Open a connection as the store does, with the mark."""
    return connect(uri, MarkedConnection)


def marked(append: Append, place: mmap.mmap) -> Append:
    """Return an append that notes in shared memory whether one is under way."""
    under_way = 0

    async def append_marked(key: SessionKey, batch: Sequence[Message]) -> list[Message]:
        nonlocal under_way
        under_way += 1
        place[0] = INSIDE
        stored = await append(key, batch)
        under_way -= 1
        place[0] = INSIDE if under_way else OUTSIDE
        return stored

    return append_marked


# --- what it does ---


async def write_for_ever(folder: Path, url: str, kill: int, seed: int) -> None:
    """Append from several tasks at once, noting every acknowledgement, until killed."""
    with (folder / "place").open("r+b") as file:
        place = mmap.mmap(file.fileno(), 3)
    acks = os.open(folder / "acks", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(1, b"o")
    if url.startswith("sqlite:"):
        MarkedConnection.place = place
        store = await store_at(url)(connect=connect_marked)
        append: Append = store.append
    else:
        store = await store_at(url)(durability="process")
        append = marked(store.append, place)
    keys = [await session_key(store, name) for name in SESSIONS]
    async with asyncio.TaskGroup() as group:
        for task in range(TASKS):
            rng = random.Random(f"{seed} {task}")
            group.create_task(append_for_ever(append, keys, acks, f"{kill}.{task}", rng))


async def session_key(store: Store, name: str) -> SessionKey:
    """Return a session's key; the first process creates it."""
    if session := await store.get_session(name):
        return session.key
    try:
        return (await store.put_session(SessionInfo(id=name))).key
    except SessionExists:
        return await session_key(store, name)


async def append_for_ever(
    append: Append, keys: Sequence[SessionKey], acks: int, writer: str, rng: random.Random
) -> None:
    number = 0
    while True:
        number += 1
        which, size = rng.randrange(len(keys)), rng.choice((1, 1, 1, 2, 5))
        ids = [f"{writer}.{number}.{size}.{i}" for i in range(size)]
        batch = [Message(role="user", id=id, content=content_of(id)) for id in ids]
        stored = await append(keys[which], batch)
        os.write(acks, f"{which} {writer}.{number}.{size} {stored[0].seq}\n".encode())
        if number == 1:
            os.write(1, b"a")


# --- planted bugs, which the proof must notice ---


def acknowledge_early() -> None:
    """Answer callers before COMMIT."""
    attempt_all = engine._Writer._attempt_all

    def early(self: Any, db: sqlite3.Connection, batch: list[worker.Job]) -> list[worker.JobResult]:
        answers = attempt_all(self, db, batch)
        worker.deliver(answers)
        return answers

    engine._Writer._attempt_all = early


def checkpoint_unguarded() -> None:
    """Let others commit during a checkpoint."""
    unguarded: Any = lambda _: nullcontext()  # noqa: E731 - it has another type
    DatabaseFile._without_commits = unguarded


def fork_with_open_connections() -> None:
    """Close nothing before a fork, and do not know afterwards what was open."""
    Uses.begin = lambda self, use: None


FLAWS: Final[Mapping[str, Callable[[], object]]] = {
    "": lambda: None,
    "early": acknowledge_early,
    "unguarded": checkpoint_unguarded,
    "forked": fork_with_open_connections,
}


if __name__ == "__main__":
    FLAWS[sys.argv[5]]()
    asyncio.run(write_for_ever(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
