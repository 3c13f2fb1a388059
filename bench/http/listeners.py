"""Event streams beside appends: what 200 people who watch their own events cost all others."""

import asyncio
from collections.abc import Callable, Sequence
from itertools import cycle, islice

from bench import Bar, Row, Run
from bench.http.client import Listener
from bench.http.load import Clients
from bench.http.served import Requests, Served
from bench.measure import median, middle_half
from bench.rates import TASKS, Spent, in_turn

LISTENERS = 200
_COST = Bar(0.9, at_least=True)
_GROUP = f"{LISTENERS} event streams, each of an owner who is written to"


async def measure(
    run: Run, served: Served, requests: Requests, pids: Callable[[], Sequence[int]]
) -> list[Row]:
    """Measure appends to sessions of as many owners, without and with a stream of each."""
    owners = [f"listener {number}".replace(" ", "-") for number in range(LISTENERS)]
    clients = await Clients.open(served.ours)
    await clients.send([requests.session(owner) for owner in owners])
    coming = cycle(owners)

    async def append(count: int) -> None:
        await clients.send([requests.append("mine", owner) for owner in islice(coming, count)])

    async def one(name: str) -> Spent:
        spent = await in_turn({name: append}, slices=1, count=count, pids=pids)
        return spent[name]

    count = TASKS * (2 if run.quick else 25)
    rounds: list[dict[str, Spent]] = []
    await one("warm")
    for number in range(run.rounds):
        run.progress(f"event streams: round {number + 1} of {run.rounds}")
        found = {"without": await one("without")}
        streams = [await Listener.open(served.ours, requests.events(owner)) for owner in owners]
        found["with"] = await one("with")
        await _all_heard(streams, count)
        for each in streams:
            each.close()
        rounds.append(found)
    clients.close()
    return _rows(rounds)


async def _all_heard(streams: Sequence[Listener], count: int) -> None:
    """Wait until every append has been heard."""
    async with asyncio.timeout(30):
        while sum(each.events for each in streams) < count:  # noqa: ASYNC110 - of many
            await asyncio.sleep(0.05)


def _rows(rounds: Sequence[dict[str, Spent]]) -> list[Row]:
    rows = [
        _row(f"appends {name} streams", [1 / each[name].wall for each in rounds], "/s")
        for name in ("without", "with")
    ]
    clock = [each["without"].wall / each["with"].wall for each in rounds]
    cpu = [_cpu(each["without"]) / _cpu(each["with"]) for each in rounds]
    return [
        *rows,
        _row("rate with streams", clock, "of without", _COST),
        _row("rate with streams, by CPU", cpu, "of without"),
    ]


def _cpu(spent: Spent) -> float:
    return spent.client + spent.server


def _row(name: str, values: Sequence[float], unit: str, bar: Bar | None = None) -> Row:
    return Row(
        group=_GROUP,
        name=name,
        value=median(values),
        unit=unit,
        spread=middle_half(values),
        bar=bar,
    )
