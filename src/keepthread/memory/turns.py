"""Which turn it is: the one that is open, or else the one that comes next."""

from typing import Final

from keepthread.context.blocks import is_answer
from keepthread.context.hidden import HiddenRanges
from keepthread.protocols import Store
from keepthread.types import Message, SessionKey

TOOL_SOURCE: Final = "tool:"
"""Prefix of `source` for calls and results that the program recorded, not a model."""
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
