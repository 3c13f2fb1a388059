"""Blobs at their full size, once, on SQLite: limits, flat memory, long texts."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from keepthread import Memory
from keepthread.errors import TooLarge
from keepthread.models.tokens import Estimator

MIB = 1 << 20
SCRIPT = """
import asyncio, hashlib, os, resource, sys
from pathlib import Path
from keepthread import Memory

async def main(folder, size):
    path = Path(folder) / "file"
    with path.open("wb") as file:
        for n in range(size):
            file.write(hashlib.shake_128(b"%d" % n).digest(1 << 20))
    async with Memory.open(f"sqlite:///{folder}/m.db") as memory:
        ann = memory.for_owner("ann")
        first = await ann.blobs.put(path)
        assert await ann.blobs.put(path) == first and first.size == size << 20
        seen = hashlib.sha256()
        async for piece in ann.blobs.open(first.digest):
            seen.update(piece)
        assert seen.hexdigest() == first.digest
        receipt = await ann.forget(everything=True)
        assert receipt.records["blob"] == 1 and receipt.found == 0
        assert await ann.blobs.list() == []
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)

asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""


def peak(folder: Path, size: int) -> int:
    folder.mkdir()
    run = [sys.executable, "-c", SCRIPT, str(folder), str(size)]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.parametrize("size", [16, pytest.param(64, marks=pytest.mark.nightly)])
def test_a_large_blob_takes_no_more_memory_than_one_of_1_mib(tmp_path: Path, size: int) -> None:
    small, large = peak(tmp_path / "small", 1), peak(tmp_path / "large", size)
    assert large - small < size // 2 * 1024, (small, large)


async def test_a_file_of_200_mb_is_refused_with_the_numbers(tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.touch()
    os.truncate(path, 200_000_000)
    async with Memory.open(f"sqlite:///{tmp_path}/m.db") as memory:
        with pytest.raises(TooLarge, match="200,000,000 bytes; the store's limit is 67,108,864"):
            await memory.for_owner("ann").blobs.put(path)


async def test_an_answer_of_5_mib_and_a_result_of_20_mib_are_kept(tmp_path: Path) -> None:
    answer, result = "answer " * (5 * MIB // 7), "row " * (5 * MIB)
    async with Memory.open(f"sqlite:///{tmp_path}/m.db", counter=Estimator()) as memory:
        session = await memory.session("s")
        async with session.turn("go") as turn:
            told = await turn.tool("read", {}, lambda: result)
            assert len(told.encode()) <= MIB
            stored = await turn.finish(answer)
        shown = (await session.context(budget=3000)).text
        assert "left out" in shown or "the first part of" in shown
        (kept,) = [m for m in await session.messages() if m.role == "tool"]
        assert await session.full_text(kept) == result
        assert await session.full_text(stored) == answer
