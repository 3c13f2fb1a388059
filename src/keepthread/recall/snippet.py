"""Snippets: the stretch of a text that holds most of what was asked for, on one line."""

import re
from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Final

from keepthread.recall.words import words_of

_WORD: Final = re.compile(r"\w+")
_DOTS: Final = "…"


def snippet(text: str, words: Collection[str], width: int = 160) -> str:
    """Return about so many characters of a text, where most of the words stand."""
    text = " ".join(text.split())
    if len(text) <= width:
        return text
    start = max(0, min(_best(text, words, width), len(text) - width))
    start = _at_word(text, start)
    end = min(len(text), start + width)
    cut = text.rfind(" ", start, end) if end < len(text) else end
    end = cut if cut > start + width // 2 else end
    return f"{_DOTS if start else ''}{text[start:end].strip()}{_DOTS if end < len(text) else ''}"


def _best(text: str, words: Collection[str], width: int) -> int:
    """Return where to begin, a little before the first word of the best stretch."""
    found = [
        (match.start(), word)
        for match in _WORD.finditer(text)
        for word in set(words_of(match.group())).intersection(words)
    ]
    best, most = 0, 0
    for n, (start, _) in enumerate(found):
        near = {word for at, word in found[n : n + 2 * len(words)] if at < start + width * 3 // 4}
        if len(near) > most:
            best, most = start, len(near)
    return best - width // 6


def _at_word(text: str, start: int) -> int:
    """Return the beginning of the next word, unless that is far."""
    if not start:
        return 0
    space = text.find(" ", start, start + 24)
    return start if space < 0 else space + 1


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
