"""The store in one SQLite file: it needs no server and no packages."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Self

from keepthread.errors import DurabilityTooLow, KeepthreadError, ReadOnly, StorageFull
from keepthread.protocols import (
    MadeRecords,
    Progress,
    Relatives,
    Searchable,
    TokenCounter,
    Updates,
)
from keepthread.stores.backend import (
    Append,
    Feed,
    FeedPage,
    Gather,
    Listing,
    Position,
    Put,
    RecentActivity,
    Tail,
)
from keepthread.stores.codec import new_id
from keepthread.stores.front import Front
from keepthread.stores.records import Condition, Keys, Update, sid_of
from keepthread.stores.rows import PreparedMessage
from keepthread.stores.sqlite import changes, log, maintenance, records, sessions, tables
from keepthread.stores.sqlite.engine import Engine
from keepthread.stores.sqlite.file import Connect, DatabaseFile, FileFacts, connect
from keepthread.stores.sqlite.index import SegmentCache
from keepthread.stores.sqlite.records import scope_of
from keepthread.stores.sqlite.search import SQLiteFinder
from keepthread.stores.sqlite.tables import SQLiteTables
from keepthread.stores.sqlite.verify import SQLiteInspection
from keepthread.stores.validation import MAX_BLOB, check_id
from keepthread.types import (
    Cleaning,
    Durability,
    Gathered,
    Message,
    Record,
    Scope,
    SessionInfo,
    SessionKey,
    Verification,
)

if TYPE_CHECKING:
    from pathlib import Path  # slow to import

_SYNCHRONOUS: Final = {"power": "FULL", "process": "NORMAL"}
_ROW_BYTES: Final = 200  # bytes that a recount writes for a message


class SQLiteBackend:
    """One file, for every tenant in it."""

    max_blob: int = MAX_BLOB

    def __init__(self, engine: Engine, durability: Durability) -> None:
        """Use an engine."""
        self.engine = engine
        self.durability: Durability = durability
        self._activity = RecentActivity()
        self._segments = SegmentCache()

    async def begin(self) -> None:
        """Open the file; one that cannot be written is opened for reading."""
        try:
            await self.engine.write(_nothing)
        except (ReadOnly, StorageFull) as refusal:
            try:  # it may still be readable
                await self.engine.read(_nothing)
            except KeepthreadError:
                raise refusal from None

    async def close(self) -> None:
        await self.engine.close()

    # --- sessions ---

    async def create_session(self, tenant: str, session: SessionInfo) -> SessionInfo:
        return await self.engine.write(lambda db: sessions.create(db, tenant, session))

    async def update_session(self, tenant: str, update: Update) -> SessionInfo:
        return await self.engine.write(lambda db: sessions.update(db, tenant, update))

    async def get_session(self, tenant: str, owner: str, id: str) -> SessionInfo | None:
        return await self.engine.read(lambda db: sessions.by_id(db, tenant, owner, id))

    async def describe(self, tenant: str, session: SessionKey) -> SessionInfo:
        sid = sid_of(session)
        return await self.engine.read(lambda db: sessions.by_sid(db, tenant, sid))

    async def list_sessions(
        self, tenant: str, owner: str | None, wanted: Listing
    ) -> list[tuple[Position, SessionInfo]]:
        return await self.engine.read(lambda db: sessions.listed(db, tenant, owner, wanted))

    async def scan_sessions(
        self, tenant: str, owner: str | None, after: SessionKey | None, limit: int
    ) -> list[SessionInfo]:
        sid = 0 if after is None else sid_of(after)
        return await self.engine.read(lambda db: sessions.scan(db, tenant, owner, sid, limit))

    async def relatives(self, tenant: str, session: SessionKey) -> Relatives:
        sid = sid_of(session)
        return await self.engine.read(lambda db: sessions.relatives(db, tenant, sid))

    async def delete_session(self, tenant: str, session: SessionKey, required: Condition) -> None:
        sid = sid_of(session)
        await self.engine.write(lambda db: sessions.delete(db, tenant, sid, required))

    # --- the log ---

    async def append(self, tenant: str, session: SessionKey, new: Append) -> list[Message]:
        sid = sid_of(session)
        due = self._activity.is_due(session, new.now)
        answers, grown = await self.engine.write(
            lambda db: log.append(db, tenant, sid, new, touches=due), size_of(new.drafts)
        )
        if due and grown:
            self._activity.note(session, new.now)
        return answers

    async def load(
        self, tenant: str, session: SessionKey, drafts: Sequence[PreparedMessage]
    ) -> int:
        sid = sid_of(session)
        return await self.engine.write(
            lambda db: log.load(db, tenant, sid, drafts), size_of(drafts)
        )

    async def tail(self, tenant: str, session: SessionKey, wanted: Tail) -> list[Message]:
        sid = sid_of(session)
        return await self.engine.read(lambda db: log.tail(db, tenant, sid, wanted))

    async def gather(self, tenant: str, session: SessionKey, wanted: Gather) -> Gathered:
        sid = sid_of(session)
        return await self.engine.read(lambda db: sessions.gather(db, tenant, sid, wanted))

    async def read(
        self, tenant: str, session: SessionKey, after: int, until: int, limit: int
    ) -> list[Message]:
        sid = sid_of(session)
        return await self.engine.read(lambda db: log.read(db, tenant, sid, after, until, limit))

    async def find(
        self, tenant: str, session: SessionKey, ids: Sequence[str], seqs: Sequence[int]
    ) -> list[Message]:
        sid = sid_of(session)
        return await self.engine.read(lambda db: log.find(db, tenant, sid, ids, seqs))

    async def erase(self, tenant: str, session: SessionKey, seqs: Sequence[int]) -> int:
        sid = sid_of(session)
        return await self.engine.write(lambda db: sessions.erase_messages(db, tenant, sid, seqs))

    async def recount(
        self, tenant: str, session: SessionKey, counter: TokenCounter, progress: Progress | None
    ) -> int:
        sid = sid_of(session)
        counts = await self.engine.read_apart(
            lambda db: maintenance.count_apart(db, tenant, sid, counter, progress)
        )
        return await self.engine.write(
            lambda db: maintenance.apply(db, tenant, sid, counter, counts),
            len(counts) * _ROW_BYTES,
        )

    # --- records ---

    async def put(self, tenant: str, scope: Scope, record: Put) -> int:
        where = scope_of(tenant, scope)
        epochs = {sid_of(session): epoch for session, epoch in record.epochs.items()}
        return await self.engine.write(
            lambda db: records.put(db, where, record, epochs), len(record.value)
        )

    async def get(self, tenant: str, scope: Scope, kind: str, key: str) -> Record | None:
        where = scope_of(tenant, scope)
        return await self.engine.read(lambda db: records.get(db, where, kind, key))

    async def scan(self, tenant: str, scope: Scope, kind: str | None, keys: Keys) -> list[Record]:
        where = scope_of(tenant, scope)
        return await self.engine.read(lambda db: records.scan(db, where, kind, keys))

    async def updates(self, tenant: str, scope: Scope, kind: str, since: int) -> Updates:
        where = scope_of(tenant, scope)
        return await self.engine.read(lambda db: records.updates(db, where, kind, since))

    async def made_of(
        self, tenant: str, session: SessionKey, nodes: Sequence[int] | None
    ) -> MadeRecords:
        sid = sid_of(session)
        return await self.engine.read(lambda db: records.made_of(db, tenant, sid, nodes))

    async def owners(self, tenant: str) -> list[str]:
        return await self.engine.read(lambda db: records.owners(db, tenant))

    async def blob_owners(self, tenant: str) -> list[str]:
        return await self.engine.read(lambda db: records.blob_owners(db, tenant))

    async def drop(
        self, tenant: str, scope: Scope, kind: str, key: str, version: int | None
    ) -> bool:
        where = scope_of(tenant, scope)
        return await self.engine.write(lambda db: records.drop(db, where, kind, key, version))

    # --- changes ---

    async def changes(self, tenant: str, wanted: Feed) -> FeedPage:
        return await self.engine.read(lambda db: changes.read(db, tenant, wanted))

    # --- integrity ---

    async def verify(self, tenant: str, progress: Progress | None) -> Verification:
        return await self.engine.read_apart(lambda db: SQLiteInspection(db, tenant, progress).run())

    async def clean(
        self,
        tenant: str,
        touched: Sequence[SessionKey],
        rewrite: bool,
        probes: Sequence[bytes],
    ) -> Cleaning:
        if await self.engine.read(lambda db: tables.has_answers(db, tenant)):
            await self.engine.write(lambda db: tables.drop_answers(db, tenant))
        file = self.engine.file
        return await self.engine.maintain(
            lambda db: maintenance.clean_erased(
                db, file, erased=bool(touched), rewrite=rewrite, probes=probes
            )
        )

    async def finder(self, tenant: str) -> Searchable:
        return SQLiteFinder(self.engine, tenant, self._segments)

    # --- tenants ---

    async def tenants(self, after: str, limit: int) -> list[str]:
        return await self.engine.read(lambda db: sessions.tenants(db, after, limit))

    async def drop_tenant(self, tenant: str, rewrite: bool) -> Cleaning | None:  # noqa: ARG002 - always
        existed = await self.engine.write(lambda db: tables.drop(db, tenant))
        while await self.engine.write(lambda db: sessions.drop_some(db, tenant)):
            existed = True
        return await self.clean(tenant, (), True, ()) if existed else None

    def tables(self) -> SQLiteTables:
        return SQLiteTables(self.engine)


class SQLiteStore(Front[SQLiteBackend]):
    """The `Store` in one file; open it with `await SQLiteStore.open(path)`."""

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
        """Open a file, or create it.

        `durability` is the minimum: `power` (the default) survives power loss; `process` is faster
        and survives only a crash of the process. `busy_timeout` is how many
        seconds to wait for another process. A file that cannot be written is opened for reading.
        """
        check_id(tenant, "tenant")  # before a thread is started
        level: Durability = "power" if durability is None else durability
        if level == "memory":
            level = "process"  # the lowest that a file provides
        if level not in _SYNCHRONOUS:
            raise DurabilityTooLow(
                f"a SQLite file provides `power` at most, but `{level}` was requested"
            )
        from pathlib import Path  # noqa: PLC0415 - not before a file is opened: it is slow to import

        file = DatabaseFile(
            Path(path), synchronous=_SYNCHRONOUS[level], timeout=busy_timeout, connect=connect
        )
        backend = SQLiteBackend(Engine(file), level)
        try:
            await backend.begin()
        except BaseException:
            await backend.close()
            raise
        return cls(backend, tenant=tenant, clock=clock, ids=ids)

    async def finder(self) -> Searchable:
        return await self.backend.finder(self._tenant)

    async def backup(self, path: str | Path, *, progress: Progress | None = None) -> None:
        """Copy the whole file with all tenants, as of one moment; writers continue.

        The copy is an independent store and appears under its name once it is complete. An
        existing file raises `InvalidInput`.
        """
        from pathlib import Path  # noqa: PLC0415 - as in `open`

        await self.backend.engine.read_apart(
            lambda db: maintenance.copy_file(db, Path(path), progress)
        )

    async def facts(self) -> FileFacts:
        """Return the file's path, sizes and settings."""
        return await self.backend.engine.read(self.backend.engine.file.facts)


def _nothing(_: sqlite3.Connection) -> None:
    """Do nothing; raises if the file is closed."""


def size_of(drafts: Sequence[PreparedMessage]) -> int:
    """Return roughly how many bytes drafts take in the file."""
    return sum(draft.size for draft in drafts)
