"""Sanitize stored text for a terminal: it must not move the cursor, change colors or deceive."""

from typing import Final

_JOINERS: Final = "\u200c\u200d"  # scripts and emoji need them, and they move nothing


def sanitize(text: str, *, lines: bool = False) -> str:
    """Return a text with control, bidirectional and broken characters written out.

    With `lines`, line breaks and tabs stay; otherwise the result is one line.
    """
    if text.isprintable():
        return text
    kept = f"{_JOINERS}\n\t" if lines else _JOINERS
    if lines:
        text = text.replace("\r\n", "\n")
    return "".join(c if c in kept or c.isprintable() or _is_blank(c) else _escaped(c) for c in text)


class StreamSanitizer:
    """Sanitizes a text that arrives in pieces, also if a line break is split between two."""

    def __init__(self) -> None:
        """Start with nothing held back."""
        self._held = ""

    def add(self, piece: str) -> str:
        """Return what may be shown now."""
        text = self._held + piece
        self._held = "\r" if text.endswith("\r") else ""
        return sanitize(text.removesuffix("\r"), lines=True)

    def rest(self) -> str:
        """Return what was held back."""
        return sanitize(self._held, lines=True)


def _is_blank(char: str) -> bool:
    """Return whether it is a space of some width, not a line or paragraph separator."""
    return char.isspace() and char > "\x9f" and char not in "\u2028\u2029"


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")
