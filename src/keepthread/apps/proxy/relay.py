"""Carries a request to its upstream and the response back, byte by byte as they come.

A request is sent once. Redirects are not followed, cookies are not kept, and nothing is buffered.
HTTP proxies and certificates named by the environment (`HTTPS_PROXY`, `NO_PROXY`, `SSL_CERT_FILE`)
are used, as other HTTP programs do.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import asynccontextmanager
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import httpx2

from keepthread.apps.proxy.errors import ClientLeft, ProxyError
from keepthread.apps.proxy.settings import ProxySettings
from keepthread.apps.proxy.tee import LOG, AnswerTee

if TYPE_CHECKING:
    from starlette.types import Receive, Send

HeaderList = list[tuple[bytes, bytes]]

_HOP_BY_HOP: Final = frozenset(
    {
        *(b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization"),
        *(b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade"),
    }
)
"""Headers of one connection, not of the message (RFC 9110, 7.6.1)."""
_OURS: Final = b"keepthread-"
_KEEP_ALIVE: Final = 20.0
_KEPT: Final = 50


class UpstreamCut(Exception):
    """The upstream ended in the middle of a response; the client's connection ends there, too."""


class UpstreamClient:
    """Sends requests to upstreams over a pool of connections."""

    def __init__(self, settings: ProxySettings) -> None:
        """Open nothing yet."""
        self._client = httpx2.AsyncClient(
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
            follow_redirects=False,
            timeout=httpx2.Timeout(
                settings.idle_timeout, connect=settings.connect_timeout, pool=None
            ),
            limits=httpx2.Limits(
                max_connections=None,
                max_keepalive_connections=_KEPT,
                keepalive_expiry=_KEEP_ALIVE,
            ),
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()

    @asynccontextmanager
    async def response(
        self,
        method: str,
        url: str,
        query: str,
        headers: HeaderList,
        body: "bytes | AsyncIterator[bytes]",
    ) -> AsyncGenerator[httpx2.Response]:
        """Send a request, and yield the response when its head has arrived."""
        request = httpx2.Request(method, url, headers=headers, content=body)
        # The path as the client wrote it: other libraries would write some characters differently.
        target = urlsplit(url).path + (f"?{query}" if query else "")
        request.extensions["target"] = target.encode("ascii")
        try:
            response = await self._client.send(request, stream=True)
        except httpx2.TimeoutException as error:
            raise ProxyError(504, "upstream_timeout", _late(error)) from None
        except httpx2.HTTPError as error:
            raise ProxyError(
                502,
                "upstream_unreachable",
                f"the provider cannot be reached ({type(error).__name__}); check the upstream that"
                " the proxy was started with.",
            ) from None
        try:
            yield response
        finally:
            await response.aclose()


def _late(error: httpx2.TimeoutException) -> str:
    if isinstance(error, httpx2.ConnectTimeout):
        return "connecting to the provider timed out."
    return "the provider's response timed out."


async def relay_body(response: httpx2.Response, send: "Send", tee: AnswerTee) -> None:
    """Send the body of a response as its bytes arrive, and read a copy."""
    try:
        async for data in response.aiter_raw():
            await send({"type": "http.response.body", "body": data, "more_body": True})
            tee.feed(data)
    except httpx2.HTTPError as error:
        LOG.warning("an upstream response was cut off: %s", type(error).__name__)
        raise UpstreamCut from None
    await send({"type": "http.response.body", "body": b""})


def upstream_headers(
    headers: Iterable[tuple[bytes, bytes]],
    *,
    secret: str = "",
    without: frozenset[bytes] = frozenset(),
    length: int | None = None,
) -> HeaderList:
    """Return the headers that go upstream: all but those of the connection and of keepthread.

    A header that holds the keepthread credential stays here, whatever its name. `length` is that of
    a body that was read whole.
    """
    given = [(name.lower(), value) for name, value in headers]
    left = _HOP_BY_HOP | _connection_headers(given) | without | {b"host", b"expect"}
    if length is not None:
        left |= {b"content-length"}
    hidden = secret.encode()
    kept = [
        (name, value)
        for name, value in given
        if name not in left and not name.startswith(_OURS) and not (hidden and hidden in value)
    ]
    return kept if length is None else [*kept, (b"content-length", str(length).encode())]


def client_headers(response: httpx2.Response) -> HeaderList:
    """Return the headers of a response that go to the client; the server adds its own date."""
    given = [(name.lower(), value) for name, value in response.headers.raw]
    left = _HOP_BY_HOP | _connection_headers(given) | {b"date"}
    return [
        (name, value) for name, value in given if name not in left and not name.startswith(_OURS)
    ]


def _connection_headers(headers: HeaderList) -> frozenset[bytes]:
    named = b",".join(value for name, value in headers if name == b"connection")
    return frozenset(each.strip().lower() for each in named.split(b",")) - {b""}


# --- the client's side ---


async def read_body(receive: "Receive", most: int) -> bytes:
    """Return the whole body of a request."""
    parts = [part async for part in body_parts(receive, most)]
    return parts[0] if len(parts) == 1 else b"".join(parts)


async def body_parts(receive: "Receive", most: int) -> AsyncIterator[bytes]:
    """Yield the body of a request as it arrives."""
    total, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientLeft
        more = message.get("more_body", False)
        part: bytes = message.get("body", b"")
        total += len(part)
        if total > most:
            raise ProxyError(
                413,
                "too_large",
                f"the body is larger than {most} bytes.",
                headers={"Connection": "close"},
            )
        if part:
            yield part


async def while_connected(receive: "Receive", work: "asyncio.Task[None]") -> None:
    """Wait for work that answers a client; cancel it at once if the client leaves."""
    watch = asyncio.create_task(_left(receive))
    try:
        await asyncio.wait((work, watch), return_when=asyncio.FIRST_COMPLETED)
    finally:
        left = not work.done()
        watch.cancel()
        work.cancel()
        await asyncio.wait((work, watch))
    if left and work.cancelled():
        raise ClientLeft
    work.result()


async def _left(receive: "Receive") -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
