"""The memory of a process that touches many sessions of many owners, with and without an outbox.

Each store is measured in a process of its own. Every session is opened by its id and gets a
message; one in ten also makes a context, and one owner in ten has a fact. What a process keeps of
sessions and owners is bounded, so the second half must not need more memory than the first.
"""

import asyncio
import json
import platform
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Final, NamedTuple

from bench import Bar, Benchmark, Report, Row, Run
from keepthread import Memory
from servers.postgres import new_server

_SESSIONS, _OWNERS = 1_000_000, 100_000
_QUICK_SESSIONS, _QUICK_OWNERS = 200, 20
_AT_ONCE: Final = 32
_TENTHS: Final = 10
_FLAT: Final = Bar(8)
"""Megabytes: what the allocator may need more for a moment."""


class Size(NamedTuple):
    """How many sessions are touched, and of how many owners."""

    sessions: int
    owners: int


def measure(run: Run) -> Report:
    """Touch the sessions of each store, and compare the halves."""
    size = Size(_QUICK_SESSIONS, _QUICK_OWNERS) if run.quick else Size(_SESSIONS, _OWNERS)
    rows: list[Row] = []
    with ExitStack() as stack:
        if run.store is None:
            server = stack.enter_context(closing(new_server()))
            urls = {"SQLite": f"sqlite:///{run.disk}/store.db", "PostgreSQL": server.empty()}
        else:
            urls = {"the store": run.store}
        for name, url in urls.items():
            for outbox in (None, run.disk / f"{name}.outbox"):
                what = name if outbox is None else f"{name} with an outbox"
                run.progress(what)
                rows += _rows(what, size, _in_a_process(url, outbox, size))
    setting = [f"Python {platform.python_version()}", f"{size.sessions:,} sessions"]
    return Report(setting=[*setting, f"{size.owners:,} owners"], rows=rows)


def _rows(what: str, size: Size, used: Sequence[float]) -> list[Row]:
    group = f"{what}: memory of a process"
    tenths = [
        Row(
            group=group,
            name=f"{what}, after {size.sessions * tenth // _TENTHS:,} sessions",
            value=megabytes,
            unit="MB",
        )
        for tenth, megabytes in enumerate(used)
    ]
    more = max(used[_TENTHS // 2 :]) - used[_TENTHS // 2]
    name = f"{what}, more in the second half"
    return [*tenths, Row(group=group, name=name, value=more, unit="MB", bar=_FLAT)]


def _in_a_process(url: str, outbox: Path | None, size: Size) -> list[float]:
    """Touch the sessions of a store in a new process; return what it used at each tenth."""
    program = [sys.executable, "-m", "bench.process_memory"]
    done = subprocess.run(
        [*program, url, str(outbox or ""), *map(str, size)],
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


async def touch(url: str, outbox: str, size: Size) -> list[float]:
    """Touch sessions; return the megabytes in use before, and after each tenth."""
    async with Memory.open(url, outbox=outbox or None, durability="process") as memory:
        await _touch(memory, 0, size)
        used = [_megabytes()]
        for tenth in range(_TENTHS):
            start, end = (size.sessions * each // _TENTHS for each in (tenth, tenth + 1))
            for first in range(start, end, _AT_ONCE):
                numbers = range(first, min(end, first + _AT_ONCE))
                await asyncio.gather(*(_touch(memory, number, size) for number in numbers))
            await memory.idle()
            used.append(_megabytes())
    return used


async def _touch(memory: Memory, number: int, size: Size) -> None:
    owner = f"owner {number % size.owners}"
    session = await memory.session(f"session {number}", owner=owner)
    await session.add_message("user", f"What did I say in session {number}?")
    if number % 10 == 0:
        if number < size.owners:
            await memory.for_owner(owner).facts.remember(f"{owner} likes tea number {number}.")
        await session.context()


def _megabytes() -> float:
    """Return the resident memory of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) / 1024


BENCHMARK = Benchmark(
    name="memory",
    about="the memory of a process that touches many sessions and owners",
    measure=measure,
)

if __name__ == "__main__":
    address, queue, *counts = sys.argv[1:]
    print(json.dumps(asyncio.run(touch(address, queue, Size(*map(int, counts))))))
