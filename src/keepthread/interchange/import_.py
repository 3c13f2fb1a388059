"""Import the lines of an export: data only, resumable, and idempotent.

Sessions are created hidden, filled in batches, and shown when the whole file was read. To resume an
import that was interrupted, run it again.
"""

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from keepthread.context.ranges import counted
from keepthread.errors import (
    Conflict,
    InvalidInput,
    KeepthreadError,
    SessionExists,
    SessionGone,
    Stale,
    Unavailable,
)
from keepthread.interchange import jsonl
from keepthread.interchange import schema as nouns
from keepthread.interchange.blobs import refer
from keepthread.protocols import Progress, Store
from keepthread.stores.kinds import NOT_IN_FILES
from keepthread.stores.validation import check_id, show
from keepthread.types import JSON, Message, Scope, SessionInfo, SessionKey, Span

_BATCH: Final = 500
_BATCH_BYTES: Final = 1 << 20
_RECORDS: Final = 100


@dataclass(slots=True, kw_only=True)
class Imported:
    """The report of an import; sessions `known` before were compared, records `kept` differ."""

    sessions: int = 0
    messages: int = 0
    records: int = 0
    known: int = 0
    """Sessions that already existed and were complete."""
    kept: int = 0
    """Records of owners or the tenant that already have another value here, which stays."""
    damaged: int = 0
    """Sessions and messages that were damaged in the store they came from."""


@dataclass(slots=True)
class _Filling:
    """A session that is being imported, with what was read of it so far."""

    name: nouns.SessionName
    given: SessionInfo
    stored: SessionInfo
    before: Imported
    messages: int = 0


class _ImportRecord(NamedTuple):
    """A record of the file, and its line number."""

    line: int
    scope: Scope
    value: dict[str, Any]


async def import_lines(
    store: Store,
    lines: Iterable[bytes],
    *,
    prefix: str = "",
    size: int = 0,
    progress: Progress | None = None,
) -> Imported:
    """Import an export into a store.

    If the id of a session is another conversation's, `SessionExists` is raised; `prefix` gives all
    sessions other ids. `size` is the size of all lines in bytes, for `progress`.
    """
    reading = _Import(store, prefix)
    read = 0
    try:
        for line in lines:
            reading.line += 1
            await reading.take(line)
            read += len(line)
            if progress and (reading.line % _BATCH == 0 or reading.ended):
                progress(read, max(size, read))
    except Unavailable:
        raise
    except KeepthreadError as error:
        raise type(error)(f"line {reading.line}: {error}") from error
    if not reading.ended:
        raise InvalidInput(
            f"the export is incomplete: it ends at line {reading.line} without its last line. "
            "Nothing was made visible; import a complete export to continue"
        )
    return reading.done


class _Import:
    """One import."""

    def __init__(self, store: Store, prefix: str) -> None:
        self.store = store
        self.prefix = prefix
        self.line = 0
        self.ended = False
        self.done = Imported()
        self.filled: list[_Filling] = []
        self.keys: dict[nouns.SessionName, SessionKey] = {}
        self.keys_by_id: dict[str, SessionKey] = {}  # for files of version 1
        self.known: set[SessionKey] = set()
        self.batch: list[Message] = []
        self.batch_bytes = 0
        self.waiting: list[_ImportRecord] = []  # records ready to be put
        self.later: list[_ImportRecord] = []  # records made from sessions that may still follow

    async def take(self, line: bytes) -> None:
        value = jsonl.decode_line(line)
        if self.line == 1:
            jsonl.check_header(value)
            return
        if self.ended:
            raise InvalidInput("no line may come after the end")
        if len(value) != 1:
            raise InvalidInput(
                "a line must be a session, a message, a record, a deletion or the end"
            )
        ((kind, body),) = value.items()
        if kind == "message":
            await self._message(body, len(line))
            return
        await self._flush()
        if kind == "record":
            await self._record(body)
        elif kind == "session":
            await self._session(body)
        elif kind == "deleted":
            await self._deleted(body)
        elif kind == "end":
            await self._end(body)
        else:
            raise InvalidInput(f"unknown kind of line: {kind!r}")

    # --- sessions ---

    async def _session(self, body: Any) -> None:
        self._check_whole()
        given = nouns.session_from_json(body)
        name = nouns.SessionName(given.owner, given.id)
        if name in self.keys:
            raise InvalidInput(f"session {given.id!r} is in the file twice")
        before = replace(self.done)
        self.done.damaged += given.state == "damaged"
        self.done.sessions += 1
        renamed = self._renamed(given)
        stored = await self._find_or_make(renamed)
        self.keys[name] = self.keys_by_id[given.id] = stored.key
        self.filled.append(_Filling(name, renamed, stored, before))
        if stored.ready or stored.forgotten:  # forgotten messages are not imported again
            self.known.add(stored.key)
            self.done.known += 1

    async def _deleted(self, body: Any) -> None:
        """Leave out the session above: it was deleted during the export."""
        last = self.filled[-1] if self.filled else None
        if last is None or body not in _named(last.name):
            raise InvalidInput("only the session above can be deleted")
        self.filled.pop()
        del self.keys[last.name]
        self.keys_by_id.pop(last.name.id or "", None)
        self.done = last.before
        if not last.stored.ready and not last.stored.forgotten:
            with suppress(SessionGone, Stale):  # another process deleted or finished it
                await self.store.delete_session(last.stored.key, unready=True)

    def _renamed(self, given: SessionInfo) -> SessionInfo:
        fork = given.forked_from
        return replace(
            given,
            id=self.prefix + given.id,
            parent=given.parent and self.prefix + given.parent,
            forked_from=fork and fork._replace(session=self.prefix + fork.session),
        )

    async def _find_or_make(self, given: SessionInfo) -> SessionInfo:
        try:
            return await self.store.put_session(
                replace(given, key=SessionKey(""), ready=False, state="live")
            )
        except SessionExists:
            stored = await self.store.get_session(given.id, given.owner)
        if stored is None or not same_conversation(stored, given):
            raise taken(given.id)
        if stored.ready and stored.messages < given.messages:
            raise SessionExists(
                f"session {given.id!r} already exists, and has {stored.messages} of the"
                f" {counted(given.messages, 'message')} in the export. Delete it first, or keep"
                " both with --as PREFIX"
            )
        return stored

    def _check_whole(self) -> None:
        if self.filled and (last := self.filled[-1]).messages != last.given.messages:
            raise InvalidInput(
                f"session {last.given.id!r} should have {counted(last.given.messages, 'message')};"
                f" there are {last.messages}"
            )

    # --- messages ---

    async def _message(self, body: Any, size: int) -> None:
        message = nouns.message_from_json(body)
        if not self.filled:
            raise InvalidInput("a message must come after its session")
        session = self.filled[-1]
        session.messages += 1
        if message.seq != session.messages or message.seq > session.given.messages:
            raise InvalidInput(f"position {message.seq} is not the next of {session.given.id!r}")
        self.done.messages += 1
        self.done.damaged += message.state == "damaged"
        self.batch.append(message)
        self.batch_bytes += size
        if len(self.batch) >= _BATCH or self.batch_bytes >= _BATCH_BYTES:
            await self._flush()

    async def _flush(self) -> None:
        if not self.batch:
            return
        session = self.filled[-1]
        try:
            if not session.stored.forgotten:
                await refer(self.store, session.stored.owner, session.stored.key, self.batch)
                await self.store.load(session.stored.key, self.batch)
        except Conflict:
            raise taken(session.given.id) from None
        self.batch, self.batch_bytes = [], 0

    # --- records ---

    async def _record(self, body: Any) -> None:
        value = nouns.record_from_json(body)
        if (
            check_id(value["kind"], "kind") in NOT_IN_FILES
        ):  # imports are only data: no records that trigger or attest to actions
            raise InvalidInput(f"a record of the kind {value['kind']!r} cannot be imported")
        self.done.records += 1
        scope = Scope(owner=value["scope"].get("owner", ""))
        if id := value["scope"].get("session"):
            key = self._key(nouns.SessionName(value["scope"].get("owner"), id))
            if key is None:
                raise InvalidInput(f"session {id!r} must come before its records")
            scope = Scope(session=key)
            if scope.session in self.known:  # it may have continued, and its records with it
                return
        entry = _ImportRecord(self.line, scope, value)
        named = [name for name, _, _ in value["made_of"] if name != nouns.NO_SESSION]
        unseen = any(self._key(name) is None for name in named)
        (self.later if unseen else self.waiting).append(entry)
        if len(self.waiting) >= _RECORDS:
            await self._put_waiting()

    def _key(self, name: nouns.SessionName) -> SessionKey | None:
        """Return the key of a session that was read before."""
        if name.owner is None:
            return self.keys_by_id.get(name.id or "")
        return self.keys.get(name)

    async def _put_waiting(self) -> None:
        waiting, self.waiting = self.waiting, []
        await asyncio.gather(*(self._put(entry) for entry in waiting))

    async def _put(self, entry: _ImportRecord) -> None:
        value = entry.value
        spans = [
            Span(session=key, first=first, last=last)
            for name, first, last in value["made_of"]
            if (key := self._key(name))
        ]
        place = (entry.scope, value["kind"], value["key"])
        version = None if entry.scope.session else 0
        while (epochs := await self._epochs(entry.scope, spans)) is not None:
            try:
                await self.store.put(
                    *place, value["value"], made_of=spans, version=version, epochs=epochs
                )
            except Stale:
                there = await self.store.get(*place)
                if there is None:  # something was erased at this moment
                    continue
                self.done.kept += there.value != value["value"]
            except InvalidInput:
                self.line = entry.line
                raise
            return

    async def _epochs(self, scope: Scope, spans: Sequence[Span]) -> dict[SessionKey, int] | None:
        """Return the epochs of the sessions a record is made from; None if some of it was erased.

        So facts about an owner from messages that were forgotten do not come back.
        """
        epochs: dict[SessionKey, int] = {}
        for session, first, last in () if scope.session else spans:
            info = await self.store.describe(session)
            epochs[session] = info.epoch
            seqs = range(first, min(last, info.messages) + 1) if info.epoch else ()
            if any(m.state == "erased" for m in await self.store.find(session, seqs=seqs)):
                return None
        return epochs

    # --- the end ---

    async def _end(self, body: Any) -> None:
        self._check_whole()
        done = self.done
        read = {"sessions": done.sessions, "messages": done.messages, "records": done.records}
        if body != read:
            raise InvalidInput(f"the last line counts {show(body)}; the file has {read}")
        self.waiting += self.later
        await self._put_waiting()
        for session in self.filled:
            if session.given.ready and session.stored.key not in self.known:
                await self.store.put_session(
                    replace(session.given, key=session.stored.key, state="live")
                )
        self.ended = True


def same_conversation(stored: SessionInfo, given: SessionInfo) -> bool:
    """Return whether two session records seem to be of one conversation."""
    alike = (stored.owner, stored.kind, stored.parent, stored.forked_from) == (
        given.owner,
        given.kind,
        given.parent,
        given.forked_from,
    )
    return alike and given.created_at in (0, stored.created_at)


def _named(name: nouns.SessionName) -> tuple[JSON, JSON]:
    """Return the ways in which a line may name a session; version 1 gave no owner."""
    return {"session": name.id, "owner": name.owner}, {"session": name.id}


def taken(id: str) -> SessionExists:
    """Return the error for an id that another conversation has."""
    return SessionExists(
        f"session {id!r} already exists and is another conversation;"
        " keep both with --as PREFIX, or delete the existing one"
    )
