"""The outermost layer: it answers every error, and logs and counts every request without text.

A log line names the request, its route, its status and its time, and the id of its key. It never
holds a path with ids, a query, a body, or the text of an error.
"""

import json
import logging
import os
import secrets
import time
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from starlette.datastructures import MutableHeaders

from keepthread.apps.http.caller import ROUTE, identity_of
from keepthread.apps.http.json_input import ClientGone
from keepthread.apps.http.problems import problem_of
from keepthread.apps.http.proxy import error_response, is_proxied

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

REQUEST_ID: Final = "Keepthread-Request-Id"
LOG: Final = logging.getLogger("keepthread.http")
_FAILED: Final = 500
_OURS: Final = ("keepthread", "uvicorn")
_GONE: Final = 499
"""In logs: the client closed the connection before its request was complete."""

Count = Callable[["Scope", int, float], object]
"""Called after each request, with its scope, its status and its seconds."""


class Access:
    """Wraps all other layers."""

    def __init__(self, app: "ASGIApp", count: Count | None = None) -> None:
        """Wrap an application; `count` is called after each request."""
        self._app = app
        self._count = count

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        """Serve one request; every error is handled here."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        answer = _Answer(send, secrets.token_hex(8))
        try:
            await self._app(scope, receive, answer.send)
        except ClientGone:
            answer.status = _GONE
        except Exception as error:  # noqa: BLE001 - of this request only
            if answer.status is None:
                await _respond(error, scope, receive, answer)
            else:
                answer.status = _FAILED  # the response was cut off; close the connection
            if (answer.status or _FAILED) >= _FAILED:
                _log_failure(error, answer.request_id)
        finally:
            seconds = time.perf_counter() - began
            status = answer.status or _FAILED
            _log_request(scope, status, seconds, answer.request_id)
            if self._count is not None:
                self._count(scope, status, seconds)


class _Answer:
    """Notes the status of a response, and gives it the headers of all responses."""

    def __init__(self, send: "Send", request_id: str) -> None:
        self.request_id = request_id
        self.status: int | None = None
        self._send = send

    async def send(self, message: "Message") -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            headers[REQUEST_ID] = self.request_id
            headers["X-Content-Type-Options"] = "nosniff"
            headers.setdefault("Cache-Control", "no-store")
        await self._send(message)


async def _respond(error: Exception, scope: "Scope", receive: "Receive", answer: _Answer) -> None:
    problem = problem_of(error)
    response = error_response(scope, problem) if is_proxied(scope) else problem.response()
    try:
        await response(scope, receive, answer.send)
    except OSError:
        answer.status = None  # the client disconnected


def route_of(scope: "Scope") -> str:
    """Return the path as the routes write it, without ids: `/v1/sessions/{id}`."""
    route = scope.get("route") or scope.get("state", {}).get(ROUTE)
    return getattr(route, "path", None) or "unknown"


def _log_request(scope: "Scope", status: int, seconds: float, request_id: str) -> None:
    identity = identity_of(scope)
    LOG.info(
        "request",
        extra={
            "fields": {
                "request": request_id,
                "method": scope["method"] if scope["method"].isalpha() else "?",
                "route": route_of(scope),
                "status": status,
                "ms": round(seconds * 1000, 1),
                "key": identity.key_id if identity else None,
                "tenant": identity.tenant if identity else None,
            }
        },
    )


def _log_failure(error: BaseException, request_id: str) -> None:
    """Log where an error came from; its text may hold what a person wrote."""
    frames = traceback.extract_tb(error.__traceback__)[-5:]
    places = [f"{os.path.basename(f.filename)}:{f.lineno}" for f in frames]  # noqa: PTH119
    fields = {"request": request_id, "error": type(error).__name__, "at": places}
    LOG.error("failed", extra={"fields": fields})


class JsonLines(logging.Formatter):
    """Formats log records as JSON, one line each."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line; tracebacks are left out, for they may quote what a person wrote."""
        fields: dict[str, Any] = getattr(record, "fields", {})
        kind = record.exc_info[0] if record.exc_info else None
        line = {
            "time": round(record.created, 3),
            "level": record.levelname.lower(),
            # Others quote errors in their messages.
            "event": record.getMessage() if record.name.startswith(_OURS) else "withheld",
            "logger": record.name,
            "process": record.process,
            **({"error": kind.__name__} if kind else {}),
            **fields,
        }
        return json.dumps(line)
