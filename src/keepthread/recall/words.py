"""Words of texts and queries, normalized in spelling, case and endings."""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import pairwise
from typing import Final
from unicodedata import normalize

from keepthread.recall.stemming import LazyPattern, forms_of, inflected_stem, is_german, stem
from keepthread.text_caches import register_cache

LONGEST: Final = 64
"""Longer words are cut to this number of characters."""
MOST: Final = 64
"""Maximum number of words to search for."""
MOST_INFLECTED: Final = 16
"""Maximum number of words that are also searched in other forms."""
_FAR: Final = 4000
"""Of a long question, this number of characters is read at each end."""

# Scripts written without spaces: Thai to Khmer, kana, Han, Hangul.
_UNSPACED: Final = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u2fdf\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
)
# Combining marks that belong to words, but are not matched by `\w`.
_SIGNS: Final = (
    "\u0300-\u036f\u0483-\u0487\u0591-\u05bd\u0610-\u061a\u064b-\u065f\u0670\u06d6-\u06ed"
    "\u0900-\u0963\u0971-\u0df3\u0e31-\u0e4e\u0eb1-\u0ece\u102b-\u103e\u1056-\u1059\u17b4-\u17d3"
)
_PLAIN: Final = LazyPattern(r"[a-z0-9]+")
_WORDS: Final = LazyPattern(rf"[^\W_](?:[^\W_]|[{_SIGNS}])*")
_RUNS: Final = LazyPattern(rf"[{_UNSPACED}{_SIGNS}]+|[^{_UNSPACED}]+")
_IS_UNSPACED: Final = LazyPattern(f"[{_UNSPACED}]")
_ACCENT: Final = LazyPattern("(?<=[a-z])[\u0300-\u036f]+")
_SHORTENED: Final = LazyPattern(r"(?<=\w)'(?:s|d|m|ll|re|ve)\b")
# Letters with several spellings, and marks that are often left out: the Russian io and
# stress, the Arabic alef, ya, ta marbuta, vowels and tatweel, Hebrew points, the Hindi nukta.
_SAME: Final = str.maketrans(
    {
        **dict.fromkeys("\u0300\u0301\u0640\u0670\u093c"),
        **dict.fromkeys(map(chr, (*range(0x0591, 0x05BE), *range(0x064B, 0x0660)))),
        **dict.fromkeys("\u0622\u0623\u0625\u0671", "\u0627"),
        "\u0451": "\u0435",
        "\u0649": "\u064a",
        "\u0629": "\u0647",
        "\u0901": "\u0902",
    }
)
_APART: Final = str.maketrans({"\u2018": "'", "\u2019": "'", "\u02bc": "'", "\uff07": "'"})

_SMALL: Final = """
    a about also am an and any are as at be been being but by can cannot cant could did didnt do
    does doesnt doing done dont for from had has have having he her here him his how i if in into
    is isnt it its just kind many may me might much my no nor not of on or our ours she should so
    some than that the their them then there these they this those to type us was wasnt we were
    what when where which who whom whose why will with wont would you your yours
"""
STOP: Final = frozenset(_SMALL.split())
"""English stop words."""


def words_of(text: str) -> list[str]:
    """Return the words of a text in order, as stems."""
    return [_stem(word[:LONGEST]) for word in _spelled(text)]


def query_words(text: str) -> list[str]:
    """Return the words to search for, each once; stop words only if there are no others."""
    return list(query_spelled(text))


def query_spelled(text: str) -> dict[str, str]:
    """Return the stems to search for, each with the word as it is written."""
    spelled = [word[:LONGEST] for word in _spelled(ends_of(text))]
    content = [word for word in spelled if word not in STOP]
    words: dict[str, str] = {}
    for word in content or spelled:
        words.setdefault(_stem(word), word)
    found = list(words.items())
    # In a long text, the question itself is likely to be at one of the ends.
    return words if len(found) <= MOST else dict(found[: MOST // 2] + found[-MOST // 2 :])


def query_forms(text: str, words: Mapping[str, str]) -> dict[str, list[str]]:
    """Return other stems of the words of a German question that the index may have."""
    if not is_german(ends_of(text)):
        return {}
    some = list(words.items())[:MOST_INFLECTED]
    alphabetic = [(key, word) for key, word in some if word.isascii() and word.isalpha()]
    forms = {key: [_stem(form[:LONGEST]) for form in forms_of(word)] for key, word in alphabetic}
    return {
        key: [each for each in dict.fromkeys(stems) if each not in words]
        for key, stems in forms.items()
    }


def ends_of(text: str) -> str:
    """Return both ends of a long text, where the question most likely is."""
    return text if len(text) <= 2 * _FAR else f"{text[:_FAR]} {text[-_FAR:]}"


def marked(words: Iterable[str]) -> list[str]:
    """Return each word once; also with a `²` if it occurs twice, and a `³` if more often."""
    often: dict[str, int] = {}
    for word in words:
        often[word] = often.get(word, 0) + 1
    again = [f"{word}²" for word, times in often.items() if times > 1]
    return [*often, *again, *(f"{word}³" for word, times in often.items() if times > 2)]


def _spelled(text: str) -> list[str]:
    """Return the words of a text in lower case and without accents."""
    if text.isascii():
        text = text.lower()
        return _PLAIN.findall(_plain_marks(text) if "'" in text else text)
    text = normalize("NFKC", text.translate(_APART)).casefold()
    text = normalize("NFC", _ACCENT.sub("", normalize("NFD", text))).translate(_SAME)
    words: list[str] = []
    for word in _WORDS.findall(_plain_marks(text)):
        if word.isascii() or not _IS_UNSPACED.search(word):
            words.append(word)
        else:
            words += _parted(word)
    return words


def _plain_marks(text: str) -> str:
    """Remove contracted endings such as 's; "don't" becomes one word."""
    return _SHORTENED.sub("", text).replace("n't", "nt")


def _parted(word: str) -> list[str]:
    """Return pairs of adjacent characters for scripts without spaces."""
    words: list[str] = []
    for run in _RUNS.findall(word):
        if len(run) > 1 and _IS_UNSPACED.search(run):
            words += map("".join, pairwise(run))
        else:
            words.append(run)
    return words


@lru_cache(maxsize=1 << 15)
def _stem(word: str) -> str:
    """Return the index term of a word."""
    if word.isascii():
        return stem(word) if word.isalpha() else word
    return inflected_stem(word)


register_cache(_stem.cache_clear)


_FOUND: Final = LazyPattern(
    "[\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\uf900-\ufaff\U00020000-\U0003ffff]"
)
_PAIR: Final = 2
_HIRAGANA: Final = map(chr, range(0x3041, 0x3097))
_GRAMMAR: Final = frozenset(
    "的了着过是在有和与也都就还又很太我你您他她它们这那哪谁什么怎吗呢吧啊呀把被给让对从到为以之其"
    "不没要会能可些个還過們這誰麼嗎與給讓對從為沒會個何私達"
    "은는이가을를의에도로와과만서께요다까니죠지예네나세습"
).union(_HIRAGANA)
"""Characters that are mostly grammar: function words, particles and endings."""


def characters_of(text: str) -> list[str]:
    """Return the Han and Hangul characters of a text, each once."""
    if text.isascii():
        return []
    found = dict.fromkeys(_FOUND.findall(normalize("NFKC", text)))
    return [each for each in found if each.isalpha()]  # some are not assigned yet


def significant_characters(text: str) -> list[str]:
    """Return the characters of a question that may each be a content word."""
    return [each for each in characters_of(text) if each not in _GRAMMAR]


def holds_grammar(word: str) -> bool:
    """Return whether a word is a pair of characters of which one is mostly grammar."""
    return len(word) == _PAIR and (word[0] in _GRAMMAR or word[1] in _GRAMMAR)
