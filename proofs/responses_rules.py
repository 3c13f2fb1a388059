"""What OpenAI's responses refuse, written from its reference for the proof of the wires alone.

No code is shared with the rendering or with `keepthread.testing.wires`. Every item is one of a few
shapes, each with its fields; calls and outputs are paired; ids are used once.
"""

import base64
import binascii
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

_TEXT: Final = str
_ITEMS: Final[Mapping[str, tuple[dict[str, type], dict[str, type]]]] = {
    "message": ({"role": str}, {"type": str, "id": str, "status": str, "phase": str}),
    "function_call": (
        {"type": str, "call_id": str, "name": str, "arguments": str},
        {"id": str, "status": str},
    ),
    "function_call_output": ({"type": str, "call_id": str}, {"id": str, "status": str}),
    "reasoning": (
        {"type": str, "id": str, "summary": list},
        {"encrypted_content": str, "content": list, "status": str},
    ),
}
"""The fields that an item must have, and those that it may have; content and output come below."""
_PARTS: Final = {
    "input_text": ({"text"}, set[str]()),
    "input_image": ({"image_url"}, {"detail"}),
    "output_text": ({"text"}, {"annotations", "logprobs"}),
    "refusal": ({"refusal"}, set[str]()),
}
_OF_ROLE: Final = {
    "user": ("input_text", "input_image"),
    "system": ("input_text", "input_image"),
    "developer": ("input_text", "input_image"),
    "assistant": ("output_text", "refusal"),
}
_CALL_ID: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_ITEM_ID: Final = {
    "message": re.compile(r"msg_[a-zA-Z0-9_-]{1,60}"),
    "function_call": re.compile(r"fc_[a-zA-Z0-9_-]{1,61}"),
    "function_call_output": re.compile(r"fc_[a-zA-Z0-9_-]{1,61}"),
    "reasoning": re.compile(r"rs_[a-zA-Z0-9_-]{1,61}"),
}
_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_WEB: Final = re.compile(r"https://[^\s/?#]+\S*")
_DATA: Final = re.compile(r"data:image/(?:png|jpeg|gif|webp);base64,([^\s]+)")


def refused(request: Mapping[str, Any]) -> Iterator[str]:
    """Yield what the server would answer 400 to."""
    try:
        json.dumps(request, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        yield f"not JSON: {error}"
        return
    if strange := set(request) - {"input", "instructions"}:
        yield f"unknown parameters {sorted(strange)}"
    orders = request.get("instructions", "none")
    if not isinstance(orders, str) or not orders.strip():
        yield f"instructions {orders!r}"
    items = request.get("input")
    if not isinstance(items, list) or not items:
        yield "no input"
        return
    problems = [f"input[{at}]: {p}" for at, item in enumerate(items) for p in _item(item)]
    yield from problems
    if not problems:
        yield from _sequence(items)


def _item(item: Any) -> Iterator[str]:
    if not isinstance(item, dict):
        yield "not an object"
        return
    kind = item.get("type", "message")
    if kind not in _ITEMS:
        yield f"an item of type {kind!r}"
        return
    if problems := [*_fields(item, kind)]:
        yield from problems
        return
    if "id" in item and not _ITEM_ID[kind].fullmatch(item["id"]):
        yield f"id is {item['id']!r}"
    if "call_id" in item and not _CALL_ID.fullmatch(str(item["call_id"])):
        yield f"call_id is {item['call_id']!r}"
    if kind == "message":
        yield from _message(item)
    elif kind == "function_call":
        yield from _function(item)
    elif kind == "function_call_output":
        yield from _content(item["output"], _OF_ROLE["user"])


def _fields(item: dict[str, Any], kind: str) -> Iterator[str]:
    """Yield the fields that an item lacks, should not have, or has with another type."""
    needed, may = _ITEMS[kind]
    content = {"message": "content", "function_call_output": "output"}.get(kind)
    for name, value in item.items():
        expected = needed.get(name) or may.get(name)
        if expected is None and name != content:
            yield f"unknown parameter {name!r}"
        elif expected is not None and not isinstance(value, expected):
            yield f"{name} is {value!r}"
    for name in [*needed, *([content] if content else [])]:
        if name not in item:
            yield f"{name} is missing"


def _message(item: dict[str, Any]) -> Iterator[str]:
    role = item["role"]
    if role not in _OF_ROLE:
        yield f"the role {role!r}"
        return
    if "id" in item and role != "assistant":
        yield "an id on what no model wrote"
    yield from _content(item["content"], _OF_ROLE[role])


def _content(content: Any, kinds: tuple[str, ...]) -> Iterator[str]:
    if isinstance(content, str):
        return
    if not isinstance(content, list) or not content:
        yield f"content {content!r}"
        return
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in kinds:
            yield f"a part of type {kind!r}, not of {kinds}"
            continue
        needed, may = _PARTS[kind]
        if needed - set(part) or set(part) - needed - may - {"type"}:
            yield f"a part {kind} with the fields {sorted(part)}"
        elif not isinstance(part[min(needed)], _TEXT):
            yield f"a part {part!r}"
        elif kind == "input_image":
            yield from _image(part)


def _image(part: dict[str, Any]) -> Iterator[str]:
    if part.get("detail", "auto") not in ("auto", "low", "high"):
        yield f"detail {part['detail']!r}"
    data = _DATA.fullmatch(part["image_url"])
    if data is None:
        if not _WEB.fullmatch(part["image_url"]):
            yield f"image_url {part['image_url'][:60]!r}"
        return
    try:
        base64.b64decode(data[1], validate=True)
    except (ValueError, binascii.Error):
        yield "an image that is not base64"


def _function(item: dict[str, Any]) -> Iterator[str]:
    if not _NAME.fullmatch(item["name"]):
        yield f"name {item['name']!r}"
    try:
        value = json.loads(item["arguments"])
    except ValueError:
        value = None
    if not isinstance(value, dict):
        yield f"arguments {item['arguments']!r}"


def _sequence(items: list[dict[str, Any]]) -> Iterator[str]:
    ids = [item["id"] for item in items if "id" in item]
    if len(set(ids)) < len(ids):
        yield "an item id is used twice"
    called: list[str] = []
    open_calls: set[str] = set()
    for at, item in enumerate(items):
        kind = item.get("type", "message")
        if kind == "function_call":
            if item["call_id"] in called:
                yield f"call_id {item['call_id']} is used twice"
            called.append(item["call_id"])
            open_calls.add(item["call_id"])
        elif kind == "function_call_output":
            if item["call_id"] not in open_calls:
                yield f"an output for {item['call_id']}, which no open call before it has"
            open_calls.discard(item["call_id"])
        elif open_calls and item.get("role") == "user":
            yield f"a user speaks before the outputs of {sorted(open_calls)}"
        if kind == "reasoning" and not _is_made_by_a_model(items[at + 1 : at + 2]):
            yield "a reasoning item without the item that follows it"
    if open_calls:
        yield f"no outputs for {sorted(open_calls)}"


def _is_made_by_a_model(items: list[dict[str, Any]]) -> bool:
    kinds = [item.get("type", "message") for item in items]
    if kinds == ["message"]:
        return items[0].get("role") == "assistant"
    return kinds in (["reasoning"], ["function_call"])
