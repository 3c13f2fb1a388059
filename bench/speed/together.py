"""Concurrent appends: how many commits they share, and what that gains on a disk."""

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

from bench import Bar, Row, Run
from bench.bare import Bare, rows
from bench.corpus import messages
from bench.measure import cpu_in_turn, median, middle_half, no_collection
from bench.ours import Awaited
from bench.places import sync_times
from bench.speed.append import WARM
from bench.speed.rows import named, times

GROUP = "64 concurrent appends, to 64 sessions"
TASKS = 64
_COMMITS = Bar(4)
_SLOW = 0.001  # seconds of fdatasync from which sharing a commit must gain more


def measure(run: Run, size: int) -> Sequence[Row]:
    """Measure CPU with new files each round, and rates in one file on the disk."""
    commits: list[int] = []
    cpu: list[dict[str, float]] = []
    for number in range(run.rounds):
        run.progress(f"64 appends, {size} bytes: round {number + 1} of {run.rounds}")
        with TemporaryDirectory(dir=run.memory) as folder:
            cpu.append(_cpu(Path(folder), size, bundles=6 if run.quick else 24, commits=commits))
    gains, syncs = _on_disk(run, size, commits)
    sync = median(syncs)
    gain = Bar(4 if sync >= _SLOW else 2, at_least=True)
    return [
        Row(
            group=GROUP,
            name=named("64 concurrent appends, most commits", size),
            value=max(commits),
            unit="commits",
            spread=(min(commits), max(commits)),
            bar=_COMMITS,
        ),
        Row(
            group=GROUP,
            name=named("64 concurrent appends, rate on disk", size),
            value=median(gains),
            unit="× one by one",
            spread=middle_half(gains),
            bar=gain,
        ),
        Row(
            group=GROUP,
            name=named("fdatasync beside that rate", size),
            value=sync * 1000,
            unit="ms",
            spread=middle_half([each * 1000 for each in syncs]),
        ),
        times(GROUP, named("64 concurrent appends, CPU of each", size), cpu, "together", "bare"),
    ]


def _cpu(folder: Path, size: int, *, bundles: int, commits: list[int]) -> dict[str, float]:
    number = WARM + bundles * TASKS
    with (
        closing(Bare(folder / "bare", rows(size, number, sessions=TASKS))) as bare,
        closing(Awaited(folder / "ours", messages(size, number), sessions=TASKS)) as ours,
    ):
        bare.append(WARM)
        ours.append_in_turn(WARM)
        work = {"bare": bare.append, "together": ours.append_together}
        spent = cpu_in_turn(work, slices=bundles // 3, count=3 * TASKS)
        commits += ours.commits
    return spent


def _on_disk(run: Run, size: int, commits: list[int]) -> tuple[list[float], list[float]]:
    """Return the gain in rate of each round, and what fdatasync took between."""
    bundles = 1 if run.quick else 3
    number = WARM + 2 * run.rounds * bundles * TASKS
    path = run.disk / f"together-{size}"
    gains: list[float] = []
    syncs: list[float] = []
    with closing(Awaited(path, messages(size, number), sessions=TASKS)) as ours, no_collection():
        ours.append_in_turn(WARM)
        for done in range(run.rounds):
            run.progress(f"64 appends on disk, {size} bytes: round {done + 1} of {run.rounds}")
            apart = together = 0.0
            for _ in range(bundles):
                apart += _wall(ours.append_in_turn)
                together += _wall(ours.append_together)
            gains.append(apart / together)
            syncs += sync_times(run.disk, TASKS)
        commits += ours.commits
    return gains, syncs


def _wall(work: Callable[[int], None]) -> float:
    start = time.perf_counter()
    work(TASKS)
    return time.perf_counter() - start
