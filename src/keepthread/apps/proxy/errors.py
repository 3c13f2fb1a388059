"""Errors of the proxy itself, in the envelope of the API that the client speaks.

An error of the provider is relayed as it is. One of the proxy has the header `Keepthread-Error`
with a stable code, so that a client can distinguish both.
"""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from keepthread.apps.proxy.settings import Provider

if TYPE_CHECKING:
    from starlette.types import Send

ERROR_HEADER: Final = "keepthread-error"
_TYPES: Final[Mapping[Provider, Mapping[int, str]]] = {
    "openai": {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"},
    "anthropic": {
        401: "authentication_error",
        403: "permission_error",
        404: "not_found_error",
        413: "request_too_large",
        429: "rate_limit_error",
        503: "overloaded_error",
    },
}
_SERVER_ERROR: Final = 500


class ProxyError(Exception):
    """The proxy answers a request itself: the status, a stable code, and what to do."""

    def __init__(
        self, status: int, code: str, detail: str, *, headers: Mapping[str, str] | None = None
    ) -> None:
        """Take what the response says."""
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.headers = dict(headers or {})


class ClientLeft(Exception):
    """The client closed the connection; no response is needed."""


def envelope(provider: Provider, status: int, code: str, detail: str) -> bytes:
    """Return the body of an error as a provider writes it."""
    general = "api_error" if status >= _SERVER_ERROR else "invalid_request_error"
    if provider == "openai" and status >= _SERVER_ERROR:
        general = "server_error"
    kind = _TYPES[provider].get(status, general)
    error: dict[str, Any] = {"type": kind, "message": f"keepthread: {detail}"}
    if provider == "anthropic":
        return json.dumps({"type": "error", "error": error}).encode()
    return json.dumps({"error": {**error, "param": None, "code": code}}).encode()


def error_headers(code: str, more: Mapping[str, str], body: bytes) -> list[tuple[bytes, bytes]]:
    """Return the headers of an error of the proxy."""
    headers = {
        "content-type": "application/json",
        "content-length": str(len(body)),
        ERROR_HEADER: code,
        **{name.lower(): value for name, value in more.items()},
    }
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]


async def send_error(send: "Send", provider: Provider, error: ProxyError) -> None:
    """Send an error as the response."""
    body = envelope(provider, error.status, error.code, error.detail)
    headers = error_headers(error.code, error.headers, body)
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
