"""Snippets: the part of a text that holds most words of the query; and packing into a budget."""

import re
from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Final

from keepthread.recall.words import words_of

_WORD: Final = re.compile(r"\w+")
_DOTS: Final = "…"


def snippet(text: str, words: Collection[str], width: int = 160) -> str:
    """Return about `width` characters of a text, from where most of the words are."""
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
    """Return where to begin: a little before the first word of the best part."""
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
"""Number of pieces that do not fit after which packing stops."""
LEAST: Final = 12
"""With fewer tokens left than this, packing stops."""


def pack(
    headers: Sequence[Hashable], room: int, header_tokens: int, cost: Callable[[int, int], int]
) -> list[int]:
    """Return the numbers of the pieces that fit; `headers` has the header of each, best first.

    The first piece under a header also costs the header's tokens. `cost` receives the number of a
    piece and the tokens left, and returns its tokens: exact if it fits, else any larger number.
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
