"""Trust: whose word counts how much; what is made of several has the lowest of them."""

from collections.abc import Iterable
from typing import Final

from keepthread.types import Message, Origin

TRUST: Final[tuple[Origin, ...]] = ("operator", "user", "assistant", "tool", "import", "web")
"""Whose word counts how much, the most trusted first."""
_RANKS: Final = {origin: len(TRUST) - place for place, origin in enumerate(TRUST)}


def rank(origin: Origin) -> int:
    """Return how much a word counts; a higher number is more."""
    return _RANKS[origin]


def origin_of(message: Message) -> Origin:
    """Return whose word a message is."""
    return message.origin or ("operator" if message.role == "system" else message.role)


def lowest(origins: Iterable[Origin], least: Origin = "operator") -> Origin:
    """Return the least trusted of these, and of `least`."""
    return min((least, *origins), key=rank)
