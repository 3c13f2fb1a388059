"""Export a tenant, or some of its sessions, as lines of JSON."""

import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

from keepthread.errors import Damaged, KeepthreadError, SessionGone, SessionNotFound
from keepthread.interchange import jsonl
from keepthread.interchange import schema as nouns
from keepthread.interchange.blobs import blobs_of_session, chunks_of, is_pending
from keepthread.interchange.schema import SessionName
from keepthread.protocols import Progress, Store
from keepthread.stores.front import every_session
from keepthread.stores.kinds import BLOB, BLOB_CHUNK, NOT_IN_FILES
from keepthread.stores.validation import check_id
from keepthread.types import JSON, Record, Scope, SessionInfo, SessionKey

_log: Final = logging.getLogger("keepthread")
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
    made = _Export(store, owner, progress)
    async for line in made.run(sessions):
        write(line)
    return made.done


async def export_lines(
    store: Store, owner: str, *, sessions: Sequence[str] = ()
) -> AsyncGenerator[bytes]:
    """Yield the lines that `export` writes for an owner, as fast as they are taken.

    Nothing of other owners is read. Damage is written as damage; records that cannot be read are
    left out, which is logged.
    """
    made = _Export(store, owner, None, alone=True)
    async for line in made.run(sessions):
        yield line
    if made.done.damaged:
        _log.warning("the export is damaged in %d places; run `verify`", len(made.done.damaged))


class _Export:
    """One export."""

    def __init__(
        self,
        store: Store,
        owner: str | None,
        progress: Progress | None,
        *,
        alone: bool = False,
    ) -> None:
        self.store = store
        self.owner = None if owner is None else check_id(owner, "owner")
        self.progress = progress
        self.searched = owner if alone else None
        """Whose sessions are read; of a damaged session nobody knows whose it is."""
        self.names: dict[SessionKey, SessionName] = {}
        self.total = 0
        self.done = Exported(damaged=[])

    async def run(self, names: Sequence[str]) -> AsyncGenerator[bytes]:
        """Yield all lines; after the last one `done` is complete."""
        chosen = [await self._named(name) for name in dict.fromkeys(names)]
        if chosen:
            self.total = sum(session.messages for session in chosen)
        else:
            async for session in every_session(self.store, self.searched):
                self.names[session.key] = await name_of(self.store, session)
                self.total += session.messages if self._is_meant(session) else 0
        yield jsonl.encode_line(jsonl.HEADER)
        async for line in self._chosen(chosen) if chosen else self._everything():
            yield line
        done = self.done
        end: dict[str, JSON] = {"sessions": done.sessions, "messages": done.messages}
        yield jsonl.encode_line({"end": end | {"records": done.records}})

    async def _chosen(self, sessions: Sequence[SessionInfo]) -> AsyncGenerator[bytes]:
        for session in sessions:
            async for line in self._session(session):
                yield line
        async for line in self._blobs_of(sessions):
            yield line

    async def _blobs_of(self, sessions: Sequence[SessionInfo]) -> AsyncGenerator[bytes]:
        """Yield the blobs that some sessions refer to, each once."""
        found: dict[tuple[str, str], Record] = {}
        for session in sessions:
            with suppress(SessionGone):
                for blob in await blobs_of_session(self.store, session.owner, session.key):
                    found[session.owner, blob.key] = blob
        for (owner, _), blob in found.items():
            async for line in self._with_chunks([blob], {"owner": owner}):
                yield line

    async def _named(self, name: str) -> SessionInfo:
        session = await self.store.get_session(name, self.owner or "default")
        if session is None or session.forgotten:
            raise SessionNotFound(f"there is no session {name!r}")
        return session

    async def _everything(self) -> AsyncGenerator[bytes]:
        async for session in every_session(self.store, self.searched):
            if self._is_meant(session):
                async for line in self._session(session):
                    yield line
            elif session.state == "damaged":
                id = self.names[session.key].id
                self.done.damaged.append(f"the owner of session {id!r}, so it is left out")
        owners = [self.searched] if self.searched else await self.store.owners()
        scopes = [Scope(owner=each) for each in owners]
        meant = [scope for scope in scopes if self.owner in (None, scope.owner)]
        for scope in [*meant, Scope()] if self.owner is None else meant:
            async for line in self._scope(scope):
                yield line

    def _is_meant(self, session: SessionInfo) -> bool:
        if session.forgotten:  # its tombstones belong to this store
            return False
        return self.owner is None or (session.state == "live" and session.owner == self.owner)

    async def _session(self, session: SessionInfo) -> AsyncGenerator[bytes]:
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
        yield _line("session", nouns.session_to_json(replace(session, id=id or "")))
        self.done.sessions += 1
        try:
            async for line in self._messages(session):
                yield line
        except SessionGone:
            # A part of it is already written: this line makes the import leave it out.
            yield _line("deleted", {"session": id, "owner": owner})
            self.done = replace(before, deleted=before.deleted + 1)
            return
        async for line in self._records(records, {"session": id, "owner": owner}):
            yield line

    async def _messages(self, session: SessionInfo) -> AsyncGenerator[bytes]:
        id = self.names[session.key].id
        after = 0
        while after < session.messages:
            page = await self.store.read(
                session.key, after=after, until=session.messages, limit=_PAGE
            )
            for message in page:
                if message.state == "damaged":
                    self.done.damaged.append(f"message {message.seq} of session {id!r}")
                yield _line("message", nouns.message_to_json(nouns.presentable(message)))
            after = page[-1].seq
            self.done.messages += len(page)
            if self.progress:
                self.progress(self.done.messages, max(self.total, self.done.messages))

    async def _scope(self, scope: Scope) -> AsyncGenerator[bytes]:
        """Yield the records of an owner or of the tenant."""
        where = f"owner {scope.owner!r}" if scope.owner else "the tenant"
        records = await self._read_records(scope, where)
        async for line in self._with_chunks(records, {"owner": scope.owner} if scope.owner else {}):
            yield line

    async def _with_chunks(self, records: Sequence[Record], named: JSON) -> AsyncGenerator[bytes]:
        """Yield the chunks of blobs, and then the records that describe them."""
        for record in records:
            if record.kind == BLOB:
                async for chunk in chunks_of(self.store, record):
                    async for line in self._records([chunk], named):
                        yield line
        async for line in self._records(records, named):
            yield line

    async def _read_records(self, scope: Scope, where: str) -> list[Record]:
        try:
            records = await self.store.scan(scope, without=BLOB_CHUNK)
        except Damaged as error:
            self.done.damaged.append(f"the records of {where}, left out: {error}")
            return []
        # Leases and receipts are about this store, so they are not exported.
        return [r for r in records if r.kind not in NOT_IN_FILES and not is_pending(r)]

    async def _records(self, records: Sequence[Record], scope: JSON) -> AsyncGenerator[bytes]:
        for record in records:
            for span in record.made_of:
                await self._learn_name(span.session)
            yield _line("record", nouns.record_to_json(record, scope, self.names))
        self.done.records += len(records)

    async def _learn_name(self, key: SessionKey) -> None:
        """Learn the name of a session that a record is made of; a deleted one has none."""
        if key not in self.names:
            with suppress(SessionGone):
                session = await self.store.describe(key)
                self.names[key] = await name_of(self.store, session)


def _line(kind: str, value: dict[str, Any]) -> bytes:
    return jsonl.encode_line({kind: value})


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
