"""What each operation costs as data grows: CPU of client and server, and calls of the store."""

import asyncio
import math
import os
import platform
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import NamedTuple

from bench import Bar, Benchmark, Report, Row, Run
from bench.growth.filling import (
    DIMENSIONS,
    EVERYTHING,
    QUICK,
    World,
    fill,
    open_world,
    serves,
    sizes,
)
from bench.growth.operations import (
    FACTS,
    FLAT,
    LARGEST_LINEAR,
    LINEAR,
    LOGARITHMIC,
    OPERATIONS,
    SEARCHING,
    expected,
)
from bench.growth.stores import STORES, Cost, Meter, counting, sites
from bench.measure import median, middle_half, no_collection
from bench.places import commit, processor

_FLAT = 1.3
_MARGIN = 1.1
_SLICE = 0.02  # seconds that an operation is repeated for in a round
_MOST_REPEATS = 40
_SECONDS = 20.0  # for all rounds of one row; what takes longer gets fewer rounds
_FEWEST_ROUNDS = 3


class Which(NamedTuple):
    """The rows to measure, by patterns."""

    operation: str = "*"
    dimension: str = "*"
    store: str = "*"

    @classmethod
    def of(cls, text: str | None) -> "Which":
        """Return the patterns of `--only`; those that are left out match everything."""
        return cls(*(part or "*" for part in (text or "").split("/")))


class Measured(NamedTuple):
    """One operation at each size of one dimension, in one store."""

    operation: str
    dimension: str
    store: str
    sizes: Sequence[int]
    costs: Sequence[Cost]
    """Medians of the rounds; calls are the fewest of them."""
    ratios: Sequence[float]
    """The CPU at the largest size by that at the smallest, of each round."""

    @property
    def kind(self) -> str:
        """Say how it may grow."""
        return expected(self.operation, self.dimension)

    @property
    def bar(self) -> Bar:
        """Return how many times as much the largest size may cost."""
        small, large = self.sizes[0], self.sizes[-1]
        grown = {
            FLAT: _FLAT,
            LOGARITHMIC: _MARGIN * math.log(large) / math.log(small),
            LINEAR: _MARGIN * large / small,
        }
        return Bar(round(max(_FLAT, grown[self.kind]), 3))

    @property
    def cpu_ratio(self) -> float:
        """Return the CPU at the largest size, as a multiple of that at the smallest."""
        return median(self.ratios)

    @property
    def calls_ratio(self) -> float:
        """Return the same of calls; those of a store that is not asked at all do not grow."""
        few, many = self.costs[0].calls, self.costs[-1].calls
        return many / few if few else 1.0 + many


def measure(run: Run) -> Report:
    """Measure all rows, or those that `--only` names."""
    which = Which.of(run.only)
    began_at = commit()  # the tree may move on while this runs for hours
    found: list[Measured] = []
    for store in STORES:
        if fnmatchcase(store, which.store):
            found += measure_store(run, store, which)
    rows = [row for each in found for row in _rows(each)]
    return Report(
        setting=_setting(run, began_at), rows=rows, figures=_figures(run, found, began_at)
    )


def measure_store(run: Run, store: str, which: Which | None = None) -> list[Measured]:
    """Measure one store along each dimension."""
    which = which or Which()
    found: list[Measured] = []
    begun = time.monotonic()
    every = [EVERYTHING] if run.quick and which.dimension == "*" else DIMENSIONS
    chosen = [name for name in every if fnmatchcase(name, which.dimension)]
    for done, dimension in enumerate(chosen):
        spent = time.monotonic() - begun
        left = (
            f", about {spent / done * (len(chosen) - done) / 60:.0f} minutes left" if done else ""
        )
        run.progress(f"{store}: {dimension}{left}")
        found += asyncio.run(_measure_dimension(run, store, dimension, which.operation))
    return found


async def _measure_dimension(run: Run, store: str, dimension: str, pattern: str) -> list[Measured]:
    chosen = QUICK if run.quick else sizes(dimension)
    names = [name for name in OPERATIONS if fnmatchcase(name, pattern)]
    with sites(run, store, len(chosen)) as places, counting():
        worlds: list[World] = []
        try:
            for size, place in zip(chosen, places, strict=True):
                run.progress(f"{store}: {dimension}: filling {size:,}")
                worlds.append(await open_world(place, size))
                if dimension != EVERYTHING and not await serves(worlds[-1], dimension):
                    return []
                await fill(worlds[-1], dimension)
            if await worlds[0].store.finder() is None:
                names = [name for name in names if name not in SEARCHING | FACTS]
            found: list[Measured] = []
            for name in names:
                run.progress(f"{store}: {dimension}: {name}")
                found.append(await _measure_operation(run, name, dimension, store, worlds))
            return found
        finally:
            for world in worlds:
                await world.memory.close()


async def _measure_operation(
    run: Run, name: str, dimension: str, store: str, worlds: Sequence[World]
) -> Measured:
    if expected(name, dimension) == LINEAR:
        most = max(LARGEST_LINEAR, 10 * worlds[0].size)
        worlds = [each for each in worlds if each.size <= most]
    begun = time.perf_counter()
    rounds = [[await _cost(name, world, 1) for world in worlds]]
    wall = time.perf_counter() - begun
    measured = _measured(name, dimension, store, worlds, rounds)
    if run.quick:
        # A little more may be by chance, such as a compaction that was due; much more is not.
        doubtful = measured.bar.limit < measured.calls_ratio < 2 * measured.bar.limit
        number, repeats = (_FEWEST_ROUNDS - 1 if doubtful else 0), 1
    else:
        repeats = max(1, min(_MOST_REPEATS, int(_SLICE * len(worlds) / wall)))
        number = min(run.rounds, max(_FEWEST_ROUNDS, int(_SECONDS / wall / repeats)))
        rounds = []  # the first time has warmed up
    with no_collection():
        for turn in range(number):
            found: dict[int, Cost] = {}
            for place in range(len(worlds)):
                at = (place + turn) % len(worlds)
                found[at] = await _cost(name, worlds[at], repeats)
            rounds.append([found[at] for at in range(len(worlds))])
    return _measured(name, dimension, store, worlds, rounds)


def _measured(
    name: str,
    dimension: str,
    store: str,
    worlds: Sequence[World],
    rounds: Sequence[Sequence[Cost]],
) -> Measured:
    sizes = [world.size for world in worlds]
    costs = [_middle(each) for each in zip(*rounds, strict=True)]
    ratios = [each[-1].cpu / max(each[0].cpu, 1e-9) for each in rounds]
    return Measured(name, dimension, store, sizes, costs, ratios)


async def _cost(name: str, world: World, repeats: int) -> Cost:
    """Return what an operation costs once."""
    meter = Meter(world.site.pids)
    for _ in range(repeats):
        await OPERATIONS[name](world, meter)
        await world.memory.idle()
    return Cost(*(each / repeats for each in meter.spent))


def _middle(rounds: Sequence[Cost]) -> Cost:
    return Cost(
        median([each.client for each in rounds]),
        median([each.server for each in rounds]),
        min(each.calls for each in rounds),
    )


# --- the report ---


def _rows(found: Measured) -> Iterator[Row]:
    group = f"{found.store}, {found.dimension}: {', '.join(f'{size:,}' for size in found.sizes)}"
    calls = [each.calls for each in found.costs]
    yield Row(
        group=group,
        name=f"{found.operation}, calls",
        value=found.calls_ratio,
        unit=f"× of {', '.join(f'{each:g}' for each in calls)}",
        bar=found.bar,
        counted=True,
    )
    cpu = [each.cpu * 1000 for each in found.costs]
    yield Row(
        group=group,
        name=f"{found.operation}, CPU",
        value=found.cpu_ratio,
        unit=f"× of {', '.join(f'{each:.3g}' for each in cpu)} ms",
        spread=middle_half(found.ratios),
        bar=found.bar,
    )


def _figures(run: Run, found: Sequence[Measured], began_at: str) -> dict[str, object]:
    return {
        "machine": f"{processor()}, {os.cpu_count()} CPUs, {platform.system()}",
        "python": platform.python_version(),
        "commit": began_at,
        "date": datetime.now(UTC).date().isoformat(),
        "rounds": run.rounds,
        "quick": run.quick,
        "rows": [_figure(each, run) for each in found],
    }


def _figure(found: Measured, run: Run) -> dict[str, object]:
    return {
        "operation": found.operation,
        "dimension": found.dimension,
        "store": found.store,
        "kind": found.kind,
        "sizes": list(found.sizes),
        "rounds": len(found.ratios),
        "client_ms": [round(each.client * 1000, 4) for each in found.costs],
        "server_ms": [round(each.server * 1000, 4) for each in found.costs],
        "calls": [round(each.calls, 2) for each in found.costs],
        "bar": found.bar.limit,
        "cpu_ratio": round(found.cpu_ratio, 3),
        "cpu_holds": found.bar.holds(found.cpu_ratio) if run.judged else None,
        "calls_ratio": round(found.calls_ratio, 3),
        "calls_hold": found.bar.holds(found.calls_ratio),
    }


def _setting(run: Run, began_at: str) -> list[str]:
    return [
        (
            f"Python {platform.python_version()}, {processor()}, {os.cpu_count()} CPUs for client"
            f" and server, commit {began_at}. Medians of {run.rounds} rounds, the sizes by turns."
        ),
        "The value is the cost at the largest size, as a multiple of that at the smallest.",
    ]


BENCHMARK = Benchmark(
    name="growth",
    about="what each operation costs as messages, sessions, owners and records grow",
    measure=measure,
)
