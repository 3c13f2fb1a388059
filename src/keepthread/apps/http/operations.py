"""Operations: each route says what it returns, which errors it may have, and which scope it needs.

The OpenAPI document, the authorization tests and the fuzzer are made from this.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Final, TypeAlias, TypeVar, get_type_hints

from fastapi import APIRouter, Path, Query, Response

from keepthread.apps.http.bodies import MAX_PAGE
from keepthread.apps.http.caller import (
    Caller,
    Identity,
    Operator,
    needs,
    needs_admin,
    needs_identity,
)
from keepthread.apps.http.problems import MEDIA_TYPE, STATUS
from keepthread.apps.http.replies import PlainJSON
from keepthread.errors import KeepthreadError
from keepthread.stores.validation import MAX_ID

Reads: TypeAlias = Annotated[Caller, needs("read")]
Identifies: TypeAlias = Annotated[Identity, needs_identity("read")]
Writes: TypeAlias = Annotated[Caller, needs("write")]
Forgets: TypeAlias = Annotated[Caller, needs("forget")]
Administers: TypeAlias = Annotated[Operator, needs_admin()]
_SCOPES: Final = (
    (Reads, "read"),
    (Identifies, "read"),
    (Writes, "write"),
    (Forgets, "forget"),
    (Administers, "admin"),
)

SessionId: TypeAlias = Annotated[
    str, Path(min_length=1, max_length=MAX_ID, description="The id of a session.")
]
MessageId: TypeAlias = Annotated[
    str, Path(min_length=1, max_length=MAX_ID, description="The id of a message.")
]
TurnId: TypeAlias = Annotated[
    str, Path(min_length=1, max_length=MAX_ID, description="The id of the turn's user message.")
]
Cursor: TypeAlias = Annotated[
    str | None, Query(description="The `next` of the page before, unchanged.")
]
Limit: TypeAlias = Annotated[int, Query(ge=1, le=MAX_PAGE, description="The size of the page.")]

COMPONENTS: Final = "#/components/schemas/"
EVERYWHERE: Final = (
    *("bad_request", "repeated_header", "invalid_path", "wrong_host", "wrong_origin"),
    *("unauthenticated", "invalid_key", "invalid_token", "scope_required"),
    *("invalid_request", "invalid_input", "invalid_cursor", "rate_limited", "too_many_requests"),
    *("overloaded", "stopping", "issuer_unavailable", "unavailable", "busy", "read_only"),
    *("request_timeout", "deadline_exceeded", "storage_full", "damaged", "internal_error"),
)
"""Errors of every operation."""
OF_OWNERS: Final = ("owner_required", "invalid_owner", "wrong_owner")
OF_OPERATORS: Final = ("bound_key",)
OF_CHANGES: Final = (
    *("invalid_json", "duplicate_key", "too_deep", "too_large"),
    *("unsupported_media_type", "unsupported_encoding"),
    *("invalid_idempotency_key", "idempotency_mismatch", "request_in_flight", "response_not_kept"),
)
"""Errors of requests that have a body, or that change something."""
OF_SESSIONS: Final = ("session_not_found", "session_gone")

OWN: Final[Mapping[str, tuple[int, str]]] = {
    "bad_request": (400, "The request is not valid HTTP/1.1."),
    "repeated_header": (400, "A header that may appear only once was sent twice."),
    "invalid_path": (400, "The path is not UTF-8, encoded as in a URL."),
    "invalid_json": (400, "The body is not JSON in UTF-8."),
    "duplicate_key": (400, "An object of the body has the same key twice."),
    "too_deep": (400, "The body is nested too deeply."),
    "invalid_cursor": (400, "The cursor is not from an earlier page of the same request."),
    "invalid_owner": (400, "The header `Keepthread-Owner` is not UTF-8, encoded as in a URL."),
    "invalid_idempotency_key": (400, "`Idempotency-Key` is not one text of 1 to 255 characters."),
    "owner_required": (400, "The key serves many owners, and no header names one."),
    "unauthenticated": (401, "The request has no credential."),
    "invalid_key": (401, "The key is unknown, expired or revoked."),
    "invalid_token": (401, "The token is not accepted."),
    "scope_required": (403, "The key does not have the scope that this needs."),
    "wrong_owner": (403, "The key is bound to another owner."),
    "bound_key": (403, "The key is bound to an owner, so it cannot manage the tenant."),
    "wrong_origin": (403, "The server does not allow this browser origin."),
    "request_timeout": (408, "The body did not arrive in time."),
    "request_in_flight": (409, "The same request is still running; retry later."),
    "response_not_kept": (
        410,
        "The request was already completed, and its response is no longer stored.",
    ),
    "unsupported_encoding": (415, "The body is compressed."),
    "unsupported_media_type": (415, "The body is not JSON."),
    "wrong_host": (421, "The name in the header `Host` is not allowed."),
    "invalid_request": (422, "The request does not have the documented shape."),
    "idempotency_mismatch": (422, "A different request used the same `Idempotency-Key`."),
    "precondition_required": (428, "The header `If-Match` is missing."),
    "rate_limited": (429, "The key sends too many requests; retry after `Retry-After` seconds."),
    "too_many_requests": (429, "The key has too many requests open."),
    "internal_error": (500, "The server failed."),
    "proxy_not_installed": (
        501,
        "The server has no memory proxy; its operator must install keepthread[server].",
    ),
    "mcp_not_installed": (
        501,
        "The server has no MCP SDK; its operator must install keepthread[mcp].",
    ),
    "overloaded": (503, "The server is at its request limit."),
    "stopping": (503, "The server is stopping; send requests to another worker."),
    "issuer_unavailable": (503, "The identity provider's keys cannot be read now."),
    "deadline_exceeded": (504, "The request timed out; it may or may not have been completed."),
}
"""Errors of the server itself: the status and the meaning."""

Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])
Content: TypeAlias = Mapping[str, Any]


def returns(kind: type, description: str = "") -> dict[str, Any]:
    """Describe a reply that is one value of a type."""
    return _json({"$ref": COMPONENTS + kind.__name__}, description or "The result.")


def returns_page(kind: type) -> dict[str, Any]:
    """Describe a reply that is a page of values."""
    items = {"type": "array", "items": {"$ref": COMPONENTS + kind.__name__}}
    after = {
        "anyOf": [{"type": "string"}, {"type": "null"}],
        "description": "The `cursor` of the next page, or null at the end.",
    }
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {"items": items, "next": after},
        "required": ["items", "next"],
        "additionalProperties": False,
    }
    return _json(schema, "A page.")


def returns_session(description: str) -> dict[str, Any]:
    """Describe a reply that is a session, with its version in the header `ETag`."""
    from_header = {"description": "The version of the session.", "schema": {"type": "string"}}
    named = {"$ref": f"{COMPONENTS}SessionInfo"}
    return {**_json(named, description), "headers": {"ETag": from_header}}


def returns_bytes(media_type: str, description: str) -> dict[str, Any]:
    """Describe a reply that is not JSON."""
    return {"description": description, "content": {media_type: {"schema": {"type": "string"}}}}


NOTHING: Final[Content] = {"description": "Success; the response has no body."}
NOT_MODIFIED: Final[Content] = {"description": "The client already has this version."}


def _json(schema: Mapping[str, Any], description: str) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": dict(schema)}}}


def operation(
    router: APIRouter,
    method: str,
    path: str,
    reply: Content,
    *,
    status: int = 200,
    errors: tuple[str, ...] = (),
    also: Mapping[int, Content] | None = None,
    extra: Mapping[str, Any] | None = None,
) -> Callable[[Endpoint], Endpoint]:
    """Add a function as an operation; its name is the operation's id, and its docstring the text.

    Its parameter `caller` says which scope it needs.
    """

    def add(endpoint: Endpoint) -> Endpoint:
        scope = scope_of(endpoint)
        summary, _, text = (endpoint.__doc__ or "").strip().partition("\n")
        replies: dict[int | str, dict[str, Any]] = {status: dict(reply)}
        replies |= {other: dict(content) for other, content in (also or {}).items()}
        is_json = "application/json" in reply.get("content", {})
        described = {"x-scope": scope, "security": [{"key": [scope]}], **(extra or {})}
        router.add_api_route(
            path,
            endpoint,
            methods=[method],
            operation_id=endpoint.__name__,
            name=endpoint.__name__,
            summary=summary.rstrip("."),
            description=" ".join(text.split()),
            status_code=status,
            response_model=None,
            response_class=PlainJSON if is_json else Response,
            responses={**described_errors(*_shared(method, scope), *errors), **replies},
            openapi_extra=described,
        )
        return endpoint

    return add


def _shared(method: str, scope: str) -> tuple[str, ...]:
    """Return the errors that an operation has in common with others."""
    changes = () if method == "GET" else OF_CHANGES
    return (*EVERYWHERE, *(OF_OPERATORS if scope == "admin" else OF_OWNERS), *changes)


def scope_of(endpoint: Callable[..., Any]) -> str:
    """Return the scope that an operation needs."""
    hint = get_type_hints(endpoint, include_extras=True)["caller"]
    return next(scope for alias, scope in _SCOPES if alias == hint)


def status_of(code: str) -> tuple[int, str]:
    """Return the status and the meaning of an error's code."""
    if code in OWN:
        return OWN[code]
    kind = next(each for each in _kinds(KeepthreadError) if each.code == code)
    status = next(STATUS[each] for each in kind.__mro__ if each in STATUS)
    return status, " ".join((kind.__doc__ or "").split())


def _kinds(kind: type[KeepthreadError]) -> Iterator[type[KeepthreadError]]:
    yield kind
    for each in kind.__subclasses__():
        yield from _kinds(each)


def described_errors(*codes: str) -> dict[int | str, Any]:
    """Describe the errors of an operation by status, each code with its meaning."""
    found: dict[int | str, list[str]] = {}
    for code in dict.fromkeys(codes):
        status, meaning = status_of(code)
        found.setdefault(status, []).append(f"`{code}`: {meaning}")
    return {
        status: {
            "description": " ".join(texts),
            "content": {MEDIA_TYPE: {"schema": {"$ref": f"{COMPONENTS}Problem"}}},
        }
        for status, texts in found.items()
    }
