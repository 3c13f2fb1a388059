"""OpenAI's responses."""

from collections.abc import Sequence
from typing import Any

from keepthread.context.wires.common import EMPTY, Image, WireTurn, system_text, turns
from keepthread.types import Selection


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
