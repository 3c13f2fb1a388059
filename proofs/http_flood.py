"""Thousands of open connections: the server keeps to its bound, stays up, and answers others.

A real server is started over a SQLite file. Clients connect from several addresses of this machine
and stay: some silent, some in the middle of a head, some in the middle of a body. Meanwhile another
client connects again and again, and measures how long its answers take.
"""

import argparse
import asyncio
import os
import resource
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle
from multiprocessing import get_context
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import NamedTuple

from servers import free_port

SECONDS = 2.0
"""How long an answer to another client may take."""
_PER_ADDRESS = 5000
"""Connections from one address, which has some 28,000 ports."""
_AT_ONCE = 200
_PAUSE = 0.1
_SPARE = 100
_SECONDS_TO_START = 120.0


class Server(NamedTuple):
    """The process of a server, where it listens, and two keys."""

    pid: int
    port: int
    key: str
    """The key of those who open connections."""
    other_key: str

    def memory(self, field: str) -> float:
        """Return the memory of the process, in MiB: `VmRSS` now, `VmHWM` at most."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(each.split()[1]) / 1024 for each in lines if each.startswith(field))

    def files(self) -> int:
        """Return how many files and connections the process has open."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))  # noqa: PTH208 - names are enough

    def cpu(self) -> tuple[float, float]:
        """Return the seconds of CPU that the process had, and those that it waited for it."""
        used, waited, _ = Path(f"/proc/{self.pid}/schedstat").read_text().split()
        return int(used) / 1e9, int(waited) / 1e9

    def request(self, *headers: str) -> bytes:
        """Return the head of a request that needs a key."""
        lines = ("Host: localhost", f"Authorization: Bearer {self.key}", *headers)
        return "\r\n".join(("POST /v1/sessions HTTP/1.1", *lines, "", "")).encode()


@contextmanager
def served() -> Iterator[Server]:
    """Start a server as a user does, with the limits that it has by default."""
    with tempfile.TemporaryDirectory() as folder:
        program = [sys.executable, "-m", "keepthread"]
        store = ["--store", f"sqlite:///{folder}/flood.db"]
        environment = {**os.environ, "HOME": folder, "XDG_CONFIG_HOME": folder}
        keys = [
            subprocess.run(
                [*program, "keys", "create", "flood", "--owner", owner, *store],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                check=True,
            ).stdout.strip()
            for owner in ("mallory", "ann")
        ]
        port = free_port()
        with subprocess.Popen(
            [*program, "serve", "--port", str(port), *store],
            env=environment,
            stderr=subprocess.DEVNULL,
        ) as process:
            try:
                _wait_for(port)
                yield Server(process.pid, port, *keys)
            finally:
                process.terminate()


def _wait_for(port: int) -> None:
    until = time.monotonic() + _SECONDS_TO_START
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 5).close()
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(_PAUSE)
        else:
            return


def raise_limit(number: int) -> None:
    """Let this process have that many connections."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = number + _SPARE
    if most != resource.RLIM_INFINITY and most < wanted:
        raise SystemExit(f"this system allows {most:,} open files; {wanted:,} are needed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


async def flood(server: Server, number: int) -> list[socket.socket]:
    """Open connections, and leave each in a state in which the server waits for it."""
    json = "Content-Type: application/json"
    body = server.request(json, "Content-Length: 1000") + b'{"ti'
    unknown = b"POST /v1/sessions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\nx"
    begun = cycle((b"", b"GET /livez HTTP/1.1\r\nX: a", body, unknown))
    room = asyncio.Semaphore(_AT_ONCE)

    async def connect(place: int) -> socket.socket:
        line = socket.socket()
        line.setblocking(False)
        line.bind((f"127.0.0.{2 + place // _PER_ADDRESS}", 0))
        loop = asyncio.get_running_loop()
        async with room:
            try:
                await loop.sock_connect(line, ("127.0.0.1", server.port))
                await loop.sock_sendall(line, next(begun))
            except OSError:
                pass  # it was closed to make room
        return line

    return await asyncio.gather(*(connect(place) for place in range(number)))


async def ask(server: Server) -> float:
    """Ask as another client, on a new connection; return the seconds until the whole answer."""
    began = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        key = f"Authorization: Bearer {server.other_key}"
        lines = ("GET /v1/sessions HTTP/1.1", "Host: localhost", key, "Connection: close", "", "")
        writer.write("\r\n".join(lines).encode())
        answer = await reader.read()
    finally:
        writer.close()
    assert answer.startswith(b"HTTP/1.1 200"), answer[:500]
    return time.perf_counter() - began


class Seen(NamedTuple):
    """What another client saw while connections were open."""

    times: list[float]
    refused: int
    files: int
    memory: float


def hold(server: Server, number: int, opened: Event, end: Event) -> None:
    """Open connections in a process of their own, and keep them until the end."""
    raise_limit(number)
    lines = asyncio.run(flood(server, number))
    opened.set()
    end.wait()
    for line in lines:
        line.close()


async def watch(server: Server, opened: Event) -> Seen:
    """Ask until some seconds after the last connection was opened."""
    times: list[float] = []
    refused = files = 0
    left = 20
    while left:
        try:
            times.append(await ask(server))
        except (OSError, AssertionError):
            refused += 1
        files = max(files, server.files())
        left -= opened.is_set()
        await asyncio.sleep(_PAUSE)
    return Seen(sorted(times), refused, files, server.memory("VmHWM"))


def run(server: Server, number: int) -> Seen:
    """Open the connections, and see what another client sees of it."""
    context = get_context("spawn")
    opened, end = context.Event(), context.Event()
    process = context.Process(target=hold, args=(server, number, opened, end))
    process.start()
    try:
        return asyncio.run(watch(server, opened))
    finally:
        end.set()
        process.join()


def main() -> int:
    """Run it, and print what was seen."""
    parser = argparse.ArgumentParser(prog="scripts/flood_http", description=__doc__)
    parser.add_argument("--connections", type=int, default=10_000, metavar="N")
    given = parser.parse_args()
    with served() as server:
        asyncio.run(ask(server))
        before = server.memory("VmRSS")
        used, waited = server.cpu()
        seen = run(server, given.connections)
        used, waited = server.cpu()[0] - used, server.cpu()[1] - waited
        after = asyncio.run(ask(server))
    times = seen.times
    print(
        f"{given.connections:,} connections; at most {seen.files:,} files and connections open in"
        f" the server; memory {before:.0f} MiB before, at most {seen.memory:.0f} MiB"
    )
    print(
        f"{len(times)} answers to another client: median {times[len(times) // 2] * 1000:,.0f} ms,"
        f" longest {times[-1] * 1000:,.0f} ms; {seen.refused} refused; afterwards"
        f" {after * 1000:,.0f} ms"
    )
    print(f"The server had {used:.1f} s of CPU, and waited {waited:.1f} s for it beside others.")
    return 0 if times[-1] < SECONDS and not seen.refused else 1


if __name__ == "__main__":
    sys.exit(main())
