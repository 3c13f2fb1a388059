"""Operations: each route says what it returns, which errors it may have, and which scope it needs.

The OpenAPI document, the authorization tests and the fuzzer are made from this.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Final, TypeAlias, TypeVar, get_type_hints

from fastapi import APIRouter, Path, Query, Response

from keepthread.apps.http.bodies import MAX_PAGE
from keepthread.apps.http.caller import Caller, Operator, needs, needs_admin
from keepthread.apps.http.problems import MEDIA_TYPE, STATUS
from keepthread.apps.http.replies import PlainJSON
from keepthread.errors import KeepthreadError
from keepthread.stores.validation import MAX_ID

Reads: TypeAlias = Annotated[Caller, needs("read")]
Writes: TypeAlias = Annotated[Caller, needs("write")]
Forgets: TypeAlias = Annotated[Caller, needs("forget")]
Administers: TypeAlias = Annotated[Operator, needs_admin()]
_SCOPES: Final = (
    (Reads, "read"),
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
    *("bad_request", "invalid_cursor", "owner_required", "unauthenticated", "scope_required"),
    *("wrong_owner", "invalid_request", "invalid_input", "too_many_requests"),
    *("internal_error", "unavailable"),
)
"""Errors of every operation."""
OWN: Final[Mapping[str, tuple[int, str]]] = {
    "bad_request": (400, "The request cannot be read."),
    "invalid_cursor": (400, "The cursor is not from an earlier page of the same request."),
    "owner_required": (400, "The key serves many owners, and no header names one."),
    "unauthenticated": (401, "The key is missing, unknown, expired or revoked."),
    "scope_required": (403, "The key does not have the scope that this needs."),
    "wrong_owner": (403, "The key is bound to another owner."),
    "invalid_request": (422, "The request does not have the documented shape."),
    "precondition_required": (428, "The header `If-Match` is missing."),
    "too_many_requests": (429, "The key sends too many requests; wait for `Retry-After`."),
    "internal_error": (500, "The server failed."),
}
"""Errors of the server itself: the status and the meaning."""
OF_SESSIONS: Final = ("session_not_found",)

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


NOTHING: Final[Content] = {"description": "It is done; there is no body."}
NOT_MODIFIED: Final[Content] = {"description": "The client has this version already."}


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
            response_class=PlainJSON
            if "application/json" in reply.get("content", {})
            else Response,
            responses={**described_errors(*errors), **replies},
            openapi_extra=described,
        )
        return endpoint

    return add


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
    for code in (*EVERYWHERE, *codes):
        status, meaning = status_of(code)
        found.setdefault(status, []).append(f"`{code}`: {meaning}")
    return {
        status: {
            "description": " ".join(texts),
            "content": {MEDIA_TYPE: {"schema": {"$ref": f"{COMPONENTS}Problem"}}},
        }
        for status, texts in found.items()
    }
