"""Export a tenant, or some of its sessions, as lines of JSON."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

from keepthread.errors import Damaged, KeepthreadError, SessionGone, SessionNotFound
from keepthread.interchange import jsonl
from keepthread.interchange import schema as nouns
from keepthread.interchange.blobs import blobs_of_session, chunks_of
from keepthread.interchange.schema import SessionName
from keepthread.protocols import Progress, Store
from keepthread.stores.front import every_session
from keepthread.stores.kinds import BLOB, BLOB_CHUNK, NOT_IN_FILES
from keepthread.stores.validation import check_id
from keepthread.types import JSON, Record, Scope, SessionInfo, SessionKey

_PAGE: Final = 500
_DEFAULT: Final = "default"


@dataclass(slots=True, kw_only=True)
class Exported:
    """The report of an export; `damaged` names what could not be written as it once was."""

    sessions: int = 0
    messages: int = 0
    records: int = 0
    deleted: int = 0
    """Sessions that were deleted while the export ran; they are not part of it."""
    damaged: list[str]


async def export(
    store: Store,
    write: Callable[[bytes], object],
    *,
    sessions: Sequence[str] = (),
    owner: str | None = None,
    progress: Progress | None = None,
) -> Exported:
    """Write everything of the tenant, or of an owner, or the named sessions with their records.

    With an owner, another's session is not found.
    """
    if owner is not None:
        check_id(owner, "owner")
    return await _Export(store, write, owner, progress).run(sessions)


class _Export:
    """One export."""

    def __init__(
        self,
        store: Store,
        write: Callable[[bytes], object],
        owner: str | None,
        progress: Progress | None,
    ) -> None:
        self.store = store
        self.write = write
        self.owner = owner
        self.progress = progress
        self.names: dict[SessionKey, SessionName] = {}
        self.total = 0
        self.done = Exported(damaged=[])

    async def run(self, names: Sequence[str]) -> Exported:
        chosen = [await self._named(name) for name in dict.fromkeys(names)]
        if chosen:
            self.total = sum(session.messages for session in chosen)
        else:
            async for session in every_session(self.store):
                self.names[session.key] = await name_of(self.store, session)
                self.total += session.messages if self._is_meant(session) else 0
        self.write(jsonl.encode_line(jsonl.HEADER))
        if chosen:
            for session in chosen:
                await self._session(session)
            await self._blobs_of(chosen)
        else:
            await self._everything()
        done = self.done
        end: dict[str, JSON] = {"sessions": done.sessions, "messages": done.messages}
        self.write(jsonl.encode_line({"end": end | {"records": done.records}}))
        return done

    async def _blobs_of(self, sessions: Sequence[SessionInfo]) -> None:
        """Write the blobs that some sessions refer to, each once."""
        found: dict[tuple[str, str], Record] = {}
        for session in sessions:
            with suppress(SessionGone):
                for blob in await blobs_of_session(self.store, session.owner, session.key):
                    found[session.owner, blob.key] = blob
        for (owner, _), blob in found.items():
            await self._chunks([blob], {"owner": owner})
            await self._records([blob], {"owner": owner})

    async def _named(self, name: str) -> SessionInfo:
        session = await self.store.get_session(name, self.owner or "default")
        if session is None or session.forgotten:
            raise SessionNotFound(f"there is no session {name!r}")
        return session

    async def _everything(self) -> None:
        async for session in every_session(self.store):
            if self._is_meant(session):
                await self._session(session)
            elif session.state == "damaged":
                id = self.names[session.key].id
                self.done.damaged.append(f"whose session {id!r} is, so it is left out")
        for owner in await self.store.owners():
            if self.owner in (None, owner):
                await self._write_scope(Scope(owner=owner), {"owner": owner})
        if self.owner is None:
            await self._write_scope(Scope(), {})

    def _is_meant(self, session: SessionInfo) -> bool:
        if session.forgotten:  # its tombstones belong to this store
            return False
        return self.owner is None or (session.state == "live" and session.owner == self.owner)

    async def _session(self, session: SessionInfo) -> None:
        # The records are read first: every message they name is then in the log that is read after.
        if session.key not in self.names:  # it was made since
            self.names[session.key] = await name_of(self.store, session)
        owner, id = self.names[session.key]
        try:
            records = await self._read_records(Scope(session=session.key), f"session {id!r}")
            session = await self.store.describe(session.key)
        except SessionGone:
            self.done.deleted += 1
            return
        if session.state == "damaged":
            self.done.damaged.append(f"the record of session {id!r}: owner, title and more")
        before = replace(self.done, damaged=self.done.damaged.copy())
        self._write("session", nouns.session_to_json(replace(session, id=id or "")))
        self.done.sessions += 1
        try:
            await self._messages(session)
        except SessionGone:
            # A part of it is already written: this line makes the import leave it out.
            self._write("deleted", {"session": id, "owner": owner})
            self.done = replace(before, deleted=before.deleted + 1)
            return
        await self._records(records, {"session": id, "owner": owner})

    async def _messages(self, session: SessionInfo) -> None:
        id = self.names[session.key].id
        after = 0
        while after < session.messages:
            page = await self.store.read(
                session.key, after=after, until=session.messages, limit=_PAGE
            )
            for message in page:
                if message.state == "damaged":
                    self.done.damaged.append(f"message {message.seq} of session {id!r}")
                self._write("message", nouns.message_to_json(nouns.presentable(message)))
            after = page[-1].seq
            self.done.messages += len(page)
            if self.progress:
                self.progress(self.done.messages, max(self.total, self.done.messages))

    async def _write_scope(self, scope: Scope, named: JSON) -> None:
        where = f"owner {scope.owner!r}" if scope.owner else "the tenant"
        records = await self._read_records(scope, where)
        await self._chunks(records, named)
        await self._records(records, named)

    async def _chunks(self, records: Sequence[Record], named: JSON) -> None:
        """Write the chunks of blobs, before the records that describe them."""
        for record in records:
            if record.kind == BLOB:
                async for chunk in chunks_of(self.store, record):
                    await self._records([chunk], named)

    async def _read_records(self, scope: Scope, where: str) -> list[Record]:
        try:
            records = await self.store.scan(scope, without=BLOB_CHUNK)
        except Damaged as error:
            self.done.damaged.append(f"the records of {where}, left out: {error}")
            return []
        # Leases and receipts are about this store, so they are not exported.
        return [record for record in records if record.kind not in NOT_IN_FILES]

    async def _records(self, records: Sequence[Record], scope: JSON) -> None:
        for record in records:
            for span in record.made_of:
                await self._learn_name(span.session)
            self._write("record", nouns.record_to_json(record, scope, self.names))
        self.done.records += len(records)

    async def _learn_name(self, key: SessionKey) -> None:
        """Learn the name of a session that a record is made of; a deleted one has none."""
        if key not in self.names:
            with suppress(SessionGone):
                session = await self.store.describe(key)
                self.names[key] = await name_of(self.store, session)

    def _write(self, kind: str, value: dict[str, Any]) -> None:
        self.write(jsonl.encode_line({kind: value}))


async def name_of(store: Store, session: SessionInfo) -> SessionName:
    """Return the owner and the id by which a session leaves its store.

    Of a damaged session the owner is unknown, and its id may be unusable or be another's: it gets
    the default owner, and then an id from its key.
    """
    if session.state != "damaged":
        return SessionName(session.owner, session.id)
    try:
        id = check_id(session.id, "id")
        other = await store.get_session(id)
    except KeepthreadError:
        return SessionName(_DEFAULT, f"damaged:{session.key}")
    is_free = other is None or other.key == session.key
    return SessionName(_DEFAULT, id if is_free else f"damaged:{session.key}")
