"""HTTP for servers that may answer anything: bounded, unpacked by nobody, refusals noted."""

from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, Final, cast

if TYPE_CHECKING:
    import httpx2

MOST_BYTES: Final = 16 << 20
"""Of one answer, or of one event of a stream."""
_CONNECT: Final = 10.0
"""Seconds to reach a server; how long a tool may take is another matter."""
_REFUSED: Final = 400


def bounded_client(
    headers: Mapping[str, str], refused: Callable[[int], object]
) -> "httpx2.AsyncClient":
    """Return a client that tells of what is refused, and reads no more of an answer than fits."""
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
        # Packed, a little can be very much; and nobody asked for it.
        response.headers.pop("content-encoding", None)
        if not response.headers.get("content-type", "").startswith("text/event-stream"):
            response.stream = Bounded(cast("httpx2.AsyncByteStream", response.stream))

    return httpx2.AsyncClient(
        headers={"accept-encoding": "identity", **headers},
        timeout=httpx2.Timeout(_CONNECT, read=None),
        event_hooks={"response": [bound]},
    )
