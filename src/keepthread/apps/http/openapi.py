"""The OpenAPI 3.1 document: operations of the routes, and the published schemas of the library."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

import keepthread
from keepthread.apps.http.operations import COMPONENTS
from keepthread.apps.http.problems import MEDIA_TYPE
from keepthread.apps.http.replies import (
    AddedNotes,
    BuiltContext,
    CachedText,
    CreatedKey,
    Erasing,
    FactDocument,
    FactExport,
    KeyInfo,
    MessageText,
    Outcome,
    RebuiltPrompt,
    RecordedText,
    TurnState,
    WhoCalls,
)
from keepthread.interchange.json_types import all_schemas, json_schema
from keepthread.memory.facts.types import Loaded
from keepthread.protocols.server import AuditEntry

_DEFS: Final = "#/$defs/"
_OWN: Final = (
    *(TurnState, BuiltContext, Outcome, CachedText, MessageText, RecordedText, WhoCalls),
    *(KeyInfo, CreatedKey, AuditEntry, Erasing),
    *(RebuiltPrompt, AddedNotes, FactDocument, FactExport, Loaded),
)
"""Types of replies that the library does not publish itself."""
DESCRIPTION: Final = """\
Durable conversation memory for LLM applications.

Every request needs a key: `Authorization: Bearer kt_…`. The key determines the owner of the memory.
A key of a program that serves many people names the owner in the header `Keepthread-Owner`. Data of
another owner is reported exactly like data that does not exist.

Errors are `application/problem+json` (RFC 9457); `type` is a stable code. Send an `Idempotency-Key`
with a POST to repeat it safely.
"""
_CREDENTIAL: Final[Mapping[str, Any]] = {
    "credential": {
        "type": "http",
        "description": "An API key (`kt_…`, from `keepthread keys create`), or a token of the"
        " identity provider that the server trusts.",
        "scheme": "bearer",
    }
}
_PROBLEM: Final[Mapping[str, Any]] = {
    "title": "Problem",
    "description": "An error (RFC 9457).",
    "type": "object",
    "properties": {
        "type": {"type": "string", "description": "A stable code of the kind of error."},
        "title": {"type": "string", "description": "The meaning of the status."},
        "status": {"type": "integer"},
        "detail": {"type": "string", "description": "The cause, and how to fix it."},
        "retryable": {
            "type": "boolean",
            "description": "Whether the same request may succeed later.",
        },
        "errors": {
            "type": "array",
            "description": "The places of an invalid request.",
            "items": {
                "type": "object",
                "properties": {
                    "pointer": {"type": "string", "description": "A JSON pointer into the body."},
                    "parameter": {"type": "string"},
                    "in": {"type": "string"},
                    "detail": {"type": "string"},
                },
                "required": ["detail"],
            },
        },
    },
    "required": ["type", "title", "status", "detail", "retryable"],
    "examples": [
        {
            "type": "session_not_found",
            "title": "Not Found",
            "status": 404,
            "detail": "there is no session 'trip'",
            "retryable": False,
        }
    ],
}


def document(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI document of an application; it is built once."""
    if app.openapi_schema is None:
        built = get_openapi(
            title="keepthread",
            version=keepthread.__version__,
            openapi_version="3.1.0",
            description=DESCRIPTION,
            routes=app.routes,
        )
        for item in built["paths"].values():
            for operation in item.values():
                _tidy(operation)
        components = built.setdefault("components", {})
        schemas = {**_published(), "Problem": dict(_PROBLEM), **components.get("schemas", {})}
        components["schemas"] = _used(built["paths"], schemas)
        components["securitySchemes"] = dict(_CREDENTIAL)
        components["responses"] = _shared_errors(built["paths"])
        app.openapi_schema = built
    return app.openapi_schema


def _tidy(operation: dict[str, Any]) -> None:
    """Leave out what FastAPI adds: errors are problems, and the scope is named once."""
    replies = operation["responses"]
    if "HTTPValidationError" in str(replies.get("422", {})):
        del replies["422"]["content"]["application/json"]
    if scope := operation.get("x-scope"):
        operation["security"] = [{"credential": [scope]}]


def _shared_errors(paths: Mapping[str, Any]) -> dict[str, Any]:
    """Name the errors that operations have in common, and refer to them; return them by name."""
    names: dict[str, str] = {}
    found: dict[str, Any] = {}
    for replies in (each["responses"] for item in paths.values() for each in item.values()):
        for status, reply in replies.items():
            if MEDIA_TYPE not in reply.get("content", {}):
                continue
            text = json.dumps(reply)
            if text not in names:
                like = [name for name in found if name.startswith(f"Problem{status}")]
                names[text] = f"Problem{status}" + (f"_{len(like) + 1}" if like else "")
                found[names[text]] = reply
            replies[status] = {"$ref": f"#/components/responses/{names[text]}"}
    return found


def _published() -> dict[str, Any]:
    """Return the schemas of the library's types, as components."""
    found: dict[str, Any] = dict(all_schemas()["$defs"])
    for kind in _OWN:
        schema = json_schema(kind)
        found |= schema.pop("$defs", {})
        schema.pop("$schema")
        found[kind.__name__] = schema
    return cast(dict[str, Any], _renamed(found))


def _renamed(value: Any) -> Any:
    """Return a schema whose references point to components."""
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value).items()
        return {
            name: each.replace(_DEFS, COMPONENTS) if name == "$ref" else _renamed(each)
            for name, each in items
        }
    if isinstance(value, list):
        return [_renamed(each) for each in cast("list[Any]", value)]
    return value


def _used(paths: object, schemas: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schemas that operations refer to, and those inside them."""
    found: set[str] = set()
    waiting = [*_references(paths)]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += _references(schemas[name])
    return {name: schemas[name] for name in sorted(found)}


def _references(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        for name, each in cast("dict[str, Any]", value).items():
            if name == "$ref":
                yield each.removeprefix(COMPONENTS)
            else:
                yield from _references(each)
    elif isinstance(value, list):
        for each in cast("list[Any]", value):
            yield from _references(each)
