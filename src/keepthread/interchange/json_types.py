"""Public types as JSON, and their JSON Schemas: the same for commands, servers and tools.

`to_json(value)` returns plain JSON with every field, and `json_schema(Message)` describes it.
`SCHEMAS` are the types that programs may rely on; the documentation publishes them.
"""

import ast
import inspect
import textwrap
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache, partial
from itertools import pairwise
from operator import attrgetter
from typing import Any, Final, Literal, NewType, TypeAlias, cast

from keepthread.context.diff import ChangedPart, Difference, Move
from keepthread.context.why import Why
from keepthread.memory.alignment import Aligned
from keepthread.memory.blobs.types import Blob
from keepthread.memory.facts.types import Fact
from keepthread.memory.forgetting.receipt import Receipt
from keepthread.memory.forgetting.receipts import StoredReceipt
from keepthread.memory.rebuild import PromptChange, Rebuilt
from keepthread.memory.search.search import Hit
from keepthread.memory.session import Status
from keepthread.memory.summaries import Costs
from keepthread.memory.why_log import Explanation
from keepthread.references import References
from keepthread.types import (
    JSON,
    Attachment,
    CachedTool,
    Change,
    Choice,
    Cleaning,
    Damage,
    ForkPoint,
    Hidden,
    Message,
    Native,
    Record,
    Reply,
    Scope,
    SessionInfo,
    Span,
    Summary,
    Tool,
    ToolCall,
    Usage,
    Verification,
)

DRAFT: Final = "https://json-schema.org/draft/2020-12/schema"

SCHEMAS: Final[Sequence[type]] = (
    *(Message, ToolCall, Attachment, Native, SessionInfo, ForkPoint, Status, Costs),
    *(Why, Choice, Explanation, References, Rebuilt, Difference, Hidden, Summary, CachedTool),
    Aligned,
    *(Hit, Fact, Blob, Receipt, StoredReceipt, Record, Scope, Span, Verification, Damage),
    *(Change, Cleaning, Reply, Usage, Tool),
)
"""The types that have a published schema; types inside them are described with them."""

_WHY: Final[Mapping[str, Any]] = {
    "budget": int,
    "tokens": int,
    "sections": Mapping[str, int],
    "choices": Sequence[Choice],
}
_SHAPES: Final[Mapping[type, Mapping[str, Any]]] = {
    Why: _WHY,
    Explanation: {"view": str, "at": float, "turn": int, **_WHY, "references": References | None},
    Rebuilt: {"matches": bool, "changes": Sequence[PromptChange]},
    Difference: {
        "budget": Sequence[int],
        "tokens": Sequence[int],
        "sections": Mapping[str, Mapping[str, int]],
        "came": Sequence[ChangedPart],
        "went": Sequence[ChangedPart],
        "moved": Sequence[Move],
    },
}
"""Types whose JSON is not their fields: they have a `to_json` of their own."""
_ALSO: Final[Mapping[type, Mapping[str, Any]]] = {Verification: {"sound": bool}}
"""Properties that are part of a type's JSON."""


# --- values ---


def to_json(value: object) -> JSON:
    """Return a value of a public type, or a collection of them, as plain JSON.

    It has every field; bytes are hexadecimal.
    """
    return cast(JSON, value) if type(value) in _PLAIN else _form(type(value))(value)


_PLAIN: Final = frozenset({types.NoneType, bool, int, float, str})
_Form: TypeAlias = Callable[[Any], JSON]


@cache
def _form(kind: type) -> _Form:
    """Return the function that turns values of a type into JSON."""
    names = _names(kind)
    if issubclass(kind, bool | int | str | float):
        return _itself
    if issubclass(kind, bytes):
        return bytes.hex
    if issubclass(kind, Mapping):
        return _object
    if kind in _SHAPES:
        return lambda value: to_json(value.to_json())
    if names:
        return partial(_fields, names, _getter(names))
    if issubclass(kind, Sequence | set | frozenset):
        return _array
    raise TypeError(f"{kind.__name__} has no JSON form")


def _itself(value: Any) -> JSON:
    return value


def _object(value: Mapping[object, object]) -> JSON:
    return {str(name): to_json(each) for name, each in value.items()}


def _getter(names: Sequence[str]) -> Callable[[object], tuple[object, ...]]:
    """Return what gets all fields at once, which is faster than one by one."""
    get = attrgetter(*names)
    return get if len(names) > 1 else lambda value: (get(value),)


def _fields(
    names: Sequence[str], get: Callable[[object], tuple[object, ...]], value: object
) -> JSON:
    found = zip(names, get(value), strict=True)
    return {
        name: cast(JSON, each) if type(each) in _PLAIN else to_json(each) for name, each in found
    }


def _array(value: Sequence[object]) -> JSON:
    return [to_json(each) for each in value]


def _names(kind: type) -> list[str]:
    """Return the names of a type's fields; empty if it is not one of ours."""
    found: Any = kind
    names = [f.name for f in fields(found)] if is_dataclass(kind) else getattr(found, "_fields", ())
    return [*_ALSO.get(found, ()), *names]


# --- schemas ---


def json_schema(kind: type) -> dict[str, Any]:
    """Return the JSON Schema of a public type, with those of the types inside it in `$defs`."""
    schema = _described(kind)
    inside = {name: _described(each) for name, each in sorted(_inside(kind).items())}
    return {"$schema": DRAFT, **schema, **({"$defs": inside} if inside else {})}


def all_schemas() -> dict[str, Any]:
    """Return one schema with every public type in `$defs`, by its name."""
    found: dict[str, type] = {kind.__name__: kind for kind in SCHEMAS}
    for kind in SCHEMAS:
        found |= _inside(kind)
    return {"$schema": DRAFT, "$defs": {name: _described(found[name]) for name in sorted(found)}}


def _described(kind: type) -> dict[str, Any]:
    texts = _descriptions(kind)
    properties = {
        name: {**_schema(hint), **({"description": texts[name]} if name in texts else {})}
        for name, hint in _hints(kind).items()
    }
    return {
        "title": kind.__name__,
        "description": (inspect.getdoc(kind) or "").partition("\n")[0],
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


@cache
def _hints(kind: type) -> Mapping[str, Any]:
    if shape := _SHAPES.get(kind):
        return shape
    hints = typing.get_type_hints(kind)
    also = _ALSO.get(kind, {})
    return {name: also[name] if name in also else hints[name] for name in _names(kind)}


def _inside(kind: type) -> dict[str, type]:
    """Return the public types in a type's fields, and in theirs, by name."""
    found: dict[str, type] = {}
    waiting = [*_hints(kind).values()]
    while waiting:
        for each in _types_in(waiting.pop()):
            if each.__name__ not in found:
                found[each.__name__] = each
                waiting += _hints(each).values()
    return found


def _types_in(hint: Any) -> Iterator[type]:
    if _is_any(hint):
        return
    if isinstance(hint, type) and (hint in _SHAPES or _names(hint)):
        yield hint
    for part in typing.get_args(hint):
        yield from _types_in(part)


_SIMPLE: Final[Mapping[Any, Mapping[str, Any]]] = {
    str: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bytes: {"type": "string", "pattern": "^([0-9a-f]{2})*$"},
    types.NoneType: {"type": "null"},
}


def _schema(hint: Any) -> dict[str, Any]:
    if _is_any(hint):
        return {}
    if isinstance(hint, NewType):
        return _schema(hint.__supertype__)
    if hint in _SIMPLE:
        return dict(_SIMPLE[hint])
    if isinstance(hint, type) and (hint in _SHAPES or _names(hint)):
        return {"$ref": f"#/$defs/{hint.__name__}"}
    return _schema_of_parts(hint)


def _schema_of_parts(hint: Any) -> dict[str, Any]:
    """Return the schema of a type that is made of others."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return {"enum": list(parts)}
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [_schema(part) for part in parts]}
    if origin is tuple and Ellipsis not in parts:
        rows = [_schema(part) for part in parts]
        return {"type": "array", "prefixItems": rows, "minItems": len(rows), "maxItems": len(rows)}
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": _schema(parts[1])}
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return {"type": "array", "items": _schema(parts[0])}
    raise TypeError(f"{hint!r} has no schema")


def _is_any(hint: Any) -> bool:
    """Return whether a hint means any JSON: the alias refers to itself by name."""
    if isinstance(hint, str | typing.ForwardRef) or hint in (Any, object):
        return True
    return {bool, int, float, str, types.NoneType} <= set(typing.get_args(hint))


@cache
def _descriptions(kind: type) -> Mapping[str, str]:
    """Return the texts that follow the fields of a class in its source."""
    try:
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    except OSError:  # a program without its source
        return {}
    found: dict[str, str] = {}
    body = cast(ast.ClassDef, tree).body
    for field, text in pairwise(body):
        if not (isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)):
            continue
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            found[field.target.id] = " ".join(str(text.value.value).split())
    return found
