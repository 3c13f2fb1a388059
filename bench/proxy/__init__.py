"""What the memory proxy costs, beside a bare relay on the same HTTP client and server."""

import asyncio
import os
import platform
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import uvicorn

from bench import Bar, Benchmark, Report, Row, Run
from bench.corpus import SIZES
from bench.measure import median
from bench.proxy.client import Connection, Stream
from bench.rates import server_cpu
from bench.search import Language
from keepthread import Memory, Message
from keepthread.models.tokens import Estimator
from servers import free_port
from servers.postgres import new_server

_ROOT = Path(__file__).parents[2]
_MESSAGES, _QUICK_MESSAGES = 10_000, 400
_EACH = 50
"""Messages of a session."""
_TURNS = 12
"""Turns of a measured conversation; each request sends all of them again."""
_PARALLEL, _QUICK_PARALLEL = 200, 8
_PAUSE = 0.2
"""Seconds before each request: people read answers, and work in the background ends."""
_CHUNKS, _GAP = 20, 0.5
_EVERY = 0.04
"""Seconds between the beginnings of two streams; all of them run before the first one ends."""
_MILLI = 1000.0
_BARS = {"SQLite": 15.0, "PostgreSQL": 30.0}
_SECONDS_TO_START = 120.0
_SEED = 7


class Relays(NamedTuple):
    """The base URLs of both, and their processes."""

    bare: str
    ours: str
    pids: Mapping[str, int]


def measure(run: Run) -> Report:
    """Measure both stores, one after the other."""
    rows = asyncio.run(_measured(run, "SQLite", f"sqlite:///{run.disk}/proxy.db"))
    server = new_server(fsync="on", synchronous_commit="on")
    try:
        rows += asyncio.run(_measured(run, "PostgreSQL", server.url("keepthread")))
    finally:
        server.close()
    return Report(setting=_setting(run), rows=rows)


async def _measured(run: Run, store: str, url: str) -> list[Row]:
    run.progress(f"{store}: filling")
    number = _QUICK_MESSAGES if run.quick else _MESSAGES
    await _fill(url, number)
    with _relays(url, run.disk / store) as relays:
        rows = await _first_bytes(run, store, number, relays)
        return [*rows, *await _many(run, store, relays)]


# --- what is stored and asked ---


async def _fill(url: str, number: int) -> None:
    """Store conversations of one owner, and index them: that is not part of a request."""
    language = Language(_SEED)
    async with Memory.open(url, counter=Estimator()) as memory:
        owner = memory.for_owner("default")
        for place in range(number // _EACH):
            session = await owner.session(f"old-{place}")
            await session.append(
                *(
                    Message(
                        role="assistant" if turn % 2 else "user", content=language.text(SIZES[0])
                    )
                    for turn in range(_EACH)
                )
            )
        await memory.admin.index()
        await memory.idle()


def _conversation(language: Language, turns: int, chunks: int = 1, gap: float = 0.0) -> list[Any]:
    """Return the requests of a conversation, each with the whole history."""
    answer = "".join(f"word {place} " for place in range(chunks)) + "end."
    history: list[dict[str, str]] = []
    found: list[Any] = []
    for _ in range(turns):
        history = [*history, {"role": "user", "content": language.question()}]
        found.append({"model": f"chunks-{chunks}-{gap:g}", "stream": True, "messages": history})
        history = [*history, {"role": "assistant", "content": answer}]
    return found


# --- the time to the first byte ---


async def _first_bytes(run: Run, store: str, number: int, relays: Relays) -> list[Row]:
    """Ask both in turn: the same conversation, turn by turn."""
    added: list[float] = []
    found: dict[str, list[float]] = {"bare": [], "ours": []}
    missing, language = 0, Language(_SEED, 1)
    before: dict[str, float] = {}
    bare, ours = await Connection(relays.bare).open(), await Connection(relays.ours).open()
    for place in range(-1, max(2, run.rounds)):  # the first one only loads what is needed
        run.progress(f"{store}: first bytes, round {place + 1}")
        before = before if place else {name: server_cpu([pid]) for name, pid in relays.pids.items()}
        for turn, body in enumerate(_conversation(language, _TURNS)):
            both = {"bare": bare, "ours": ours}
            order = ["bare", "ours"] if turn % 2 else ["ours", "bare"]
            took: dict[str, Stream] = {}
            for name in order:
                await asyncio.sleep(_PAUSE)
                took[name] = await both[name].ask(body, f"bench-{place}")
            if place >= 0:
                added.append(took["ours"].first - took["bare"].first)
                missing += took["ours"].memory != "recorded"
                for name, each in took.items():
                    found[name].append(each.first)
    spent = {name: server_cpu([pid]) - before[name] for name, pid in relays.pids.items()}
    cpu = (spent["ours"] - spent["bare"]) / len(added)
    bare.close()
    ours.close()
    group = f"{store}, {number:,} messages of the owner"
    return [
        _row(group, "first byte, bare relay, median", median(found["bare"])),
        _row(group, "first byte, proxy, median", median(found["ours"])),
        _row(group, "added to the first byte, median", median(added), Bar(_BARS[store])),
        _row(group, "added to the first byte, p99", _percentile(added, 0.99)),
        _row(group, "CPU of the proxy beside the bare relay, for a request", cpu),
        _count(group, "requests without memory", missing, "requests"),
    ]


# --- many streams at the same time ---


async def _many(run: Run, store: str, relays: Relays) -> list[Row]:
    number = _QUICK_PARALLEL if run.quick else _PARALLEL
    chunks, gap = (5, 0.02) if run.quick else (_CHUNKS, _GAP)
    rows: list[Row] = []
    language = Language(_SEED, 2)
    group = f"{store}, {number} streams at the same time"
    for name, url in (("bare relay", relays.bare), ("proxy", relays.ours)):
        run.progress(f"{store}: {number} streams, {name}")
        connections = [await Connection(url).open() for _ in range(number)]
        asking: list[asyncio.Task[Stream]] = []
        for place, each in enumerate(connections):
            body = _conversation(language, 2, chunks, gap)[-1]
            asking.append(asyncio.create_task(each.ask(body, f"many-{name[0]}-{place}")))
            await asyncio.sleep(_EVERY)
        streams: Sequence[Stream] = await asyncio.gather(*asking)
        for each in connections:
            each.close()
        # The last two events come at once.
        late = [max(0.0, each - gap) for stream in streams for each in stream.gaps[: chunks - 1]]
        firsts = [stream.first for stream in streams]
        rows += [
            _row(group, f"delay of a chunk, {name}, median", median(late)),
            _row(group, f"delay of a chunk, {name}, p99", _percentile(late, 0.99)),
            _row(group, f"first byte of a stream, {name}, median", median(firsts)),
            _row(group, f"first byte of a stream, {name}, p99", _percentile(firsts, 0.99)),
            _row(group, f"first byte of a stream, {name}, last", max(firsts)),
        ]
        if name == "proxy":
            without = sum(stream.memory != "recorded" for stream in streams)
            rows.append(_count(group, "streams without memory", without, "streams"))
    return rows


def _row(group: str, name: str, seconds: float, bar: Bar | None = None) -> Row:
    return _count(group, name, seconds * _MILLI, "ms", bar)


def _count(group: str, name: str, value: float, unit: str, bar: Bar | None = None) -> Row:
    store = group.partition(",")[0]
    return Row(group=group, name=f"{store}: {name}", value=value, unit=unit, bar=bar)


def _percentile(values: Sequence[float], part: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * part))]


# --- processes ---


@contextmanager
def _relays(store: str, home: Path) -> Iterator[Relays]:
    """Start a provider, a bare relay and the proxy, each a process of its own."""
    home.mkdir()
    upstream, bare, ours = (free_port() for _ in range(3))
    url = f"http://127.0.0.1:{upstream}/v1"
    environment = {
        **{name: each for name, each in os.environ.items() if not name.startswith("KEEPTHREAD_")},
        "KEEPTHREAD_STORE": store,
        "HOME": str(home),
        "NO_PROXY": "127.0.0.1",
        **{f"XDG_{name}_HOME": str(home) for name in ("CONFIG", "DATA")},
    }
    ours_command = ("keepthread", "proxy", "--upstream", f"openai={url}", "--port", str(ours))
    with ExitStack() as stack:
        stack.enter_context(_process(environment, "bench.proxy.upstream", str(upstream)))
        relay = stack.enter_context(_process(environment, "bench.proxy.bare", str(bare), url))
        proxy = stack.enter_context(_process(environment, *ours_command))
        assert proxy.stdout
        base = proxy.stdout.readline().decode().strip()
        _wait_for(bare)
        _wait_for(upstream)
        pids = {"bare": relay.pid, "ours": proxy.pid}
        yield Relays(f"http://127.0.0.1:{bare}", base, pids)


@contextmanager
def _process(environment: dict[str, str], *command: str) -> Iterator["subprocess.Popen[bytes]"]:
    whole = [sys.executable, "-m", *command]
    with subprocess.Popen(
        whole, cwd=_ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        try:
            yield process
        finally:
            process.terminate()


def _wait_for(port: int) -> None:
    until = time.monotonic() + _SECONDS_TO_START
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=5).close()
            return
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)


def _setting(run: Run) -> list[str]:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return [
        (
            f"Python {platform.python_version()}, httpx2 {httpx2.__version__}, uvicorn"
            f" {uvicorn.__version__} with h11; {usable} CPUs for the client, the relays, the"
            " provider and the database."
        ),
        (
            f"Conversations of {_TURNS} turns, {run.rounds} rounds, both relays asked in turn; the"
            " memory has 300 ms."
        ),
    ]


BENCHMARK = Benchmark(
    name="proxy",
    about="the memory proxy beside a bare relay: first bytes, gaps, parallel streams",
    measure=measure,
)
