"""P2: cut the power at thousands of moments; whatever was acknowledged must still be there.

Nothing is mocked. A process runs the real store while `recorder.c` notes every write, truncation,
sync, creation and deletion in its folder, and what the process was told, in one order. The replay
then makes the disk as a power cut could have left it at any moment: what was synced is there; of
what was not, each write is kept, dropped or torn at sectors of 512 bytes; of the creations and
deletions that no sync of the folder followed, some first ones are kept, as on a journaling file
system. The real store opens each such image and must find every session exactly as acknowledged,
give or take the one step each writer was waiting for.

A seed gives the same steps and the same choices again; how the system's threads interleave, and so
which appends share a commit, is the machine's own.

The same test on `durability="process"`, which does not sync at every commit, must lose writes:
that shows it can.
"""

import asyncio
import itertools
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeAlias

from keepthread.errors import KeepthreadError
from keepthread.stores.sqlite import SQLiteStore
from keepthread.types import Durability, Message, Scope, SessionInfo
from proofs import Outcome, Progress, Proof

ROOT: Final = Path(__file__).resolve().parent.parent
TASKS: Final = 6
STEPS: Final = 200
REOPEN_AT: Final = 20
SECTOR: Final = 512
HEADER: Final = struct.Struct("=IIQQ")
FILE: Final = "log.db"

Mode: TypeAlias = Literal["lose all", "keep all", "random"]
_TRIES: Final = 4
MODES: Final[tuple[Mode, ...]] = ("lose all", "random", "random", "random", "keep all", "random")


# --- what each writer does: known from the seed alone ---


class Step(NamedTuple):
    """One write: messages to append, positions to erase, or a record to put or drop (None)."""

    kind: Literal["create", "append", "erase", "put"]
    texts: tuple[str, ...] = ()
    seqs: tuple[int, ...] = ()
    key: str = ""
    value: str | None = None


@dataclass(frozen=True, slots=True)
class Thread:
    """What one writer has stored: its session's log, None where erased, and its shelf."""

    messages: tuple[str | None, ...] = ()
    shelf: Mapping[str, str] = field(default_factory=dict)

    def after(self, step: Step) -> "Thread":
        """Return what is stored once the step is done."""
        if step.kind == "append":
            return Thread(self.messages + step.texts, self.shelf)
        if step.kind == "erase":
            left = [None if s in step.seqs else t for s, t in enumerate(self.messages, 1)]
            return Thread(tuple(left), self.shelf)
        shelf = {key: value for key, value in self.shelf.items() if key != step.key}
        if step.value is not None:
            shelf[step.key] = step.value
        return Thread(self.messages, shelf)


def script(seed: int, task: int) -> list[Step]:
    """Return all steps of one writer; its session is its own, so every position is known."""
    rng = random.Random(f"{seed} {task}")
    steps = [Step("create")]
    thread = Thread()
    for number in range(1, STEPS):
        step = next_step(thread, rng, f"{task}.{number}")
        thread = thread.after(step)
        steps.append(step)
    return steps


def next_step(thread: Thread, rng: random.Random, name: str) -> Step:
    chance = rng.random()
    if chance < 0.6 or not thread.messages:
        count = rng.choice((1, 1, 2, 4))
        return Step("append", texts=tuple(text(rng, f"{name}.{i}") for i in range(count)))
    if chance < 0.75:  # the largest, so that the file stays small while much is written
        live = [seq for seq, body in enumerate(thread.messages, 1) if body is not None]
        live.sort(key=lambda seq: -len(thread.messages[seq - 1] or ""))
        return Step("erase", seqs=tuple(live[: rng.randint(1, 8)]))
    value = None if chance > 0.97 else text(rng, name)
    return Step("put", key=f"key {rng.randrange(4)}", value=value)


def text(rng: random.Random, name: str) -> str:
    """Return 10 bytes to 60 kB, short ones as often as long ones."""
    length = round(10 * 6_000 ** rng.random())
    return (f"{name} " * (length // (len(name) + 1) + 1))[:length]


# --- the process that is recorded ---


async def write_all(folder: Path, durability: Durability, seed: int) -> None:
    """Do every writer's steps, all writers at once; once, close the store and open it anew."""
    marks = os.open(folder / "marks", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    scripts = [script(seed, task) for task in range(TASKS)]
    for part in (slice(0, REOPEN_AT), slice(REOPEN_AT, STEPS)):
        async with await SQLiteStore.open(folder / FILE, durability=durability) as store:
            await asyncio.gather(
                *(write(store, task, steps[part], marks) for task, steps in enumerate(scripts))
            )


async def write(store: SQLiteStore, task: int, steps: Sequence[Step], marks: int) -> None:
    session = await store.get_session(f"{task}")
    for step in steps:
        os.write(marks, b"%d begin" % task)
        if session is None:
            session = await store.put_session(SessionInfo(id=f"{task}"))
        elif step.kind == "append":
            await store.append(session.key, [Message(role="user", content=t) for t in step.texts])
        elif step.kind == "erase":
            await store.erase(session.key, step.seqs)
        elif step.value is None:
            await store.drop(Scope(session=session.key), "note", step.key)
        else:
            await store.put(Scope(session=session.key), "note", step.key, step.value)
        os.write(marks, b"%d done" % task)


# --- recording ---


class CannotRecord(Exception):
    """The recorder does not work here; the text says why."""


def compile_recorder(folder: Path) -> Path:
    """Return the recorder as a shared library."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if sys.platform != "linux" or compiler is None:
        raise CannotRecord("recording system calls needs Linux and a C compiler named cc")
    library = folder / "recorder.so"
    source = Path(__file__).with_name("recorder.c")
    command = [compiler, "-shared", "-fPIC", "-O2", "-o", str(library), str(source), "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CannotRecord(f"recorder.c does not compile: {done.stderr[-500:]}")
    return library


class Event(NamedTuple):
    """One recorded call."""

    kind: str
    file: int
    offset: int
    data: bytes


def record(library: Path, durability: Durability, seed: int) -> list[Event]:
    """Run the writers in a process of their own and return all it did to its folder."""
    with Scratch() as folder:
        work, log = folder / "work", folder / "log"
        work.mkdir()
        command = [sys.executable, "-m", "proofs.p02_power", str(work), durability, str(seed)]
        settings = {"RECORDER_FOLDER": str(work), "RECORDER_LOG": str(log)}
        environment = os.environ | settings | {"LD_PRELOAD": str(library)}
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise CannotRecord(f"the recorded process failed: {done.stderr[-500:]}")
        events = list(parse(log.read_bytes()))
    if strange := {event.data for event in events if event.kind == "?"}:
        raise CannotRecord(f"the replay does not know {strange}")
    return events


def parse(log: bytes) -> Iterator[Event]:
    """Yield the records of a log."""
    position = 0
    while position < len(log):
        kind, file, offset, size = HEADER.unpack_from(log, position)
        position += HEADER.size
        yield Event(chr(kind), file, offset, log[position : position + size])
        position += size


class Scratch:
    """A folder in memory where there is one, since thousands of images are written."""

    def __enter__(self) -> Path:
        memory = Path("/dev/shm")
        where = memory if os.access(memory, os.W_OK) else None
        self._folder = tempfile.TemporaryDirectory(dir=where)
        return Path(self._folder.name).resolve()

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()


# --- the disk, as it is and as a power cut leaves it ---


class Change(NamedTuple):
    """A write that is not synced yet; without data, a new length."""

    offset: int
    data: bytes | None


@dataclass(slots=True)
class DiskFile:
    """What surely is on the disk, and what may be."""

    durable: bytearray = field(default_factory=bytearray)
    pending: list[Change] = field(default_factory=list)

    def sync(self) -> None:
        for change in self.pending:
            apply(self.durable, change)
        self.pending.clear()

    def after_cut(self, mode: Mode, rng: random.Random) -> bytearray:
        """Return what is found when the power is back."""
        image = bytearray(self.durable)
        keep = rng.choice((0.1, 0.5, 0.9))
        for change in self.pending:
            chance = 1.0 if mode == "lose all" else 0.0 if mode == "keep all" else rng.random()
            if chance < keep:
                apply(image, change)
            elif mode == "random" and change.data is not None and rng.random() < 0.5:
                tear(image, change.offset, change.data, rng)
        return image


def apply(image: bytearray, change: Change) -> None:
    """Write, or set the length; what lies between is zero."""
    end = change.offset + len(change.data or b"")
    if len(image) < end:
        image.extend(bytes(end - len(image)))
    if change.data is None:
        del image[end:]
    else:
        image[change.offset : end] = change.data


def tear(image: bytearray, offset: int, data: bytes, rng: random.Random) -> None:
    """Write some of a write's sectors; the file may be longer for it all the same."""
    cuts = [0, *range(SECTOR - offset % SECTOR, len(data), SECTOR), len(data)]
    for start, end in itertools.pairwise(cuts):
        if rng.random() < 0.5:
            apply(image, Change(offset + start, data[start:end]))


@dataclass(slots=True)
class Disk:
    """All files of the folder; a name is synced with the folder, a file by itself."""

    files: dict[int, DiskFile] = field(default_factory=dict)
    names: dict[str, int] = field(default_factory=dict)
    pending: list[tuple[str, int | None]] = field(default_factory=list)
    restarts: int = 0

    def take(self, event: Event) -> None:
        """Let one recorded call happen."""
        if event.kind == "c":
            self.files[event.file] = DiskFile()
            self.pending.append((event.data.decode(), event.file))
        elif event.kind == "u":
            (name,) = [name for name, file in self.now().items() if file == event.file]
            self.pending.append((name, None))
        elif event.kind == "d":
            self.names = self.now()
            self.pending.clear()
        elif event.kind == "s":
            self.files[event.file].sync()
        elif event.kind == "t":
            self.files[event.file].pending.append(Change(event.offset, None))
        elif event.kind == "w":
            file = self.files[event.file]
            # Only the log behind a checkpoint is written from its start on a second time.
            self.restarts += event.offset == 0 and event.file == self._log() and bool(file.durable)
            file.pending.append(Change(event.offset, event.data))

    def _log(self) -> int | None:
        return self.now().get(f"{FILE}-wal")

    def now(self, first: int | None = None) -> dict[str, int]:
        """Return the names as the running system sees them, or with some first changes only."""
        names = dict(self.names)
        for name, file in self.pending[:first]:
            names.pop(name, None)
            if file is not None:
                names[name] = file
        return names

    def cut(self, folder: Path, mode: Mode, rng: random.Random) -> None:
        """Write what is left after a power cut into a folder."""
        most = len(self.pending)
        first = {"lose all": 0, "keep all": most, "random": rng.randint(0, most)}[mode]
        for name, file in self.now(first).items():
            (folder / name).write_bytes(self.files[file].after_cut(mode, rng))


# --- what must be found ---


class Promises:
    """What every writer was told so far, and the step it waits for."""

    def __init__(self, seed: int) -> None:
        self.scripts = [script(seed, task) for task in range(TASKS)]
        self.threads = [Thread() for _ in range(TASKS)]
        self.done = [0] * TASKS
        self.begun = [0] * TASKS

    def take(self, mark: bytes) -> None:
        """Hear what a writer says."""
        task, what = int(mark.split()[0]), mark.split()[1]
        if what == b"begin":
            self.begun[task] += 1
        else:
            self.threads[task] = self.threads[task].after(self.scripts[task][self.done[task]])
            self.done[task] += 1

    @property
    def acknowledged(self) -> int:
        return sum(self.done)

    def lost(self, task: int, found: Thread | None) -> int:
        """Count what a writer was told is stored and is not found, or is found otherwise."""
        promised = self.threads[task]
        allowed: list[Thread | None] = [promised if self.done[task] else None]
        if self.begun[task] > self.done[task]:
            allowed.append(promised.after(self.scripts[task][self.done[task]]))
        if found in allowed:
            return 0
        found = found or Thread()
        missing = abs(len(promised.messages) - len(found.messages))
        pairs = zip(promised.messages, found.messages, strict=False)
        keys = promised.shelf.keys() | found.shelf.keys()
        other = sum(promised.shelf.get(key) != found.shelf.get(key) for key in keys)
        return max(1, missing + sum(a != b for a, b in pairs) + other)


async def find(store: SQLiteStore, task: int) -> Thread | None:
    """Return what the store has of one writer."""
    session = await store.get_session(f"{task}")
    if session is None:
        return None
    messages = await store.read(session.key, limit=1_000_000)
    if [m.seq for m in messages] != list(range(1, len(messages) + 1)):
        raise KeepthreadError(f"session {task} has gaps")
    shelf = await store.scan(Scope(session=session.key), "note")
    return Thread(
        tuple(None if m.state == "erased" else f"{m.content}" for m in messages),
        {record.key: f"{record.value}" for record in shelf},
    )


# --- the proof ---


@dataclass(slots=True)
class Tally:
    """What was seen so far at one level of durability."""

    size: int
    crashes: int = 0
    at_stake: int = 0
    lost: int = 0
    restarts: int = 0
    losses: list[str] = field(default_factory=list)
    damages: list[str] = field(default_factory=list)


async def inspect(image: Path, promises: Promises, tally: Tally, where: str) -> None:
    """Open one image with the real store and compare."""
    tally.crashes += 1
    tally.at_stake += promises.acknowledged
    try:
        async with await SQLiteStore.open(image / FILE) as store:
            lost = sum([promises.lost(task, await find(store, task)) for task in range(TASKS)])
            damages = (await store.verify()).damages
    except KeepthreadError as error:
        lost, damages = 0, [error]
    if lost:
        tally.lost += lost
        tally.losses.append(f"{where}: {lost} acknowledged writes lost")
    if damages:
        tally.damages.append(f"{where}: {damages[0]!r}")


def crash_points(events: Sequence[Event], most: int, rng: random.Random) -> list[int]:
    """Return moments in order: before each sync, around checkpoints, and as many anywhere.

    A checkpoint is short and delicate: the file is written, then the log restarted. It ends with a
    truncation of the file, so the calls around that one get some moments of their own.
    """
    syncs = [number for number, event in enumerate(events) if event.kind in ("s", "d")]
    ends = [number for number, event in enumerate(events) if event.kind == "t"]
    points = syncs + [rng.randrange(len(events) + 1) for _ in syncs]
    points += [rng.randint(end - 300, end + 60) for end in ends for _ in range(10)]
    points = [min(max(point, 0), len(events)) for point in points]
    return sorted(rng.sample(points, min(most, len(points))))


async def replay(
    events: Sequence[Event], seed: int, most: int, tally: Tally, progress: Progress
) -> None:
    """Cut the power at several moments of one recording."""
    rng = random.Random(f"{seed} cuts")
    disk, promises, position = Disk(), Promises(seed), 0
    with Scratch() as folder:
        for number, point in enumerate(crash_points(events, most, rng)):
            for event in events[position:point]:
                if event.kind == "m":
                    promises.take(event.data)
                else:
                    disk.take(event)
            position = point
            mode = rng.choice(MODES)
            image = folder / f"{number}"
            image.mkdir()
            disk.cut(image, mode, rng)
            await inspect(image, promises, tally, f"seed {seed}, event {point}, {mode}")
            shutil.rmtree(image)
            progress(tally.crashes, tally.size)
    tally.restarts += disk.restarts


def without_syncs(library: Path, size: int, seed: int) -> Tally:
    """Cut the power where nothing is synced, until something is lost; by chance nothing may be."""
    tally = crash(library, "process", size, seed, lambda done, of: None)
    for number in range(1, _TRIES):
        if tally.losses or tally.damages:
            break
        tally = crash(library, "process", size, seed + number, lambda done, of: None)
    return tally


def run(size: int, seed: int, progress: Progress) -> Outcome:
    try:
        with Scratch() as folder:
            library = compile_recorder(folder)
            normal = without_syncs(library, max(20, size // 20), seed)
            full = crash(library, "power", size, seed, progress)
    except CannotRecord as error:
        return Outcome(figures={"crashes": 0}, broken=(str(error),))
    broken = full.losses + full.damages + normal.damages
    if not normal.losses:
        broken.append("nothing was lost without syncs either: the test cannot fail")
    if full.restarts == 0:
        broken.append("the log was never restarted: too little was written")
    figures = {
        "crashes": full.crashes,
        "acknowledged writes at stake": full.at_stake,
        "lost": full.lost,
        "damaged images": len(full.damages),
        "logs restarted after a checkpoint": full.restarts,
        "NORMAL: crashes": normal.crashes,
        "NORMAL: acknowledged writes at stake": normal.at_stake,
        "NORMAL: lost": normal.lost,
        "NORMAL: crashes that lost": len(normal.losses),
        "NORMAL: damaged images": len(normal.damages),
    }
    return Outcome(figures=figures, broken=tuple(broken))


def crash(library: Path, durability: Durability, size: int, seed: int, progress: Progress) -> Tally:
    """Make recordings until there were enough crashes."""
    tally = Tally(size)
    for own_seed in itertools.count(seed * 1_000):
        events = record(library, durability, own_seed)
        asyncio.run(replay(events, own_seed, size - tally.crashes, tally, progress))
        if tally.crashes == size:
            break
    return tally


PROOF: Final = Proof(
    name="P2",
    promise="an acknowledged write survives loss of power",
    unit="power losses",
    small=15,
    closing=2_000,
    long=100_000,
    run=run,
)

if __name__ == "__main__":
    asyncio.run(write_all(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])))  # pyright: ignore[reportArgumentType]
