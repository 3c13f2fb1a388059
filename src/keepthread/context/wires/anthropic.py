"""Anthropic's messages: roles alternate, the user begins and ends, no text is blank."""

import json
from typing import Any, Final

from keepthread.context.wires.common import EMPTY, Image, WireCall, WireTurn, system_text, turns
from keepthread.types import Selection

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
    """Add to what the same speaker said last, or begin a new message."""
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
