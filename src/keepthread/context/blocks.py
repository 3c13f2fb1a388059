"""Blocks: messages that are shown or left out together, a tool call and its results.

A result belongs to the call its own id was derived from, else to the latest call before it, of its
turn if there is one, that has its call id and no result yet. It is placed after its call,
wherever it is in the log. A call with some results missing gets stand-ins for them; one with none
is left out, and so is a result without its call.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, TypeAlias

from keepthread.context.ids import is_derived, result_ids
from keepthread.context.trust import has_ended, is_note
from keepthread.protocols import TokenCounter
from keepthread.types import Message, ToolCall

NO_RESULT = "(no result)"


class Block:
    """A call with its results by the index of the call; `fault` says why it cannot be shown."""

    __slots__ = ("call", "fault", "results")

    def __init__(self, call: Message, fault: str = "") -> None:
        """Begin with no result."""
        self.call = call
        self.fault = fault
        self.results: dict[int, Message] = {}

    def open_call(self, result: Message) -> int | None:
        """Return the index of the call without a result that this one answers.

        A result whose id was derived answers the call it was derived from, and no other.
        """
        exact = result_ids(self.call) if is_derived(result.id) else None
        for index, call in enumerate(self.call.tool_calls):
            if index in self.results or call.id != result.tool_call_id:
                continue
            if exact is None or exact[index] == result.id:
                return index
        return None

    @property
    def size(self) -> int:
        """Return how many messages it takes in a prompt."""
        return 0 if self.fault else 1 + len(self.call.tool_calls)

    def members(self) -> list[Message]:
        """Return the messages of the log it is made of, by position."""
        return [self.call, *sorted(self.results.values(), key=lambda m: m.seq)]

    def shown(self, counter: TokenCounter) -> list[Message]:
        """Return its messages in the order of a prompt, stand-ins included."""
        calls = enumerate(self.call.tool_calls)
        results = (self.results.get(n) or no_result(self.call, call, counter) for n, call in calls)
        return [self.call, *results]


Unit: TypeAlias = Message | Block
"""A single message needs no block around it."""


def can_be_shown(unit: Unit) -> bool:
    """Return whether a prompt may contain a unit."""
    return isinstance(unit, Message) or not unit.fault


def cost_of(unit: Unit, counter: TokenCounter) -> int:
    """Return what a unit takes in a prompt; one that cannot be shown takes nothing."""
    if isinstance(unit, Message):
        return unit.tokens
    return 0 if unit.fault else sum([message.tokens for message in unit.shown(counter)])


class Units(NamedTuple):
    """A log as units, the index of the first message of each, and the calls among them.

    It is plain if every unit is a single message.
    """

    units: list[Unit]
    places: list[int]
    callers: list[Block]
    plain: bool


def no_result(message: Message, call: ToolCall, counter: TokenCounter) -> Message:
    """Return the stand-in for a result that never came."""
    blank = Message(
        role="tool",
        content=NO_RESULT,
        tool_call_id=call.id,
        name=call.name,
        turn=message.turn,
        origin="tool",
    )
    return replace(blank, tokens=counter.count(blank))


def calls_of(message: Message) -> Sequence[ToolCall]:
    """Return what a message calls; only an assistant may call."""
    return message.tool_calls if message.role == "assistant" else ()


def is_answer(message: Message) -> bool:
    """Return whether a message is a model's final answer in a turn: it calls nothing."""
    return message.role == "assistant" and not message.tool_calls


def units_of(messages: Sequence[Message], turn: int = 0) -> Units:
    """Return messages as units, by the position of their first message.

    `turn` is the one to answer: notes that ended before it cannot be shown.
    """
    units: list[Unit] = []
    places: list[int] = []
    callers: list[Block] = []
    for place, message in enumerate(messages):
        unit: Unit = message
        if message.state != "live":
            unit = Block(message, fault=message.state)
        elif message.role == "tool":
            if _take_result(message, callers):
                continue
            unit = Block(message, fault="a result without its call")
        elif message.tool_calls and calls_of(message):
            unit = Block(message, fault="a call without a result")
            callers.append(unit)
        elif message.role == "system" and is_note(message) and has_ended(message, turn):
            unit = Block(message, fault="a note that has expired")
        units.append(unit)
        places.append(place)
    plain = len(units) == len(messages) and Block not in set(map(type, units))
    return Units(units, places, callers, plain)


def _take_result(message: Message, callers: list[Block]) -> bool:
    """Attach a result to its call, and return whether it has one."""
    for block in _candidates(message, callers):
        index = block.open_call(message)
        if index is not None:
            block.results[index] = message
            block.fault = ""
            return True
    return False


def _candidates(message: Message, callers: list[Block]) -> list[Block]:
    """Return the calls it may belong to, the most likely first: its own turn's, the latest."""
    latest = callers[::-1]
    return sorted(latest, key=lambda block: block.call.turn != message.turn)
