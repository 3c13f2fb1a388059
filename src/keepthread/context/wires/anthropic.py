"""Anthropic's messages: roles alternate, the user begins and ends, no text is blank."""

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final

from keepthread.context.wires.common import EMPTY, Image, WireCall, WireTurn, system_text, turns
from keepthread.context.wires.parsing import (
    Item,
    compact,
    has_only,
    inner,
    items_of,
    joined,
    parts_of,
    picture,
    spoken,
    text_field,
    unknown,
)
from keepthread.types import Attachment, Message, Native, Selection, ToolCall

OPENING: Final = "(continued)"
CLOSING: Final = "(continue)"


def render(selection: Selection, provider: str = "") -> dict[str, Any]:
    """Return the `messages` of a request, and `system` if there is one."""
    messages: list[dict[str, Any]] = []
    for turn in turns(selection, "anthropic", provider):
        _say(messages, *_speech(turn))
        if turn.calls:
            _say(messages, "user", [_result(call) for call in turn.calls])
    if messages and messages[0]["role"] == "assistant":
        messages.insert(0, {"role": "user", "content": [_text(OPENING)]})
    if messages and messages[-1]["role"] == "assistant":
        messages.append({"role": "user", "content": [_text(CLOSING)]})
    system = system_text(selection)
    return {"system": system, "messages": messages} if system else {"messages": messages}


def _say(messages: list[dict[str, Any]], role: str, content: list[Any]) -> None:
    """Add to the same speaker's last message, or begin a new one."""
    if messages and messages[-1]["role"] == role:
        messages[-1]["content"] += content
    else:
        messages.append({"role": role, "content": content})


def _speech(turn: WireTurn) -> tuple[str, list[Any]]:
    message = turn.message
    if turn.native and message.native:
        return message.role, [i for i in message.native.items if not _blank(i)] or [_text("")]
    if message.role != "assistant":
        return "user", [_text(turn.text), *map(_image, turn.images)]
    text = [_text(turn.text)] if turn.text.strip() or not turn.calls else []
    calls = [
        {
            "type": "tool_use",
            "id": call.id,
            "name": call.name,
            "input": json.loads(call.arguments),
        }
        for call in turn.calls
    ]
    return "assistant", [*text, *calls]


def _blank(item: Any) -> bool:
    """Return whether an item is a text that models write and the provider will not take back."""
    return item.get("type") == "text" and not str(item.get("text") or "").strip()


def _text(text: str) -> dict[str, str]:
    return {"type": "text", "text": text if text.strip() else EMPTY}


def _result(call: WireCall) -> dict[str, Any]:
    text = _text(call.result)
    content = [text, *map(_image, call.images)] if call.images else text["text"]
    return {"type": "tool_result", "tool_use_id": call.id, "content": content}


def _image(image: Image) -> dict[str, Any]:
    if image.uri.startswith("https:"):
        return {"type": "image", "source": {"type": "url", "url": image.uri}}
    data = image.uri.partition(",")[2]
    source = {"type": "base64", "media_type": image.media_type, "data": data}
    return {"type": "image", "source": source}


# --- reading ---


def from_anthropic(messages: Iterable[Any], *, provider: str = "") -> list[Message]:
    """Return the messages of Anthropic's API; the system prompt is beside them, not among them.

    A user's turn becomes several messages: each result and each text is one, with the images
    beside it. An answer with thinking or other blocks of the provider stays one message, and its
    blocks are kept as they are. A user's `cache_control`, which says nothing to the model, is not
    kept. Raises `InvalidInput` for an item that no message can hold.
    """
    found: list[Message] = []
    for item in items_of(messages, "anthropic"):
        role = item.get("role")
        if role == "user":
            found += _heard(parts_of(item))
        elif role == "assistant":
            found += _answered(parts_of(item), provider)
        else:
            raise unknown(item)
    return found


def _heard(blocks: Sequence[Item]) -> list[Message]:
    """Return results and texts of a user's turn, each with the images that follow it."""
    found: list[Message] = []
    waiting: list[Attachment] = []  # images before the text that they belong to
    text: str | None = None
    for block in blocks:
        kind = block.get("type")
        if kind in ("image", "document"):
            waiting.append(_attachment(block))
        elif kind in ("text", "tool_result"):
            if text is not None:
                found.append(_said(text, waiting))
                text, waiting = None, []
            if kind == "text":
                text = text_field(block, "text")
            else:
                found.append(_returned(block))
        else:
            raise unknown(block)
    return [*found, _said(text, waiting)] if text is not None or waiting else found


def _said(text: str | None, attached: Sequence[Attachment]) -> Message:
    shown = "" if text is None or (attached and text == EMPTY) else text
    return Message(role="user", content=shown, attachments=tuple(attached))


def _returned(block: Item) -> Message:
    texts: list[str] = []
    attached: list[Attachment] = []
    for part in parts_of(block):
        if part.get("type") == "text":
            texts.append(text_field(part, "text"))
        elif part.get("type") in ("image", "document"):
            attached.append(_attachment(part))
        else:
            raise unknown(part)
    text = joined(texts)
    return Message(
        role="tool",
        content="" if attached and text == EMPTY else text,
        tool_call_id=text_field(block, "tool_use_id"),
        attachments=tuple(attached),
        native=Native("anthropic", [dict(block)]) if block.get("is_error") else None,
    )


def _attachment(block: Item) -> Attachment:
    source = inner(block, "source")
    kind = source.get("type")
    if kind == "base64":
        media_type = text_field(source, "media_type")
        uri = f"data:{media_type};base64,{text_field(source, 'data')}"
        return Attachment(media_type=media_type, uri=uri, name=text_field(block, "title", ""))
    if kind in ("url", "file"):
        file = "" if kind == "url" else f"file:{text_field(source, 'file_id')}"
        return picture(file or text_field(source, "url"))
    raise unknown(block)


def _answered(blocks: Sequence[Item], provider: str) -> list[Message]:
    """Return what a model wrote: texts, then calls, or one message as it is."""
    texts: list[str] = []
    calls: list[ToolCall] = []
    known = True
    for block in blocks:
        if block.get("type") == "tool_use":
            name, id = text_field(block, "name"), text_field(block, "id")
            calls.append(ToolCall(id=id, name=name, arguments=compact(block.get("input") or {})))
            known &= has_only(block, "type", "id", "name", "input")
        elif block.get("type") == "text":
            texts.append(text_field(block, "text"))
            known &= has_only(block, "type", "text") and not calls
        else:
            known = False
    native = None if known else Native("anthropic", [dict(block) for block in blocks], provider)
    return spoken(texts, calls, native)
