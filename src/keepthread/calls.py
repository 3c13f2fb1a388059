"""The tool calls of one turn: which result answers which, and what closes those that have none."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from keepthread.derived import result_ids
from keepthread.types import Message

INTERRUPTED: Final = "(interrupted before there was a result)"


class _Call(NamedTuple):
    """A tool call, the message it is in, and the id that its result has."""

    message: str
    id: str
    name: str
    result: str


class Calls(NamedTuple):
    """The tool calls of a turn, in order, and the results of which it is known they are stored."""

    calls: Sequence[_Call] = ()
    answered: frozenset[str] = frozenset()

    def name(
        self, messages: Sequence[Message], ids: Callable[[], str]
    ) -> "tuple[list[Message], Calls]":
        """Return messages with the ids that tie results to calls, and the calls once stored."""
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
        """Tell whether there is a call of that id."""
        return any(call.id == call_id for call in self.calls)

    def message_of(self, result: str) -> str:
        """Return the id of the message whose call a result answers."""
        return next(call.message for call in self.calls if call.result == result)

    def markers(self) -> list[Message]:
        """Return what closes the calls that have no result."""
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


def _calls_of(message: Message) -> list[_Call]:
    """Return a message's calls with the ids of their results."""
    return [
        _Call(message.id, call.id, call.name, result)
        for call, result in zip(message.tool_calls, result_ids(message), strict=True)
    ]


def _first_of_latest(calls: Sequence[_Call]) -> _Call | None:
    """Return the first of those calls that stand in the latest message."""
    return next((call for call in calls if call.message == calls[-1].message), None)
