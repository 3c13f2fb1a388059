"""Sources: how far the messages that a fact comes from can be trusted, and what of them is said.

What an assistant says has the lowest trust in its exchange: it may have read it there. What was
recalled, quoted or told by the program is no news, and no fact is drawn from it again.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Final

from keepthread.context.notes import is_note
from keepthread.context.trust import lowest, origin_of
from keepthread.facts.truth import same
from keepthread.protocols import Store
from keepthread.types import Message, Origin, SessionKey

REMEMBER: Final = "remember"
SEARCH: Final = "search_memory"
NOTED: Final = "Noted."
WAITS: Final = "Noted; it will be used once the user has confirmed it."
_OWN_TOOLS: Final = (REMEMBER, SEARCH)
_PAGE: Final = 100
_MOST_PAGES: Final = 10
_UNKNOWN: Final = Message(role="tool", origin="tool")
_HEAD: Final = re.compile(r"\[.*quoted, fence \w+\]\s*$")
_END: Final = re.compile(r"\[end of quote, fence \w+\]\s*$")


def trust_of(
    message: Message, exchange: Iterable[Message], *, owner: str, subject: str = ""
) -> Origin:
    """Return how much a message's word counts, said of a subject.

    What another than the owner says of anybody but themselves counts as an assistant's word.
    """
    origin = origin_of(message)
    if origin == "assistant":
        return lowest((origin_of(m) for m in exchange if not is_receipt(m)), origin)
    author = message.author or owner
    if origin == "user" and same(author) not in (same(owner), same(subject)):
        return "assistant"
    return origin


def is_receipt(message: Message) -> bool:
    """Tell whether it is our own answer to a model that had something remembered."""
    return message.role == "tool" and message.content in (NOTED, WAITS)


def news_in(message: Message) -> str:
    """Return what a message says for the first time: without quotations and fenced blocks."""
    if message.state != "live" or is_note(message):
        return ""
    if message.role == "tool" and (message.name in _OWN_TOOLS or is_receipt(message)):
        return ""
    lines: list[str] = []
    fenced = False
    for line in message.content.splitlines():
        if _HEAD.match(line) and not _END.match(line):
            fenced = True
        elif fenced and _END.match(line):
            fenced = False
        elif not fenced and not line.lstrip().startswith(">"):
            lines.append(line)
    return "\n".join(lines).strip()


async def exchange_of(store: Store, session: SessionKey, message: Message) -> Sequence[Message]:
    """Return the messages of the exchange that a message is in, oldest first.

    Of one too long to be read through, what is left counts as what a tool said.
    """
    earlier: list[Message] = []
    before = message.seq + 1
    for _ in range(_MOST_PAGES):
        page = await store.tail(session, limit=_PAGE, before=before)
        earlier = page + earlier
        if len(page) < _PAGE or any(_opens(m) and m.exchange <= message.exchange for m in page):
            break
        before = page[0].seq
    else:
        earlier.append(_UNKNOWN)
    later = await _later(store, session, message)
    return [m for m in (*earlier, *later) if m.exchange == message.exchange or m is _UNKNOWN]


async def _later(store: Store, session: SessionKey, message: Message) -> list[Message]:
    """Return what follows a message, at least until the next exchange begins."""
    found: list[Message] = []
    after = message.seq
    for _ in range(_MOST_PAGES):
        page = await store.read(session, after=after, limit=_PAGE)
        found += page
        if len(page) < _PAGE or any(_opens(m) and m.exchange > message.exchange for m in page):
            return found
        after = page[-1].seq
    return [*found, _UNKNOWN]


def _opens(message: Message) -> bool:
    return message.role == "user" and message.exchange > 0
