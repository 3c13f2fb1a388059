"""Tool calls of earlier turns with their results, in a line each: a quotation, not a call."""

from dataclasses import replace
from functools import lru_cache
from typing import Final

from keepthread.context.blocks import NO_RESULT, Block
from keepthread.context.digest import digest
from keepthread.context.quoting import flat, sanitize
from keepthread.context.rendering import label
from keepthread.context.trust import LOWEST_ORIGIN, lowest, trust_in
from keepthread.protocols import TokenCounter
from keepthread.text_caches import register_cache
from keepthread.types import Message

_SAID: Final = 240  # bytes of what the model said beside its calls
_ARGUMENTS: Final = 80
_RESULT: Final = 160


def as_lines(block: Block, counter: TokenCounter) -> Message:
    """Return a call and its results as one message, a line for each call.

    It is in the user role and quotes, as nobody said it in these words.
    """
    call = block.call
    lines = ["Assistant used tools:"]
    if call.content:
        lines.append(f"> {_short(call.content, _SAID)}")
    for number, each in enumerate(call.tool_calls):
        result = block.results.get(number)
        found = result.content if result else NO_RESULT
        lines.append(
            f"> {label(each.name)} {_short(each.arguments, _ARGUMENTS)}: {_short(found, _RESULT)}"
        )
    trust = lowest([trust_in(member) for member in block.members()])
    message = replace(
        call,
        role="user",
        content="\n".join(lines),
        tool_calls=(),
        author=None,
        name=None,
        origin="user",  # the quotation itself is our own text
        meta={**call.meta, LOWEST_ORIGIN: trust},
        native=None,
        attachments=(),
    )
    return replace(message, tokens=counter.count(message), counter=counter.name)


@lru_cache(maxsize=4096)  # every context asks for the same ones until the window moves
def _short(text: str, limit: int) -> str:
    return digest(flat(sanitize(text)), limit)


register_cache(_short.cache_clear)
