"""P15: take away disk, descriptors and rights; the store says so politely and loses nothing.

The faults are real. Each is tried in a process of its own: disks are small file systems that no
other process sees (where none may be mounted, a limit on the size of files stands in for the full
disk, and the read-only disk is left out), rights are taken by file modes from a user whom modes
bind, and descriptors by the limit of the process. Each time, what is refused must be refused by one
of `keepthread.errors`, what was acknowledged must be there and what was refused must not, reading
goes on, and writing works again once the resource is back.

On servers the faults are the server's: `postgres_faults` and `redis_faults`, all of a round in one
process. Those that need a small disk are left out where none may be mounted.
"""

import asyncio
import json
import os
import random
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from keepthread.errors import (
    Damaged,
    KeepthreadError,
    ReadOnly,
    Unavailable,
    WrongFormat,
)
from keepthread.stores.sqlite import SQLiteStore
from keepthread.types import SessionInfo
from proofs import Outcome, Progress, Proof, postgres_faults, redis_faults
from proofs.places import file_url
from proofs.trials import (
    LONG_SESSION,
    Fault,
    Refusals,
    SmallDisk,
    Trial,
    chat,
    descriptors,
    mount,
    way_to_mount,
    write_long,
)

ROOT: Final = Path(__file__).resolve().parent.parent
NOBODY: Final = 65534


# --- a full disk ---


async def full_while_open(trial: Trial) -> None:
    disk = SmallDisk(trial, 3 << 20)
    store = await trial.begin()
    disk.fill(left=500_000)
    await trial.say_until_refused(store, 20_000, disk.refusals)
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


async def restart_while_full(trial: Trial) -> None:
    """A program that is started again on a full disk reads all, and writes once there is room."""
    disk = SmallDisk(trial, 8 << 20)
    await (await trial.begin()).close()
    for left in (0, 4_000, 20_000, 60_000):
        for crashed in ((), ("-wal", "-shm"), ("-wal",)):
            what = f"restarted with {left} bytes left, after {crashed or 'closing'}"
            await leave(trial, crashed)
            disk.fill(left=left)
            await go_on_while_full(trial, disk, what)
            disk.free()


async def leave(trial: Trial, crashed: Sequence[str]) -> None:
    """Say more and leave the file as a crash does, with its log, or as closing does."""
    store = await trial.open()
    await trial.say(store, 200_000)  # more than a full disk lets SQLite move into the file
    files = [trial.path.with_name(f"{trial.path.name}{ending}") for ending in ("", *crashed)]
    kept = {file: file.read_bytes() for file in files}
    await store.close()
    for file, data in kept.items() if crashed else ():
        file.write_bytes(data)


async def go_on_while_full(trial: Trial, disk: SmallDisk, what: str) -> None:
    # Where a limit on the size of files stands in for the disk, no file can be opened at all.
    refusals = () if trial.mounts else Unavailable
    store = await trial.attempt(what, SQLiteStore.open(trial.path), refusals)
    if store is None:
        return
    async with store:
        await trial.hear_all(what, store)
        await trial.attempt(f"{what}, an append", trial.say(store, 100_000), disk.refusals)
        await trial.hear_all(f"{what}, after an append", store)
        await trial.attempt(f"{what}, verify", store.verify(), refusals)
        disk.free()
        await trial.attempt(f"{what}, with room again", trial.say(store), ())
        await trial.hear_all(f"{what}, with room again", store)


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


async def only_reads(trial: Trial, what: str, repair: Callable[[], object]) -> None:
    """Hold a store that cannot be written to opening, reading, and refusing to write.

    After the repair the same store must write, and show what it wrote.
    """
    store = await trial.attempt(what, SQLiteStore.open(trial.path), ())
    if store:
        async with store:
            await trial.hear_all(what, store)
            await trial.write_nothing(what, store)
            repair()
            await trial.attempt(f"{what}, repaired", trial.say(store), ())
            await trial.hear_all(f"{what}, repaired", store)


async def read_only_disk(trial: Trial) -> None:
    SmallDisk(trial, 3 << 20)
    await (await trial.begin()).close()
    mount("-o", "remount,ro", str(trial.folder))
    elsewhere = SQLiteStore.open(trial.folder / "absent.db")
    await trial.refused("a new file on a read-only disk", elsewhere, ReadOnly)
    repair = partial(mount, "-o", "remount,rw", str(trial.folder))
    await only_reads(trial, "a read-only disk", repair)
    await trial.recover("writable again")


async def read_only_folder(trial: Trial) -> None:
    await (await trial.begin()).close()
    with somebody(trial.folder):
        trial.folder.chmod(0o555)
        elsewhere = SQLiteStore.open(trial.folder / "absent.db")
        await trial.refused("a new file in a read-only folder", elsewhere, ReadOnly)
        await only_reads(trial, "a read-only folder", partial(trial.folder.chmod, 0o755))
        await trial.recover("writable again")


async def read_only_file(trial: Trial) -> None:
    await (await trial.begin()).close()
    with somebody(trial.folder):
        trial.path.chmod(0o444)
        await only_reads(trial, "a read-only file", partial(trial.path.chmod, 0o600))
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

        def repair() -> None:
            trial.folder.chmod(0o755)
            trial.path.chmod(0o600)

        await only_reads(trial, "protected, opened anew", repair)
        await trial.recover("writable again")


# --- too many open files ---


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
            await write_long(store, name, length)
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


FAULTS: Final = (
    Fault("disk full while open", full_while_open, needs_disk=True),
    Fault("disk full in a shared commit", full_in_company, needs_disk=True),
    Fault("disk full at the first opening", full_at_first_open, needs_disk=True),
    Fault("disk full at a later opening", full_at_next_open, needs_disk=True),
    Fault("restarted on a full disk", restart_while_full, needs_disk=True),
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
    url = file_url(folder / "chat.db")
    trial = Trial(url=url, folder=folder, mounts=mounts, rng=random.Random(seed))
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
    return outcome_of(seen, size, broken)


def outcome_of(seen: dict[str, str], rounds: int, broken: list[str]) -> Outcome:
    tried = sum(not errors.startswith("left out") for errors in seen.values())
    figures = {"faults tried": tried, "rounds": rounds, **seen, "broken": len(broken)}
    return Outcome(figures=figures, broken=tuple(broken))


# --- on servers ---

ON: Final[dict[str, Any]] = {"postgres": postgres_faults, "redis": redis_faults}


def run_on(kind: str, size: int, seed: int, progress: Progress) -> Outcome:
    """Try all faults of a server in a process of its own, whose disks no other process sees."""
    rng = random.Random(seed)
    seen: dict[str, str] = {}
    broken: list[str] = []
    prefix = ["unshare", "-m"] if list(way_to_mount()) == ["unshare", "-m"] else []
    for done in range(size):
        arguments = [kind, str(rng.getrandbits(32)), str(int(bool(prefix)))]
        command = [*prefix, sys.executable, "-m", "proofs.p15_exhaustion", *arguments]
        tried = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if tried.returncode:
            broken.append(tried.stderr[-1_000:])
            break
        for name, errors, wrong in json.loads(tried.stdout):
            seen[name] = ", ".join(errors) or "none"
            broken += [f"{name}: {what}" for what in wrong]
        progress(done + 1, size)
    return outcome_of(seen, size, broken)


def serve_on(kind: str, seed: int, *, mounts: bool) -> None:
    """Try all faults of a server here and print what came of them."""
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder, ON[kind].new_server() as server:
        results = [
            try_on(server, fault, Path(folder), mounts, rng.getrandbits(32), ON[kind])
            for fault in ON[kind].FAULTS
        ]
    print(json.dumps(results))


def try_on(
    server: Any, fault: Fault, folder: Path, mounts: bool, seed: int, module: Any
) -> tuple[str, list[str], list[str]]:
    """Try one fault; return its name, its errors and what it broke."""
    if fault.needs_disk and not mounts:
        return fault.name, ["left out: no disk may be mounted here"], []
    trial = Trial(
        url=module.empty(server),
        folder=folder,
        mounts=mounts,
        rng=random.Random(seed),
        server=server,
        options=module.QUICK,
    )
    asyncio.run(fault.attempt(trial))
    return fault.name, trial.errors, trial.broken


PROOF: Final = Proof(
    name="P15",
    promise="resources run out politely",
    unit="rounds through all faults",
    small=1,
    closing=1,
    long=20,
    run=run,
    on={kind: partial(run_on, kind) for kind in ON},
)

if __name__ == "__main__":
    if sys.argv[1] in ON:
        serve_on(sys.argv[1], int(sys.argv[2]), mounts=sys.argv[3] == "1")
    else:
        serve(int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), mounts=sys.argv[4] == "1")
