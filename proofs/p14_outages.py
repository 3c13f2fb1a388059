"""P14: take the server away again and again; no acknowledged message is lost, doubled or moved.

The writer is a process of its own: tasks append to shared sessions through a `Memory` with an
outbox and note, in one file, when they begin and when they are told that it is stored; others read.
Between it and a real server stands a proxy that hangs, resets, refuses or loses answers; the server
is stopped and killed as well, and so is the writer, in the middle of an outage.
"""

import asyncio
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias
from urllib.parse import urlsplit

from keepthread import Memory, Message, Options
from keepthread.errors import KeepthreadError, Unavailable
from keepthread.memory.session import Session
from keepthread.models.tokens import Estimator
from keepthread.stores.outbox.file import look
from keepthread.stores.outbox.store import OutboxStore
from keepthread.stores.postgres import PostgresStore
from keepthread.stores.redis import RedisStore
from keepthread.stores.redis.engine import Timeouts
from keepthread.stores.url import target_of
from proofs import Outcome, Progress, Proof
from proofs.places import Place, new_place
from servers import free_port
from servers.proxy import Proxy

ROOT: Final = Path(__file__).resolve().parent.parent
SESSIONS: Final = ("red", "green", "blue")
TASKS: Final = 6
DEADLINE: Final = 1.0  # how long the writer's store waits for its server
PATIENCE: Final = 60.0
LIVE, QUEUED = "live", "queued"


# --- the writer, in a process of its own ---


async def open_target(url: str) -> RedisStore | PostgresStore:
    """Open the store as `Memory.open` does, with less patience."""
    if url.startswith("redis"):
        timeouts = Timeouts(connect=DEADLINE / 2, answer=DEADLINE / 2, again=DEADLINE)
        return await RedisStore.open(url, timeouts=timeouts)
    return await PostgresStore.open(url, deadline=DEADLINE)


@asynccontextmanager
async def queued_memory(folder: Path, url: str) -> AsyncIterator[Memory]:
    target = target_of(url)
    store = await OutboxStore.open(folder / "outbox", partial(open_target, url), target=target)
    async with Memory(store, Options(counter=Estimator())) as memory:
        yield memory


class Writer:
    """Appends and reads until it is told to stop, and notes what it is told."""

    def __init__(self, folder: Path, life: int, seed: int) -> None:
        self.notes = os.open(folder / "notes", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self.life = life
        self.seed = seed
        self.acknowledged: Counter[str] = Counter()
        self.stopped = False

    def note(self, *words: object) -> None:
        os.write(self.notes, f"{' '.join(map(str, words))}\n".encode())

    async def work(self, sessions: Sequence[Session]) -> None:
        async with asyncio.TaskGroup() as group:
            for task in range(TASKS):
                group.create_task(self.append(sessions, task))
            for session in sessions:
                group.create_task(self.read(session))

    async def append(self, sessions: Sequence[Session], task: int) -> None:
        rng = random.Random(f"{self.seed} {task}")
        number = 0
        while not self.stopped:
            number += 1
            session = rng.choice(sessions)
            sent: list[Awaitable[None]] = []
            for part in range(rng.choice((1, 1, 2, 4))):  # at once, to one session
                batch = f"{self.life}.{task}.{number}.{part}"
                sent.append(self.send(session, batch, rng.choice((1, 1, 2, 3)), rng.random() < 0.5))
            await asyncio.gather(*sent)
            await asyncio.sleep(rng.uniform(0, 0.02))

    async def send(self, session: Session, batch: str, size: int, with_ids: bool) -> None:
        """Append a batch; half of them leave it to the library to give ids."""
        names = [f"{batch}.{n}" for n in range(size)]
        messages = [
            Message(role="user", id=name if with_ids else "", content=name) for name in names
        ]
        self.note("begun", session.id, batch, size)
        made = await session.append(*messages)
        self.acknowledged[session.id] += size
        self.note("told", session.id, batch, made[0].state)

    async def read(self, session: Session) -> None:
        """Look whether a history is ever short of what was acknowledged before."""
        while not self.stopped:
            await asyncio.sleep(0.02)
            known = self.acknowledged[session.id]
            try:
                found = (await session.refresh()).messages
                newest = await session.context(budget=50)
            except Unavailable:
                self.note("unavailable")
                continue
            short = found < known or (known and not newest.messages)
            self.note("short" if short else "read", session.id, found, known)


async def write(folder: Path, url: str, life: int, seed: int) -> None:
    async with queued_memory(folder, url) as memory:
        writer = Writer(folder, life, seed)
        sessions = [await memory.session(name) for name in SESSIONS]
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, partial(setattr, writer, "stopped", True))
        writer.note("life", life)
        await writer.work(sessions)


# --- outages ---

Outage: TypeAlias = Callable[["Scene"], Awaitable[None]]


@dataclass(slots=True)
class Scene:
    """A server, the bad network before it, and the writer behind that."""

    place: Place
    proxy: Proxy
    folder: Path
    rng: random.Random
    lives: int = 0
    kills: int = 0
    process: asyncio.subprocess.Process | None = None
    seen: Counter[str] = field(default_factory=Counter)
    _read: int = 0

    @property
    def url(self) -> str:
        there = urlsplit(self.place.url)
        return self.place.url.replace(f":{there.port}", f":{self.proxy.port}")

    async def start_writer(self) -> None:
        self.lives += 1
        words = (str(self.folder), self.url, str(self.lives), str(self.rng.getrandbits(32)))
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "proofs.p14_outages", *words, cwd=ROOT
        )
        await self.wait_for("life")

    async def end_writer(self, how: signal.Signals) -> None:
        assert self.process
        self.process.send_signal(how)
        await asyncio.wait_for(self.process.wait(), PATIENCE)

    async def wait_for(self, what: str, count: int = 1) -> None:
        """Wait until the writer has noted something so often more."""
        wanted = self.look()[what] + count
        deadline = time.monotonic() + PATIENCE
        while self.look()[what] < wanted:
            assert self.process
            if self.process.returncode is not None:
                raise RuntimeError(f"the writer ended by itself: {self.process.returncode}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"nothing was {what} for {PATIENCE:.0f} seconds")
            await asyncio.sleep(0.02)

    def look(self) -> Counter[str]:
        """Count what was noted so far."""
        path = self.folder / "notes"
        if path.exists():
            with path.open("rb") as file:
                file.seek(self._read)
                whole = file.read().rpartition(b"\n")[0]
            if whole:
                self._read += len(whole) + 1
                for words in (line.split() for line in whole.decode().splitlines()):
                    self.seen[words[-1] if words[0] == "told" else words[0]] += 1
        return self.seen


async def hang(scene: Scene) -> None:
    scene.proxy.hangs = True


async def reset(scene: Scene) -> None:
    """Cut lines for as long as the outage lasts."""
    scene.proxy.lose_answers = 1_000_000
    for _ in range(20):
        scene.proxy.cut()
        await asyncio.sleep(0.02)


async def refuse(scene: Scene) -> None:
    scene.proxy.target = free_port()
    scene.proxy.cut()


async def flap(scene: Scene) -> None:
    """Let the server come and go, faster than anybody can settle, and be away at the end."""
    port = scene.proxy.target
    for _ in range(scene.rng.randrange(6, 12)):
        await refuse(scene)
        await asyncio.sleep(scene.rng.uniform(0, 0.15))
        scene.proxy.target = port
        await asyncio.sleep(scene.rng.uniform(0, 0.3))
    await refuse(scene)


async def lose_answers(scene: Scene) -> None:
    scene.proxy.lose_answers = 1_000_000


async def go_down(scene: Scene) -> None:
    """Stop the server, or kill it."""
    how = scene.rng.choice((signal.SIGINT, signal.SIGKILL))
    await asyncio.to_thread(scene.place.go_down, how)


OUTAGES: Final = (flap, go_down, hang, lose_answers, refuse, reset)


async def suffer(scene: Scene, outage: Outage, *, kill: bool) -> None:
    """Go through one outage, from messages that are stored to messages that are stored again."""
    await scene.wait_for(LIVE, 20)
    port = scene.proxy.target
    await outage(scene)
    await scene.wait_for(QUEUED, 20)
    await scene.wait_for("unavailable")
    if kill:
        scene.kills += 1
        await scene.end_writer(signal.SIGKILL)
        await scene.start_writer()
        await scene.wait_for(QUEUED, 20)
    if outage is go_down:
        await asyncio.to_thread(scene.place.come_back)
    scene.proxy.target, scene.proxy.hangs, scene.proxy.lose_answers = port, False, 0
    await scene.wait_for(LIVE, 20)


# --- checking ---


@dataclass(slots=True)
class Told:
    """What the writer noted, and where it is in the logs."""

    messages: int = 0
    queued: int = 0
    lost: int = 0
    doubled: int = 0
    moved: int = 0
    broken: list[str] = field(default_factory=list)


def compare(notes: str, logs: dict[str, list[str]]) -> Told:
    """Hold the notes against the logs: what was told before another began stands before it.

    Messages are known by their text: not all of them were sent with an id.
    """
    told = Told()
    places = {name: {id: place for place, id in enumerate(log)} for name, log in logs.items()}
    for name, log in logs.items():
        told.doubled += len(log) - len(places[name])
    last: Counter[str] = Counter()
    begun: dict[str, tuple[int, int]] = {}
    for words in (line.split() for line in notes.splitlines()):
        if words[0] == "short":
            told.broken.append(f"a history was short: {' '.join(words)}")
        elif words[0] == "begun":
            begun[words[2]] = (int(words[3]), last[words[1]])
        elif words[0] == "told":
            _, name, batch, state = words
            size, behind = begun[batch]
            found = [places[name].get(f"{batch}.{n}") for n in range(size)]
            told.messages += size
            told.queued += size if state == QUEUED else 0
            first = found[0]
            if first is None or found != list(range(first, first + size)):
                told.lost += found.count(None)
                told.broken.append(f"{name}: {batch} was told, and is at {found}")
            elif first < behind:
                told.moved += 1
                told.broken.append(f"{name}: {batch} at {first} is not behind {behind}")
            else:
                last[name] = max(last[name], first + size)
    if told.doubled:
        told.broken.append(f"{told.doubled} messages are there twice")
    return told


async def read_logs(url: str) -> dict[str, list[str]]:
    store = await open_target(url)
    logs: dict[str, list[str]] = {}
    for name in SESSIONS:
        session = await store.get_session(name)
        assert session
        found: list[Message] = []
        while page := await store.read(session.key, after=len(found), limit=1000):
            found += page
        logs[name] = [message.content for message in found]
    await store.close()
    return logs


async def prove(size: int, place: Place, rng: random.Random, progress: Progress) -> Outcome:
    port = urlsplit(place.url).port
    assert port
    kinds: Counter[str] = Counter()
    outages: list[Outage] = []
    with tempfile.TemporaryDirectory() as name:
        async with Proxy(port).listening() as proxy:
            scene = Scene(place, proxy, Path(name), rng)
            await scene.start_writer()
            try:
                for number in range(size):
                    if number % len(OUTAGES) == 0:
                        outages = rng.sample(OUTAGES, len(OUTAGES))
                    outage = outages[number % len(OUTAGES)]
                    await suffer(scene, outage, kill=number % 2 == 1 or rng.random() < 0.2)
                    kinds[outage.__name__] += 1
                    progress(number + 1, size)
            except BaseException:
                assert scene.process
                if scene.process.returncode is None:
                    await scene.end_writer(signal.SIGKILL)
                raise
            await scene.end_writer(signal.SIGTERM)
            async with queued_memory(scene.folder, scene.url) as memory:
                assert memory.outbox
                await memory.outbox.deliver()
            left = look(scene.folder / "outbox")
            told = compare((scene.folder / "notes").read_text(), await read_logs(scene.url))
            seen = scene.look()
    if left.messages or left.dropped or left.set_aside:
        told.broken.append(f"the outbox is not empty: {left}")
    figures = {
        "outages": size,
        "of each kind": ", ".join(f"{kind} {count}" for kind, count in kinds.items()),
        "writers killed in an outage": scene.kills,
        "acknowledged": told.messages,
        "of these by the outbox": told.queued,
        "lost": told.lost,
        "stored twice": told.doubled,
        "out of order": told.moved,
        "histories read": seen["read"],
        "readings refused": seen["unavailable"],
        "short histories": seen["short"],
    }
    return Outcome(figures=figures, broken=tuple(told.broken))


def run_on(kind: str, size: int, seed: int, progress: Progress) -> Outcome:
    with new_place(kind) as place:
        try:
            return asyncio.run(prove(size, place, random.Random(seed), progress))
        except (KeepthreadError, RuntimeError) as error:
            return Outcome(figures={}, broken=(repr(error),))


PROOF: Final = Proof(
    name="P14",
    promise="an outage is visible and costs no message",
    unit="outages",
    small=2,
    closing=6,
    long=100,
    run=partial(run_on, "postgres"),
    on={"postgres": partial(run_on, "postgres"), "redis": partial(run_on, "redis")},
)

if __name__ == "__main__":
    asyncio.run(write(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
