"""Other forms of German words, to look for beside those of a question.

German shares its script with English, and the index keeps words by English stems. So the index is
left as it is, and a question that is German asks for the forms that a word may have in it.
"""

import re
from typing import Final

_ONLY_GERMAN: Final = """
    aber auf beim dass deine deinen dich ein eine einem einen einer eines euch euer für gegen haben
    ich ihm ihn ihr ihre ist kein keine keinen mein meine meinem meinen meiner mich mir muss nach
    nicht noch oder sein seine sich sie sind soll und unser unsere wann warum wegen welche welchem
    welchen welcher welches wem wen wer werden wie wieso wird wo woher wohin über
"""
_GERMAN: Final = frozenset(_ONLY_GERMAN.split())
"""Small words that hardly any question in another language has."""
_ALSO_GERMAN: Final = """
    am an bei bin das dem den der des die dir doch er es habe hast hat im in kann man mit so uns vom
    von war was wir zu zum zur
"""
_MAYBE: Final = frozenset(_ALSO_GERMAN.split())
"""Small words that other languages have too, as words or names."""
_LETTERS: Final = frozenset("äöüß")
_WORDS: Final = re.compile(r"\w+").findall
_ENDINGS: Final = ("ern", "em", "er", "en", "es", "e", "n", "s", "t", "")
_LEAST: Final = 3
"""Letters of a word that are left when an ending is taken off."""


def is_german(text: str) -> bool:
    """Return whether a question is German: two small words of German, one of them of no other."""
    words = _WORDS(text.casefold())
    sure = sum(word in _GERMAN for word in words)
    maybe = sum(word in _MAYBE or not _LETTERS.isdisjoint(word) for word in words)
    return sure > 0 and sure + maybe > 1


def forms_of(word: str) -> list[str]:
    """Return the forms that a word, without accents, may have; those of two stems if in doubt."""
    stems = [
        word[: len(word) - len(ending)]
        for ending in _ENDINGS
        if word.endswith(ending) and len(word) - len(ending) >= _LEAST
    ]
    # "Katzen" may be "Katz-en" or "Katze-n"; every ending is one of the first, or of the word.
    heads = dict.fromkeys([*stems[:1], word])
    return list(dict.fromkeys(head + ending for head in heads for ending in _ENDINGS))
