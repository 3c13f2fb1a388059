"""Notes: what the program knows and tells, such as the screen a user is on; never an order."""

from typing import Final

from keepthread.types import Message

NOTE: Final = "note:"
"""What the source of a note begins with; its key follows."""
UNTIL: Final = "until"
"""The name under which a note's meta has the last exchange in which it holds."""


def is_note(message: Message) -> bool:
    """Tell whether the program put this message into the log."""
    return message.role == "system" and (message.source or "").startswith(NOTE)


def has_ended(message: Message, exchange: int) -> bool:
    """Tell whether a note holds no longer."""
    until = message.meta.get(UNTIL)
    return isinstance(until, int) and until < exchange
