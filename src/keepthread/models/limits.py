"""Limits of one answer: how many bytes it may have, and how long it may take in all."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

from keepthread.models.failures import Exceeded

MOST_BYTES: Final = 64 << 20
"""Of one answer as it arrives, unpacked: each token comes in some hundred bytes of JSON."""
MOST_LINE: Final = 8 << 20
"""Of one line of it."""
MOST_TEXT: Final = 1_000_000
"""Bytes of what an answer says: no more can be stored in one message."""
_SILENCES: Final = 3
"""After how many timeouts a server that only keeps the connection alive is given up."""
OVER: Final = object()
"""Comes after the last event."""


async def bound(response: Any) -> None:
    """Let no more be read of an HTTP response than an answer may have."""
    read = response.aiter_bytes

    async def aiter_bytes(chunk_size: int | None = None) -> AsyncIterator[bytes]:
        size = line = 0
        async for chunk in read(chunk_size):
            size += len(chunk)
            end = chunk.rfind(b"\n")
            line = line + len(chunk) if end < 0 else len(chunk) - end - 1
            if size > MOST_BYTES or line > MOST_LINE:
                most = MOST_BYTES if size > MOST_BYTES else MOST_LINE
                raise Exceeded(f"answers with more than {most >> 20} MB")
            yield chunk

    response.aiter_bytes = aiter_bytes


class Deadline:
    """How long the events of one answer may be waited for, over all tries together.

    What the caller does with an event takes none of this time.
    """

    def __init__(self, timeout: float, max_seconds: float) -> None:
        """Begin with nothing waited."""
        self._clock = asyncio.get_running_loop().time
        self._silence = _SILENCES * timeout
        self._most = max_seconds
        self._waited = 0.0

    async def event(self, events: AsyncIterator[Any]) -> Any:
        """Return the next event, or `OVER`."""
        began = self._clock()
        left = self._most - self._waited
        try:
            async with asyncio.timeout(min(self._silence, left)):
                return await anext(events, OVER)
        except TimeoutError:
            if left > self._silence:
                raise
            raise Exceeded(f"took more than {self._most:g} seconds to answer") from None
        finally:
            self._waited += self._clock() - began
