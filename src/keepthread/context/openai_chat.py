"""OpenAI's chat completions, and every server that speaks like them."""

from typing import Any

from keepthread.context.wire import EMPTY, Turn, image, system_text, turns
from keepthread.types import Selection


def render(selection: Selection) -> dict[str, Any]:
    """Return the `messages` of a request."""
    messages: list[Any] = []
    if system := system_text(selection):
        messages.append({"role": "system", "content": system})
    for turn in turns(selection, "openai-chat"):
        messages += _messages(turn)
    return {"messages": messages}


def _messages(turn: Turn) -> list[Any]:
    message = turn.message
    results = [
        {"role": "tool", "tool_call_id": call.id, "content": call.result} for call in turn.calls
    ]
    if turn.native and message.native:
        return [*message.native.items, *results]
    if message.role != "assistant":
        return [{"role": "user", "content": _content(turn)}]
    if not turn.calls:
        return [{"role": "assistant", "content": turn.text}]
    calls = [
        {
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for call in turn.calls
    ]
    return [{"role": "assistant", "content": turn.text or None, "tool_calls": calls}, *results]


def _content(turn: Turn) -> str | list[Any]:
    images = [found for a in turn.message.attachments if (found := image(a))]
    if not images:
        return turn.text
    parts = [{"type": "image_url", "image_url": {"url": uri}} for _, uri in images]
    return [{"type": "text", "text": turn.text or EMPTY}, *parts]
