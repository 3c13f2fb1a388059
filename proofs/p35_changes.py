"""P35: the feed of changes skips nothing, and has the changes of a session in their order.

Four processes create, change, erase and delete in sessions that they share; they are killed and
started again, and so is their server. Meanwhile readers follow the feed, of one owner or of all, in
pages of random size, and sometimes continue from an older cursor. In the end a new reader reads all
of it: it must hold every acknowledged change, each message once, in an order that the writers could
see; and what the readers have seen must be the same, change for change.

Where a process gives changes their times, as in SQLite, the clocks of the writers are wrong in many
calls, ahead or back by days or years: each change must have the time of its own writer's clock, and
none may be deleted.
"""

import asyncio
import json
import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, TextIO

from keepthread.errors import KeepthreadError, SessionExists, SessionGone, Stale, Unavailable
from keepthread.protocols import Store
from keepthread.stores.kinds import FACT, PIN
from keepthread.types import Change, Message, Scope, SessionInfo, SessionKey
from proofs import Outcome, Progress, Proof
from proofs.places import Place, file_url, new_place, opened
from proofs.processes import fresh_processes

WRITERS = 4
OWNERS = ("ana", "bo", "cy")
SESSIONS = 6
"""Per owner; a deleted one is created again."""
PATIENCE = 60.0
SHOWN_WITHIN = 30.0
_DAY: Final = 86_400.0
STEPS: Final = (0.0, 0.0, 0.0, 8 * _DAY, 1500 * _DAY, -1 * _DAY, -1500 * _DAY)
"""Seconds by which a clock is ahead in a call."""
_TOLERANCE: Final = 5.0


class Write(NamedTuple):
    """One call of a writer; times are nanoseconds of the system's monotonic clock."""

    kind: str
    owner: str
    session: str
    key: str
    ids: list[str]
    began: int
    ended: int
    """0 if nobody knows whether it was done."""
    ahead: float = 0.0
    """Seconds by which the clock of its process was ahead."""


def run(size: int, seed: int, progress: Progress) -> Outcome:
    with tempfile.TemporaryDirectory() as folder:
        url = file_url(Path(folder) / "feed.db")
        return asyncio.run(_run(Path(folder), url, None, size, seed, progress))


def run_on(kind: str, size: int, seed: int, progress: Progress) -> Outcome:
    with new_place(kind) as place, tempfile.TemporaryDirectory() as folder:
        return asyncio.run(_run(Path(folder), place.url, place, size, seed, progress))


async def _run(
    folder: Path, url: str, place: Place | None, size: int, seed: int, progress: Progress
) -> Outcome:
    rng = random.Random(seed)
    async with opened(url) as store:
        await store.put_session(SessionInfo(id="first", owner=OWNERS[0]))
        readers = [
            Reader(store, owner, random.Random(rng.random())) for owner in (None, *OWNERS[:2])
        ]
        following = [asyncio.create_task(reader.follow()) for reader in readers]
        crew = Crew(folder, url, place, size, rng)
        try:
            await crew.work(progress)
            last = await store.put_session(SessionInfo(id="last", owner="last"))
            whole = await _read_all(store, last.key)
            ends: dict[str | None, SessionKey] = {None: last.key}
            for owner in OWNERS[:2]:
                ends[owner] = (await store.put_session(SessionInfo(id="last", owner=owner))).key
            for reader in readers:
                await reader.until(ends[reader.owner])
        finally:
            for task in following:
                task.cancel()
        writes = [write for number in range(WRITERS) for write in _writes(folder, number)]
    broken = [*_missing(whole, writes), *_doubled(whole), *_disordered(whole, writes)]
    broken += _mistimed(whole, writes, time.time() - time.monotonic())
    for reader in readers:
        broken += reader.differences(whole)
    figures: dict[str, int | float | str] = {
        "calls": len(writes),
        "acknowledged": sum(write.ended > 0 for write in writes),
        "changes": len(whole),
        "processes killed": crew.killed,
        "server restarts": crew.restarts,
        "calls with a wrong clock": sum(write.ahead != 0 for write in writes),
        "changes that readers saw": sum(len(reader.seen) for reader in readers),
        "times that a reader went back": sum(reader.went_back for reader in readers),
    }
    return Outcome(figures=figures, broken=tuple(broken))


# --- readers ---


class Reader:
    """Follows a feed, and notes each change the first time it comes."""

    def __init__(self, store: Store, owner: str | None, rng: random.Random) -> None:
        self.store = store
        self.owner = owner
        self.rng = rng
        self.seen: dict[Change, None] = {}
        self.went_back = 0
        self.keys: set[str] = set()

    async def follow(self) -> None:
        cursors: list[str | None] = [None]
        while True:
            limit = self.rng.choice((1, 2, 5, 20, 100, 1000))
            try:
                page = await self.store.changes(owner=self.owner, after=cursors[-1], limit=limit)
            except Unavailable:
                await asyncio.sleep(0.05)
                continue
            for change in page:
                self.seen.setdefault(change)
                self.keys.add(change.key)
            if page:
                cursors = [*cursors[-20:], page.next]
                if self.rng.random() < 0.02:
                    self.went_back += 1
                    del cursors[self.rng.randrange(1, len(cursors)) :]
            await asyncio.sleep(0 if page else 0.02)

    async def until(self, key: str) -> None:
        """Wait until the reader has seen a session."""
        end = time.monotonic() + SHOWN_WITHIN
        while key not in self.keys and time.monotonic() < end:  # noqa: ASYNC110 - it runs beside
            await asyncio.sleep(0.02)

    def differences(self, whole: list[Change]) -> Iterator[str]:
        """Compare what was seen with what a new reader reads."""
        who = f"the reader of {self.owner or 'all'}"
        expected = [c for c in whole if self.owner in (None, c.owner)]
        seen = [c for c in self.seen if c.session != "last"]
        yield from (
            f"{who} was not shown {change}" for change in expected if change not in self.seen
        )
        known = set(expected)
        yield from (f"{who} alone was shown {change}" for change in seen if change not in known)
        if [c for c in seen if c in known] != [c for c in expected if c in self.seen]:
            yield f"{who} was shown another order"


async def _read_all(store: Store, last: SessionKey) -> list[Change]:
    """Read the whole feed with a new reader, up to a session that was created last."""
    found: list[Change] = []
    cursor: str | None = None
    end = time.monotonic() + SHOWN_WITHIN
    while time.monotonic() < end:
        page = await store.changes(after=cursor, limit=500)
        found += page
        cursor = page.next
        if any(change.key == last for change in page):
            break
        await asyncio.sleep(0 if page else 0.05)
    return [change for change in found if change.session != "last"]


# --- writers ---


class Crew:
    """The writing processes; some are killed and started again, and so is their server."""

    def __init__(
        self, folder: Path, url: str, place: Place | None, size: int, rng: random.Random
    ) -> None:
        self.folder = folder
        self.url = url
        self.place = place
        self.rng = rng
        self.shares = [len(range(number, size, WRITERS)) for number in range(WRITERS)]
        self.lives = [0] * WRITERS
        self.killed = self.restarts = 0

    def start(self, number: int) -> Any:
        self.lives[number] += 1
        name = f"{number}.{self.lives[number]}"
        left = self.shares[number] - sum(1 for _ in _writes(self.folder, number))
        seed = self.rng.getrandbits(32)
        process = fresh_processes().Process(
            target=_write,
            args=(self.folder, self.url, number, name, left, seed, self.place is None),
        )
        process.start()
        return process

    async def work(self, progress: Progress) -> None:
        size = sum(self.shares)
        processes = {number: self.start(number) for number in range(WRITERS)}
        while processes:
            await asyncio.sleep(self.rng.uniform(0.2, 1.0))
            done = sum(1 for number in range(WRITERS) for _ in _writes(self.folder, number))
            progress(min(done, size), size)
            number = self.rng.choice(list(processes))
            if self.rng.random() < 0.3 and processes[number].is_alive():
                processes[number].kill()
                processes[number].join()
                self.killed += 1
                processes[number] = self.start(number)
            if self.place and self.rng.random() < 0.1:
                how = self.rng.choice((signal.SIGINT, signal.SIGKILL))
                await asyncio.to_thread(self.place.go_down, how)
                await asyncio.to_thread(self.place.come_back)
                self.restarts += 1
            for each in [n for n, process in processes.items() if not process.is_alive()]:
                ended = processes.pop(each)
                ended.join()
                if ended.exitcode:
                    raise RuntimeError(f"writer {each} ended with {ended.exitcode}")


def _write(
    folder: Path, url: str, number: int, name: str, share: int, seed: int, is_timed_here: bool
) -> None:
    rng = random.Random(seed)
    clock, steps = time.time, STEPS if is_timed_here else (0.0,)

    async def work() -> None:
        async with opened(url, patience=PATIENCE) as store:
            with (folder / f"writer-{number}").open("a") as notes:
                for call in range(share):
                    ahead = rng.choice(steps)
                    time.time = lambda ahead=ahead: clock() + ahead
                    await _do(store, rng, f"{name}.{call}", notes, ahead)

    asyncio.run(work())


class _Call:
    """One thing done to a session that others use as well."""

    def __init__(self, store: Store, rng: random.Random, id: str) -> None:
        self.store = store
        self.id = id
        self.owner, self.session = rng.choice(OWNERS), f"s{rng.randrange(SESSIONS)}"
        self.action = rng.choices(list(_ACTIONS.values()), (10, 3, 2, 2, 2, 2, 1))[0]
        self.kind, self.ids = "", list[str]()
        self.key = SessionKey("")
        self.is_sure = True
        """Whether it made the change itself, if it was acknowledged."""

    async def make(self) -> None:
        known = await self.store.get_session(self.session, self.owner)
        if known is None:
            self.kind = "session_created"
            made = await self.store.put_session(SessionInfo(id=self.session, owner=self.owner))
            self.key = made.key
        else:
            self.key = known.key
            await self.action(self)

    async def add(self, count: int = 1) -> None:
        self.kind, self.ids = "messages_added", [f"{self.id}.{n}" for n in range(count)]
        new = [Message(role="user", content="x", id=one, tokens=1) for one in self.ids]
        await self.store.append(self.key, new)

    async def title(self) -> None:
        self.kind = "session_updated"
        titled = SessionInfo(id=self.session, owner=self.owner, key=self.key, title=self.id)
        await self.store.put_session(titled)

    async def pin(self) -> None:
        self.kind = "session_updated"
        await self.store.put(Scope(session=self.key), PIN, self.id, 1)

    async def note_fact(self) -> None:
        self.kind, self.ids = "fact_changed", [self.id]
        self.session, self.key = "", SessionKey("")
        await self.store.put(Scope(owner=self.owner), FACT, self.id, 1)

    async def erase(self) -> None:
        last = [m for m in await self.store.tail(self.key, limit=1) if m.state == "live"]
        if last:
            self.kind, self.ids = "messages_erased", [last[0].id]
            self.is_sure = False  # another may have erased it first
            await self.store.erase(self.key, [last[0].seq])

    async def delete(self) -> None:
        self.kind = "session_deleted"
        await self.store.delete_session(self.key)


_ACTIONS: Final[dict[str, Callable[[_Call], Awaitable[None]]]] = {
    "add": _Call.add,
    "add several": lambda call: call.add(3),
    "title": _Call.title,
    "pin": _Call.pin,
    "fact": _Call.note_fact,
    "erase": _Call.erase,
    "delete": _Call.delete,
}


async def _do(store: Store, rng: random.Random, id: str, notes: TextIO, ahead: float) -> None:
    """Do one thing, and note whether it was acknowledged."""
    call = _Call(store, rng, id)
    began = time.monotonic_ns()
    ended = 0
    try:
        await call.make()
    except (SessionGone, SessionExists, Stale):
        return  # another was first
    except KeepthreadError:
        await asyncio.sleep(0.05)
    else:
        ended = time.monotonic_ns() if call.is_sure else 0
    if call.kind:
        write = Write(call.kind, call.owner, call.session, call.key, call.ids, began, ended, ahead)
        notes.write(json.dumps(write) + "\n")
        notes.flush()


def _writes(folder: Path, number: int) -> Iterator[Write]:
    """Yield what a writer noted; the last line may be half written."""
    notes = folder / f"writer-{number}"
    notes.touch()
    with notes.open() as lines:
        for line in lines:
            with suppress(ValueError, TypeError):
                yield Write._make(json.loads(line))


# --- the check ---


def _missing(whole: list[Change], writes: list[Write]) -> Iterator[str]:
    """Find acknowledged writes that the feed does not hold."""
    places = {(c.kind, c.owner, c.session, c.key) for c in whole}
    ids = {(c.kind, c.owner, c.key, id) for c in whole for id in c.ids}
    for write in writes:
        if not write.ended:
            continue
        if (write.kind, write.owner, write.session, write.key) not in places:
            yield f"the feed has no {write}"
        for id in write.ids:
            if (write.kind, write.owner, write.key, id) not in ids:
                yield f"the feed has no {id} of {write}"


def _doubled(whole: list[Change]) -> Iterator[str]:
    added = Counter(id for c in whole if c.kind == "messages_added" for id in c.ids)
    yield from (f"message {id} was added {n} times" for id, n in added.items() if n > 1)
    deleted = Counter(c.key for c in whole if c.kind == "session_deleted")
    yield from (f"session {key} was deleted {n} times" for key, n in deleted.items() if n > 1)


def _disordered(whole: list[Change], writes: list[Write]) -> Iterator[str]:
    """Find changes of a session before one that was acknowledged before they began.

    Messages and deletions are compared, because each of them is one change alone.
    """
    place: dict[tuple[str, str, str], int] = {}
    for number, change in enumerate(whole):
        if change.kind in ("session_created", "session_deleted"):
            place.setdefault((change.kind, change.key, ""), number)
        for id in change.ids:
            place.setdefault((change.kind, change.key, id), number)
    of: dict[str, list[tuple[Write, int]]] = {}
    for write in writes:
        at = place.get((write.kind, write.key, write.ids[0] if write.ids else ""))
        if write.ended and write.key and at is not None:
            of.setdefault(write.key, []).append((write, at))
    for calls in of.values():
        ended = sorted(calls, key=lambda call: call[0].ended)
        latest, finished = -1, 0
        for write, at in sorted(calls, key=lambda call: call[0].began):
            while ended[finished][0].ended < write.began:
                latest = max(latest, ended[finished][1])
                finished += 1
            if at < latest:
                yield f"{write} is at {at}, after {latest} was acknowledged"


def _mistimed(whole: list[Change], writes: list[Write], offset: float) -> Iterator[str]:
    """Find messages whose change has not the time at which its writer's clock was.

    `offset` is the difference between the right clock and the monotonic one.
    """
    times = {(str(c.key), id): c.at for c in whole if c.kind == "messages_added" for id in c.ids}
    for write in writes:
        if not write.ended or write.kind != "messages_added":
            continue
        began, ended = (offset + write.ahead + each / 1e9 for each in (write.began, write.ended))
        for id in write.ids:
            at = times.get((write.key, id), 0.0)
            if not began - _TOLERANCE < at < ended + _TOLERANCE:
                yield f"{write} has the time {at}"


PROOF = Proof(
    name="P35",
    promise="the feed of changes skips nothing, and is in order in every session",
    unit="calls by 4 processes that are killed, with 3 readers",
    small=80,
    closing=20_000,
    long=500_000,
    run=run,
    on={kind: partial(run_on, kind) for kind in ("postgres", "redis", "cluster")},
)
