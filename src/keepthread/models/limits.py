"""Limits of one answer: its size in bytes, and the total time it may take."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

from keepthread.models.failures import LimitExceeded

MAX_BYTES: Final = 64 << 20
"""Bytes of one uncompressed response; each token takes a few hundred bytes of JSON."""
MAX_LINE: Final = 8 << 20
"""Bytes of one line of it."""
MAX_TEXT: Final = 1_000_000
"""Bytes of an answer's text: a message cannot store more."""
_SILENCES: Final = 3
"""Number of timeouts after which we stop waiting for a server that only keeps the connection."""
OVER: Final = object()
"""Returned after the last event."""


async def bound(response: Any) -> None:
    """Limit the bytes that are read from an HTTP response."""
    read = response.aiter_bytes

    async def aiter_bytes(chunk_size: int | None = None) -> AsyncIterator[bytes]:
        size = line = 0
        async for chunk in read(chunk_size):
            size += len(chunk)
            end = chunk.rfind(b"\n")
            line = line + len(chunk) if end < 0 else len(chunk) - end - 1
            if size > MAX_BYTES or line > MAX_LINE:
                limit = MAX_BYTES if size > MAX_BYTES else MAX_LINE
                raise LimitExceeded(f"returned more than {limit >> 20} MB")
            yield chunk

    response.aiter_bytes = aiter_bytes


class Deadline:
    """The total time to wait for the events of one answer, over all tries together.

    Time that the caller spends on an event does not count.
    """

    def __init__(self, timeout: float, max_seconds: float) -> None:
        """Start with the full time."""
        self._clock = asyncio.get_running_loop().time
        self._silence = _SILENCES * timeout
        self._max_seconds = max_seconds
        self._waited = 0.0

    async def event(self, events: AsyncIterator[Any]) -> Any:
        """Return the next event, or `OVER`."""
        began = self._clock()
        left = self._max_seconds - self._waited
        try:
            async with asyncio.timeout(min(self._silence, left)):
                return await anext(events, OVER)
        except TimeoutError:
            if left > self._silence:
                raise
            raise LimitExceeded(f"took more than {self._max_seconds:g} seconds to answer") from None
        finally:
            self._waited += self._clock() - began
