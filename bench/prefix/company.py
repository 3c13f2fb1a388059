"""`Hybrid` beside `Window` where both have company: pins, notes, remembered results, a summary.

The tail of a prompt changes by its nature: late results, the newest message, its blocks. It has
rows of its own, and what is judged is all but the tail.
"""

import asyncio
from collections.abc import Iterator, Sequence

from bench import Bar, Row, Run
from bench.counters import Counter
from bench.measure import median
from bench.prefix.held import BUDGETS, OTHER_SEEDS, PINS, SEED, hold
from bench.prefix.prompts import Shares
from bench.talks import KINDS, Kind
from keepthread import Hybrid, View, Window

WINDOW, HYBRID = "window", "hybrid"
_STRATEGIES = {WINDOW: Window(), HYBRID: Hybrid()}
_BESIDE = Bar(-2, at_least=True)
"""Points of unchanged prefix that a hybrid context may have fewer than a window alone."""
_USED = {4096: Bar(80, at_least=True), 32_768: Bar(60, at_least=True)}
SETTING = (
    (
        f"In company: {PINS} early messages pinned, notes of 100 tokens in all, remembered results"
        " of up to 200, a running summary. The tail is what changes with each turn."
    ),
    "The shares and the step of hybrid contexts were chosen on conversations 11 to 16.",
)


def measure(run: Run, turns: int, counter: Counter) -> Iterator[Row]:
    """Hold the conversations with bars, and in a whole run others, which have none."""
    views = {f"{n} {b}": View(b, each) for n, each in _STRATEGIES.items() for b in BUDGETS}

    def held(kind: Kind, seed: int) -> dict[str, Shares]:
        run.progress(f"{kind}, conversation {seed} in company")
        return asyncio.run(hold(kind, seed, turns, views, counter, company=True))

    found = {kind: held(kind, SEED) for kind in KINDS}
    for budget in BUDGETS:
        for kind in KINDS:
            window, hybrid = (found[kind][f"{name} {budget}"] for name in _STRATEGIES)
            yield from _rows(budget, kind, window, hybrid)
    if run.quick:
        return
    others = {kind: [held(kind, seed) for seed in OTHER_SEEDS] for kind in KINDS}
    for budget in BUDGETS:
        for kind in KINDS:
            pairs = [[each[f"{name} {budget}"] for name in _STRATEGIES] for each in others[kind]]
            yield from _others(budget, kind, pairs)


def _rows(budget: int, kind: Kind, window: Shares, hybrid: Shares) -> Iterator[Row]:
    group = f"{budget:,} tokens, in company"

    def row(what: str, value: float, unit: str, bar: Bar | None = None) -> Row:
        name = f"{what}, {kind}, {budget:,}"
        return Row(group=group, name=name, value=value, unit=unit, bar=bar)

    body = "% of all but the tails"
    yield row("unchanged before the tail, window", window.body, body)
    yield row("unchanged before the tail, hybrid", hybrid.body, body)
    yield row(
        "unchanged before the tail, hybrid less window",
        hybrid.body - window.body,
        "points",
        _BESIDE,
    )
    yield row("the tail, hybrid", hybrid.tail, "% of the prompts")
    yield row("unchanged in the tail, hybrid", hybrid.unchanged_tail, "% of the tails")
    if hybrid.used is not None:
        yield row("budget used, hybrid", hybrid.used, "%", _USED[budget])


def _others(budget: int, kind: Kind, pairs: Sequence[Sequence[Shares]]) -> Iterator[Row]:
    """Yield the median of several conversations, the least and the most."""
    group = f"{budget:,} tokens, in company, {len(pairs)} other conversations of each kind"
    for what, unit, values in (
        ("hybrid less window", "points", [hybrid.body - window.body for window, hybrid in pairs]),
        ("budget used, hybrid", "%", [hybrid.used or 0.0 for _, hybrid in pairs]),
    ):
        yield Row(
            group=group,
            name=f"{what}, {kind}, {budget:,} others in company",
            value=median(values),
            unit=unit,
            spread=(min(values), max(values)),
        )
