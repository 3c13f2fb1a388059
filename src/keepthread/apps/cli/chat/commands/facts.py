"""Commands about facts and earlier messages: search, remember, list and confirm."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from keepthread.apps.cli.chat.chat import Chat
from keepthread.apps.cli.commands.facts import columns_of
from keepthread.apps.cli.sanitize import sanitize
from keepthread.errors import InvalidInput

if TYPE_CHECKING:
    from keepthread.memory.facts.types import Fact

_MAX_SHOWN: Final = 3
"""New waiting facts that are shown one by one."""
_SHORTEST_KEY: Final = 4
"""Digits at the end of a key that name a fact; a number that was given goes before them."""


async def search(chat: Chat, rest: str) -> None:
    """Find the messages most relevant to some words, in all your sessions."""
    chat.at_home()
    with chat.call.progress("Reading", "messages") as progress:
        hits = await chat.talk.persistence.memory.search(rest, progress=progress)
    chat.person.screen.hits(hits)


async def remember(chat: Chat, rest: str) -> None:
    """Store a fact about you that all your sessions know from now on."""
    chat.at_home()
    fact = await chat.talk.persistence.memory.facts.remember(rest)
    key, shown, _ = columns_of(fact)
    chat.person.say(sanitize(f"Remembered: {shown} (`keepthread facts forget {key}` undoes it)"))


async def facts(chat: Chat, rest: str) -> None:
    """List the facts about you, or confirm a waiting one, so that it is used.

    A fact that a model drew from anything but your own words waits, and no prompt shows it. A
    number keeps its meaning as long as the chat runs; the end of a fact's key will do as well.
    """
    chat.at_home()
    word, _, which = rest.partition(" ")
    if not rest:
        await _list(chat)
    elif word == "confirm":
        await _confirm(chat, which.strip())
    else:
        raise InvalidInput(f"/facts lists facts, and /facts confirm N confirms one; not {word!r}")


async def _list(chat: Chat) -> None:
    found = await chat.talk.persistence.memory.facts.list()
    if not found:
        chat.person.say("No facts yet; /remember TEXT stores one")
        return
    rows = [(_number(chat, fact), *columns_of(fact)) for fact in found]
    chat.person.screen.rows(rows, "", "", "", "")
    if waiting := sum(fact.state == "quarantined" for fact in found):
        chat.person.say(f"{waiting:,} waiting for confirmation: /facts confirm N releases one")


async def _confirm(chat: Chat, which: str) -> None:
    book = chat.talk.persistence.memory.facts
    waiting = [fact for fact in await book.list() if fact.state == "quarantined"]
    if not which and len(waiting) == 1:
        which = waiting[0].key
    key = chat.waiting[int(which) - 1] if _is_number(chat, which) else which.lower()
    found = [f for f in waiting if len(key) >= _SHORTEST_KEY and f.key.endswith(key)]
    if len(found) != 1:
        raise InvalidInput(
            f"there is no waiting fact {which!r}; /facts lists them with their numbers"
        )
    fact = await book.confirm(found[0].key)
    chat.person.say(sanitize(f"Confirmed: {columns_of(fact)[1]}"))


def _is_number(chat: Chat, word: str) -> bool:
    return word.isascii() and word.isdigit() and 0 < int(word) <= len(chat.waiting)


def _number(chat: Chat, fact: "Fact") -> str:
    """Return the number of a waiting fact; once given, it never means another."""
    if fact.state != "quarantined":
        return ""
    if fact.key not in chat.waiting:
        chat.waiting.append(fact.key)
    return str(chat.waiting.index(fact.key) + 1)


async def show_waiting(chat: Chat, notify: Callable[[str], object]) -> None:
    """Say which facts began to wait for confirmation since this was last looked at."""
    found = await chat.talk.persistence.memory.facts.list()
    new = [f for f in found if f.state == "quarantined" and f.key not in chat.waiting]
    for fact in new[:_MAX_SHOWN]:
        number, shown = _number(chat, fact), columns_of(fact)[1]
        whose = f"{fact.trust}, agent {fact.agent}" if fact.agent else fact.trust
        notify(f"needs your confirmation ({whose}): {shown} · /facts confirm {number}")
    if len(new) > _MAX_SHOWN:
        chat.waiting += [fact.key for fact in new[_MAX_SHOWN:]]
        notify(f"{len(new) - _MAX_SHOWN:,} more need your confirmation; /facts lists them")
