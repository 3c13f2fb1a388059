"""Harmless text: no mark in it that a model's chat template would obey, and no fence."""

import re
from typing import Final

from keepthread.templates import escaped, read, reading, sendable

CUT: Final = "…"
_FENCE_LINE: Final = r"[(\[{](?=[^\n(\[{]{0,200}?\bquoted?\W{1,4}fence\b)"
"""The start of a line around a quotation, in a reading: only we write those."""
_AS_DIGITS: Final = str.maketrans("li|oszgq", "11105299")
"""Letters and signs that pass for digits; none of them is a hexadecimal digit itself."""


def harmless(text: str, fence: str = "") -> str:
    """Return a text without the fence, and with no mark that a chat template would obey.

    The first sign of such a mark is replaced by one that looks like it: `‹|im_start|>`.
    """
    text = sendable(text)  # whatever no wire carries may part what would be whole again
    return escaped(_without(text, fence) if fence else text)


# --- the fence, in whichever letters ---


def _without(text: str, fence: str) -> str:
    """Return a text without the fence, and without lines that look like those around a quotation.

    A model may have said the fence to somebody, and it may take `０ａ`, or the Cyrillic `а`, for
    `0a`.
    """
    text, fence = text.replace(fence, CUT), read(fence).translate(_AS_DIGITS)
    seen = read(text)
    if fence and fence in re.sub(r"[\W_]+", "", seen.translate(_AS_DIGITS)):
        text = _cut(text, fence)
        seen = read(text)
    if "fence" not in seen or not (found := list(re.finditer(_FENCE_LINE, seen))):
        return text
    places = [place for _, place in reading(text)]
    starts = {places[each.start()] for each in found}
    return "".join("‹" if place in starts else sign for place, sign in enumerate(text))


def _cut(text: str, fence: str) -> str:
    """Return a text without the fence, also where it is written in other letters."""
    signs = list(reading(text))
    seen = "".join(each for each, _ in signs).translate(_AS_DIGITS)
    parts: list[str] = []
    end = 0
    at = seen.find(fence)
    while at >= 0:
        parts += [text[end : signs[at][1]], CUT]
        end = signs[at + len(fence) - 1][1] + 1
        at = seen.find(fence, at + len(fence))
    return "".join([*parts, text[end:]])
