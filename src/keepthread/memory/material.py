"""Gather the input for selecting a context: the only step that reads the store."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final, Literal, cast

from keepthread.context.hidden import HiddenRanges
from keepthread.context.ids import derived_id
from keepthread.context.quoting import quoted
from keepthread.context.rendering import is_quoted
from keepthread.context.sections import MAX_FOLLOWED
from keepthread.context.tool_results import TOOL, cached_results
from keepthread.context.trust import has_ended
from keepthread.protocols import CachedResult, History, Material, Store, TokenCounter, WindowStart
from keepthread.stores.kinds import DIGEST, FOLD, MARKS, NOTE, PIN, SYSTEM
from keepthread.text_caches import register_cache
from keepthread.types import (
    Digest,
    Gathered,
    Hidden,
    Importance,
    Message,
    Record,
    Scope,
    SessionKey,
    Span,
    Summary,
)

_FOLLOWED: Final = (SYSTEM, PIN, NOTE, TOOL)
_SECTIONS: Final[dict[str, Literal["pins", "notes", "tools"]]] = {
    PIN: "pins",
    NOTE: "notes",
    TOOL: "tools",
}
LEAST: Final = 12
"""Newest messages that are read whatever their size: the newest block may have to be cut."""
_PAGE: Final = 200
_MOST_PAGES: Final = 10


async def gather(
    store: Store,
    session: SessionKey,
    counter: TokenCounter,
    *,
    tokens: int,
    owner: str = "",
    user_seq: int = 0,
    newest: bool = True,
    query: str | None = None,
    recalls: bool = False,
) -> Material:
    """Return the material that a strategy may choose from within a number of tokens.

    `user_seq` is the position of the user message to answer, if the caller knows it; `newest=False`
    leaves that message out; `recalls` says whether the store can search.
    """
    found = await store.gather(
        session,
        tokens=tokens,
        min_messages=LEAST,
        kinds=(MARKS,),
        follow=_FOLLOWED,
        follow_limit=MAX_FOLLOWED,
    )
    marks = await _with_own(store, session, marks_of(found.records), user_seq)
    messages: Sequence[Message] = found.messages
    if marks.hidden:
        messages = await _visible(store, session, marks, messages, tokens)
    user = await _newest_user(store, session, marks, messages, user_seq)
    passed = 0
    turn = user.turn if user else max([m.turn for m in messages[-1:]], default=0)
    author = (user.author if user else None) or owner
    if user is not None and not newest:
        messages = [message for message in messages if message.seq != user.seq]
        passed, user = user.seq, None
    records = _GatheredRecords(found, marks, passed)
    material = Material(
        counter=counter,
        system_prompt=found.system_prompt or "",
        system_tokens=_system_tokens(counter, found.system_prompt or ""),
        messages=messages,
        totals=marks.totals(messages),
        first=marks.next_visible(1),
        earlier=_earlier(marks, messages, passed),
        newest_user=user and _counted(user, counter),
        system_messages=[_counted(m, counter) for m in records.named_by(SYSTEM)],
        pins=[standing_alone(pin, counter) for pin in records.named_by(PIN)],
        hidden=marks.hidden,
        query=query,
        turn=turn,
        passed=passed,
        notes=[_counted(n, counter) for n in records.named_by(NOTE) if not has_ended(n, turn)],
        tool_results=records.cached(turn, author, counter),
        beyond=[_SECTIONS[kind] for kind in found.more if kind in _SECTIONS],
        delimiter=found.delimiter or derived_id("delimiter", session)[:12],
        recalls=recalls,
    )
    return _recounted(material)


async def gather_older(
    store: Store, session: SessionKey, material: Material, *, tokens: int, min_messages: int
) -> Material:
    """Return material with more older messages: all that fit, and at least `least`.

    One of them may be the message that is to be left out, so `least` is at least 2.
    """
    marks = HiddenRanges.of(material.hidden)
    before = material.messages[0].seq
    read = await _read_back(
        store, session, marks, before, tokens=tokens, min_messages=min_messages, limit=_PAGE
    )
    older = [message for message in read if message.seq != material.passed]
    if not older:
        return material._replace(earlier=0)
    messages = [*older, *material.messages]
    return _recounted(
        material._replace(
            messages=messages,
            totals=[*marks.totals(older), *material.totals],
            earlier=_earlier(marks, messages, material.passed),
        )
    )


def asked_of(material: Material) -> str:
    """Return the text to search by: the query, or else the newest user message."""
    if material.query is not None:
        return material.query
    return material.newest_user.content if material.newest_user else ""


def marks_of(records: Sequence[Record]) -> HiddenRanges:
    """Return a session's hidden ranges."""
    for record in records:
        if record.kind == MARKS:
            return HiddenRanges.from_json(record.value)
    return HiddenRanges()


@lru_cache(maxsize=256)
def _system_tokens(counter: TokenCounter, prompt: str) -> int:
    return counter.count(Message(role="system", content=prompt)) if prompt else 0


async def _with_own(
    store: Store, session: SessionKey, marks: HiddenRanges, seq: int
) -> HiddenRanges:
    """Return hidden ranges that leave out the user message of the turn that is being answered."""
    span = marks.hiding(seq) if seq else None
    if span is None:
        return marks
    found = {m.seq: m for m in await store.find(session, seqs=[seq, span.first - 1])}
    own, before = found.get(seq), found.get(span.first - 1)
    if own is None or own.state != "live":
        return marks
    return marks.showing(own, before.total if before else 0)


async def _visible(
    store: Store, session: SessionKey, marks: HiddenRanges, messages: Sequence[Message], tokens: int
) -> list[Message]:
    """Return the newest visible messages: those already read, and older ones for hidden ones."""
    shown = [message for message in messages if not marks.hides(message.seq)]
    left = tokens - sum(message.tokens for message in shown)
    before = messages[0].seq if messages else 1
    min_messages = LEAST - len(shown)
    return [
        *await _read_back(store, session, marks, before, tokens=left, min_messages=min_messages),
        *shown,
    ]


async def _read_back(
    store: Store,
    session: SessionKey,
    marks: HiddenRanges,
    before: int,
    *,
    tokens: int,
    min_messages: int,
    limit: int | None = None,
) -> list[Message]:
    """Return the visible messages before a position, as many as fit, oldest first."""
    found: list[Message] = []
    while (tokens > 0 or min_messages > 0) and (span := marks.visible_before(before)):
        older = await store.tail(
            session,
            tokens=max(0, tokens),
            min_messages=max(0, min_messages),
            before=span[1] + 1,
            after=span[0] - 1,
            limit=limit and limit - len(found),
        )
        found = [*older, *found]
        tokens -= sum(message.tokens for message in older)
        min_messages -= len(older)
        if not older or older[0].seq > span[0]:
            break
        before = span[0]
    return found


def _earlier(marks: HiddenRanges, messages: Sequence[Message], passed: int) -> int:
    """Return how many visible messages are older, without the one that was left out."""
    if not messages:
        return 0
    first = messages[0].seq
    return first - 1 - marks.hidden_before(first)[0] - (0 < passed < first)


async def _newest_user(
    store: Store, session: SessionKey, marks: HiddenRanges, messages: Sequence[Message], seq: int
) -> Message | None:
    """Return the user message to answer; it may be older than the messages that were read."""
    if seq and not marks.hides(seq):
        read = [message for message in messages if message.seq == seq]
        found = read or await store.find(session, seqs=[seq])
        if found and _is_users(found[0]):
            return found[0]
    for message in reversed(messages):
        if _is_users(message):
            return message
    before = messages[0].seq if messages else 1
    for _ in range(_MOST_PAGES):
        span = marks.visible_before(before)
        if span is None:
            return None
        page = await store.tail(session, limit=_PAGE, before=span[1] + 1, after=span[0] - 1)
        for message in reversed(page):
            if _is_users(message):
                return message
        before = page[0].seq if page else span[0]
    return None


def _is_users(message: Message) -> bool:
    return message.role == "user" and message.state == "live"


class _GatheredRecords:
    """The records of a context, and the messages they name."""

    def __init__(self, found: Gathered, marks: HiddenRanges, passed: int) -> None:
        self.found = found
        self.visible = [
            message
            for message in found.sources
            if message.state == "live" and message.seq != passed and not marks.hides(message.seq)
        ]

    def named_by(self, kind: str) -> list[Message]:
        """Return the visible messages that records of a kind are made of, oldest first."""
        if not self.visible:
            return []
        records = [record for record in self.found.records if record.kind == kind]
        spans = [s for r in records for s in r.made_of if s.session == r.scope.session]
        named = {seq for span in spans for seq in range(span.first, span.last + 1)}
        return [message for message in self.visible if message.seq in named]

    def cached(self, turn: int, author: str, counter: TokenCounter) -> list[CachedResult]:
        """Return the cached tool results that a turn's author may use."""
        if not self.visible:
            return []
        return cached_results(self.found.records, self.visible, turn, author, counter)


def _recounted(material: Material) -> Material:
    """Return material with messages recounted where another counter counted them."""
    counter = material.counter
    foreign = [m.seq for m in material.messages if _is_foreign(m, counter)]
    if not foreign:
        return material
    return material._replace(
        messages=[_counted(message, counter) for message in material.messages],
        recounted=max(material.recounted, foreign[-1]),
    )


def _is_foreign(message: Message, counter: TokenCounter) -> bool:
    """Return whether another counter counted a message."""
    return message.counter != counter.name and message.state == "live"


def standing_alone(message: Message, counter: TokenCounter) -> Message:
    """Return a message in a form that is valid alone: tool calls and results become quotations."""
    if message.role == "system" or message.tool_calls or is_quoted(message):
        return quoted(message, counter)
    return _counted(message, counter)


def _counted(message: Message, counter: TokenCounter) -> Message:
    if not _is_foreign(message, counter):
        return message
    return replace(message, tokens=counter.count(message), counter=counter.name)


register_cache(_system_tokens.cache_clear)


_AT_ONCE: Final = 2
"""Summaries that are read first; usually one of them is usable."""
_MOST: Final = 16
"""Summaries that are read at most once a usable one was found."""
_MOST_GAP: Final = 120
"""Messages between summary and window that are read at most."""


async def load_history(
    store: Store,
    session: SessionKey,
    material: Material,
    reach: WindowStart,
    *,
    budget: int,
    digest_from: int,
) -> History:
    """Return the summary and the messages before a window.

    If possible, it takes nothing that was made after the window's last step, so that the text
    before the window changes only when the window steps forward.
    """
    summary = await newest_summary(
        store, session, material.hidden, before=reach.first, made_by=reach.stepped
    )
    gap, important, digests = await asyncio.gather(
        _gap(store, session, material, reach.first, summary, budget),
        _important(store, session, material, summary),
        _digests(store, session, material, reach.first, digest_from),
    )
    return History(summary, gap, digests, important)


def position_key(seq: int) -> str:
    """Return the key of a record that belongs to a position; keys sort by position."""
    return f"{seq:016}"


async def newest_summary(
    store: Store,
    session: SessionKey,
    hidden: Sequence[Hidden],
    *,
    before: int,
    made_by: int | None = None,
) -> Summary | None:
    """Return the newest summary that ends before a position and covers nothing hidden.

    One that was made when the log ended at or before `made_by` is preferred to a newer one.
    """
    scope = Scope(session=session)
    second: Record | None = None
    looked, most = 0, _AT_ONCE
    while second is None or looked < most:
        limit = max(_AT_ONCE, most - looked)
        found = await store.scan(scope, FOLD, before=position_key(before), limit=limit)
        if not looked and made_by is not None:
            most = _made_since(made_by, found)
        for record in reversed(found):
            looked += 1
            value = cast(dict[str, Any], record.value)
            before = value["last"]
            if touched := _touched(record.made_of, hidden):
                before = touched  # every summary that ends there or later covers it, too
                break
            if made_by is None or value["head"] <= made_by:
                return summary_of(record)
            second = second or record
        if not found:
            break
    return summary_of(second) if second else None


def _made_since(head: int, newest: Sequence[Record]) -> int:
    """Return how many summaries may have been made since the log ended at a position.

    Each takes about as many messages as the newest; the estimate is doubled, and limited.
    """
    if len(newest) < _AT_ONCE:
        return len(newest)
    before, last = (cast(dict[str, Any], record.value) for record in newest[-_AT_ONCE:])
    each = max(1, last["last"] - before["last"])
    return min(_MOST, _AT_ONCE + 2 * (last["head"] - head) // each)


def _touched(spans: Sequence[Span], hidden: Sequence[Hidden]) -> int:
    """Return the first hidden position that a summary covers, or 0."""
    ranges = HiddenRanges.of(hidden)
    touched = [(span.first, ranges.within(span.first, span.last)[:1]) for span in spans]
    return min([max(first, each.first) for first, found in touched for each in found], default=0)


def summary_of(record: Record) -> Summary:
    """Return the summary that a compaction stored."""
    value = cast(dict[str, Any], record.value)
    return Summary(
        text=value["text"],
        last=value["last"],
        tokens=value["tokens"],
        turn=value["turn"],
        number=value["number"],
        origin=value["origin"],
        spans=tuple(record.made_of),
        important=tuple((seq, score, reason) for seq, score, reason in value["kept"]),
        head=value["head"],
        by=value["by"],
    )


async def _gap(
    store: Store,
    session: SessionKey,
    material: Material,
    first: int,
    summary: Summary | None,
    budget: int,
) -> Sequence[Message]:
    """Return the newest visible messages between a summary and a window, oldest first."""
    after = summary.last if summary else material.first - 1
    read = [m for m in material.messages if after < m.seq < first][-_MOST_GAP:]
    upto = read[0].seq if read else first
    left = budget - sum(m.tokens for m in read)
    marks = HiddenRanges.of(material.hidden)
    while left > 0 and len(read) < _MOST_GAP:
        span = marks.visible_before(upto)
        if span is None or span[1] <= after:
            break
        start, limit = max(after, span[0] - 1), _MOST_GAP - len(read)
        older = await store.tail(session, tokens=left, limit=limit, before=span[1] + 1, after=start)
        read = [*older, *read]
        left -= sum(m.tokens for m in older)
        if not older or older[0].seq > start + 1:
            break
        upto = older[0].seq
    return [m for m in read if m.seq != material.passed]


async def _important(
    store: Store, session: SessionKey, material: Material, summary: Summary | None
) -> Sequence[tuple[Message, Importance]]:
    """Return the important messages that a summary covers."""
    if summary is None or not summary.important:
        return ()
    marks = {seq: Importance(score, reason) for seq, score, reason in summary.important}
    found = await store.find(session, seqs=marks)
    return [
        (standing_alone(message, material.counter), marks[message.seq])
        for message in found
        if message.state == "live" and message.seq != material.passed
    ]


async def _digests(
    store: Store, session: SessionKey, material: Material, first: int, size: int
) -> dict[int, Digest]:
    """Return digests of the window's answers; empty if no answer is that long."""
    if not any(len(m.content) > size and m.role == "assistant" for m in material.messages):
        return {}
    found = await store.scan(Scope(session=session), DIGEST, after=position_key(first - 1))
    return {int(record.key): Digest(*cast(list[Any], record.value)) for record in found}
