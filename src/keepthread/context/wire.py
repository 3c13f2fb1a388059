"""What the three wires share: who speaks, in what order, under which call ids.

A provider refuses a call id or a tool name it does not like, and a call id used twice; ids and
names that would be refused are replaced by ones derived from the message, the same each time.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Final, NamedTuple

from keepthread.context.blocks import calls_of
from keepthread.context.quote import as_quotation, attachment_note, is_order
from keepthread.derived import derived_call_id
from keepthread.tokens.counting import arguments_as_json, is_quoted, wire_name
from keepthread.types import Attachment, Message, Selection, Wire

EMPTY: Final = "(empty)"
"""Stands for a text that a provider would refuse for being blank."""

# Compiled when first used: whoever imports keepthread need not render anything.
_GOOD_ID: Final = r"[a-zA-Z0-9_-]{1,40}"
_SURROGATE: Final = "[\ud800-\udfff]"
_IMAGES: Final = ("image/png", "image/jpeg", "image/gif", "image/webp")
_WEB: Final = r"https://[a-zA-Z0-9.-]+(?::[0-9]{1,5})?(?:[/?#][^\s\"<>\\]*)?"
_DATA: Final = r"data:(image/(?:png|jpeg|gif|webp));base64,([A-Za-z0-9+/]+={0,2})"


class Call(NamedTuple):
    """A tool call as a wire takes it, its arguments an object in JSON, and its result's text."""

    id: str
    name: str
    arguments: str
    result: str


class Turn(NamedTuple):
    """What one message says on a wire; an assistant's calls come with their results."""

    message: Message
    text: str
    calls: Sequence[Call] = ()
    native: bool = False


def system_text(selection: Selection) -> str:
    """Return the system prompt with what the operator added to it in the log."""
    orders = [m.content for m in selection.messages if is_order(m)]
    return sendable("\n\n".join(part for part in (selection.system, *orders) if part.strip()))


def turns(selection: Selection, wire: Wire) -> list[Turn]:
    """Return what is said, results folded into their calls."""
    messages = selection.messages
    used: set[str] = set()
    found: list[Turn] = []
    index = 0
    while index < len(messages):
        message = messages[index]
        end = index + 1 + len(calls_of(message))
        if not is_order(message):
            if is_quoted(message):
                *texts, message = _quoted(message)
                found += [_turn(text, (), wire, used) for text in texts]
            results = messages[index + 1 : end] if calls_of(message) else ()
            found.append(_turn(message, results, wire, used))
        index = end
    return found


def _quoted(message: Message) -> list[Message]:
    """Return what comes from elsewhere as a quotation in a user's place, and its calls apart."""
    if not calls_of(message):
        return [as_quotation(message)]
    calls = replace(message, content="", native=None, attachments=())
    text = replace(message, tool_calls=())
    return [as_quotation(text), calls] if text.content or text.attachments else [calls]


def _turn(message: Message, results: Sequence[Message], wire: Wire, used: set[str]) -> Turn:
    native = _as_given(message, wire, used)
    calls: list[Call] = []
    for n, (call, result) in enumerate(zip(calls_of(message), results, strict=True)):
        id = call.id if native else _call_id(message.id, n, call.id, used)
        used.add(id)
        arguments = sendable(arguments_as_json(call.arguments))
        calls.append(Call(id, wire_name(call.name), arguments, sendable(result.content)))
    return Turn(message, sendable(said(message)), calls, native)


def _as_given(message: Message, wire: Wire, used: set[str]) -> bool:
    """Tell whether a provider's own items can go back as they are: no id of theirs is taken."""
    native = message.native
    if native is None or native.wire != wire or not native.items:
        return False
    calls = [call.id for call in message.tool_calls]
    ids = {*calls, *(str(i["id"]) for i in native.items if isinstance(i, Mapping) and "id" in i)}
    if used & ids or len(set(calls)) < len(calls):
        return False
    used |= ids
    return True


def sendable(text: str) -> str:
    """Return a text without what JSON parsers and models choke on: lone surrogates and NUL."""
    if "\0" in text:
        text = text.replace("\0", "")
    if not text.isascii() and re.search(_SURROGATE, text):
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def said(message: Message) -> str:
    """Return a message's text; in a conversation of several people, with who wrote it."""
    text = message.content
    if message.role == "user" and message.author:
        text = f"{message.author}: {text}"
    notes = [attachment_note(a) for a in message.attachments if not image(a)]
    return "\n".join([text, *notes]) if notes else text


def _call_id(message: str, n: int, id: str, used: set[str]) -> str:
    if re.fullmatch(_GOOD_ID, id) and id not in used:
        return id
    for trial in count():
        derived = derived_call_id(message, str(n), id, str(trial))
        if derived not in used:
            return derived
    raise AssertionError


def image(attachment: Attachment) -> tuple[str, str] | None:
    """Return the media type and URI of an image that providers take, else None."""
    if data := re.fullmatch(_DATA, attachment.uri):
        return (data[1], attachment.uri) if len(data[2]) % 4 == 0 else None
    if attachment.media_type in _IMAGES and re.fullmatch(_WEB, attachment.uri):
        return attachment.media_type, attachment.uri
    return None
