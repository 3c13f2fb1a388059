"""The connection to a keepthread server: requests that may be repeated, and errors as raised there.

A request is repeated if the server is busy, away or cut off. That is safe: messages get their ids
before they are sent, and a write that would count twice carries an `Idempotency-Key`. One that
takes long is sent again until it is done.
"""

import asyncio
import json
import random
import re
import time
from collections.abc import AsyncGenerator, AsyncIterable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast
from urllib.parse import quote, urlsplit

from keepthread import errors
from keepthread.errors import Denied, InvalidInput, KeepthreadError, Unavailable, Unsupported
from keepthread.memory.remote.values import from_json
from keepthread.stores.codec import new_id
from keepthread.types import JSON, Page

if TYPE_CHECKING:
    import httpx2

T = TypeVar("T")

OWNER_HEADER: Final = "Keepthread-Owner"
_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
_TIMEOUT: Final = 30.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0
_ONCE: Final = frozenset({"DELETE", "PATCH"})
"""Methods whose second request would fail: the thing is gone, or has changed."""
_REPEATED: Final = frozenset({409, 429, 502, 503, 504})
"""Status codes after which a request is retried: the server was busy, unavailable, or still working
on it."""
_ACCEPTED: Final = 202
"""Status of a request that takes long: sent again, it gets its response once there is one."""
_SURROGATES: Final = re.compile("[\ud800-\udfff]")
_PAIR: Final = re.compile("[\ud800-\udbff][\udc00-\udfff]")
_IN_FLIGHT: Final = "request_in_flight"
_CONFLICT: Final = 409
_REFUSED: Final = frozenset({401, 403})
_INVALID: Final = frozenset({400, 413, 415, 422, 431})


def segment(id: str) -> str:
    """Return an id as one segment of a path; dots alone would be taken for folders."""
    return quote(id, safe="", errors="surrogatepass") if id.strip(".") else id.replace(".", "%2E")


@dataclass(frozen=True)
class ApiRequest:
    """A request: its method, its path, and what it carries."""

    method: str
    path: str
    body: Any = None
    query: Mapping[str, Any] | None = None
    headers: Mapping[str, str] | None = None
    once: bool = False
    """Whether doing it twice would differ from doing it once, as DELETE and PATCH always do."""


class ServerConnection:
    """Sends requests to one server, with one key."""

    def __init__(
        self,
        url: str,
        key: str,
        *,
        timeout: float | None = None,
        transport: "httpx2.AsyncBaseTransport | None" = None,
    ) -> None:
        """Check the address, and connect at the first request."""
        check_address(url, key)
        if find_spec("httpx2") is None:
            raise Unsupported(
                "connecting to a keepthread server needs httpx2: pip install 'keepthread[remote]'"
            )
        import httpx2  # noqa: PLC0415 - what the extra brings

        self._errors = httpx2.TransportError
        self._wait = _TIMEOUT if timeout is None else timeout
        self._client = httpx2.AsyncClient(
            base_url=f"{url.rstrip('/')}/v1",
            headers={"Authorization": f"Bearer {key}"},
            timeout=self._wait,
            transport=transport,
            follow_redirects=False,  # the key is for this server alone
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    # --- requests ---

    async def send(self, route: ApiRequest) -> "httpx2.Response":
        """Send a request, again if need be, and return the response; raise its error."""
        headers = dict(route.headers or {})
        if route.once or route.method in _ONCE:
            headers["Idempotency-Key"] = new_id()
        content = None if route.body is None else encoded(route.body)
        if content is not None:
            headers["Content-Type"] = "application/json"
        query = {name: _text(value) for name, value in (route.query or {}).items()}
        end = time.monotonic() + self._wait
        for pause in _pauses():
            try:
                response = await self._client.request(
                    route.method, route.path, content=content, params=query, headers=headers
                )
            except self._errors as error:
                if time.monotonic() + pause > end:
                    raise Unavailable(
                        f"the server does not answer ({type(error).__name__}); acknowledged writes "
                        "are stored"
                    ) from None
                await asyncio.sleep(pause)
                continue
            if response.status_code == _ACCEPTED:
                # The server is working on it, so it is available.
                end = time.monotonic() + self._wait
                await asyncio.sleep(max(pause, _retry_after(response)))
                continue
            if response.is_success:
                return response
            wait = max(pause, _retry_after(response))
            if not _is_repeated(response) or time.monotonic() + wait > end:
                raise error_of(response)
            await asyncio.sleep(wait)
        raise AssertionError("pauses never end")

    async def json(self, route: ApiRequest) -> Any:
        """Send a request, and return the JSON of the response, or None if there is none."""
        response = await self.send(route)
        return json.loads(response.content) if response.content else None

    async def get(self, kind: type[T], route: ApiRequest) -> T:
        """Send a request whose response is a value of a public type."""
        return from_json(kind, await self.json(route))

    async def page(self, kind: type[T], route: ApiRequest) -> Page[T]:
        """Send a request whose response is a page of values."""
        found = await self.json(route)
        return Page([from_json(kind, each) for each in found["items"]], cursor=found["next"])

    @asynccontextmanager
    async def stream(self, route: ApiRequest) -> AsyncGenerator["httpx2.Response"]:
        """Send a request whose response is read piece by piece; it is not repeated."""
        query = {name: _text(value) for name, value in (route.query or {}).items()}
        asked = self._client.stream(
            route.method, route.path, params=query, headers=dict(route.headers or {})
        )
        try:
            async with asked as response:
                if not response.is_success:
                    await response.aread()
                    raise error_of(response)
                yield response
        except self._errors as error:
            raise Unavailable(
                f"the server's response was cut off ({type(error).__name__})"
            ) from None

    async def upload(
        self, route: ApiRequest, data: bytes | AsyncIterable[bytes], media_type: str
    ) -> Any:
        """Send bytes or a stream, once: a stream cannot be read twice."""
        headers = {**(route.headers or {}), "Content-Type": media_type}
        try:
            response = await self._client.request(
                route.method, route.path, content=data, params=route.query, headers=headers
            )
        except self._errors as error:
            raise Unavailable(f"the upload failed ({type(error).__name__})") from None
        if not response.is_success:
            raise error_of(response)
        return json.loads(response.content)


def check_address(url: str, key: object) -> None:
    """Refuse a URL that would expose the key, and a missing key."""
    if not isinstance(key, str) or not key:
        raise InvalidInput(
            "a keepthread server requires a key: Memory.open(url, key=…); create one on the server "
            "with `keepthread keys create NAME`"
        )
    parts = urlsplit(url)
    if parts.username is not None or parts.query or parts.fragment:
        raise InvalidInput(
            "a server's URL must not contain a user name, password, query or fragment"
        )
    if parts.scheme == "http" and parts.hostname not in _LOOPBACK:
        raise InvalidInput(
            "http:// would expose the key on the network; use https://, or an address of this "
            "machine"
        )


def encoded(body: Any) -> bytes:
    """Return a body as JSON; a lone surrogate, which UTF-8 does not have, is escaped."""
    try:
        text = json.dumps(body, ensure_ascii=False, allow_nan=False)
        if text.isascii() or not _SURROGATES.search(text):
            return text.encode()
        if _PAIR.search(text):
            raise InvalidInput(
                "a text has both halves of a surrogate pair as two characters; JSON would make"
                " them one: decode the text as UTF-16 first"
            )
        return json.dumps(body, allow_nan=False).encode()
    except InvalidInput:
        raise
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(f"this cannot be sent as JSON: {error}") from None


def given(**values: JSON) -> dict[str, JSON]:
    """Return the values that are not None."""
    return {name: value for name, value in values.items() if value is not None}


def _text(value: Any) -> Any:
    return str(value).lower() if isinstance(value, bool) else value


def _pauses() -> Iterator[float]:
    """Yield the delays between attempts: exponential, with jitter."""
    pause = _FIRST_PAUSE
    while True:
        yield pause * random.uniform(0.5, 1.0)  # noqa: S311 - so that clients do not come together
        pause = min(2 * pause, _LONGEST_PAUSE)


def _retry_after(response: "httpx2.Response") -> float:
    try:
        return float(response.headers.get("Retry-After", 0))
    except ValueError:
        return 0.0


def _is_repeated(response: "httpx2.Response") -> bool:
    if response.status_code == _CONFLICT:
        return _problem(response).get("type") == _IN_FLIGHT
    return response.status_code in _REPEATED


# --- errors ---


def error_of(response: "httpx2.Response") -> KeepthreadError:
    """Return the error that a response stands for, of the type that it had on the server."""
    problem = _problem(response)
    code, detail = str(problem.get("type", "")), str(problem.get("detail", ""))
    status = response.status_code
    kind = _by_code().get(code)
    if kind is not None:
        return kind(detail)
    detail = detail or f"the server answered with status {status}"
    if status in _REFUSED:
        return Denied(f"{detail} ({code})")
    if status in _INVALID:
        places = [
            f"{each.get('pointer') or each.get('parameter')}: {each.get('detail')}"
            for each in problem.get("errors", ())
        ]
        return InvalidInput("; ".join([detail, *places]))
    return Unavailable(detail)


def _problem(response: "httpx2.Response") -> Mapping[str, Any]:
    try:
        found = json.loads(response.content)
    except ValueError:
        return {}
    return cast(Mapping[str, Any], found) if isinstance(found, dict) else {}


def _by_code() -> dict[str, type[KeepthreadError]]:
    kinds = [each for each in vars(errors).values() if isinstance(each, type)]
    return {kind.code: kind for kind in kinds if issubclass(kind, KeepthreadError)}
