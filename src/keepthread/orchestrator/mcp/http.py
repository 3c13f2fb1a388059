"""HTTP for untrusted servers: answers are limited in size, not decompressed; refusals are noted."""

from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, Final, cast

if TYPE_CHECKING:
    import httpx2

MOST_BYTES: Final = 16 << 20
"""Bytes of one answer, or of one event of a stream, at most."""
_CONNECT: Final = 10.0
"""Seconds to connect to a server; a tool may take longer."""
_REFUSED: Final = 400


def bounded_client(
    headers: Mapping[str, str], refused: Callable[[int], object]
) -> "httpx2.AsyncClient":
    """Return a client that reports refusals, and stops reading an answer that is too large."""
    import httpx2  # noqa: PLC0415 - the SDK brings it

    class Bounded(httpx2.AsyncByteStream):
        def __init__(self, stream: httpx2.AsyncByteStream) -> None:
            self._stream = stream

        async def __aiter__(self) -> AsyncIterator[bytes]:
            left = MOST_BYTES
            async for chunk in self._stream:
                left -= len(chunk)
                if left < 0:
                    raise httpx2.StreamError(f"the answer is larger than {MOST_BYTES >> 20} MB")
                yield chunk

        async def aclose(self) -> None:
            await self._stream.aclose()

    async def bound(response: httpx2.Response) -> None:
        if response.status_code >= _REFUSED:
            refused(response.status_code)
        # A small compressed answer can be very large, and we did not ask for compression.
        response.headers.pop("content-encoding", None)
        if not response.headers.get("content-type", "").startswith("text/event-stream"):
            response.stream = Bounded(cast("httpx2.AsyncByteStream", response.stream))

    return httpx2.AsyncClient(
        headers={"accept-encoding": "identity", **headers},
        timeout=httpx2.Timeout(_CONNECT, read=None),
        event_hooks={"response": [bound]},
    )
