"""Estimate how many tokens a text takes in a known vocabulary, without dependencies.

Text is cut as the vocabulary cuts it, and each piece is merged by byte pair encoding, as the
vocabulary merges it, but only with the most common merges: those in the tables beside this file.
The merges that are missing could only make fewer tokens, so an estimate is too high, not too low.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property, lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Final, TypeVar

from keepthread.text_caches import register_cache

VOCABULARIES: Final = ("o200k_base", "cl100k_base")
TABLES: Final = Path(__file__).with_name("vocabularies")
SPELLED: Final = {" ": "▁", "\n": "␤", "\r": "␍"}
"""How a table writes characters that are invisible or would end a line."""
PART: Final = "␀"
"""How a table marks a token that is not whole characters; its bytes follow, in hexadecimal."""

# The vocabularies' own patterns, adapted to `re`, which knows few character categories: \w is a
# letter, a number or an underscore. Every repeat has a bound, so that time stays linear. A piece
# has a space only as its first character or in a run of blanks: `estimate` relies on that.
_LETTER: Final = r"[^\W\d_{number}]"
_SYMBOL: Final = r"(?:[^\w\s]|_)"
_BEFORE: Final = r"(?:[^\w\r\n]|_)?"
_NUMBER: Final = r"[\d{number}]{{1,3}}"
_SUFFIX: Final = "(?:'(?:[sStTmMdDſ]|[rR][eE]|[vV][eE]|[lL][lL]))"
_REST: Final = r"[^\S\r\n]{{0,64}}[\r\n]{{1,64}}|\s{{1,64}}(?!\S)|\s|\w"
_PATTERNS: Final = {
    "o200k_base": (
        rf"{_BEFORE}[{{not_lower}}]{{{{0,64}}}}[{{not_upper}}]{{{{1,64}}}}{_SUFFIX}?"
        rf"|{_BEFORE}[{{not_lower}}]{{{{1,64}}}}{_SUFFIX}?"
        rf"|{_NUMBER}| ?{_SYMBOL}{{{{1,64}}}}[\r\n/]{{{{0,64}}}}|{_REST}"
    ),
    "cl100k_base": (
        rf"{_SUFFIX}|{_BEFORE}{_LETTER}{{{{1,64}}}}"
        rf"|{_NUMBER}| ?{_SYMBOL}{{{{1,64}}}}[\r\n]{{{{0,64}}}}|{_REST}"
    ),
}
_NEVER: Final = 1 << 30
Text = TypeVar("Text", str, bytes)
_BYTEWISE, _CJK = 32, "\u2e80"
"""Pieces up to this length, with characters below this one, are merged byte by byte as the
vocabulary does; others character by character, which is several times as fast and rarely differs.
"""
_LONGEST, _MOST = 48, 1 << 15


class Vocabulary:
    """A part of a vocabulary: how it cuts text into pieces, and how many tokens a piece takes."""

    def __init__(self, name: str) -> None:
        """Read the tables, which takes about 30 ms."""
        text = TABLES.joinpath(f"{name}.txt").read_text("utf-8")
        tokens = text.replace("▁", " ").replace("␍", "\r").split("\n")[:-1]
        ranks = dict(zip(tokens, range(len(tokens)), strict=True))
        odd = [token for token in tokens if "␤" in token or token[0] == PART]
        self._parts: Final = {
            bytes.fromhex(token[1:]): ranks.pop(token) for token in odd if token[0] == PART
        }
        ranks |= {token.replace("␤", "\n"): ranks[token] for token in odd if "␤" in token}
        self._ranks: Final[Mapping[str, int]] = ranks
        self.pieces: Callable[[str], list[str]] = re.compile(_pattern(name)).findall
        self.price: Final = lru_cache(maxsize=8192)(self._price)
        self._character: Final = lru_cache(maxsize=8192)(self._character_price)
        self.first: Final = _Costs(self, "")
        self.later: Final = _Costs(self, " ")

    def _price(self, piece: str) -> int:
        ranks = self._ranks
        if piece in ranks or (piece.isascii() and piece.isdigit()):  # 0 to 999 are tokens
            return 1
        if len(piece) <= _BYTEWISE and "\x7f" < max(piece) < _CJK:
            return len(self._merged_bytes(piece))
        head = 0
        if piece[0] < "\x80" <= piece[1:2] and piece[:2] not in ranks:
            # A space may merge with the first byte of a letter, which splits the letter.
            bytewise = self._merged_bytes(piece[:2])
            if len(bytewise[0]) > 1:
                head, piece = len(bytewise), piece[2:]
        parts = _merged(piece, lambda pair: ranks.get(pair, _NEVER))
        return head + sum(1 if part in ranks else self._character(part) for part in parts)

    def _character_price(self, character: str) -> int:
        return len(self._merged_bytes(character))

    def _merged_bytes(self, text: str) -> list[bytes]:
        data = text.encode("utf-8", "surrogatepass")
        ranks = self._byte_ranks
        each = (data[at : at + 1] for at in range(len(data)))
        return _merged(each, lambda pair: ranks.get(pair, _NEVER))

    @cached_property
    def _byte_ranks(self) -> Mapping[bytes, int]:
        return {token.encode(): rank for token, rank in self._ranks.items()} | self._parts

    def clears(self) -> tuple[Callable[[], object], ...]:
        """Return the functions that empty the caches."""
        caches = (self.price.cache_clear, self._character.cache_clear)
        return (*caches, self.first.clear, self.later.clear)


def _merged(units: Iterable[Text], rank: Callable[[Text], int]) -> list[Text]:
    """Merge the neighbors of lowest rank until none can be merged: byte pair encoding."""
    parts = list(units)
    pairs = [rank(a + b) for a, b in pairwise(parts)]
    while pairs and (best := min(pairs)) != _NEVER:
        at = pairs.index(best)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
        del pairs[at]
        if at:
            pairs[at - 1] = rank(parts[at - 1] + parts[at])
        if at < len(pairs):
            pairs[at] = rank(parts[at] + parts[at + 1])
    return parts


class _Costs(dict[str, int]):
    """A cache of the cost of words with the text before them; long words are not cached."""

    def __init__(self, vocabulary: Vocabulary, before: str) -> None:
        super().__init__()
        self._vocabulary = vocabulary
        self._before = before

    def __missing__(self, word: str) -> int:
        vocabulary = self._vocabulary
        cost = sum(map(vocabulary.price, vocabulary.pieces(self._before + word)))
        if len(word) <= _LONGEST:
            if len(self) >= _MOST:
                self.clear()
            self[word] = cost
        return cost


def _pattern(name: str) -> str:
    """Return the pattern of a vocabulary with the categories of characters written out."""
    classes = {
        row.split()[0]: "".join(
            "-".join(chr(int(end, 16)) for end in span.split("-")) for span in row.split()[1:]
        )
        for row in TABLES.joinpath("letters.txt").read_text("utf-8").splitlines()
    }
    return _PATTERNS[name].format(**classes)


_known: Final[dict[str, Vocabulary]] = {}


def vocabulary_of(name: str) -> Vocabulary:
    """Return our part of a vocabulary; it is read on first use."""
    if name not in VOCABULARIES:
        known = ", ".join(VOCABULARIES)
        raise ValueError(f"no estimate for the vocabulary {name!r}; known are {known}")
    if name not in _known:
        _known[name] = Vocabulary(name)
        register_cache(*_known[name].clears())
    return _known[name]


def estimate(text: str, vocabulary: str) -> int:
    """Return roughly how many tokens the text takes: a few too many, never too few."""
    part = _known.get(vocabulary) or vocabulary_of(vocabulary)
    if _has_runs(text):
        return sum(map(part.price, part.pieces(text)))
    first, *words = text.split(" ")
    return part.first[first] + sum(map(part.later.__getitem__, words))


_odd_blank: Final = re.compile(r"[^\S \r\n]").search


def _has_runs(text: str) -> bool:
    """Return whether a text has a run of blanks that forms one piece."""
    return bool(_odd_blank(text)) or (
        "  " in text and ("   " in text or "  \n" in text or "  \r" in text or text.endswith("  "))
    )
