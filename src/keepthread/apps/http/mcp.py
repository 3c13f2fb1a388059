"""The MCP server at `/mcp` (streamable HTTP), and the metadata by which clients find its issuer.

The layers of every other path apply: names and origins, credentials, limits. A request is complete
in itself and its response is JSON, so any worker can serve it. The MCP SDK is loaded with the first
request.
"""

import asyncio
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from keepthread.apps.http.caller import ROUTE, authorized, caller_of, state_of
from keepthread.apps.http.problems import Problem
from keepthread.apps.http.settings import HttpSettings
from keepthread.apps.mcp.actions import ClientMemory

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.types import Receive, Scope, Send

PATH: Final = "/mcp"
METADATA: Final = "/.well-known/oauth-protected-resource"
METADATA_PATHS: Final = (METADATA, METADATA + PATH)
"""Where clients look for the metadata of a protected resource (RFC 9728)."""
SCOPE: Final = "mcp"
_FORGET: Final = "forget"
_SERVER: Final = "keepthread.apps.mcp.server"
_CHALLENGE: Final = "WWW-Authenticate"


class _Loaded(NamedTuple):
    module: Any
    server: Any


class McpEndpoint:
    """Serves requests of MCP clients, each for the owner that its credential names."""

    path: Final = PATH

    def __init__(self) -> None:
        """Load nothing yet."""
        self._loaded: _Loaded | None = None

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        """Serve one request."""
        scope.setdefault("state", {})[ROUTE] = self
        request = Request(scope)
        try:
            caller_of(request, authorized(scope, SCOPE))
        except Problem as problem:
            raise with_metadata(problem, scope, state_of(request).settings) from None
        if request.method != "POST":
            raise HTTPException(405, headers={"Allow": "POST"})  # it has no streams to get
        loaded = await self._load()
        await loaded.module.serve_request(loaded.server, scope, receive, send)

    async def _load(self) -> _Loaded:
        if self._loaded is None:
            try:
                module = await asyncio.to_thread(import_module, _SERVER)
            except ModuleNotFoundError:
                raise Problem(
                    501,
                    "mcp_not_installed",
                    "This server has no MCP support; its operator can install it with"
                    " pip install 'keepthread[mcp]'.",
                ) from None
            self._loaded = _Loaded(module, module.build(self._memory_of))
        return self._loaded

    def _memory_of(self, context: Any) -> ClientMemory:
        """Return the memory of a request's credential; nothing in its message can name another."""
        request: Request = context.request
        assert self._loaded is not None
        identity = authorized(request.scope, SCOPE)
        caller = caller_of(request, identity)
        return ClientMemory(
            memory=caller.memory,
            client=self._loaded.module.client_of(context, otherwise=f"key-{caller.key_id}"),
            may_forget=_FORGET in caller.scopes,
        )


# --- finding the issuer ---


def resource_url(scope: "Scope", settings: HttpSettings) -> str:
    """Return the address of `/mcp` as clients call it: the audience of tokens, if that is one."""
    for issuer in settings.issuers:
        if issuer.audience.startswith(("https://", "http://")):
            return issuer.audience
    hosts = [value.decode("latin-1") for key, value in scope["headers"] if key.lower() == b"host"]
    return f"{scope.get('scheme', 'http')}://{hosts[0] if hosts else 'localhost'}{PATH}"


def with_metadata(problem: Problem, scope: "Scope", settings: HttpSettings) -> Problem:
    """Return the problem of a request to `/mcp`, which says where tokens for it are issued."""
    challenge = problem.headers.get(_CHALLENGE)
    if challenge and scope["path"] == PATH and settings.issuers:
        origin, _, path = resource_url(scope, settings).partition("://")
        host, slash, rest = path.partition("/")
        url = f"{origin}://{host}{METADATA}{slash}{rest}"
        scopes = "" if "scope=" in challenge else f', scope="{SCOPE}"'
        problem.headers[_CHALLENGE] = f'{challenge}{scopes}, resource_metadata="{url}"'
    return problem


async def _metadata(request: Request) -> Response:
    """Answer which issuers are trusted, and how a token is sent."""
    settings = state_of(request).settings
    return JSONResponse(
        {
            "resource": resource_url(request.scope, settings),
            "resource_name": "keepthread",
            "authorization_servers": [each.name for each in settings.issuers],
            "scopes_supported": [SCOPE],
            "bearer_methods_supported": ["header"],
        }
    )


def add_mcp(app: "FastAPI") -> None:
    """Add the endpoint and its metadata to an application."""
    app.router.routes.append(Route(PATH, McpEndpoint()))
    for path in METADATA_PATHS:
        app.router.routes.append(Route(path, _metadata, methods=["GET"]))
