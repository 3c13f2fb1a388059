"""Stems of words whose script tells which endings to expect: Cyrillic, Arabic and Devanagari.

The rules are published ones: Snowball's for Russian, light10 for Arabic (Larkey et al., 2002), and
those of Ramanathan and Rao (2003) for Hindi. Other languages of a script share many endings; a stem
that is wrong there costs little, because questions and messages get the same one.
"""

import re
from collections.abc import Sequence
from typing import Final

_VOWELS: Final = "аеиоуыэюя"
_AFTER_VOWEL: Final = re.compile(f"[{_VOWELS}]").search
_REGION: Final = re.compile(f"[{_VOWELS}][^{_VOWELS}]").search


def _endings(words: str) -> str:
    """Return a pattern of endings, the longest first."""
    return "|".join(sorted(words.split(), key=len, reverse=True))


_GERUND: Final = re.compile(
    f"(?:(?<=[ая])(?:{_endings('в вши вшись')})|{_endings('ив ивши ившись ыв ывши ывшись')})$"
).search
_REFLEXIVE: Final = re.compile("(?:ся|сь)$").search
_ADJECTIVE: Final = re.compile(
    "(?:"
    + _endings(
        "ее ие ые ое ими ыми ей ий ый ой ем им ым ом его ого ему ому их ых ую юю ая яя ою ею"
    )
    + ")$"
).search
_PARTICIPLE: Final = re.compile("(?:(?<=[ая])(?:ем|нн|вш|ющ|щ)|(?:ивш|ывш|ующ))$").search
_VERB: Final = re.compile(
    "(?:(?<=[ая])(?:"
    + _endings("ла на ете йте ли й л ем н ло но ет ют ны ть ешь нно")
    + ")|(?:"
    + _endings(
        "ила ыла ена ейте уйте ите или ыли ей уй ил ыл им ым ен ило ыло ено ят ует уют ит ыт ены"
        " ить ыть ишь ую ю"
    )
    + "))$"
).search
_NOUN: Final = re.compile(
    "(?:"
    + _endings(
        "а ев ов ие ье е иями ями ами еи ии и ией ей ой ий й иям ям ием ем ам ом о у ах иях ях ы"
        " ь ию ью ю ия ья я"
    )
    + ")$"
).search
_QUALITY: Final = re.compile("(?:ость|ост)$").search
_SUPERLATIVE: Final = re.compile("(?:ейше|ейш)$").search

_ARABIC_PREFIXES: Final = {"وال": 2, "بال": 2, "كال": 2, "فال": 2, "ال": 2, "لل": 2, "و": 3}
"""Each with the number of letters that must be left."""
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
    vowel = _AFTER_VOWEL(word)
    if vowel is None:
        return word
    head, tail = word[: vowel.end()], word[vowel.end() :]
    tail = _inflections(tail).removesuffix("и")
    second = _second_region(word)
    quality = _QUALITY(tail)
    if quality and len(head) + quality.start() >= second:
        tail = tail[: quality.start()]
    if superlative := _SUPERLATIVE(tail):
        tail = tail[: superlative.start()]
    tail = tail[:-1] if tail.endswith("нн") else tail.removesuffix("ь")
    return head + tail


def _inflections(tail: str) -> str:
    """Take one gerund's ending off, or those of a reflexive, adjective, verb or noun."""
    if gerund := _GERUND(tail):
        return tail[: gerund.start()]
    if reflexive := _REFLEXIVE(tail):
        tail = tail[: reflexive.start()]
    if adjective := _ADJECTIVE(tail):
        tail = tail[: adjective.start()]
        participle = _PARTICIPLE(tail)
        return tail[: participle.start()] if participle else tail
    ending = _VERB(tail) or _NOUN(tail)
    return tail[: ending.start()] if ending else tail


def _second_region(word: str) -> int:
    """Return where the part of a word begins that follows its second vowel and consonant."""
    first = _REGION(word)
    second = _REGION(word, first.end()) if first else None
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
