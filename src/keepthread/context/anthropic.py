"""Anthropic's messages: roles alternate, the user begins and ends, no text is blank."""

import json
from typing import Any, Final

from keepthread.context.wire import EMPTY, Turn, image, system_text, turns
from keepthread.types import Selection

OPENING: Final = "(continued)"
CLOSING: Final = "(continue)"


def render(selection: Selection) -> dict[str, Any]:
    """Return the `messages` of a request, and `system` if there is one."""
    messages: list[dict[str, Any]] = []
    for turn in turns(selection, "anthropic"):
        _say(messages, *_speech(turn))
        if turn.calls:
            _say(messages, "user", [_result(call.id, call.result) for call in turn.calls])
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


def _speech(turn: Turn) -> tuple[str, list[Any]]:
    message = turn.message
    if turn.native and message.native:
        return message.role, [i for i in message.native.items if not _blank(i)] or [_text("")]
    if message.role != "assistant":
        images = [found for a in message.attachments if (found := image(a))]
        return "user", [_text(turn.text), *(_image(*found) for found in images)]
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
    """Tell whether an item is a text that models write and the provider will not take back."""
    return item["type"] == "text" and not item["text"].strip()


def _text(text: str) -> dict[str, str]:
    return {"type": "text", "text": text if text.strip() else EMPTY}


def _result(id: str, text: str) -> dict[str, str]:
    return {"type": "tool_result", "tool_use_id": id, "content": text if text.strip() else EMPTY}


def _image(media_type: str, uri: str) -> dict[str, Any]:
    if uri.startswith("https:"):
        return {"type": "image", "source": {"type": "url", "url": uri}}
    data = uri.partition(",")[2]
    return {"type": "image", "source": {"type": "base64", "media_type": media_type, "data": data}}
