"""Gathering what a context is chosen from: the one place where choosing touches the store."""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Final

from keepthread.context.live import TOOL, live_of
from keepthread.context.marks import Marks
from keepthread.context.notes import has_ended
from keepthread.context.quote import quoted
from keepthread.derived import derived_id
from keepthread.protocols import Live, Material, Store, TokenCounter
from keepthread.text_caches import register_cache
from keepthread.tokens.counting import is_quoted
from keepthread.types import Gathered, Message, Record, SessionKey

MARKS: Final = "marks"
PIN: Final = "pin"
NOTE: Final = "note"
FACT: Final = "fact"
_FOLLOWED: Final = (PIN, NOTE, TOOL)
LEAST: Final = 12
"""Newest messages that are read whatever they cost: the newest block may have to be cut."""
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
    """Return what a strategy may choose from within so many tokens.

    `user_seq` is the position of the user message to answer, if the caller knows it; `newest=False`
    leaves that message out; `recalls` tells that something can be recalled.
    """
    found = await store.gather(
        session, tokens=tokens, least=LEAST, kinds=(MARKS,), follow=_FOLLOWED
    )
    marks = await _with_own(store, session, marks_of(found.records), user_seq)
    messages: Sequence[Message] = found.messages
    if marks.hidden:
        messages = await _visible(store, session, marks, messages, tokens)
    user = await _newest_user(store, session, marks, messages, user_seq)
    passed = 0
    exchange = user.exchange if user else max([m.exchange for m in messages[-1:]], default=0)
    author = (user.author if user else None) or owner
    if user is not None and not newest:
        messages = [message for message in messages if message.seq != user.seq]
        passed, user = user.seq, None
    shelf = _Shelf(found, marks, passed)
    material = Material(
        counter=counter,
        system_prompt=found.system_prompt or "",
        system_tokens=_system_tokens(counter, found.system_prompt or ""),
        messages=messages,
        totals=marks.totals(messages),
        first=marks.behind(1),
        earlier=_earlier(marks, messages, passed),
        newest_user=user and _counted(user, counter),
        pins=[standing_alone(pin, counter) for pin in shelf.named_by(PIN)],
        hidden=marks.hidden,
        query=query,
        exchange=exchange,
        passed=passed,
        notes=[_counted(n, counter) for n in shelf.named_by(NOTE) if not has_ended(n, exchange)],
        live=shelf.live(exchange, author, counter),
        fence=found.fence or derived_id("fence", session)[:12],
        recalls=recalls,
    )
    return _recounted(material)


async def gather_older(
    store: Store, session: SessionKey, material: Material, *, tokens: int, least: int
) -> Material:
    """Return material with more of the older messages: what fits, and `least` in any case.

    One of them may be the message that is to be left out, so `least` is at least 2.
    """
    marks = Marks(material.hidden)
    before = material.messages[0].seq
    read = await _read_back(store, session, marks, before, tokens=tokens, least=least, limit=_PAGE)
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
    """Return what to recall by: the query, or the newest user message."""
    if material.query is not None:
        return material.query
    return material.newest_user.content if material.newest_user else ""


def marks_of(records: Sequence[Record]) -> Marks:
    """Return a session's marks."""
    for record in records:
        if record.kind == MARKS:
            return Marks.from_json(record.value)
    return Marks()


@lru_cache(maxsize=256)
def _system_tokens(counter: TokenCounter, prompt: str) -> int:
    return counter.count(Message(role="system", content=prompt)) if prompt else 0


async def _with_own(store: Store, session: SessionKey, marks: Marks, seq: int) -> Marks:
    """Return marks that do not hide the user message of the turn that is being answered."""
    span = marks.hiding(seq) if seq else None
    if span is None:
        return marks
    found = {m.seq: m for m in await store.find(session, seqs=[seq, span.first - 1])}
    own, before = found.get(seq), found.get(span.first - 1)
    if own is None or own.state != "live":
        return marks
    return marks.showing(own, before.total if before else 0)


async def _visible(
    store: Store, session: SessionKey, marks: Marks, messages: Sequence[Message], tokens: int
) -> list[Message]:
    """Return the newest visible messages: those read already, and older ones in their stead."""
    shown = [message for message in messages if not marks.hides(message.seq)]
    left = tokens - sum(message.tokens for message in shown)
    before = messages[0].seq if messages else 1
    least = LEAST - len(shown)
    return [*await _read_back(store, session, marks, before, tokens=left, least=least), *shown]


async def _read_back(
    store: Store,
    session: SessionKey,
    marks: Marks,
    before: int,
    *,
    tokens: int,
    least: int,
    limit: int | None = None,
) -> list[Message]:
    """Return the visible messages before a position, as many as fit, oldest first."""
    found: list[Message] = []
    while (tokens > 0 or least > 0) and (span := marks.visible_before(before)):
        older = await store.tail(
            session,
            tokens=max(0, tokens),
            least=max(0, least),
            before=span[1] + 1,
            after=span[0] - 1,
            limit=limit and limit - len(found),
        )
        found = [*older, *found]
        tokens -= sum(message.tokens for message in older)
        least -= len(older)
        if not older or older[0].seq > span[0]:
            break
        before = span[0]
    return found


def _earlier(marks: Marks, messages: Sequence[Message], passed: int) -> int:
    """Return how many visible messages are older, the one that was passed over not among them."""
    if not messages:
        return 0
    first = messages[0].seq
    return first - 1 - marks.hidden_before(first)[0] - (0 < passed < first)


async def _newest_user(
    store: Store, session: SessionKey, marks: Marks, messages: Sequence[Message], seq: int
) -> Message | None:
    """Return the user message to answer, be it older than what was read."""
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


class _Shelf:
    """The records of a context, and the messages they name."""

    def __init__(self, found: Gathered, marks: Marks, passed: int) -> None:
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

    def live(self, exchange: int, author: str, counter: TokenCounter) -> list[Live]:
        """Return the tool results that are remembered in an exchange for its author."""
        if not self.visible:
            return []
        return live_of(self.found.records, self.visible, exchange, author, counter)


def _recounted(material: Material) -> Material:
    """Return material counted again where another counter counted."""
    counter = material.counter
    foreign = [m.seq for m in material.messages if _is_foreign(m, counter)]
    if not foreign:
        return material
    return material._replace(
        messages=[_counted(message, counter) for message in material.messages],
        recounted=max(material.recounted, foreign[-1]),
    )


def _is_foreign(message: Message, counter: TokenCounter) -> bool:
    """Tell whether another counter counted a message."""
    return message.counter != counter.name and message.state == "live"


def standing_alone(message: Message, counter: TokenCounter) -> Message:
    """Return a message as it can be shown by itself: tools and calls as quotations."""
    if message.role == "system" or message.tool_calls or is_quoted(message):
        return quoted(message, counter)
    return _counted(message, counter)


def _counted(message: Message, counter: TokenCounter) -> Message:
    if not _is_foreign(message, counter):
        return message
    return replace(message, tokens=counter.count(message), counter=counter.name)


register_cache(_system_tokens.cache_clear)
