"""Rates against a server: many tasks at once, taken in turn; the clock, and CPU of both sides."""

import asyncio
import hashlib
import os
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

from bench import Bar, Row, Run
from bench.measure import MICRO, median, middle_half, no_collection
from bench.speed.rows import named

TASKS = 16
"""Tasks of one process, and connections, of both sides."""

Work: TypeAlias = Callable[[int], Awaitable[object]]
"""Does the same thing so many times."""
_CALCULATIONS = 3000


class Spent(NamedTuple):
    """Seconds that one operation took: on the clock, and of CPU on both sides."""

    wall: float
    client: float
    server: float


Round: TypeAlias = Mapping[str, Spent]


async def together(count: int, do: Callable[[int, int], Awaitable[object]]) -> None:
    """Let every task do its share; each is told its number and how often."""
    await asyncio.gather(*(do(task, count // TASKS) for task in range(TASKS)))


async def in_turn(
    work: Mapping[str, Work], *, slices: int, count: int, pids: Callable[[], Sequence[int]]
) -> dict[str, Spent]:
    """Return what each kind of work takes once: `slices` times `count` of each, in turn."""
    spent = dict.fromkeys(work, Spent(0.0, 0.0, 0.0))
    names = list(work)
    with no_collection():
        for turn in range(slices):
            first = turn % len(names)
            for name in names[first:] + names[:first]:
                taken = await _once(work[name], count, pids)
                spent[name] = Spent(*(a + b for a, b in zip(spent[name], taken, strict=True)))
    return {name: Spent(*(each / (slices * count) for each in s)) for name, s in spent.items()}


async def _once(work: Work, count: int, pids: Callable[[], Sequence[int]]) -> Spent:
    server = server_cpu(pids())  # looked up outside of the clock
    start, client = time.perf_counter(), time.process_time()
    await work(count)
    wall, client = time.perf_counter() - start, time.process_time() - client
    return Spent(wall, client, server_cpu(pids()) - server)


async def rounds_of(
    run: Run, what: str, work: Mapping[str, Work], count: int, pids: Callable[[], Sequence[int]]
) -> list[dict[str, Spent]]:
    """Warm up, then measure round by round; `count` operations of each kind in a slice."""
    slices = 1 if run.quick else 3
    count = TASKS * (2 if run.quick else count // TASKS)
    await in_turn(work, slices=1, count=count, pids=pids)
    found: list[dict[str, Spent]] = []
    for number in range(run.rounds):
        run.progress(f"{what}: round {number + 1} of {run.rounds}")
        found.append(await in_turn(work, slices=slices, count=count, pids=pids))
    return found


def server_cpu(pids: Sequence[int]) -> float:
    """Return the CPU seconds of processes with all their threads; 0 where Linux is not."""
    used = 0
    for pid in pids:
        for thread in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            try:
                used += int(thread.read_text().split()[0])
            except (OSError, IndexError):  # it ended meanwhile
                continue
    return used / 1e9


def quarter_of_memory() -> str:
    """Return the buffers that PostgreSQL's documentation recommends, as its setting."""
    return f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') // 4 >> 20}MB"


def children(pid: int) -> list[int]:
    """Return a process and those it started."""
    try:
        found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [pid, *map(int, found)]


def rate(group: str, name: str, rounds: Sequence[Round], what: str) -> Row:
    """Return a row of operations in a second."""
    rates = [1 / each[what].wall for each in rounds]
    return Row(group=group, name=name, value=median(rates), unit="/s", spread=middle_half(rates))


def share(
    group: str, name: str, rounds: Sequence[Round], what: str, base: str, bar: Bar | None
) -> Row:
    """Return a row that says which share of the base's rate is reached."""
    found = [each[base].wall / each[what].wall for each in rounds]
    return Row(
        group=group,
        name=name,
        value=median(found),
        unit="of bare",
        spread=middle_half(found),
        bar=bar,
    )


def slower(
    group: str, name: str, rounds: Sequence[Round], what: str, base: str, unit: str, bar: Bar
) -> Row:
    """Return a row that says how many times as long as the base something takes."""
    found = [each[what].wall / each[base].wall for each in rounds]
    return Row(
        group=group, name=name, value=median(found), unit=unit, spread=middle_half(found), bar=bar
    )


def cpu(
    group: str, name: str, size: int, rounds: Sequence[Round], kinds: Sequence[str]
) -> Iterator[Row]:
    """Yield rows of CPU on both sides, of each kind of work."""
    for side in ("client", "server"):
        for kind in kinds:
            found = [getattr(each[kind], side) * MICRO for each in rounds]
            yield Row(
                group=group,
                name=named(f"{name}, CPU of the {side}, {kind}", size),
                value=median(found),
                unit="µs",
                spread=middle_half(found),
            )


def noise(run: Run) -> Row:
    """Return how long a fixed calculation takes on the clock, against its fastest round."""
    times: list[float] = []
    for _ in range(10 * run.rounds):
        start = time.perf_counter()
        for _ in range(_CALCULATIONS):
            hashlib.sha256(b"the same").digest()
        times.append(time.perf_counter() - start)
    found = [each / min(times) for each in times]
    return Row(
        group="the machine",
        name="a fixed calculation beside",
        value=median(found),
        unit="× its fastest",
        spread=middle_half(found),
    )
