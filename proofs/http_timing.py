"""Whether a foreign id can be told from a missing one by the time of the answer.

For each operation with an id in its path, another owner (or, for keys, another tenant) asks for ids
that exist and for ids that do not, in turn. The medians must differ by less than the spread of the
times, the smaller of the two interquartile ranges. Times are taken inside the process, around the
whole application: on the clock, and in CPU of the process, which other programs disturb less.
"""

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

from proofs.fuzz_http import empty_store
from tests.http_world import HttpWorld, Operation, furnished, http_world, operations

_FOREIGN, _MISSING = "anns-trip", "nobs-trip"
_WARM = 10
_MICRO = 1e6


class Times(NamedTuple):
    """Seconds of many requests: on the clock, and of CPU."""

    clock: list[float]
    cpu: list[float]


class Timed(NamedTuple):
    """What was measured of one operation."""

    operation: str
    status: int
    foreign: Times
    missing: Times

    def line(self) -> str:
        """Return the line of the table."""
        cells = [f"{self.operation:<24} {self.status}"]
        for foreign, missing in zip(self.foreign, self.missing, strict=True):
            medians = f"{_median(foreign):8,.0f} {_median(missing):8,.0f}"
            verdict = "same" if _alike(foreign, missing) else "DIFFERS"
            cells.append(f"{medians} {_spread(foreign, missing):8,.0f}  {verdict:<8}")
        return " ".join(cells)

    @property
    def is_alike(self) -> bool:
        """Return whether neither kind of time tells them apart."""
        return all(_alike(*each) for each in zip(self.foreign, self.missing, strict=True))


def _median(times: Sequence[float]) -> float:
    return statistics.median(times) * _MICRO


def _spread(foreign: Sequence[float], missing: Sequence[float]) -> float:
    """Return the smaller interquartile range."""
    return min(_range(foreign), _range(missing)) * _MICRO


def _range(times: Sequence[float]) -> float:
    first, _, third = statistics.quantiles(times, n=4)
    return third - first


def _alike(foreign: Sequence[float], missing: Sequence[float]) -> bool:
    return abs(_median(foreign) - _median(missing)) < _spread(foreign, missing)


class Asker:
    """Somebody who asks the application of a world directly, without a network."""

    def __init__(self, world: HttpWorld, key: str) -> None:
        self._app = world.app
        self._key = key

    async def ask(
        self, operation: Operation, ids: Mapping[str, str], owner: str | None
    ) -> tuple[int, float, float]:
        """Send the request of an operation; return its status, and seconds of clock and CPU."""
        values = {**ids, "id": f"new-{operation.id}", "title_from": ids["message"]}
        path = operation.path
        for name in operation.parameters("path"):
            path = path.replace(f"{{{name}}}", quote(values[name], safe=""))
        body = operation.body(values)
        data = body if isinstance(body, bytes) else json.dumps(body).encode() if body else b""
        headers = {"host": "localhost", "authorization": f"Bearer {self._key}"}
        if owner is not None:
            headers["keepthread-owner"] = owner
        if data:
            headers |= {"content-type": "application/json", "content-length": str(len(data))}
        if "if-match" in operation.parameters("header"):
            headers["if-match"] = "*"
        return await self._timed(operation.method, path, headers, data)

    async def _timed(
        self, method: str, path: str, headers: Mapping[str, str], data: bytes
    ) -> tuple[int, float, float]:
        scope: dict[str, Any] = {
            "type": "http",
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [(name.encode(), text.encode()) for name, text in headers.items()],
        }
        status = 0

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": data, "more_body": False}

        async def send(message: Any) -> None:
            nonlocal status
            status = message.get("status", status)

        began, cpu = time.perf_counter(), time.process_time()
        await self._app(scope, receive, send)
        return status, time.perf_counter() - began, time.process_time() - cpu


async def measure(kind: str, number: int) -> list[Timed]:
    """Measure every operation with an id in its path, on a store of a kind."""
    with empty_store(kind) as url:
        async with http_world(url) as world:
            ids = await furnished(world, "ann", _FOREIGN, "quetzal")
            missing = {
                "session": _MISSING,
                "message": f"{_MISSING}-message",
                "turn": f"{_MISSING}-turn",
                "fact": "0" * len(ids["fact"]),
                "digest": "0" * 64,
                "key": "0" * 12,
            }
            near = Asker(world, await world.key(None))
            far = Asker(world, await world.key(None, tenant="acme"))
            found: list[Timed] = []
            for operation in operations(world.app.openapi()):
                if operation.parameters("path"):
                    asker = far if operation.scope == "admin" else near
                    found.append(await _operation(asker, operation, ids, missing, number))
                    print(found[-1].line(), flush=True)
            return found


async def _operation(
    asker: Asker,
    operation: Operation,
    foreign: Mapping[str, str],
    missing: Mapping[str, str],
    number: int,
) -> Timed:
    # Each operation has an owner of its own, who may have made a session before.
    owner = None if operation.scope == "admin" else f"bob-{operation.id}"
    times = {"foreign": Times([], []), "missing": Times([], [])}
    statuses: set[int] = set()
    sides = [("foreign", foreign), ("missing", missing)]
    for turn in range(number + _WARM):
        for name, ids in sides if turn % 2 else sides[::-1]:
            status, clock, cpu = await asker.ask(operation, ids, owner)
            if turn >= _WARM:
                statuses.add(status)
                times[name].clock.append(clock)
                times[name].cpu.append(cpu)
    (status,) = statuses
    return Timed(operation.id, status, times["foreign"], times["missing"])


def main() -> int:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(prog="scripts/time_http", description=__doc__)
    parser.add_argument("--requests", type=int, default=200, metavar="N")
    parser.add_argument("--on", choices=["sqlite", "postgres"], default="sqlite")
    given = parser.parse_args()
    print(f"{given.requests} requests for foreign and for missing ids on {given.on}, in µs")
    columns = f"{'foreign':>8} {'missing':>8} {'spread':>8}  {'':<8}"
    print(f"{'':<24} {'':3} {columns} of CPU: {columns.lstrip()}")
    found = asyncio.run(measure(given.on, given.requests))
    different = [each.operation for each in found if not each.is_alike]
    print(f"{len(found) - len(different)} of {len(found)} operations answer alike.")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
