"""Shared by the three wire formats: who speaks, in what order, under which call ids.

Providers refuse some call ids and tool names, and call ids used twice; these are replaced by values
derived from the message, always the same ones.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Final, NamedTuple

from keepthread.context.blocks import calls_of
from keepthread.context.ids import derived_call_id
from keepthread.context.quoting import as_quotation, is_order, sendable
from keepthread.context.rendering import (
    arguments_as_json,
    attachment_note,
    author_name,
    image,
    is_quoted,
    is_shown,
    wire_name,
)
from keepthread.types import JSON, Message, Native, Selection, Wire

EMPTY: Final = "(empty)"
"""Stands for a text that a provider would refuse for being blank."""

# Compiled when first used: importing keepthread must stay fast.
_GOOD_ID: Final = r"[a-zA-Z0-9_-]{1,40}"


_CALLS: Final = {"openai-responses": ("function_call", "call_id"), "anthropic": ("tool_use", "id")}
"""How a provider's own items name a call, and its id."""


class Image(NamedTuple):
    """An image as providers take it, and the text that names it."""

    media_type: str
    uri: str
    note: str


class WireCall(NamedTuple):
    """A tool call as a wire takes it, its arguments an object in JSON, and its result."""

    id: str
    name: str
    arguments: str
    result: str
    """The result's text; it names what is attached and can't be shown."""
    images: Sequence[Image] = ()
    """The images that the result came with."""


class WireTurn(NamedTuple):
    """One message on a wire; an assistant's calls come with their results."""

    message: Message
    text: str
    calls: Sequence[WireCall] = ()
    native: bool = False
    images: Sequence[Image] = ()


class _Receiver(NamedTuple):
    """Where a rendering goes: the wire, the provider, and the ids that are in it already."""

    wire: Wire
    provider: str
    used: set[str]


def system_text(selection: Selection) -> str:
    """Return the system prompt with what the operator added to it in the log."""
    orders = [said(m) for m in selection.messages if is_order(m)]
    return sendable("\n\n".join(part for part in (selection.system, *orders) if part.strip()))


def turns(selection: Selection, wire: Wire, provider: str = "") -> list[WireTurn]:
    """Return the turns, with results attached to their calls.

    `provider` is the host that it is for, empty if that is not known.
    """
    messages = selection.messages
    to = _Receiver(wire, provider, set())
    found: list[WireTurn] = []
    index = 0
    while index < len(messages):
        message = messages[index]
        end = index + 1 + len(calls_of(message))
        if not is_order(message):
            if is_quoted(message):
                *texts, message = _quoted(message)
                found += [_turn(text, (), to) for text in texts]
            results = messages[index + 1 : end] if calls_of(message) else ()
            found.append(_turn(message, results, to))
        index = end
    return found


def _quoted(message: Message) -> list[Message]:
    """Return what comes from elsewhere as a quotation in a user's place, and its calls apart."""
    if not calls_of(message):
        return [as_quotation(message)]
    calls = replace(message, content="", native=None, attachments=())
    text = replace(message, tool_calls=())
    return [as_quotation(text), calls] if text.content or text.attachments else [calls]


def _turn(message: Message, results: Sequence[Message], to: _Receiver) -> WireTurn:
    native = _as_given(message, to)
    calls: list[WireCall] = []
    for n, (call, result) in enumerate(zip(calls_of(message), results, strict=True)):
        id = call.id if native else _call_id(message.id, n, call.id, to.used)
        to.used.add(id)
        arguments = sendable(arguments_as_json(call.arguments))
        text = sendable(said(result))
        calls.append(WireCall(id, wire_name(call.name), arguments, text, images_of(result)))
    return WireTurn(message, sendable(said(message)), calls, native, images_of(message))


def _as_given(message: Message, to: _Receiver) -> bool:
    """Return whether a provider's own items can go back as they are: no id of theirs is taken."""
    native = message.native
    if native is None or message.role != "assistant" or not _takes(native, to):
        return False
    calls = [call.id for call in message.tool_calls]
    if _called_in(native) != calls or len(set(calls)) < len(calls):
        return False
    ids = {*calls, *(str(i["id"]) for i in native.items if isinstance(i, Mapping) and "id" in i)}
    if to.used & ids:
        return False
    to.used.update(ids)
    return True


def _takes(native: Native, to: _Receiver) -> bool:
    """Return whether a provider takes these items: they are its own, or may be.

    Many servers speak the wire of OpenAI's chat completions, and each has fields of its own that
    others answer with an error. There, items go back only to the host that is known to have given
    them.
    """
    if native.wire != to.wire or not native.items or not _is_sendable(native):
        return False
    if native.provider and to.provider:
        return native.provider == to.provider
    return to.wire != "openai-chat"


def _is_sendable(native: Native) -> bool:
    try:
        json.dumps(list(native.items), ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):  # half a character, or no JSON
        return False
    return all(isinstance(item, Mapping) for item in native.items)


def _called_in(native: Native) -> list[JSON]:
    """Return the ids of the calls in a provider's items, in order."""
    items = [item for item in native.items if isinstance(item, Mapping)]
    if native.wire == "openai-chat":
        lists = [calls for item in items if isinstance(calls := item.get("tool_calls"), Sequence)]
        return [call.get("id") for calls in lists for call in calls if isinstance(call, Mapping)]
    kind, name = _CALLS[native.wire]
    return [item.get(name) for item in items if item.get("type") == kind]


def said(message: Message) -> str:
    """Return a message's text; in a conversation of several people, with who wrote it.

    Attachments that no model is shown are named.
    """
    text = message.content
    if message.role == "user" and message.author:
        text = f"{author_name(message.author)}: {text}"
    notes = [attachment_note(a) for a in message.attachments if not is_shown(message, a)]
    return "\n".join([*filter(None, [text]), *notes]) if notes else text


def images_of(message: Message) -> list[Image]:
    """Return the images that go along with a message."""
    found = [(image(a), attachment_note(a)) for a in message.attachments if is_shown(message, a)]
    return [Image(*given, note) for given, note in found if given]


def _call_id(message: str, n: int, id: str, used: set[str]) -> str:
    if re.fullmatch(_GOOD_ID, id) and id not in used:
        return id
    for trial in count():
        derived = derived_call_id(message, str(n), id, str(trial))
        if derived not in used:
            return derived
    raise AssertionError
