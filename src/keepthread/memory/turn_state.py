"""The state of a turn apart from its messages: what its last context showed, and its open calls.

An answer's meta says what it was written from. Another process may continue a turn that was left
without an answer: the log has the calls and results, and what the last context showed is stored if
the turn was suspended, as positions and ids.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, NamedTuple, cast

from keepthread.context.ids import derived_id
from keepthread.context.sources import RECALLED_FROM, WRITTEN_FROM, Shown
from keepthread.context.trust import LOWEST_ORIGIN, lowest, origin_of
from keepthread.errors import InvalidInput, KeepthreadError, MessageNotFound
from keepthread.memory.conversation import Conversation
from keepthread.memory.tool_calls import Calls
from keepthread.stores.codec import encode
from keepthread.stores.kinds import SHOWN
from keepthread.types import JSON, Message, Origin, Record, Scope, Span

_PAGE: Final = 200


class Resumed(NamedTuple):
    """The state of a turn that was begun before."""

    user: Message
    calls: Calls
    heard: Origin
    """The least trusted origin of the messages in it."""
    shown: Shown | None
    """The messages of its last context, if they are known."""


async def resumed(conversation: Conversation, id: str) -> Resumed:
    """Return the turn of a user message; raise `MessageNotFound` if there is none."""
    store, key = conversation.store, conversation.key
    found = await store.find(key, ids=[id])
    if not found or found[0].role != "user" or found[0].state != "live":
        raise MessageNotFound(f"session {conversation.id!r} has no user message {id!r}")
    (user,) = found
    calls, heard, shown = Calls(), origin_of(user), None
    if record := await store.get(Scope(session=key), SHOWN, _key(user)):
        heard, shown = _read(record, heard)
    after = user.seq
    while page := await store.read(key, after=after, limit=_PAGE):
        mine = [m for m in page if m.turn == user.turn and m.state == "live"]
        _, calls = calls.name(mine, conversation.ids)
        heard = lowest(map(origin_of, mine), heard)
        after = page[-1].seq
    return Resumed(user, calls, heard, shown)


def with_sources(answer: Message, shown: Shown, heard: Origin) -> Message:
    """Return an answer whose meta says what it was written from, unless that is set."""
    meta: dict[str, JSON] = {WRITTEN_FROM: [list(each) for each in shown.own]}
    if shown.recalled:
        ranges = {id: [list(each) for each in found] for id, found in shown.recalled.items()}
        meta[RECALLED_FROM] = cast(JSON, ranges)
    # Only keepthread sets an answer's trust: its meta may come from elsewhere.
    trust = lowest((shown.trust, heard), "assistant")
    try:
        said = replace(answer, meta={**meta, **answer.meta, LOWEST_ORIGIN: trust})
        encode(said, said.id)
    except (InvalidInput, TypeError):  # too large with these fields: store it without them
        return answer
    return said


async def suspend(conversation: Conversation, user: Message, shown: Shown, heard: Origin) -> None:
    """Store what the last context of a turn showed."""
    value: JSON = {
        "heard": heard,
        "trust": shown.trust,
        "own": [list(each) for each in shown.own],
        "summarized": shown.summarized,
        "recalled": {id: [list(each) for each in found] for id, found in shown.recalled.items()},
        "facts": [list(each) for each in shown.facts],
    }
    scope, span = Scope(session=conversation.key), Span(conversation.key, user.seq, user.seq)
    await conversation.store.put(scope, SHOWN, _key(user), value, made_of=[span])


async def complete(conversation: Conversation, user: Message) -> None:
    """Drop what was stored for the turn, as it has an answer."""
    with suppress(KeepthreadError):  # a leftover record is harmless
        await conversation.store.drop(Scope(session=conversation.key), SHOWN, _key(user))


def _read(record: Record, heard: Origin) -> tuple[Origin, Shown | None]:
    value = cast(dict[str, Any], record.value)
    try:
        shown = Shown(
            trust=value["trust"],
            own=_ranges(value["own"]),
            summarized=value["summarized"],
            recalled={id: _ranges(found) for id, found in _items(value["recalled"])},
            facts=[(owner, id, seq) for owner, id, seq in value["facts"]],
        )
        return lowest((value["heard"],), heard), shown
    except (KeyError, TypeError, ValueError):  # another program wrote something else
        return heard, None


def _ranges(value: Sequence[Any]) -> list[tuple[int, int]]:
    return [(first, last) for first, last in value]


def _items(value: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return list(value.items())


def _key(user: Message) -> str:
    return derived_id("shown", user.id)
