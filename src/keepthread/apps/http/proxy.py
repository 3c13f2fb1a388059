"""The memory proxy at `/proxy`: clients send the requests of a provider's API here.

The credential is in the path, `/proxy/k/KEY/v1/…`, or in the header `Keepthread-Key`, because
`Authorization` belongs to the provider. A layer around all others takes it out of the path, so
that no log, metric or trace can hold it. Limits hold as for every other path.
"""

import asyncio
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from keepthread.apps.http.caller import ROUTE, authorized, caller_of, state_of
from keepthread.apps.http.problems import Problem
from keepthread.apps.proxy.errors import envelope, error_headers
from keepthread.apps.proxy.routes import provider_of

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.types import ASGIApp, Receive, Scope, Send

PATH: Final = "/proxy"
SCOPE: Final = "proxy"
KEY_HEADER: Final = b"keepthread-key"
_BEFORE_KEY: Final = b"/proxy/k/"
_ASSEMBLY: Final = "keepthread.apps.proxy.assembly"
_APP: Final = "keepthread.apps.proxy.app"
_KEY: Final = "keepthread_proxy_key"


def is_proxied(scope: "Scope") -> bool:
    """Return whether a request is for the proxy."""
    return scope["path"] == PATH or scope["path"].startswith(f"{PATH}/")


def proxy_key(scope: "Scope") -> str:
    """Return the credential of a request for the proxy, or an empty text."""
    return scope.get("state", {}).get(_KEY, "")


class ProxyKeys:
    """Takes the credential of the proxy out of paths, before any other layer sees them."""

    def __init__(self, app: "ASGIApp") -> None:
        """Wrap an application."""
        self._app = app

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        """Pass a request on, without its credential."""
        if scope["type"] == "http" and is_proxied(scope):
            scope = {**scope, "state": {**scope.get("state", {})}}
            _take_key(scope)
        await self._app(scope, receive, send)


def _take_key(scope: "Scope") -> None:
    """Note the credential in the state, and leave a path without it."""
    raw: bytes = (scope.get("raw_path") or scope["path"].encode()).partition(b"?")[0]
    keys = [value for name, value in scope["headers"] if name.lower() == KEY_HEADER]
    if raw.startswith(_BEFORE_KEY):
        key, _, rest = raw.removeprefix(_BEFORE_KEY).partition(b"/")
        keys.insert(0, key)
        raw = PATH.encode() + b"/" + rest
    scope["raw_path"] = raw
    scope["path"] = unquote(raw.decode("latin-1"))
    scope["state"][_KEY] = keys[0].decode("latin-1") if keys else ""


def error_response(scope: "Scope", problem: Problem) -> Response:
    """Return a problem as the provider's API writes errors."""
    names = {name.decode("latin-1").lower(): "" for name, _ in scope["headers"]}
    provider = provider_of(scope["path"].removeprefix(PATH), names)
    body = envelope(provider, problem.status, problem.code, problem.detail)
    response = Response(body, problem.status)
    more = {name: value for name, value in problem.headers.items() if name != "WWW-Authenticate"}
    response.raw_headers = error_headers(problem.code, more, body)
    return response


class _Assembled(NamedTuple):
    proxy: Any
    memories: Any
    client_request: Any


class ProxyEndpoint:
    """Relays requests, each with the memory of the owner that its credential names."""

    path: Final = PATH

    def __init__(self) -> None:
        """Load nothing yet."""
        self._loaded: _Assembled | None = None

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        """Serve one request."""
        scope.setdefault("state", {})[ROUTE] = self
        try:
            await self._relay(Request(scope), scope, receive, send)
        except Problem as problem:
            await error_response(scope, problem)(scope, receive, send)

    async def _relay(
        self, request: Request, scope: "Scope", receive: "Receive", send: "Send"
    ) -> None:
        caller = caller_of(request, authorized(scope, SCOPE))
        loaded = await self._load(request)
        memory = loaded.memories.of(caller.memory, caller.tenant, f"key-{caller.key_id}")
        path = scope["raw_path"].decode("latin-1").removeprefix(PATH)
        sent = loaded.client_request(scope, path, secret=proxy_key(scope))
        await loaded.proxy.serve(sent, memory, receive, send)

    async def _load(self, request: Request) -> _Assembled:
        if self._loaded is None:
            try:
                assembly = await asyncio.to_thread(import_module, _ASSEMBLY)
            except ModuleNotFoundError:
                raise Problem(
                    501,
                    "proxy_not_installed",
                    "This server has no proxy; its operator can install it with"
                    " pip install 'keepthread[server]'.",
                ) from None
            if self._loaded is None:
                state = state_of(request)
                proxy = assembly.build(state.settings.proxy)
                state.at_end(proxy.close)
                made = import_module(_APP).client_request
                self._loaded = _Assembled(proxy, assembly.Memories(state.tables), made)
        return self._loaded


def add_proxy(app: "FastAPI") -> None:
    """Add the endpoint to an application."""
    app.router.routes.append(Route(PATH + "/{rest:path}", ProxyEndpoint()))
