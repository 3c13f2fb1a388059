"""Our store, driven in two ways: its own functions on one connection, and through its methods."""

import asyncio
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from bench.corpus import session_names
from keepthread.ids import new_id
from keepthread.stores.drafts import draft
from keepthread.stores.sqlite import SQLiteStore, engine, log, sessions
from keepthread.stores.sqlite.file import DatabaseFile, connect
from keepthread.stores.sqlite.store import _size
from keepthread.types import Message, SessionInfo, SessionKey

TENANT = "default"
_BATCH = 500


class Inside:
    """What the writer's thread does for the store, without loop, queue and thread."""

    def __init__(self, path: Path) -> None:
        self.file = DatabaseFile(path, synchronous="FULL", timeout=30.0, connect=connect)
        self.db = self.file.open_for_writing()
        self._pages = 0
        self._touched = 0.0

    def create_sessions(self, number: int = 1) -> list[int]:
        """Make sessions and return their numbers."""
        now = time.time()
        made = [
            sessions.create(self.db, TENANT, SessionInfo(id=name, created_at=now), now)
            for name in islice(session_names(), number)
        ]
        return [int(session.key) for session in made]

    def append_each(self, sid: int, messages: Iterable[Message]) -> None:
        """Append messages, each in a transaction of its own, and check-point as the engine does."""
        db = self.db
        for message in messages:
            drafts = [draft(message, clock=time.time, ids=new_id)]
            now = self._activity()
            size = _size(drafts)
            db.execute("BEGIN IMMEDIATE")
            log.append(db, TENANT, sid, drafts, None, None, now)
            db.execute("COMMIT")
            self._pages += engine._PAGES_PER_COMMIT + size // engine._PAGE
            if self._pages >= engine.CHECKPOINT_PAGES:
                self._pages = 0
                self.file.checkpoint(db)

    def _activity(self) -> float | None:
        now = time.time()
        if now - self._touched < 1:
            return None
        self._touched = now
        return now

    def fill(self, sids: Sequence[int], rounds: Iterable[Message]) -> None:
        """Append each message to each session in turn, many in a transaction."""
        coming = iter(rounds)
        while batch := list(islice(coming, max(1, _BATCH // len(sids)))):
            self.db.execute("BEGIN IMMEDIATE")
            if len(sids) == 1:
                self._append(sids[0], batch)
            else:
                for message in batch:
                    for sid in sids:
                        self._append(sid, [message])
            self.db.execute("COMMIT")
            self.file.checkpoint(self.db)

    def _append(self, sid: int, messages: Sequence[Message]) -> None:
        drafts = [draft(message, clock=time.time, ids=new_id) for message in messages]
        log.append(self.db, TENANT, sid, drafts, None, None, None)

    def close(self) -> None:
        """Move the log into the file and close it."""
        self.db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        self.db.close()


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
        keys: list[SessionKey] = []
        for name in islice(session_names(), number):
            session = await store.get_session(name)
            session = session or await store.put_session(SessionInfo(id=name))
            keys.append(session.key)
        return store, keys

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
        engine = self._store._engine
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
