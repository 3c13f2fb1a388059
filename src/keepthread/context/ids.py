"""Ids that follow from others: the same parts always give the same id.

They have the shape of our own ids, as a UUID of version 8, so that a tool's result can be
matched to exactly one call: servers reuse call ids. The last digits
are a checksum of the others: a caller's own id of 32 random digits is not mistaken for one.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from typing import Final

from keepthread.types import Message, ToolCall

_LENGTH: Final = 32
_CHECKED: Final = 26
"""Digits before the checksum."""


def derived_id(*parts: str) -> str:
    """Return the id derived from these parts."""
    seed = "\0".join(parts).encode("utf-8", "surrogatepass")
    digits = hashlib.sha256(seed).hexdigest()
    checked = f"{digits[:12]}8{digits[13:16]}8{digits[17:_CHECKED]}"
    return checked + _checksum(checked)


def derived_ids(*parts: str) -> Callable[[], str]:
    """Return a function that yields one id after another, the same for the same parts."""
    numbers = count()
    return lambda: derived_id(*parts, str(next(numbers)))


def derived_call_id(*parts: str) -> str:
    """Return the id of a tool call derived from these parts: digits take the fewest tokens."""
    seed = "\0".join(parts).encode("utf-8", "surrogatepass")
    return f"call_{int.from_bytes(hashlib.sha256(seed).digest()[:8]) % 10**12:012}"


def is_derived(id: str) -> bool:
    """Return whether an id was made by `derived_id`; one of 2**32 random ids passes too."""
    shaped = len(id) == _LENGTH and id[12] == "8" and id[16] == "8"
    return shaped and id[_CHECKED:] == _checksum(id[:_CHECKED])


def _checksum(digits: str) -> str:
    seed = digits.encode("utf-8", "surrogatepass")
    return hashlib.sha256(seed).hexdigest()[: _LENGTH - _CHECKED]


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


def distinct_calls(calls: Sequence[ToolCall]) -> Sequence[ToolCall]:
    """Return the calls of one reply under ids that differ: some servers repeat an id, or give none.

    The first call of an id keeps it. Results are paired with calls by these ids.
    """
    given = {call.id for call in calls}
    if len(given) == len(calls) and "" not in given:
        return calls
    used: set[str] = set()
    named: list[ToolCall] = []
    for number, call in enumerate(calls):
        id = call.id if call.id and call.id not in used else _free_id(call.id, number, given | used)
        used.add(id)
        named.append(replace(call, id=id))
    return named


def _free_id(id: str, number: int, taken: set[str]) -> str:
    plain = f"call_{number}"
    if not id and plain not in taken:
        return plain
    trials = (derived_call_id(id, str(number), str(trial)) for trial in count())
    return next(trial for trial in trials if trial not in taken)
