"""Check JSON schemas of parameters and of answers as providers do."""

from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeAlias

from keepthread.testing.wires import is_list, is_object, too_deep

Path: TypeAlias = tuple[str, ...]

TYPES: Final = ("string", "number", "integer", "boolean", "object", "array", "null")
NAMED: Final = ("properties", "$defs", "definitions", "patternProperties")
LISTED: Final = ("anyOf", "oneOf", "allOf", "prefixItems")
SINGLE: Final = ("items", "additionalProperties", "not", "if", "then", "else", "contains")
NOT_STRICT: Final = ("allOf", "oneOf", "not", "if", "then", "else", "patternProperties", "default")
"""Keywords that OpenAI does not accept in strict schemas."""
NOT_FOR_ANSWERS: Final = (
    *("oneOf", "not", "if", "then", "else", "patternProperties", "multipleOf"),
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minLength", "maxLength"),
    *("maxItems", "uniqueItems"),
)
"""Keywords that Anthropic does not accept in the schema of an answer."""


def problems(schema: Any) -> list[str]:
    """Return why a schema is not a valid JSON schema of an object."""
    if not is_object(schema) or schema.get("type") != "object":
        kind = schema.get("type") if is_object(schema) else schema
        # “schema must be a JSON Schema of 'type: \"object\"', got 'type: \"None\"'.”
        return [f"schema must be a JSON Schema of 'type: \"object\"', got 'type: {kind!r}'"]
    if too_deep(schema):
        return ["schema is nested too deep"]
    return [p for path, part in _parts(schema) for p in _part(part, path, schema)]


def openai_problems(schema: Any, *, strict: Any) -> list[str]:
    """Return what OpenAI refuses in a schema, which may be a strict one."""
    found = problems(schema)
    return strict_problems(schema) if strict and not found else found


def strict_problems(schema: Mapping[str, Any]) -> list[str]:
    """Return what OpenAI refuses in a strict schema."""
    found: list[str] = []
    for path, part in _parts(schema):
        where = f"In context={path}"
        found += [f"{where}, '{name}' is not permitted" for name in NOT_STRICT if name in part]
        if part.get("type") != "object":
            continue
        if part.get("additionalProperties") is not False:
            # “'additionalProperties' is required to be supplied and to be false.”
            found.append(f"{where}, 'additionalProperties' is required to be supplied and false")
        if missing := part.get("properties", {}).keys() - set(part.get("required", [])):
            found.append(f"{where}, 'required' must include every key: missing {sorted(missing)}")
    return found + (["schema must not have 'anyOf' at the top level"] if "anyOf" in schema else [])


def answer_problems(schema: Mapping[str, Any]) -> list[str]:
    """Return what Anthropic refuses in the schema of an answer."""
    found: list[str] = []
    for path, part in _parts(schema):
        where = ".".join(path) or "schema"
        found += [f"{where}: '{n}' is not supported" for n in NOT_FOR_ANSWERS if n in part]
        if part.get("type") == "object" and part.get("additionalProperties") is not False:
            # “For 'object' type, 'additionalProperties' must be explicitly set to false”
            found.append(f"{where}: 'additionalProperties' must be explicitly set to false")
    return found


def _parts(schema: Any, path: Path = ()) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """Yield a schema and the schemas in it; the check of the outer one finds those not valid."""
    if not is_object(schema):
        return
    yield path, schema
    for name, inner in schema.items():
        if name in NAMED and is_object(inner):
            for key, part in inner.items():
                yield from _parts(part, (*path, name, key))
        elif name in LISTED and is_list(inner):
            for at, part in enumerate(inner):
                yield from _parts(part, (*path, name, str(at)))
        elif name in SINGLE:
            yield from _parts(inner, (*path, name))


def _part(part: Mapping[str, Any], path: Path, root: Mapping[str, Any]) -> list[str]:
    kinds = part.get("type", [])
    strange = [kind for kind in (kinds if is_list(kinds) else [kinds]) if kind not in TYPES]
    found = [f"{kind!r} is not valid under any of the given schemas" for kind in strange]
    if kinds == "array" and "items" not in part and "prefixItems" not in part:
        found.append("array schema missing items")
    if kinds == "object" and not path and "properties" not in part:
        found.append("object schema missing properties")
    found += _shapes(part)
    target = part.get("$ref", "#")
    if not isinstance(target, str) or not _resolves(target, root):
        found.append(f"reference to component {target!r} which was not found in the schema")
    return [f"In context={path}, {problem}" for problem in found]


def _shapes(part: Mapping[str, Any]) -> list[str]:
    found: list[str] = []
    for name in NAMED:
        inner = part.get(name, {})
        if not is_object(inner):
            found.append(f"{name!r}: {inner!r} is not of type 'object'")
        else:
            found += [f"{key!r} is not a schema" for key, value in inner.items() if _none(value)]
    for name in LISTED:
        inner = part.get(name, [True])
        if not is_list(inner) or not inner or any(_none(value) for value in inner):
            found.append(f"{name!r} must be an array of schemas that is not empty")
    found += [f"{name!r} is not a schema" for name in SINGLE if name in part and _none(part[name])]
    needed = part.get("required", [])
    if not is_list(needed) or not all(isinstance(name, str) for name in needed):
        found.append(f"'required': {needed!r} is not an array of strings")
    elif is_object(part.get("properties")) and set(needed) - part["properties"].keys():
        # “Extra required key 'x' supplied.”
        found.append(
            f"extra required key supplied: {sorted(set(needed) - set(part['properties']))}"
        )
    if "enum" in part and not (is_list(part["enum"]) and part["enum"]):
        found.append("'enum' must be an array that is not empty")
    return found


def _none(value: Any) -> bool:
    return not is_object(value) and not isinstance(value, bool)


def _resolves(target: str, root: Any) -> bool:
    if not target.startswith("#"):
        return False
    for step in target.removeprefix("#").split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if not is_object(root) or name not in root:
            return False
        root = root[name]
    return True
