"""P36: one client can't stop the others.

A worker serves a SQLite file. An ordinary client reads and writes all the time, each time on a new
connection, while hostile requests arrive from another address with the keys of two others of its
tenant, or without a key: directly, and through HAProxy with `deploy/haproxy.cfg` if it is
installed. Each answer to the ordinary client must be a success and take less than two seconds,
without those for which the worker waited for a processor: the machine has other programs, and the
one that attacks. The worker must not need more than 600 MiB.
"""

import asyncio
import os
import random
import shutil
import socket
import ssl
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final, NamedTuple

from keepthread import Memory
from keepthread.apps.http.keys import KeyRights, create_key
from keepthread.apps.http.settings import HttpSettings
from keepthread.apps.http.worker import Work, run_process
from keepthread.apps.proxy.settings import ProxySettings
from keepthread.models.tokens import Estimator
from proofs import Outcome, Progress, Proof
from proofs.hostile_requests import (
    ENOUGH,
    Hostile,
    Target,
    chance_request,
    known_requests,
    send_until_told,
)
from proofs.processes import fresh_processes
from servers import free_port
from servers.stack import certify

SECONDS: Final = 2.0
"""How long an answer to the ordinary client may take."""
MEMORY: Final = 600.0
"""MiB that the worker may need."""
SHORT: Final = 0.7
LONG: Final = 6.0
"""Seconds for which a hostile request is sent, at the small size and at others."""
_PAUSE: Final = 0.05
_TO_START: Final = 60.0
_CONFIG: Final = Path(__file__).parents[1] / "deploy" / "haproxy.cfg"
_SCOPES: Final = frozenset({"read", "write", "forget", "proxy", "mcp"})


def _open_memory(url: str) -> AbstractAsyncContextManager[Memory]:
    return Memory.open(url, counter=Estimator())


def _run_worker(work: Work, listener: socket.socket) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # it logs each request
    run_process(work, listener)


class Server(NamedTuple):
    """A worker, and the keys of the ordinary client and of the others."""

    pid: int
    port: int
    key: str
    others: tuple[str, str]

    def peak_memory(self) -> float:
        """Return the memory that the worker had at most, in MiB."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))

    def waited(self) -> float:
        """Return the seconds for which the worker waited for a processor so far."""
        return int(Path(f"/proc/{self.pid}/schedstat").read_text().split()[1]) / 1e9


@contextmanager
def served(settings: HttpSettings | None = None) -> Iterator[Server]:
    """Serve a new SQLite file by one worker; its proxy has a provider that is away."""
    away = f"http://127.0.0.1:{free_port()}/v1"
    settings = settings or HttpSettings(
        any_host=True, proxy=ProxySettings(openai=away, anthropic=away)
    )
    with tempfile.TemporaryDirectory() as folder, ExitStack() as closing:
        url = f"sqlite:///{folder}/memory.db"
        keys = asyncio.run(_make_keys(url))
        listener = closing.enter_context(socket.create_server(("127.0.0.1", 0), backlog=1024))
        listener.setblocking(False)
        work = Work(open_memory=partial(_open_memory, url), settings=settings)
        process = fresh_processes().Process(target=_run_worker, args=(work, listener))
        process.start()
        try:
            yield Server(process.pid or 0, listener.getsockname()[1], keys[0], (keys[1], keys[2]))
        finally:
            process.kill()
            process.join()


async def _make_keys(url: str) -> list[str]:
    async with _open_memory(url) as memory:
        tables = memory.store.server_tables()
        keys: list[str] = []
        for owner in ("ann", "mallory", "eve"):
            rights = KeyRights("default", _SCOPES, owner, owner)
            keys.append((await create_key(tables, rights, by="proof", at=time.time())).text)
            await memory.session("trip" if owner == "ann" else "hostile", owner=owner)
    return keys


@contextmanager
def haproxy(port: int) -> Iterator[int | None]:
    """Run HAProxy before a worker; yield its port, or None if it is not installed."""
    program = shutil.which("haproxy", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        yield None
        return
    with tempfile.TemporaryDirectory() as folder:
        certificate, mine = Path(folder) / "tls.pem", free_port()
        certify(certificate)
        environment = {
            "KEEPTHREAD_BIND": f"127.0.0.1:{mine}",
            "KEEPTHREAD_CERTIFICATE": str(certificate),
            "KEEPTHREAD_WORKER_1": f"127.0.0.1:{port}",
            "KEEPTHREAD_WORKER_2": f"127.0.0.1:{free_port()}",
        }
        process = subprocess.Popen(
            [program, "-f", str(_CONFIG)],
            env={**os.environ, **environment},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            yield mine
        finally:
            process.kill()
            process.wait()


# --- the ordinary client ---


@dataclass(slots=True)
class Client:
    """Reads and writes in turn, each time on a new connection, and notes what is wrong."""

    server: Server
    port: int
    is_tls: bool = False
    answers: int = 0
    longest: float = 0.0
    broken: list[str] = field(default_factory=list)

    async def ask(self) -> str | None:
        """Send one request; return what is wrong with the answer."""
        began, waited = time.perf_counter(), self.server.waited()
        try:
            async with asyncio.timeout(5 * SECONDS):
                answer = await self._answer()
        except (OSError, TimeoutError) as error:
            return f"{type(error).__name__} after {time.perf_counter() - began:.1f} s"
        seconds = time.perf_counter() - began - (self.server.waited() - waited)
        self.answers += 1
        self.longest = max(self.longest, seconds)
        if not answer.startswith((b"HTTP/1.1 200", b"HTTP/1.1 201")):
            return f"the answer is {answer[:40]!r}"
        return f"the answer took {seconds:.1f} s" if seconds > SECONDS else None

    async def _answer(self) -> bytes:
        secure = None
        if self.is_tls:
            secure = ssl.create_default_context()
            secure.check_hostname = False
            secure.verify_mode = ssl.CERT_NONE
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=secure)
        try:
            body = b'{"messages": [{"role": "user", "content": "I am well."}]}'
            path, length = "/v1/sessions/trip/messages", len(body)
            writes = self.answers % 2
            lines = [
                f"{'POST' if writes else 'GET'} {path} HTTP/1.1",
                *(
                    "Host: localhost",
                    f"Authorization: Bearer {self.server.key}",
                    "Connection: close",
                ),
            ]
            if writes:
                lines += ["Content-Type: application/json", f"Content-Length: {length}"]
            head = "\r\n".join([*lines, "", ""]).encode()
            writer.write(head + (body if writes else b""))
            return await reader.read()
        finally:
            writer.close()

    async def watch(self, pipe: Connection, what: str) -> None:
        """Ask until a hostile request is over, and once more."""
        is_last = False
        while not is_last:
            is_last = pipe.poll()
            if wrong := await self.ask():
                self.broken.append(f"{what}: {wrong}")
                pipe.send(ENOUGH)
            await asyncio.sleep(_PAUSE)
        pipe.recv()

    async def wait(self) -> None:
        """Wait until the server answers."""
        until = time.monotonic() + _TO_START
        while time.monotonic() < until and await self.ask():  # noqa: ASYNC110 - of another process
            await asyncio.sleep(_PAUSE)
        self.answers, self.longest = 0, 0.0


# --- all of it ---


def hostile_requests(size: int, seed: int) -> list[Hostile]:
    """Return as many requests: known ones first, then those made by chance."""
    rng = random.Random(seed)
    known = known_requests()[:size]
    return known + [chance_request(rng, number) for number in range(size - len(known))]


def prove(
    requests: Sequence[Hostile],
    seconds: float,
    progress: Progress,
    settings: HttpSettings | None = None,
    *,
    through: bool = True,
) -> Outcome:
    """Send each request beside the ordinary client, also `through` HAProxy."""
    fresh = fresh_processes()
    mine, theirs = fresh.Pipe()
    attacker = fresh.Process(target=send_until_told, args=(theirs,), daemon=True)
    attacker.start()
    with served(settings) as server, haproxy(server.port) as proxy:
        clients = [Client(server, server.port)]
        clients += [] if proxy is None or not through else [Client(server, proxy, is_tls=True)]
        for client in clients:
            asyncio.run(client.wait())
        for number, hostile in enumerate(requests):
            for client in clients:
                target = Target(client.port, client.is_tls, server.others)
                mine.send((target, hostile, seconds))
                where = "through HAProxy" if client.is_tls else "directly"
                asyncio.run(client.watch(mine, f"{hostile.name}, {where}"))
            progress(number + 1, len(requests))
        peak = server.peak_memory()
    with suppress(OSError):
        mine.send(None)
    attacker.join(10)
    attacker.kill()
    broken = [line for client in clients for line in client.broken]
    if peak > MEMORY:
        broken.append(f"the worker needed {peak:.0f} MiB")
    figures = {
        "hostile requests": len(requests),
        "through HAProxy, too": "yes" if len(clients) > 1 else "no: it is not installed",
        "answers to the ordinary client": sum(client.answers for client in clients),
        "the longest answer, in ms": round(1000 * max(client.longest for client in clients)),
        "memory of the worker at most, in MiB": round(peak),
    }
    return Outcome(figures=figures, broken=tuple(broken))


def run(size: int, seed: int, progress: Progress) -> Outcome:
    seconds = SHORT if size <= PROOF.small else LONG
    return prove(hostile_requests(size, seed), seconds, progress)


PROOF: Final = Proof(
    name="P36",
    promise="one client can't stop the others",
    unit="hostile requests beside an ordinary client",
    small=3,
    closing=33,
    long=200,
    run=run,
)
