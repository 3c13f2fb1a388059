"""Additions: text that a memory adds to a prompt built by another program.

A program that builds its own prompts, such as a proxy, adds a quotation to a user's turn, and adds
the same text again whenever it resends that turn, because providers cache prompt prefixes. So the
quotation is stored. Its record refers to the messages it quotes, so erasing one of them drops the
record. Facts are stored only by key, and read again each time.
"""

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

from keepthread.context.quoting import flat, sanitize
from keepthread.context.recall import recollect
from keepthread.context.trust import lowest, trust_in
from keepthread.context.why import Why, WhyBuilder
from keepthread.errors import SessionGone, Stale
from keepthread.memory.conversation import Conversation
from keepthread.memory.search.search import Relevant
from keepthread.protocols import KnownFact, Recalled, Recollection
from keepthread.stores.kinds import ADDITION
from keepthread.stores.validation import check_count, check_id, check_text
from keepthread.types import (
    JSON,
    Choice,
    Message,
    Origin,
    Record,
    Scope,
    Selection,
    Span,
)

_MOST_FACTS: Final = 12


class Addition(NamedTuple):
    """A quotation added to a turn of a prompt."""

    key: str
    """The name of the turn, as the program gave it."""
    text: str
    tokens: int
    at: float
    """When it was made, in seconds since 1970."""
    trust: Origin
    """The least trusted origin of what it quotes."""
    facts: Sequence[str]
    """The keys of the facts in it."""
    messages: Sequence[tuple[str, int]]
    """The session and position of each message in it."""


class _Parts(NamedTuple):
    """An addition as it is stored."""

    delimiter: str
    tokens: int
    at: float
    trust: Origin
    facts: Sequence[str]
    messages: Sequence[tuple[str, int]]
    body: str

    @classmethod
    def of(cls, record: Record) -> "_Parts":
        value: dict[str, Any] = {**cast(Mapping[str, Any], record.value)}
        if "fence" in value:  # its name before 2026-11-19
            value["delimiter"] = value.pop("fence")
        value["messages"] = [(session, seq) for session, seq in value["messages"]]
        return cls(**value)

    def addition(self, key: str, known: Mapping[str, str]) -> Addition | None:
        """Return it with the texts of its facts; those that are forgotten are left out."""
        facts = [fact for fact in self.facts if fact in known]
        lines = [f"Known: {flat(sanitize(known[fact], self.delimiter))}" for fact in facts]
        lines += [self.body] if self.body else []
        if not lines:
            return None
        head, end = (
            f"[recalled, quoted, delimiter {self.delimiter}]",
            f"[end of quote, delimiter {self.delimiter}]",
        )
        text = "\n".join([head, *lines, end])
        return Addition(key, text, self.tokens, self.at, self.trust, facts, self.messages)


class Additions(NamedTuple):
    """What `Session.recall` found for a turn, and what the session's earlier turns had."""

    made: Addition | None
    """That of the turn, also if it was made before; None if nothing is relevant."""
    earlier: Sequence[Addition]


async def read_additions(conversation: Conversation) -> list[Addition]:
    """Return a session's usable additions, ordered by key."""
    await _stored(conversation)
    found = await conversation.store.scan(Scope(session=conversation.key), ADDITION)
    parts = [(record.key, _Parts.of(record)) for record in found]
    has_facts = any(each.facts for _, each in parts)
    known = await _texts(conversation) if has_facts else dict[str, str]()
    made = [each.addition(key, known) for key, each in parts]
    return [addition for addition in made if addition is not None]


async def drop_addition(conversation: Conversation, key: str) -> bool:
    """Drop the addition of a turn; return whether there was one."""
    await _stored(conversation)
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
    conversation: Conversation, question: AddedTo, budget: int, *, wait: bool
) -> Additions:
    """Recall for a question and store the addition; with `wait`, wait until it is stored.

    If the key already has an addition, return that one.
    """
    check_id(question.key, "key")
    check_text(question.text, "a query")
    check_count(budget, "budget")
    check_count(question.shown_from, "shown_from")
    relevant, earlier, facts = await asyncio.gather(  # the longest first
        _relevant(conversation, question, budget),
        read_additions(conversation),
        _facts(conversation, question.text),
    )
    others = [each for each in earlier if each.key != question.key]
    if mine := [each for each in earlier if each.key == question.key]:
        return Additions(mine[0], others)
    recalled = await conversation.searching().recalled(relevant, conversation.key)
    composed = _composed(conversation, budget, facts, recalled, others)
    if composed is None:
        return Additions(None, others)
    if wait or not conversation.runtime.background.is_free(_name(conversation)):
        return Additions(await _put(conversation, question.key, budget, composed), others)
    conversation.runtime.background.soon(
        _name(conversation), lambda: _put(conversation, question.key, budget, composed)
    )
    return Additions(composed.addition(question.key), others)


class _Composed(NamedTuple):
    """An addition that is not stored yet."""

    parts: _Parts
    hits: Sequence[Recollection]
    """The chunks in it."""
    facts: Sequence[KnownFact]
    account: WhyBuilder

    def addition(self, key: str) -> Addition | None:
        """Return it as `read_additions` does."""
        return self.parts.addition(key, {fact.key: fact.text for fact in self.facts})


def _composed(
    conversation: Conversation,
    budget: int,
    known: Sequence[KnownFact],
    recalled: Recalled,
    earlier: Sequence[Addition],
) -> _Composed | None:
    """Choose what is added; None if there is nothing."""
    quoted_facts = {key for each in earlier for key in each.facts}
    quoted = {place for each in earlier for place in each.messages}
    facts = [fact for fact in known if fact.key not in quoted_facts][:_MOST_FACTS]
    hits = [hit for hit in recalled.hits if (hit.id, hit.message.seq) not in quoted]
    delimiter, account = secrets.token_hex(6), WhyBuilder()
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
        message = recollect(Recalled(hits), (), room, counter, delimiter, account, seen=frozenset())
    if message is None and not chosen:
        return None
    chunks = [chunk for _, made in account.made for chunk in made.chunks] if message else []
    shown = {(chunk.session, chunk.seq) for chunk in chunks}
    origins: list[Origin] = [fact.trust for fact in chosen]
    parts = _Parts(
        delimiter=delimiter,
        tokens=budget - room + (message.tokens if message else 0),
        at=conversation.runtime.clock(),
        trust=lowest([*origins, trust_in(message)] if message else origins),
        facts=[fact.key for fact in chosen],
        messages=sorted(shown),
        body="\n".join(message.content.splitlines()[1:-1]) if message else "",
    )
    used = [hit for hit in hits if (hit.id, hit.message.seq) in shown]
    return _Composed(parts, used, chosen, account)


async def _put(
    conversation: Conversation, key: str, budget: int, composed: _Composed
) -> Addition | None:
    """Store an addition, and return it; if there is one already, return that.

    It names the epochs that its messages were read at: one that was erased since makes it `Stale`.
    """
    spans = {Span(hit.session, hit.message.seq, hit.message.seq) for hit in composed.hits}
    epochs = {hit.session: hit.epoch for hit in composed.hits}
    parts = composed.parts
    value = cast(JSON, {**parts._asdict(), "messages": [list(each) for each in parts.messages]})
    scope = Scope(session=conversation.key)
    try:
        await conversation.store.put(
            scope, ADDITION, key, value, made_of=sorted(spans), version=0, epochs=epochs
        )
    except (Stale, SessionGone):
        # A message was erased, or another process stored an addition for this turn.
        return await _read_again(conversation, key)
    why = _why(parts, budget, composed.account, composed.facts)
    conversation.choice_log.note_addition(conversation.key, why)
    return composed.addition(key)


async def _read_again(conversation: Conversation, key: str) -> Addition | None:
    record = await conversation.store.get(Scope(session=conversation.key), ADDITION, key)
    if record is None:
        return None
    parts = _Parts.of(record)
    return parts.addition(key, await _texts(conversation) if parts.facts else {})


def _name(conversation: Conversation) -> tuple[str, str]:
    """Return the name under which an addition is stored in the background."""
    return ("addition", conversation.key)


async def _stored(conversation: Conversation) -> None:
    """Wait for an addition that is being stored in the background."""
    await conversation.runtime.background.done(_name(conversation))


async def _facts(conversation: Conversation, query: str) -> Sequence[KnownFact]:
    """Return the owner's profile and the facts relevant to a question, without unconfirmed ones."""
    if await conversation.store.finder() is None:
        return ()
    index = await conversation.fact_index()
    return index.known(query) if index else ()


async def _texts(conversation: Conversation) -> dict[str, str]:
    """Return the text of every fact of the owner, also of those that no longer hold."""
    runtime, owner = conversation.runtime, conversation.facts_owner
    index = await runtime.fact_cache.load(conversation.store, owner, runtime.clock())
    return {fact.key: fact.text for fact in index.facts(current=False)} if index else {}


async def _relevant(conversation: Conversation, question: AddedTo, budget: int) -> Relevant:
    return await conversation.searching().relevant(
        question.text,
        owner=conversation.owner,
        session=conversation.key,
        everywhere=True,
        before=question.shown_from,
        room=budget,
        relevant_only=True,
    )


def _why(parts: _Parts, budget: int, account: WhyBuilder, facts: Sequence[KnownFact]) -> Why:
    known = [Choice(0, 0, 1, 0, "facts", f"fact {fact.key}: {fact.reason}") for fact in facts]
    return Why(Selection(budget, parts.tokens, "", (), [*known, *account.choices]))
