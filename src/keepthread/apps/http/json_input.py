"""Bodies of requests: their size and media type, and JSON that has one meaning only.

Two parsers may read the same bytes differently: the first or the last of two equal keys, UTF-16,
`NaN`. Such a body is refused, as is one that is compressed, deeply nested or has too many values.
JSON is read whole, so that a handler begins only with a body that arrived; other bodies are counted
as they stream. The memory of bodies is bounded for each key and in total.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NoReturn, cast

from keepthread.apps.http.caller import identity_of
from keepthread.apps.http.problems import Problem
from keepthread.apps.http.settings import KIB, MIB, HttpSettings

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

RAW_PATHS: Final = ("/v1/blobs",)
"""Paths whose body is raw bytes of any media type (even JSON): stored, not parsed."""
PASSED_PATHS: Final = ("/proxy/",)
"""Where a body belongs to another API, and is relayed byte by byte."""
_JSON: Final = frozenset({"application/json", "application/merge-patch+json"})
_BODY: Final = "keepthread_body"
_FREE: Final = 64 * KIB
"""Bytes of each body that are not counted: small requests pass beside large ones."""
_FEW: Final = 1000
"""Values of JSON that are not counted."""
_TEXT: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)', re.DOTALL)
"""A text in JSON; one that does not end lasts until the end of the body."""
_ITEM: Final = 100
"""Bytes of memory that a value of JSON takes."""


class ClientGone(Exception):
    """The client closed the connection before its body was complete; no response is needed."""


class JsonInput:
    """Reads and checks bodies before any handler sees them."""

    def __init__(self, app: "ASGIApp", settings: HttpSettings) -> None:
        """Wrap an application."""
        self._app = app
        self._settings = settings
        self._held = HeldBodies(settings.key_bodies, settings.all_bodies)

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        """Check the body of one request."""
        if scope["type"] != "http" or not has_body(scope):
            await self._app(scope, receive, send)
            return
        identity = identity_of(scope)
        with self._held.of(f"{identity.tenant} {identity.key_id}" if identity else "") as hold:
            await self._checked(scope, receive, send, hold)

    async def _checked(
        self, scope: "Scope", receive: "Receive", send: "Send", hold: "Hold"
    ) -> None:
        if scope["path"].startswith(PASSED_PATHS):
            most = self._declared(scope, self._settings.max_upload)
            await self._app(scope, _counted(receive, most, hold), send)
            return
        if _header(scope, b"content-encoding") not in ("", "identity"):
            raise Problem(
                415,
                "unsupported_encoding",
                "Send the body without compression.",
                headers={"Accept-Encoding": "identity"},
            )
        if scope["path"].startswith(RAW_PATHS):
            most = self._declared(scope, self._settings.max_upload)
            await self._app(scope, _counted(receive, most), send)
        elif _is_json(scope):
            most = self._declared(scope, self._settings.max_json)
            body = await _read(_counted(receive, most, hold))
            hold(_ITEM * check_json(body, self._settings.max_depth, self._settings.max_items))
            scope.setdefault("state", {})[_BODY] = body
            await self._app(scope, _again(body, receive), send)
        else:
            raise Problem(
                415,
                "unsupported_media_type",
                "Send JSON, with the header `Content-Type: application/json`.",
                headers={"Accept": "application/json"},
            )

    def _declared(self, scope: "Scope", most: int) -> int:
        """Return the limit; refuse a body at once that announces to be larger."""
        text = _header(scope, b"content-length")
        if text.isdecimal() and int(text) > most:
            raise too_large(most)
        return most


Hold = Callable[[int], None]
"""Notes that a request holds that many more bytes, or raises the problem of too many."""


class HeldBodies:
    """Counts the bytes that running requests hold of their bodies, by key and in total."""

    def __init__(self, key: int, total: int) -> None:
        """Take how many bytes one key and all keys may hold."""
        self._key = key
        self._total = total
        self._held: Counter[str] = Counter()

    @contextmanager
    def of(self, name: str) -> Generator[Hold]:
        """Yield what counts the bytes of one request of a key, until the block ends."""
        size = counted = 0

        def hold(more: int) -> None:
            nonlocal size, counted
            size += more
            new = max(0, size - _FREE) - counted
            if self._held[name] + new > self._key:
                raise _holds_too_much(self._key)
            if self._held.total() + new > self._total:
                raise _full()
            self._held[name] += new
            counted += new

        try:
            yield hold
        finally:
            self._held[name] -= counted
            if not self._held[name]:
                del self._held[name]


def body_of(scope: "Scope") -> bytes | None:
    """Return the body of a request: None if it is not JSON, empty if there is none."""
    if not has_body(scope):
        return b""
    return scope.get("state", {}).get(_BODY)


def check_json(body: bytes, max_depth: int, max_items: int) -> int:
    """Refuse a body that is not JSON, or not JSON with one meaning only; return its values.

    They are counted before they take time and memory. Few are not counted, but returned as 0.
    """
    items = _count_items(body)
    if items > max_items:
        if b"[" * (max_depth + 1) in body:  # reading the rest would show no more
            raise _too_deep(max_depth)
        raise Problem(413, "too_large", f"The body has more than {max_items} JSON values.")
    try:
        value = json.loads(
            body.decode(), object_pairs_hook=_unique, parse_constant=_refuse_constant
        )
    except RecursionError:
        raise _too_deep(max_depth) from None
    except ValueError:  # the text of the error may quote the body
        raise Problem(400, "invalid_json", "The body is not JSON in UTF-8.") from None
    # Only a body with that many brackets can be that deep.
    if body.count(b"[") + body.count(b"{") > max_depth and _is_deeper(value, max_depth):
        raise _too_deep(max_depth)
    return items


def _count_items(body: bytes) -> int:
    """Return how many values a body has, those of an object with those inside of it."""
    if _signs(body) < _FEW:
        return 0
    return 1 + _signs(_TEXT.sub(b"", body))


def _signs(body: bytes) -> int:
    """Return how often a value begins, but for the first; what is in texts counts, too."""
    return body.count(b",") + body.count(b"[") + body.count(b"{")


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise Problem(400, "duplicate_key", "An object of the body has the same key twice.")
    return found


def _refuse_constant(_: str) -> NoReturn:
    raise ValueError


def _is_deeper(value: object, most: int) -> bool:
    level: list[Any] = [value]
    for _ in range(most):
        level = [
            child for each in level for child in _children(each) if isinstance(child, dict | list)
        ]
        if not level:
            return False
    return True


def _children(value: object) -> Sequence[object]:
    if isinstance(value, dict):
        return list(cast("dict[str, object]", value).values())
    return cast("list[object]", value) if isinstance(value, list) else ()


def has_body(scope: "Scope") -> bool:
    """Return whether a request declares a body."""
    length = _header(scope, b"content-length")
    return length not in ("", "0") or bool(_header(scope, b"transfer-encoding"))


def _is_json(scope: "Scope") -> bool:
    kind, *parameters = _header(scope, b"content-type").lower().split(";")
    charsets = [each.strip() for each in parameters if each.strip().startswith("charset=")]
    plain = all(each.removeprefix("charset=").strip('"') == "utf-8" for each in charsets)
    return kind.strip() in _JSON and plain


def _header(scope: "Scope", name: bytes) -> str:
    found = (value for key, value in scope["headers"] if key.lower() == name)
    return next(found, b"").decode("latin-1").strip()


async def _read(receive: "Receive") -> bytes:
    parts: list[bytes] = []
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(parts)


def _counted(receive: "Receive", most: int, hold: Hold | None = None) -> "Receive":
    """Return `receive`, which stops at a limit, and where the client is gone."""
    total, complete = 0, False

    async def counted() -> "Message":
        nonlocal total, complete
        message = await receive()
        if message["type"] == "http.disconnect" and not complete:
            raise ClientGone
        if message["type"] == "http.request":
            total += len(message.get("body", b""))
            complete = not message.get("more_body", False)
            if total > most:
                raise too_large(most)
            if hold is not None:
                hold(len(message.get("body", b"")))
        return message

    return counted


def _again(body: bytes, receive: "Receive") -> "Receive":
    """Return `receive` for a body that was read; then it waits for the client to go."""
    given = False

    async def again() -> "Message":
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


def too_large(most: int) -> Problem:
    """Return the problem of a body that is larger than `most` bytes."""
    return Problem(
        413,
        "too_large",
        f"The body is larger than {most} bytes.",
        headers={"Connection": "close"},
    )


def _holds_too_much(most: int) -> Problem:
    return Problem(
        429,
        "too_many_requests",
        f"The open requests of this key have bodies of {most // MIB} MiB, its limit; retry later.",
        headers={"Connection": "close", "Retry-After": "1"},
        retryable=True,
    )


def _full() -> Problem:
    return Problem(
        503,
        "overloaded",
        "The server holds as many bodies as it may; retry later.",
        headers={"Connection": "close", "Retry-After": "1"},
        retryable=True,
    )


def _too_deep(most: int) -> Problem:
    return Problem(400, "too_deep", f"The body is nested more deeply than {most} levels.")
