"""P29: a long mixed day: six processes use one store in every way; nothing is lost or grows.

One shares a blocking memory between threads, one an asynchronous memory between two event loops,
one forks, one is killed again and again, one writes through an outbox while its store flaps (and is
killed at times), and one prunes, forgets, verifies, copies and backs up. Every acknowledgement is
in a journal. A call that does not return within a minute is a hang, and its stacks are printed.
"""

import asyncio
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final
from urllib.parse import urlsplit

from keepthread import Memory, Message
from keepthread.models.tokens import Estimator
from proofs import Outcome, Progress, Proof
from proofs.day_check import Line, Sample, Verdict, check_growth, check_logs
from proofs.day_worker import LASTING, ROLES, SHORT, SHORT_TENANT, waiting_since
from proofs.places import file_url, new_place
from servers import free_port
from servers.proxy import Proxy

ROOT: Final = Path(__file__).resolve().parent.parent
KILLED: Final = ("killed", "outbox")
HANGING: Final = 60.0  # seconds after which a call counts as hanging; a write waits up to 30
STOPPING: Final = 120.0
MOST_WAL: Final = 64 << 20
PAGE: Final = 1000


@dataclass(slots=True)
class Day:
    """The processes of one run, and what was seen of them."""

    folder: Path
    urls: dict[str, str]
    rng: random.Random
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    lives: Counter[str] = field(default_factory=Counter)
    kills: int = 0
    flaps: int = 0
    samples: dict[str, list[Sample]] = field(default_factory=lambda: defaultdict(list))
    wal: list[int] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def start(self, role: str) -> None:
        self.lives[role] += 1
        arguments = (role, str(self.lives[role]), str(self.rng.getrandbits(32)))
        for beats in self.folder.glob(f"beats-{role}"):
            beats.unlink()  # a killed process leaves its marks
        with (self.folder / f"stderr-{role}").open("ab") as errors:
            self.processes[role] = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "proofs.day_worker",
                    self.folder,
                    self.urls[role],
                    *arguments,
                ],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stderr=errors,
            )

    def kill(self, role: str) -> None:
        """Kill a process and start it again."""
        with self.lock:
            self.kills += 1
            self._replace(role)

    def _replace(self, role: str) -> None:
        self.processes[role].kill()
        self.processes[role].wait()
        self.start(role)

    def look(self) -> None:
        """Take a sample of each process, and find what died or hangs."""
        with self.lock:
            self._look()

    def _look(self) -> None:
        for role, process in self.processes.items():
            if process.poll() is not None:
                self.broken.append(f"{role} ended with {process.returncode}: {self.errors(role)}")
                self.start(role)
                continue
            self.find_hangs(role, process.pid)
            with suppress(OSError, KeyError):  # it may end at this moment
                self.samples[role].append(sample(process.pid))
        wal = self.folder / "store.db-wal"
        with suppress(OSError):
            self.wal.append(wal.stat().st_size)

    def find_hangs(self, role: str, pid: int) -> None:
        now = time.monotonic()
        for lane, since in enumerate(waiting_since(self.folder, role)):
            if since and now - since > HANGING:
                os.kill(pid, signal.SIGUSR1)
                time.sleep(0.5)
                self.broken.append(f"hang: lane {lane} of {role}: {self.errors(role)}")
                self._replace(role)
                return

    def errors(self, role: str) -> str:
        return (self.folder / f"stderr-{role}").read_text(errors="replace")[-3000:]

    def stop(self) -> None:
        """Let every process end in its own time."""
        self.wait_for(lambda role: (self.folder / f"beats-{role}").exists())
        for process in self.processes.values():
            process.send_signal(signal.SIGTERM)
        for role, process in self.processes.items():
            try:
                code = process.wait(STOPPING)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGUSR1)
                time.sleep(0.5)
                self.broken.append(f"hang: {role} did not end: {self.errors(role)}")
                process.kill()
                process.wait()
            else:
                if code:
                    self.broken.append(f"{role} ended with {code}: {self.errors(role)}")

    def wait_for(self, holds: Callable[[str], bool]) -> None:
        """Wait until something holds for each process, or it is clear that it never will."""
        deadline = time.monotonic() + STOPPING
        for role, process in self.processes.items():
            while not holds(role) and process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.05)

    def has_stored(self, role: str) -> bool:
        return any(
            line["kind"] == "said" and line["lane"].startswith(role) for line in self.lines()
        )

    def lines(self) -> list[Line]:
        path = self.folder / "journal"
        text = path.read_text().rpartition("\n")[0] if path.exists() else ""
        return [json.loads(line) for line in text.splitlines()]


def sample(pid: int) -> Sample:
    """Read what a process uses from /proc."""
    status = Path(f"/proc/{pid}/status").read_text()
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    return Sample(
        at=time.monotonic(),
        threads=int(fields["Threads"]),
        descriptors=len(list(Path(f"/proc/{pid}/fd").iterdir())),
        memory=int(fields["VmRSS"].split()[0]) << 10,
    )


# --- the store that flaps ---

Flap = Callable[[random.Random], Awaitable[None]]


def lock_file(path: Path) -> Flap:
    """Hold the file's only write lock for longer than the outbox waits."""

    async def flap(rng: random.Random) -> None:
        connection = sqlite3.connect(path, timeout=10, isolation_level=None)
        with closing(connection) as db, suppress(sqlite3.OperationalError):
            db.execute("BEGIN IMMEDIATE")
            await asyncio.sleep(rng.uniform(0.8, 2.0))
            db.execute("ROLLBACK")

    return flap


def break_line(proxy: Proxy) -> Flap:
    """Be a network that hangs, loses answers, refuses or cuts lines."""

    async def flap(rng: random.Random) -> None:
        target, kind = proxy.target, rng.randrange(4)
        if kind == 0:
            proxy.hangs = True
        elif kind == 1:
            proxy.lose_answers = 1_000_000
        elif kind == 2:
            proxy.target = free_port()
        proxy.cut()
        try:
            await asyncio.sleep(rng.uniform(0.5, 3.0))
        finally:
            proxy.target, proxy.hangs, proxy.lose_answers = target, False, 0
            proxy.cut()

    return flap


# --- one day ---


async def live(day: Day, flap: Flap, seconds: float, progress: Progress) -> None:
    """Run everything for a time."""
    for role in ROLES:
        day.start(role)
    await asyncio.to_thread(day.wait_for, day.has_stored)
    begun = time.monotonic()
    end = begun + seconds
    step = max(0.5, seconds / 400)

    async def kill() -> None:
        while True:
            await asyncio.sleep(day.rng.uniform(3, 8))
            role = day.rng.choice(("killed", "killed", "outbox"))
            await asyncio.to_thread(day.kill, role)

    async def break_down() -> None:
        while True:
            await asyncio.sleep(day.rng.uniform(2, 6))
            day.flaps += 1
            await flap(day.rng)

    others = [asyncio.create_task(kill()), asyncio.create_task(break_down())]
    try:
        while time.monotonic() < end:
            await asyncio.sleep(step)
            await asyncio.to_thread(day.look)
            progress(round(time.monotonic() - begun), round(seconds))
            for task in others:
                if task.done():
                    task.result()
    finally:
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


async def judge(day: Day, url: str) -> Outcome:
    """Deliver what waits, read everything, and hold it against the journal."""
    outbox = day.folder / "outbox"
    async with Memory.open(url, counter=Estimator(), outbox=str(outbox)) as memory:
        assert memory.outbox
        await memory.outbox.deliver()
        survey = await memory.outbox.survey()
    logs: dict[str, list[Message]] = {}
    async with Memory.open(url, counter=Estimator()) as memory:
        for tenant, names in (("", LASTING), (SHORT_TENANT, SHORT)):
            scope = memory.tenant(tenant) if tenant else memory
            for name in names:
                logs[f"{tenant}/{name}"] = await read_all(scope, name)
        verified = await memory.admin.verify()
    verdict = check_logs(day.lines(), logs)
    if survey.messages or survey.set_aside or survey.dropped:
        verdict.fail("left in the outbox", str(survey)[:300])
    for damage in verified.damages:
        verdict.fail("damaged", str(damage))
    return outcome_of(day, verdict)


async def read_all(memory: Memory, name: str) -> list[Message]:
    found: list[Message] = []
    session = await memory.session(name)
    while page := await session.messages(after=found[-1].seq if found else 0, limit=PAGE):
        found += page
    return found


def outcome_of(day: Day, verdict: Verdict) -> Outcome:
    usage = {
        f"use of {role}": check_growth(role, day.samples[role], verdict)
        for role in ROLES
        if role not in KILLED
    }
    half = day.wal[len(day.wal) // 2 :] or [0]
    if max(half) > MOST_WAL:
        verdict.fail("growing", f"the write-ahead log: {max(half):,} bytes")
    day.broken += [
        f"stderr of {role}: {text}"
        for role in ROLES
        if verdict.broken and (text := day.errors(role))
    ]
    figures: dict[str, Any] = {
        "acknowledged": verdict.counts["acknowledged"],
        **{
            name: verdict.counts[name]
            for name in ("lost", "stored twice", "out of order", "not forgotten", "errors")
        },
        "hangs": sum(line.startswith("hang") for line in day.broken),
        "kills": day.kills,
        "outages": day.flaps,
        "children of forks": sum(
            line["kind"] == "said" and ".child" in line["id"] for line in day.lines()
        )
        // 3,
        "forgotten": verdict.counts["forgotten"],
        "pruned sessions": verdict.counts["pruned"],
        "verified beside writers": verdict.counts["verified"],
        "write-ahead log, second half": f"{median(half):,.0f} bytes, at most {max(half):,}",
        **usage,
    }
    return Outcome(figures=figures, broken=(*verdict.broken, *day.broken))


@asynccontextmanager
async def on_file(folder: Path) -> AsyncIterator[tuple[str, str, Flap]]:
    """Give the URL of a file, the same for the outbox, and how to make it busy."""
    url = file_url(folder / "store.db")
    async with Memory.open(url, counter=Estimator()):
        pass
    yield url, url, lock_file(folder / "store.db")


@asynccontextmanager
async def on_postgres(folder: Path) -> AsyncIterator[tuple[str, str, Flap]]:
    """Give the URL of a server, one through a bad network, and how to make that worse."""
    with new_place("postgres") as place:
        async with Memory.open(place.url, counter=Estimator()):
            pass
        port = urlsplit(place.url).port
        assert port
        async with Proxy(port).listening() as proxy:
            through = place.url.replace(f":{port}", f":{proxy.port}")
            yield place.url, through, break_line(proxy)


async def prove(kind: str, seconds: int, seed: int, progress: Progress) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="keepthread-day-") as name:
        folder = Path(name)
        where = on_postgres if kind == "postgres" else on_file
        async with where(folder) as (url, flapping, flap):
            urls = dict.fromkeys(ROLES, url) | {"outbox": flapping}
            day = Day(folder, urls, random.Random(seed))
            try:
                await live(day, flap, seconds, progress)
            finally:
                await asyncio.to_thread(day.stop)
            return await judge(day, flapping)


def run_on(kind: str, size: int, seed: int, progress: Progress) -> Outcome:
    return asyncio.run(prove(kind, size, seed, progress))


PROOF: Final = Proof(
    name="P29",
    promise="a long mixed day loses nothing, hangs nowhere and grows in nothing",
    unit="seconds",
    small=8,
    closing=1800,
    long=28_800,
    run=partial(run_on, "sqlite"),
    on={"sqlite": partial(run_on, "sqlite"), "postgres": partial(run_on, "postgres")},
)
