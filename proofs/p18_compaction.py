"""P18: an old turn is compacted once, whoever dies or compacts beside it, and the log stays.

Three ways to break it. Processes that talk and compact are killed, many of them during a
compaction; every summary they leave names each turn up to its end, in order and once, and the next
process compacts what is due. Two processes with eight tasks each compact one session; nothing is
shortened twice. A long session that was never compacted catches up, in steps that do not grow,
while contexts stay right.
"""

import asyncio
import hashlib
import mmap
import os
import random
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import ceil, log2
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any, Final

from keepthread import (
    Compaction,
    Hybrid,
    Memory,
    Message,
    Options,
    Scope,
    Session,
    SQLiteStore,
    View,
    Window,
)
from keepthread.errors import KeepthreadError
from keepthread.memory.material import newest_summary, summary_of
from keepthread.models.tokens import Estimator
from keepthread.protocols import Store
from keepthread.stores.kinds import DIGEST, FOLD, LEASE
from keepthread.stores.leases import SECONDS
from keepthread.types import Shortened, Summary
from proofs import Outcome, Progress, Proof
from proofs.laws import HYBRID
from proofs.p06_turns import run_all
from proofs.p12_contexts import Asked, faults
from proofs.processes import fresh_processes
from proofs.views import tried

ROOT: Final = Path(__file__).resolve().parent.parent
NAME: Final = "talk"
KILLS_PER_FILE: Final = 10
LEAST_SHARE: Final = 1 / 3
PATIENCE: Final = 60.0
BUDGETS: Final = (300, 1000, 4096)
FOLDERS: Final = 2
TASKS: Final = 8
ROUNDS_PER_KILL: Final = 1 / 10
MESSAGES_PER_KILL: Final = 1_000
FEWEST_MESSAGES: Final = 600
MOST_MESSAGES: Final = 1_000_000
LOOKS: Final = 25
"""Contexts that are looked at while a long session catches up."""
MOST_ROWS: Final = 1_000
"""Messages and records that one compaction may read, however long the session."""
MOST_GROWTH: Final = 64 * 1024
"""Kilobytes by which the process may grow meanwhile."""
STRATEGY: Final = Hybrid(step=200, verbatim_messages=4, brief_turns=5)
VIEWS: Final = {"chat": View(1000, STRATEGY)}

OUTSIDE, FOLDING, PUTTING = range(3)

TAG: Final = re.compile(r"q(\d+)q(?:\.\.q(\d+)q)?")


# --- what is said: every question is known again in whatever summary it comes to ---


def question(number: int) -> str:
    return f"q{number}q asks"


def answer(number: int) -> str:
    """Return an answer; every second one is long enough for a digest."""
    return f"It is answer {number}. " * (1 if number % 2 else 8)


def tags(text: str) -> list[int]:
    """Return the questions that a summary tells of, in its order, each as often as it does."""
    found: list[int] = []
    for first, last in TAG.findall(text):
        found += range(int(first), int(last or first) + 1)
    return found


class Tags:
    """A summarizer that keeps the tags alone, and notes what it was asked."""

    name = "tags"

    def __init__(self, asked: Path | None = None) -> None:
        self.asked = asked

    async def shorten(self, text: str, *, limit: int) -> Shortened:
        await asyncio.sleep(0.001)
        if self.asked:
            with self.asked.open("a") as file:
                file.write(f"{hashlib.sha256(text.encode()).hexdigest()}\n")
        numbers = tags(text)
        if not numbers:
            return Shortened(text=text[:limit])
        runs: list[tuple[int, int]] = []
        for number in numbers:
            if runs and runs[-1][1] + 1 == number:
                runs[-1] = (runs[-1][0], number)
            else:
                runs.append((number, number))
        said = (f"q{a}q" if a == b else f"q{a}q..q{b}q" for a, b in runs)
        return Shortened(text=" ".join(said))


def settings(*, compressing: bool, asked: Path | None = None) -> Compaction:
    return Compaction(
        summarizer=Tags(asked),
        turns=4,
        batch_size=2,
        answer_bytes=80,
        digest_bytes=60,
        summary_bytes=400 if compressing else 10_000_000,
        compressed_bytes=300,
    )


def address(folder: Path) -> str:
    return f"sqlite:///{folder}/compactions.db"


def ahead(lives: int) -> Any:
    """Return a clock by which the leases of all earlier lives have ended."""
    return lambda: time.time() + lives * (SECONDS + 1)


# --- what a compaction left ---


async def compactions(session: Session, store: Store) -> list[Summary]:
    records = await store.scan(Scope(session=session.key), FOLD)
    return [summary_of(record) for record in records]


def wrong(summary: Summary, log: Sequence[Message]) -> Iterator[str]:
    """Find turns that a summary leaves out, has twice, or should not have."""
    upto = [message for message in log if message.seq <= summary.last]
    asked = [tag for m in upto if m.role == "user" and m.state == "live" for tag in tags(m.content)]
    if (told := tags(summary.text)) != asked:
        twice = [tag for tag, times in Counter(told).items() if times > 1]
        lacking, more = sorted(set(asked) - set(told)), sorted(set(told) - set(asked))
        yield f"the compaction at {summary.last}: twice {twice}, lacking {lacking}, too many {more}"
    if [(span.first, span.last) for span in summary.spans] != [(1, summary.last)]:
        yield f"the compaction at {summary.last} is made of {summary.spans}"
    if summary.turn != max((m.turn for m in upto), default=0):
        yield f"the compaction at {summary.last} ends with turn {summary.turn}"
    if len(log) > summary.last and log[summary.last].role != "user":
        yield f"the compaction at {summary.last} parts a turn"


async def known(session: Session, log: Sequence[Message]) -> dict[str, Any]:
    """Return what a context is held against."""
    return {
        "newest": True,
        "log": log,
        "hidden": [],
        "beside": 0,
        "delimiter": session.info.delimiter,
        "system_tokens": 0,
        "turn": None,
        "counter": Estimator(),
        "marks": frozenset[str](),
        "rules": tried(STRATEGY, HYBRID).rules,
    }


# --- (a) one who talks and compacts, in a process of its own, until it is killed ---


class Marked:
    """A store that notes in shared memory whether somebody is compaction."""

    def __init__(self, store: Store, place: mmap.mmap) -> None:
        self._store = store
        self._place = place

    async def put(self, scope: Scope, kind: str, key: str, *args: Any, **kwargs: Any) -> int:
        if kind == LEASE:
            version = await self._store.put(scope, kind, key, *args, **kwargs)
            self._place[0] = FOLDING
            return version
        if kind not in (FOLD, DIGEST):
            return await self._store.put(scope, kind, key, *args, **kwargs)
        self._place[0] = PUTTING
        version = await self._store.put(scope, kind, key, *args, **kwargs)
        self._place[0] = FOLDING
        return version

    async def drop(self, scope: Scope, kind: str, *args: Any, **kwargs: Any) -> bool:
        dropped = await self._store.drop(scope, kind, *args, **kwargs)
        if kind == LEASE:
            self._place[0] = OUTSIDE
        return dropped

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


async def talk(folder: Path, lives: int, compressing: bool) -> None:
    """Take turns for ever; compaction follows by itself, now and then it is waited for."""
    with (folder / "place").open("r+b") as file:
        place = mmap.mmap(file.fileno(), 1)
    notes = os.open(folder / "notes", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    store: Any = Marked(await SQLiteStore.open(folder / "compactions.db"), place)
    compaction = settings(compressing=compressing)
    async with Memory(
        store, Options(views=VIEWS, counter=Estimator(), compaction=compaction, clock=ahead(lives))
    ) as memory:
        session = await memory.session(NAME)
        number = max(1, session.info.turns)  # the last one may have no answer yet
        while True:
            async with session.turn(question(number), id=f"u{number}") as turn:
                os.write(notes, f"{turn.user.seq} {question(number)}\n".encode())
                done = await turn.finish(answer(number))
                os.write(notes, f"{done.seq} {answer(number)}\n".encode())
            os.write(1, b"t")
            number += 1
            if number % 4 == 0:  # else it would talk faster than it compacts, and never be outside
                await memory._runtime.background.settle()


@dataclass(slots=True)
class Tally:
    """What was seen so far."""

    kills: int = 0
    inside: int = 0
    putting: int = 0
    acknowledged: int = 0
    compacted: int = 0
    summaries: int = 0
    contexts: int = 0
    left: int = 0
    figures: dict[str, int | float | str] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)


class Life:
    """One file over several kills."""

    def __init__(self, folder: Path, tally: Tally, compressing: bool) -> None:
        self.folder = folder
        self.tally = tally
        self.compressing = compressing
        self.lives = 0

    def kill(self, rng: random.Random) -> None:
        """Let somebody talk for a moment, kill it, inside a compaction if chance has it."""
        self.lives += 1
        (self.folder / "place").write_bytes(bytes(1))
        with (self.folder / "place").open("r+b") as file:
            place = mmap.mmap(file.fileno(), 1)
        command = [sys.executable, "-m", "proofs.p18_compaction", str(self.folder)]
        command += [str(self.lives), str(int(self.compressing))]
        pipe = subprocess.PIPE
        victim = subprocess.Popen(command, cwd=ROOT, stdout=pipe, stderr=pipe)
        assert victim.stdout
        victim.stdout.read(rng.randint(1, 12))
        if 2 * self.tally.inside <= self.tally.kills:
            self._watch(victim, place, rng.choice((FOLDING, PUTTING)))
            _linger(rng.uniform(0, 0.003))
        else:
            time.sleep(rng.uniform(0, 0.05))
        victim.kill()
        errors = victim.communicate()[1].decode(errors="replace")
        self.tally.kills += 1
        self.tally.inside += place[0] != OUTSIDE
        self.tally.putting += place[0] == PUTTING
        if errors:
            self._break(errors[-300:])

    def _watch(self, victim: "subprocess.Popen[bytes]", place: mmap.mmap, wanted: int) -> None:
        # The byte has no event to wait for, and the moment is shorter than any sleep.
        deadline = time.monotonic() + 5
        while place[0] != wanted and time.monotonic() < deadline and victim.poll() is None:
            pass

    async def check(self) -> None:
        """Look at what the dead one left, and compact what it left undone."""
        self.lives += 1
        try:
            async with Memory.open(
                address(self.folder),
                views=VIEWS,
                counter=Estimator(),
                compaction=settings(compressing=self.compressing),
                clock=ahead(self.lives),
            ) as memory:
                await self._check(memory)
        except KeepthreadError as error:
            self._break(repr(error))

    async def _check(self, memory: Memory) -> None:
        session = await memory.session(NAME)
        log = await session.messages(limit=1_000_000)
        self._compare(log)
        self.tally.left += bool(await memory.store.scan(Scope(session=session.key), LEASE))
        for summary in await compactions(session, memory.store):
            for fault in wrong(summary, log):
                self._break(fault)
        await self._look(session, log)
        try:
            self.tally.compacted += await asyncio.wait_for(session.compact(), 10)
        except TimeoutError:
            self._break("the lease of the dead one stops the next")
        found = await compactions(session, memory.store)
        for fault in (fault for summary in found for fault in wrong(summary, log)):
            self._break(fault)
        self.tally.summaries += len(found)
        answered = max((m.turn for m in log if m.role == "assistant"), default=0)
        if answered - (found[-1].turn if found else 0) > 4:
            self._break(f"of {answered} turns, {found[-1:]} is the last that was compacted")
        await self._look(session, log)
        if await session.messages(limit=1_000_000) != log:
            self._break("compaction changed the log")
        if not (await memory.admin.verify()).sound:
            self._break("verify finds damage")

    def _compare(self, log: Sequence[Message]) -> None:
        path = self.folder / "notes"
        lines = path.read_text().rpartition("\n")[0].splitlines() if path.exists() else []
        at = {message.seq: message.content for message in log}
        for line in lines:
            seq, _, content = line.partition(" ")
            if at.get(int(seq)) != content:
                self._break(f"{content!r} was acknowledged at {seq}")
        asked = [tag for m in log if m.role == "user" for tag in tags(m.content)]
        if asked != list(range(1, len(asked) + 1)):
            self._break(f"the questions in the log are {asked}")

    async def _look(self, session: Session, log: Sequence[Message]) -> None:
        for budget in BUDGETS:
            context = await session.context(budget=budget)
            asked = Asked(budget=budget, strategy=STRATEGY, **await known(session, log))
            self.tally.contexts += 1
            for fault in faults(context, asked):
                self._break(f"a context of {budget}: {': '.join(fault)}")

    def count(self) -> None:
        self.tally.acknowledged += len((self.folder / "notes").read_text().splitlines())

    def _break(self, what: str) -> None:
        line = f"after kill {self.tally.kills}: {what}"
        if line not in self.tally.broken:
            self.tally.broken.append(line)


def _linger(seconds: float) -> None:
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


def kill_all(size: int, rng: random.Random, tally: Tally, progress: Progress) -> None:
    # Where chance, or a busy machine, let too few fall where they should, some more follow.
    while tally.kills < (3 * size if _missed(tally) else size) and len(tally.broken) < 100:
        with tempfile.TemporaryDirectory() as folder:
            life = Life(Path(folder), tally, compressing=rng.random() < 0.5)
            for _ in range(min(KILLS_PER_FILE, max(1, size - tally.kills))):
                life.kill(rng)
                asyncio.run(life.check())
                progress(tally.kills, size)
            life.count()
    if _missed(tally):
        tally.broken.append(f"only {tally.inside} of {tally.kills} kills fell into a compaction")


def _missed(tally: Tally) -> bool:
    return tally.inside < tally.kills * LEAST_SHARE


# --- (b) two processes and eight tasks each compact one session ---


def compact_beside(folder: Path, number: int, rounds: int, barrier: Barrier) -> None:
    """Compact each session together with everybody else, talking meanwhile."""
    asyncio.run(_compact_beside(folder, number, rounds, barrier))


async def _compact_beside(folder: Path, number: int, rounds: int, barrier: Barrier) -> None:
    compaction = settings(compressing=True, asked=folder / "asked")
    async with Memory.open(
        address(folder), views=VIEWS, counter=Estimator(), compaction=compaction
    ) as memory:
        for lap in range(rounds):
            session = await memory.session(f"session {lap}")
            await asyncio.to_thread(barrier.wait, PATIENCE)
            async with asyncio.TaskGroup() as group:
                for task in range(TASKS):
                    mine = first_of(lap) + 1_000 + 100 * number + task
                    group.create_task(_compact_once(session, mine, talks=task % 4 == 0))
            await memory._runtime.background.settle()


async def _compact_once(session: Session, number: int, *, talks: bool) -> None:
    if talks:
        async with session.turn(question(number)) as turn:
            await turn.finish(answer(number))
    await session.compact()


def compact_all_beside(folder: Path, rounds: int, rng: random.Random) -> tuple[int, list[str]]:
    """Let two processes compact; return how many texts they had shortened, and what is wrong."""
    lengths = [rng.randint(20, 40) for _ in range(rounds)]
    asyncio.run(_prepare(folder, lengths))
    barrier = fresh_processes().Barrier(FOLDERS)
    broken = run_all(compact_beside, [(folder, n, rounds, barrier) for n in range(FOLDERS)])
    asked = Counter((folder / "asked").read_text().splitlines())
    broken += [f"{times} asked to shorten one text" for times in asked.values() if times > 1]
    broken += asyncio.run(_compare(folder, rounds))
    return asked.total(), [f"beside each other: {line}" for line in broken]


async def _prepare(folder: Path, lengths: Sequence[int]) -> None:
    async with Memory.open(address(folder), counter=Estimator()) as memory:
        for lap, length in enumerate(lengths):
            session = await memory.session(f"session {lap}")
            await session.append(*turns(first_of(lap), first_of(lap) + length - 1))


def first_of(lap: int) -> int:
    """Return the first question of a session; no two sessions have one in common."""
    return 1 + 10_000 * lap


def turns(first: int, last: int) -> Iterator[Message]:
    for number in range(first, last + 1):
        yield Message(role="user", content=question(number))
        yield Message(role="assistant", content=answer(number))


async def _compare(folder: Path, rounds: int) -> list[str]:
    broken: list[str] = []
    async with Memory.open(address(folder), counter=Estimator()) as memory:
        for lap in range(rounds):
            session = await memory.session(f"session {lap}")
            log = await session.messages(limit=10_000)
            found = await compactions(session, memory.store)
            broken += [fault for summary in found for fault in wrong(summary, log)]
            numbers = [summary.number for summary in found]
            if numbers != list(range(1, len(found) + 1)):
                broken.append(f"session {lap} has the compactions {numbers}")
            if session.info.turns - found[-1].turn > 4:
                broken.append(f"session {lap} is compacted up to {found[-1].turn}")
        if not (await memory.admin.verify()).sound:
            broken.append("verify finds damage")
    return broken


# --- (c) a long session that was never compacted ---


class Measured:
    """A store that counts what is read and how long it takes, from one compaction to the next."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._rows = 0
        self._since = time.process_time()
        self.rows: list[int] = []
        self.seconds: list[float] = []

    async def put(self, scope: Scope, kind: str, *args: Any, **kwargs: Any) -> int:
        version = await self._store.put(scope, kind, *args, **kwargs)
        if kind == FOLD:
            now = time.process_time()
            self.rows.append(self._rows)
            self.seconds.append(now - self._since)
            self._rows, self._since = 0, now
        return version

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)
        if name not in ("read", "tail", "find", "scan"):
            return method

        async def counted(*args: Any, **kwargs: Any) -> Any:
            found = await method(*args, **kwargs)
            self._rows += len(found)
            return found

        return counted


class Catching:
    """A long session on its way from a window alone to a summary."""

    def __init__(self, folder: Path, messages: int, tally: Tally) -> None:
        self.folder = folder
        self.messages = messages
        self.tally = tally
        self.log: Sequence[Message] = ()
        self.compaction = Compaction()
        self.reader: Session

    async def run(self) -> None:
        await self._write()
        store: Any = Measured(await SQLiteStore.open(self.folder / "compactions.db"))
        given = {"views": VIEWS, "counter": Estimator(), "compaction": self.compaction}
        async with (
            Memory.open(address(self.folder), **given) as other,
            Memory(store, Options(**given)) as memory,
        ):
            self.reader = await other.session(NAME)
            self.log = await self.reader.messages(limit=self.messages)
            session = await memory.session(NAME)
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            start = time.monotonic()
            made = await self._catch_up(session, store)
            seconds = time.monotonic() - start
            grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
            self._figure(store, made, seconds, grown)
            await self._after(session, store, made)
            await self._erase(session, store)

    async def _write(self) -> None:
        view = {"chat": View(1000, Window())}
        async with Memory.open(
            address(self.folder), views=view, counter=Estimator(), durability="process"
        ) as memory:
            session = await memory.session(NAME)
            for first in range(1, self.messages // 2 + 1, 500):
                await session.append(*turns(first, min(first + 499, self.messages // 2)))
            await session.context()
            if await compactions(session, memory.store):
                self._break("a window alone compacts")

    async def _catch_up(self, session: Session, store: "Measured") -> int:
        """Compact everything, and look at contexts meanwhile, as another process would."""
        wanted = (self.messages // 2) // self.compaction.batch_size // LOOKS
        await self._look()
        task = asyncio.create_task(session.compact())
        looked = 0
        while not task.done():
            await asyncio.sleep(0.002)
            if len(store.rows) >= looked * wanted:
                looked += 1
                await self._look()
        await self._look()
        return await task

    async def _look(self) -> None:
        """Hold a context against the log, and what it says of its past against the compactions."""
        before = await compactions(self.reader, self.reader._store)
        context = await self.reader.context()
        after = await compactions(self.reader, self.reader._store)
        asked = Asked(budget=1000, strategy=STRATEGY, **await known(self.reader, self.log))
        self.tally.contexts += 1
        for fault in faults(context, asked):
            self._break(": ".join(fault))
        first = min(choice.first for choice in context.why.shown if choice.section == "window")
        least, most = (
            max((summary.last for summary in found if summary.last < first), default=0)
            for found in (before, after)
        )
        said = {choice.reason: choice for choice in context.why.left_out}
        behind = said["covered by the summary"].last if "covered by the summary" in said else 0
        if not least <= behind <= most:
            self._break(f"compactions end at {least} to {most}, and a context says {behind}")
        told = said["one line per turn"].first if "one line per turn" in said else first
        if ("older than the window, not summarized" in said) != (behind + 1 < told):
            self._break(f"a context says {sorted(said)}, and in short is told from {told} on")

    async def _after(self, session: Session, store: "Measured", made: int) -> None:
        """Look at what is left when everything is compacted."""
        if await session.compact():
            self._break("something was due after everything was compacted")
        found = await compactions(self.reader, self.reader._store)
        last = found[-1]
        left = session.info.turns - last.turn
        if not self.compaction.turns - self.compaction.batch_size < left <= self.compaction.turns:
            self._break(f"{left} turns are not compacted")
        if last.number != made or [(s.first, s.last) for s in last.spans] != [(1, last.last)]:
            self._break(
                f"{made} compactions were made, and the last is {last.number} of {last.spans}"
            )
        if len(found) > 32 * (3 + ceil(log2(max(1, made / 32)))):
            self._break(f"{len(found)} records of {made} compactions stay")
        quarter = max(1, len(store.seconds) // 4)
        first, late = (
            statistics.median(part) for part in (store.seconds[:quarter], store.seconds[-quarter:])
        )
        if late > 2 * first:
            self._break(
                f"a compaction took {first * 1000:.1f} ms at first and {late * 1000:.1f} at last"
            )
        self.tally.figures["records of compactions that stay"] = len(found)
        self.tally.figures["ms of CPU a compaction, first quarter"] = round(first * 1000, 2)
        self.tally.figures["ms of CPU a compaction, last quarter"] = round(late * 1000, 2)

    async def _erase(self, session: Session, store: Any) -> None:
        """Erase an early message: an earlier summary serves, and compaction goes on from it."""
        erased = self.messages // 4
        await store.erase(session.key, [erased])
        serving = await newest_summary(store, session.key, (), before=self.messages + 1)
        if serving is None or serving.last >= erased:
            self._break(f"after erasing {erased}, {serving and serving.last} serves")
            return
        made = len(store.rows)
        task = asyncio.create_task(session.compact())
        while len(store.rows) < made + 20 and not task.done():  # noqa: ASYNC110
            await asyncio.sleep(0.002)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        newest = await newest_summary(store, session.key, (), before=self.messages + 1)
        more = len(store.rows) - made
        # The last one may have been put, and nobody was left to count it.
        if newest is None or newest.number - serving.number - more not in (0, 1) or more < 20:
            self._break(
                f"{more} compactions after {serving.number}, and {newest and newest.number}"
            )
        elif [(s.first, s.last) for s in newest.spans] != [(1, newest.last)]:
            self._break(f"after erasing, a compaction is made of {newest.spans}")
        self.tally.figures["erased at"] = erased
        self.tally.figures["then a summary serves that ends at"] = serving.last

    def _figure(self, store: "Measured", made: int, seconds: float, grown: int) -> None:
        if max(store.rows) > MOST_ROWS:
            self._break(f"a compaction read {max(store.rows)} rows")
        if grown > MOST_GROWTH:
            self._break(f"the process grew by {grown} kB")
        self.tally.figures |= {
            "messages of the long session": self.messages,
            "compactions it took": made,
            "seconds": round(seconds, 1),
            "most rows read for a compaction": max(store.rows),
            "kB the process grew by": grown,
        }

    def _break(self, what: str) -> None:
        self.tally.broken.append(f"catching up: {what}"[:600])


# --- all three ---


def run(size: int, seed: int, progress: Progress) -> Outcome:
    rng = random.Random(seed)
    tally = Tally()
    kill_all(size, rng, tally, progress)
    with tempfile.TemporaryDirectory() as folder:
        rounds = max(2, round(size * ROUNDS_PER_KILL))
        asked, broken = compact_all_beside(Path(folder), rounds, rng)
        tally.broken += broken
    messages = size * MESSAGES_PER_KILL if size >= 100 else FEWEST_MESSAGES
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(Catching(Path(folder), min(messages, MOST_MESSAGES), tally).run())
    figures = {
        "kills": tally.kills,
        "inside a compaction": tally.inside,
        "of these inside a put": tally.putting,
        "leases they left": tally.left,
        "messages acknowledged": tally.acknowledged,
        "summaries looked at": tally.summaries,
        "compactions made by the next": tally.compacted,
        "contexts": tally.contexts,
        "sessions compacted by 2 processes and 16 tasks": rounds,
        "texts shortened, each once": asked,
        **tally.figures,
        "violations": len(tally.broken),
    }
    return Outcome(figures=figures, broken=tuple(tally.broken))


PROOF: Final = Proof(
    name="P18",
    promise="an old turn is compacted once, and the log stays",
    unit="kills",
    small=3,
    closing=100,
    long=2_000,
    run=run,
)

if __name__ == "__main__":
    asyncio.run(talk(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "1"))
