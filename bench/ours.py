"""Our store, driven in two ways: with its work done on the spot, and awaited as programs do."""

import asyncio
import sqlite3
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar, cast

from bench.corpus import session_names
from keepthread.stores.backend import Append
from keepthread.stores.codec import new_id
from keepthread.stores.rows import draft
from keepthread.stores.sqlite import SQLiteStore, engine, log
from keepthread.stores.sqlite.file import DatabaseFile, connect
from keepthread.stores.sqlite.store import SQLiteBackend, size_of
from keepthread.types import Message, SessionInfo, SessionKey

T = TypeVar("T")

TENANT = "default"
_BATCH = 500


class _OnTheSpot:
    """An engine without queue and threads, which commits and check-points as the real one does."""

    def __init__(self, path: Path) -> None:
        self._file = DatabaseFile(path, synchronous="FULL", timeout=30.0, connect=connect)
        self.writing = self._file.open_for_writing()
        self.reading = self._file.open_for_reading().db
        self._pages = 0

    async def write(self, work: Callable[[sqlite3.Connection], T], size: int = 0) -> T:
        db = self.writing
        db.execute("BEGIN IMMEDIATE")
        result = work(db)
        db.execute("COMMIT")
        self.committed(size)
        return result

    def committed(self, size: int) -> None:
        """Check-point when it is time to."""
        self._pages += engine._PAGES_PER_COMMIT + size // engine.PAGE
        if self._pages >= engine.CHECKPOINT_PAGES:
            self._pages = 0
            self._file.checkpoint(self.writing)

    async def read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        return work(self.reading)

    def close(self) -> None:
        self.reading.close()
        self.writing.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        self.writing.close()


def result(method: Coroutine[Any, Any, T]) -> T:
    """Return what a coroutine returns that never has to wait."""
    try:
        method.send(None)
    except StopIteration as end:
        return end.value
    raise RuntimeError("it waits for something")


class Inside:
    """The store's own work and nothing else: no event loop, no queue, no other thread."""

    def __init__(self, path: Path, *, sessions: int = 1) -> None:
        self._engine = _OnTheSpot(path)
        self.store = SQLiteStore(
            SQLiteBackend(cast(engine.Engine, self._engine), "power"), tenant=TENANT
        )
        self.keys = [result(_session(self.store, name)) for name in _names(sessions)]

    @property
    def reading(self) -> sqlite3.Connection:
        """The connection that reads."""
        return self._engine.reading

    def append(self, messages: Iterable[Message]) -> None:
        """Append messages to the first session by the functions that do it, each with a commit."""
        key, activity = self.keys[0], self.store.backend._activity
        db, sid = self._engine.writing, int(key)
        for message in messages:
            drafts = [draft(message, clock=time.time, ids=new_id)]
            new = Append(drafts, None, None, time.time())
            due = activity.is_due(key, new.now)
            db.execute("BEGIN IMMEDIATE")
            log.append(db, TENANT, sid, new, touches=due)
            db.execute("COMMIT")
            self._engine.committed(size_of(drafts))
            if due:
                activity.note(key, new.now)

    def append_by_method(self, messages: Iterable[Message]) -> None:
        """Append messages to the first session by the store's method, each with a commit."""
        append, key = self.store.append, self.keys[0]
        for message in messages:
            result(append(key, [message]))

    def append_by_turns(self, messages: Iterable[Message]) -> None:
        """Append each message to every session."""
        for message in messages:
            for key in self.keys:
                result(self.store.append(key, [message]))

    def fill(self, messages: Iterable[Message]) -> None:
        """Append messages to the first session, many in a transaction."""
        coming = iter(messages)
        while batch := list(islice(coming, _BATCH)):
            result(self.store.append(self.keys[0], batch))

    def tail(self, count: int, *, tokens: int) -> None:
        """Read the newest messages that fit, so many times."""
        tail, key = self.store.tail, self.keys[0]
        for _ in range(count):
            result(tail(key, tokens=tokens))

    def close(self) -> None:
        """Move the log into the file and close it."""
        self._engine.close()


def _names(number: int) -> Iterable[str]:
    return islice(session_names(), number)


async def _session(store: SQLiteStore, name: str) -> SessionKey:
    session = await store.get_session(name)
    session = session or await store.put_session(SessionInfo(id=name))
    return session.key


class Awaited:
    """The store as a program uses it: its methods, awaited on an event loop."""

    def __init__(self, path: Path, messages: Iterable[Message] = (), *, sessions: int = 1) -> None:
        self._messages: Iterator[Message] = iter(messages)
        self._runner = asyncio.Runner()
        self._store, self._keys = self._runner.run(self._open(path, sessions))
        self.commits: list[int] = []
        """How many commits each bundle of concurrent appends took."""

    async def _open(self, path: Path, number: int) -> tuple[SQLiteStore, list[SessionKey]]:
        store = await SQLiteStore.open(path)
        return store, [await _session(store, name) for name in _names(number)]

    def append_in_turn(self, count: int) -> None:
        """Append messages one after another, the sessions by turns."""
        self._runner.run(self._append_in_turn(count))

    async def _append_in_turn(self, count: int) -> None:
        append, keys = self._store.append, self._keys
        for place, message in enumerate(islice(self._messages, count)):
            await append(keys[place % len(keys)], [message])

    def append_together(self, count: int) -> None:
        """Append messages in bundles, one to each session at the same time."""
        self._runner.run(self._append_together(count))

    async def _append_together(self, count: int) -> None:
        engine = self._store.backend.engine
        for _ in range(count // len(self._keys)):
            before = engine.commits
            await asyncio.gather(
                *(self._store.append(key, [next(self._messages)]) for key in self._keys)
            )
            self.commits.append(engine.commits - before)

    def tail(self, count: int, *, tokens: int = 4096) -> None:
        """Read the newest messages that fit, so many times."""
        self._runner.run(self._tail(count, tokens))

    async def _tail(self, count: int, tokens: int) -> None:
        tail, key = self._store.tail, self._keys[0]
        for _ in range(count):
            await tail(key, tokens=tokens)

    def tail_length(self, tokens: int) -> int:
        """Return how many messages the tail has."""
        return len(self._runner.run(self._store.tail(self._keys[0], tokens=tokens)))

    def close(self) -> None:
        """Close the store and the loop."""
        self._runner.run(self._store.close())
        self._runner.close()
