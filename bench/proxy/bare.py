"""A bare relay on httpx2 and uvicorn: `python -m bench.proxy.bare PORT UPSTREAM`.

It is what a proxy costs that knows nothing: the same server, the same client, the same bytes.
"""

import sys
from typing import Any

import httpx2
import uvicorn

_LEFT = {b"host", b"connection", b"content-length", b"transfer-encoding", b"date"}


class BareRelay:
    """Relays requests to one upstream."""

    def __init__(self, upstream: str) -> None:
        self._upstream = upstream
        self._client = httpx2.AsyncClient(
            timeout=600, limits=httpx2.Limits(max_connections=None, max_keepalive_connections=50)
        )

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Relay one request."""
        parts, more = list[bytes](), True
        while more:
            message = await receive()
            parts.append(message.get("body", b""))
            more = message.get("more_body", False)
        headers = [each for each in scope["headers"] if each[0] not in _LEFT]
        url = self._upstream + scope["path"]
        request = httpx2.Request(scope["method"], url, headers=headers, content=b"".join(parts))
        response = await self._client.send(request, stream=True)
        shown = [each for each in response.headers.raw if each[0].lower() not in _LEFT]
        await send(
            {"type": "http.response.start", "status": response.status_code, "headers": shown}
        )
        async for data in response.aiter_raw():
            await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
        await response.aclose()


if __name__ == "__main__":
    uvicorn.run(
        BareRelay(sys.argv[2]),
        port=int(sys.argv[1]),
        log_level="critical",
        lifespan="off",
        http="h11",
        ws="none",
        timeout_keep_alive=75,
        backlog=1024,
    )
