"""The faults of P24: a relay that cuts connections, and a server whose processes are killed."""

import asyncio
import json
import os
import random
import re
import signal
import socket
import struct
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from keepthread import errors
from keepthread.errors import KeepthreadError
from servers.proxy import CHUNK, Line, Proxy

ROOT: Final = Path(__file__).resolve().parent.parent
WORKERS: Final = 2
PATIENCE: Final = 120.0
DEADLINE: Final = 60.0
"""Seconds that a request may take: longer than a store waits for its server."""
_RESET: Final = struct.pack("ii", 1, 0)
_STARTED: Final = re.compile(r"Started server process \[(\d+)\]")
_FINISHED: Final = re.compile(r"Finished server process \[(\d+)\]")
_RETRYABLE: Final = {
    kind.__name__
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, KeepthreadError) and kind.retryable
}


class Relay(Proxy):
    """Passes bytes on to the server, and cuts connections in the middle of what they carry."""

    def __init__(self, port: int, rng: random.Random, longest: int) -> None:
        """Take where the server is, and after how many bytes a connection is cut at the latest."""
        super().__init__(port)
        self.longest = longest
        self.cuts: Counter[str] = Counter()
        self._rng = rng

    async def _carry(self, near: Line, far: Line) -> None:
        both = (near[1], far[1])
        limits: dict[str, int | None] = {"requests": None, "responses": None}
        limits[self._rng.choice([*limits])] = self._rng.randrange(1, self.longest)
        await asyncio.gather(
            self._pass_some(near[0], far[1], "requests", limits["requests"], both),
            self._pass_some(far[0], near[1], "responses", limits["responses"], both),
        )

    async def _pass_some(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        what: str,
        limit: int | None,
        both: Sequence[asyncio.StreamWriter],
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(CHUNK):
                if limit is not None and len(data) >= limit:
                    writer.write(data[:limit])
                    await writer.drain()
                    self.cuts[what] += 1
                    self._cut(both)
                    return
                limit = None if limit is None else limit - len(data)
                writer.write(data)
                await writer.drain()
            if what == "requests":
                writer.write_eof()
                return  # the client may still wait for the response
        for line in both:
            line.close()

    def _cut(self, both: Sequence[asyncio.StreamWriter]) -> None:
        """End a connection at both sides: it is closed in order, or reset."""
        resets = self._rng.random() < 0.5
        for line in both:
            if resets:
                connection = line.get_extra_info("socket")
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                line.transport.abort()
            else:
                line.close()


# --- the server ---


@dataclass(slots=True)
class Serving:
    """`keepthread serve` with several workers, as a process of its own."""

    folder: Path
    store: str
    port: int
    process: asyncio.subprocess.Process | None = None
    workers: set[int] = field(default_factory=set)
    """The process ids of workers that serve."""
    stopping: set[int] = field(default_factory=set)
    """Those that no longer listen."""
    finished: set[int] = field(default_factory=set)
    requests: int = 0
    broken: list[str] = field(default_factory=list)
    secrets: Sequence[str] = ()
    _reading: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start it, again and again while another process still has the port."""
        async with asyncio.timeout(PATIENCE):
            while True:
                self.process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", "keepthread", "serve", "--store", self.store),
                    *("--port", str(self.port), "--workers", str(WORKERS)),
                    cwd=self.folder,
                    env=self._environment(),
                    stderr=asyncio.subprocess.PIPE,
                )
                serves = asyncio.Event()
                self._reading = asyncio.create_task(self._read(self.process, serves))
                waits = asyncio.create_task(serves.wait())
                await asyncio.wait({waits, self._reading}, return_when="FIRST_COMPLETED")
                waits.cancel()
                if serves.is_set():
                    return
                await self.process.wait()
                await asyncio.sleep(0.1)

    def tell_to_stop(self) -> None:
        """Stop it as an operator does."""
        assert self.process
        self.process.send_signal(signal.SIGTERM)

    async def ended(self) -> None:
        """Wait for its end, which must be a good one, with all of its workers."""
        assert self.process
        assert self._reading
        async with asyncio.timeout(PATIENCE):
            await self._reading
            status = await self.process.wait()
        if status:
            self.broken.append(f"the server ended with status {status}")
        await self.until("the end of the workers", lambda: not any(map(_runs, self.workers)))
        self.workers.clear()

    async def lose(self) -> None:
        """Kill the process that watches over the workers; they must end without it."""
        assert self.process
        left = [*self.workers]
        self.process.kill()
        await self.process.wait()
        await self.until("the end of the workers", lambda: not any(map(_runs, left)))
        assert self._reading
        async with asyncio.timeout(PATIENCE):
            await self._reading
        self.workers.clear()

    async def until(self, what: str, is_so: Callable[[], bool]) -> None:
        """Wait until something is so."""
        end = time.monotonic() + PATIENCE
        while not is_so():
            if time.monotonic() > end:
                raise RuntimeError(f"waited {PATIENCE:g} s in vain for {what}")
            await asyncio.sleep(0.02)

    async def close(self) -> None:
        """Leave no process behind."""
        for pid in self.workers:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self.process and self.process.returncode is None:
            self.process.kill()
            await self.process.wait()
        if self._reading:
            await self._reading

    def _environment(self) -> dict[str, str]:
        kept = {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
        folder = str(self.folder)
        kept |= {"KEEPTHREAD_SERVER_DEADLINE": str(DEADLINE), "PATH": os.defpath}
        return {"HOME": folder, "XDG_CONFIG_HOME": folder, **kept}

    async def _read(self, process: asyncio.subprocess.Process, serves: asyncio.Event) -> None:
        """Read the log until its end."""
        assert process.stderr
        while line := (await process.stderr.readline()).decode():
            if any(secret in line for secret in self.secrets):
                self.broken.append("the log holds a key")
            if line.startswith("{"):
                self._note(json.loads(line))
            elif "serving on" in line:
                serves.set()
            elif serves.is_set() and line.strip():
                self.broken.append(f"the server wrote {line.strip()!r}")

    def _note(self, line: dict[str, Any]) -> None:
        event: str = line["event"]
        if found := _STARTED.search(event):
            self.workers.add(int(found[1]))
        elif found := _FINISHED.search(event):
            self.finished.add(int(found[1]))
        elif event == "Shutting down":
            self.stopping.add(line["process"])
        elif event == "worker ended":
            self.workers.discard(line["pid"])
        elif event == "request":
            self.requests += 1
            if line["status"] == 500:
                self.broken.append(f"the log says that a request failed: {line}")
        elif event in ("failed", "failed to start"):
            if line["error"] not in _RETRYABLE | {"Problem"}:
                self.broken.append(f"the log says that something failed: {line}")
        elif line["level"] in ("error", "critical"):
            self.broken.append(f"the log says {line}")


def _runs(process: int) -> bool:
    """Tell whether a process is still there, and not merely its name."""
    with suppress(OSError):
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
        return state not in "ZX"
    return False


# --- requests that are under way when a worker is told to stop ---


class Held:
    """A request of which a worker has the head, and waits for the body."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._body = b""

    @classmethod
    async def begin(cls, port: int, path: str, headers: dict[str, str], body: bytes) -> "Held":
        """Send the head, and wait until a worker asks for the body."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        given = {
            "Host": "localhost",
            "Content-Type": "application/json",
            "Content-Length": str(len(body)),
            "Expect": "100-continue",
            "Connection": "close",
            **headers,
        }
        lines = [f"POST {path} HTTP/1.1", *(f"{name}: {given[name]}" for name in given)]
        writer.write("\r\n".join([*lines, "", ""]).encode())
        async with asyncio.timeout(PATIENCE):
            line = await reader.readline()
            if b" 100 " not in line:
                raise ConnectionError(line.decode())
            await reader.readline()
        held = cls(reader, writer)
        held._body = body
        return held

    async def end(self) -> tuple[int, Any]:
        """Send the body; return the status and the JSON of the response."""
        self._writer.write(self._body)
        async with asyncio.timeout(PATIENCE):
            answer = await self._reader.read()
        self._writer.close()
        head, _, body = answer.partition(b"\r\n\r\n")
        return int(head.split()[1]), json.loads(body)
