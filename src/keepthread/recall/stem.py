"""Stems of English words by the rules of M. F. Porter (1980): "trips" and "trip" are one word."""

import re
from collections.abc import Iterable
from typing import Final

_C: Final = r"(?:[^aeiouy]|(?:(?<=[aeiou])|^)y)"
_V: Final = r"(?:[aeiou]|(?<=[^aeiou])y)"
_SOME: Final = re.compile(rf"^{_C}*{_V}+{_C}").match
"""At least one vowel followed by a consonant: the measure is above 0."""
_MORE: Final = re.compile(rf"^{_C}*(?:{_V}+{_C}+){{2}}").match
"""The measure is above 1."""
_ONE: Final = re.compile(rf"^{_C}*{_V}+{_C}+{_V}*$").match
"""The measure is exactly 1."""
_VOWEL: Final = re.compile(_V).search
_DOUBLE: Final = re.compile(r"([^aeiouylsz])\1$").search
_SHORT: Final = re.compile(rf"{_C}[aeiouy][^aeiouwxy]$").search
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


def _ending(endings: Iterable[str]) -> re.Pattern[str]:
    """Return what finds the longest of some endings."""
    longest = sorted(endings, key=len, reverse=True)
    return re.compile(rf"(?:{'|'.join(longest)})$")


_ENDING_2: Final = _ending(_SECOND).search
_ENDING_3: Final = _ending(_THIRD).search
_ENDING_4: Final = _ending(_FOURTH.split()).search


def stem(word: str) -> str:
    """Return the stem of a word in small ASCII letters."""
    if len(word) <= 2:
        return word
    word = _inflected(_plural(word))
    if word.endswith("y") and _VOWEL(word, 0, len(word) - 1):
        word = word[:-1] + "i"
    for ending, instead in ((_ENDING_2, _SECOND), (_ENDING_3, _THIRD)):
        found = ending(word)
        if found and _SOME(head := word[: found.start()]):
            word = head + instead[found.group()]
    return _bare(word)


def _plural(word: str) -> str:
    """Take a plural's ending off."""
    if word.endswith(("sses", "ies")):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith("ss") else word


def _inflected(word: str) -> str:
    """Take the endings of the past and of what goes on off."""
    if word.endswith("eed"):
        return word[:-1] if _SOME(word[:-3]) else word
    cut = 2 if word.endswith("ed") else 3 if word.endswith("ing") else 0
    if not cut or not _VOWEL(head := word[:-cut]):
        return word
    if head.endswith(("at", "bl", "iz")):
        return head + "e"
    if _DOUBLE(head):
        return head[:-1]
    return head + "e" if _ONE(head) and _SHORT(head) else head


def _bare(word: str) -> str:
    """Take off what is left of an ending."""
    found = _ENDING_4(word)
    if found:
        head = word[: found.start()]
        if _MORE(head) and (found.group() != "ion" or head.endswith(("s", "t"))):
            word = head
    if word.endswith("e"):
        head = word[:-1]
        if _MORE(head) or (_ONE(head) and not _SHORT(head)):
            word = head
    return word[:-1] if word.endswith("ll") and _MORE(word[:-1]) else word
