"""`keepthread proxy`: the proxy for programs on this machine, with one token in its address.

The token is the first part of the path, so that a client needs nothing but a base URL. It is taken
out before anything else sees the path, and is written to no log.
"""

import asyncio
import hmac
import os
import re
import secrets
import signal
import socket
import stat
from collections.abc import Callable, Generator
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import uvicorn

from keepthread.apps.http.connections import BoundedProtocol
from keepthread.apps.http.origins import host_name
from keepthread.apps.http.settings import LOCAL_HOSTS
from keepthread.apps.http.worker import BACKLOG, QuietServer
from keepthread.apps.proxy.app import Proxy, client_request
from keepthread.apps.proxy.errors import ProxyError, send_error
from keepthread.apps.proxy.routes import provider_of
from keepthread.apps.proxy.settings import ProxySettings
from keepthread.apps.proxy.types import MemoryOfProxy
from keepthread.errors import InvalidInput, Unavailable
from keepthread.stores.private_files import private_file

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

HOST: Final = "127.0.0.1"
KEY_HEADER: Final = "keepthread-key"
CREDENTIAL: Final = "local"
_IN_PATH: Final = re.compile(r"/k/([^/]*)(/.*)?")
_TOKEN: Final = re.compile(r"[A-Za-z0-9_-]{32,}")
_MAX_TOKEN: Final = 1024
_KEEP_ALIVE: Final = 75
_MAX_HEAD: Final = 256 * 1024

OpenMemory = Callable[[], AbstractAsyncContextManager[MemoryOfProxy]]


@dataclass(frozen=True, kw_only=True)
class Local:
    """The settings and parts of a proxy on this machine."""

    build: Callable[[ProxySettings], Proxy]
    open_memory: OpenMemory
    settings: ProxySettings
    token: str
    port: int


class LocalProtocol(BoundedProtocol):
    """HTTP/1.1 for programs on this machine, which keep connections for their next question."""

    head_seconds = _KEEP_ALIVE


class LocalApp:
    """The ASGI application: admits requests with the token and a local host name."""

    def __init__(self, proxy: Proxy, memory: MemoryOfProxy, token: str) -> None:
        """Serve one memory."""
        self._proxy = proxy
        self._memory = memory
        self._token = token

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        """Serve one request."""
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
            return
        path = scope["raw_path"].partition(b"?")[0].decode("latin-1")
        token, path = split_path(path)
        request = client_request(scope, path, secret=self._token)
        path = request.path
        try:
            check_host(request.raw_headers)
            self._check(token or request.headers.get(KEY_HEADER, ""))
        except ProxyError as error:
            await send_error(send, provider_of(path, request.headers), error)
            return
        await self._proxy.serve(request, self._memory, receive, send)

    def _check(self, token: str) -> None:
        if not hmac.compare_digest(token.encode("latin-1", "replace"), self._token.encode()):
            raise ProxyError(
                401,
                "invalid_token",
                "the base URL has no valid token; use the one that `keepthread proxy` prints.",
            )


def split_path(path: str) -> tuple[str, str]:
    """Return the credential in a path, or an empty text, and the path without it."""
    found = _IN_PATH.fullmatch(path)
    return (found[1], found[2] or "/") if found else ("", path)


def check_host(headers: list[tuple[bytes, bytes]]) -> None:
    """Refuse a request under another name: a page on the web could send one (DNS rebinding)."""
    hosts = [value.decode("latin-1") for name, value in headers if name == b"host"]
    if len(hosts) != 1 or host_name(hosts[0]) not in LOCAL_HOSTS:
        raise ProxyError(421, "wrong_host", f"call the proxy at {HOST}.")


def kept_token(path: Path) -> str:
    """Return the token from a file that only its owner can read; it is created on first use.

    A file that others can read or write is refused: they may have the token already.
    """
    if path.exists():
        with path.open(encoding="ascii", errors="replace") as file:
            _check_private(path, os.fstat(file.fileno()))
            text = file.read(_MAX_TOKEN).strip()
        if _TOKEN.fullmatch(text):
            return text
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    token = secrets.token_urlsafe(32)
    with private_file(path) as write:
        write(f"{token}\n".encode())
    return token


def _check_private(path: Path, status: os.stat_result) -> None:
    if os.name != "posix":
        return
    if status.st_uid != os.geteuid():
        raise InvalidInput(f"{path} belongs to another user; delete it to make a new token")
    if status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise InvalidInput(
            f"{path} gives access to the memory, and other users can read or change it; delete it"
            " to make a new token, or keep the token with `chmod 600`"
        )


# --- serving ---


async def run(local: Local, announce: Callable[[str], object]) -> None:
    """Serve until Ctrl-C or SIGTERM; `announce` gets the base URL when it can be called."""
    with _listener(local.port) as listener:
        port = listener.getsockname()[1]
        async with local.open_memory() as memory:
            proxy = local.build(local.settings)
            server = QuietServer(uvicorn_settings(LocalApp(proxy, memory, local.token)))
            try:
                with _stopping(server):
                    announce(f"http://{HOST}:{port}/k/{local.token}/v1")
                    await server.serve([listener])
            finally:
                await proxy.close()


def uvicorn_settings(app: Any) -> uvicorn.Config:
    """Return how uvicorn runs: HTTP/1.1 only, without logs or headers of its own."""
    return uvicorn.Config(
        app,
        http=LocalProtocol,
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="critical",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=_KEEP_ALIVE,
        timeout_graceful_shutdown=1,
        h11_max_incomplete_event_size=_MAX_HEAD,
    )


@contextmanager
def _listener(port: int) -> Generator[socket.socket]:
    try:
        listener = socket.create_server((HOST, port), backlog=BACKLOG)
    except OSError as error:
        raise Unavailable(
            f"cannot listen on {HOST}:{port}: {error.strerror or error}; if another proxy is "
            "running there, choose another port with --port"
        ) from None
    with listener:
        listener.setblocking(False)
        yield listener


@contextmanager
def _stopping(server: uvicorn.Server) -> Generator[None]:
    """Stop at Ctrl-C and SIGTERM."""
    loop = asyncio.get_running_loop()

    def stop() -> None:
        server.force_exit = server.should_exit
        server.should_exit = True

    def handle(*_: Any) -> None:
        loop.call_soon_threadsafe(stop)

    before = {each: signal.signal(each, handle) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
