"""One process of P29: uses a memory in its own way until it is told to stop.

Each lane (a thread, task or forked child) appends messages with ids of its own, writes a line into
the journal after each call that was acknowledged, and marks in a shared file since when it waits.
"""

import asyncio
import faulthandler
import json
import mmap
import multiprocessing
import os
import random
import signal
import struct
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from keepthread import Memory, Message
from keepthread.errors import KeepthreadError, SessionGone, SessionNotFound, Stale, Unavailable
from keepthread.models.tokens import Estimator
from keepthread.sync import Memory as BlockingMemory

ROLES: Final = ("threads", "loops", "forks", "killed", "outbox", "keeper")
LASTING: Final = tuple(f"lasting-{n}" for n in range(4))
SHORT: Final = tuple(f"short-{n}" for n in range(3))
SHORT_TENANT: Final = "short"
AGE: Final = 4.0  # seconds after which an unused session of the short tenant is pruned
PHASE: Final = 2.8  # seconds for which all use one short session while the others rest
DAY: Final = 24 * 60 * 60
LANES: Final = 8
CHILD_LANE: Final = LANES - 1
SECRET: Final = "forgettable"
FORK_DEADLINE: Final = 90.0
WORDS: Final = ("weather", "parcel", "invoice", "garden", "kitchen", "ticket", "meeting", "river")
_BEAT: Final = struct.Struct("d")


class Journal:
    """Writes what was acknowledged, one JSON line a time, and since when each lane waits."""

    def __init__(self, folder: Path, name: str) -> None:
        self._file = os.open(folder / "journal", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._name = name
        path = folder / f"beats-{name}"
        if not path.exists():
            path.write_bytes(bytes(_BEAT.size * LANES))
        with path.open("r+b") as file:
            self._beats = mmap.mmap(file.fileno(), 0)

    def write(self, kind: str, lane: str, **fields: Any) -> None:
        line = {"kind": kind, "lane": f"{self._name}.{lane}", "pid": os.getpid(), **fields}
        os.write(self._file, json.dumps(line).encode() + b"\n")

    @contextmanager
    def waiting(self, lane: int) -> Iterator[None]:
        """Mark a call as running; a call that never returns leaves its mark."""
        _BEAT.pack_into(self._beats, lane * _BEAT.size, time.monotonic())
        try:
            yield
        finally:
            _BEAT.pack_into(self._beats, lane * _BEAT.size, 0.0)


def waiting_since(folder: Path, name: str) -> list[float]:
    """Return for each lane of a process since when it waits, 0 where it does not."""
    path = folder / f"beats-{name}"
    data = path.read_bytes() if path.exists() else b""
    return [time for (time,) in _BEAT.iter_unpack(data)]


def short_session() -> str:
    """Return the session that is in use now; others become due for pruning, then active again."""
    return SHORT[int(time.time() / PHASE) % len(SHORT)]


class Worker:
    """What all roles share: where they write, and when to stop."""

    def __init__(
        self, folder: Path, url: str, role: str, life: int, seed: int, stopped: threading.Event
    ) -> None:
        self.folder = folder
        self.url = url
        self.journal = Journal(folder, role)
        self.role = role
        self.life = life
        self.seed = seed
        self.stopped = stopped
        self.handles: dict[tuple[int, str, str], Any] = {}

    def rng(self, lane: object) -> random.Random:
        return random.Random(f"{self.seed} {self.role} {self.life} {lane}")

    def texts(self, lane: str) -> Iterator[Message]:
        """Yield messages with ids that no other lane and no other life uses."""
        number = 0
        rng = self.rng(lane)
        while True:
            number += 1
            id = f"{self.role}.{self.life}.{lane}.{number}"
            words = " ".join(rng.choices(WORDS, k=rng.randrange(3, 40)))
            yield Message(role="user", id=id, content=f"{id} {words}", author=self.role)

    async def call(
        self, lane: int, what: str, work: Callable[[], Awaitable[Any]], *, may_fail: bool = False
    ) -> Any:
        """Run one call; an error that is not expected is a line in the journal."""
        with self.journal.waiting(lane):
            try:
                return await work()
            except (SessionGone, SessionNotFound):
                raise
            except (Unavailable, Stale) as error:
                if not may_fail:
                    self.journal.write("error", str(lane), what=what, error=repr(error)[:300])
            except KeepthreadError as error:
                self.journal.write("error", str(lane), what=what, error=repr(error)[:300])
        return None

    async def handle(self, lane: int, memory: Memory, session: str, tenant: str) -> Any:
        """Return a session, which is asked for once: through an outbox that may take a while."""
        found = self.handles.get((lane, tenant, session))
        if found is None:
            look = lambda: memory.session(session)  # noqa: E731
            found = await self.call(lane, "session", look, may_fail=self.role == "outbox")
            if found is not None:
                self.handles[lane, tenant, session] = found
        return found

    async def append(
        self, lane: int, memory: Memory, session: str, message: Message, tenant: str = ""
    ) -> None:
        """Append until it is acknowledged, making the session again where it was pruned."""
        while not self.stopped.is_set():
            begun = time.time()
            try:
                handle = await self.handle(lane, memory, session, tenant)
                store = partial(handle.append, message) if handle else None
                made = store and await self.call(lane, "append", store)
            except (SessionGone, SessionNotFound):
                self.handles.pop((lane, tenant, session), None)
                continue
            if made is not None:
                fields = {"session": session, "id": message.id, "tenant": tenant}
                self.journal.write("said", str(lane), begun=begun, ended=time.time(), **fields)
                return
            await asyncio.sleep(0.05)

    async def lane(self, lane: int, memory: Memory, short: Memory | None) -> None:
        """Append, read and look around, in an order drawn from the seed."""
        rng = self.rng(lane)
        texts, short_texts = self.texts(str(lane)), self.texts(f"{lane}s")
        while not self.stopped.is_set():
            session = rng.choice(LASTING)
            chance = rng.random()
            if chance < 0.55 or (short is None and chance < 0.75):
                await self.append(lane, memory, session, next(texts))
            elif short is not None and chance < 0.75:
                await self.append(lane, short, short_session(), next(short_texts), SHORT_TENANT)
            elif chance < 0.85:
                await self.read(lane, memory, session)
            elif chance < 0.9:
                await self.turn(lane, memory, session, next(texts))
            elif chance < 0.95:
                await self.title(lane, memory, session, rng)
            else:
                query = rng.choice(WORDS)
                await self.call(
                    lane, "search", lambda q=query: memory.search(q, limit=3), may_fail=True
                )
            await asyncio.sleep(rng.uniform(0.02, 0.4))

    async def read(self, lane: int, memory: Memory, session: str) -> None:
        async def work() -> None:
            context = await (await memory.session(session)).context(budget=500)
            assert context.tokens <= 500

        await self.call(lane, "context", work, may_fail=self.role == "outbox")

    async def title(self, lane: int, memory: Memory, session: str, rng: random.Random) -> None:
        async def work() -> None:
            await (await memory.session(session)).update(title=f"title {rng.randrange(100)}")

        await self.call(lane, "update", work, may_fail=True)

    async def turn(self, lane: int, memory: Memory, session: str, message: Message) -> None:
        """Go through a whole turn with an answer."""
        begun = time.time()

        async def work() -> bool:
            thread = await memory.session(session)
            async with thread.turn(message.content, id=message.id) as turn:
                await turn.context(budget=400)
                await turn.finish(f"answer to {message.id}")
            return True

        if await self.call(lane, "turn", work, may_fail=self.role == "outbox"):
            fields = {"session": session, "id": message.id, "tenant": ""}
            self.journal.write("said", str(lane), begun=begun, ended=time.time(), **fields)


# --- the roles ---


async def run_lanes(worker: Worker, memory: Memory, short: Memory | None, lanes: range) -> None:
    async with asyncio.TaskGroup() as group:
        for lane in lanes:
            group.create_task(worker.lane(lane, memory, short))


async def run_tasks(worker: Worker, **options: Any) -> None:
    """Run tasks on one event loop."""
    async with Memory.open(worker.url, counter=Estimator(), **options) as memory:
        short = None if options else memory.tenant(SHORT_TENANT)
        await run_lanes(worker, memory, short, range(3))
    worker.journal.write("closed", "0")


async def run_loops(worker: Worker) -> None:
    """Share one memory between two event loops."""
    async with Memory.open(worker.url, counter=Estimator()) as memory:
        short = memory.tenant(SHORT_TENANT)
        other = threading.Thread(
            target=lambda: asyncio.run(run_lanes(worker, memory, short, range(2, 4)))
        )
        other.start()
        await run_lanes(worker, memory, short, range(2))
        await asyncio.to_thread(other.join, FORK_DEADLINE)
    worker.journal.write("closed", "0")


def run_threads(worker: Worker) -> None:
    """Share one blocking memory between four threads."""

    def lane(number: int, memory: BlockingMemory, short: BlockingMemory) -> None:
        rng = worker.rng(number)
        texts, short_texts = worker.texts(str(number)), worker.texts(f"{number}s")
        while not worker.stopped.is_set():
            chance = rng.random()
            if chance < 0.6:
                blocking_append(worker, number, memory, rng.choice(LASTING), next(texts))
            elif chance < 0.8:
                name = short_session()
                blocking_append(worker, number, short, name, next(short_texts), SHORT_TENANT)
            else:
                with worker.journal.waiting(number), suppress(Unavailable):
                    memory.session(rng.choice(LASTING)).context(budget=300)
            time.sleep(rng.uniform(0.02, 0.4))

    with BlockingMemory.open(worker.url, counter=Estimator()) as memory:
        short = memory.tenant(SHORT_TENANT)
        threads = [threading.Thread(target=lane, args=(n, memory, short)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    worker.journal.write("closed", "0")


def blocking_append(
    worker: Worker,
    lane: int,
    memory: BlockingMemory,
    session: str,
    message: Message,
    tenant: str = "",
) -> None:
    while not worker.stopped.is_set():
        begun = time.time()
        try:
            with worker.journal.waiting(lane):
                memory.session(session).append(message)
        except (SessionGone, SessionNotFound):
            continue
        except KeepthreadError as error:
            worker.journal.write("error", str(lane), what="append", error=repr(error)[:300])
            time.sleep(0.05)
            continue
        fields = {"session": session, "id": message.id, "tenant": tenant}
        worker.journal.write("said", str(lane), begun=begun, ended=time.time(), **fields)
        return


def run_forks(worker: Worker) -> None:
    """Use a blocking memory and fork again and again; children open it again and append too."""
    rng = worker.rng("forks")
    texts = worker.texts("0")

    def busy(memory: BlockingMemory) -> None:
        mine = worker.texts("1")
        while not worker.stopped.is_set():
            blocking_append(worker, 1, memory, LASTING[1], next(mine))
            time.sleep(0.1)

    with BlockingMemory.open(worker.url, counter=Estimator()) as memory:
        thread = threading.Thread(target=busy, args=(memory,))
        thread.start()
        count = 0
        while not worker.stopped.is_set():
            count += 1
            blocking_append(worker, 0, memory, rng.choice(LASTING), next(texts))
            fork(worker, count, memory)
            worker.stopped.wait(rng.uniform(0.5, 2.0))
        thread.join()
    worker.journal.write("closed", "0")


def fork(worker: Worker, count: int, memory: BlockingMemory) -> None:
    """Fork by hand or through `multiprocessing`, and wait for the child."""
    if count % 2:
        pid = os.fork()
        if not pid:
            status = 1
            try:
                child(worker, count, memory)
                status = 0
            except BaseException:  # noqa: BLE001 - the child has nobody else to tell
                traceback.print_exc()
            finally:
                os._exit(status)
        with worker.journal.waiting(CHILD_LANE):
            deadline = time.monotonic() + FORK_DEADLINE
            done, status = os.waitpid(pid, os.WNOHANG)
            while not done and time.monotonic() < deadline:
                time.sleep(0.02)
                done, status = os.waitpid(pid, os.WNOHANG)
        code = os.waitstatus_to_exitcode(status) if done else None
    else:
        process = multiprocessing.get_context("fork").Process(
            target=child, args=(worker, count, memory)
        )
        process.start()
        with worker.journal.waiting(CHILD_LANE):
            process.join(FORK_DEADLINE)
        code = process.exitcode
        pid = process.pid or 0
    if code != 0:
        worker.journal.write("error", "fork", what="child", error=f"exit code {code}")
        if code is None:
            os.kill(pid, signal.SIGUSR1)
            time.sleep(1)
            os.kill(pid, signal.SIGKILL)


def child(worker: Worker, count: int, inherited: BlockingMemory) -> None:
    """Append through a memory of one's own; the inherited one must refuse."""
    try:
        inherited.session(LASTING[0])
    except KeepthreadError:
        pass
    else:
        worker.journal.write("error", "fork", what="inherited", error="a call did not raise")
    with BlockingMemory.open(worker.url, counter=Estimator()) as memory:
        texts = worker.texts(f"child{count}")
        for _ in range(3):
            blocking_append(worker, CHILD_LANE - 1, memory, LASTING[count % 4], next(texts))


async def run_keeper(worker: Worker) -> None:
    """Prune, forget, verify, copy and back up beside everyone else."""
    later = lambda: time.time() + DAY - AGE  # noqa: E731 - so that a day is a few seconds
    rng = worker.rng("keeper")
    texts = worker.texts("0")
    async with (
        Memory.open(worker.url, counter=Estimator()) as memory,
        Memory.open(worker.url, tenant=SHORT_TENANT, clock=later, counter=Estimator()) as pruner,
    ):
        count = 0
        while not worker.stopped.is_set():
            count += 1
            pruned = await worker.call(0, "prune", lambda: pruner.admin.prune(1), may_fail=True)
            worker.journal.write("pruned", "0", count=pruned or 0)
            if count % 3 == 0:
                await forget_one(worker, memory, rng, next(texts))
            if count % 4 == 0:
                await verify(worker, memory)
            if count % 5 == 0:
                await copy_session(worker, memory, rng)
            if count % 8 == 0 and worker.url.startswith("sqlite"):
                await back_up(worker, memory, count)
            await asyncio.sleep(rng.uniform(1.0, 2.0))
    worker.journal.write("closed", "0")


async def forget_one(worker: Worker, memory: Memory, rng: random.Random, message: Message) -> None:
    """Store a message that nobody may keep, and forget it."""
    secret = Message(role="user", id=message.id, content=f"{SECRET} {message.id}")
    session = rng.choice(LASTING)
    await worker.append(0, memory, session, secret)
    worker.journal.write("forgetting", "0", session=session, id=secret.id)
    forget = lambda: memory.forget(session=session, message=secret.id)  # noqa: E731
    for _ in range(20):
        if await worker.call(0, "forget", forget, may_fail=True) is not None:
            worker.journal.write("forgotten", "0", session=session, id=secret.id)
            return
        await asyncio.sleep(0.2)
    worker.journal.write("error", "0", what="forget", error="refused twenty times")


async def verify(worker: Worker, memory: Memory) -> None:
    found = await worker.call(0, "verify", memory.admin.verify, may_fail=True)
    if found is not None:
        fields = {
            "messages": found.messages,
            "damages": [str(one)[:200] for one in found.damages[:5]],
        }
        worker.journal.write("verified", "0", **fields)


async def copy_session(worker: Worker, memory: Memory, rng: random.Random) -> None:
    """Fork a session, and delete the copy."""

    async def work() -> bool:
        session = await memory.session(rng.choice(LASTING))
        newest = (await session.refresh()).messages
        copy = await session.fork(min(newest, 50))
        await memory.delete_session(copy.id)
        return True

    await worker.call(0, "fork", work, may_fail=True)


async def back_up(worker: Worker, memory: Memory, count: int) -> None:
    target = worker.folder / f"backup-{count}.db"
    store: Any = memory.store
    await worker.call(0, "backup", lambda: store.backup(target))
    if target.exists():
        async with Memory.open(f"sqlite:///{target}", counter=Estimator()) as copy:
            await verify(worker, copy)
        for path in worker.folder.glob(f"{target.name}*"):
            path.unlink()


def stop_without_parent(stopped: threading.Event) -> None:
    """End when the proof itself was killed."""
    parent = os.getppid()
    while not stopped.wait(1.0):
        if os.getppid() != parent:
            stopped.set()


def main() -> None:
    """`python -m proofs.day_worker FOLDER URL ROLE LIFE SEED`."""
    folder, url, role, life, seed = sys.argv[1:]
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    stopped = threading.Event()
    threading.Thread(target=stop_without_parent, args=(stopped,), daemon=True).start()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    worker = Worker(Path(folder), url, role, int(life), int(seed), stopped)
    if role == "threads":
        run_threads(worker)
    elif role == "forks":
        run_forks(worker)
    elif role == "loops":
        asyncio.run(run_loops(worker))
    elif role == "keeper":
        asyncio.run(run_keeper(worker))
    elif role == "outbox":
        asyncio.run(run_tasks(worker, outbox=str(worker.folder / "outbox"), timeout=0.5))
    else:
        asyncio.run(run_tasks(worker))


if __name__ == "__main__":
    main()
