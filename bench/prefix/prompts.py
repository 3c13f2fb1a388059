"""The prompts of a conversation: what of each stood in the one before, and how long its tail is."""

import json
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import takewhile
from typing import NamedTuple

from bench.counters import Counter
from keepthread import Context


@dataclass(slots=True)
class Prompts:
    """What the calls of one conversation add up to, under one view."""

    counter: Counter
    tokens: int = 0
    unchanged: int = 0
    body: int = 0
    """The tokens of all but the tails."""
    unchanged_body: int = 0
    used: list[float] = field(default_factory=list[float])
    """The share of the budget that each call takes, once something had to be left out."""
    _before: list[str] = field(default_factory=list[str])

    def add(self, context: Context) -> None:
        """Take in the next call."""
        prompt = [json.dumps(message) for message in context.to_openai_chat()["messages"]]
        pairs = zip(self._before, prompt, strict=False)
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        tail = len(prompt) - tail_length(context)
        sizes = [_size(self.counter, message) for message in prompt]
        self.tokens += sum(sizes)
        self.unchanged += sum(sizes[:same])
        self.body += sum(sizes[:tail])
        self.unchanged_body += sum(sizes[: min(same, tail)])
        if self.used or context.why.left_out:
            self.used.append(context.tokens / context.why.budget)
        self._before = prompt

    @property
    def shares(self) -> "Shares":
        """Return what they come to."""
        tail = self.tokens - self.body
        return Shares(
            unchanged=_percent(self.unchanged, self.tokens),
            used=100 * sum(self.used) / len(self.used) if self.used else None,
            body=_percent(self.unchanged_body, self.body),
            tail=_percent(tail, self.tokens),
            unchanged_tail=_percent(self.unchanged - self.unchanged_body, tail),
        )


class Shares(NamedTuple):
    """What a conversation's prompts come to, in per cent."""

    unchanged: float
    used: float | None
    """Of the budget; None if nothing ever had to be left out."""
    body: float
    """What is unchanged of all but the tails."""
    tail: float
    """The tails' share of the prompts."""
    unchanged_tail: float


def tail_length(context: Context) -> int:
    """Return how many messages at the end change by their nature.

    They are late results, the newest user message and its blocks, in this order.
    """
    shown = context.why.shown
    newest = {choice.first for choice in shown if choice.section == "newest"}
    seqs = [message.seq for message in context.messages]
    at = next((n for n in reversed(range(len(seqs))) if seqs[n] in newest), len(seqs))
    pairs = sum(choice.section == "tools" for choice in shown)
    return len(seqs) - at + 2 * pairs


def _percent(part: int, whole: int) -> float:
    return 100 * part / whole if whole else 0.0


@lru_cache(maxsize=8192)
def _size(counter: Counter, message: str) -> int:
    return counter.measure(message)
