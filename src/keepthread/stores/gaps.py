"""What every backend does alike where a position is missing: a damaged stand-in takes its place."""

from dataclasses import replace
from typing import Final

from keepthread.codec import missing
from keepthread.errors import Damaged
from keepthread.types import Message

_MOST_MISSING: Final = 1000


def without_gaps(messages: list[Message], after: int | None = None) -> list[Message]:
    """Put a damaged stand-in wherever a position is missing."""
    if not messages:
        return messages
    before = messages[0].seq - 1 if after is None else after
    if messages[-1].seq - before == len(messages):
        return messages
    whole: list[Message] = []
    for found in messages:
        # A damaged row need not know its own position.
        message = replace(found, seq=before + 1) if found.state == "damaged" else found
        if message.seq - before > _MOST_MISSING:
            raise Damaged(f"positions {before + 1} to {message.seq - 1} are missing; run `verify`")
        whole += [missing(seq) for seq in range(before + 1, message.seq)]
        whole.append(message)
        before = message.seq
    return whole
