"""Server-sent events: the data of each event, from bytes that are split anywhere."""

from collections.abc import Sequence
from typing import Final

_MOST: Final = 32 * 2**20
"""Bytes of one event; a longer one is not an answer."""
_DATA: Final = b"data:"


class EventLines:
    """Finds events in a stream; keeps the bytes of the event that is not complete."""

    def __init__(self) -> None:
        """Start at the beginning of a stream."""
        self.overflowed = False
        """Whether an event was too long: then nothing more is found."""
        self._pending: list[bytes] = []
        self._data: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> list[bytes]:
        """Take bytes, and return the data of the events that are complete now."""
        if self.overflowed:
            return []
        self._pending.append(data)
        self._size += len(data)
        if b"\n" not in data and b"\r" not in data:
            lines: list[bytes] = []
        else:
            lines = b"".join(self._pending).splitlines(keepends=True)
            # A line may continue, and the second character of its end may be on the way.
            self._pending = [] if lines[-1].endswith(b"\n") else [lines.pop()]
        found = self._events(lines)
        self._size = sum(map(len, (*self._pending, *self._data))) if lines else self._size
        if self._size > _MOST:
            self.overflowed = True
            self._pending, self._data = [], []
        return found

    def finish(self) -> list[bytes]:
        """Return the data of the last event, if the stream ended without an empty line."""
        lines = b"".join(self._pending).splitlines()
        self._pending = []
        return self._events([*lines, b""])

    def _events(self, lines: Sequence[bytes]) -> list[bytes]:
        found: list[bytes] = []
        for line in lines:
            line = line.rstrip(b"\r\n").removeprefix(b"\xef\xbb\xbf")  # noqa: PLW2901
            if line.startswith(_DATA):
                self._data.append(line.removeprefix(_DATA).removeprefix(b" "))
            elif not line and self._data:
                found.append(b"\n".join(self._data))
                self._data = []
        return found
