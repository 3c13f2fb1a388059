"""What the three wires share: who speaks, in what order, under which call ids.

A provider refuses a call id or a tool name it does not like, and a call id used twice; ids and
names that would be refused are replaced by ones derived from the message, the same each time.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from keepthread.context.quote import is_order
from keepthread.types import Attachment, Message, Selection, Wire

EMPTY: Final = "(empty)"
"""Stands for a text that a provider would refuse for being blank."""

_GOOD_ID: Final = re.compile(r"[a-zA-Z0-9_-]{1,40}")
_BAD_IN_NAME: Final = re.compile(r"[^a-zA-Z0-9_-]")
_IMAGES: Final = ("image/png", "image/jpeg", "image/gif", "image/webp")
_WEB: Final = re.compile(r"https://[^\s\"<>\\]+")
_DATA: Final = re.compile(r"data:(image/(?:png|jpeg|gif|webp));base64,([A-Za-z0-9+/]+={0,2})")


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call as a wire takes it, and the text of its result."""

    id: str
    name: str
    arguments: str
    result: str


@dataclass(frozen=True, slots=True)
class Turn:
    """What one message says on a wire; an assistant's calls come with their results."""

    message: Message
    text: str
    calls: Sequence[Call] = ()
    native: bool = False


def system_text(selection: Selection) -> str:
    """Return the system prompt with what the operator added to it in the log."""
    orders = [m.content for m in selection.messages if is_order(m)]
    return "\n\n".join(part for part in (selection.system, *orders) if part.strip())


def turns(selection: Selection, wire: Wire) -> list[Turn]:
    """Return what is said, results folded into their calls."""
    messages = selection.messages
    used: set[str] = set()
    found: list[Turn] = []
    index = 0
    while index < len(messages):
        message = messages[index]
        count = len(message.tool_calls)
        if not is_order(message):
            results = messages[index + 1 : index + 1 + count]
            found.append(_turn(message, results, wire, used))
        index += 1 + count
    return found


def _turn(message: Message, results: Sequence[Message], wire: Wire, used: set[str]) -> Turn:
    native = message.native is not None and message.native.wire == wire
    native = native and not used.intersection(call.id for call in message.tool_calls)
    calls: list[Call] = []
    for n, (call, result) in enumerate(zip(message.tool_calls, results, strict=True)):
        id = call.id if native else _call_id(message.id, n, call.id, used)
        used.add(id)
        calls.append(Call(id, _name(call.name), call.arguments, result.content))
    return Turn(message, said(message), calls, native)


def said(message: Message) -> str:
    """Return a message's text; in a conversation of several people, with who wrote it."""
    text = message.content
    if message.role == "user" and message.author:
        text = f"{message.author}: {text}"
    notes = [f"[attached: {a.name or a.media_type}]" for a in message.attachments if not image(a)]
    return "\n".join([text, *notes]) if notes else text


def _call_id(message: str, n: int, id: str, used: set[str]) -> str:
    if _GOOD_ID.fullmatch(id) and id not in used:
        return id
    seed = f"{message}\0{n}\0{id}".encode("utf-8", "surrogatepass")
    return f"call_{hashlib.sha256(seed).hexdigest()[:24]}"


def _name(name: str) -> str:
    return _BAD_IN_NAME.sub("_", name)[:64] or "tool"


def image(attachment: Attachment) -> tuple[str, str] | None:
    """Return the media type and URI of an image that providers take, else None."""
    if data := _DATA.fullmatch(attachment.uri):
        return (data[1], attachment.uri) if len(data[2]) % 4 == 0 else None
    if attachment.media_type in _IMAGES and _WEB.fullmatch(attachment.uri):
        return attachment.media_type, attachment.uri
    return None
