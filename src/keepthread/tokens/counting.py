"""What a message costs, whatever measures its text.

The sum over messages is never below what the text form or any wire carries: every text that may be
shown is measured, and frames stand for what wraps it.
"""

import json
from collections.abc import Callable
from typing import Final, TypeAlias

from keepthread.types import Message, ToolCall

MESSAGE_FRAME: Final = 6
"""Tokens for a message's role, label and separators."""
CALL_FRAME: Final = 8
"""Tokens for what wraps one tool call."""
AUTHOR_FRAME: Final = 2
"""Tokens for the parentheses around an author."""
ATTACHMENT_COST: Final = 1600
"""Tokens for one attachment, whatever it is: about what a large image takes."""

Measure: TypeAlias = Callable[[str], int]


def count_message(message: Message, measure: Measure) -> int:
    """Return the tokens of a message on any wire."""
    total = MESSAGE_FRAME + _lines(message.content, measure)
    if message.name:
        total += _lines(message.name, measure)
    if message.author:
        total += AUTHOR_FRAME + _lines(message.author, measure)
    if message.tool_call_id:
        total += _lines(message.tool_call_id, measure)
    for call in message.tool_calls:
        total += _count_call(call, measure)
    if message.native:
        items = json.dumps(list(message.native.items), ensure_ascii=False, separators=(",", ":"))
        total += _lines(items, measure)
    return total + ATTACHMENT_COST * len(message.attachments)


def _count_call(call: ToolCall, measure: Measure) -> int:
    shown = {call.arguments, arguments_as_json(call.arguments)}
    return (
        CALL_FRAME
        + _lines(call.id, measure)
        + _lines(call.name, measure)
        + max(_lines(form, measure) for form in shown)
    )


def arguments_as_json(arguments: str) -> str:
    """Return arguments as the JSON object that some wires demand.

    What the model wrote may be no object, or no JSON at all; it then stands inside one.
    """
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        value = {"arguments": arguments}
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _lines(text: str, measure: Measure) -> int:
    """Measure a text, with one token more for each line break: the text form indents there."""
    return measure(text) + len(f"{text}.".splitlines()) - 1
