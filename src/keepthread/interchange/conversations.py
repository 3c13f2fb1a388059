"""Store conversations of other programs as sessions: data only, and idempotent.

Each becomes a session that is shown once it is complete. One that cannot be imported is named in
the report, and the others are still imported.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from keepthread.context.ids import derived_id, result_ids
from keepthread.errors import (
    Conflict,
    KeepthreadError,
    SessionExists,
    StoreClosed,
    Unavailable,
)
from keepthread.interchange.import_ import same_conversation, taken
from keepthread.interchange.markdown import LATEST
from keepthread.protocols import Progress, Store, TokenCounter
from keepthread.stores.codec import encode
from keepthread.stores.validation import MAX_BYTES, MAX_ID
from keepthread.types import JSON, ForkPoint, Message, SessionInfo

NAMED: Final = 1000
"""Problems that are named at most; all are counted."""

_BATCH: Final = 500
_BATCH_BYTES: Final = 1 << 20
_MOST_TEXT: Final = MAX_BYTES // 2  # bytes of a text, so that the other fields have room


class ImportedConversation(NamedTuple):
    """A conversation to store as a session; its messages have ids, and times where known."""

    id: str
    messages: Sequence[Message]
    title: str = ""
    title_seq: int = 0
    """The position of the message that the title was made from, which is erased with it."""
    created_at: float = 0.0
    updated_at: float = 0.0
    meta: Mapping[str, JSON] = {}
    forked_from: ForkPoint | None = None
    tags: Sequence[str] = ()
    system_prompt: str | None = None


class SkippedPart(NamedTuple):
    """Something that could not be imported, and why."""

    where: str
    what: str


@dataclass(slots=True, kw_only=True)
class Arrived:
    """The report of an import of conversations."""

    sessions: int = 0
    """Forks are included."""
    messages: int = 0
    forks: int = 0
    known: int = 0
    """Sessions that already existed with all these messages."""
    grown: int = 0
    """Sessions that already existed, and got the messages written since."""
    empty: int = 0
    """Conversations without a message."""
    hidden: int = 0
    """Messages that the program did not show either: settings, a model's thoughts, empty ones."""
    shortened: int = 0
    """Messages that were too long and were cut at the end."""
    left_out: int = 0
    """Messages on branches that were not requested, in circles, or not JSON objects."""
    repeated: int = 0
    """Messages that were repeated in their conversation, with the same id and content."""
    rejoined: int = 0
    """Messages whose predecessor is missing; they follow the message before them in the file."""
    refused: int = 0
    """Conversations that were skipped."""
    problems: list[SkippedPart] = field(default_factory=list[SkippedPart])

    def refuse(self, where: str, what: str) -> None:
        """Count a skipped conversation, and name it."""
        self.refused += 1
        self.note(where, what)

    def note(self, where: str, what: str) -> None:
        """Report something that a person should know."""
        if len(self.problems) < NAMED:
            self.problems.append(SkippedPart(where, what))


class Arrivals:
    """Stores conversations as sessions, one after another."""

    def __init__(self, store: Store, counter: TokenCounter, *, owner: str, prefix: str) -> None:
        """Take the owner of the conversations, and the prefix for the ids of their sessions."""
        self.done = Arrived()
        self._store = store
        self._counter = counter
        self._owner = owner
        self._prefix = prefix

    async def take(self, given: ImportedConversation, *, progress: Progress | None = None) -> None:
        """Store a conversation, or report why not; `progress` counts its messages."""
        try:
            await self._take(given, progress)
        except (Unavailable, StoreClosed):
            raise
        except KeepthreadError as error:
            self.done.refuse(given.id, str(error))

    async def _take(self, given: ImportedConversation, progress: Progress | None) -> None:
        info = self._info(given)
        messages = await asyncio.to_thread(_with_digests, given.messages)
        stored = await self._find_or_make(info)
        if stored.forgotten:  # forgotten messages are not imported again
            self.done.sessions += 1
            self.done.known += 1
            return
        new = await asyncio.to_thread(self._placed, messages, stored)
        gone = await self._erased(info.forked_from)
        new = [_tombstone(m) if m.seq in gone and m.seq > stored.messages else m for m in new]
        try:
            for batch in _batches(new):
                await self._store.load(stored.key, batch)
                if progress:
                    progress(batch[-1].seq, len(messages))
        except Conflict:
            raise SessionExists(
                f"session {info.id!r} already exists with a different continuation; keep both with "
                "--as PREFIX, or delete the existing one"
            ) from None
        if not stored.ready:
            if meanwhile := await self._erased(info.forked_from) - gone:
                await self._store.erase(stored.key, meanwhile)
            await self._store.put_session(replace(info, key=stored.key, ready=True))
        self.done.sessions += 1
        self.done.messages += len(messages)
        self.done.forks += info.kind == "fork"
        if stored.ready:
            more = len(messages) > stored.messages
            self.done.grown += more
            self.done.known += not more

    def _info(self, given: ImportedConversation) -> SessionInfo:
        fork = given.forked_from
        times = [m.created_at for m in given.messages if m.created_at]
        return SessionInfo(
            id=self._prefix + given.id,
            owner=self._owner,
            title=given.title,
            title_seq=given.title_seq,
            tags=given.tags,
            system_prompt=given.system_prompt,
            meta=given.meta,
            kind="fork" if fork else "main",
            forked_from=fork and fork._replace(session=self._prefix + fork.session),
            ready=False,
            created_at=given.created_at or min(times, default=0.0),
            updated_at=given.updated_at or max(times, default=0.0),
        )

    async def _find_or_make(self, info: SessionInfo) -> SessionInfo:
        with suppress(SessionExists):
            return await self._store.put_session(info)
        stored = await self._store.get_session(info.id, info.owner)
        if stored is None or not same_conversation(stored, info):
            raise taken(info.id)
        return stored

    async def _erased(self, fork: ForkPoint | None) -> set[int]:
        """Return the positions erased before a fork point: they must not come back in the fork."""
        origin = None
        if fork:
            origin = await self._store.get_session(fork.session, self._owner)
        if fork is None or origin is None or not origin.epoch:
            return set()
        found = await self._store.find(origin.key, seqs=range(1, fork.seq + 1))
        return {message.seq for message in found if message.state == "erased"}

    def _placed(self, messages: Sequence[Message], stored: SessionInfo) -> list[Message]:
        """Return messages as a store returns them; those already stored are not counted again."""
        turn, total, at = 0, stored.tokens, stored.created_at
        placed: list[Message] = []
        for seq, message in enumerate(messages, 1):
            turn += message.role == "user"
            at = message.created_at or at
            tokens = self._counter.count(message) if seq > stored.messages else 0
            total += tokens
            numbers = {"seq": seq, "turn": turn, "total": total, "tokens": tokens}
            counter = self._counter.name
            placed.append(replace(message, **numbers, counter=counter, created_at=at))
        return placed


def _with_digests(messages: Iterable[Message]) -> list[Message]:
    """Return messages in a form that a store accepts."""
    return [replace(message, digest=encode(message, message.id).digest) for message in messages]


def _tombstone(message: Message) -> Message:
    place = {name: getattr(message, name) for name in ("id", "seq", "turn", "total")}
    return Message(role=message.role, created_at=message.created_at, state="erased", **place)


def _batches(messages: Sequence[Message]) -> Iterator[list[Message]]:
    batch: list[Message] = []
    size = 0
    for message in messages:
        batch.append(message)
        size += len(message.content)
        if len(batch) >= _BATCH or size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


# --- what the formats share ---


def session_id(program: str, *parts: str) -> str:
    """Return the id of a session: its parts, or an id derived from them if that is too long."""
    id = f"{program}:{'/'.join(parts)}"
    if len(id) <= MAX_ID // 2 and id.isprintable() and all(parts):
        return id
    return f"{program}:{derived_id(program, *parts)}"


def source_of(program: str, id: str) -> str:
    """Return the source of all messages of one conversation, the same in every file."""
    return f"import:{derived_id('import', program, id)}"


def time_of(value: object) -> float:
    """Return seconds since 1970, or 0 if the value is not a time."""
    if type(value) is int or type(value) is float:
        return float(value) if 0 < value < LATEST else 0.0
    return 0.0


def short(value: object) -> str:
    """Return a name or a title as one line of limited length; empty if it is not a text."""
    if type(value) is not str:
        return ""
    return " ".join(value[:MAX_ID].split())


def fitted(text: str) -> str:
    """Return a text that fits into a message, with a mark if its end was cut."""
    kept = text
    while (size := len(kept.encode("utf-8", "surrogatepass"))) > _MOST_TEXT:
        kept = kept[: len(kept) * _MOST_TEXT // size]
    if kept == text:
        return text
    return f"{kept}\n\n[… {len(text) - len(kept):,} more characters were not imported]"


class OpenCalls:
    """The calls of a conversation that have no result yet, by their ids."""

    def __init__(self) -> None:
        """Begin with none."""
        self._results: dict[str, str] = {}

    def called(self, message: Message) -> None:
        """Add the calls of a message."""
        ids = result_ids(message)
        for call, id in zip(message.tool_calls, ids, strict=True):
            self._results[call.id] = id

    def answered(self, call: str | None) -> str | None:
        """Return the id that the result of a call must have, or None if no call waits for it."""
        return self._results.pop(call, None) if call is not None else None
