"""What the HTTP server costs: beside the library in process, and beside a bare FastAPI route."""

import asyncio
import os
import platform
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import fastapi
import psycopg
import uvicorn

from bench import Bar, Benchmark, Report, Row, Run
from bench.corpus import SIZES
from bench.http import listeners
from bench.http.client import Address
from bench.http.load import Clients, latencies, percentile
from bench.http.served import WORKERS, Requests, Served, new_key, served, size_of
from bench.measure import median, middle_half
from bench.places import file_system
from bench.postgres.bare import COPY, TABLE
from bench.postgres.fill import Filled, fill
from bench.rates import TASKS, Work, children, cpu, noise, rate, rounds_of, share
from bench.tasks import READ
from servers.postgres import PostgresServer, new_server

_SESSIONS, _QUICK_SESSIONS = 1000, 32
_SECONDS_AT_HALF = 5.0
_MILLI = 1000.0


class Subject(NamedTuple):
    """One kind of request, on both servers and in process."""

    name: str
    group: str
    count: int
    bar: Bar
    bare: Callable[[int], list[bytes]]
    ours: Callable[[int], list[bytes]]
    library: Work


def measure(run: Run) -> Report:
    """Measure everything on one database server, started for it."""
    server = new_server(
        fsync="on",
        full_page_writes="on",
        synchronous_commit="on",
        shared_buffers="128MB" if run.quick else "1GB",
        max_wal_size="8GB",  # so that no checkpoint falls into somebody's slice
        checkpoint_timeout="1h",
        autovacuum_naptime="1min",  # as it is by default
    )
    try:
        rows, notes = asyncio.run(_measure(run, server))
        return Report(setting=_setting(run, server), rows=[*rows, noise(run)], notes=notes)
    finally:
        server.close()


async def _measure(run: Run, server: PostgresServer) -> tuple[list[Row], list[str]]:
    assert server.process
    filled = await fill(
        run, server, "served", SIZES[0], _QUICK_SESSIONS if run.quick else _SESSIONS
    )
    server.execute(TABLE, database=filled.name)
    server.execute(COPY, database=filled.name)
    server.execute("VACUUM (ANALYZE) bare", database=filled.name)
    try:
        with served(filled, await new_key(filled)) as both:
            pids = partial(_pids, server.process.pid, both)
            requests = Requests(filled, both)
            rows: list[Row] = []
            notes: list[str] = []
            for subject in _subjects(filled, requests):
                rows += await _rates(run, both, subject, pids)
                notes.append(await _sizes(both, subject))
            rows += await listeners.measure(run, both, requests, pids)
    finally:
        await filled.store.close()
    return rows, notes


def _pids(database: int, both: Served) -> Sequence[int]:
    return [*children(database), *both.pids()]


def _subjects(filled: Filled, requests: Requests) -> list[Subject]:
    how = f"{TASKS} connections, {WORKERS} worker"
    return [
        Subject(
            "append",
            f"durable appends, {how}",
            160,
            Bar(0.5, at_least=True),
            requests.bare_appends,
            requests.appends,
            filled.tasks.append,
        ),
        Subject(
            "context",
            f"contexts from {READ} messages, {how}",
            96,
            Bar(0.4, at_least=True),
            requests.bare_reads,
            requests.contexts,
            filled.tasks.context,
        ),
    ]


async def _rates(
    run: Run, both: Served, subject: Subject, pids: Callable[[], Sequence[int]]
) -> list[Row]:
    bare, ours = await Clients.open(both.bare), await Clients.open(both.ours)

    async def ask_bare(count: int) -> None:
        await bare.send(subject.bare(count))

    async def ask_ours(count: int) -> None:
        await ours.send(subject.ours(count))

    work = {"bare route": ask_bare, "HTTP": ask_ours, "library": subject.library}
    rounds = await rounds_of(run, f"{subject.name}s", work, subject.count, pids)
    bare.close()
    ours.close()
    group, name = subject.group, subject.name
    cost = [each["bare route"].server / each["HTTP"].server for each in rounds]
    shown = [
        rate(group, f"{name}s, bare route", rounds, "bare route"),
        rate(group, f"{name}s, over HTTP", rounds, "HTTP"),
        rate(group, f"{name}s, library in process", rounds, "library"),
        share(group, f"{name}s beside the bare route", rounds, "HTTP", "bare route", subject.bar),
        Row(
            group=group,
            name=f"{name}s beside the bare route, by CPU of the servers",
            value=median(cost),
            unit="of bare",
            spread=middle_half(cost),
        ),
        *cpu(group, name, SIZES[0], rounds, ("bare route", "HTTP", "library")),
    ]
    for what, address, requests, at in (
        ("bare route", both.bare, subject.bare, shown[0].value),
        ("over HTTP", both.ours, subject.ours, shown[1].value),
    ):
        shown += await _at_half(run, group, f"{name}, {what}", address, requests, at / 2)
    return shown


async def _at_half(
    run: Run,
    group: str,
    name: str,
    address: Address,
    requests: Callable[[int], list[bytes]],
    rate: float,
) -> list[Row]:
    """Return the time that a request takes at half of the highest load."""
    run.progress(f"{name} at half of the load")
    number = max(16, int(rate * (0.2 if run.quick else _SECONDS_AT_HALF)))
    found = await latencies(address, requests(number), rate)
    return [
        Row(
            group=group,
            name=f"{label} of a {name}, at {rate:,.0f}/s",
            value=percentile(found, part) * _MILLI,
            unit="ms",
        )
        for label, part in (("p50", 0.5), ("p99", 0.99))
    ]


async def _sizes(both: Served, subject: Subject) -> str:
    found: list[int] = []
    for address, requests in ((both.bare, subject.bare), (both.ours, subject.ours)):
        clients = await Clients.open(address, 1)
        found.append(size_of(await clients.ask(requests(1)[0])))
        clients.close()
    return f"The response to one {subject.name}: {found[0]:,} bytes bare, {found[1]:,} over HTTP."


def _setting(run: Run, server: PostgresServer) -> list[str]:
    ((version,),) = server.execute("SHOW server_version", database="postgres")
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return [
        (
            f"Python {platform.python_version()}, FastAPI {fastapi.__version__}, uvicorn"
            f" {uvicorn.__version__} with h11, psycopg {psycopg.__version__}, PostgreSQL {version},"
            f" fsync on; {usable} CPUs for clients, servers and database, on"
            f" {file_system(server.folder)}."
        ),
        (
            f"Messages of {SIZES[0]} bytes. Medians of {run.rounds} interleaved rounds; the spread"
            " is the middle half of them."
        ),
    ]


BENCHMARK = Benchmark(
    name="http",
    about="appends, contexts and event streams over HTTP, beside a bare FastAPI route",
    measure=measure,
)
