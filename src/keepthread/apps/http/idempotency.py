"""`Idempotency-Key`: a repeated request is not executed again and gets the same response.

The claim is stored, so it is valid across workers and restarts. Only successful responses are
stored: after an error the request can be retried. A client that disconnects does not undo anything:
the request continues, and its response is kept for the retry.
"""

import asyncio
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import Response

from keepthread.apps.http.caller import IDEMPOTENCY_HEADER, Caller, Identity, identity_of
from keepthread.apps.http.json_input import PASSED_PATHS, body_of
from keepthread.apps.http.problems import Problem
from keepthread.apps.http.settings import MIB
from keepthread.apps.http.state import WorkerState
from keepthread.context.ids import derived_ids
from keepthread.protocols.server import Begun, KeptAnswer, RequestId
from keepthread.types import Message

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send
    from starlette.types import Message as Event

HEADER: Final = IDEMPOTENCY_HEADER
REPLAYED: Final = "Idempotency-Replayed"
_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_MAX_KEY: Final = 255
_MAX_BODY: Final = MIB
_KEPT_HEADERS: Final = frozenset({"content-type", "etag", "location"})
_NOT_KEPT: Final = ("/v1/keys",)
"""Responses from here may hold new keys, which are stored nowhere."""
_NAMED: Final = "/v1/forget"
"""An erasure has an id of its own, which follows from the key, and it may take long."""
_SUCCESS: Final = range(200, 300)


def ids_of(caller: Caller, place: str) -> Callable[[], str] | None:
    """Return what gives ids that follow from the `Idempotency-Key`; None without one.

    A worker may die after it stored something and before it noted the response. The request is then
    done again, and stores the same under the same ids.
    """
    if not caller.idempotency_key:
        return None
    return derived_ids("request", caller.key_id, caller.owner, caller.idempotency_key, place)


def with_ids(caller: Caller, place: str, messages: Sequence[Message]) -> list[Message]:
    """Return messages of which each has an id, if the request has an `Idempotency-Key`.

    A tool's result gets its id from the call that it answers.
    """
    ids = ids_of(caller, place)
    if ids is None:
        return list(messages)
    return [m if m.id or m.role == "tool" else replace(m, id=ids()) for m in messages]


class Idempotency:
    """Wraps the routes; a request without the header passes as it is."""

    def __init__(self, app: "ASGIApp", state: WorkerState) -> None:
        """Wrap an application."""
        self._app = app
        self._state = state

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        """Do one request, or send the response that it had."""
        identity = identity_of(scope)
        key = _key(scope) if identity else None
        body = body_of(scope) if key else None
        # A body that streams is a blob, which is stored once by its content.
        is_ours = scope["path"] != _NAMED and not scope["path"].startswith(PASSED_PATHS)
        if identity is None or key is None or body is None or not is_ours:
            await self._app(scope, receive, send)
            return
        request = _request(identity, key)
        begun = await self._state.tables.begin_request(
            request, _digest(scope, identity, key, body), self._state.clock()
        )
        if begun.state == "new":
            work = self._state.spawn(self._do(scope, receive, request, begun))
            answer = await asyncio.shield(work)
        else:
            answer = _known(begun)
        await answer(scope, receive, send)

    async def _do(
        self, scope: "Scope", receive: "Receive", request: RequestId, begun: Begun
    ) -> Response:
        """Run the request to its end and store its response, even if the client disconnects."""
        recorder = _Recorder()
        tables = self._state.tables
        try:
            with self._state.renewing(request, begun.token):
                await self._app(scope, receive, recorder.send)
        except BaseException:
            await tables.abandon_request(request, begun.token)
            raise
        if recorder.status in _SUCCESS:
            secret = scope["path"].startswith(_NOT_KEPT)
            await tables.end_request(request, begun.token, recorder.kept(secret=secret))
        else:
            await tables.abandon_request(request, begun.token)
        return recorder.response()


class _Recorder:
    """Captures a response."""

    def __init__(self) -> None:
        self.status = 500
        self._headers: list[tuple[bytes, bytes]] = []
        self._parts: list[bytes] = []

    async def send(self, message: "Event") -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self._headers = list(message.get("headers", ()))
        elif message["type"] == "http.response.body":
            self._parts.append(message.get("body", b""))

    def kept(self, *, secret: bool) -> KeptAnswer:
        """Return the stored form of the response, with the body unless it is large or secret."""
        body = b"".join(self._parts)
        pairs = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in self._headers]
        headers = tuple(pair for pair in pairs if pair[0].lower() in _KEPT_HEADERS)
        return KeptAnswer(self.status, headers, None if secret or len(body) > _MAX_BODY else body)

    def response(self) -> Response:
        made = Response(b"".join(self._parts), self.status)
        made.raw_headers = self._headers
        return made


def _known(begun: Begun) -> Response:
    """Return the response that a request had, or raise the problem why there is none."""
    if begun.state == "mismatch":
        raise Problem(
            422,
            "idempotency_mismatch",
            f"This {HEADER} was used for a different request; use a new key for each request.",
        )
    if begun.answer is None:
        raise Problem(
            409,
            "request_in_flight",
            "The same request is still running; retry to get its response.",
            headers={"Retry-After": "1"},
            retryable=True,
        )
    status, headers, body = begun.answer
    if body is None:
        raise Problem(
            410,
            "response_not_kept",
            "This request was already completed and its response is no longer stored; read the "
            "result instead.",
        )
    return Response(body, status, headers={**dict(headers), REPLAYED: "true"})


def _key(scope: "Scope") -> str | None:
    if scope["method"] in _SAFE:
        return None
    name = HEADER.lower().encode()
    found = [value.decode("latin-1") for key, value in scope["headers"] if key.lower() == name]
    if not found:
        return None
    if len(found) > 1 or not 0 < len(found[0]) <= _MAX_KEY or not found[0].isprintable():
        raise Problem(
            400,
            "invalid_idempotency_key",
            f"{HEADER} must be one text of 1 to {_MAX_KEY} characters.",
        )
    return found[0]


def _request(identity: Identity, key: str) -> RequestId:
    # Two owners of one key's program do not share a request.
    return RequestId(identity.tenant, identity.key_id, json.dumps([identity.owner, key]))


def _digest(scope: "Scope", identity: Identity, key: str, body: bytes) -> bytes:
    """Return a digest of the request; without the key, it says nothing of the body."""
    names = (b"if-match", b"content-type")
    headers = [value for key, value in scope["headers"] if key.lower() in names]
    path: bytes = scope.get("raw_path") or scope["path"].encode()
    owner = (identity.owner or "").encode()
    parts: list[Any] = [
        key.encode(),
        scope["method"].encode(),
        path,
        scope["query_string"],
        owner,
        *headers,
    ]
    hashed = hashlib.sha256()
    for part in (*parts, body):
        hashed.update(len(part).to_bytes(8, "big") + part)
    return hashed.digest()
