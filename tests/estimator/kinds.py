"""Held-out samples by script and by kind of text, and fragments for mixtures of them.

Nothing here was used to choose the estimator's tables. The samples of languages were written for
this test; the rest is generated, from one seed for each kind.
"""

import base64
import random
import string
import unicodedata
import uuid
from collections.abc import Callable

from hypothesis import strategies as st

from tests.estimator.corpus import TEXTS

_WORDS = TEXTS.joinpath("english-jargon.txt").read_text("utf-8").split()


def scripts() -> dict[str, str]:
    """Return a sample of each language or script."""
    text = TEXTS.joinpath("scripts.txt").read_text("utf-8").removeprefix("%% ")
    pairs = (section.split("\n", 1) for section in text.split("\n%% "))
    return {name: sample.strip() for name, sample in pairs}


def samples() -> dict[str, str]:
    """Return one sample of each script, in capitals too where it has them, and of each kind."""
    found = scripts()
    for name, sample in scripts().items():
        if sample.upper() != sample and not name.startswith("phonetic"):
            found[f"{name}, capitals"] = sample.upper()
    for name, make in KINDS.items():
        dice = random.Random(name)
        found[name] = make(dice)
    return found


def misspelled(word: str, dice: random.Random) -> str:
    """Return a word with two letters swapped, one left out, doubled or replaced by chance."""
    if len(word) < 3 or not word.isalpha():
        return word
    at = dice.randrange(len(word) - 1)
    a, b = word[at], word[at + 1]
    changed = dice.choice([b + a, a, a + a + b, a + dice.choice(string.ascii_lowercase)])
    return word[:at] + changed + word[at + 2 :]


def _some(dice: random.Random, number: int) -> list[str]:
    start = dice.randrange(len(_WORDS) - number)
    return _WORDS[start : start + number]


def _letters(dice: random.Random, alphabet: str, low: int, high: int) -> str:
    return "".join(dice.choices(alphabet, k=dice.randint(low, high)))


Make = Callable[[random.Random], str]


def _many(make: Make, number: int, between: str = " ") -> Make:
    return lambda dice: between.join(make(dice) for _ in range(number))


def _block(first: int, last: int) -> Callable[[random.Random], str]:
    return lambda dice: chr(dice.randint(first, last))


def _url(dice: random.Random) -> str:
    path = "/".join(word.strip(".,()") for word in _some(dice, 3))
    return f"https://{_letters(dice, 'abcdefgh', 3, 9)}.example/{path}?q={dice.randrange(10**6)}"


def _path(dice: random.Random) -> str:
    return f"/var/{_letters(dice, string.ascii_lowercase, 3, 8)}/{dice.randrange(10**4)}.log:12"


def _assignment(dice: random.Random) -> str:
    name, other = _letters(dice, "abcxyz_", 3, 9), _letters(dice, string.ascii_letters, 4, 12)
    return f"    if ({name}[{dice.randrange(99)}] != {other}->{name}) {{ return &{other}; }}\n"


def _marked(dice: random.Random) -> str:
    return "".join(a + chr(dice.randint(0x300, 0x36F)) for a in _some(dice, 1)[0])


_emoji = "😀😂🥲🤖👍🏽👩‍🚀🏳️‍🌈🇳🇴🇯🇵❤️🔥🦕🫠🧑🏿‍💻✨🍜🛶🪁"

KINDS: dict[str, Callable[[random.Random], str]] = {
    "typos": lambda dice: " ".join(misspelled(word, dice) for word in _some(dice, 120)),
    "swapped letters": lambda dice: " ".join(
        "".join(dice.sample(word, len(word))) for word in _some(dice, 80)
    ),
    "tickers": _many(lambda dice: _letters(dice, string.ascii_uppercase, 2, 5), 120),
    "random words": _many(lambda dice: _letters(dice, string.ascii_lowercase, 3, 9), 80),
    "part numbers": _many(
        lambda dice: _letters(dice, string.ascii_uppercase + string.digits, 5, 12), 40, "\n"
    ),
    "passwords": _many(lambda dice: _letters(dice, string.printable[:94], 12, 24), 20, "\n"),
    "digits": lambda dice: _letters(dice, string.digits, 600, 600),
    "decimals": _many(lambda dice: f"{dice.gauss(0, 9):.7f}", 60, ", "),
    "amounts": _many(lambda dice: f"€{dice.randrange(10**5):,}.{dice.randrange(99):02}", 40),
    "times": _many(
        lambda dice: f"2026-{dice.randint(1, 12):02}-{dice.randint(1, 28):02}T08:15Z", 20
    ),
    "hexadecimal": lambda dice: dice.randbytes(200).hex(),
    "uuids": _many(lambda dice: str(uuid.UUID(int=dice.getrandbits(128))), 12, "\n"),
    "base64": lambda dice: base64.b64encode(dice.randbytes(300)).decode(),
    "base32": lambda dice: base64.b32encode(dice.randbytes(200)).decode(),
    "base85": lambda dice: base64.b85encode(dice.randbytes(200)).decode(),
    "protein": lambda dice: _letters(dice, "ACDEFGHIKLMNPQRSTVWY", 300, 300),
    "urls": _many(_url, 15, "\n"),
    "paths": _many(_path, 20, "\n"),
    "code": _many(_assignment, 12, ""),
    "punctuation": lambda dice: _letters(dice, string.punctuation, 200, 200),
    "emoji": lambda dice: _letters(dice, _emoji, 80, 80),
    "all emoji": _many(_block(0x1F300, 0x1FAFF), 80, ""),
    "flags": _many(_block(0x1F1E6, 0x1F1FF), 80, ""),
    "mathematics": _many(_block(0x2190, 0x22FF), 100),
    "box drawing": _many(_block(0x2500, 0x259F), 150, ""),
    "braille": _many(_block(0x2800, 0x28FF), 100, ""),
    "full width": _many(_block(0xFF21, 0xFF5A), 100, ""),
    "mathematical letters": _many(_block(0x1D400, 0x1D7CB), 80, ""),
    "rare ideographs": _many(_block(0x4E00, 0x9FA5), 120, ""),
    "rare syllables": _many(_block(0xAC00, 0xD7A3), 120, ""),
    "stacked accents": _many(_marked, 15),
    "decomposed": lambda dice: unicodedata.normalize("NFD", scripts()["vietnamese"]),
    "decomposed korean": lambda dice: unicodedata.normalize("NFD", scripts()["korean"]),
}
"""Kinds of text that belong to no language."""


def _cased(text: str, how: int) -> str:
    return (text, text, text.upper(), text.title(), text.swapcase())[how]


_languages = scripts()
_words = {name: sample.split() for name, sample in _languages.items()}
_seeds = st.integers(0, 2**32)


def _from_language(name: str, seed: int, how: int) -> str:
    dice, words = random.Random(seed), _words[name]
    start = dice.randrange(len(words))
    found = " ".join(words[start : start + dice.randint(1, 12)])
    if dice.random() < 0.2:
        found = " ".join(misspelled(word, dice) for word in found.split())
    if dice.random() < 0.1:
        found = unicodedata.normalize("NFD", found)
    return _cased(found, how)


def _of_kind(name: str, seed: int, how: int) -> str:
    dice = random.Random(seed)
    text = KINDS[name](dice)
    start = dice.randrange(len(text))
    return _cased(text[start : start + dice.randint(5, 120)], how)


_how = st.integers(0, 4)
fragments = (
    st.builds(_from_language, st.sampled_from(sorted(_words)), _seeds, _how)
    | st.builds(_of_kind, st.sampled_from(sorted(KINDS)), _seeds, _how)
    | st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
)
mixtures = st.builds(
    lambda between, parts: between.join(parts),
    st.sampled_from([" ", " ", "\n", "", ", ", "\t", "  ", "\n\n    "]),
    st.lists(fragments, min_size=8, max_size=30)
    | st.lists(fragments, min_size=1, max_size=2).map(lambda few: few * 12),
)
"""Mixtures of scripts and kinds; some are few fragments that repeat."""
