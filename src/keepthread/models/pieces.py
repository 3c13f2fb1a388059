"""What arrives: a text in pieces, names, numbers."""

import re
from typing import Final

from keepthread.models.failures import Exceeded
from keepthread.models.limits import MOST_TEXT

_SURROGATE: Final = "[\ud800-\udfff]"
_OPENS: Final = "[\ud800-\udbff]$"


class Pieces:
    """What was said so far. Half of a character waits for its other half."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._said: list[str] = []
        self._half = ""
        self._size = 0

    def add(self, piece: str) -> str:
        """Take a piece, and return what can be passed on."""
        piece = self._half + piece
        self._half = ""
        if not piece.isascii() and re.search(_SURROGATE, piece):
            # Some servers cut between the halves of a pair.
            piece = piece.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
            if re.search(_OPENS, piece):
                piece, self._half = piece[:-1], piece[-1]
        self._size += len(piece.encode("utf-8", "surrogatepass"))
        if self._size > MOST_TEXT:
            raise Exceeded("gives an answer longer than 1 MB")
        self._said.append(piece)
        return piece

    def rest(self) -> str:
        """Return the half whose other half never came."""
        half, self._half = self._half, ""
        self._said.append(half)
        return half

    @property
    def text(self) -> str:
        """Return all that was said."""
        return "".join(self._said) + self._half


def text_of(given: object) -> str:
    """Return a text that may be left out; raise `TypeError` if it is something else."""
    if given is None or isinstance(given, str):
        return given or ""
    raise TypeError("no text")


def count_of(given: object) -> int:
    """Return a number of tokens that may be left out."""
    return given if isinstance(given, int) and given >= 0 else 0
