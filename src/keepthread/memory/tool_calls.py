"""The tool calls of one turn: which result answers which call, and how open calls are closed."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple, cast

from keepthread.context.ids import derived_call_id, result_ids
from keepthread.errors import InvalidInput
from keepthread.stores.codec import dumps
from keepthread.stores.validation import MAX_BYTES, check_id, plain, show
from keepthread.types import JSON, Message, ToolCall

INTERRUPTED: Final = "(interrupted before there was a result)"
TOOL_SOURCE: Final = "tool:"
"""Prefix of `source` for calls and results that the program recorded, not a model."""


class _TurnCall(NamedTuple):
    """A tool call, the message it is in, and the id that its result has."""

    message: str
    id: str
    name: str
    result: str


class Calls(NamedTuple):
    """The tool calls of a turn, in order, and the ids of their stored results."""

    calls: Sequence[_TurnCall] = ()
    answered: frozenset[str] = frozenset()

    def name(
        self, messages: Sequence[Message], ids: Callable[[], str]
    ) -> "tuple[list[Message], Calls]":
        """Return messages with ids that tie results to calls, and the calls including theirs."""
        named: list[Message] = []
        calls, answered = list(self.calls), set(self.answered)
        for given in messages:
            message = given
            if message.role == "assistant" and message.tool_calls:
                message = replace(message, id=message.id or ids())
                calls += _calls_of(message)
            elif message.role == "tool":
                mine = [call for call in calls if call.id == message.tool_call_id]
                still_open = [call for call in mine if call.result not in answered]
                if call := _first_of_latest(still_open or mine):
                    message = replace(message, id=message.id or call.result)
                    answered.add(call.result)
            named.append(message)
        return named, Calls(calls, frozenset(answered))

    def has(self, call_id: str) -> bool:
        """Return whether there is a call of that id."""
        return any(call.id == call_id for call in self.calls)

    def message_of(self, result: str) -> str:
        """Return the id of the message whose call a result answers."""
        return next(call.message for call in self.calls if call.result == result)

    def markers(self) -> list[Message]:
        """Return the messages that close the calls without a result."""
        return [
            Message(
                role="tool",
                content=INTERRUPTED,
                tool_call_id=call.id,
                name=call.name,
                id=call.result,
            )
            for call in self.calls
            if call.result not in self.answered
        ]


def _calls_of(message: Message) -> list[_TurnCall]:
    """Return a message's calls with the ids of their results."""
    return [
        _TurnCall(message.id, call.id, call.name, result)
        for call, result in zip(message.tool_calls, result_ids(message), strict=True)
    ]


def _first_of_latest(calls: Sequence[_TurnCall]) -> _TurnCall | None:
    """Return the first of the calls in the latest message."""
    return next((call for call in calls if call.message == calls[-1].message), None)


MAX_ARGUMENTS: Final = MAX_BYTES // 4
_UNLIMITED: Final = 1 << 40  # a result is cut, never refused, for its length


class ToolRequest(NamedTuple):
    """A tool and its arguments; `arguments` is their only JSON text."""

    name: str
    args: Mapping[str, JSON]
    arguments: str


def tool_request(name: object, args: object) -> ToolRequest:
    """Return a checked request to a tool; refuse arguments that could not be stored exactly."""
    check_id(name, "a tool's name")
    if type(args) is not dict:
        raise InvalidInput(f"a tool's arguments must be a dict, not {show(args)}")
    copy = cast(dict[str, JSON], plain(cast(object, args), "a tool's arguments"))
    text = dumps(copy, "a tool's arguments", limit=MAX_ARGUMENTS)
    return ToolRequest(
        name=cast(str, name), args=copy, arguments=text.decode("utf-8", "surrogatepass")
    )


async def run_tool(run: Callable[..., object], args: Mapping[str, JSON]) -> str:
    """Call a tool, plain or asynchronous, and return its result as text."""
    value = run(**args)
    if inspect.isawaitable(value):
        value = await value
    return text_of(value)


def text_of(value: object) -> str:
    """Return a text unchanged, and any other JSON value as compact JSON."""
    if type(value) is str:
        return value
    data = dumps(plain(value, "the result", ordered=True), "the result", limit=_UNLIMITED)
    return data.decode("utf-8", "surrogatepass")


def failure_of(error: Exception) -> str:
    """Return the text that is recorded for a tool that failed."""
    name = type(error).__name__
    try:
        reason = str(error)
    except Exception:  # noqa: BLE001 - a tool's own error may be broken too
        reason = ""
    return f"(failed: {name}: {reason})" if reason else f"(failed: {name})"


def pair(
    request: ToolRequest,
    text: str,
    ids: Callable[[], str],
    *,
    meta: Mapping[str, JSON] | None = None,
) -> tuple[Message, Message]:
    """Return messages for a call that no model wrote, and for its result, which gets `meta`."""
    wish = ToolCall(id=derived_call_id(ids()), name=request.name, arguments=request.arguments)
    source = f"{TOOL_SOURCE}{request.name}"
    call = Message(role="assistant", tool_calls=(wish,), source=source, id=ids())
    return call, replace(result_of(request, text, wish.id, meta=meta), id=result_ids(call)[0])


def result_of(
    request: ToolRequest, text: str, call_id: str, *, meta: Mapping[str, JSON] | None = None
) -> Message:
    """Return the message that records a result; one that is too long is cut when it is stored."""
    return Message(
        role="tool",
        content=text,
        tool_call_id=call_id,
        name=request.name,
        source=f"{TOOL_SOURCE}{request.name}",
        meta=meta or {},
    )
