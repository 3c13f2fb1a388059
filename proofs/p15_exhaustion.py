"""P15: take away disk, descriptors and rights; the store says so politely and loses nothing.

The faults are real. Each is tried in a process of its own: disks are small file systems that no
other process sees (where none may be mounted, a limit on the size of files stands in for the full
disk, and the read-only disk is left out), rights are taken by file modes from a user whom modes
bind, and descriptors by the limit of the process. Each time, what is refused must be refused by one
of `keepthread.errors`, what was acknowledged must be there and what was refused must not, reading
goes on, and writing works again once the resource is back.
"""

import asyncio
import functools
import json
import os
import random
import resource
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from keepthread.errors import (
    Damaged,
    KeepthreadError,
    ReadOnly,
    StorageFull,
    Unavailable,
    WrongFormat,
)
from keepthread.stores.sqlite import SQLiteStore
from keepthread.types import Message, SessionInfo, SessionKey
from proofs import Outcome, Progress, Proof

T = TypeVar("T")
Refusals: TypeAlias = type[KeepthreadError] | tuple[type[KeepthreadError], ...]

ROOT: Final = Path(__file__).resolve().parent.parent
NOBODY: Final = 65534
LONG_SESSION: Final = 20_000


# --- one fault, in a process of its own ---


@dataclass(slots=True)
class Trial:
    """A conversation that goes on while things fail: what it was told, and what went wrong."""

    folder: Path
    mounts: bool
    rng: random.Random
    told: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)

    @property
    def path(self) -> Path:
        return self.folder / "chat.db"

    async def begin(self) -> SQLiteStore:
        """Open the store, make the session and say a little."""
        store = await SQLiteStore.open(self.path)
        await store.put_session(SessionInfo(id="chat"))
        for _ in range(5):
            await self.say(store)
        return store

    async def say(self, store: SQLiteStore, size: int = 100) -> None:
        """Append a message, and remember it once it is acknowledged."""
        text = self.rng.randbytes(size // 2).hex()
        await store.append(await chat(store), [Message(role="user", content=text)])
        self.told.append(text)

    async def attempt(self, what: str, work: Awaitable[T], refusals: Refusals) -> T | None:
        """Return what the work returns; note by which of our errors it was refused."""
        try:
            return await work
        except refusals as error:
            self._note(type(error).__name__)
        except Exception as error:  # noqa: BLE001 - any other error is what we look for
            self.broken.append(f"{what}: {error!r}")
        return None

    async def refused(self, what: str, work: Awaitable[object], refusals: Refusals) -> None:
        """Hold the work to being refused."""
        if await self.attempt(what, _completed(work), refusals):
            self.broken.append(f"{what}: was not refused")

    async def hear_all(self, what: str, store: SQLiteStore) -> None:
        """Hold the store to having all that was acknowledged, and nothing else."""
        try:
            found = [m.content for m in await store.read(await chat(store), limit=1_000_000)]
        except Exception as error:  # noqa: BLE001 - reading must go on
            self.broken.append(f"{what}: cannot be read: {error!r}")
            return
        if lost := len(set(self.told) - set(found)):
            self.broken.append(f"{what}: {lost} acknowledged messages lost")
        if extra := len(set(found) - set(self.told)):
            self.broken.append(f"{what}: {extra} refused messages stored all the same")
        if len(set(found)) < len(found):
            self.broken.append(f"{what}: a message is stored twice")

    async def recover(self, what: str, store: SQLiteStore | None = None) -> None:
        """Hold the store to working again, and to being sound."""
        try:
            store = store or await SQLiteStore.open(self.path)
            async with store:
                await self.say(store)
                await self.hear_all(what, store)
                if not (await store.verify()).sound:
                    self.broken.append(f"{what}: the file is damaged")
        except Exception as error:  # noqa: BLE001 - everything must work now
            self.broken.append(f"{what}: does not recover: {error!r}")

    def _note(self, error: str) -> None:
        if error not in self.errors:
            self.errors.append(error)


async def _completed(work: Awaitable[object]) -> bool:
    result = await work
    if isinstance(result, SQLiteStore):
        await result.close()
    return True


async def chat(store: SQLiteStore) -> SessionKey:
    session = await store.get_session("chat")
    assert session is not None, "the session is gone"
    return session.key


# --- a full disk ---


class SmallDisk:
    """A disk of a few megabytes that can be filled and freed."""

    def __init__(self, trial: Trial, size: int) -> None:
        self._trial = trial
        self._ballast = trial.folder / "ballast"
        self._limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        if trial.mounts:
            mount("-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(trial.folder))

    def fill(self, *, left: int) -> None:
        """Leave so many bytes, no more."""
        if not self._trial.mounts:
            largest = max((p.stat().st_size for p in self._trial.folder.iterdir()), default=0)
            resource.setrlimit(resource.RLIMIT_FSIZE, (largest + left, self._limits[1]))
            return
        disk = os.statvfs(self._trial.folder)
        with self._ballast.open("ab") as file:
            file.write(bytes(max(0, disk.f_bavail * disk.f_frsize - left)))

    def free(self) -> None:
        """Make room again."""
        resource.setrlimit(resource.RLIMIT_FSIZE, self._limits)
        self._ballast.unlink(missing_ok=True)

    @property
    def refusals(self) -> Refusals:
        """The error of a full disk; the stand-in looks like a failing one."""
        return StorageFull if self._trial.mounts else Unavailable


def mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True, capture_output=True)


async def full_while_open(trial: Trial) -> None:
    disk = SmallDisk(trial, 3 << 20)
    store = await trial.begin()
    disk.fill(left=500_000)
    said = -1
    while said < len(trial.told) < 1_000:
        said = len(trial.told)
        await trial.attempt("an append", trial.say(store, 20_000), disk.refusals)
    if "StorageFull" not in trial.errors and "Unavailable" not in trial.errors:
        trial.broken.append("the disk never became full")
    disk.fill(left=0)
    scopeless = SessionInfo(id="another", title="t" * 50_000)
    await trial.refused("a new session", store.put_session(scopeless), disk.refusals)
    await trial.hear_all("while full", store)
    disk.free()
    await trial.recover("with room again", store)
    await trial.recover("opened anew")


async def full_in_company(trial: Trial) -> None:
    """Appends that share a commit: each is stored or refused, and no answer is wrong."""
    disk = SmallDisk(trial, 8 << 20)
    store = await trial.begin()
    for count, size in ((64, 100_000), (16, 250_000), (200, 20_000)):
        disk.fill(left=2_000_000)
        many = [trial.say(store, size) for _ in range(count)]
        await asyncio.gather(*(trial.attempt("one of many", one, disk.refusals) for one in many))
        await trial.hear_all(f"{count} at once", store)
        disk.free()
    await trial.recover("with room again", store)


async def full_at_first_open(trial: Trial) -> None:
    disk = SmallDisk(trial, 1 << 20)
    for left in range(0, 150_000, 10_000):
        disk.fill(left=left)
        store = await trial.attempt("opening", SQLiteStore.open(trial.path), Unavailable)
        if store:
            await store.close()
        disk.free()
        try:
            store = await trial.begin()
            await trial.recover("with room again", store)
        except KeepthreadError as error:
            trial.broken.append(f"with room again, after {left} bytes: {error!r}")
        trial.told.clear()
        for file in trial.folder.glob("chat.db*"):
            file.unlink()


async def full_at_next_open(trial: Trial) -> None:
    disk = SmallDisk(trial, 1 << 20)
    await (await trial.begin()).close()
    for left in (0, 10_000, 40_000):
        disk.fill(left=left)
        store = await trial.attempt("opening", SQLiteStore.open(trial.path), Unavailable)
        if store:
            await trial.hear_all("while full", store)
            await trial.attempt("an append", trial.say(store, 50_000), Unavailable)
            await store.close()
        disk.free()
        await trial.recover("with room again")


# --- what may not be written ---


@contextmanager
def somebody(folder: Path) -> Iterator[None]:
    """Be a user whom file modes bind, and the owner of the folder.

    Open and close a store before: Python reads some of its modules when they are first used, and
    this user may have no right to.
    """
    if os.geteuid() != 0:
        yield
        return
    for path in (folder, *folder.iterdir()):
        os.chown(path, NOBODY, NOBODY)
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, 0)
    os.setresuid(NOBODY, NOBODY, 0)
    try:
        yield
    finally:
        os.setresuid(0, 0, 0)
        os.setresgid(0, 0, 0)


async def only_reads(trial: Trial, what: str) -> None:
    """Hold a store that cannot be written to opening, reading, and refusing to write."""
    store = await trial.attempt(what, SQLiteStore.open(trial.path), ())
    if store:
        async with store:
            await trial.hear_all(what, store)
            await trial.refused(f"{what}, an append", trial.say(store), ReadOnly)
            new = SessionInfo(id="another")
            await trial.refused(f"{what}, a session", store.put_session(new), ReadOnly)
            await trial.attempt(f"{what}, verify", store.verify(), ())


async def read_only_disk(trial: Trial) -> None:
    SmallDisk(trial, 3 << 20)
    await (await trial.begin()).close()
    mount("-o", "remount,ro", str(trial.folder))
    await only_reads(trial, "a read-only disk")
    elsewhere = SQLiteStore.open(trial.folder / "absent.db")
    await trial.refused("a new file on a read-only disk", elsewhere, ReadOnly)
    mount("-o", "remount,rw", str(trial.folder))
    await trial.recover("writable again")


async def read_only_folder(trial: Trial) -> None:
    await (await trial.begin()).close()
    with somebody(trial.folder):
        trial.folder.chmod(0o555)
        await only_reads(trial, "a read-only folder")
        elsewhere = SQLiteStore.open(trial.folder / "absent.db")
        await trial.refused("a new file in a read-only folder", elsewhere, ReadOnly)
        trial.folder.chmod(0o755)
        await trial.recover("writable again")


async def read_only_file(trial: Trial) -> None:
    await (await trial.begin()).close()
    with somebody(trial.folder):
        trial.path.chmod(0o444)
        await only_reads(trial, "a read-only file")
        trial.path.chmod(0o600)
        await trial.recover("writable again")


async def unreadable_file(trial: Trial) -> None:
    await (await trial.begin()).close()
    with somebody(trial.folder):
        trial.path.chmod(0)
        await trial.refused("a file without rights", SQLiteStore.open(trial.path), Unavailable)
        trial.path.chmod(0o600)
        await trial.recover("with rights again")


async def protected_while_open(trial: Trial) -> None:
    """Rights that are taken from an open file are noticed at the next opening at the latest."""
    await (await trial.begin()).close()
    with somebody(trial.folder):
        store = await SQLiteStore.open(trial.path)
        await trial.say(store)
        trial.path.chmod(0o444)
        trial.folder.chmod(0o555)
        await trial.attempt("an append", trial.say(store), ReadOnly)
        await trial.hear_all("protected while open", store)
        await store.close()
        await only_reads(trial, "protected, opened anew")
        trial.folder.chmod(0o755)
        trial.path.chmod(0o600)
        await trial.recover("writable again")


# --- too many open files ---


@contextmanager
def descriptors(left: int) -> Iterator[None]:
    """Leave so many more files that may be opened."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, limits[0]), limits[1]))
    taken: list[int] = []
    try:
        with suppress(OSError):
            while True:
                taken.append(os.dup(0))
        for descriptor in taken[len(taken) - left :]:
            os.close(descriptor)
        del taken[len(taken) - left :]
        yield
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


async def no_descriptors_at_open(trial: Trial) -> None:
    with descriptors(0):
        await trial.refused("the first opening", SQLiteStore.open(trial.path), Unavailable)
    await (await trial.begin()).close()
    for left in range(12):
        with descriptors(left):
            store = await trial.attempt("opening", SQLiteStore.open(trial.path), Unavailable)
            if store:
                await trial.attempt("reading", chat(store), Unavailable)
                await trial.attempt("an append", trial.say(store), Unavailable)
                await trial.attempt("verify", store.verify(), Unavailable)
        await trial.recover(f"{left} descriptors", store)


async def no_descriptors_while_open(trial: Trial) -> None:
    store = await trial.begin()
    await trial.hear_all("before", store)
    with descriptors(0):
        for _ in range(10):  # enough for a checkpoint, which needs one more file
            await trial.attempt("an append", trial.say(store, 500_000), Unavailable)
        await trial.hear_all("without descriptors", store)
        await trial.refused("verify", store.verify(), Unavailable)
    await trial.recover("with descriptors again", store)


# --- what is no store ---


async def missing_folder(trial: Trial) -> None:
    path = trial.folder / "absent" / "chat.db"
    await trial.refused("a missing folder", SQLiteStore.open(path), Unavailable)
    path.parent.mkdir()
    await (await SQLiteStore.open(path)).close()


async def a_directory(trial: Trial) -> None:
    trial.path.mkdir()
    await trial.refused("a directory", SQLiteStore.open(trial.path), Unavailable)


async def no_database(trial: Trial) -> None:
    for size in (10, 100, 512, 5_000, 50_000):
        trial.path.write_bytes(trial.rng.randbytes(size))
        await refused_untouched(trial, f"{size} random bytes", (WrongFormat, Damaged))


async def another_database(trial: Trial) -> None:
    db = sqlite3.connect(trial.path)
    db.execute("CREATE TABLE sessions (id TEXT)")
    db.close()
    await refused_untouched(trial, "somebody else's database", WrongFormat)


async def newer_format(trial: Trial) -> None:
    await (await trial.begin()).close()
    db = sqlite3.connect(trial.path)
    db.execute("PRAGMA user_version = 1000")
    db.close()
    await refused_untouched(trial, "a newer format", WrongFormat)


async def refused_untouched(trial: Trial, what: str, refusals: Refusals) -> None:
    """Hold the store to leaving alone what it refuses to open."""
    before = trial.path.read_bytes()
    await trial.refused(what, SQLiteStore.open(trial.path), refusals)
    if trial.path.read_bytes() != before:
        trial.broken.append(f"{what}: was changed by opening it")


# --- a long session ---


class Steps:
    """Counts the steps of SQLite's machine: what a query costs, whatever else runs here."""

    def __init__(self) -> None:
        self.count = 0

    def connect(self, uri: str) -> sqlite3.Connection:
        db = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=0)
        db.set_progress_handler(self._step, 1)
        return db

    def _step(self) -> int:
        self.count += 1
        return 0


async def a_long_session(trial: Trial) -> None:
    async with await SQLiteStore.open(trial.path) as store:
        for name, length in (("short", 100), ("long", LONG_SESSION)):
            session = await store.put_session(SessionInfo(id=name))
            messages = [Message(role="user", content=f"{n}", tokens=10) for n in range(length)]
            for start in range(0, length, 1_000):
                await store.append(session.key, messages[start : start + 1_000])
    steps = Steps()
    async with await SQLiteStore.open(trial.path, connect=steps.connect) as store:
        costs = [await tail_cost(store, name, steps) for name in ("short", "long")]
    trial.errors.append(
        f"none; {costs[1]} steps for 50 of {LONG_SESSION}, {costs[0]} for 50 of 100"
    )
    if costs[1] > costs[0] * 1.2:
        trial.broken.append(f"the tail of a long session costs {costs[1]} steps, not {costs[0]}")


async def tail_cost(store: SQLiteStore, name: str, steps: Steps) -> int:
    """Return the steps that the second reading of a tail takes; the first prepares the query."""
    session = await store.get_session(name)
    assert session is not None
    await store.tail(session.key, tokens=500)
    before = steps.count
    found = await store.tail(session.key, tokens=500)
    assert len(found) == 50
    return steps.count - before


# --- all of them ---


class Fault(NamedTuple):
    """One way to run out of something."""

    name: str
    attempt: Callable[[Trial], Coroutine[Any, Any, None]]
    needs_disk: bool = False
    """Whether a file system of its own serves it best."""


FAULTS: Final = (
    Fault("disk full while open", full_while_open, needs_disk=True),
    Fault("disk full in a shared commit", full_in_company, needs_disk=True),
    Fault("disk full at the first opening", full_at_first_open, needs_disk=True),
    Fault("disk full at a later opening", full_at_next_open, needs_disk=True),
    Fault("read-only disk", read_only_disk, needs_disk=True),
    Fault("read-only folder", read_only_folder),
    Fault("read-only file", read_only_file),
    Fault("unreadable file", unreadable_file),
    Fault("write-protected while open", protected_while_open),
    Fault("too many files at opening", no_descriptors_at_open),
    Fault("too many files while open", no_descriptors_while_open),
    Fault("missing folder", missing_folder),
    Fault("the path is a directory", a_directory),
    Fault("the file is no database", no_database),
    Fault("somebody else's database", another_database),
    Fault("a newer format", newer_format),
    Fault("a long session", a_long_session),
)


@functools.cache
def way_to_mount() -> Sequence[str]:
    """Return the command that gives a process mounts of its own, or nothing if none does."""
    for command in (["unshare", "-m"], ["unshare", "-rm"]):
        with tempfile.TemporaryDirectory() as folder, suppress(OSError):
            attempt = [*command, "mount", "-t", "tmpfs", "tmpfs", folder]
            if subprocess.run(attempt, capture_output=True, check=False).returncode == 0:
                return command
    return []


def try_fault(number: int, seed: int) -> tuple[str, list[str]]:
    """Try one fault in a process of its own; return its errors and what it broke."""
    fault = FAULTS[number]
    prefix = way_to_mount() if fault.needs_disk else []
    if fault.attempt is read_only_disk and not prefix:
        return "left out: no disk may be mounted here", []
    with tempfile.TemporaryDirectory() as folder:
        arguments = [str(number), str(Path(folder).resolve()), str(seed), str(int(bool(prefix)))]
        command = [*prefix, sys.executable, "-m", "proofs.p15_exhaustion", *arguments]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        return "failed", [f"{fault.name}: {done.stderr[-500:]}"]
    answer = json.loads(done.stdout)
    errors = ", ".join(answer["errors"]) or "none"
    if fault.needs_disk and not prefix:
        errors += " (by a limit on the size of files: no disk may be mounted here)"
    return errors, [f"{fault.name}: {what}" for what in answer["broken"]]


def serve(number: int, folder: Path, seed: int, *, mounts: bool) -> None:
    """Try one fault here and print what came of it."""
    trial = Trial(folder, mounts, random.Random(seed))
    asyncio.run(FAULTS[number].attempt(trial))
    print(json.dumps({"errors": trial.errors, "broken": trial.broken}))


def run(size: int, seed: int, progress: Progress) -> Outcome:
    rng = random.Random(seed)
    seen: dict[str, str] = {}
    broken: list[str] = []
    for done in range(size * len(FAULTS)):
        number = done % len(FAULTS)
        errors, wrong = try_fault(number, rng.getrandbits(32))
        seen[FAULTS[number].name] = errors
        broken += wrong
        progress(done + 1, size * len(FAULTS))
    tried = sum(not errors.startswith("left out") for errors in seen.values())
    figures = {"faults tried": tried, "rounds": size, **seen, "broken": len(broken)}
    return Outcome(figures=figures, broken=tuple(broken))


PROOF: Final = Proof(
    name="P15",
    promise="resources run out politely",
    unit="rounds through all faults",
    small=1,
    closing=1,
    long=20,
    run=run,
)

if __name__ == "__main__":
    serve(int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), mounts=sys.argv[4] == "1")
