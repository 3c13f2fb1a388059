"""OpenAI's chat completions, and every server that speaks like them."""

from collections.abc import Sequence
from typing import Any

from keepthread.context.wires.common import EMPTY, Image, WireCall, WireTurn, system_text, turns
from keepthread.types import Selection


def render(selection: Selection, provider: str = "") -> dict[str, Any]:
    """Return the `messages` of a request."""
    messages: list[Any] = []
    if system := system_text(selection):
        messages.append({"role": "system", "content": system})
    for turn in turns(selection, "openai-chat", provider):
        messages += _messages(turn)
    return {"messages": messages}


def _messages(turn: WireTurn) -> list[Any]:
    message = turn.message
    results = _results(turn.calls)
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


def _results(calls: Sequence[WireCall]) -> list[Any]:
    """Return the results of calls; their images follow in a user's message, as no other has any."""
    results: list[Any] = []
    shown: list[Any] = []
    for call in calls:
        text = "\n".join([*filter(None, [call.result]), *(image.note for image in call.images)])
        results.append({"role": "tool", "tool_call_id": call.id, "content": text})
        for image in call.images:
            caption = f"Result of the tool {call.name}: {image.note}"
            shown += [{"type": "text", "text": caption}, _image(image)]
    return [*results, {"role": "user", "content": shown}] if shown else results


def _content(turn: WireTurn) -> str | list[Any]:
    if not turn.images:
        return turn.text
    return [{"type": "text", "text": turn.text or EMPTY}, *map(_image, turn.images)]


def _image(image: Image) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": image.uri}}
