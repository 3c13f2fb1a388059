"""What a tool gave, as a message that can be stored: a text, a failure, a cut."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final, NamedTuple, cast

from keepthread.checks import MAX_BYTES, check_id, plain, show
from keepthread.codec import dumps, encode
from keepthread.derived import derived_call_id, result_ids
from keepthread.errors import InvalidInput
from keepthread.exchanges import TOOL_SOURCE
from keepthread.types import JSON, Message, ToolCall

MAX_ARGUMENTS: Final = MAX_BYTES // 4
_UNLIMITED: Final = 1 << 40  # a result is cut, never refused, for its length


class Asked(NamedTuple):
    """A tool and what it is asked; `arguments` is the one JSON text that such arguments have."""

    name: str
    args: Mapping[str, JSON]
    arguments: str


def ask(name: object, args: object) -> Asked:
    """Return what is asked of a tool, or refuse what could not be kept exactly."""
    check_id(name, "a tool's name")
    if type(args) is not dict:
        raise InvalidInput(f"a tool's arguments must be a dict, not {show(args)}")
    copy = cast(dict[str, JSON], plain(cast(object, args), "a tool's arguments"))
    text = dumps(copy, "a tool's arguments", limit=MAX_ARGUMENTS)
    return Asked(name=cast(str, name), args=copy, arguments=text.decode("utf-8", "surrogatepass"))


async def given_by(run: Callable[..., object], args: Mapping[str, JSON]) -> str:
    """Call a tool, plain or asynchronous, and return what it gave as text."""
    value = run(**args)
    if inspect.isawaitable(value):
        value = await value
    return text_of(value)


def text_of(value: object) -> str:
    """Return a text as it is, and any other JSON value as compact JSON."""
    if type(value) is str:
        return value
    data = dumps(plain(value, "the result", ordered=True), "the result", limit=_UNLIMITED)
    return data.decode("utf-8", "surrogatepass")


def failure_of(error: Exception) -> str:
    """Return what is recorded in place of a result."""
    name = type(error).__name__
    try:
        reason = str(error)
    except Exception:  # noqa: BLE001 - a tool's own error may be broken too
        reason = ""
    return f"(failed: {name}: {reason})" if reason else f"(failed: {name})"


def pair(
    asked: Asked, text: str, ids: Callable[[], str], *, meta: Mapping[str, JSON] | None = None
) -> tuple[Message, Message]:
    """Return what records a call that no model wrote, and its result, which `meta` goes with."""
    wish = ToolCall(id=derived_call_id(ids()), name=asked.name, arguments=asked.arguments)
    source = f"{TOOL_SOURCE}{asked.name}"
    call = Message(role="assistant", tool_calls=(wish,), source=source, id=ids())
    return call, replace(result_of(asked, text, wish.id, meta=meta), id=result_ids(call)[0])


def result_of(
    asked: Asked, text: str, call_id: str, *, meta: Mapping[str, JSON] | None = None
) -> Message:
    """Return what records a result, cut to what a message may hold."""
    message = Message(
        role="tool",
        content=text,
        tool_call_id=call_id,
        name=asked.name,
        source=f"{TOOL_SOURCE}{asked.name}",
        meta=meta or {},
    )
    return _cut(message)


def _cut(message: Message) -> Message:
    """Return a message that may be stored: of a text that is too long, the head and the tail."""
    data = message.content.encode("utf-8", "surrogatepass")
    beside = encode(replace(message, content=""), message.id).extra or b""
    room = MAX_BYTES - len(beside)
    if len(data) <= room:
        return message
    mark = f"\n[… of {len(data):,} bytes, the middle was not kept …]\n"
    half = max(0, room - len(mark.encode())) // 2
    end, start = half, len(data) - half
    while _inside(data, end):
        end -= 1
    while _inside(data, start):
        start += 1
    head, tail = data[:end], data[start:]
    text = head.decode("utf-8", "surrogatepass") + mark + tail.decode("utf-8", "surrogatepass")
    return replace(message, content=text)


def _inside(data: bytes, place: int) -> bool:
    """Tell whether a character began before a place and goes on in it."""
    return place < len(data) and data[place] & 0xC0 == 0x80
