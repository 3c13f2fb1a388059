"""How much of each prompt was there before: the share that stands in an unchanged prefix.

Every model call of a conversation is rendered for OpenAI's chat completions and compared, byte for
byte, with the call before it. Providers charge less for such a prefix, and are faster with it.
"""

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import takewhile
from typing import NamedTuple

from bench import Bar, Benchmark, Report, Row, Run
from bench.counters import ABSENT, EXACT, Counter, best, counters
from bench.measure import median
from bench.talks import KINDS, TURNS, Kind, system_prompt, talk
from keepthread import Context, Memory, Turn, View, Window

SEED = 1
OTHER_SEEDS = (2, 3, 4)
BUDGETS = (4096, 32_768)
_QUICK_TURNS = 60


def _at_least(limit: float) -> Bar:
    return Bar(limit, at_least=True)


_USED = _at_least(65)
_UNCHANGED = {
    (4096, 150): _at_least(90),
    (4096, 350): _at_least(82),
    (4096, 800): _at_least(68),
    (32_768, 150): _at_least(90),
    (32_768, 350): _at_least(90),
    (32_768, 800): _at_least(90),
}
"""What a kind of conversation must reach with a budget."""

STEPPING = "in steps"
SLIDING = "sliding"
WAYS = {
    STEPPING: {budget: View(budget) for budget in BUDGETS},
    SLIDING: {budget: View(budget, Window(step=0)) for budget in BUDGETS},
}


@dataclass(slots=True)
class Prompts:
    """What the calls of one conversation add up to, under one view."""

    counter: Counter
    tokens: int = 0
    unchanged: int = 0
    used: list[float] = field(default_factory=list[float])
    """The share of the budget that each call takes, once something had to be left out."""
    _before: list[str] = field(default_factory=list[str])

    def add(self, context: Context) -> None:
        """Take in the next call."""
        prompt = [json.dumps(message) for message in context.to_openai_chat()["messages"]]
        pairs = zip(self._before, prompt, strict=False)
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        sizes = [_size(self.counter, message) for message in prompt]
        self.tokens += sum(sizes)
        self.unchanged += sum(sizes[:same])
        if self.used or context.why.left_out:
            self.used.append(context.tokens / context.why.budget)
        self._before = prompt

    @property
    def shares(self) -> "Shares":
        """Return what they come to."""
        used = 100 * sum(self.used) / len(self.used) if self.used else None
        return Shares(100 * self.unchanged / self.tokens, used)


class Shares(NamedTuple):
    """What is unchanged of a conversation's tokens, and used of its budget, in per cent."""

    unchanged: float
    used: float | None
    """None if nothing ever had to be left out."""


@lru_cache(maxsize=8192)
def _size(counter: Counter, message: str) -> int:
    return counter.measure(message)


async def converse(
    kind: Kind, seed: int, turns: int, views: Mapping[str, View], counter: Counter
) -> dict[str, Shares]:
    """Hold a conversation once, and return what its prompts come to under each view."""
    prompts = {name: Prompts(counter) for name in views}

    async def call(turn: Turn) -> None:
        for name, seen in prompts.items():
            seen.add(await turn.context(name))

    async with Memory.open("ram://", views=views, counter=counter) as memory:
        session = await memory.session("talk", system_prompt=system_prompt(seed))
        for talked in talk(kind, seed, turns):
            async with session.exchange(talked.asked) as turn:
                await call(turn)
                for each in talked.rounds:
                    await turn.append(each.call)
                    await turn.append(*each.results)
                    await call(turn)
                await turn.finish(talked.answered)
    return {name: seen.shares for name, seen in prompts.items()}


def measure(run: Run) -> Report:
    """Hold the conversations with bars, and in a whole run others, which have none."""
    turns = _QUICK_TURNS if run.quick else TURNS
    counter = best()
    views = {f"{way} {budget}": view for way, by in WAYS.items() for budget, view in by.items()}

    def held(kind: Kind, seed: int, way: str = "") -> dict[str, Shares]:
        run.progress(f"{kind}, conversation {seed}")
        some = {name: view for name, view in views.items() if name.startswith(way)}
        return asyncio.run(converse(kind, seed, turns, some, counter))

    found = {kind: held(kind, SEED) for kind in KINDS}
    rows = [
        row
        for budget in BUDGETS
        for way in WAYS
        for kind in KINDS
        for row in _rows(budget, way, kind, found[kind][f"{way} {budget}"])
    ]
    if not run.quick:
        others = {kind: [held(kind, seed, STEPPING) for seed in OTHER_SEEDS] for kind in KINDS}
        rows += [
            row
            for budget in BUDGETS
            for kind in KINDS
            for row in _check(budget, kind, [each[f"{STEPPING} {budget}"] for each in others[kind]])
        ]
    return Report(setting=_setting(turns, counter), rows=rows, notes=_notes())


def _rows(budget: int, way: str, kind: Kind, shares: Shares) -> Iterator[Row]:
    group = f"{budget:,} tokens, window {way}"
    judged = way == STEPPING
    yield Row(
        group=group,
        name=f"unchanged prefix, {kind}, {budget:,} {way}",
        value=shares.unchanged,
        unit="% of the prompts",
        bar=_UNCHANGED[budget, kind.tokens] if judged else None,
    )
    if shares.used is not None:
        yield Row(
            group=group,
            name=f"budget used, {kind}, {budget:,} {way}",
            value=shares.used,
            unit="%",
            bar=_USED if judged else None,
        )


def _check(budget: int, kind: Kind, shares: Sequence[Shares]) -> Iterator[Row]:
    """Return the median of several conversations, the least and the most."""
    group = f"{budget:,} tokens, window {STEPPING}, {len(shares)} other conversations of each kind"
    for what, unit, values in (
        ("unchanged prefix", "% of the prompts", [each.unchanged for each in shares]),
        ("budget used", "%", [each.used or 0.0 for each in shares]),
    ):
        yield Row(
            group=group,
            name=f"{what}, {kind}, {budget:,} others",
            value=median(values),
            unit=unit,
            spread=(min(values), max(values)),
        )


def _setting(turns: int, counter: Counter) -> list[str]:
    tools = ", ".join(f"{kind.tools:.0%}" for kind in KINDS)
    return [
        f"Conversations of {turns} turns, tools in {tools} of them. Tokens by {counter.name}.",
        "A prompt's share is what it begins with as the one before it did, byte for byte.",
    ]


def _notes() -> list[str]:
    return [] if EXACT in counters() else [f"{ABSENT}, so tokens are estimated."]


BENCHMARK = Benchmark(
    name="prefix",
    about="how much of each prompt a provider's cache can have seen before",
    measure=measure,
)
