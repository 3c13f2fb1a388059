"""Appends, contexts and bytes beside the bare driver, on one database."""

from collections.abc import Callable, Sequence

from bench import Bar, Row, Run
from bench.measure import median, middle_half
from bench.places import sync_times
from bench.postgres import pgbench
from bench.postgres.bare import COPY, TABLE, Bare
from bench.postgres.fill import Filled
from bench.rates import TASKS, cpu, rate, rounds_of, share
from bench.speed.rows import named
from bench.tasks import READ
from servers.postgres import PostgresServer

_APPENDS = Bar(0.5, at_least=True)
_CONTEXTS = Bar(0.4, at_least=True)
_BYTES = Bar(1.25)


async def measure(
    run: Run, server: PostgresServer, ours: Filled, pids: Callable[[], Sequence[int]]
) -> tuple[list[Row], float]:
    """Measure one size of message; return as well what one takes in the bare table, in bytes."""
    server.execute(TABLE, database=ours.name)
    server.execute(COPY, database=ours.name)
    server.execute("VACUUM (ANALYZE) bare", database=ours.name)
    ((size,),) = server.execute("SELECT pg_total_relation_size('bare')", database=ours.name)
    bare = await Bare.open(ours.url, ours.tenant, ours.used, ours.tasks.size)
    try:
        rows = [
            *await _appends(run, server, ours, bare, pids),
            *await _contexts(run, server, ours, bare, pids),
        ]
    finally:
        await bare.close()
    return rows, size / ours.tasks.messages


async def _appends(
    run: Run, server: PostgresServer, ours: Filled, bare: Bare, pids: Callable[[], Sequence[int]]
) -> list[Row]:
    group = f"durable appends, {TASKS} connections"
    size = ours.tasks.size
    syncs: list[float] = []

    async def sync(count: int) -> None:
        syncs.extend(sync_times(server.folder, min(count, 64)))

    work = {
        "bare": bare.append,
        "keepthread": ours.tasks.append,
        "one session": ours.tasks.append_to_one,
    }
    rounds = await rounds_of(run, f"appends, {size} bytes", work | {"sync": sync}, 480, pids)
    return [
        rate(group, named("appends, bare INSERT", size), rounds, "bare"),
        rate(group, named("appends, keepthread", size), rounds, "keepthread"),
        share(group, named("appends beside bare", size), rounds, "keepthread", "bare", _APPENDS),
        *cpu(group, "append", size, rounds, ("bare", "keepthread")),
        rate(group, named("appends, all to one session", size), rounds, "one session"),
        *_by_pgbench(run, server, ours, group, "INSERT", pgbench.insert(ours.tenant, size)),
        Row(
            group=group,
            name=named("fdatasync between", size),
            value=median(syncs) * 1000,
            unit="ms",
            spread=middle_half([each * 1000 for each in syncs]),
        ),
    ]


async def _contexts(
    run: Run, server: PostgresServer, ours: Filled, bare: Bare, pids: Callable[[], Sequence[int]]
) -> list[Row]:
    group = f"contexts from {READ} messages, {TASKS} connections"
    size = ours.tasks.size
    work = {"bare": bare.newest, "keepthread": ours.tasks.context}
    rounds = await rounds_of(run, f"contexts, {size} bytes", work, 320, pids)
    return [
        rate(group, named(f"bare SELECT of the last {READ}", size), rounds, "bare"),
        rate(group, named("contexts and their why", size), rounds, "keepthread"),
        share(group, named("contexts beside bare", size), rounds, "keepthread", "bare", _CONTEXTS),
        *cpu(group, "context", size, rounds, ("bare", "keepthread")),
        *_by_pgbench(run, server, ours, group, "SELECT", pgbench.newest(ours.tenant, ours.sids)),
    ]


def _by_pgbench(
    run: Run, server: PostgresServer, ours: Filled, group: str, what: str, script: str
) -> list[Row]:
    name = named(f"bare {what} by pgbench", ours.tasks.size)
    return pgbench.measure(run, server, ours.name, group, name, script)


def sizes(ours: Filled, bare: float) -> list[Row]:
    """Compare what a message takes on the disk with what it takes in the bare table."""
    group, number = "bytes per message, with all indexes", ours.tasks.messages
    return [
        Row(
            group=group,
            name=named("bytes per message, bare table", ours.tasks.size),
            value=bare,
            unit="bytes",
        ),
        Row(
            group=group,
            name=named(f"bytes per message, ours of {number:,} messages", ours.tasks.size),
            value=ours.bytes / number / bare,
            unit="× bare",
            bar=_BYTES,
        ),
    ]
