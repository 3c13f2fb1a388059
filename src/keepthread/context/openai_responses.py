"""OpenAI's responses."""

from typing import Any

from keepthread.context.wire import EMPTY, Turn, image, system_text, turns
from keepthread.types import Selection


def render(selection: Selection) -> dict[str, Any]:
    """Return the `input` of a request, and `instructions` if there are any."""
    items: list[Any] = []
    for turn in turns(selection, "openai-responses"):
        items += _items(turn)
    system = system_text(selection)
    return {"instructions": system, "input": items} if system else {"input": items}


def _items(turn: Turn) -> list[Any]:
    message = turn.message
    outputs = [
        {"type": "function_call_output", "call_id": call.id, "output": call.result}
        for call in turn.calls
    ]
    if turn.native and message.native:
        return [*message.native.items, *outputs]
    if message.role != "assistant":
        return [{"role": "user", "content": _content(turn)}]
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


def _content(turn: Turn) -> str | list[Any]:
    images = [found for a in turn.message.attachments if (found := image(a))]
    if not images:
        return turn.text
    parts = [{"type": "input_image", "image_url": uri} for _, uri in images]
    return [{"type": "input_text", "text": turn.text or EMPTY}, *parts]
