"""Values of public types from the JSON that a server sends: the inverse of `schema.to_json`."""

import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, Final, NewType, TypeVar

from keepthread.context.why import Why
from keepthread.errors import Unavailable
from keepthread.memory.why_log import Explanation
from keepthread.references import References

T = TypeVar("T")

_ANY: Final = (Any, object)


def from_json(kind: type[T], value: Any) -> T:
    """Return a value of a public type; fields that this version does not know are skipped."""
    try:
        return _value(kind, value)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise Unavailable(
            f"the server sent a {kind.__name__} that this version of keepthread cannot read;"
            " use the same version on both sides"
        ) from None


def _explanation(value: Mapping[str, Any]) -> Explanation:
    references = value["references"]
    return Explanation(
        value["view"],
        value["at"],
        value["turn"],
        Why.from_json(value),
        _value(References, references) if references is not None else None,
    )


_OWN: Final[Mapping[Any, Any]] = {Why: Why.from_json, Explanation: _explanation}
"""Types whose JSON is not their fields."""


def _value(hint: Any, value: Any) -> Any:
    if hint in _OWN:
        return _OWN[hint](value)
    if isinstance(hint, NewType):
        return _value(hint.__supertype__, value)
    if hint is bytes:
        return bytes.fromhex(value)
    if hint is float:
        return float(value)
    if value is None or _is_any(hint) or hint in (str, int, bool):
        return value
    if names := _fields(hint):
        return hint(**{name: _value(part, value[name]) for name, part in names.items()})
    return _value_of_parts(hint, value)


def _value_of_parts(hint: Any, value: Any) -> Any:
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        (part,) = [part for part in parts if part is not types.NoneType]
        return _value(part, value)
    if origin is tuple and Ellipsis not in parts:
        return tuple(_value(part, each) for part, each in zip(parts, value, strict=True))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {name: _value(parts[1], each) for name, each in value.items()}
    if isinstance(origin, type) and issubclass(origin, Sequence):
        made = [_value(parts[0], each) for each in value]
        return made if origin is list else tuple(made)
    return value  # one of a few texts


@cache
def _fields(kind: Any) -> Mapping[str, Any]:
    """Return the fields of a type that is made of fields, with their types."""
    if not isinstance(kind, type):
        return {}
    found: Any = kind
    is_data = is_dataclass(found)
    names = [f.name for f in fields(found)] if is_data else [*getattr(found, "_fields", ())]
    hints = typing.get_type_hints(found) if names else {}
    return {name: hints[name] for name in names}


def _is_any(hint: Any) -> bool:
    if isinstance(hint, str | typing.ForwardRef) or hint in _ANY:
        return True
    return {bool, int, float, str, types.NoneType} <= set(typing.get_args(hint))
