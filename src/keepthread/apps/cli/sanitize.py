"""Stored text on its way to a terminal: nothing in it may move the cursor, colour or deceive."""

from typing import Final

_JOINERS: Final = "\u200c\u200d"  # scripts and emoji need them, and they move nothing


def harmless(text: str, *, lines: bool = False) -> str:
    """Return a text with control, bidirectional and broken characters written out.

    With `lines`, line breaks and tabs stay; otherwise it all comes on one line.
    """
    if text.isprintable():
        return text
    kept = f"{_JOINERS}\n\t" if lines else _JOINERS
    if lines:
        text = text.replace("\r\n", "\n")
    return "".join(c if c in kept or c.isprintable() or _is_blank(c) else _escaped(c) for c in text)


def _is_blank(char: str) -> bool:
    """Tell whether it is a space of some width, not a line or paragraph separator."""
    return char.isspace() and char > "\x9f" and char not in "\u2028\u2029"


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")
