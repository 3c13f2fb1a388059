"""Bodies of requests: their size and media type, and JSON that has one meaning only.

Two parsers may read the same bytes differently: the first or the last of two equal keys, UTF-16,
`NaN`. Such a body is refused, as is one that is compressed or deeply nested. JSON is read whole, so
that a handler begins only with a body that arrived; other bodies are counted as they stream.
"""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NoReturn, cast

from keepthread.apps.http.problems import Problem
from keepthread.apps.http.settings import HttpSettings

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

RAW_PATHS: Final = ("/v1/blobs",)
"""Paths whose body is raw bytes of any media type (even JSON): stored, not parsed."""
PASSED_PATHS: Final = ("/proxy/",)
"""Where a body belongs to another API, and is relayed byte by byte."""
_JSON: Final = frozenset({"application/json", "application/merge-patch+json"})
_BODY: Final = "keepthread_body"


class ClientGone(Exception):
    """The client closed the connection before its body was complete; no response is needed."""


class JsonInput:
    """Reads and checks bodies before any handler sees them."""

    def __init__(self, app: "ASGIApp", settings: HttpSettings) -> None:
        """Wrap an application."""
        self._app = app
        self._settings = settings

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        """Check the body of one request."""
        if scope["type"] != "http" or not _has_body(scope):
            await self._app(scope, receive, send)
            return
        if scope["path"].startswith(PASSED_PATHS):
            most = self._declared(scope, self._settings.max_upload)
            await self._app(scope, _counted(receive, most), send)
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
            body = await _read(receive, self._declared(scope, self._settings.max_json))
            check_json(body, self._settings.max_depth)
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
            raise _too_large(most)
        return most


def body_of(scope: "Scope") -> bytes | None:
    """Return the body of a request: None if it is not JSON, empty if there is none."""
    if not _has_body(scope):
        return b""
    return scope.get("state", {}).get(_BODY)


def check_json(body: bytes, max_depth: int) -> None:
    """Refuse a body that is not JSON, or not JSON with one meaning only."""
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


def _has_body(scope: "Scope") -> bool:
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


async def _read(receive: "Receive", most: int) -> bytes:
    counted = _counted(receive, most)
    parts: list[bytes] = []
    while True:
        message = await counted()
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(parts)


def _counted(receive: "Receive", most: int) -> "Receive":
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
                raise _too_large(most)
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


def _too_large(most: int) -> Problem:
    return Problem(
        413,
        "too_large",
        f"The body is larger than {most} bytes.",
        headers={"Connection": "close"},
    )


def _too_deep(most: int) -> Problem:
    return Problem(400, "too_deep", f"The body is nested more deeply than {most} levels.")
