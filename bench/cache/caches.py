"""Simulators of the prompt caches of two providers."""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any

_LEAST = 1024
"""Tokens of the shortest prefix that is cached."""
_STEP = 128
_CACHED = 0.1
"""The price of a token that the cache has, in tokens."""
_LOOKBACK = 20
"""Blocks before a breakpoint at which Anthropic looks for an earlier one."""


class _Prompt:
    """The blocks of a prompt, in the order of the provider, and their tokens so far."""

    def __init__(self, blocks: Sequence[str], totals: Sequence[int]) -> None:
        self.blocks = blocks
        self.totals = totals

    def agreeing(self, blocks: Sequence[str]) -> int:
        """Return how many blocks another prompt begins with, too."""
        pairs = zip(self.blocks, blocks, strict=False)
        return next(
            (n for n, (a, b) in enumerate(pairs) if a != b), min(len(self.blocks), len(blocks))
        )

    def followed_by(self, blocks: Sequence[str], count: Callable[[str], int]) -> "_Prompt":
        """Return the next prompt; what agrees is not counted again."""
        same = self.agreeing(blocks)
        before = self.totals[same - 1] if same else 0
        more = list(accumulate(map(count, blocks[same:]), initial=before))[1:]
        return _Prompt(blocks, [*self.totals[:same], *more])

    def tokens(self, blocks: int) -> int:
        return self.totals[blocks - 1] if blocks else 0


class Cache:
    """The tokens that were asked, and those that the cache had."""

    price_of_others = 1.0

    def __init__(self, count: Callable[[str], int]) -> None:
        self.asked = self.cached = 0
        self._count = lru_cache(maxsize=None)(count)
        self._before = _Prompt([], [])

    @property
    def share(self) -> float:
        """Return the share of the tokens that the cache had, in percent."""
        return 100 * self.cached / self.asked

    @property
    def price(self) -> float:
        """Return what the tokens cost, in tokens that no cache has."""
        return (self.asked - self.cached) * self.price_of_others + self.cached * _CACHED


class OpenAICache(Cache):
    """The automatic cache of OpenAI: the longest prefix of an earlier prompt, in steps.

    A prompt agrees longest with the one before it, since a conversation grows at its end.
    """

    def ask(self, body: Mapping[str, Any]) -> None:
        """Take a call."""
        blocks = [json.dumps(body["tools"]), *(json.dumps(each) for each in body["messages"])]
        same = self._before.agreeing(blocks)
        hit = self._before.tokens(same)
        if same < min(len(blocks), len(self._before.blocks)):
            hit += self._count(_common(blocks[same], self._before.blocks[same]))
        self._before = self._before.followed_by(blocks, self._count)
        self.asked += self._before.tokens(len(blocks))
        self.cached += hit // _STEP * _STEP if hit >= _LEAST else 0


def _common(a: str, b: str) -> str:
    most = min(len(a), len(b))
    return a[: next((n for n in range(most) if a[n] != b[n]), most)]


class AnthropicCache(Cache):
    """The cache of Anthropic: prefixes that end at a client's breakpoint are written and found.

    Prefixes of an earlier prompt are known by how far a prompt agrees with the one before.
    """

    price_of_others = 1.25  # what is not read from the cache is written to it

    def __init__(self, count: Callable[[str], int]) -> None:
        super().__init__(count)
        self._written: set[int] = set()
        """The lengths, in blocks, of prefixes of the last prompt that are in the cache."""

    def ask(self, body: Mapping[str, Any]) -> None:
        """Take a call."""
        blocks, ends = _blocks(body)
        same = self._before.agreeing(blocks)
        known = {length for length in self._written if length <= same}
        hits = [
            length
            for end in ends
            for length in range(max(1, end - _LOOKBACK), end + 1)
            if length in known
        ]
        self._before = self._before.followed_by(blocks, self._count)
        self._written = known | {n for n in ends if self._before.tokens(n) >= _LEAST}
        self.asked += self._before.tokens(len(blocks))
        self.cached += self._before.tokens(max(hits, default=0))


def _blocks(body: Mapping[str, Any]) -> tuple[list[str], list[int]]:
    """Return the blocks of a call, and after how many of them there are breakpoints."""
    given = [("tools", each) for each in body["tools"]]
    given += [("system", each) for each in body["system"]]
    given += [(m["role"], each) for m in body["messages"] for each in m["content"]]
    ends = [n for n, (_, each) in enumerate(given, start=1) if "cache_control" in each]
    return [role + _bare(each) for role, each in given], ends


def _bare(block: Mapping[str, Any]) -> str:
    return json.dumps({name: each for name, each in block.items() if name != "cache_control"})
