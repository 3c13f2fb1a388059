"""SQLite's threads, checkpoints and descriptors: every call is answered, the log stays short."""

import asyncio
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar

import pytest

from keepthread import SessionInfo, SessionKey, SQLiteStore
from keepthread.errors import StoreClosed, Unavailable
from keepthread.protocols import Store
from keepthread.stores.sqlite.file import LOG_LIMIT, FileLock
from keepthread.stores.sqlite.worker import Bell, Job, settle
from keepthread.testing.contract import said, user

DESCRIPTORS = Path("/dev/fd")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "chat.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SQLiteStore]:
    async with await SQLiteStore.open(path) as opened:
        yield opened


async def session_of(store: Store, id: str = "s") -> SessionKey:
    return (await store.put_session(SessionInfo(id=id))).key


# --- the log ---


async def test_nobody_can_commit_while_the_log_is_checkpointed(path: Path) -> None:
    refusals: list[str] = []

    class Checkpointing(sqlite3.Connection):
        def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
            if "wal_checkpoint" in sql:  # another program writes at this moment
                with closing(sqlite3.connect(path, isolation_level=None, timeout=0)) as other:
                    try:
                        other.execute("BEGIN IMMEDIATE")
                    except sqlite3.OperationalError as error:
                        refusals.append(str(error))
            return super().execute(sql, *values)

    def connect(uri: str) -> sqlite3.Connection:
        return sqlite3.connect(uri, uri=True, isolation_level=None, factory=Checkpointing)

    async with await SQLiteStore.open(path, connect=connect) as store:
        key = await session_of(store)
        for _ in range(6):
            await store.append(key, [user("x" * 900_000)])
        await store.append(key, [user("after the checkpoint")])
    assert refusals == ["database is locked"]


async def test_there_is_no_checkpoint_while_another_process_writes(
    store: SQLiteStore, path: Path
) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        await session_of(store)
        size = path.stat().st_size
        other.execute("BEGIN IMMEDIATE")
        await store.backend.engine.maintain(store.backend.engine.file.checkpoint)
        assert path.stat().st_size == size
        other.execute("ROLLBACK")
        await store.backend.engine.maintain(store.backend.engine.file.checkpoint)
        assert path.stat().st_size > size


async def test_there_is_no_checkpoint_while_another_process_opens_or_checkpoints(
    store: SQLiteStore, path: Path
) -> None:
    await session_of(store)
    size = path.stat().st_size
    lock = FileLock(path.with_name(f"{path.name}-lock"))
    with sqlite3.connect(path) as reader:  # keeps the store's connection from being the last
        await store.backend.engine.maintain(_held_by(lock, store.backend.engine.file.checkpoint))
        assert path.stat().st_size == size
        await store.backend.engine.maintain(store.backend.engine.file.checkpoint)
        assert path.stat().st_size > size
    reader.close()


def _held_by(
    lock: FileLock, work: Callable[[sqlite3.Connection], None]
) -> Callable[[sqlite3.Connection], None]:
    def held(db: sqlite3.Connection) -> None:
        assert lock.take()
        with lock:
            work(db)

    return held


async def test_the_log_stays_short_though_every_writer_is_short_lived(
    store: SQLiteStore, path: Path
) -> None:
    key = await session_of(store)  # this one stays open and does nothing
    log = path.with_name(f"{path.name}-wal")
    sizes: list[int] = []
    for _ in range(12):
        async with await SQLiteStore.open(path, durability="process") as short:
            await short.append(key, [user("x" * 900_000)])
        sizes.append(log.stat().st_size)
    assert max(sizes) < 7_000_000
    assert path.stat().st_size > 5_000_000
    assert (await store.verify()).sound


async def test_a_long_log_is_cut_after_its_checkpoint(store: SQLiteStore, path: Path) -> None:
    key = await session_of(store)
    log = path.with_name(f"{path.name}-wal")
    await store.append(key, [user("x" * 900_000) for _ in range(10)])
    assert log.stat().st_size > 9_000_000
    await store.append(key, [user("the log begins again")])
    await store.append(key, [user("a checkpoint may come between")])
    assert log.stat().st_size <= LOG_LIMIT


@pytest.mark.skipif(not DESCRIPTORS.exists(), reason="this system does not list descriptors")
async def test_forgetting_leaves_no_descriptor_open(tmp_path: Path) -> None:
    async def forget(n: int) -> None:
        async with await SQLiteStore.open(tmp_path / f"{n}.db") as store:
            await store.append(await session_of(store), [user("a secret of some length")])
            await store.clean(rewrite=True, probes=[b"a secret"])
            await session_of(store, "t")  # the store works on

    await forget(0)
    before = len(list(DESCRIPTORS.iterdir()))
    for n in range(1, 5):
        await forget(n)
    assert len(list(DESCRIPTORS.iterdir())) == before


def begin_elsewhere(path: Path) -> bytes:
    """Begin to write in another process; return what it says."""
    code = (
        "import sqlite3, sys; db = sqlite3.connect(sys.argv[1], timeout=0);"
        " db.execute('BEGIN IMMEDIATE')"
    )
    command = [sys.executable, "-c", code, str(path)]
    return subprocess.run(command, stderr=subprocess.PIPE, check=False).stderr


async def test_a_store_keeps_its_locks_after_forgetting(store: SQLiteStore, path: Path) -> None:
    key = await session_of(store)
    await store.append(key, [user("a secret of some length")])
    assert (await store.clean(rewrite=True, probes=[b"a secret"])).found == [0]
    began, go = threading.Event(), threading.Event()

    def hold(db: sqlite3.Connection) -> None:
        began.set()
        assert go.wait(30)

    writing = asyncio.create_task(store.backend.engine.write(hold))
    await asyncio.to_thread(began.wait)
    try:
        await store.clean(probes=[b"a secret"])  # reads the file beside an open transaction
        refusal = await asyncio.to_thread(begin_elsewhere, path)
    finally:
        go.set()
        await writing
    assert b"database is locked" in refusal


# --- the threads ---


class Faulty(sqlite3.Connection):
    """Fails in the statements of `plan`, one after the other."""

    plan: ClassVar[list[tuple[str, BaseException]]] = []

    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        if self.plan and sql == self.plan[0][0]:
            raise self.plan.pop(0)[1]
        return super().execute(sql, *values)


def connect_faulty(uri: str) -> sqlite3.Connection:
    return sqlite3.connect(uri, uri=True, isolation_level=None, timeout=0, factory=Faulty)


@pytest.mark.parametrize(
    "plan",
    [
        [("BEGIN IMMEDIATE", MemoryError())],
        [("COMMIT", MemoryError())],
        [("COMMIT", SystemExit())],
        [
            ("COMMIT", sqlite3.OperationalError("disk I/O error")),
            ("ROLLBACK", sqlite3.OperationalError("disk I/O error")),
        ],
    ],
)
async def test_no_error_ends_the_thread_that_writes(
    path: Path, plan: list[tuple[str, BaseException]]
) -> None:
    async with await SQLiteStore.open(path, connect=connect_faulty) as store:
        key = await session_of(store)
        Faulty.plan = list(plan)
        batch = [store.append(key, [user(str(n))]) for n in range(2)]
        done = await asyncio.gather(*batch, return_exceptions=True)
        assert all(isinstance(each, BaseException) for each in done)
        assert not Faulty.plan
        await store.append(key, [user("next")])
        assert said(await store.read(key)) == ["next"]


@pytest.mark.parametrize("error", [SystemExit, StopIteration, MemoryError, KeyError])
async def test_whatever_work_raises_reaches_its_caller(
    store: SQLiteStore, error: type[BaseException]
) -> None:
    def fail(db: sqlite3.Connection) -> None:
        raise error

    engine = store.backend.engine
    for ask in (engine.write, engine.read, engine.read_apart):
        with pytest.raises((KeyError, RuntimeError, Unavailable)):
            await asyncio.wait_for(ask(fail), 30)
    await session_of(store)


async def test_an_error_keeps_no_cursor_open(store: SQLiteStore, path: Path) -> None:
    def fail(db: sqlite3.Connection) -> None:
        cursor = db.execute("SELECT name FROM sqlite_schema")
        assert cursor.fetchone()
        raise KeyError("in the middle of a result")

    with pytest.raises(KeyError) as kept:
        await store.backend.engine.read(fail)
    await store.close()
    assert kept.value.__traceback__
    assert not path.with_name(f"{path.name}-wal").exists()  # the last to close removes it


async def test_work_that_comes_after_the_end_is_refused(path: Path) -> None:
    store = await SQLiteStore.open(path)
    workers = [store.backend.engine._reader, store.backend.engine._writer]
    await store.close()
    loop = asyncio.get_running_loop()
    for worker in workers:  # another loop's call may have passed the first check before the end
        future: asyncio.Future[None] = loop.create_future()
        worker.hand_over([Job(Bell(loop, settle), future, lambda db: None, 0)])
        with pytest.raises(StoreClosed):
            await asyncio.wait_for(future, 30)


async def test_closing_twice_at_once_waits_for_the_end_both_times(path: Path) -> None:
    store = await SQLiteStore.open(path)
    await asyncio.gather(store.close(), store.close())
    assert not store.backend.engine._writer._thread.is_alive()


async def test_a_bell_that_closes_gives_what_was_rung() -> None:
    taken: list[str] = []
    bell = Bell(asyncio.get_running_loop(), taken.append)
    ringing = threading.Thread(target=bell.ring, args=("before",))
    ringing.start()
    ringing.join()
    bell.close()
    assert taken == ["before"]
    bell.ring("after")
    await asyncio.sleep(0)
    assert taken == ["before", "after"]


async def test_a_bell_whose_pipe_was_closed_by_the_program_still_rings() -> None:
    taken: list[str] = []
    bell = Bell(asyncio.get_running_loop(), taken.append)
    assert bell._pipe
    os.close(bell._pipe[1])
    bell.ring("item")
    await asyncio.sleep(0)
    assert taken == ["item"]
    asyncio.get_running_loop().remove_reader(bell._pipe[0])
    os.close(bell._pipe[0])
