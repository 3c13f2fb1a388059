"""Checks of the headers `Host` and `Origin`.

A web page can make a visitor's browser send requests to `localhost`, directly or through a host
name that resolves to it (DNS rebinding). Such a request has a foreign `Host` or `Origin`, and is
refused before anything else happens.
"""

import re
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote_to_bytes

from keepthread.apps.http.problems import Problem
from keepthread.apps.http.settings import HttpSettings

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

_HOST: Final = re.compile(r"(\[[^\]]*\]|[^:]*)(?::[0-9]*)?")
HEALTH: Final = frozenset({"/livez", "/readyz"})
"""Health paths, which load balancers request by IP address."""


class Origins:
    """Refuses requests that name another host, or come from a page that is not allowed."""

    def __init__(self, app: "ASGIApp", settings: HttpSettings) -> None:
        """Wrap an application."""
        self._app = app
        self._settings = settings

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        """Check one request."""
        if scope["type"] == "websocket":
            raise Problem(400, "no_websockets", "This server does not support WebSockets.")
        if scope["type"] == "http":
            self._check(scope)
        await self._app(scope, receive, send)

    def _check(self, scope: "Scope") -> None:
        _check_path(scope)
        hosts = _values(scope, b"host")
        if scope["path"] not in HEALTH and not self._knows(hosts):
            raise Problem(
                421,
                "wrong_host",
                "The Host header names a host that is not allowed; "
                "`keepthread serve --allow-host NAME` allows one.",
            )
        own = f"{scope.get('scheme', 'http')}://{hosts[0]}" if hosts else None
        for origin in _values(scope, b"origin"):
            if origin != own and origin not in self._settings.origins:
                raise Problem(
                    403,
                    "wrong_origin",
                    "This browser origin is not allowed; `keepthread serve --allow-origin URL` "
                    "allows one.",
                )

    def _knows(self, hosts: list[str]) -> bool:
        if len(hosts) != 1:
            return False
        return self._settings.any_host or host_name(hosts[0]) in self._settings.hosts


def host_name(host: str) -> str:
    """Return a host without its port, in lower case; empty if something else follows the name."""
    found = _HOST.fullmatch(host)
    return found[1].removesuffix(".").lower() if found else ""


def _values(scope: "Scope", name: bytes) -> list[str]:
    return [value.decode("latin-1") for key, value in scope["headers"] if key.lower() == name]


def _check_path(scope: "Scope") -> None:
    """Refuse a path that is not UTF-8: two of them would be decoded to the same id."""
    raw: bytes = scope.get("raw_path") or b""
    try:
        unquote_to_bytes(raw).decode()
    except UnicodeDecodeError:
        raise Problem(400, "invalid_path", "The path is not UTF-8, encoded as in a URL.") from None
