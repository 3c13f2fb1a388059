"""How fast the PostgreSQL store is beside the bare driver, and whether it stays so as it grows."""

import asyncio
import os
import platform
from functools import partial

import psycopg

from bench import Benchmark, Report, Row, Run, long_sessions
from bench.corpus import SIZES
from bench.places import file_system
from bench.postgres import beside
from bench.postgres.fill import Filled, fill
from bench.rates import TASKS, children, noise, quarter_of_memory
from servers.postgres import PostgresServer, new_server

_SMALL, _LARGE, _LONG = 1000, 100_000, 1_000_000
_QUICK_SMALL, _QUICK_LARGE, _QUICK_LONG = 32, 64, 500


def measure(run: Run) -> Report:
    """Measure everything on one server, started for it."""
    server = new_server(
        fsync="on",
        full_page_writes="on",
        synchronous_commit="on",
        shared_buffers="128MB" if run.quick else quarter_of_memory(),
        max_wal_size="8GB",  # so that no checkpoint falls into somebody's slice
        checkpoint_timeout="1h",
        autovacuum_naptime="1min",  # as it is by default
    )
    try:
        rows = asyncio.run(_measure(run, server))
        return Report(setting=_setting(run, server), rows=[*rows, noise(run)], notes=_notes(server))
    finally:
        server.close()


async def _measure(run: Run, server: PostgresServer) -> list[Row]:
    assert server.process
    pids = partial(children, server.process.pid)
    few, many, long = (
        (_QUICK_SMALL, _QUICK_LARGE, _QUICK_LONG) if run.quick else (_SMALL, _LARGE, _LONG)
    )
    rows: list[Row] = []
    bare: dict[int, float] = {}
    opened: list[Filled] = []
    try:
        for size in SIZES:
            opened.append(await fill(run, server, f"small{size}", size, few))
            found, bare[size] = await beside.measure(run, server, opened[-1], pids)
            rows += found
        opened.append(await fill(run, server, "large", SIZES[0], many, long))
        rows += await long_sessions.measure(run, opened[0].tasks, opened[-1].tasks, pids)
        for each in reversed(opened[1:]):  # of the smaller messages where there are many of them
            rows += beside.sizes(each, bare[each.tasks.size])
    finally:
        for each in opened:
            await each.store.close()
    groups = list(dict.fromkeys(row.group for row in rows))
    return sorted(rows, key=lambda row: groups.index(row.group))


def _setting(run: Run, server: PostgresServer) -> list[str]:
    ((version,),) = server.execute("SHOW server_version", database="postgres")
    ((buffers,),) = server.execute("SHOW shared_buffers", database="postgres")
    return [
        (
            f"Python {platform.python_version()}, psycopg {psycopg.__version__},"
            f" PostgreSQL {version} with buffers of {buffers}, fsync on, row-level security on;"
            f" {os.cpu_count()} CPUs for both sides, {file_system(server.folder)}."
        ),
        (
            f"{TASKS} tasks of one process, as many connections. Medians of {run.rounds}"
            " interleaved rounds; the spread is the middle half of them."
        ),
    ]


def _notes(server: PostgresServer) -> list[str]:
    if (server.programs / "pgbench").exists():
        return []
    return ["This PostgreSQL came without pgbench: its rows are left out."]


BENCHMARK = Benchmark(
    name="postgres",
    about="appends and contexts on PostgreSQL beside bare psycopg, and as the tables grow",
    measure=measure,
)
