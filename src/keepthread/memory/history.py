"""A session's history: turn numbers, clear, rewind, pins and forks.

The log itself never changes.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final, NamedTuple

from keepthread.context.blocks import is_answer
from keepthread.context.hidden import CLEARED, REWOUND, HiddenRanges
from keepthread.context.tool_results import TOOL, CacheEntry
from keepthread.context.trust import is_note, trust_in
from keepthread.errors import MessageNotFound, SessionExists, SessionGone, Stale
from keepthread.memory.blobs.repository import BlobRepository
from keepthread.memory.material import position_key, summary_of
from keepthread.memory.tool_cache import made_after
from keepthread.memory.tool_calls import TOOL_SOURCE
from keepthread.protocols import Progress, Store, TokenCounter
from keepthread.stores.front import begin_again
from keepthread.stores.kinds import ADDITION, BLOB_USE, FOLD, LEASE, MARKS, PIN, SYSTEM
from keepthread.stores.records import forgotten_session
from keepthread.stores.validation import check_count, check_id
from keepthread.types import (
    ForkPoint,
    Hidden,
    Message,
    Scope,
    SessionInfo,
    SessionKey,
    Span,
    Summary,
)

_PAGE: Final = 20
_LARGE_PAGE: Final = 100
_MOST_PAGES: Final = 20


async def current_turn(store: Store, session: SessionKey) -> int:
    """Return the number of the latest turn while it is open, else that of the next.

    It is open until its newest message of user or model is an answer. Notes and calls that the
    program recorded do not count.
    """
    latest = (await store.describe(session)).turns
    before: int | None = None
    while latest and (page := await store.tail(session, limit=_PAGE, before=before)):
        for message in reversed(page):
            if message.turn >= latest and _is_word(message):
                return message.turn + is_answer(message)
        before = page[0].seq
    return max(latest, 1)


async def closed_turn(store: Store, session: SessionKey, marks: HiddenRanges) -> int:
    """Return the highest turn with an answer that can be seen; those below are closed too."""
    before: int | None = None
    for _ in range(_MOST_PAGES):
        page = await store.tail(session, limit=_LARGE_PAGE, before=before)
        answered = [m.turn for m in page if _is_word(m) and is_answer(m) and not marks.hides(m.seq)]
        if answered or not page:
            return max(answered, default=0)
        before = page[0].seq
    return 0


def _is_word(message: Message) -> bool:
    own = (message.source or "").startswith(TOOL_SOURCE)
    return message.role in ("user", "assistant") and not own


_COPIED_AT_ONCE: Final = 500


async def clear(store: Store, session: SessionKey) -> None:
    """Hide all messages so far; the log keeps them."""
    await _hide(store, session, 1, CLEARED)


async def rewind(store: Store, session: SessionKey, to: int) -> None:
    """Hide the messages after a position."""
    if check_count(to, "to") and not await store.find(session, seqs=[to]):
        raise MessageNotFound(f"there is no message at position {to}")
    await _hide(store, session, to + 1, REWOUND)


async def _hide(store: Store, session: SessionKey, first: int, reason: str) -> None:
    """Hide from a position to the end of the log; retry if another process hid something."""
    while True:
        known = await read_ranges(store, session)
        if reason == REWOUND:
            first = known.ranges.next_visible(first)
        if first > known.head.messages:
            return
        with suppress(Stale):
            await hide_from(store, session, first, reason, known)
            return


async def hide_from(
    store: Store, session: SessionKey, first: int, reason: str, known: "StoredRanges"
) -> Hidden:
    """Hide from a position to the end that a log had; raise `Stale` if the ranges changed since."""
    before = await store.find(session, seqs=[first - 1])
    tokens = known.head.tokens - (before[0].total if before else 0)
    ranges = known.ranges.hide(first, known.head.messages, tokens, reason)
    await _put_ranges(store, session, ranges, known.version)
    return Hidden(first, known.head.messages, tokens, reason)


async def show_again(store: Store, session: SessionKey, span: Hidden) -> None:
    """Undo a `hide_from`, even if messages were added since."""
    while True:
        ranges, version, _ = await read_ranges(store, session)
        if span not in ranges.hidden:  # a later range covers it
            return
        left = HiddenRanges([each for each in ranges.hidden if each != span], ranges.inner)
        with suppress(Stale):
            await _put_ranges(store, session, left, version)
            return


async def unhide(store: Store, session: SessionKey) -> Hidden | None:
    """Unhide the range hidden last, unless messages were added since; return that range."""
    while True:
        ranges, version, head = await read_ranges(store, session)
        if not ranges.hidden or ranges.hidden[-1].last != head.messages:
            return None
        with suppress(Stale):
            await _put_ranges(store, session, ranges.without_latest(), version)
            return ranges.hidden[-1]


class StoredRanges(NamedTuple):
    """The hidden ranges of a session as they were read, and what the log was then."""

    ranges: HiddenRanges
    version: int
    head: SessionInfo


async def read_ranges(store: Store, session: SessionKey) -> StoredRanges:
    """Return the hidden ranges of a session."""
    head = await store.describe(session)
    found = await store.scan(Scope(session=session), MARKS)  # one round trip, also if there is none
    if not found:
        return StoredRanges(HiddenRanges(), 0, head)
    return StoredRanges(HiddenRanges.from_json(found[0].value), found[0].version, head)


async def _put_ranges(
    store: Store, session: SessionKey, ranges: HiddenRanges, version: int
) -> None:
    await store.put(Scope(session=session), MARKS, MARKS, ranges.to_json(), version=version)


async def recount(
    store: Store,
    session: SessionKey,
    counter: TokenCounter,
    *,
    progress: Progress | None = None,
) -> int:
    """Recount messages and hidden ranges of other counters; return how many messages that were."""
    counted = await store.recount(session, counter, progress=progress)
    while True:
        marks, version, _ = await read_ranges(store, session)
        hidden = [s._replace(tokens=await _tokens_of(store, session, s)) for s in marks.hidden]
        inner = [s._replace(tokens=await _tokens_of(store, session, s)) for s in marks.inner]
        if (hidden, inner) == (list(marks.hidden), list(marks.inner)):
            return counted
        marks = HiddenRanges(hidden, inner)
        try:
            await store.put(Scope(session=session), MARKS, MARKS, marks.to_json(), version=version)
        except Stale:
            continue
        return counted


async def _tokens_of(store: Store, session: SessionKey, span: Hidden) -> int:
    ends = await store.find(session, seqs=[span.first - 1, span.last])
    totals = {message.seq: message.total for message in ends}
    return max(0, totals.get(span.last, 0) - totals.get(span.first - 1, 0))


async def pin(store: Store, session: SessionKey, id: str) -> None:
    """Include a message in every context, within the pins' share of the budget."""
    found = await store.find(session, ids=[check_id(id, "a message id")])
    if not found or found[0].state != "live":
        raise MessageNotFound(f"there is no message {id!r} to pin")
    span = Span(session=session, first=found[0].seq, last=found[0].seq)
    await store.put(Scope(session=session), PIN, id, None, made_of=[span])


async def pinned(store: Store, session: SessionKey) -> list[Message]:
    """Return the pinned messages, oldest first."""
    records = await store.scan(Scope(session=session), PIN)
    if not records:
        return []
    found = await store.find(session, ids=[record.key for record in records])
    return sorted([m for m in found if m.state == "live"], key=lambda message: message.seq)


async def hidden(store: Store, session: SessionKey) -> list[Hidden]:
    """Return the ranges that contexts skip, oldest first."""
    marks, _, _ = await read_ranges(store, session)
    return list(marks.hidden)


async def compactions(store: Store, session: SessionKey, limit: int) -> list[Summary]:
    """Return the newest summaries that are stored, newest first."""
    found = await store.scan(Scope(session=session), FOLD, limit=limit)
    return [summary_of(record) for record in reversed(found)]


async def unpin(store: Store, session: SessionKey, id: str) -> bool:
    """Unpin a message; return whether it was pinned."""
    return await store.drop(Scope(session=session), PIN, check_id(id, "a message id"))


MOST_SYSTEM_MESSAGES: Final = 32


def is_from_operator(message: Message) -> bool:
    """Return whether a message is a system message that every context shows.

    Notes have a section of their own; an imported message is not the operator's word.
    """
    return (
        message.role == "system"
        and message.state == "live"
        and trust_in(message) == "operator"
        and not is_note(message)
    )


async def keep_system_messages(
    store: Store, session: SessionKey, messages: Sequence[Message]
) -> None:
    """Keep stored system messages in every context, up to a number of them, the oldest first.

    Hidden ones make room for others.
    """
    scope = Scope(session=session)
    kept = {record.key for record in await store.scan(scope, SYSTEM)}
    keys = {position_key(message.seq): message.seq for message in messages}
    if len(kept | keys.keys()) > MOST_SYSTEM_MESSAGES:
        marks, _, _ = await read_ranges(store, session)
        for key in sorted(kept):
            if marks.hides(int(key)):
                await store.drop(scope, SYSTEM, key)
                kept.remove(key)
    room = MOST_SYSTEM_MESSAGES - len(kept)
    for key in sorted(keys.keys() - kept)[: max(0, room)]:
        span = Span(session=session, first=keys[key], last=keys[key])
        await store.put(scope, SYSTEM, key, None, made_of=[span])


async def fork(
    store: Store, source: SessionInfo, id: str, at: int | None, blobs: BlobRepository
) -> SessionInfo:
    """Copy a session up to a position into a new one, which is not visible before it is complete.

    The next call with the same id and position resumes a copy that was interrupted; without a
    position, it resumes up to the one that the copy was begun for. A forgetting deletes a copy
    that it finds incomplete: the copy is begun again, without what was erased.
    """
    if source.forgotten:
        raise forgotten_session()
    source = await store.describe(source.key)
    head = source.messages
    end = head if at is None else check_count(at, "at")
    if end > head:
        raise MessageNotFound(f"there is no message at position {end}; the log ends at {head}")
    while not source.forgotten:
        try:
            return await _copy(store, source, id, end, blobs, whole=at is None)
        except SessionGone:
            source = await store.describe(source.key)  # raises if the source was deleted
    raise forgotten_session()


async def _copy(
    store: Store, source: SessionInfo, id: str, end: int, blobs: BlobRepository, *, whole: bool
) -> SessionInfo:
    target = await _unready(store, source, id, end, whole=whole)
    end = target.forked_from.seq if target.forked_from else end
    copied = target.messages
    while copied < end:
        page = await store.read(source.key, after=copied, until=end, limit=_COPIED_AT_ONCE)
        uses = await blobs.refer(target.key, page)
        copied = await store.load(target.key, page)
        if await blobs.references.changed(uses):  # dropped before the copies were stored
            await blobs.refer(target.key, page)
    await _copy_shelf(store, source.key, target.key, end)
    while True:
        try:
            return await store.put_session(replace(target, ready=True), seen=target)
        except Stale:  # some of it was erased, and stays erased
            target = await store.describe(target.key)
            if target.forgotten:
                raise forgotten_session() from None


async def _unready(
    store: Store, source: SessionInfo, id: str, end: int, *, whole: bool
) -> SessionInfo:
    origin = ForkPoint(session=source.id, seq=end)
    # A title that was made from a message beyond the fork point stays with that message.
    titled = source.title_seq <= end
    new = SessionInfo(
        id=id,
        owner=source.owner,
        title=source.title if titled else "",
        title_seq=source.title_seq if titled else 0,
        tags=source.tags,
        system_prompt=source.system_prompt,
        meta=source.meta,
        kind="fork",
        forked_from=origin,
        ready=False,
    )
    try:
        return await store.put_session(new)
    except SessionExists:
        begun = await store.get_session(id, source.owner)
        if begun is None:
            raise SessionGone(f"session {id!r} was deleted while it was forked") from None
        if begun.forgotten:
            return await begin_again(store, begun, new)
        point = begun.forked_from
        same = point == origin or (whole and point is not None and point.session == source.id)
        if begun.ready or not same:
            raise
        return begun


async def _copy_shelf(store: Store, source: SessionKey, target: SessionKey, end: int) -> None:
    """Copy the records made before the fork point."""
    turn = await current_turn(store, target)
    for record in await store.scan(Scope(session=source)):
        # A process works on the source, not on the copy; the copy refers to blobs already.
        if record.kind in (LEASE, BLOB_USE, ADDITION):
            continue
        value = record.value
        if entry := CacheEntry.of(record) if record.kind == TOOL else None:
            if made_after(entry, source, end):
                continue
            value = entry.until(turn).to_json()
        if record.kind == MARKS:
            value = HiddenRanges.from_json(value).until(end).to_json()
        elif any(span.session == source and span.last > end for span in record.made_of):
            continue
        spans = [
            span._replace(session=target) if span.session == source else span
            for span in record.made_of
        ]
        scope = Scope(session=target)
        with suppress(Stale):  # copied before the interruption
            await store.put(scope, record.kind, record.key, value, made_of=spans, version=0)
