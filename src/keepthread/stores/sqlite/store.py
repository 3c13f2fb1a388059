"""The store in one SQLite file: no server, nothing to install, nothing lost."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Self

from keepthread.errors import DurabilityTooLow, KeepthreadError, ReadOnly, StorageFull
from keepthread.protocols import Progress, Searchable, TokenCounter
from keepthread.stores.ids import new_id
from keepthread.stores.records import (
    check_filter,
    check_keys,
    check_scope,
    check_session,
    condition,
    encode_spans,
    encode_value,
)
from keepthread.stores.rows import Draft, check_positions, draft, draft_copy
from keepthread.stores.sqlite import log, sessions
from keepthread.stores.sqlite import maintenance as recount
from keepthread.stores.sqlite import records as shelf
from keepthread.stores.sqlite.engine import Engine
from keepthread.stores.sqlite.file import Connect, DatabaseFile, FileFacts, connect
from keepthread.stores.sqlite.index import KnownSittings
from keepthread.stores.sqlite.log import sid_of
from keepthread.stores.sqlite.maintenance import copy_file
from keepthread.stores.sqlite.search import SQLiteFinder
from keepthread.stores.sqlite.verify import Inspection
from keepthread.stores.validation import MAX_COUNT, check_count, check_id
from keepthread.types import (
    JSON,
    Cleaning,
    Durability,
    Gathered,
    Message,
    Record,
    Scope,
    SessionInfo,
    SessionKey,
    Span,
    Verification,
)

if TYPE_CHECKING:
    from pathlib import Path  # its import costs a twentieth of ours

_SYNCHRONOUS: Final = {"power": "FULL", "process": "NORMAL"}
_ROW_BYTES: Final = 200  # what a message takes beside its text
_MOST_TOUCHED: Final = 10_000


class SQLiteStore:
    """The `Store` in one file; open it with `await SQLiteStore.open(path)`."""

    def __init__(
        self,
        engine: Engine,
        *,
        tenant: str,
        durability: Durability,
        clock: Callable[[], float],
        ids: Callable[[], str],
        touched: dict[int, float],
        sittings: KnownSittings,
        owns_engine: bool,
    ) -> None:
        """Stand behind one tenant's wall; callers use `open` and `tenant`."""
        self.durability: Durability = durability
        self._engine = engine
        self._tenant = check_id(tenant, "tenant")
        self._clock = clock
        self._ids = ids
        self._touched = touched
        self._sittings = sittings
        self._owns_engine = owns_engine

    @classmethod
    async def open(
        cls,
        path: str | Path,
        *,
        tenant: str = "default",
        durability: Durability | None = None,
        busy_timeout: float = 30.0,
        clock: Callable[[], float] = time.time,
        ids: Callable[[], str] = new_id,
        connect: Connect = connect,
    ) -> Self:
        """Open a file, or make it.

        `durability` is the least that is accepted: `power` (the default) survives a power cut,
        `process` is faster and survives the death of the process alone. `busy_timeout` is how many
        seconds to wait for another process. A file that cannot be written is opened for reading.
        """
        check_id(tenant, "tenant")  # before any thread is started
        level: Durability = "power" if durability is None else durability
        if level == "memory":
            level = "process"  # the least a file gives
        if level not in _SYNCHRONOUS:
            raise DurabilityTooLow(f"a SQLite file gives `power` at most; {level} was asked for")
        from pathlib import Path  # noqa: PLC0415 - not before a file is opened: it is slow to import

        file = DatabaseFile(
            Path(path), synchronous=_SYNCHRONOUS[level], timeout=busy_timeout, connect=connect
        )
        store = cls(
            Engine(file),
            tenant=tenant,
            durability=level,
            clock=clock,
            ids=ids,
            touched={},
            sittings=KnownSittings(),
            owns_engine=True,
        )
        try:
            await store._begin()
        except BaseException:
            await store.close()
            raise
        return store

    async def _begin(self) -> None:
        try:
            await self._engine.write(_nothing)
        except (ReadOnly, StorageFull) as refusal:
            try:  # reading may go on
                await self._engine.read(_nothing)
            except KeepthreadError:
                raise refusal from None

    def tenant(self, name: str) -> Self:
        return type(self)(
            self._engine,
            tenant=name,
            durability=self.durability,
            clock=self._clock,
            ids=self._ids,
            touched=self._touched,
            sittings=self._sittings,
            owns_engine=False,
        )

    async def close(self) -> None:
        if self._owns_engine:
            await self._engine.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # --- sessions ---

    async def put_session(
        self, session: SessionInfo, *, seen: SessionInfo | None = None
    ) -> SessionInfo:
        now = self._clock()
        session = check_session(session, now=now, ids=self._ids)
        if not session.key:
            return await self._engine.write(lambda db: sessions.create(db, self._tenant, session))
        sid = sid_of(session.key)
        return await self._engine.write(
            lambda db: sessions.update(db, self._tenant, sid, session, seen, now)
        )

    async def get_session(self, id: str) -> SessionInfo | None:
        check_id(id, "a session id")
        return await self._engine.read(lambda db: sessions.by_id(db, self._tenant, id))

    async def describe(self, session: SessionKey) -> SessionInfo:
        sid = sid_of(session)
        return await self._engine.read(lambda db: sessions.by_sid(db, self._tenant, sid))

    async def list_sessions(
        self, *, owner: str | None = None, limit: int = 10
    ) -> list[SessionInfo]:
        check_count(limit, "limit")
        check_filter(owner, "owner")
        return await self._engine.read(lambda db: sessions.latest(db, self._tenant, owner, limit))

    async def scan_sessions(
        self, *, after: SessionKey | None = None, limit: int = 100
    ) -> list[SessionInfo]:
        sid = 0 if after is None else sid_of(after)
        check_count(limit, "limit")
        return await self._engine.read(lambda db: sessions.scan(db, self._tenant, sid, limit))

    async def delete_session(
        self, session: SessionKey, *, unready: bool = False, idle_since: float | None = None
    ) -> None:
        required = condition(unready=unready, idle_since=idle_since)
        sid = sid_of(session)
        await self._engine.write(lambda db: sessions.delete(db, self._tenant, sid, required))

    # --- the log ---

    async def append(
        self,
        session: SessionKey,
        messages: Sequence[Message],
        *,
        expect: int | None = None,
        exchange: int | None = None,
    ) -> list[Message]:
        sid = sid_of(session)
        check_positions(expect=expect)
        drafts = [draft(m, clock=self._clock, ids=self._ids) for m in messages]
        now = self._activity(sid)
        tenant = self._tenant
        answers, grown = await self._engine.write(
            lambda db: log.append(db, tenant, sid, drafts, expect, exchange, now), _size(drafts)
        )
        if now is not None and grown:
            if len(self._touched) >= _MOST_TOUCHED:
                self._touched.clear()
            self._touched[sid] = now
        return answers

    def _activity(self, sid: int) -> float | None:
        """Return the time to note as a session's latest activity, once a second."""
        now = self._clock()
        last = self._touched.get(sid)
        return now if last is None or not 0 <= now - last < 1 else None

    async def load(self, session: SessionKey, messages: Sequence[Message]) -> int:
        sid = sid_of(session)
        drafts = [draft_copy(m) for m in messages]
        return await self._engine.write(
            lambda db: log.load(db, self._tenant, sid, drafts), _size(drafts)
        )

    async def tail(
        self,
        session: SessionKey,
        *,
        tokens: int | None = None,
        limit: int | None = None,
        before: int | None = None,
        after: int = 0,
        least: int = 0,
    ) -> list[Message]:
        sid = sid_of(session)
        check_positions(tokens=tokens, limit=limit, before=before, after=after, least=least)
        end = MAX_COUNT if before is None else before
        tenant = self._tenant
        return await self._engine.read(
            lambda db: log.tail(db, tenant, sid, tokens, limit, end, after, least)
        )

    async def gather(
        self,
        session: SessionKey,
        *,
        tokens: int,
        least: int = 0,
        kinds: Sequence[str] = (),
        follow: Sequence[str] = (),
    ) -> Gathered:
        sid = sid_of(session)
        check_positions(tokens=tokens, least=least)
        place = shelf.Shelf(self._tenant, sid, "")

        def gather(db: sqlite3.Connection) -> Gathered:
            db.execute("BEGIN")
            try:
                prompt, fence = sessions.prompt_and_fence(db, place.tenant, sid)
                tail = log.tail(db, place.tenant, sid, tokens, None, MAX_COUNT, 0, least)
                records = shelf.scan_kinds(db, place, (*kinds, *follow))
                followed = [record for record in records if record.kind in follow]
                sources = log.sources(db, sid, followed) if followed else []
                return Gathered(prompt, tail, records, sources, fence)
            finally:
                db.execute("COMMIT")

        return await self._engine.read(gather)

    async def read(
        self, session: SessionKey, *, after: int = 0, upto: int | None = None, limit: int = 100
    ) -> list[Message]:
        sid = sid_of(session)
        check_positions(after=after, upto=upto, limit=limit)
        end = MAX_COUNT if upto is None else upto
        return await self._engine.read(
            lambda db: log.read(db, self._tenant, sid, after, end, limit)
        )

    async def find(
        self, session: SessionKey, *, ids: Iterable[str] = (), seqs: Iterable[int] = ()
    ) -> list[Message]:
        sid = sid_of(session)
        names = [check_id(id, "a message id") for id in ids]
        places = [check_count(seq, "seq") for seq in seqs]
        return await self._engine.read(lambda db: log.find(db, self._tenant, sid, names, places))

    async def erase(self, session: SessionKey, seqs: Iterable[int]) -> int:
        sid = sid_of(session)
        places = [check_count(seq, "seq") for seq in seqs]
        return await self._engine.write(
            lambda db: sessions.erase_messages(db, self._tenant, sid, places)
        )

    async def recount(
        self, session: SessionKey, counter: TokenCounter, *, progress: Progress | None = None
    ) -> int:
        sid = sid_of(session)
        tenant = self._tenant
        counts = await self._engine.read_apart(
            lambda db: recount.count_apart(db, tenant, sid, counter, progress)
        )
        size = len(counts) * _ROW_BYTES
        return await self._engine.write(
            lambda db: recount.apply(db, tenant, sid, counter, counts), size
        )

    # --- the shelf ---

    async def put(
        self,
        scope: Scope,
        kind: str,
        key: str,
        value: JSON,
        *,
        made_of: Sequence[Span] = (),
        version: int | None = None,
        epochs: Mapping[SessionKey, int] | None = None,
    ) -> int:
        place = self._shelf(scope)
        data, spans = encode_value(kind, key, value), encode_spans(made_of)
        seen = {sid_of(session): epoch for session, epoch in (epochs or {}).items()}
        return await self._engine.write(
            lambda db: shelf.put(db, place, kind, key, data, spans, version, seen), len(data)
        )

    async def get(self, scope: Scope, kind: str, key: str) -> Record | None:
        place = self._shelf(scope)
        check_id(kind, "kind")
        check_id(key, "key")
        return await self._engine.read(lambda db: shelf.get(db, place, kind, key))

    async def scan(
        self,
        scope: Scope,
        kind: str | None = None,
        *,
        after: str | None = None,
        before: str | None = None,
        limit: int | None = None,
    ) -> list[Record]:
        place = self._shelf(scope)
        keys = check_keys(kind, after, before, limit)
        return await self._engine.read(lambda db: shelf.scan(db, place, kind, keys))

    async def owners(self) -> list[str]:
        return await self._engine.read(lambda db: shelf.owners(db, self._tenant))

    async def drop(self, scope: Scope, kind: str, key: str, *, version: int | None = None) -> bool:
        place = self._shelf(scope)
        check_id(kind, "kind")
        check_id(key, "key")
        return await self._engine.write(lambda db: shelf.drop(db, place, kind, key, version))

    def _shelf(self, scope: Scope) -> shelf.Shelf:
        check_scope(scope)
        sid = sid_of(scope.session) if scope.session else 0
        return shelf.Shelf(self._tenant, sid, scope.owner)

    # --- integrity ---

    async def verify(self, *, progress: Progress | None = None) -> Verification:
        return await self._engine.read_apart(
            lambda db: Inspection(db, self._tenant, progress).run()
        )

    async def finder(self) -> Searchable:
        return SQLiteFinder(self._engine, self._tenant, self._sittings)

    async def clean(
        self,
        *,
        sessions: Sequence[SessionKey] = (),
        rewrite: bool = False,
        probes: Sequence[bytes] = (),
    ) -> Cleaning:
        await self._engine.read(_nothing)  # refuses if it is closed
        file = self._engine.file
        from keepthread.stores.sqlite.maintenance import clean  # noqa: PLC0415 - hardly ever needed

        anew = rewrite or bool(sessions)
        return await self._engine.maintain(lambda db: clean(db, file, rewrite=anew, probes=probes))

    # --- the file ---

    async def backup(self, path: str | Path, *, progress: Progress | None = None) -> None:
        """Copy the whole file, every tenant in it, as it is at one moment; writing goes on.

        The copy is a store of its own and appears under its name once it is whole. A file that is
        there already raises `InvalidInput`.
        """
        from pathlib import Path  # noqa: PLC0415 - as in `open`

        await self._engine.read_apart(lambda db: copy_file(db, Path(path), progress))

    async def facts(self) -> FileFacts:
        """Return what the file is like: where, how large, which settings."""
        return await self._engine.read(self._engine.file.facts)


def _nothing(_: sqlite3.Connection) -> None:
    """Ask for no more than that the file is open."""


def _size(drafts: Sequence[Draft]) -> int:
    return sum(_ROW_BYTES + len(d.body.content or b"") + len(d.body.extra or b"") for d in drafts)
