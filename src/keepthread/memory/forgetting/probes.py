"""Probes: pieces of forgotten text that files are searched for; they are not stored."""

import re
from collections.abc import Iterator, Sequence
from typing import Final

from keepthread.types import Message

LEAST: Final = 16
"""Bytes of the shortest piece that is searched for."""
MOST: Final = 24
"""Pieces that are searched for at most: each means reading every file once more."""
_LONGEST: Final = 64
_RUN: Final = re.compile(r"[^\x00-\x1f\x7f\"\\\ud800-\udfff]+")
"""Text that is the same in JSON and in a message."""


class Probes:
    """The most distinctive pieces of many texts."""

    def __init__(self) -> None:
        """Begin with none."""
        self._best: dict[bytes, int] = {}

    def offer(self, message: Message) -> None:
        """Take the most distinctive piece of a message, if it has one."""
        if pieces := pieces_of(message):
            piece = max(pieces, key=_distinctiveness)
            self._best[piece] = _distinctiveness(piece)
        if len(self._best) > 2 * MOST:
            self._best = dict(self._in_order()[:MOST])

    def chosen(self) -> list[bytes]:
        """Return the pieces to search for."""
        return [piece for piece, _ in self._in_order()[:MOST]]

    def _in_order(self) -> list[tuple[bytes, int]]:
        return sorted(self._best.items(), key=lambda each: -each[1])


def pieces_of(message: Message) -> list[bytes]:
    """Return the pieces of a message that are long enough to be searched for."""
    return [piece for text in texts_of(message) for piece in _pieces(text)]


def held_by(message: Message, probes: Sequence[bytes]) -> set[bytes]:
    """Return the pieces that a message contains."""
    data = "\0".join(texts_of(message)).encode("utf-8", "surrogatepass")
    return {probe for probe in probes if probe in data}


def texts_of(message: Message) -> Iterator[str]:
    """Yield the texts of a message: its content, and the arguments of its calls."""
    if message.content:
        yield message.content
    for call in message.tool_calls:
        yield call.arguments


def _pieces(text: str) -> Iterator[bytes]:
    """Yield pieces of a text, none of them too short."""
    for run in _RUN.findall(text):
        data = run.encode()
        for start in range(0, len(data), _LONGEST):
            piece = _whole_characters(data[start : start + _LONGEST])
            if len(piece) >= LEAST:
                yield piece


def _whole_characters(data: bytes) -> bytes:
    """Return bytes without the halves of characters at their ends."""
    return data.decode("utf-8", "ignore").encode()


def _distinctiveness(piece: bytes) -> int:
    """Return how distinctive a piece is: the number of its different characters."""
    return len(set(piece.decode()))
