"""Cutting a text in the middle, with a visible mark, until it fits."""

from dataclasses import replace

from keepthread.context.blocks import Block
from keepthread.protocols import TokenCounter
from keepthread.types import Message

LEAST_TEXT = 16
"""Tokens of its own text that a cut message keeps at least."""


def shorten(message: Message, tokens: int, counter: TokenCounter) -> Message | None:
    """Return the message cut to at most `tokens`, or None if nothing sensible fits.

    The beginning and the end are kept. Items that a provider wrote cannot be cut and goes.
    """
    if message.tokens <= tokens:
        return message
    for text in _texts(message):
        candidate = replace(message, content=text, attachments=())
        keep = _longest(candidate, tokens, counter, upto=len(text))
        if keep is not None:
            return _cut(candidate, keep, counter)
    return None


def _texts(message: Message) -> list[str]:
    """Return what to cut: with a note of what was attached, or without if that does not fit."""
    if not message.attachments:
        return [message.content]
    note = f"[{len(message.attachments)} attached, left out]"
    return [f"{message.content}\n{note}", message.content]


def _longest(message: Message, tokens: int, counter: TokenCounter, upto: int) -> int | None:
    """Return how many characters may stay, by bisection; a character is at most a few tokens."""
    low = min(upto, LEAST_TEXT)
    if _cut(message, low, counter).tokens > tokens:
        return None
    high = min(upto, max(low, tokens * 8))
    while high - low > max(8, low // 64):
        middle = (low + high) // 2
        if _cut(message, middle, counter).tokens <= tokens:
            low = middle
        else:
            high = middle
    return low


def _cut(message: Message, keep: int, counter: TokenCounter) -> Message:
    text = message.content
    head = (keep + 1) // 2
    tail = keep - head
    gone = len(text) - keep
    middle = f"\n[… {gone:,} characters left out …]\n"
    content = text[:head] + middle + text[len(text) - tail :] if gone else text
    cut = replace(message, content=content, native=None)
    return replace(cut, tokens=counter.count(cut))


def cut_block(block: Block, tokens: int, counter: TokenCounter) -> list[Message]:
    """Return a call with its results cut to what fits, or nothing; small results stay whole."""
    call, *results = block.shown(counter)
    left = tokens - call.tokens
    cut: dict[int, Message] = {}
    by_size = sorted(range(len(results)), key=lambda n: results[n].tokens)
    for done, n in enumerate(by_size):
        share = left // (len(results) - done)
        shorter = shorten(results[n], share, counter)
        if shorter is None:
            return []
        cut[n] = shorter
        left -= shorter.tokens
    return [call, *(cut[n] for n in range(len(results)))]
