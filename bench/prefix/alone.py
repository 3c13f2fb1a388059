"""A window by itself, in steps and sliding: no pins, no notes, no summary."""

import asyncio
from collections.abc import Iterator, Sequence

from bench import Bar, Row, Run
from bench.counters import Counter
from bench.measure import median
from bench.prefix.held import BUDGETS, OTHER_SEEDS, SEED, hold
from bench.prefix.prompts import Shares
from bench.talks import KINDS, Kind
from keepthread import View, Window


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


def measure(run: Run, turns: int, counter: Counter) -> Iterator[Row]:
    """Hold the conversations with bars, and in a whole run others, which have none."""
    views = {f"{way} {budget}": view for way, by in WAYS.items() for budget, view in by.items()}

    def held(kind: Kind, seed: int, way: str = "") -> dict[str, Shares]:
        run.progress(f"{kind}, conversation {seed}")
        some = {name: view for name, view in views.items() if name.startswith(way)}
        return asyncio.run(hold(kind, seed, turns, some, counter))

    found = {kind: held(kind, SEED) for kind in KINDS}
    for budget in BUDGETS:
        for way in WAYS:
            for kind in KINDS:
                yield from _rows(budget, way, kind, found[kind][f"{way} {budget}"])
    if run.quick:
        return
    others = {kind: [held(kind, seed, STEPPING) for seed in OTHER_SEEDS] for kind in KINDS}
    for budget in BUDGETS:
        for kind in KINDS:
            some = [each[f"{STEPPING} {budget}"] for each in others[kind]]
            yield from _others(budget, kind, some)


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


def _others(budget: int, kind: Kind, shares: Sequence[Shares]) -> Iterator[Row]:
    """Yield the median of several conversations, the least and the most."""
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
