"""Single characters as words: Chinese, Japanese and Korean have many words of one character.

Where a script has no spaces, an index keeps pairs of neighbors. A word of one character, such as
狗, 車 or 집, is then found only beside the same neighbor. So single characters are kept as well;
in a question they count less than words do, because most of them are parts of longer words.
"""

import re
from typing import Final
from unicodedata import normalize

_FOUND: Final = re.compile(
    "[\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\uf900-\ufaff\U00020000-\U0003ffff]"
).findall
_PAIR: Final = 2
_HIRAGANA: Final = map(chr, range(0x3041, 0x3097))
_GRAMMAR: Final = frozenset(
    "的了着过是在有和与也都就还又很太我你您他她它们这那哪谁什么怎吗呢吧啊呀把被给让对从到为以之其"
    "不没要会能可些个還過們這誰麼嗎與給讓對從為沒會個何私達"
    "은는이가을를의에도로와과만서께요다까니죠지예네나세습"
).union(_HIRAGANA)
"""Characters that are mostly grammar: small words, particles and endings."""


def characters_of(text: str) -> list[str]:
    """Return the Han and Hangul characters of a text, each once."""
    if text.isascii():
        return []
    found = dict.fromkeys(_FOUND(normalize("NFKC", text)))
    return [each for each in found if each.isalpha()]  # some are not assigned yet


def telling_characters(text: str) -> list[str]:
    """Return the characters of a question that may each be a word it is about."""
    return [each for each in characters_of(text) if each not in _GRAMMAR]


def holds_grammar(word: str) -> bool:
    """Return whether a word is a pair of characters of which one is mostly grammar."""
    return len(word) == _PAIR and (word[0] in _GRAMMAR or word[1] in _GRAMMAR)
