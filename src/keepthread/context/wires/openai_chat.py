"""OpenAI's chat completions, and every server that speaks like them."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

from keepthread.context.rendering import attachment_note, wire_name
from keepthread.context.wires.common import EMPTY, Image, WireCall, WireTurn, system_text, turns
from keepthread.context.wires.parsing import (
    Item,
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

_CAPTION: Final = "Result of the tool {}: "
_KNOWN: Final = ("role", "content", "tool_calls")
"""The fields of an answer that a message has; with any other it is stored as it is, too."""


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
            caption = {"type": "text", "text": _CAPTION.format(call.name) + image.note}
            shown += [caption, _image(image)]
    return [*results, {"role": "user", "content": shown}] if shown else results


def _content(turn: WireTurn) -> str | list[Any]:
    if not turn.images:
        return turn.text
    return [{"type": "text", "text": turn.text or EMPTY}, *map(_image, turn.images)]


def _image(image: Image) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": image.uri}}


# --- reading ---


def from_openai_chat(messages: Iterable[Any], *, provider: str = "") -> list[Message]:
    """Return the messages of OpenAI's chat completions, those of a request or of an answer.

    They are mappings or objects of the SDK. `provider` is the host that wrote the answers, such as
    `api.openai.com`. Fields that messages do not have, such as reasoning, are kept as they are, and
    go back to that host alone. Raises `InvalidInput` for an item that no message can
    hold.
    """
    found: list[Message] = []
    for item in items_of(messages, "openai-chat"):
        role = item.get("role")
        if role in ("system", "developer"):
            found.append(Message(role="system", content=_text(item)))
        elif role == "user":
            if not _are_images_of_results(item, found):
                found.append(_user(item))
        elif role == "assistant":
            found += _assistant(item, provider)
        elif role == "tool":
            id = text_field(item, "tool_call_id")
            found.append(Message(role="tool", content=_text(item), tool_call_id=id))
        else:
            raise unknown(item)
    return found


def _text(item: Item) -> str:
    return joined([text_field(part, "text") for part in parts_of(item)])


def _user(item: Item) -> Message:
    texts: list[str] = []
    attached: list[Attachment] = []
    for part in parts_of(item):
        if part.get("type") == "text":
            texts.append(text_field(part, "text"))
        else:
            attached.append(_attachment(part))
    text = joined(texts)
    content = "" if attached and text == EMPTY else text
    author = text_field(item, "name", "") or None
    return Message(role="user", content=content, author=author, attachments=tuple(attached))


def _attachment(part: Item) -> Attachment:
    kind = part.get("type")
    if kind == "image_url":
        return picture(text_field(inner(part, kind), "url"))
    if kind == "input_audio":
        given = inner(part, kind)
        media_type = f"audio/{text_field(given, 'format')}"
        uri = f"data:{media_type};base64,{text_field(given, 'data')}"
        return Attachment(media_type=media_type, uri=uri)
    if kind == "file":
        given = inner(part, kind)
        uri = text_field(given, "file_data", "") or f"file:{text_field(given, 'file_id')}"
        name = text_field(given, "filename", "")
        found = picture(uri, "application/octet-stream")
        return replace(found, name=name)
    raise unknown(part)


def _assistant(item: Item, provider: str) -> list[Message]:
    parts = parts_of(item)
    texts = [text_field(part, str(part.get("type"))) for part in parts]  # text or refusal
    called = parts_of(item, "tool_calls")
    known = (
        all(has_only(part, "type", "text") for part in parts)
        and all(has_only(call, "id", "type", "function") for call in called)
        and all(name in _KNOWN for name, value in item.items() if value)
    )
    native = None if known else Native("openai-chat", [dict(item)], provider)
    text = joined([*texts, text_field(item, "refusal", "")])
    return spoken([text], [_call(call) for call in called], native)


def _call(call: Item) -> ToolCall:
    kind, arguments = ("custom", "input") if "custom" in call else ("function", "arguments")
    made = inner(call, kind)
    return ToolCall(
        id=text_field(call, "id"),
        name=text_field(made, "name"),
        arguments=text_field(made, arguments, ""),
    )


def _are_images_of_results(item: Item, found: list[Message]) -> bool:
    """Give the images of tool results back to the results, if an item shows nothing else."""
    parts = parts_of(item)
    if len(parts) < 2 or len(parts) % 2:
        return False
    kinds = [part.get("type") for part in parts]
    if kinds != ["text", "image_url"] * (len(parts) // 2):
        return False
    captions = [text_field(part, "text") for part in parts[::2]]
    images = [_attachment(part) for part in parts[1::2]]
    first = len(found)
    while first and found[first - 1].role == "tool":
        first -= 1
    names = {c.id: c.name for c in (found[first - 1].tool_calls if first else ())}
    given: list[Message] = []
    done = 0
    for result in found[first:]:
        caption = _CAPTION.format(wire_name(names.get(result.tool_call_id or "", "")))
        lines = result.content.split("\n")
        most = min(len(lines), len(captions) - done)
        fitting = (n for n in range(most, 0, -1) if _said_of(captions[done:], lines[-n:], caption))
        count = next(fitting, 0)
        text = "\n".join(lines[: len(lines) - count])
        attached = map(_named, images[done : done + count], lines[len(lines) - count :])
        given.append(replace(result, content=text, attachments=(*result.attachments, *attached)))
        done += count
    if done < len(captions):
        return False
    found[first:] = given
    return True


def _said_of(captions: Sequence[str], notes: Sequence[str], caption: str) -> bool:
    return list(captions[: len(notes)]) == [caption + note for note in notes]


def _named(image: Attachment, note: str) -> Attachment:
    """Return an image with the name that its note says; without a name the note says the type."""
    if note == attachment_note(image):
        return image
    return replace(image, name=note.removeprefix("[attached: ").removesuffix("]"))
