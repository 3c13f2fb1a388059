"""The messages that are measured: two sizes of English, alike for every contender."""

import random
from collections.abc import Iterator, Sequence
from itertools import count, cycle, islice

from keepthread.types import Message, Role

SIZES = (110, 1200)
"""Bytes of content: a line of chat, and a page of it."""

COUNTER = "o200k"
SESSION = "cli:0001"
"""The first of the session names."""
_DIFFERENT = 256
_COMMON = """
the of and to a in is you that it he was for on are as with his they at be this from have or by one
had not but what all were when we there can an your which their said if do will each about how up
"""
_ROLES: Sequence[Role] = ("user", "assistant")


def texts(size: int) -> list[str]:
    """Return different texts of just that many bytes, the same in every run."""
    chance = random.Random(size)
    return [words(chance, size)[:size] for _ in range(_DIFFERENT)]


def words(chance: random.Random, number: int) -> str:
    """Return so many common words, about a token each."""
    return " ".join(chance.choices(_COMMON.split(), k=number))


def tokens_of(size: int) -> int:
    """Return what a text of that size usually costs."""
    return size // 4 + 4


def messages(size: int, number: int, *, tokens: int | None = None) -> list[Message]:
    """Return messages, user and assistant by turns, counted already, without ids."""
    each = tokens_of(size) if tokens is None else tokens
    some = [
        Message(role=_ROLES[place % 2], content=text, tokens=each, counter=COUNTER)
        for place, text in enumerate(texts(size))
    ]
    return list(islice(cycle(some), number))


def session_names() -> Iterator[str]:
    """Name conversations as a chat program might."""
    return (f"cli:{number:04}" for number in count(1))
