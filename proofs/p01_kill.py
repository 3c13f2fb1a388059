"""P1: kill -9 a writer again and again; whatever it was told is stored must still be there.

The writer is a process of its own with the real store on a real file. Through the store's `connect`
its connection keeps one byte of shared memory up to date, which says where in a transaction it is;
the byte outlives the process, so every death is counted by the place where it happened.
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
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, NamedTuple, TypeAlias

from keepthread.errors import KeepthreadError
from keepthread.stores.sqlite import SQLiteStore
from keepthread.types import Message, SessionInfo, SessionKey
from proofs import Outcome, Progress, Proof

ROOT: Final = Path(__file__).resolve().parent.parent
TASKS: Final = 8
SESSIONS: Final = ("red", "green", "blue")
KILLS_PER_FILE: Final = 10
LENGTHS: Final = (10, 10, 100, 100, 100, 1_000, 1_000, 4_000, 10_000, 60_000)
LEAST_SHARE: Final = 1 / 3
PATIENCE: Final = 5.0

OUTSIDE, INSIDE, COMMITTING, CHECKPOINTING = range(4)
PLACES: Final = {  # what is noted before a statement runs, and after it returned
    "BEGIN IMMEDIATE": (None, INSIDE),
    "COMMIT": (COMMITTING, OUTSIDE),
    "ROLLBACK": (None, OUTSIDE),
    "PRAGMA wal_checkpoint(PASSIVE)": (CHECKPOINTING, OUTSIDE),
}

Aim: TypeAlias = Literal["opening", "transaction", "checkpoint", "anywhere"]


# --- the writer, in a process of its own ---


class MarkedConnection(sqlite3.Connection):
    """Notes in shared memory how far its transaction is."""

    place: ClassVar[mmap.mmap]

    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        before, after = PLACES.get(sql, (None, None))
        if before is not None:
            self.place[0] = before
        cursor = super().execute(sql, *values)
        if after is not None:
            self.place[0] = after
        return cursor


def connect_marked(uri: str) -> sqlite3.Connection:
    """Open a connection as the store does, with the mark."""
    return sqlite3.connect(
        uri,
        uri=True,
        isolation_level=None,
        cached_statements=256,
        timeout=0,
        factory=MarkedConnection,
    )


def content_of(id: str) -> str:
    """Return the text that belongs to a message id, so that nobody needs to note it."""
    length = LENGTHS[zlib.crc32(id.encode()) % len(LENGTHS)]
    return (f"{id} " * (length // len(id) + 1))[:length]


async def write_for_ever(folder: Path, kill: int, seed: int) -> None:
    """Append from several tasks at once, noting every acknowledgement, until killed."""
    with (folder / "place").open("r+b") as file:
        MarkedConnection.place = mmap.mmap(file.fileno(), 1)
    acks = os.open(folder / "acks", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(1, b"o")
    store = await SQLiteStore.open(folder / "log.db", connect=connect_marked)
    keys: list[SessionKey] = []
    for name in SESSIONS:
        session = await store.get_session(name) or await store.put_session(SessionInfo(id=name))
        keys.append(session.key)
    async with asyncio.TaskGroup() as group:
        for task in range(TASKS):
            rng = random.Random(f"{seed} {task}")
            group.create_task(append_for_ever(store, keys, acks, f"{kill}.{task}", rng))


async def append_for_ever(
    store: SQLiteStore, keys: Sequence[SessionKey], acks: int, writer: str, rng: random.Random
) -> None:
    number = 0
    while True:
        number += 1
        which, size = rng.randrange(len(keys)), rng.choice((1, 1, 1, 2, 5))
        ids = [f"{writer}.{number}.{size}.{i}" for i in range(size)]
        batch = [Message(role="user", id=id, content=content_of(id)) for id in ids]
        stored = await store.append(keys[which], batch)
        os.write(acks, f"{which} {writer}.{number}.{size} {stored[0].seq}\n".encode())
        if number == 1:
            os.write(1, b"a")


# --- killing ---


class Ack(NamedTuple):
    """One acknowledged batch; its id ends with its size."""

    session: str
    batch: str
    seq: int

    @property
    def ids(self) -> list[str]:
        size = int(self.batch.rpartition(".")[2])
        return [f"{self.batch}.{i}" for i in range(size)]


@dataclass(slots=True)
class Tally:
    """What was seen so far."""

    deaths: Counter[int] = field(default_factory=Counter)
    kills: int = 0
    opening: int = 0
    acknowledged: int = 0
    lost: int = 0
    halves: int = 0
    corrupt: int = 0
    broken: list[str] = field(default_factory=list)

    @property
    def inside(self) -> int:
        return self.deaths[INSIDE] + self.deaths[COMMITTING]


class Victim:
    """One writer, from its start to its death."""

    def __init__(self, folder: Path, kill: int, seed: int) -> None:
        (folder / "place").write_bytes(bytes([OUTSIDE]))
        with (folder / "place").open("r+b") as file:
            self.place = mmap.mmap(file.fileno(), 1)
        command = [sys.executable, "-m", "proofs.p01_kill", str(folder), str(kill), str(seed)]
        pipe = subprocess.PIPE
        self.last_words = ""
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=pipe, stderr=pipe)

    def die(self, aim: Aim, rng: random.Random) -> int:
        """Let it work until the moment aimed at, kill it, and return where it died."""
        assert self.process.stdout
        for _ in range(1 if aim == "opening" else 1 + TASKS):
            self.process.stdout.read(1)
        if aim in ("opening", "anywhere"):
            time.sleep(rng.uniform(0, 0.02 if aim == "opening" else 0.08))
        else:
            wanted = INSIDE if aim == "transaction" else CHECKPOINTING
            self._watch_for(wanted)
            self._linger(rng.uniform(0, 0.001))
        self.process.kill()
        _, errors = self.process.communicate()
        if self.process.returncode != -signal.SIGKILL:
            self.last_words = errors.decode(errors="replace")[-300:]
        with self.place as place:
            return place[0]

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
    chance = rng.random()
    if chance < 0.1:
        return "opening"
    if chance < 0.2:
        return "checkpoint"
    return "transaction" if tally.inside * 2 <= tally.kills else "anywhere"


def kill_one(folder: Path, aim: Aim, tally: Tally, rng: random.Random) -> None:
    """Start a writer, kill it, and count where it died."""
    victim = Victim(folder, tally.kills, rng.getrandbits(32))
    place = victim.die(aim, rng)
    if words := victim.last_words:
        tally.broken.append(f"kill {tally.kills}: the writer ended by itself: {words}")
    tally.kills += 1
    tally.deaths[place] += 1
    tally.opening += aim == "opening"


# --- checking ---


class Life:
    """One file over several kills, and how far it was checked."""

    def __init__(self, folder: Path, tally: Tally) -> None:
        self.folder = folder
        self.tally = tally
        self.checked: dict[str, int] = {}
        self.acks = 0

    async def check(self, *, anew: bool = False) -> None:
        """Open the file and compare what came since the last check, or everything."""
        lines = self._acknowledged()
        acks, after = (lines, {}) if anew else (lines[self.acks :], self.checked)
        if not anew:
            self.tally.acknowledged += sum(len(ack.ids) for ack in acks)
        self.acks = len(lines)
        try:
            async with await SQLiteStore.open(self.folder / "log.db") as store:
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


async def read_all(store: SQLiteStore, name: str, after: int) -> list[Message]:
    """Return a session's messages behind a position; none if it was never made."""
    session = await store.get_session(name)
    return [] if session is None else await store.read(session.key, after=after, limit=1_000_000)


def live_once(kills: int, tally: Tally, rng: random.Random) -> None:
    """Take one new file through some kills, checking after each and once more at the end.

    A writer that is to die while it opens finds what the death before it left, not a checked file.
    """
    with tempfile.TemporaryDirectory() as folder:
        life = Life(Path(folder), tally)
        for number in range(kills):
            aim = aim_next(tally, rng)
            if number and aim != "opening":
                asyncio.run(life.check())
            kill_one(life.folder, aim, tally, rng)
        asyncio.run(life.check())
        asyncio.run(life.check(anew=True))


def run(size: int, seed: int, progress: Progress) -> Outcome:
    rng = random.Random(seed)
    tally = Tally()
    while tally.kills < size and len(tally.broken) < 100:
        live_once(min(KILLS_PER_FILE, size - tally.kills), tally, rng)
        progress(tally.kills, size)
    share = tally.inside / tally.kills
    if share < LEAST_SHARE:
        tally.broken.append(f"only {share:.0%} of the kills fell into a transaction")
    figures = {
        "kills": tally.kills,
        "inside a transaction": tally.inside,
        "their share": f"{share:.0%}",
        "of these inside COMMIT": tally.deaths[COMMITTING],
        "inside a checkpoint": tally.deaths[CHECKPOINTING],
        "aimed at the opening": tally.opening,
        "acknowledged": tally.acknowledged,
        "lost": tally.lost,
        "half batches": tally.halves,
        "corrupt": tally.corrupt,
    }
    return Outcome(figures=figures, broken=tuple(tally.broken))


PROOF: Final = Proof(
    name="P1",
    promise="an acknowledged append survives the death of the process",
    unit="kills",
    small=6,
    closing=100,
    long=5_000,
    run=run,
)

if __name__ == "__main__":
    asyncio.run(write_for_ever(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
