"""A backup of a SQLite file that other processes write to has every acknowledged batch, whole."""

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from keepthread.stores import SQLiteStore
from keepthread.types import Message, SessionInfo
from proofs.processes import fresh_processes

WRITERS, BATCH = 2, 5
PATIENCE = 60.0


def write(path: Path, writer: int) -> None:
    """Append batches to a session until killed, and note each that was acknowledged."""

    async def work() -> None:
        async with await SQLiteStore.open(path, durability="process") as store:
            key = (await store.put_session(SessionInfo(id=f"s{writer}", owner="ana"))).key
            with notes_of(path, writer).open("a") as notes:
                batch = 0
                while True:
                    batch += 1
                    ids = [f"{writer}-{batch}-{number}" for number in range(BATCH)]
                    await store.append(
                        key, [Message(role="user", content="x" * 300, id=id) for id in ids]
                    )
                    notes.write(f"{batch}\n")
                    notes.flush()

    asyncio.run(work())


def notes_of(path: Path, writer: int) -> Path:
    return path.with_name(f"writer-{writer}")


def acknowledged(path: Path) -> list[int]:
    """Return how many batches of each writer were acknowledged."""
    return [notes_of(path, writer).read_text().count("\n") for writer in range(WRITERS)]


@pytest.fixture
def writers(tmp_path: Path) -> Iterator[list[BaseProcess]]:
    path = tmp_path / "chat.db"
    for writer in range(WRITERS):
        notes_of(path, writer).touch()
    processes: list[BaseProcess] = [
        fresh_processes().Process(target=write, args=(path, writer)) for writer in range(WRITERS)
    ]
    for process in processes:
        process.start()
    yield processes
    for process in processes:
        process.kill()
        process.join()


async def wait_for_more(path: Path) -> list[int]:
    """Wait until each writer has written another batch; return how many they have."""
    before, end = acknowledged(path), time.monotonic() + PATIENCE
    while time.monotonic() < end:
        now = acknowledged(path)
        if all(later > earlier for later, earlier in zip(now, before, strict=True)):
            return now
        await asyncio.sleep(0.01)
    raise AssertionError(f"the writers stopped at {before}")


async def check(path: Path, batches: list[int]) -> None:
    """Check that a file is sound, and has these batches and no part of one."""
    async with await SQLiteStore.open(path) as store:
        assert (await store.verify()).sound
        for writer, count in enumerate(batches):
            session = await store.get_session(f"s{writer}", "ana")
            assert session is not None
            ids = [message.id for message in await store.read(session.key, limit=1_000_000)]
            assert len(set(ids)) == len(ids)
            whole = Counter(int(id.split("-")[1]) for id in ids)
            assert set(whole.values()) == {BATCH}
            assert set(range(1, count + 1)) <= set(whole)


async def test_a_backup_beside_writers_is_whole_and_so_is_the_file_when_they_are_killed(
    tmp_path: Path, writers: list[BaseProcess]
) -> None:
    path = tmp_path / "chat.db"
    await wait_for_more(path)
    async with await SQLiteStore.open(path) as store:
        for number in range(2):
            before = await wait_for_more(path)
            copy = tmp_path / f"copy-{number}.db"
            await store.backup(copy)
            await check(copy, before)
        assert (await store.verify()).sound  # while they write
        await wait_for_more(path)
        for process in writers:
            process.kill()
            process.join()
    await check(path, acknowledged(path))
