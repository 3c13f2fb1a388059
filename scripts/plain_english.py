"""Find phrases in our prose that a reader has to read twice, and suggest plain words.

Reads comments, docstrings and string literals (errors, help texts, log lines) in `src/`, and the
prose of `docs/`, README, CONTRIBUTING, SECURITY and CHANGELOG. Code, code blocks and text in
backticks are ignored. Prints `file:line: phrase -> suggestion` and fails if it finds anything
outside `ALLOWED`, or an entry of `ALLOWED` that no longer matches.

    scripts/plain_english.py [--count] [FILE ...]
"""

import argparse
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[1]
PROSE: Final = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")


class Pattern(NamedTuple):
    """A phrase to avoid. Text that matches the group `ok` is accepted."""

    name: str
    regex: re.Pattern[str]
    suggestion: str


def _pattern(name: str, regex: str, suggestion: str, *, case: bool = False) -> Pattern:
    # A phrase may be wrapped: a space in a pattern stands for any white space.
    flags = re.MULTILINE | (0 if case else re.IGNORECASE)
    return Pattern(name, re.compile(regex.replace(" ", r"\s+"), flags), suggestion)


_IS: Final = r"\b(?:is|are|was|were)"
_STARTS: Final = r"(?:\A[\s`*#\"'-]*|(?<=[.!;:]) |^[ \t]*[-*|][ \t]+|\n[ \t]*\n[ \t]*)"

PATTERNS: Final = (
    _pattern(
        "is no",
        rf"(?P<ok>there {_IS} no\b|{_IS} no (?:longer|more|less|fewer|\w+er than)\b)|{_IS} no\b",
        '"is not a …"',
    ),
    _pattern("is none", rf"(?P<ok>there {_IS} none\b)|{_IS} none\b", '"is not a valid …"'),
    _pattern(
        "is there",
        rf"(?P<ok>{_IS} there (?:a|an|any|no)\b)|(?:{_IS}|\bbe)(?:n't)?"
        r"(?: (?:not|no longer|still|already|never))? there\b",
        '"exists", "is missing"',
    ),
    _pattern(
        "stands",
        r"(?P<ok>\bstands? for\b)|\b(?:stand|stands|stood|standing)\b(?!-)",
        '"is", "appears"',
    ),
    _pattern("tell", r"\b(?:tell|tells|told|telling)\b", '"show", "report", "return"'),
    _pattern(
        "behind",
        r"(?P<ok>\bbehind (?:an?|the|your|its) (?:reverse )?(?:proxy|firewall|flag|scenes)\b"
        r"|\b(?:lags?|falls?|fell|lagging|falling) behind\b)|\bbehind\b",
        '"after"',
    ),
    _pattern("anew", r"\b(?:anew|afresh)\b", '"again"'),
    _pattern("meanwhile", r"(?P<ok>\bin the meanwhile\b)|\bmeanwhile\b", '"in the meantime"'),
    _pattern("beforehand", r"\bbeforehand\b", '"first"'),
    _pattern("whoever", r"\b(?:whoever|whosever|whomever)\b", '"anyone", or name the component'),
    _pattern(
        "What was",
        rf"{_STARTS}What (?!(?:happens|to|if|next|else|about|for)\b)[\w']+(?![^.!;:]*\?)",
        'name the thing: "messages", "results"',
        case=True,
    ),
    _pattern("go on", r"\b(?:go|goes|going|went|gone) on\b", '"continue", "resume"'),
    _pattern("so many", r"\bso many\b", '"N", "up to N"'),
    _pattern("by itself", r"\bby (?:itself|themselves)\b", '"automatically"'),
    _pattern(
        "British spelling",
        r"\b(?:colour|behaviour|favour|honour|neighbour|flavour|humour|rumour|labour|harbour)\w*"
        r"|\b(?:centre|centres|centred|metre|metres|litre|grey|greyed|catalogue\w*|analogue)\b"
        r"|\b(?:organis|recognis|normalis|serialis|initialis|optimis|summaris|tokenis|minimis"
        r"|maximis|emphasis(?=e|ing)|synchronis|customis|categoris|prioritis|utilis|analys(?=e|ing)"
        r"|paralys(?=e|ing)|authoris|finalis|standardis|sanitis|materialis)(?:e|ed|es|ing|ation|er)\w*"
        r"|\b(?:labell|travell|modell|signall|totall|cancell(?=ation)x|quarrell)(?:ed|ing)\b"
        r"|\b(?:whilst|amongst|artefacts?|judgement|defence|offence|licence|licences|fulfil|fulfils"
        r"|programmes?|learnt|spelt|burnt|sceptic\w*|practise\w*|ageing|mould\w*)\b",
        "American spelling",
    ),
    # Nouns that were renamed.
    _pattern("shelf", r"\b(?:shelf|shelves)\b", '"record", "records"'),
    _pattern("fence", r"(?P<ok>\bcode fences?\b)|\b(?:fence|fences|fenced)\b", '"delimiter"'),
    _pattern("errand", r"\berrands?\b", '"task"'),
    _pattern("sitting", r"\bsittings?\b", '"segment"'),
    _pattern("courier", r"\bcouriers?\b", '"delivery"'),
    _pattern("spool", r"\b(?:spool|spools|spooled)\b", '"outbox"'),
    _pattern("exchange", r"\bexchanges?\b", '"turn"'),
    _pattern(
        "fold",
        r"(?P<ok>\bcase[- ]fold\w*)|\b(?:fold|folds|folded|folding)\b",
        '"compact", "compaction"',
    ),
)


class Allowed(NamedTuple):
    """A phrase that is right where it is written."""

    file: str
    pattern: str
    phrase: str
    """Part of the line, so that other uses in the same file are still found."""
    reason: str


ALLOWED: Final[tuple[Allowed, ...]] = (
    Allowed(
        "src/keepthread/context/importance.py",
        "stands",
        "can['’]t stand",
        "a phrase that users write",
    ),
    Allowed(
        "src/keepthread/testing/finding.py",
        "stands",
        "A secret stands here.",
        "a text that is indexed and searched",
    ),
    Allowed(
        "src/keepthread/testing/finding.py",
        "stands",
        "tea secret stand safe here",
        "a text that is indexed and searched",
    ),
)


@dataclass(frozen=True, slots=True)
class Text:
    """Prose of one place, and the line number of each of its characters."""

    text: str
    lines: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Finding:
    """A phrase to rewrite."""

    file: str
    line: int
    pattern: str
    phrase: str
    sentence: str
    suggestion: str


# --- reading ---


def _located(pieces: Iterable[tuple[str, int]]) -> Text:
    """Join pieces of text, each with the number of its first line."""
    text: list[str] = []
    lines: list[int] = []
    for piece, first in pieces:
        line = first
        for character in piece:
            text.append(character)
            lines.append(line)
            line += character == "\n"
    return Text("".join(text), tuple(lines))


def _blank(match: re.Match[str]) -> str:
    return re.sub(r"[^\s`]", "x", match[0])


def without_code(text: str) -> str:
    """Replace code in backticks by `xxx` of the same length."""
    text = re.sub(r"``[^`]+``|`[^`\n]+(?:\n[^`\n]+)?`", _blank, text)
    return re.sub(r"https?://[^\s)>\"]+", _blank, text)


def python_prose(source: str) -> Iterator[Text]:
    """Yield the comments and strings of a Python file; neighbors are read as one text."""
    kind, pieces, last = "", list[tuple[str, int]](), 0
    skipped = (tokenize.NL, tokenize.NEWLINE)
    starts = {getattr(tokenize, "FSTRING_START", -1), getattr(tokenize, "FSTRING_END", -1)}
    middle = getattr(tokenize, "FSTRING_MIDDLE", -1)
    depth = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in starts:
            depth += 1 if token.type == getattr(tokenize, "FSTRING_START", -1) else -1
            continue
        if token.type == tokenize.COMMENT:
            text = token.string.lstrip("#!").removeprefix(":")
            found = ("comment", f"{text}\n")
        elif token.type == tokenize.STRING:
            found = ("string", _contents(token.string))
        elif token.type == middle:
            found = ("string", token.string)
        else:
            if token.type not in skipped and not depth:
                if pieces:
                    yield from _prose(kind, pieces)
                kind, pieces = "", []
            continue
        # Comments are one text only where they are on consecutive lines.
        apart = found[0] == "comment" and token.start[0] > last + 1
        if pieces and (found[0] != kind or apart):
            yield from _prose(kind, pieces)
            pieces = []
        kind, last = found[0], token.start[0]
        pieces.append((found[1], token.start[0]))
    if pieces:
        yield from _prose(kind, pieces)


def _contents(literal: str) -> str:
    """Return what is between the quotes; expressions of f-strings are left out."""
    match = re.match(r"(?s)([a-zA-Z]*)('''|\"\"\"|'|\")(.*)\2\Z", literal)
    assert match is not None, literal
    prefix, _, text = match.groups()
    if "f" in prefix.lower():
        text = re.sub(r"\{[^{}\n]*(?:\{[^{}\n]*\}[^{}\n]*)*\}", "{}", text)
    return text.replace("\\n", "\n ") if "r" not in prefix.lower() else text


def _prose(kind: str, pieces: list[tuple[str, int]]) -> Iterator[Text]:
    located = _located(pieces)
    # A string without a space is a name, not a sentence.
    if kind == "comment" or " " in located.text.strip():
        yield located


def markdown_prose(source: str) -> Iterator[Text]:
    """Yield the prose of a Markdown file as one text, code blocks left blank."""
    lines: list[str] = []
    fence = ""
    for line in source.splitlines():
        mark = re.match(r"\s*(```+|~~~+)", line)
        if fence:
            if mark and mark[1].startswith(fence):
                fence = ""
            lines.append("")
        elif mark:
            fence = mark[1]
            lines.append("")
        else:
            # A heading such as "What is stored" names a topic.
            prose = re.sub(r"\]\([^)]*\)", _blank, line)
            lines.append(re.sub(r"^(#+ )What\b", r"\1xxxx", prose))
    yield _located([("\n".join(lines), 1)])


def script_prose(source: str) -> Iterator[Text]:
    """Yield the comments of SQL and Lua files."""
    pieces: list[tuple[str, int]] = []
    for number, line in enumerate(source.splitlines(), start=1):
        comment = re.search(r"--+(?!\[)(.*)", line)
        if comment:
            pieces.append((f"{comment[1]}\n", number))
        elif pieces:
            yield _located(pieces)
            pieces = []
    if pieces:
        yield _located(pieces)


READERS: Final = {
    ".py": python_prose,
    ".md": markdown_prose,
    ".sql": script_prose,
    ".lua": script_prose,
}


# --- finding ---


def find(file: str, source: str, patterns: Iterable[Pattern] = PATTERNS) -> list[Finding]:
    """Return the phrases to rewrite in one file."""
    found: list[Finding] = []
    for prose in READERS[Path(file).suffix](source):
        text = without_code(prose.text)
        for pattern in patterns:
            for match in pattern.regex.finditer(text):
                if match.groupdict().get("ok"):
                    continue
                start = match.start() + len(match[0]) - len(match[0].lstrip(" \n\t-*|#`\"'"))
                phrase = " ".join(prose.text[start : match.end()].split())
                sentence = " ".join(prose.text[max(0, start - 40) : match.end() + 40].split())
                line = prose.lines[min(start, len(prose.lines) - 1)]
                found.append(
                    Finding(file, line, pattern.name, phrase, sentence, pattern.suggestion)
                )
    return sorted(found, key=lambda each: (each.line, each.pattern))


def sift(
    findings: Iterable[Finding], allowed: Iterable[Allowed] = ALLOWED
) -> tuple[list[Finding], list[Allowed]]:
    """Return what is not allowed, and the entries of the allow-list that nothing matches."""
    left: list[Finding] = []
    unused = list(allowed)
    for each in findings:
        for entry in allowed:
            named = (entry.file, entry.pattern) == (each.file, each.pattern)
            if named and entry.phrase in each.sentence:
                if entry in unused:
                    unused.remove(entry)
                break
        else:
            left.append(each)
    return left, unused


def all_files(root: Path = ROOT) -> list[Path]:
    """Return every file with prose of ours."""
    sources = (path for path in (root / "src").rglob("*") if path.suffix in READERS)
    return [
        *sorted(sources),
        *sorted((root / "docs").rglob("*.md")),
        *(root / name for name in PROSE),
    ]


def area(file: str) -> str:
    """Return the part of the repository that a count is shown for."""
    parts = Path(file).parts
    if parts[0] == "src":
        return "/".join(parts[2:4] if parts[2] in ("apps", "stores", "memory") else parts[2:3])
    return "/".join(parts[:2])


def within(named: Iterable[Path]) -> Iterator[Path]:
    """Yield the named files, and in named folders the files that are checked."""
    for path in named:
        if path.is_dir():
            yield from (file for file in all_files() if file.is_relative_to(path))
        else:
            yield path


def main(arguments: list[str]) -> int:
    """Check the files, and return the exit status."""
    parser = argparse.ArgumentParser(description="Find phrases that are not plain English.")
    parser.add_argument("files", nargs="*", type=Path, help="files and folders; none: all")
    parser.add_argument("--count", action="store_true", help="print counts only, and succeed")
    given = parser.parse_args(arguments)
    named = [path.resolve() for path in given.files]
    paths = [*within(named)] if named else all_files()
    findings: list[Finding] = []
    for path in paths:
        file = path.relative_to(ROOT).as_posix()
        findings += find(file, path.read_text(encoding="utf-8"))
    left, unused = sift(findings)
    if given.files or given.count:
        unused = []
    if given.count:
        for title, key in (("area", lambda f: area(f.file)), ("pattern", lambda f: f.pattern)):
            print(f"--- by {title}")
            for name, count in sorted(Counter(map(key, left)).items()):
                print(f"{count:6,}  {name}")
        print(f"{len(left):6,}  in all")
        return 0
    for each in left:
        print(f"{each.file}:{each.line}: {each.phrase!r} -> {each.suggestion}  […{each.sentence}…]")
    for entry in unused:
        print(
            f"allow-list: nothing matches any more: {entry.file}: {entry.pattern}: {entry.phrase}"
        )
    if left or unused:
        print(f"{len(left)} phrases to rewrite, {len(unused)} entries to drop", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
