"""Packing: what goes into a room of so many tokens, the best first."""

from collections.abc import Hashable, Sequence
from typing import Final

MISSES: Final = 25
"""How many that do not fit are passed over before it is enough."""
LEAST: Final = 12
"""Tokens that are not worth looking for a piece for."""


def pack(pieces: Sequence[tuple[int, Hashable]], room: int, header_tokens: int) -> list[int]:
    """Return which pieces fit, the best of which come first; each costs its tokens.

    The first piece under a header costs the header's tokens too.
    """
    chosen: list[int] = []
    headers: set[Hashable] = set()
    misses = 0
    for number, (tokens, header) in enumerate(pieces):
        cost = tokens if header in headers else tokens + header_tokens
        if cost <= room:
            room -= cost
            headers.add(header)
            chosen.append(number)
        else:
            misses += 1
            if misses > MISSES or room < LEAST:
                break
    return chosen
