"""P26: through the memory proxy, nothing that a provider answered is lost, doubled or misplaced.

Clients that know nothing of a memory hold conversations through `keepthread proxy`: one process for
each of two owners, on one store. They ask, edit, have answers generated again, branch, summarize
old messages and repeat requests. The provider cuts streams and answers with errors; proxies are
killed, and the store goes away. In the end every conversation asks once more, and the store is read
without the proxy: each session shows what its client has, once and in order; nothing is in another
session or of another owner; every complete answer of a response that said `recorded` is in the
log. Every response was the provider's, byte for byte, and every request that the provider got was
the client's, but for additions to turns of the user.
"""

import asyncio
import os
import random
import signal
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import httpx2

from proofs import Outcome, Progress, Proof
from proofs.places import Place, prove_in_a_file, prove_on_a_server
from proofs.proxy_check import Verdict, check
from proofs.proxy_provider import Provider, Wire
from proofs.proxy_talks import OWNERS, Naming, Talk, World
from servers import free_port

DEADLINES: Final = (0.3, 30.0)
"""Seconds that the memory may take: as by default, or until it has answered."""
AT_ONCE: Final = 6
"""Conversations that are held at the same time."""
STEPS: Final = (1, 7)
TALKS_PER_FAULT: Final = 12
PATIENCE: Final = 120.0
STALLED: Final = 600.0
WIRES: Final[Sequence[Wire]] = ("chat", "anthropic", "responses")
NAMINGS: Final[Sequence[Naming]] = ("header", "header", "header", "opening", "thread")


@dataclass
class ProxyProcess:
    """`keepthread proxy` of one owner, as a process of its own."""

    folder: Path
    store: str
    owner: str
    world: World
    port: int
    upstream: int
    process: asyncio.subprocess.Process | None = None
    log: list[str] = field(default_factory=list[str])
    _reading: asyncio.Task[None] | None = None

    async def start(self, deadline: float) -> None:
        """Start it, and wait for its address."""
        home = self.folder / self.owner
        home.mkdir(exist_ok=True)
        kept = {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
        kept["KEEPTHREAD_PROXY_DEADLINE"] = str(deadline)
        url = f"http://127.0.0.1:{self.upstream}"
        async with asyncio.timeout(PATIENCE):
            while True:
                self.process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", "keepthread", "proxy", "--store", self.store),
                    *("--port", str(self.port), "--owner", self.owner),
                    *("--upstream", f"openai={url}/v1", f"anthropic={url}"),
                    env={"HOME": str(home), "XDG_CONFIG_HOME": str(home), "PATH": os.defpath}
                    | kept,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.PIPE,
                )
                assert self.process.stdout
                line = (await self.process.stdout.readline()).decode().strip()
                self._reading = asyncio.create_task(self._read(self.process))
                if line.startswith("http"):
                    self.world.addresses[self.owner] = line
                    self.world.lives[self.owner] += 1
                    return
                await self.process.wait()  # the store is away, or the port is not free yet
                await asyncio.sleep(0.1)

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr
        while line := await process.stderr.readline():
            self.log.append(line.decode().rstrip())

    async def kill(self) -> None:
        """Kill it in the middle of its requests."""
        assert self.process
        self.process.kill()
        await self.process.wait()

    async def stop(self) -> None:
        """Stop it as a person does: it finishes what it has begun."""
        assert self.process
        self.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(PATIENCE):
            await self.process.wait()

    async def close(self) -> None:
        """Leave no process behind."""
        if self.process and self.process.returncode is None:
            await self.kill()
        if self._reading:
            await self._reading


@dataclass
class Scene:
    """The proxies, the store, and what is done to them."""

    world: World
    proxies: dict[str, ProxyProcess]
    store: str
    place: Place | None
    rng: random.Random
    faults: Counter[str] = field(default_factory=Counter[str])

    async def kill(self) -> None:
        """Kill a proxy, and start it again."""
        proxy = self.proxies[self.rng.choice(OWNERS)]
        self.world.note_kill(proxy.owner)
        await proxy.kill()
        await proxy.start(self.rng.choice(DEADLINES))

    async def outage(self) -> None:
        """Take the store away for a moment."""
        if self.place is None:
            path = self.store.removeprefix("sqlite:///")
            db = sqlite3.connect(path, timeout=30, isolation_level=None, check_same_thread=False)
            await asyncio.to_thread(db.execute, "BEGIN IMMEDIATE")
            await asyncio.sleep(self.rng.uniform(0.1, 1.2))
            db.execute("ROLLBACK")
            db.close()
            return
        how = self.rng.choice((signal.SIGINT, signal.SIGKILL))
        await asyncio.to_thread(self.place.go_down, how)
        await asyncio.sleep(self.rng.uniform(0, 1))
        await asyncio.to_thread(self.place.come_back)

    async def suffer(self) -> None:
        """Do one of both."""
        fault = self.kill if self.faults.total() % 2 == 0 else self.outage
        self.faults[fault.__name__] += 1
        await fault()


async def prove(
    url: str, place: Place | None, size: int, rng: random.Random, progress: Progress
) -> Outcome:
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        provider = await stack.enter_async_context(Provider().serving())
        http = await stack.enter_async_context(
            httpx2.AsyncClient(timeout=PATIENCE, trust_env=False)
        )
        world = World(provider, rng, http)
        proxies = {
            owner: ProxyProcess(folder, url, owner, world, free_port(), provider.port)
            for owner in OWNERS
        }
        for proxy in proxies.values():
            stack.push_async_callback(proxy.close)
            await proxy.start(DEADLINES[1])
        scene = Scene(world, proxies, url, place, rng)
        talks = await hold(scene, size, progress)
        for proxy in proxies.values():
            await proxy.stop()
        verdict = await check(url, world, talks)
        for proxy in proxies.values():
            verdict.broken.extend(f"a proxy logged {line!r}" for line in proxy.log if _odd(line))
    return outcome(scene, talks, verdict)


def _odd(line: str) -> bool:
    return "sk-of-the-user" in line or "Traceback" in line or "about the" in line


async def hold(scene: Scene, size: int, progress: Progress) -> list[Talk]:
    """Hold all conversations, with faults between them; return them with their branches."""
    world, rng = scene.world, scene.rng
    due = [_talk(world, number, rng) for number in range(size)]
    talks, started, done = [*due], iter(due), 0

    async def work() -> None:
        nonlocal done
        for talk in started:
            await talk.run(rng.randint(*STEPS))
            done += 1
            progress(done, size)

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(work())
        faults = max(2, size // TALKS_PER_FAULT)
        for number in range(faults):
            await reach(number * size // faults, lambda: done)
            await asyncio.sleep(rng.uniform(0, 0.3))
            await scene.suffer()
    for talk in talks:
        talks += [branch for branch in talk.branches if branch not in talks]
    world.calm = True
    for proxy in scene.proxies.values():
        await proxy.stop()
        await proxy.start(DEADLINES[1])
    last = iter(talks)

    async def end() -> None:
        for talk in last:
            await talk.ask()

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(end())
    return talks


async def reach(number: int, done: Callable[[], int]) -> None:
    """Wait until as many conversations are over."""
    last, since = -1, time.monotonic()
    while done() < number:
        if done() != last:
            last, since = done(), time.monotonic()
        if time.monotonic() - since > STALLED:
            raise RuntimeError(f"no conversation ended for {STALLED:g} seconds")
        await asyncio.sleep(0.02)


def _talk(world: World, number: int, rng: random.Random) -> Talk:
    seed = random.Random(rng.getrandbits(32))
    return Talk(
        world, f"t{number}", rng.choice(OWNERS), rng.choice(WIRES), rng.choice(NAMINGS), seed
    )


def outcome(scene: Scene, talks: Sequence[Talk], verdict: Verdict) -> Outcome:
    world, seen = scene.world, scene.world.seen
    figures = {
        "conversations": len(talks),
        "requests": seen["requests"],
        "kills of a proxy": scene.faults["kill"],
        "outages of the store": scene.faults["outage"],
        "responses cut": seen["responses cut"],
        "edits": seen["edit"],
        "answers generated again": seen["regenerate"],
        "branches": sum(len(talk.branches) for talk in talks),
        "summaries of clients": seen["summarize"],
        "sent twice at the same time": seen["twice"],
        "responses that said recorded": seen["memory recorded"],
        "responses that said unavailable": seen["memory unavailable"],
        "responses that said not-recorded": seen["memory not-recorded"],
        **verdict.figures(),
    }
    return Outcome(figures=figures, broken=(*world.broken, *verdict.broken))


PROOF: Final = Proof(
    name="P26",
    promise="through the proxy nothing that was answered is lost, doubled or misplaced",
    unit="conversations",
    small=4,
    closing=1000,
    long=10_000,
    run=partial(prove_in_a_file, prove),
    on={"postgres": partial(prove_on_a_server, prove, "postgres")},
)
