"""Trust: who wrote a message, and how far its text is trusted.

Text made from several messages has the lowest trust among them.
"""

from collections.abc import Iterable
from typing import Final, cast

from keepthread.types import Message, Origin

TRUST: Final[tuple[Origin, ...]] = ("operator", "user", "assistant", "tool", "import", "web")
"""Origins, from the most to the least trusted."""
LOWEST_ORIGIN: Final = "lowest_origin"
"""The name under which a message's meta has the least trusted origin of what it was made from."""
_RANKS: Final = {origin: len(TRUST) - place for place, origin in enumerate(TRUST)}


def rank(origin: Origin) -> int:
    """Return the rank of an origin; higher is more trusted."""
    return _RANKS[origin]


def origin_of(message: Message) -> Origin:
    """Return the origin of a message."""
    return message.origin or ("operator" if message.role == "system" else message.role)


def lowest(origins: Iterable[Origin], least: Origin = "operator") -> Origin:
    """Return the least trusted of these, and of `least`."""
    return min((least, *origins), key=rank)


def trust_in(message: Message) -> Origin:
    """Return how much a message counts in a context: as the least trusted text it was made from.

    An assistant's message that does not name what it was written from counts as a tool's, and so
    does a message that is not stored and was put into a context by a strategy.
    """
    origin = origin_of(message)
    if (noted := noted_trust(message)) is not None:
        return lowest([noted], origin)
    return lowest(["tool"], origin) if origin == "assistant" or not message.seq else origin


def noted_trust(message: Message) -> Origin | None:
    """Return the least trusted origin of what a message was made from, if its meta names it."""
    noted = message.meta.get(LOWEST_ORIGIN)
    return cast(Origin, noted) if isinstance(noted, str) and noted in _RANKS else None


# --- notes of the application ---

NOTE: Final = "note:"
"""The prefix of a note's `source`; its key follows."""
UNTIL: Final = "until"
"""The name in a note's `meta` of the last turn in which it is shown."""


def is_note(message: Message) -> bool:
    """Return whether the application added this message as a note."""
    return message.role == "system" and (message.source or "").startswith(NOTE)


def has_ended(message: Message, turn: int) -> bool:
    """Return whether a note is no longer shown."""
    until = message.meta.get(UNTIL)
    return isinstance(until, int) and until < turn
