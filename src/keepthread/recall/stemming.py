"""Stems of English words by the rules of M. F. Porter (1980): "trips" and "trip" are one word."""

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final


class LazyPattern:
    """A regular expression that is compiled when it is first used.

    Compiling ours takes longer than importing the modules that they are in.
    """

    def __init__(self, pattern: str) -> None:
        """Take the text of the expression."""
        self._pattern = pattern

    def __getattr__(self, name: str) -> Any:
        """Compile, and keep what is asked for: the next time it is an attribute like any other."""
        value = getattr(re.compile(self._pattern), name)  # `re` keeps what it compiled
        setattr(self, name, value)
        return value


_C: Final = r"(?:[^aeiouy]|(?:(?<=[aeiou])|^)y)"
_V: Final = r"(?:[aeiou]|(?<=[^aeiou])y)"
_SOME: Final = LazyPattern(rf"^{_C}*{_V}+{_C}")
"""At least one vowel followed by a consonant: the measure is above 0."""
_MORE: Final = LazyPattern(rf"^{_C}*(?:{_V}+{_C}+){{2}}")
"""The measure is above 1."""
_ONE: Final = LazyPattern(rf"^{_C}*{_V}+{_C}+{_V}*$")
"""The measure is exactly 1."""
_VOWEL: Final = LazyPattern(_V)
_DOUBLE: Final = LazyPattern(r"([^aeiouylsz])\1$")
_SHORT: Final = LazyPattern(rf"{_C}[aeiouy][^aeiouwxy]$")
"""Consonant, vowel, consonant at the end, the last not w, x or y."""

_SECOND: Final = {
    "ational": "ate",
    "tional": "tion",
    "enci": "ence",
    "anci": "ance",
    "izer": "ize",
    "bli": "ble",
    "alli": "al",
    "entli": "ent",
    "eli": "e",
    "ousli": "ous",
    "ization": "ize",
    "ation": "ate",
    "ator": "ate",
    "alism": "al",
    "iveness": "ive",
    "fulness": "ful",
    "ousness": "ous",
    "aliti": "al",
    "iviti": "ive",
    "biliti": "ble",
    "logi": "log",
}
_THIRD: Final = {
    "icate": "ic",
    "ative": "",
    "alize": "al",
    "iciti": "ic",
    "ical": "ic",
    "ful": "",
    "ness": "",
}
_FOURTH: Final = "al ance ence er ic able ible ant ement ment ent ion ou ism ate iti ous ive ize"


def _ending(endings: Iterable[str]) -> LazyPattern:
    """Return a pattern for the longest of some endings."""
    longest = sorted(endings, key=len, reverse=True)
    return LazyPattern(rf"(?:{'|'.join(longest)})$")


_ENDING_2: Final = _ending(_SECOND)
_ENDING_3: Final = _ending(_THIRD)
_ENDING_4: Final = _ending(_FOURTH.split())


def stem(word: str) -> str:
    """Return the stem of a word in small ASCII letters."""
    if len(word) <= 2:
        return word
    word = _inflected(_plural(word))
    if word.endswith("y") and _VOWEL.search(word, 0, len(word) - 1):
        word = word[:-1] + "i"
    for pattern, instead in ((_ENDING_2, _SECOND), (_ENDING_3, _THIRD)):
        found = pattern.search(word)
        if found and _SOME.match(head := word[: found.start()]):
            word = head + instead[found.group()]
    return _bare(word)


def _plural(word: str) -> str:
    """Remove the ending of a plural."""
    if word.endswith(("sses", "ies")):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith("ss") else word


def _inflected(word: str) -> str:
    """Remove the endings -ed and -ing."""
    if word.endswith("eed"):
        return word[:-1] if _SOME.match(word[:-3]) else word
    cut = 2 if word.endswith("ed") else 3 if word.endswith("ing") else 0
    if not cut or not _VOWEL.search(head := word[:-cut]):
        return word
    if head.endswith(("at", "bl", "iz")):
        return head + "e"
    if _DOUBLE.search(head):
        return head[:-1]
    return head + "e" if _ONE.match(head) and _SHORT.search(head) else head


def _bare(word: str) -> str:
    """Remove what is left of an ending."""
    found = _ENDING_4.search(word)
    if found:
        head = word[: found.start()]
        if _MORE.match(head) and (found.group() != "ion" or head.endswith(("s", "t"))):
            word = head
    if word.endswith("e"):
        head = word[:-1]
        if _MORE.match(head) or (_ONE.match(head) and not _SHORT.search(head)):
            word = head
    return word[:-1] if word.endswith("ll") and _MORE.match(word[:-1]) else word


_VOWELS: Final = "аеиоуыэюя"
_AFTER_VOWEL: Final = LazyPattern(f"[{_VOWELS}]")
_REGION: Final = LazyPattern(f"[{_VOWELS}][^{_VOWELS}]")


def _endings(words: str) -> str:
    """Return a pattern of endings, the longest first."""
    return "|".join(sorted(words.split(), key=len, reverse=True))


_GERUND: Final = LazyPattern(
    f"(?:(?<=[ая])(?:{_endings('в вши вшись')})|{_endings('ив ивши ившись ыв ывши ывшись')})$"
)
_REFLEXIVE: Final = LazyPattern("(?:ся|сь)$")
_ADJECTIVE: Final = LazyPattern(
    "(?:"
    + _endings(
        "ее ие ые ое ими ыми ей ий ый ой ем им ым ом его ого ему ому их ых ую юю ая яя ою ею"
    )
    + ")$"
)
_PARTICIPLE: Final = LazyPattern("(?:(?<=[ая])(?:ем|нн|вш|ющ|щ)|(?:ивш|ывш|ующ))$")
_VERB: Final = LazyPattern(
    "(?:(?<=[ая])(?:"
    + _endings("ла на ете йте ли й л ем н ло но ет ют ны ть ешь нно")
    + ")|(?:"
    + _endings(
        "ила ыла ена ейте уйте ите или ыли ей уй ил ыл им ым ен ило ыло ено ят ует уют ит ыт ены"
        " ить ыть ишь ую ю"
    )
    + "))$"
)
_NOUN: Final = LazyPattern(
    "(?:"
    + _endings(
        "а ев ов ие ье е иями ями ами еи ии и ией ей ой ий й иям ям ием ем ам ом о у ах иях ях ы"
        " ь ию ью ю ия ья я"
    )
    + ")$"
)
_QUALITY: Final = LazyPattern("(?:ость|ост)$")
_SUPERLATIVE: Final = LazyPattern("(?:ейше|ейш)$")

_ARABIC_PREFIXES: Final = {"وال": 2, "بال": 2, "كال": 2, "فال": 2, "ال": 2, "لل": 2, "و": 3}
"""By prefix, the minimum number of letters that must remain."""
_ARABIC_SUFFIXES: Final = ("ها", "ان", "ات", "ون", "ين", "يه", "ه", "ي")

_HINDI: Final[Sequence[Sequence[str]]] = [
    suffixes.split()
    for suffixes in (
        "ाएंगी ाएंगे ाऊंगी ाऊंगा",
        "ाएगी ाएगा ाओगी ाओगे एंगी ेंगी एंगे ेंगे ूंगी ूंगा ातीं नाओं नाएं ताओं ताएं ियां ियों",
        "ाकर ाइए ाईं ाया ेगी ेगा ोगी ोगे ाने ाना ाते ाती ाता तीं ाओं ाएं ुओं ुएं ुआं",
        "कर ाओ िए ाई ाए ने नी ना ते ीं ती ता ां ों ें",
        "ो े ू ु ी ि ा",
    )
]


def inflected_stem(word: str) -> str:
    """Return the stem of a word that begins in one of these scripts; any other word as it is."""
    first = word[0]
    if "\u0400" <= first <= "\u052f":
        return _russian(word)
    if "\u0620" <= first <= "\u06ff":
        return _arabic(word)
    if "\u0900" <= first <= "\u097f":
        return _hindi(word)
    return word


def _russian(word: str) -> str:
    vowel = _AFTER_VOWEL.search(word)
    if vowel is None:
        return word
    head, tail = word[: vowel.end()], word[vowel.end() :]
    tail = _inflections(tail).removesuffix("и")
    second = _second_region(word)
    quality = _QUALITY.search(tail)
    if quality and len(head) + quality.start() >= second:
        tail = tail[: quality.start()]
    if superlative := _SUPERLATIVE.search(tail):
        tail = tail[: superlative.start()]
    tail = tail[:-1] if tail.endswith("нн") else tail.removesuffix("ь")
    return head + tail


def _inflections(tail: str) -> str:
    """Remove the ending of a gerund, or those of a reflexive, adjective, verb or noun."""
    if gerund := _GERUND.search(tail):
        return tail[: gerund.start()]
    if reflexive := _REFLEXIVE.search(tail):
        tail = tail[: reflexive.start()]
    if adjective := _ADJECTIVE.search(tail):
        tail = tail[: adjective.start()]
        participle = _PARTICIPLE.search(tail)
        return tail[: participle.start()] if participle else tail
    ending = _VERB.search(tail) or _NOUN.search(tail)
    return tail[: ending.start()] if ending else tail


def _second_region(word: str) -> int:
    """Return the start of the part after the second vowel and consonant of a word."""
    first = _REGION.search(word)
    second = _REGION.search(word, first.end()) if first else None
    return second.end() if second else len(word)


def _arabic(word: str) -> str:
    for prefix, least in _ARABIC_PREFIXES.items():
        if word.startswith(prefix) and len(word) >= len(prefix) + least:
            word = word[len(prefix) :]
            break
    for suffix in _ARABIC_SUFFIXES:
        if word.endswith(suffix) and len(word) >= len(suffix) + 2:
            word = word[: -len(suffix)]
    return word


def _hindi(word: str) -> str:
    for suffixes in _HINDI:
        size = len(suffixes[0])
        if len(word) > size + 1 and word[-size:] in suffixes:
            return word[:-size]
    return word


_ONLY_GERMAN: Final = """
    aber auf beim dass deine deinen dich ein eine einem einen einer eines euch euer für gegen haben
    ich ihm ihn ihr ihre ist kein keine keinen mein meine meinem meinen meiner mich mir muss nach
    nicht noch oder sein seine sich sie sind soll und unser unsere wann warum wegen welche welchem
    welchen welcher welches wem wen wer werden wie wieso wird wo woher wohin über
"""
_GERMAN: Final = frozenset(_ONLY_GERMAN.split())
"""Function words that are hardly used in other languages."""
_ALSO_GERMAN: Final = """
    am an bei bin das dem den der des die dir doch er es habe hast hat im in kann man mit so uns vom
    von war was wir zu zum zur
"""
_MAYBE: Final = frozenset(_ALSO_GERMAN.split())
"""Function words that other languages also have, as words or names."""
_LETTERS: Final = frozenset("äöüß")
_WORDS: Final = LazyPattern(r"\w+")
_ENDINGS: Final = ("ern", "em", "er", "en", "es", "e", "n", "s", "t", "")
_LEAST: Final = 3
"""Minimum number of letters that remain after an ending is removed."""


def is_german(text: str) -> bool:
    """Return whether a question is German: it has two function words, one of them only German."""
    words = _WORDS.findall(text.casefold())
    sure = sum(word in _GERMAN for word in words)
    maybe = sum(word in _MAYBE or not _LETTERS.isdisjoint(word) for word in words)
    return sure > 0 and sure + maybe > 1


def forms_of(word: str) -> list[str]:
    """Return the forms that a word without accents may have; of two stems if ambiguous."""
    stems = [
        word[: len(word) - len(ending)]
        for ending in _ENDINGS
        if word.endswith(ending) and len(word) - len(ending) >= _LEAST
    ]
    # "Katzen" may be "Katz-en" or "Katze-n": add each ending to the shortest stem and the word.
    heads = dict.fromkeys([*stems[:1], word])
    return list(dict.fromkeys(head + ending for head in heads for ending in _ENDINGS))
