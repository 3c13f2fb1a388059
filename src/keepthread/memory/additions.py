"""Additions: what a memory adds to a prompt that somebody else builds.

A program that builds its own prompts, such as a proxy, adds a quotation to a user's turn, and adds
the same text again whenever it sends that turn: providers cache the beginnings of prompts. So the
quotation is stored. It is a record that is made of the messages it quotes, so erasing one of them
drops it. Facts are stored by their keys alone, and read again each time.
"""

import asyncio
import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

from keepthread.context.hidden import HiddenRanges
from keepthread.context.quoting import flat, sanitize
from keepthread.context.recall import recollect
from keepthread.context.why import Why, WhyBuilder
from keepthread.errors import SessionGone, Stale
from keepthread.memory.conversation import Conversation
from keepthread.memory.history import read_ranges
from keepthread.protocols import KnownFact, Recalled, Recollection, Store
from keepthread.stores.kinds import ADDITION
from keepthread.stores.validation import check_count, check_id, check_text
from keepthread.types import (
    JSON,
    Choice,
    Message,
    Record,
    Scope,
    Selection,
    SessionKey,
    Span,
)

_MOST_FACTS: Final = 12


class Addition(NamedTuple):
    """A quotation that is added to a turn of a prompt."""

    key: str
    """The name of the turn, as the program gave it."""
    text: str
    tokens: int
    at: float
    """When it was made, in seconds since 1970."""
    facts: Sequence[str]
    """The keys of the facts in it."""
    messages: Sequence[tuple[str, int]]
    """The session and position of each message in it."""


class _Parts(NamedTuple):
    """An addition as it is stored."""

    fence: str
    tokens: int
    at: float
    facts: Sequence[str]
    messages: Sequence[tuple[str, int]]
    body: str

    @classmethod
    def of(cls, record: Record) -> "_Parts":
        value: Any = record.value
        shown = [(session, seq) for session, seq in value["messages"]]
        start = (value["fence"], value["tokens"], value["at"], value["facts"])
        return cls(*start, shown, value["body"])

    def addition(self, key: str, known: Mapping[str, str]) -> Addition | None:
        """Return it with the texts of its facts; those that are forgotten are left out."""
        facts = [fact for fact in self.facts if fact in known]
        lines = [f"Known: {flat(sanitize(known[fact], self.fence))}" for fact in facts]
        lines += [self.body] if self.body else []
        if not lines:
            return None
        head, end = f"[recalled, quoted, fence {self.fence}]", f"[end of quote, fence {self.fence}]"
        text = "\n".join([head, *lines, end])
        return Addition(key, text, self.tokens, self.at, facts, self.messages)


async def read_additions(conversation: Conversation) -> list[Addition]:
    """Return the additions of a session that can still be shown, in the order of their keys."""
    found = await conversation.store.scan(Scope(session=conversation.key), ADDITION)
    parts = [(record.key, _Parts.of(record)) for record in found]
    has_facts = any(each.facts for _, each in parts)
    known = await _texts(conversation) if has_facts else dict[str, str]()
    made = [each.addition(key, known) for key, each in parts]
    return [addition for addition in made if addition is not None]


async def drop_addition(conversation: Conversation, key: str) -> bool:
    """Drop the addition of a turn; return whether there was one."""
    scope = Scope(session=conversation.key)
    return await conversation.store.drop(scope, ADDITION, check_id(key, "key"))


class AddedTo(NamedTuple):
    """The turn that an addition is made for."""

    key: str
    """The turn's name."""
    text: str
    shown_from: int
    """The first position of the session that the prompt shows; 0 if it shows none."""


async def make_addition(
    conversation: Conversation, question: AddedTo, budget: int
) -> Addition | None:
    """Recall for a question, and store what is added; None if nothing is relevant.

    If the key has an addition already, that one is returned.
    """
    check_id(question.key, "key")
    check_text(question.text, "a query")
    check_count(budget, "budget")
    check_count(question.shown_from, "shown_from")
    key = question.key
    earlier, hidden = await asyncio.gather(
        read_additions(conversation), read_ranges(conversation.store, conversation.key)
    )
    if mine := [each for each in earlier if each.key == key]:
        return mine[0]
    made = await _made(conversation, question, budget, hidden.ranges, earlier)
    if made is None:
        return None
    parts, hits, account, facts = made
    try:
        spans, epochs = await _sources(conversation.store, hits)
        value = cast(JSON, {**parts._asdict(), "messages": [list(each) for each in parts.messages]})
        scope = Scope(session=conversation.key)
        await conversation.store.put(
            scope, ADDITION, key, value, made_of=spans, version=0, epochs=epochs
        )
    except Stale:  # something was erased, or another process made one for this turn
        return next((a for a in await read_additions(conversation) if a.key == key), None)
    conversation.choice_log.note_addition(conversation.key, _why(parts, budget, account, facts))
    return parts.addition(key, {fact.key: fact.text for fact in facts})


async def _made(
    conversation: Conversation,
    question: AddedTo,
    budget: int,
    hidden: HiddenRanges,
    earlier: Sequence[Addition],
) -> tuple[_Parts, list[Recollection], WhyBuilder, Sequence[KnownFact]] | None:
    known, recalled = await asyncio.gather(
        _facts(conversation, question.text), _recalled(conversation, question, budget, hidden)
    )
    told = {key for each in earlier for key in each.facts}
    quoted = {place for each in earlier for place in each.messages}
    facts = [fact for fact in known if fact.key not in told][:_MOST_FACTS]
    hits = [hit for hit in recalled.hits if (hit.id, hit.message.seq) not in quoted]
    fence, account = secrets.token_hex(6), WhyBuilder()
    room = budget
    counter = conversation.counter
    chosen: list[KnownFact] = []
    for fact in facts:
        cost = counter.count(Message(role="user", content=f"Known: {fact.text}"))
        if cost <= room // 2:
            chosen.append(fact)
            room -= cost
    message = None
    if hits and room > 0:
        message = recollect(Recalled(hits), (), room, counter, fence, account, seen=frozenset())
    if message is None and not chosen:
        return None
    chunks = [chunk for _, made in account.made for chunk in made.chunks] if message else []
    shown = {(chunk.session, chunk.seq) for chunk in chunks}
    body = "\n".join(message.content.splitlines()[1:-1]) if message else ""
    tokens = budget - room + (message.tokens if message else 0)
    parts = _Parts(
        fence,
        tokens,
        conversation.runtime.clock(),
        [fact.key for fact in chosen],
        sorted(shown),
        body,
    )
    used = [hit for hit in hits if (hit.id, hit.message.seq) in shown]
    return parts, used, account, chosen


async def _facts(conversation: Conversation, query: str) -> Sequence[KnownFact]:
    """Return the owner's profile and the facts that bear on a question; unconfirmed ones not."""
    if await conversation.store.finder() is None:
        return ()
    runtime, owner = conversation.runtime, conversation.facts_owner
    index = await runtime.fact_cache.load(conversation.store, owner, runtime.clock())
    return index.known(query) if index else ()


async def _texts(conversation: Conversation) -> dict[str, str]:
    """Return the text of every fact of the owner, also of those that no longer hold."""
    runtime, owner = conversation.runtime, conversation.facts_owner
    index = await runtime.fact_cache.load(conversation.store, owner, runtime.clock())
    return {fact.key: fact.text for fact in index.facts(current=False)} if index else {}


async def _recalled(
    conversation: Conversation, question: AddedTo, budget: int, hidden: HiddenRanges
) -> Recalled:
    return await conversation.searching().recall(
        question.text,
        owner=conversation.owner,
        session=conversation.key,
        everywhere=True,
        before=question.shown_from,
        hidden=hidden.hidden,
        room=budget,
        telling=True,
    )


async def _sources(
    store: Store, hits: Iterable[Recollection]
) -> tuple[list[Span], dict[SessionKey, int]]:
    """Return what an addition is made of, and the epochs of those sessions.

    Epochs are read first, and then that no message is erased: one that is erased later makes the
    record `Stale`.
    """
    seqs: dict[SessionKey, set[int]] = {}
    for hit in hits:
        seqs.setdefault(hit.session, set()).add(hit.message.seq)
    try:
        described = await asyncio.gather(*(store.describe(session) for session in seqs))
        epochs = {session: info.epoch for session, info in zip(seqs, described, strict=True)}
        found = await asyncio.gather(
            *(store.find(key, seqs=sorted(seqs[key])) for key, epoch in epochs.items() if epoch)
        )
    except SessionGone:
        raise Stale("a recalled session was deleted") from None
    if any(message.state != "live" for messages in found for message in messages):
        raise Stale("a recalled message was erased")
    return [Span(session, seq, seq) for session in seqs for seq in sorted(seqs[session])], epochs


def _why(parts: _Parts, budget: int, account: WhyBuilder, facts: Sequence[KnownFact]) -> Why:
    known = [Choice(0, 0, 1, 0, "facts", f"fact {fact.key}: {fact.reason}") for fact in facts]
    return Why(Selection(budget, parts.tokens, "", (), [*known, *account.choices]))
