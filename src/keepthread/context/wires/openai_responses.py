"""OpenAI's responses."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, cast

from keepthread.context.wires.common import EMPTY, Image, WireTurn, system_text, turns
from keepthread.context.wires.parsing import (
    Item,
    compact,
    has_only,
    items_of,
    joined,
    parts_of,
    picture,
    spoken,
    text_field,
    unknown,
)
from keepthread.types import Attachment, Message, Native, Selection, ToolCall

_TEXTS: Final = ("text", "input_text", "output_text")


def render(selection: Selection, provider: str = "") -> dict[str, Any]:
    """Return the `input` of a request, and `instructions` if there are any."""
    items: list[Any] = []
    for turn in turns(selection, "openai-responses", provider):
        items += _items(turn)
    system = system_text(selection)
    return {"instructions": system, "input": items} if system else {"input": items}


def _items(turn: WireTurn) -> list[Any]:
    message = turn.message
    outputs = [
        {
            "type": "function_call_output",
            "call_id": call.id,
            "output": _content(call.result, call.images),
        }
        for call in turn.calls
    ]
    if turn.native and message.native:
        return [*message.native.items, *outputs]
    if message.role != "assistant":
        return [{"role": "user", "content": _content(turn.text, turn.images)}]
    text = [{"role": "assistant", "content": turn.text}] if turn.text or not turn.calls else []
    calls = [
        {
            "type": "function_call",
            "call_id": call.id,
            "name": call.name,
            "arguments": call.arguments,
        }
        for call in turn.calls
    ]
    return [*text, *calls, *outputs]


def _content(text: str, images: Sequence[Image]) -> str | list[Any]:
    if not images:
        return text
    parts = [{"type": "input_image", "image_url": image.uri} for image in images]
    return [{"type": "input_text", "text": text or EMPTY}, *parts]


# --- reading ---


def from_openai_responses(items: Iterable[Any], *, provider: str = "") -> list[Message]:
    """Return the messages of OpenAI's responses: the `input` of a request, or the `output`.

    Output between two inputs becomes one message if it has reasoning or other items of the
    provider, which are kept as they are; else each text is a message, the last with the calls.
    Raises `InvalidInput` for an item that no message can hold.
    """
    if isinstance(items, str):
        return [Message(role="user", content=items)]
    found: list[Message] = []
    answer: list[Item] = []
    for item in items_of(items, "openai-responses"):
        message = _message(item)
        if message is None:
            answer.append(item)
            continue
        found += _answered(answer, provider)
        found.append(message)
        answer = []
    return found + _answered(answer, provider)


def _message(item: Item) -> Message | None:
    """Return a message that no model wrote; None if one did."""
    if str(item.get("type")).endswith("_call_output") and "call_id" in item:
        text, attached = _returned(item)
        id = text_field(item, "call_id")
        return Message(role="tool", content=text, tool_call_id=id, attachments=tuple(attached))
    role = item.get("role")
    if role not in ("user", "system", "developer"):
        return None
    text, attached = _shown(item, "content")
    kind = "user" if role == "user" else "system"
    return Message(role=kind, content=text, attachments=tuple(attached))


def _shown(item: Item, field: str) -> tuple[str, list[Attachment]]:
    """Return the text of an item and its attachments."""
    texts: list[str] = []
    attached: list[Attachment] = []
    for part in parts_of(item, field):
        if part.get("type") in _TEXTS:
            texts.append(text_field(part, "text"))
        else:
            attached.append(_attachment(part))
    text = joined(texts)
    return ("" if attached and text == EMPTY else text), attached


def _returned(item: Item) -> tuple[str, list[Attachment]]:
    """Return the result of a call; tools of the provider may return an object."""
    output = item.get("output")
    if not isinstance(output, Mapping):
        return _shown(item, "output")
    if image := text_field(cast("Item", output), "image_url", ""):
        return "", [picture(image)]
    return compact(output), []


def _attachment(part: Item) -> Attachment:
    kind = part.get("type")
    if kind == "input_image" and part.get("image_url"):
        return picture(text_field(part, "image_url"))
    if kind in ("input_image", "input_file"):
        given = (text_field(part, name, "") for name in ("file_data", "file_url"))
        uri = next(filter(None, given), "") or f"file:{text_field(part, 'file_id')}"
        found = picture(uri, "" if kind == "input_image" else "application/octet-stream")
        return replace(found, name=text_field(part, "filename", ""))
    raise unknown(part)


def _call(item: Item) -> ToolCall:
    """Return a call of another kind: a custom tool has an input, a shell has an action."""
    kind = text_field(item, "type").removesuffix("_call")
    arguments = item.get("input", item.get("action"))
    return ToolCall(
        id=text_field(item, "call_id"),
        name=text_field(item, "name", kind),
        arguments=arguments if isinstance(arguments, str) else compact(arguments or {}),
    )


def _answered(items: Sequence[Item], provider: str) -> list[Message]:
    """Return what a model wrote without a pause: texts, then calls, or one message as it is."""
    if not items:
        return []
    texts: list[str] = []
    calls: list[ToolCall] = []
    known = True
    for item in items:
        if item.get("type") == "function_call":
            name, id = text_field(item, "name"), text_field(item, "call_id")
            calls.append(ToolCall(id=id, name=name, arguments=text_field(item, "arguments", "")))
            known &= has_only(item, "type", "call_id", "name", "arguments")
        elif str(item.get("type")).endswith("_call") and "call_id" in item:
            calls.append(_call(item))
            known = False
        elif item.get("role") == "assistant":
            parts = parts_of(item)
            said = (
                text_field(p, "refusal" if p.get("type") == "refusal" else "text") for p in parts
            )
            texts.append(joined(said))
            known &= has_only(item, "role", "content") and not calls
            known &= isinstance(item["content"], str)
        else:
            known = False
    if known and calls and texts and not texts[-1]:
        texts.append("")  # an empty text is a message of its own: beside calls it is not sent
    native = None if known else Native("openai-responses", [dict(item) for item in items], provider)
    return spoken(texts, calls, native)
