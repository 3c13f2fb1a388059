"""P3: the durability a store declares is what it has: the primary is lost, its standby takes over.

A writer, a process of its own, keeps one store open through all failovers and sends again, under
the same ids, what was refused. The primary dies at once, or is cut off from its standby first, or
falls silent with all its lines open. What was acknowledged as `replicated` must be in the log of
the standby that was promoted. With a standby that nobody waits for, the store must declare less,
and what is lost is counted: only what came behind the cut, the end of each log, and never so that
a key, a version or a tenant of the lost primary is given to somebody else.
"""

import asyncio
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from keepthread.errors import SessionGone, Unavailable
from keepthread.protocols import Store
from keepthread.stores.postgres import PostgresStore
from keepthread.stores.redis import RedisStore
from keepthread.stores.redis.engine import Timeouts
from keepthread.types import Message, Scope, SessionInfo, SessionKey
from proofs import Outcome, Progress, Proof
from servers import hold_port
from servers import postgres as postgres_servers
from servers import redis as redis_servers
from servers.proxy import Proxy
from servers.redis import wait_for

ROOT: Final = Path(__file__).resolve().parent.parent
TASKS: Final = 6
SESSIONS: Final = ("red", "green", "blue")
DEADLINE: Final = 4.0
"""How long the writer's store tries by itself before it tells the writer."""
PATIENCE: Final = 45.0
WHILE_CUT: Final = (1.2, 1.8)
SETTLED: Final = 0.6
"""Seconds behind a cut after which hardly anything is still on its way."""
GIVEN: Final = 40  # keys in one go: more than a sequence notes ahead


# --- the writer, in a process of its own ---


async def write(kind: str, place: str, acks: str, seed: int) -> None:
    """Append from several tasks until told to end; note every acknowledgement, then go on."""
    async with AsyncExitStack() as stack:
        store, proxy = await open_as_writer(kind, place, stack)
        keys: list[SessionKey] = []
        for name in SESSIONS:
            session = await store.get_session(name) or await store.put_session(SessionInfo(id=name))
            keys.append(session.key)
        writer = Writer(store, keys, os.open(acks, os.O_WRONLY | os.O_APPEND))
        async with asyncio.TaskGroup() as group:
            for task in range(TASKS):
                group.create_task(writer.append_until_told(task, random.Random(f"{seed} {task}")))
            while order := await asyncio.to_thread(sys.stdin.readline):
                assert proxy
                proxy.target = int(order)
                proxy.cut()
            writer.told = True


async def open_as_writer(
    kind: str, place: str, stack: AsyncExitStack
) -> tuple[Store, Proxy | None]:
    """Open a store that is to live through failovers, by one address."""
    if kind != "redis":
        return await stack.enter_async_context(
            await PostgresStore.open(place, deadline=DEADLINE)
        ), None
    proxy = await stack.enter_async_context(Proxy(int(place)).listening())
    url = f"redis://127.0.0.1:{proxy.port}"
    waits = Timeouts(connect=1.0, answer=1.0, again=DEADLINE / 4)
    opened = RedisStore.open(url, durability="replicated", replicas=1, timeouts=waits)
    return await stack.enter_async_context(await opened), proxy


class Writer:
    """What the tasks of a writer share."""

    def __init__(self, store: Store, keys: Sequence[SessionKey], acks: int) -> None:
        self.store = store
        self.keys = keys
        self.acks = acks
        self.told = False

    async def append_until_told(self, task: int, rng: random.Random) -> None:
        number = 0
        while not self.told:
            number += 1
            which, size = rng.randrange(len(self.keys)), rng.choice((1, 1, 1, 2, 5))
            batch = Batch(task, number, size)
            messages = [Message(role="user", id=id, content=f"this is {id}") for id in batch.ids]
            seq = await self._insist(self.keys[which], messages)
            line = (which, task, number, size, seq, f"{time.monotonic():.4f}")
            self._note(*line, self.store.durability)
            await asyncio.sleep(0.004)

    async def _insist(self, key: SessionKey, messages: Sequence[Message]) -> int:
        while True:
            try:
                return (await self.store.append(key, messages))[0].seq
            except Unavailable as error:
                self._note("refused", type(error).__name__)
                await asyncio.sleep(0.05)

    def _note(self, *parts: object) -> None:
        os.write(self.acks, (" ".join(map(str, parts)) + "\n").encode())


class Batch(NamedTuple):
    """Messages that are appended together, by their task and number."""

    task: int
    number: int
    size: int

    @property
    def ids(self) -> list[str]:
        return [f"{self.task}.{self.number}.{self.size}.{i}" for i in range(self.size)]


class Ack(NamedTuple):
    """One acknowledged batch: where its first message was said to be, when, and how safe."""

    session: str
    batch: Batch
    seq: int
    at: float
    declared: str

    @property
    def places(self) -> list[tuple[int, str]]:
        return list(enumerate(self.batch.ids, self.seq))


class Running:
    """The writer as its parent sees it."""

    def __init__(self, kind: str, place: str, folder: Path, seed: int) -> None:
        self.path = folder / "acks"
        self.path.touch()
        command = [sys.executable, "-m", "proofs.p03_failover", kind, place]
        self.process = subprocess.Popen(
            [*command, str(self.path), str(seed)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.acks: list[Ack] = []
        self.refused: Counter[str] = Counter()
        self._read = 0

    def look(self) -> list[Ack]:
        """Return every acknowledgement so far."""
        with self.path.open("rb") as file:
            file.seek(self._read)
            lines = file.read().rpartition(b"\n")[0]
        self._read += len(lines) + 1 if lines else 0
        for parts in (line.split() for line in lines.decode().splitlines()):
            if parts[0] == "refused":
                self.refused[parts[1]] += 1
                continue
            which, task, number, size, seq = map(int, parts[:5])
            batch = Batch(task, number, size)
            self.acks.append(Ack(SESSIONS[which], batch, seq, float(parts[5]), parts[6]))
        return self.acks

    async def has_gone_on(self, since: float) -> float:
        """Return when each of its tasks had an acknowledgement again; or fail."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline and self.process.poll() is None:
            first: dict[int, float] = {}
            for ack in self.look():
                if ack.at > since:
                    first.setdefault(ack.batch.task, ack.at)
            if len(first) == TASKS:
                return max(first.values())
            await asyncio.sleep(0.02)
        waiting = set(range(TASKS)) - {ack.batch.task for ack in self.acks if ack.at > since}
        raise RuntimeError(f"tasks {waiting} of the writer did not go on; refused: {self.refused}")

    def tell(self, order: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(f"{order}\n".encode())
        self.process.stdin.flush()

    def end(self) -> str:
        """Let it finish what it began; return its last words if it failed."""
        assert self.process.stdin
        try:
            _, words = self.process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            _, words = self.process.communicate()
        return words.decode(errors="replace")[-500:] if self.process.returncode else ""


# --- two servers, of which one follows the other ---


class PostgresPair:
    """Three addresses, of which two are used: a lost primary may keep its own for a while."""

    kind = "postgres"

    def __init__(self, *, waits: bool) -> None:
        self.waits = waits
        self.declares = "replicated" if waits else "power"
        self.held = [hold_port() for _ in range(2)]
        first, self.spare = (holder.getsockname()[1] for holder in self.held)
        self.primary = postgres_servers.new_server(fsync="on")
        self.lost: list[Any] = []
        self.names = {"synchronous_standby_names": "*"} if waits else {}
        self.standby = self._follow(first)
        ports = (self.primary.port, first, self.spare)
        hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
        self.place = f"postgresql://postgres@{hosts}/keepthread"
        for name, value in self.names.items():
            self.primary.execute(f"ALTER SYSTEM SET {name} = '{value}'")
            self.primary.execute("SELECT pg_reload_conf()")

    def _follow(self, port: int) -> Any:
        try:
            return self.primary.standby(port=port, **self.names)
        except BaseException:
            self.primary.close()
            raise

    async def open(self) -> PostgresStore:
        return await PostgresStore.open(self.place, deadline=DEADLINE)

    async def catch_up(self) -> None:
        """Return once the standby has all that the primary has written until now."""
        ((end,),) = self.primary.execute("SELECT pg_current_wal_lsn()::text")
        has_all = partial(
            self.standby.execute, "SELECT 1 WHERE pg_last_wal_receive_lsn() >= %s", end
        )
        await asyncio.to_thread(wait_for, "the standby's catching up", has_all)

    def cut(self) -> None:
        self.primary.cut()

    def take_over(self) -> None:
        self.standby.promote()
        self.lost.append(self.primary)
        self.primary = self.standby

    def renew(self) -> None:
        """Let a new standby follow the new primary."""
        self.standby = self.primary.standby(port=self.spare, **self.names)

    def clear(self) -> None:
        """Take away what was lost."""
        for server in self.lost:
            server.lose()
            server.close()
            self.spare = server.port
            self.held.append(hold_port(self.spare))
        self.lost.clear()

    def describe(self) -> str:
        """Say what the primary is doing, for whoever looks for a fault."""
        doing = "SELECT pid, state, wait_event, left(query, 40) FROM pg_stat_activity"
        follow = "SELECT state, sync_state, sent_lsn, flush_lsn FROM pg_stat_replication"
        return f"{self.primary.execute(doing)} {self.primary.execute(follow)}"

    def close(self) -> None:
        self.clear()
        for server in {self.primary, self.standby}:
            server.lose()
            server.close()
        for holder in self.held:
            holder.close()


class RedisPair:
    """A primary and its replica; the writer has one address, which is led to the primary."""

    kind = "redis"
    declares = "replicated"
    waits = True

    def __init__(self) -> None:
        self.primary = redis_servers.new_server(appendonly="yes", appendfsync="always")
        self.lost: list[Any] = []
        try:
            self.standby = self.primary.replica()
        except BaseException:
            self.primary.close()
            raise
        self.place = str(self.primary.port)

    async def open(self) -> RedisStore:
        return await RedisStore.open(self.primary.url)

    async def catch_up(self) -> None:
        pass

    def cut(self) -> None:
        self.standby.cut()

    def take_over(self) -> None:
        self.standby.promote()
        self.lost.append(self.primary)
        self.primary = self.standby

    def renew(self) -> None:
        self.standby = self.primary.replica()

    def clear(self) -> None:
        for server in self.lost:
            server.close()
        self.lost.clear()

    def describe(self) -> str:
        return str(self.primary.ask("INFO", "replication"))

    def close(self) -> None:
        self.clear()
        for server in {self.primary, self.standby}:
            server.close()


# --- failing over ---


@dataclass(slots=True)
class Tally:
    """What was seen so far."""

    faults: Counter[str] = field(default_factory=Counter)
    lost: int = 0
    retaken: int = 0
    doubled: int = 0
    halves: int = 0
    disorder: int = 0
    while_cut: int = 0
    returned: int = 0
    promoted: list[float] = field(default_factory=list)
    after_death: list[float] = field(default_factory=list)
    after_silence: list[float] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)


class Fault(NamedTuple):
    """What befalls a primary."""

    cut: bool
    silent: bool

    def __str__(self) -> str:
        return ("cut off, " if self.cut else "") + ("silent" if self.silent else "killed")


class Failing:
    """One pair and its writer, through some failovers."""

    def __init__(self, pair: PostgresPair | RedisPair, writer: Running, rng: random.Random) -> None:
        self.pair = pair
        self.writer = writer
        self.rng = rng
        self.tally = Tally()
        self.checked = 0
        self.gone: set[tuple[str, str]] = set()

    async def fail_over(self, fault: Fault) -> None:
        """Lose the primary under load, let the standby take over, and look what is left."""
        await self.writer.has_gone_on(time.monotonic())
        await asyncio.sleep(self.rng.uniform(0, 0.4))
        name = f"failover {self.tally.faults.total() + 1} ({fault})"
        async with await self.pair.open() as store:
            safe = len(self.writer.look())
            given: Given | None = None
            if fault.cut:
                given = await self._cut(store)
            lost_at = time.monotonic()
            if fault.silent:
                self.pair.primary.freeze()
            else:
                self.pair.primary.lose()
            self.pair.take_over()
            promoted_at = time.monotonic()
            self.tally.promoted.append(promoted_at - lost_at)
            if isinstance(self.pair, RedisPair):
                self.writer.tell(str(self.pair.primary.port))
            self.pair.renew()
            seconds = await self.writer.has_gone_on(promoted_at) - lost_at
            (self.tally.after_silence if fault.silent else self.tally.after_death).append(seconds)
            self.tally.faults[str(fault)] += 1
            if given:
                await self._look_for_returned(store, given, name)
        self.pair.clear()
        await self.check(name, safe=safe, lost_at=lost_at)

    async def _cut(self, store: Store) -> "Given | None":
        """Cut the standby off for a while; who waits for it is told only what it has."""
        await self.pair.catch_up()
        self.pair.cut()
        since = time.monotonic()
        given = None if self.pair.waits else await give(store, "lost")
        await asyncio.sleep(max(0.0, since + self.rng.uniform(*WHILE_CUT) - time.monotonic()))
        late = [ack for ack in self.writer.look() if ack.at > since + SETTLED]
        self.tally.while_cut += sum(ack.batch.size for ack in late)
        return given

    async def _look_for_returned(self, store: Store, lost: "Given", name: str) -> None:
        """See that nothing which the lost primary gave out was given to another."""
        with suppress(Unavailable):  # its lines led to the lost one, which may still be silent
            await store.owners()
        new = await give(store, f"new {name}")
        self.tally.returned += len(lost.keys & new.keys) + len(lost.versions & new.versions)
        for key in lost.keys:
            try:
                described = await store.describe(key)
            except SessionGone:
                continue
            self.tally.returned += not described.id.startswith("lost")
        if self.tally.returned:
            self.tally.broken.append(f"{name}: what was lost was given to others")

    # --- what is left ---

    async def check(self, name: str, *, safe: int = 0, lost_at: float = 0.0) -> None:
        """Hold the logs against what was acknowledged until now."""
        acks = list(self.writer.look())
        async with await self.pair.open() as store:
            for session in SESSIONS:
                info = await store.get_session(session)
                assert info
                log = await store.read(info.key, limit=1_000_000)
                mine = [(n, ack) for n, ack in enumerate(acks) if ack.session == session]
                where = f"{name}, {session}"
                self._check_log(log, where)
                self._check_acks(mine, {m.seq: m.id for m in log}, safe, lost_at, where)
            if not (found := await store.verify()).sound:
                self.tally.broken.append(f"{name}: {found.damages[:3]}")
        wrong = {ack.declared for ack in acks} - {self.pair.declares}
        if wrong:
            self.tally.broken.append(f"{name}: it declared {wrong}, not {self.pair.declares}")
        self.checked = len(acks)

    def _check_log(self, log: Sequence[Message], where: str) -> None:
        ids = [m.id for m in log]
        if [m.seq for m in log] != list(range(1, len(log) + 1)):
            self.tally.broken.append(f"{where}: positions have gaps")
        if any(m.content != f"this is {m.id}" or m.state != "live" for m in log):
            self.tally.broken.append(f"{where}: a message is not what was written")
        if doubled := len(ids) - len(set(ids)):
            self.tally.doubled += doubled
            self.tally.broken.append(f"{where}: {doubled} are there twice")
        last = dict.fromkeys(range(TASKS), 0)
        for batch, whole in batches(ids):
            if not whole:
                self.tally.halves += 1
                self.tally.broken.append(f"{where}: half a batch: {batch}")
            if batch.number <= last[batch.task]:
                self.tally.disorder += 1
                self.tally.broken.append(f"{where}: out of order: {batch}")
            last[batch.task] = batch.number

    def _check_acks(
        self,
        acks: Sequence[tuple[int, Ack]],
        log: Mapping[int, str],
        safe: int,
        lost_at: float,
        where: str,
    ) -> None:
        """Count what is lost: nothing, or the end of what a standby had not heard of."""
        lost: list[Ack] = []
        for number, ack in acks:
            missing = [id for seq, id in ack.places if log.get(seq) != id]
            if not missing or (ack.session, missing[0]) in self.gone:
                continue
            lost.append(ack)
            self.gone |= {(ack.session, id) for id in missing}
            self.tally.lost += len(missing)
            self.tally.retaken += sum(seq in log for seq, _ in ack.places)
            if self.pair.waits or number < safe:
                self.tally.broken.append(f"{where}: the standby had it, and it is lost: {ack}")
            if len(missing) < ack.batch.size or set(missing) & set(log.values()):
                self.tally.broken.append(f"{where}: acknowledged, and elsewhere now: {ack}")
        first = min((ack.seq for ack in lost), default=None)
        new = [ack for n, ack in acks if n >= self.checked and ack.at < lost_at and ack not in lost]
        if first is not None and any(ack.seq > first for ack in new):
            self.tally.broken.append(f"{where}: what is left is not the beginning of the log")


def batches(ids: Iterable[str]) -> Iterator[tuple[Batch, bool]]:
    """Yield the batches that a log is made of, and whether each is whole and in one piece."""
    rest = list(ids)
    while rest:
        batch = Batch(*map(int, rest[0].split(".")[:3]))
        yield batch, rest[: batch.size] == batch.ids
        rest = rest[batch.size :]


class Given(NamedTuple):
    """Keys of sessions and versions of records that a primary gave out."""

    keys: frozenset[SessionKey]
    versions: frozenset[int]


async def give(store: Store, name: str) -> Given:
    """Make sessions and records, here and behind a wall of their own."""
    keys: set[SessionKey] = set()
    versions: set[int] = set()
    for number in range(GIVEN):
        where = store if number % 2 else store.tenant(f"{name} {number}")
        session = await where.put_session(SessionInfo(id=f"{name} {number}"))
        keys.add(session.key)
        versions.add(await store.put(Scope(owner=name), "number", str(number), number))
    return Given(frozenset(keys), frozenset(versions))


def choose_faults(size: int, rng: random.Random, *, cut: bool) -> list[Fault]:
    """Return so many faults, of every kind if there is room."""
    kinds = [Fault(True, False), Fault(True, True)]
    if not cut:
        kinds += [Fault(False, False), Fault(False, True)]
    faults: list[Fault] = []
    while len(faults) < size:
        rng.shuffle(kinds)
        faults += kinds
    return faults[:size]


@contextmanager
def at_work(pair: PostgresPair | RedisPair, seed: int) -> Iterator[Running]:
    """Give a writer that works on a pair of servers."""
    with closing(pair), tempfile.TemporaryDirectory() as folder:
        writer = Running(pair.kind, pair.place, Path(folder), seed)
        try:
            yield writer
        finally:
            writer.process.kill()
            writer.process.communicate()


async def prove(pair: PostgresPair | RedisPair, size: int, seed: int, progress: Progress) -> Tally:
    rng = random.Random(seed)
    with at_work(pair, seed) as writer:
        failing = Failing(pair, writer, rng)
        tally = failing.tally
        try:
            for number, fault in enumerate(choose_faults(size, rng, cut=not pair.waits), 1):
                await failing.fail_over(fault)
                progress(number, size)
            if words := writer.end():
                tally.broken.append(f"the writer ended with: {words}")
            await failing.check("at the end")
        except RuntimeError as error:
            tally.broken += [str(error), pair.describe()]
        tally.faults["acknowledged"] = sum(ack.batch.size for ack in writer.look())
        tally.faults["refused"] = writer.refused.total()
    return tally


def run(
    size: int, seed: int, progress: Progress, *, kind: str = "postgres", waits: bool = True
) -> Outcome:
    pair = RedisPair() if kind == "redis" else PostgresPair(waits=waits)
    tally = asyncio.run(prove(pair, size, seed, progress))
    if not waits and not tally.lost:
        tally.broken.append("nothing was lost behind the cut: the test proves nothing")
    figures: dict[str, int | float | str] = {
        "declared": pair.declares,
        "acknowledged": tally.faults.pop("acknowledged"),
        "refused and sent again": tally.faults.pop("refused"),
        "failovers": tally.faults.total(),
        **{f"of these {fault}": count for fault, count in sorted(tally.faults.items())},
        f"acknowledged {SETTLED} s or more behind a cut": tally.while_cut,
        "lost": tally.lost,
        "there twice": tally.doubled,
        "half batches": tally.halves,
        "out of order": tally.disorder,
        "promoted, seconds at most": slowest(tally.promoted),
        "all tasks went on after a death, seconds": slowest(tally.after_death),
        "all tasks went on after a silence, seconds": slowest(tally.after_silence),
    }
    if not waits:
        figures["lost positions that others have now"] = tally.retaken
        figures["keys and versions given twice"] = tally.returned
    return Outcome(figures=figures, broken=tuple(tally.broken))


def slowest(seconds: Sequence[float]) -> float | str:
    return round(max(seconds), 2) if seconds else "-"


PROOF: Final = Proof(
    name="P3",
    promise="the durability a store declares is what it has",
    unit="failovers",
    small=1,
    closing=5,
    long=50,
    run=run,
    on={
        "postgres": run,
        "postgres-async": partial(run, waits=False),
        "redis": partial(run, kind="redis"),
    },
)

if __name__ == "__main__":
    asyncio.run(write(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])))
