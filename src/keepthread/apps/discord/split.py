"""A long answer in parts that fit: cut between paragraphs, lines or words, keeping code fences."""

import re
import unicodedata
from typing import Final

LIMIT: Final = 2000
_FENCE: Final = re.compile(r"`{3,}((?:[\w+#.-]{1,20}(?=\n))?)", re.ASCII)
_RUN: Final = re.compile("`{3,}")
_LONGEST_RUN: Final = 16
_LONG_RUN: Final = re.compile("`{17,}")
_OPENING: Final = "```"
_CLOSING: Final = "\n```"
_TRAILING: Final = "\u0e33\u0eb3\uff9e\uff9f\u200c\u200d"
"""Characters that belong to the one before though not marks: vowels, sound marks, joiners."""
_LEADING: Final = (
    "\u0d4e\U000111c2\U000111c3\U0001193f\U00011941\U00011a84\U00011a85\U00011a86\U00011a87"
    "\U00011a88\U00011a89\U00011d46\U00011f02"
)
"""Letters that belong to the character after them."""
_VIRAMA: Final = 9
"""The combining class of the sign that joins two consonants."""


def parts(text: str, limit: int = LIMIT) -> list[str]:
    """Split a text into parts of at most `limit` UTF-16 units, none of them blank.

    A code fence that is open at a cut is closed there, and opened again after it. Runs of
    more than 16 backticks are shortened to 16: repeated in each part, they would fill it.
    """
    found: list[str] = []
    rest, fence = _LONG_RUN.sub("`" * _LONGEST_RUN, text).strip("\n"), ""
    while rest.strip():
        head = f"{fence}\n" if fence else ""
        end = _end(rest, limit - len(head), fence)
        piece, rest = rest[:end].rstrip(), rest[end:].removeprefix(" ").lstrip("\n")
        fence = _open_after(piece, fence)
        if piece:
            found.append(f"{head}{piece}{_CLOSING if fence else ''}")
        if fence and (closed := _RUN.match(rest)):
            rest, fence = rest[closed.end() :].lstrip("\n"), ""
    return found


def _end(text: str, room: int, fence: str) -> int:
    """Return where to cut a text of which no more than `room` fits; its length if all does."""
    if _fitting(text, room) == len(text) and not _open_after(text, fence):
        return len(text)
    end = _cut(text, _fitting(text, room))
    if _open_after(text[:end], fence):
        end = _cut(text, _fitting(text, room - len(_CLOSING)))
    fences = list(_FENCE.finditer(text, 0, end))
    opens = len(fences) % 2 == (0 if fence else 1)
    if fences and opens and fences[-1].start() and not text[fences[-1].end() : end].strip():
        return fences[-1].start()  # no code fence is opened in front of a cut
    return end


def _open_after(text: str, fence: str) -> str:
    """Return how to reopen the code fence that is open after a text; empty if none is."""
    for found in _FENCE.finditer(text):
        fence = "" if fence else f"{_OPENING}{found[1]}"
    return fence


def _fitting(text: str, room: int) -> int:
    """Return how many characters fit into a number of UTF-16 units."""
    units = 0
    for at, character in enumerate(text[: room + 1]):
        units += 2 if character > "\uffff" else 1
        if units > room:
            return at
    return len(text)


def _cut(text: str, end: int) -> int:
    """Return the best place for a cut at or before `end`, with a good part of it in front."""
    if end == len(text):
        return end
    for border, least in (("\n\n", end // 2), ("\n", end // 4), (" ", end // 4)):
        if (at := text.rfind(border, least, end + len(border))) > 0:
            return at
    at = end
    while at and _joined(text, at):
        at -= 1
    return at or end


def _joined(text: str, at: int) -> bool:
    """Return whether a cut would split one visible character or a run of backticks.

    When in doubt it returns True; the cut is then a little earlier.
    """
    before, behind = text[at - 1], text[at]
    kind = unicodedata.category(behind)
    return (
        kind.startswith("M")
        or behind in _TRAILING
        or before in _LEADING
        or _is_emoji_part(behind)
        or unicodedata.category(before) == "Cf"
        or unicodedata.combining(before) == _VIRAMA
        or (before in "\r`" and behind in "\n`")
        or (_is_jamo(before) and _is_hangul(behind))
        or (_is_hangul(before) and _is_jamo(behind))
        or (_is_flag(behind) and _flags_before(text, at) % 2 == 1)
    )


def _is_emoji_part(character: str) -> bool:
    """Return whether it colors the emoji before it, or spells a flag after it."""
    return "\U0001f3fb" <= character <= "\U0001f3ff" or "\U000e0020" <= character <= "\U000e007f"


def _is_jamo(character: str) -> bool:
    return "\u1100" <= character <= "\u11ff" or _is_later_jamo(character)


def _is_later_jamo(character: str) -> bool:
    return "\ua960" <= character <= "\ua97c" or "\ud7b0" <= character <= "\ud7fb"


def _is_hangul(character: str) -> bool:
    return _is_jamo(character) or "\uac00" <= character <= "\ud7a3"


def _is_flag(character: str) -> bool:
    return "\U0001f1e6" <= character <= "\U0001f1ff"


def _flags_before(text: str, at: int) -> int:
    """Return how many flag letters precede a position: two make a flag."""
    count = 0
    while count < at and _is_flag(text[at - 1 - count]):
        count += 1
    return count
