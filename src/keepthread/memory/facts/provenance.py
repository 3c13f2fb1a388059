"""Provenance: the trust and the statements of the messages that a fact comes from.

An assistant's message has the lowest trust of everything it was shown, and of its own turn. Text
that was recalled, quoted or added by the program is not a source of facts.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

from keepthread.context.hidden import opens_turn
from keepthread.context.ranges import merged
from keepthread.context.sources import RECALLED_FROM, WRITTEN_FROM, Shown
from keepthread.context.trust import is_note, lowest, noted_trust, origin_of, trust_in
from keepthread.errors import InvalidInput
from keepthread.memory.material import marks_of, position_key
from keepthread.protocols import Store
from keepthread.stores.kinds import FOLD, MARKS
from keepthread.types import Message, Origin, Scope, SessionInfo, SessionKey, Span

REMEMBER: Final = "remember"
SEARCH: Final = "search_memory"
NOTED: Final = "Noted."
WAITS: Final = "Noted; it will be used once the user has confirmed it."
_OWN_TOOLS: Final = (REMEMBER, SEARCH)
_PAGE: Final = 100
_MOST_PAGES: Final = 10
_UNKNOWN: Final = Message(role="tool", origin="tool")
_HEAD: Final = re.compile(r"\[.*quoted, delimiter \w+\]\s*$")
_END: Final = re.compile(r"\[end of quote, delimiter \w+\]\s*$")


def trust_of(message: Message, turn: Iterable[Message], *, owner: str, subject: str = "") -> Origin:
    """Return the trust of a message about a subject.

    It is never higher than the message itself says: a program that relays messages does not know
    who wrote them. An author other than the owner is trusted about themselves; about anybody else,
    the message counts as an assistant's. Names must match exactly: in a shared channel people
    choose their own.
    """
    origin = origin_of(message)
    if origin == "assistant":
        return lowest((origin_of(m) for m in turn if not is_receipt(m)), trust_in(message))
    if origin == "user" and (message.author or owner) not in (owner, subject):
        return lowest(["assistant"], noted_trust(message) or origin)
    return lowest([origin], noted_trust(message) or origin)


def is_receipt(message: Message) -> bool:
    """Return whether it is our own reply to a model's call of `remember`."""
    return message.role == "tool" and message.content in (NOTED, WAITS)


def news_in(message: Message) -> str:
    """Return the text of a message without quotations and code blocks."""
    if message.state != "live" or is_note(message):
        return ""
    if message.role == "tool" and (message.name in _OWN_TOOLS or is_receipt(message)):
        return ""
    lines: list[str] = []
    delimited = False
    for line in message.content.splitlines():
        if _HEAD.match(line) and not _END.match(line):
            delimited = True
        elif delimited and _END.match(line):
            delimited = False
        elif not delimited and not line.lstrip().startswith(">"):
            lines.append(line)
    return "\n".join(lines).strip()


async def spans_of(store: Store, session: SessionInfo, shown: Shown) -> "MadeOf":
    """Return what a context of a session showed as spans, with the epochs of the sessions.

    Raises `InvalidInput` if some of it was erased after it was shown.
    """
    own = [Span(session.key, first, last) for first, last in shown.own]
    spans, epochs = list(own), {session.key: session.epoch}
    seqs = [n for s in own for n in range(max(s.first, shown.summarized + 1), s.last + 1)]
    lacking = await _lacks(store, session.key, seqs)
    if shown.summarized:  # erasing a message drops the summaries that were made of it
        key = position_key(shown.summarized)
        lacking |= await store.get(Scope(session=session.key), FOLD, key) is None
    ranges = {(session.owner, id): list(found) for id, found in shown.recalled.items()}
    for owner, id, seq in shown.facts:
        ranges.setdefault((owner, id), []).append((seq, seq))
    for (owner, id), found in ranges.items():
        is_own = (owner, id) == (session.owner, session.id)
        info = session if is_own else await store.get_session(id, owner)
        if info is None or not info.ready:
            lacking = True
            continue
        epochs[info.key] = info.epoch
        spans += [Span(info.key, first, last) for first, last in merged(found)]
        seqs = [seq for first, last in found for seq in range(first, last + 1)]
        lacking |= await _lacks(store, info.key, seqs)
    if lacking:
        raise InvalidInput(
            "some of the messages shown have since been forgotten; nothing was stored"
        )
    return MadeOf(list(dict.fromkeys(spans)), epochs)


class MadeOf(NamedTuple):
    """Ranges of messages, and the epochs of their sessions before the messages were read."""

    spans: Sequence[Span] = ()
    epochs: Mapping[SessionKey, int] = {}


async def _lacks(store: Store, session: SessionKey, seqs: Sequence[int]) -> bool:
    found = await store.find(session, seqs=seqs) if seqs else []
    return sum(message.state == "live" for message in found) < len(set(seqs))


async def written_from(store: Store, session: SessionInfo, message: Message) -> list[Span]:
    """Return the spans that an assistant's message was written from, as its meta says."""
    if origin_of(message) != "assistant":
        return []
    meta = cast(Mapping[str, Any], message.meta)
    spans = _spans(session, meta.get(WRITTEN_FROM))
    recalled = meta.get(RECALLED_FROM)
    if isinstance(recalled, Mapping):
        for id, ranges in cast(Mapping[str, Any], recalled).items():
            info = await store.get_session(id, session.owner)
            spans += _spans(info, ranges) if info else []
    return spans


def _spans(session: SessionInfo, ranges: Any) -> list[Span]:
    """Return ranges of a session as spans; a program may have written something else there."""
    try:
        pairs = [(int(first), int(last)) for first, last in ranges or ()]
    except (TypeError, ValueError):
        return []
    last = session.messages
    return [Span(session.key, a, min(b, last)) for a, b in pairs if 0 < a <= min(b, last)]


async def turn_of(store: Store, session: SessionKey, message: Message) -> Sequence[Message]:
    """Return the messages of the turn that a message is in, oldest first.

    If its question was hidden when it was written, as for an answer that is given again after a
    rewind, everything visible since the question before it is added. Of a turn that is too long to
    read completely, the rest counts as a tool's text.
    """
    again = await _answered(store, session, message)
    return [*again, *await _numbered(store, session, message)]


async def _answered(store: Store, session: SessionKey, message: Message) -> list[Message]:
    """Return what a message after a rewind answers, oldest first; empty for any other."""
    records = await store.scan(Scope(session=session), MARKS)
    marks = marks_of(records).until(message.seq - 1)
    if opens_turn(message) or not marks.hidden:
        return []
    found: list[Message] = []
    before = message.seq
    for _ in range(_MOST_PAGES):
        visible = marks.visible_before(before)
        if visible is None:
            return found
        after = visible[0] - 1
        page = await store.tail(session, limit=_PAGE, before=visible[1] + 1, after=after)
        for each in reversed(page):
            found.insert(0, each)
            if opens_turn(each):
                return found if each.turn < message.turn else []
        before = page[0].seq if page else visible[0]
    return [_UNKNOWN, *found]


async def _numbered(store: Store, session: SessionKey, message: Message) -> Sequence[Message]:
    """Return the messages with the number of the turn that a message is in, oldest first."""
    earlier: list[Message] = []
    before = message.seq + 1
    for _ in range(_MOST_PAGES):
        page = await store.tail(session, limit=_PAGE, before=before)
        earlier = page + earlier
        if len(page) < _PAGE or any(opens_turn(m) and m.turn <= message.turn for m in page):
            break
        before = page[0].seq
    else:
        earlier.append(_UNKNOWN)
    later = await _later(store, session, message)
    return [m for m in (*earlier, *later) if m.turn == message.turn or m is _UNKNOWN]


async def _later(store: Store, session: SessionKey, message: Message) -> list[Message]:
    """Return the messages after a message, at least until the next turn begins."""
    found: list[Message] = []
    after = message.seq
    for _ in range(_MOST_PAGES):
        page = await store.read(session, after=after, limit=_PAGE)
        found += page
        if len(page) < _PAGE or any(opens_turn(m) and m.turn > message.turn for m in page):
            return found
        after = page[-1].seq
    return [*found, _UNKNOWN]
