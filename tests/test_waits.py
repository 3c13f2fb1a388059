"""No public call can hang: each wait in the library has a deadline, or an owner that is alive."""

import asyncio
import struct
import threading
from pathlib import Path
from typing import Any

import pytest

from keepthread.errors import StoreClosed, Unavailable
from keepthread.stores.postgres import PostgresStore
from keepthread.sync.loop import Loop
from tests.waits import waits

PATIENCE = 60.0


def test_each_wait_in_the_library_is_listed_with_the_reason_why_it_ends() -> None:
    reason, listed = "", dict[str, str]()
    for line in Path(__file__).with_name("waits.txt").read_text().splitlines():
        if line.startswith("## "):
            reason = line.removeprefix("## ")
        elif line and not line.startswith("#"):
            assert line not in listed
            listed[line] = reason
    found = {f"{wait.file} | {wait.what}" for wait in waits()}
    assert sorted(found - set(listed)) == [], "new waits need a deadline, or a reason in waits.txt"
    assert sorted(set(listed) - found) == [], "these waits are gone: take them out of waits.txt"
    assert all(listed.values())


async def test_opening_gives_up_on_a_postgresql_server_that_falls_silent() -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Let a client in, and never answer what it asks."""
        (size,) = struct.unpack("!i", await reader.readexactly(4))
        (code,) = struct.unpack("!i", (await reader.readexactly(size - 4))[:4])
        if code == 80877103:  # it asks for TLS first
            writer.write(b"N")
            (size,) = struct.unpack("!i", await reader.readexactly(4))
            await reader.readexactly(size - 4)
        writer.write(b"R" + struct.pack("!ii", 8, 0) + b"Z" + struct.pack("!i", 5) + b"I")
        await reader.read()
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1")
    port = server.sockets[0].getsockname()[1]
    async with server, asyncio.timeout(PATIENCE):
        with pytest.raises(Unavailable):
            await PostgresStore.open(f"postgresql://me@127.0.0.1:{port}/db", deadline=0.5)


def test_a_blocking_call_ends_when_the_thread_that_would_answer_has_ended() -> None:
    async def close() -> None:
        return

    async def die() -> None:
        asyncio.get_running_loop().stop()
        # It is abandoned on purpose; asyncio would report that when the tests end.
        task: Any = asyncio.current_task()
        task._log_destroy_pending = False
        await asyncio.Event().wait()

    loop = Loop(close)
    ended = threading.Event()
    errors: list[BaseException] = []

    def call() -> None:
        try:
            loop.run(die)
        except BaseException as error:  # noqa: BLE001 - it is looked at below
            errors.append(error)
        ended.set()

    threading.Thread(target=call, daemon=True).start()
    assert ended.wait(PATIENCE)
    assert isinstance(errors[0], StoreClosed)
    with pytest.raises(RuntimeError):  # it says why its loop ended, and does not wait
        loop.end()
