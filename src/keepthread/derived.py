"""Ids that follow from others: the same parts always give the same id.

They have the shape of our own ids, as a UUID of version 8, so that a tool's result can be told to
belong to one call and to no other: servers use the same call ids again and again.
"""

import hashlib
from collections import Counter
from collections.abc import Callable
from itertools import count

from keepthread.types import Message


def derived_id(*parts: str) -> str:
    """Return the id that these parts stand for."""
    seed = "\0".join(parts).encode("utf-8", "surrogatepass")
    digits = hashlib.sha256(seed).hexdigest()
    return f"{digits[:12]}8{digits[13:16]}8{digits[17:32]}"


def derived_ids(*parts: str) -> Callable[[], str]:
    """Return what gives one id after another, the same ones for the same parts."""
    numbers = count()
    return lambda: derived_id(*parts, str(next(numbers)))


def derived_call_id(*parts: str) -> str:
    """Return the id of a tool call that these parts stand for: digits take the fewest tokens."""
    seed = "\0".join(parts).encode("utf-8", "surrogatepass")
    return f"call_{int.from_bytes(hashlib.sha256(seed).digest()[:8]) % 10**12:012}"


def is_derived(id: str) -> bool:
    """Tell whether an id has the shape of a derived one."""
    return len(id) == 32 and id[12] == "8" and id[16] == "8"


def result_ids(message: Message) -> list[str]:
    """Return the ids of the results of a message's calls, in order.

    A call id used again in one message gets results of its own.
    """
    times: Counter[str] = Counter()
    ids: list[str] = []
    for call in message.tool_calls:
        again = [str(times[call.id])] if times[call.id] else []
        ids.append(derived_id("result", message.id, call.id, *again))
        times[call.id] += 1
    return ids
