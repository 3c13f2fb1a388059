"""How fast the Redis store is beside the bare driver, and whether it stays so as it grows."""

import asyncio
import os
import platform
import re
import shutil
import subprocess
from contextlib import ExitStack, closing

import redis

from bench import Bar, Benchmark, Report, Row, Run, long_sessions
from bench.corpus import SIZES
from bench.places import file_system, sync_time
from bench.rates import TASKS, cpu, noise, rate, rounds_of, share
from bench.redis.bare import RANDOM_KEY, Bare, values
from bench.redis.fill import Filled, fill, used
from bench.speed.rows import named
from bench.tasks import READ
from servers.redis import RedisServer, new_server

_SMALL, _LARGE, _LONG = 1000, 10_000, 200_000
_QUICK_SMALL, _QUICK_LARGE, _QUICK_LONG = 32, 64, 500
_APPENDS = Bar(0.5, at_least=True)
_CONTEXTS = Bar(0.4, at_least=True)
_PERSISTENCE = {"appendonly": "yes", "appendfsync": "always"}
_PROGRAM = "redis-benchmark"


def measure(run: Run) -> Report:
    """Measure on servers of their own, one for each filling."""
    with ExitStack() as stack:
        servers = [
            stack.enter_context(closing(new_server(**_PERSISTENCE))) for _ in (*SIZES, "large")
        ]
        rows, kept = asyncio.run(_measure(run, servers))
        rows.append(noise(run))
        return Report(setting=_setting(run, servers[0], kept), rows=rows, notes=_notes())


async def _measure(run: Run, servers: list[RedisServer]) -> tuple[list[Row], str]:
    few, many, long = (
        (_QUICK_SMALL, _QUICK_LARGE, _QUICK_LONG) if run.quick else (_SMALL, _LARGE, _LONG)
    )
    rows: list[Row] = []
    opened: list[Filled] = []
    try:
        for server, size in zip(servers, SIZES, strict=False):
            opened.append(await fill(run, server, size, few))
            rows += await _beside(run, opened[-1])
        opened.append(await fill(run, servers[-1], SIZES[0], many, long))
        pids = [server.process.pid for server in servers if server.process]
        rows += await long_sessions.measure(run, opened[0].tasks, opened[-1].tasks, lambda: pids)
        kept = opened[0].store.durability
    finally:
        for each in opened:
            await each.store.close()
    groups = list(dict.fromkeys(row.group for row in rows))
    return sorted(rows, key=lambda row: groups.index(row.group)), kept


async def _beside(run: Run, ours: Filled) -> list[Row]:
    """Measure one size of message beside the bare driver."""
    bare = Bare(ours.server.url, ours.tasks.sessions, ours.tasks.size)
    before = used(ours.server)
    await bare.fill()
    theirs = used(ours.server) - before
    try:
        return [
            *_bytes(ours, theirs),
            *await _appends(run, ours, bare),
            *await _contexts(run, ours, bare),
        ]
    finally:
        await bare.close()


def _bytes(ours: Filled, theirs: int) -> list[Row]:
    group, size = "bytes of memory per message", ours.tasks.size
    each = theirs / ours.tasks.messages
    return [
        Row(
            group=group,
            name=named("bytes per message, bare list", size),
            value=each,
            unit="bytes",
        ),
        Row(
            group=group,
            name=named("bytes per message, our keys", size),
            value=ours.bytes / theirs,
            unit="× bare",
        ),
    ]


async def _appends(run: Run, ours: Filled, bare: Bare) -> list[Row]:
    group, size = f"appends, {TASKS} connections", ours.tasks.size
    work = {
        "bare": bare.append,
        "keepthread": ours.tasks.append,
        "one session": ours.tasks.append_to_one,
    }
    rounds = await rounds_of(run, f"appends, {size} bytes", work, 480, lambda: _pids(ours))
    push = ("RPUSH", RANDOM_KEY, "x" * len(values(size, 1)[0]))
    return [
        rate(group, named("appends, bare RPUSH", size), rounds, "bare"),
        rate(group, named("appends, keepthread", size), rounds, "keepthread"),
        share(group, named("appends beside bare", size), rounds, "keepthread", "bare", _APPENDS),
        *cpu(group, "append", size, rounds, ("bare", "keepthread")),
        rate(group, named("appends, all to one session", size), rounds, "one session"),
        *_by_program(run, ours, group, named("bare RPUSH by redis-benchmark", size), push),
    ]


async def _contexts(run: Run, ours: Filled, bare: Bare) -> list[Row]:
    group, size = f"contexts from {READ} messages, {TASKS} connections", ours.tasks.size
    work = {"bare": bare.newest, "keepthread": ours.tasks.context}
    rounds = await rounds_of(run, f"contexts, {size} bytes", work, 320, lambda: _pids(ours))
    read = ("LRANGE", RANDOM_KEY, str(-READ), "-1")
    return [
        rate(group, named(f"bare LRANGE of the last {READ}", size), rounds, "bare"),
        rate(group, named("contexts and their why", size), rounds, "keepthread"),
        share(group, named("contexts beside bare", size), rounds, "keepthread", "bare", _CONTEXTS),
        *cpu(group, "context", size, rounds, ("bare", "keepthread")),
        *_by_program(run, ours, group, named("bare LRANGE by redis-benchmark", size), read),
    ]


def _pids(ours: Filled) -> list[int]:
    return [ours.server.process.pid] if ours.server.process else []


def _by_program(
    run: Run, ours: Filled, group: str, name: str, command: tuple[str, ...]
) -> list[Row]:
    """Return the rate of a command by redis-benchmark; nothing if it is not on this machine."""
    program = shutil.which(_PROGRAM)
    if program is None:
        return []
    how = ("-c", TASKS, "-n", 1000 if run.quick else 50_000, "-r", ours.tasks.sessions, "-q")
    done = subprocess.run(
        [program, "-p", str(ours.server.port), *map(str, how), *command],
        capture_output=True,
        text=True,
        check=True,
    )
    found = re.findall(r"([\d.]+) requests per second", done.stdout)
    assert found, done.stdout
    return [Row(group=group, name=name, value=float(found[-1]), unit="/s")]


def _setting(run: Run, server: RedisServer, kept: str) -> list[str]:
    settings = ", ".join(f"{name} {value}" for name, value in _PERSISTENCE.items())
    return [
        (
            f"Python {platform.python_version()}, redis-py {redis.__version__},"
            f" Redis {server.ask('INFO', 'server')['redis_version']}: {settings}, which is"
            f" `{kept}`; {os.cpu_count()} CPUs for both sides, {file_system(server.folder)}"
            f" (fdatasync {sync_time(server.folder) * 1000:.3g} ms at the end)."
        ),
        (
            f"{TASKS} tasks of one process, as many connections. Medians of {run.rounds}"
            " interleaved rounds; the spread is the middle half of them."
        ),
    ]


def _notes() -> list[str]:
    if shutil.which(_PROGRAM):
        return []
    return [f"There is no {_PROGRAM} on this machine: its rows are left out."]


BENCHMARK = Benchmark(
    name="redis",
    about="appends and contexts on Redis beside bare redis-py, and as it grows",
    measure=measure,
)
