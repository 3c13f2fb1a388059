"""P1: kill -9 a writer again and again; whatever it was told is stored must still be there.

The writer is a process of its own with the real store on a real file. Some kills are aimed: just
before a COMMIT, inside a checkpoint, while the file is opened. Sometimes another program writes to
the file or checkpoints it at such a moment. Every sixth time the writers are a process that forks
and its children (`proofs.forker`).

On servers every third kill is the server's: all its processes at once, while the writer writes.
Half of these writers die with it, the others must go on once it is back.
"""

import asyncio
import mmap
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, Literal, TypeAlias

from keepthread.errors import KeepthreadError
from keepthread.protocols import Store
from keepthread.types import Message
from proofs import Outcome, Progress, Proof
from proofs.forker import MODES
from proofs.places import Place, file_url, new_place, opened
from proofs.writer import (
    CHECKPOINTING,
    COMMITTING,
    INSIDE,
    OUTSIDE,
    SESSIONS,
    TASKS,
    Ack,
    content_of,
)

ROOT: Final = Path(__file__).resolve().parent.parent
KILLS_PER_FILE: Final = 10
LEAST_SHARE: Final = 1 / 3
PATIENCE: Final = 5.0
LONG_PATIENCE: Final = 30.0

HOLD: Final = 0.1  # seconds before COMMIT in which a premature acknowledgement would be noted

Aim: TypeAlias = Literal[
    "opening",
    "transaction",
    "inside",
    "commit",
    "checkpoint",
    "foreign",
    "fork",
    "anywhere",
    "server",
]
AIMED: Final[dict[int, Aim]] = {0: "commit", 2: "foreign", 4: "fork"}
"""Of six kills in a row, those whose aim is not left to chance."""


# --- killing ---


@dataclass(slots=True)
class Tally:
    """What was seen so far."""

    deaths: Counter[int] = field(default_factory=Counter)
    kills: int = 0
    opening: int = 0
    forks: Counter[str] = field(default_factory=Counter)
    children: int = 0
    foreign: Counter[str] = field(default_factory=Counter)
    servers: int = 0
    survivors: int = 0
    acknowledged: int = 0
    lost: int = 0
    halves: int = 0
    corrupt: int = 0
    durability: str = ""
    broken: list[str] = field(default_factory=list)

    @property
    def inside(self) -> int:
        return self.deaths[INSIDE] + self.deaths[COMMITTING]

    @property
    def watched(self) -> int:
        """Count the kills of writers that say where they are."""
        return self.kills - self.forks.total()


class Victim:
    """One writer, from its start to its death."""

    def __init__(self, life: "Life", moment: int) -> None:
        """Start it; it is to stop at a moment, unless that is OUTSIDE."""
        folder, rng = life.folder, life.rng
        self.moment = moment
        (folder / "place").write_bytes(bytes([OUTSIDE] * 3))
        with (folder / "place").open("r+b") as file:
            self.place = mmap.mmap(file.fileno(), 3)
        kill, seed = str(life.tally.kills), str(rng.getrandbits(32))
        arguments = [str(folder), life.url, kill, seed, life.flaw]
        pipe = subprocess.PIPE
        self.last_words = ""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "proofs.writer", *arguments], cwd=ROOT, stdout=pipe, stderr=pipe
        )

    def work(self, aim: Aim, rng: random.Random) -> None:
        """Return at the moment aimed at."""
        assert self.process.stdout
        for _ in range(1 if aim == "opening" else 1 + TASKS):
            self.process.stdout.read(1)
        if self.moment:
            self.place[1] = self.moment
            self._wait_for_stop()
        elif aim in ("transaction", "checkpoint"):
            self._watch_for(INSIDE if aim == "transaction" else CHECKPOINTING)
            self._linger(rng.uniform(0, 0.001))
        else:
            time.sleep(rng.uniform(0, 0.02 if aim == "opening" else 0.08))

    def go_on(self) -> None:
        """Let it leave the moment at which it stopped."""
        self.place[1] = OUTSIDE

    def die(self) -> None:
        """Kill it."""
        self.process.kill()
        _, errors = self.process.communicate()
        if self.process.returncode != -signal.SIGKILL:
            self.last_words = errors.decode(errors="replace")[-300:]

    @property
    def stopped(self) -> bool:
        """Tell whether it stopped where it was to stop."""
        return self.place[2] == self.moment

    def _wait_for_stop(self) -> None:
        deadline = time.monotonic() + LONG_PATIENCE
        while not self.stopped and time.monotonic() < deadline and self.process.poll() is None:
            time.sleep(0.001)

    def _watch_for(self, place: int) -> None:
        # The byte has no event to wait for, and the moment is shorter than any sleep.
        deadline = time.monotonic() + PATIENCE
        while self.place[0] != place and time.monotonic() < deadline:
            if self.process.poll() is not None:
                return

    def _linger(self, seconds: float) -> None:
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            pass


def aim_next(tally: Tally, rng: random.Random) -> Aim:
    """Choose the moment of the next kill; half of them should fall into a transaction."""
    if aim := AIMED.get(tally.kills % 6):
        return aim
    if tally.inside < (tally.watched + 1) * LEAST_SHARE:
        return "inside"  # it stops there, so that this one cannot miss
    chance = rng.random()
    if chance < 0.1:
        return "opening"
    if chance < 0.2:
        return "checkpoint"
    return "transaction" if tally.inside * 2 <= tally.watched else "anywhere"


def aim_at_server(tally: Tally, rng: random.Random) -> Aim:
    """Choose whom to kill next: every third time the server."""
    if tally.kills % 3 == 1:
        return "server"
    return "opening" if rng.random() < 0.1 else "anywhere"


# --- checking ---


class Life:
    """One store over several kills, and how far it was checked."""

    def __init__(
        self,
        folder: Path,
        tally: Tally,
        rng: random.Random,
        place: Place | None = None,
        flaw: str = "",
    ) -> None:
        self.folder = folder
        self.flaw = flaw
        self.tally = tally
        self.rng = rng
        self.place = place
        self.url = place.url if place else file_url(folder / "log.db")
        self.checked: dict[str, int] = {}
        self.acks = 0

    def kill_one(self, aim: Aim) -> None:
        """Start a writer, kill it, its server or both, and count where it died."""
        if aim == "fork":
            self.kill_family(self.rng.choice(list(MODES)))
        elif aim == "foreign":
            self.kill_writer(aim, self.rng.choice((INSIDE, COMMITTING, CHECKPOINTING)))
        else:
            self.kill_writer(aim, {"commit": COMMITTING, "inside": INSIDE}.get(aim, OUTSIDE))

    def kill_writer(self, aim: Aim, moment: int) -> None:
        """Start a writer that may stop at a moment, and kill it or its server."""
        victim = Victim(self, moment)
        victim.work(aim, self.rng)
        where = victim.place[0]
        if aim == "server" and self.place:
            self._kill_server(victim, self.place)
        else:
            if aim == "commit":
                time.sleep(HOLD)
            elif aim == "foreign":
                self._meddle(victim)
            victim.die()
            where = victim.place[0]
        if words := victim.last_words:
            self.tally.broken.append(f"kill {self.tally.kills}: the writer ended: {words}")
        self.tally.kills += 1
        self.tally.deaths[where] += 1
        self.tally.opening += aim == "opening"

    def _meddle(self, victim: Victim) -> None:
        """Write to the file, or checkpoint it, as another program may while the writer is at it."""
        if not victim.stopped:
            self.tally.broken.append(f"kill {self.tally.kills}: the writer did not come so far")
            return
        what = self.rng.choice(("commit", "PASSIVE", "FULL", "RESTART", "TRUNCATE"))
        if victim.moment == CHECKPOINTING:
            what = "commit"  # two checkpoints exclude each other
        self.tally.foreign[what] += 1
        with closing(
            sqlite3.connect(self.folder / "log.db", isolation_level=None, timeout=0)
        ) as db:
            if what == "commit":
                self._commit_beside(db)
            else:
                db.execute(f"PRAGMA wal_checkpoint({what})").fetchall()
            victim.go_on()
            time.sleep(self.rng.uniform(0, 0.05))

    def _commit_beside(self, db: sqlite3.Connection) -> None:
        """Commit while the writer has the write lock, which must be refused."""
        (version,) = db.execute("PRAGMA user_version").fetchone()
        try:
            db.execute("BEGIN IMMEDIATE")
            db.execute(f"PRAGMA user_version = {version}")
            db.execute("COMMIT")
        except sqlite3.OperationalError:
            return
        self._corrupt("another program could commit during a transaction or a checkpoint")

    def kill_family(self, mode: str, patience: float = LONG_PATIENCE) -> None:
        """Start a process that forks, and kill it and its children once some of these wrote."""
        number, pipe = self.tally.kills, subprocess.PIPE
        arguments = [mode, str(self.folder), self.url, f"{number}.f", str(self.rng.getrandbits(32))]
        parent = subprocess.Popen(
            [sys.executable, "-m", "proofs.forker", *arguments, self.flaw],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=pipe,
            start_new_session=True,
        )
        wanted = self.rng.randint(3, 6)
        deadline = time.monotonic() + patience
        while len(children := self._children(f"{number}.f.")) < wanted:
            if time.monotonic() > deadline or parent.poll() is not None:
                self.tally.broken.append(f"kill {number}: only children {children} wrote ({mode})")
                break
            time.sleep(0.02)
        os.killpg(parent.pid, signal.SIGKILL)
        errors = parent.communicate()[1].decode(errors="replace")
        if errors:
            self.tally.broken.append(f"kill {number}: a process failed ({mode}): {errors[-300:]}")
        self.tally.kills += 1
        self.tally.forks[mode] += 1
        self.tally.children += len(children)

    def _children(self, writer: str) -> set[str]:
        """Return the children of a process that have an acknowledgement."""
        acks = [ack.batch for ack in self._acknowledged() if ack.batch.startswith(writer)]
        return {batch.removeprefix(writer).partition(".")[0] for batch in acks} - {"0"}

    def _kill_server(self, victim: Victim, place: Place) -> None:
        """Kill the server, and the writer before its return or once it has gone on."""
        place.go_down(signal.SIGKILL)
        self.tally.servers += 1
        if self.rng.random() < 0.5:
            victim.die()
            place.come_back()
            return
        before = len(self._acknowledged())
        place.come_back()
        deadline = time.monotonic() + LONG_PATIENCE
        while len(self._acknowledged()) < before + TASKS and time.monotonic() < deadline:
            time.sleep(0.01)
        if len(self._acknowledged()) < before + TASKS:
            self.tally.broken.append(f"kill {self.tally.kills}: the writer did not go on")
        self.tally.survivors += 1
        victim.die()

    async def check(self, *, anew: bool = False) -> None:
        """Open the store and compare what came since the last check, or everything."""
        lines = self._acknowledged()
        acks, after = (lines, {}) if anew else (lines[self.acks :], self.checked)
        if not anew:
            self.tally.acknowledged += sum(len(ack.ids) for ack in acks)
        self.acks = len(lines)
        try:
            async with opened(self.url, durability="process") as store:
                self.tally.durability = store.durability
                for name in SESSIONS:
                    mine = [ack for ack in acks if ack.session == name]
                    self._compare(mine, await read_all(store, name, after.get(name, 0)), name)
                found = await store.verify()
        except KeepthreadError as error:
            self._corrupt(repr(error))
        else:
            if not found.sound:
                self._corrupt(str(found.damages[:3]))

    def _acknowledged(self) -> list[Ack]:
        path = self.folder / "acks"
        whole = path.read_text().rpartition("\n")[0] if path.exists() else ""
        parts = [line.split() for line in whole.splitlines()]
        return [Ack(SESSIONS[int(which)], batch, int(seq)) for which, batch, seq in parts]

    def _compare(self, acks: Iterable[Ack], found: Sequence[Message], name: str) -> None:
        first = found[0].seq if found else 1
        self.checked[name] = found[-1].seq if found else self.checked.get(name, 0)
        if [m.seq for m in found] != list(range(first, first + len(found))):
            self._corrupt(f"{name}: positions have gaps")
        if any(m.content != content_of(m.id) or m.state != "live" for m in found):
            self._corrupt(f"{name}: a message is not what was written")
        self._count_lost(acks, {m.seq: m.id for m in found}, name)
        self._count_halves([m.id for m in found], name)

    def _count_lost(self, acks: Iterable[Ack], ids: Mapping[int, str], name: str) -> None:
        lost = [id for ack in acks for seq, id in enumerate(ack.ids, ack.seq) if ids.get(seq) != id]
        if lost:
            self.tally.lost += len(lost)
            self.tally.broken.append(f"{name}: acknowledged and not at its place: {lost[:3]}")

    def _count_halves(self, ids: Sequence[str], name: str) -> None:
        """Count batches that are not there whole, once and in their order."""
        start = 0
        while start < len(ids):
            whole = Ack(name, ids[start].rpartition(".")[0], 0).ids
            if list(ids[start : start + len(whole)]) != whole:
                self.tally.halves += 1
                self.tally.broken.append(f"{name}: half a batch: {whole[0]}")
            start += len(whole)
        if len(set(ids)) < len(ids):
            self._corrupt(f"{name}: a message is there twice")

    def _corrupt(self, what: str) -> None:
        self.tally.corrupt += 1
        self.tally.broken.append(f"after kill {self.tally.kills}: {what}")


async def read_all(store: Store, name: str, after: int) -> list[Message]:
    """Return a session's messages behind a position; none if it was never made."""
    session = await store.get_session(name)
    return [] if session is None else await store.read(session.key, after=after, limit=1_000_000)


def live_once(
    kills: int, tally: Tally, rng: random.Random, place: Place | None = None, flaw: str = ""
) -> None:
    """Take one new store through some kills, checking after each and once more at the end.

    A writer that is to die while it opens finds what the death before it left, not a checked file.
    """
    with tempfile.TemporaryDirectory() as folder:
        life = Life(Path(folder), tally, rng, place, flaw)
        for number in range(kills):
            aim = aim_at_server(tally, rng) if place else aim_next(tally, rng)
            if number and aim != "opening":
                asyncio.run(life.check())
            life.kill_one(aim)
        asyncio.run(life.check())
        asyncio.run(life.check(anew=True))


def run(size: int, seed: int, progress: Progress) -> Outcome:
    tally = Tally()
    kill_all(size, seed, progress, tally, None)
    figures = {
        "kills": tally.kills,
        "inside a transaction": tally.inside,
        "their share": share_of(tally),
        "of these inside COMMIT": tally.deaths[COMMITTING],
        "inside a checkpoint": tally.deaths[CHECKPOINTING],
        "aimed at the opening": tally.opening,
        "of processes that fork": shown(tally.forks),
        "their children that wrote": tally.children,
        "with another program at the file": shown(tally.foreign),
    }
    return Outcome(figures=figures | what_was_found(tally), broken=tuple(tally.broken))


def run_on(kind: str, size: int, seed: int, progress: Progress) -> Outcome:
    tally = Tally()
    with new_place(kind) as place:
        kill_all(size, seed, progress, tally, place)
    if tally.durability not in ("process", "power"):
        tally.broken.append(f"the store declares {tally.durability!r}")
    figures = {
        "kills": tally.kills,
        "of the server": tally.servers,
        "writers that went on when it was back": tally.survivors,
        "with an append under way": tally.inside,
        "aimed at the opening": tally.opening,
        "durability declared": tally.durability,
    }
    return Outcome(figures=figures | what_was_found(tally), broken=tuple(tally.broken))


def kill_all(size: int, seed: int, progress: Progress, tally: Tally, place: Place | None) -> None:
    """Kill so many times, over as many stores as that takes."""
    rng = random.Random(seed)
    while tally.kills < size and len(tally.broken) < 100:
        live_once(min(KILLS_PER_FILE, size - tally.kills), tally, rng, place)
        if place:
            place.empty()
        progress(tally.kills, size)
    if tally.inside < tally.watched * LEAST_SHARE:
        tally.broken.append(f"only {share_of(tally)} of the kills fell into a transaction")


def share_of(tally: Tally) -> str:
    return f"{tally.inside / max(1, tally.watched):.0%}"


def shown(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))


def what_was_found(tally: Tally) -> dict[str, int]:
    return {
        "acknowledged": tally.acknowledged,
        "lost": tally.lost,
        "half batches": tally.halves,
        "corrupt": tally.corrupt,
    }


PROOF: Final = Proof(
    name="P1",
    promise="an acknowledged append survives the death of the process",
    unit="kills",
    small=4,
    closing=100,
    long=5_000,
    run=run,
    on={kind: partial(run_on, kind) for kind in ("postgres", "redis", "cluster")},
)
