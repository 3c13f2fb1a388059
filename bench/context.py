"""A context by `Hybrid` with all it can have, from a very long log, a short one, and by `Window`.

Both strategies choose from the same session: the same pins, notes and remembered results.
"""

import platform
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from functools import partial
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

from bench import Bar, Benchmark, Report, Row, Run
from bench.corpus import SIZES
from bench.furnished import NOTES, PINS, RESULTS, SHORT, STRATEGIES, Furnished, fill
from bench.measure import Work, cpu_in_turn
from bench.places import file_system
from bench.speed.rows import microseconds, named, times

_LONG, _QUICK = 1_000_000, 2_000
_BUDGETS: dict[int, int] = dict(zip(SIZES, (4096, 32_768), strict=True))
"""So that windows have some dozens of messages of either size."""
_LENGTH = Bar(1.5)
_STRATEGY = Bar(3)


def measure(run: Run) -> Report:
    """Measure at both sizes of message."""
    rows = list(chain.from_iterable(_measure(run, size) for size in SIZES))
    return Report(setting=_setting(run), rows=rows, notes=_notes(run))


def _measure(run: Run, size: int) -> Iterator[Row]:
    """Fill both files, then ask for contexts by turns."""
    long = _QUICK if run.quick else _LONG
    budget = _BUDGETS[size]
    rounds: list[dict[str, float]] = []
    with TemporaryDirectory(dir=run.memory) as folder, ExitStack() as stack:
        work: dict[str, Work] = {}
        sessions: dict[str, Furnished] = {}
        for name, number in (("short", SHORT), ("long", long)):
            path = Path(folder) / name
            fill(run, path, size, number)
            sessions[name] = stack.enter_context(closing(Furnished(path, budget)))
            for view in STRATEGIES:
                work[f"{name} {view}"] = partial(sessions[name].context, view=view)
        work["after a step"] = sessions["long"].context_after_step
        _check(sessions)
        slices, each = (4, 10) if run.quick else (20, 20)
        cpu_in_turn(work, slices=1, count=each)
        for number in range(run.rounds):
            run.progress(f"context, {size} bytes: round {number + 1} of {run.rounds}")
            rounds.append(cpu_in_turn(work, slices=slices, count=each))
    yield from _rows(rounds, f"{budget:,} tokens of messages of {size:,} bytes, CPU", size, long)


def _check(sessions: dict[str, Furnished]) -> None:
    """See that contexts have all they are said to have, and that length changes nothing in them."""
    short, long = (sessions[name].shown("hybrid") for name in ("short", "long"))
    assert short == long, (short, long)
    has = {"pins": PINS, "notes": NOTES, "tools": RESULTS, "summary": 1}
    assert has.items() <= short.items(), short


def _rows(rounds: Sequence[dict[str, float]], group: str, size: int, long: int) -> Iterator[Row]:
    for length, number in (("short", SHORT), ("long", long)):
        for view in STRATEGIES:
            name = named(f"context of {number:,} messages by {view}", size)
            yield microseconds(group, name, [r[f"{length} {view}"] for r in rounds])
    name = named(f"context of {long:,} messages by hybrid, the first after a step", size)
    yield microseconds(group, name, [r["after a step"] for r in rounds])
    for view in STRATEGIES:
        yield times(
            group,
            named(f"length, {view}, {long:,} messages", size),
            rounds,
            f"long {view}",
            f"short {view}",
            unit=f"× {SHORT:,} messages",
            bar=_LENGTH if view == "hybrid" else None,
        )
    for length, number in (("short", SHORT), ("long", long)):
        yield times(
            group,
            named(f"hybrid, {number:,} messages", size),
            rounds,
            f"{length} hybrid",
            f"{length} window",
            unit="× window",
            bar=_STRATEGY,
        )


def _setting(run: Run) -> list[str]:
    return [
        (
            f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version},"
            f" CPU on {file_system(run.memory)}. Each context with its why."
        ),
        (
            f"{PINS} pins, {NOTES} notes, {RESULTS} remembered results, a running summary;"
            " hybrid also looks back, digests and keeps."
        ),
        f"Medians of {run.rounds} interleaved rounds; the spread is the middle half of them.",
    ]


def _notes(run: Run) -> list[str]:
    if file_system(run.memory) == "tmpfs":
        return []
    return ["There is no tmpfs with room for it: CPU was measured on the disk."]


BENCHMARK = Benchmark(
    name="context",
    about="what a context takes that has pins, notes, remembered results and a summary",
    measure=measure,
)
