"""Packing: what goes into a room of so many tokens, the best first."""

from collections.abc import Callable, Hashable, Sequence
from typing import Final

MISSES: Final = 25
"""How many that do not fit are passed over before it is enough."""
LEAST: Final = 12
"""Tokens that are not worth looking for a piece for."""


def pack(
    headers: Sequence[Hashable], room: int, header_tokens: int, cost: Callable[[int, int], int]
) -> list[int]:
    """Return which pieces fit, the best of which come first; `headers` has the header of each.

    The first piece under a header costs the header's tokens too. `cost` is asked what a piece
    costs and told what is left for it: if it is clear that this is too little, any more will do.
    """
    chosen: list[int] = []
    begun: set[Hashable] = set()
    misses = 0
    for number, header in enumerate(headers):
        left = room if header in begun else room - header_tokens
        tokens = cost(number, left)
        if tokens <= left:
            room = left - tokens
            begun.add(header)
            chosen.append(number)
        else:
            misses += 1
            if misses > MISSES or room < LEAST:
                break
    return chosen
