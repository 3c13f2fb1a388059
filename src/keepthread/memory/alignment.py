"""Aligning a log with the history that a client sends again with every request.

Many clients do not know about the memory: each request repeats the conversation as they see it. The
log has most of it already. New messages are appended, and those that the client no longer has are
hidden, as by `rewind`: an edited question, an answer that is generated again. Nothing is deleted.
"""

import json
import unicodedata
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from itertools import islice
from typing import Final, NamedTuple, TypeAlias

from keepthread.context.hidden import REWOUND, HiddenRanges
from keepthread.context.trust import origin_of
from keepthread.errors import Stale
from keepthread.memory.history import hide_from, read_ranges, show_again
from keepthread.memory.tool_calls import TOOL_SOURCE
from keepthread.protocols import Store
from keepthread.types import Hidden, Message, SessionKey

_PAGE: Final = 500
SLICE: Final = 500
"""Messages that are appended in one step, which nothing interrupts."""
_MOST_PLACES: Final = 100
"""Maximum positions at which a truncated history is searched; newest first."""
_SURE: Final = 2
"""Consecutive matching messages that prove that a truncated history continues the log there."""

_MOST_SKIPPED: Final = 3
"""Messages of a client's own summary, before those that the log has."""
_SUMMARY: Final = "client_summary"
CUT: Final = "truncated"
"""In the meta of an answer: it was cut off."""

Append: TypeAlias = Callable[[Sequence[Message], int], Awaitable[list[Message]]]
"""Appends messages to a log that ends at a position, else raises `Stale`."""


class Aligned(NamedTuple):
    """What `Session.align` did with the history of a client."""

    kept: int
    """How many of the given messages the log has already."""
    hidden: Sequence[Hidden]
    """The messages that are hidden now, because the client does not have them."""
    appended: Sequence[Message]
    """The messages that were new, as they are stored."""
    last: int = 0
    """The position in the log of the last given message; 0 if none was given."""


class _Likeness(NamedTuple):
    """The parts of a message that are compared."""

    role: str
    text: str | None
    """None if it agrees with every text."""
    calls: tuple[str | None, ...]
    is_summary: bool = False
    """Whether a client wrote it in the place of older messages; the log has it after newer ones."""
    is_document: bool = False
    """Whether a client put it beside a question of the user; later requests may lack it."""


class Match(NamedTuple):
    """Where a history continues a log."""

    known: frozenset[int]
    """The messages of the history that the log has, by their indexes."""
    end: int
    """The index in the log after the last of them."""
    length: int = 0
    """How many agree in a row."""
    summaries: int = 0
    """How many messages before them the client wrote in the place of older ones."""


async def align(
    store: Store,
    session: SessionKey,
    given: Sequence[Message],
    compared: Sequence[Message],
    append: Append,
) -> Aligned:
    """Hide messages that a history lacks, and append those that the log lacks.

    `compared` are the given messages in stored form. Each step fails if another process wrote in
    the meantime; then everything is compared again. Many messages are appended in several steps, so
    that others get their turns. If the process dies before all are appended, the next call appends
    the rest.
    """
    hidden: list[Hidden] = []
    appended: list[Message] = []
    while True:
        known = await read_ranges(store, session)
        log = await _shown(store, session, known.ranges, known.head.messages)
        match = find_match(log, compared)
        rest = [
            _as_summary(message) if at < match.summaries else message
            for at, message in enumerate(given)
            if at not in match.known
        ]
        try:
            if match.end < len(log):
                first = log[match.end].seq
                hidden.append(await hide_from(store, session, first, REWOUND, known))
            for start in range(0, len(rest), SLICE):
                end = known.head.messages + start
                appended += await append(rest[start : start + SLICE], end)
        except Stale:
            continue
        newest = appended if rest else log[: match.end] if given else []
        last = newest[-1].seq if newest else 0
        return Aligned(len(match.known), tuple(hidden), tuple(appended), last)


async def answer(
    store: Store,
    session: SessionKey,
    after: int,
    given: Sequence[Message],
    append: Append,
    *,
    hide_late: bool,
) -> list[Message]:
    """Append an answer to the message at a position, and return it as stored.

    If the log has it already, nothing is stored. An earlier answer to that message is hidden: the
    client asked again. If the conversation has continued without the answer, it is stored, and
    hidden with `hide_late`. An answer that was cut off (`truncated` in its meta) replaces none that
    is complete.
    """
    while True:
        known = await read_ranges(store, session)
        if known.head.messages == after and not known.ranges.hides(after):
            with suppress(Stale):  # else somebody has written since
                return await append(given, after)  # the log ends with the question
            continue
        if stored := await store.find(session, ids=[message.id for message in given]):
            return stored
        later = await _shown(store, session, known.ranges, known.head.messages, after)
        if [_likeness(m) for m in later[: len(given)]] == [_likeness(m) for m in given]:
            return later[: len(given)]
        is_cut = _is_cut(given[-1])
        # The beginning of an answer does not replace a whole one, which came by another request.
        gives_way = is_cut and bool(later) and not _is_cut(later[-1])
        is_late = known.ranges.hides(after) or any(m.role != "assistant" for m in later)
        is_late = is_late or gives_way
        replaced = None
        try:
            if later and not is_late:
                replaced = await hide_from(store, session, later[0].seq, REWOUND, known)
            stored = await append(given, known.head.messages)
        except Stale:
            if replaced:  # the client may have continued after that answer
                await show_again(store, session, replaced)
            continue
        if is_late and (hide_late or is_cut):
            await _hide_stored(store, session, stored)
        return stored


def _is_cut(message: Message) -> bool:
    return message.meta.get(CUT) is True


async def _hide_stored(store: Store, session: SessionKey, stored: Sequence[Message]) -> None:
    """Hide messages that were just stored, unless others followed them."""
    while True:
        known = await read_ranges(store, session)
        if known.head.messages != stored[-1].seq:
            return
        with suppress(Stale):
            await hide_from(store, session, stored[0].seq, REWOUND, known)
            return


def find_match(log: Sequence[Message], given: Sequence[Message]) -> Match:
    """Return where a history continues a log.

    It begins where the log begins. If the first messages differ, the client has dropped its oldest
    messages, or has put a summary in their place: then it begins where most messages agree, if the
    log ends there or two agree. A history that is nowhere in the log continues after its end.
    """
    return _find([_likeness(m) for m in log], [_likeness(m) for m in given])


def _find(log: Sequence[_Likeness], given: Sequence[_Likeness]) -> Match:
    nowhere = Match(frozenset(), len(log))
    if not log or not given:
        return nowhere
    match = _match_at(log, given, 0, 0)
    if match.length:
        return match
    found = [
        _match_at(log, given, skipped, at)
        for skipped in range(min(len(given), _MOST_SKIPPED + 1))
        for at in _places(log, given[skipped])
    ]
    # A summary written by the client counts like a message.
    sure = [m for m in found if m.length and (len(m.known) >= _SURE or m.end == len(log))]
    return max(sure, key=lambda match: match.length, default=nowhere)


def _places(log: Sequence[_Likeness], message: _Likeness) -> list[int]:
    """Return the newest places of a message in a log, newest first."""
    found = (at for at in reversed(range(len(log))) if _is_same(log[at], message))
    return list(islice(found, _MOST_PLACES))


def _likeness(message: Message) -> _Likeness:
    """Return the comparison key of a message.

    Clients shorten results of tools, so a result is known by its call. Erased messages agree with
    every text: it is not stored again.
    """
    if message.role == "tool":
        return _Likeness("tool", "", (message.tool_call_id,))
    if message.state != "live":
        return _Likeness(message.role, None, ())
    calls = tuple([call.id for call in message.tool_calls])
    is_summary = message.meta.get(_SUMMARY) is True
    text = normalized(message.content)
    return _Likeness(message.role, text, calls, is_summary, is_document(message))


def is_document(message: Message) -> bool:
    """Return whether a message has the user's role, and is not the user's own words."""
    return message.role == "user" and origin_of(message) != "user"


def _is_same(stored: _Likeness, given: _Likeness) -> bool:
    return stored[:3] == given[:3] or (stored.text is None and stored.role == given.role)


def _as_summary(message: Message) -> Message:
    return replace(message, meta={**message.meta, _SUMMARY: True})


def chain(messages: Iterable[Message], before: bytes = b"") -> bytes:
    """Return a hash of messages as they are compared, which continues that of those before."""
    for message in messages:
        role, text, calls, *_ = _likeness(message)
        said = json.dumps((role, text, calls)).encode()
        before = sha256(before + said).digest()
    return before


def normalized(text: str) -> str:
    """Return a text without what clients change: spaces, ends of lines, and composed letters."""
    return " ".join(unicodedata.normalize("NFC", text).split())


def _match_at(
    log: Sequence[_Likeness], given: Sequence[_Likeness], skipped: int, start: int
) -> Match:
    """Return how far a history agrees with a log, from an index of each on.

    Summaries that clients wrote are passed over: they were appended when they came. So are
    documents that clients sent once, with their question, if the history continues after them.
    """
    later = [stored for stored in log[start:] if stored.is_summary]
    known = {
        index for index in range(skipped) if any(_is_same(stored, given[index]) for stored in later)
    }
    end, length = start, 0
    for index in range(skipped, len(given)):
        at = end
        while at < len(log) and not _is_same(log[at], given[index]):
            if not (log[at].is_summary or log[at].is_document):
                break
            at += 1
        if at == len(log) or not _is_same(log[at], given[index]):
            break
        known.add(index)
        end, length = at + 1, length + 1
    while end < len(log) and log[end].is_summary:
        end += 1
    return Match(frozenset(known), end, length, skipped)


async def _shown(
    store: Store, session: SessionKey, ranges: HiddenRanges, end: int, after: int = 0
) -> list[Message]:
    """Return the messages that a client may have: not notes, and not calls of the program."""
    found: list[Message] = []
    own: set[str] = set()
    while page := await store.read(session, after=after, until=end, limit=_PAGE):
        for message in page:
            if message.role == "assistant" and (message.source or "").startswith(TOOL_SOURCE):
                own.update(call.id for call in message.tool_calls)
            elif not (
                ranges.hides(message.seq) or message.role == "system" or message.tool_call_id in own
            ):
                found.append(message)
        after = page[-1].seq
    return found
