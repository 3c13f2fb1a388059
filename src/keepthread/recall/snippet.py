"""Snippets: the stretch of a text that holds most of what was asked for, on one line."""

import re
from collections.abc import Collection
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
