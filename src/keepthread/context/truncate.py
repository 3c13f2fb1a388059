"""Cutting a text in the middle, with a visible mark, until it fits."""

from collections.abc import Sequence
from dataclasses import replace

from keepthread.context.blocks import Block
from keepthread.protocols import TokenCounter
from keepthread.references import Reference
from keepthread.types import Message

LEAST_TEXT = 16
"""Tokens of its own text that a cut message keeps at least."""


def shorten(message: Message, tokens: int, counter: TokenCounter) -> Message | None:
    """Return the message cut to at most `tokens`, or None if nothing sensible fits.

    The beginning and the end are kept. Items that a provider wrote cannot be cut and are dropped.
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


def how_cut(whole: Message, cut: Message) -> Reference | None:
    """Return how a message was cut, or None if it is not the other one cut by `shorten`."""
    for text in _texts(whole):
        # The mark has the number of characters that are gone, so its own length depends on it.
        digits = range(1, len(f"{len(text):,}") + 1)
        marked = [len(cut.content) - len(_mark(0)) + 1 - number for number in digits]
        for keep in (len(text), *marked):
            if 0 <= keep <= len(text) and _without_middle(text, keep) == cut.content:
                noted = len(text) > len(whole.content)
                return Reference("cut", (whole.seq,), number=keep, noted=noted)
    return None


def cuts(whole: Sequence[Message], shown: Sequence[Message]) -> list[tuple[Message, Reference]]:
    """Return the shown messages that are cut, and how each was cut."""
    by_seq = {message.seq: message for message in whole}
    pairs = [(m, by_seq[m.seq]) for m in shown if m.seq in by_seq]
    return [
        (message, how)
        for message, uncut in pairs
        if message.content != uncut.content and (how := how_cut(uncut, message))
    ]


def cut_again(message: Message, cut: Reference, counter: TokenCounter) -> Message:
    """Return a message cut as it was before."""
    texts = _texts(message)
    text = texts[0] if cut.noted else texts[-1]
    return _cut(replace(message, content=text, attachments=()), cut.number, counter)


def _mark(gone: int) -> str:
    return f"\n[… {gone:,} characters left out …]\n"


def _without_middle(text: str, keep: int) -> str:
    head = (keep + 1) // 2
    gone = len(text) - keep
    return text[:head] + _mark(gone) + text[head + gone :] if gone else text


def _cut(message: Message, keep: int, counter: TokenCounter) -> Message:
    content = _without_middle(message.content, keep)
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
