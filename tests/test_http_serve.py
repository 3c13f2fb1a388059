"""`keepthread serve` as a process: workers, signals, TLS, metrics, and what it refuses."""

import asyncio
import datetime as dt
import ipaddress
import json
import multiprocessing
import os
import re
import signal
import socket
import ssl
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, cast

import httpx2
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from keepthread import Memory
from keepthread.apps.cli.commands.serve import http_settings, serve
from keepthread.apps.cli.invocation import Call
from keepthread.apps.cli.settings.settings import settings_of
from keepthread.apps.http.keys import KeyRights, create_key
from keepthread.apps.http.serve import Bind, Workers, check
from keepthread.apps.http.settings import HttpSettings, is_loopback
from keepthread.apps.http.worker import STARTUP_FAILED, STORE_AWAY, Work, run_process
from keepthread.errors import Damaged, InvalidInput, KeepthreadError, Unavailable
from keepthread.models.tokens import Estimator

PATIENCE = 240.0


async def new_key(folder: Path) -> str:
    async with Memory.open(f"sqlite:///{folder}/a.db", counter=Estimator()) as memory:
        tables = memory.store.server_tables()
        rights = KeyRights("default", frozenset({"read"}), "test", "ann")
        return (await create_key(tables, rights, by="test", at=1.0)).text


@dataclass
class Process:
    """A server that runs."""

    process: asyncio.subprocess.Process
    url: str
    lines: list[str]
    passed: list[str] = field(default_factory=list[str])
    """Lines that nobody looked for yet: processes write in any order."""

    async def line(self, pattern: str) -> re.Match[str]:
        """Return a line of stderr that matches, each line once."""
        assert self.process.stderr is not None
        for line in self.passed:
            if found := re.search(pattern, line):
                self.passed.remove(line)
                return found
        while True:
            line = (await self.process.stderr.readline()).decode()
            assert line, f"it ended before {pattern!r}: {self.lines}"
            self.lines.append(line)
            if found := re.search(pattern, line):
                return found
            self.passed.append(line)

    async def stop(self) -> int:
        """Send SIGTERM; return the exit status."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.stderr is not None
        self.lines += (await self.process.stderr.read()).decode().splitlines()
        return await self.process.wait()


@asynccontextmanager
async def process(folder: Path, *arguments: str) -> AsyncGenerator[Process]:
    started = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "keepthread", "serve", "--store", f"{folder}/a.db"),
        *("--port", "0", *arguments),
        cwd=folder,
        env={"HOME": str(folder), "PATH": "", "XDG_CONFIG_HOME": str(folder)},
        stderr=asyncio.subprocess.PIPE,
    )
    running = Process(started, "", [])
    try:
        async with asyncio.timeout(PATIENCE):
            running.url = (await running.line(r"serving on (\S+);")).group(1)
            yield running
    finally:
        if started.returncode is None:
            started.kill()
            await started.wait()


async def test_workers_are_replaced_and_counted_together_and_stop_together(tmp_path: Path) -> None:
    key = {"Authorization": f"Bearer {await new_key(tmp_path)}"}
    async with process(tmp_path, "--workers", "2", "--metrics-port", "0") as running:
        metrics = int((await running.line(r'"metrics".*"port": (\d+)')).group(1))
        workers = [int((await running.line(r"Started server process \[(\d+)\]")).group(1))]
        workers.append(int((await running.line(r"Started server process \[(\d+)\]")).group(1)))
        async with httpx2.AsyncClient(timeout=PATIENCE) as client:
            for _ in range(5):
                answer = await client.get(f"{running.url}/v1/nothing", headers=key)
                assert answer.json()["type"] == "no_such_path"
            text = (await client.get(f"http://127.0.0.1:{metrics}/metrics")).text
            labels = '{method="GET",route="unknown",status="404"}'
            assert f"keepthread_http_requests_total{labels} 5.0" in text
            os.kill(workers[0], signal.SIGKILL)
            await running.line("worker ended")
            await running.line(r"Started server process")
            assert (await client.get(f"{running.url}/readyz")).status_code == 200
        assert await running.stop() == 0
    assert sum("Finished server process" in line for line in running.lines) == 2
    secret = key["Authorization"].split("_", 2)[2]
    assert not any(secret in line for line in running.lines)


@pytest.mark.parametrize(
    ("error", "status"), [(Unavailable("away"), STORE_AWAY), (Damaged("broken"), STARTUP_FAILED)]
)
def test_a_worker_tells_whether_it_may_start_later(
    error: KeepthreadError, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    @asynccontextmanager
    async def open_memory() -> AsyncGenerator[Memory]:
        raise error
        yield

    monkeypatch.setattr("keepthread.apps.http.worker.log_lines", lambda: None)
    with socket.create_server(("127.0.0.1", 0)) as listener, pytest.raises(SystemExit) as ended:
        run_process(Work(open_memory=open_memory, settings=HttpSettings()), listener)
    assert ended.value.code == status


def test_a_worker_that_ends_while_the_others_are_looked_at_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Worker:
        """A process that ends between two looks."""

        pid = 1
        exitcode = STARTUP_FAILED
        looks = 0

        @property
        def sentinel(self) -> int:
            return 0

        def is_alive(self) -> bool:
            self.looks += 1
            return self.looks == 1

        def terminate(self) -> None:
            raise AssertionError("it has ended")

    monkeypatch.setattr("keepthread.apps.http.serve.wait", lambda *_: [])
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    workers = Workers(cast(Any, Worker), 1, patience=0)
    assert workers.run() == STARTUP_FAILED


def test_a_server_goes_on_while_a_worker_cannot_start_because_its_store_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("keepthread.apps.http.serve._PAUSE", 0.0)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    statuses = [STORE_AWAY, STORE_AWAY, STARTUP_FAILED]

    def start() -> BaseProcess:
        process = multiprocessing.get_context("fork").Process(
            target=os._exit, args=(statuses.pop(0),)
        )
        process.start()
        return process

    assert Workers(start, 1, patience=PATIENCE).run() == STARTUP_FAILED
    assert not statuses


def certificate(folder: Path) -> tuple[str, str]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False
        )
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    (folder / "cert.pem").write_bytes(made.public_bytes(pem))
    (folder / "key.pem").write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return str(folder / "cert.pem"), str(folder / "key.pem")


async def test_a_request_that_runs_is_finished_before_the_server_ends(tmp_path: Path) -> None:
    """Over TLS: half of a body is sent before SIGTERM, the rest after it."""
    key = await new_key(tmp_path)
    cert, private = certificate(tmp_path)
    trusted = ssl.create_default_context(cafile=cert)
    async with process(tmp_path, "--tls-cert", cert, "--tls-key", private) as running:
        await running.line("Started server process")
        assert running.url.startswith("https://")
        host, port = running.url.removeprefix("https://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port), ssl=trusted)
        head = (
            "POST /v1/nothing HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Authorization: Bearer {key}\r\nContent-Length: 10\r\n\r\n"
        )
        writer.write(head.encode() + b'{"a"')
        await writer.drain()
        running.process.send_signal(signal.SIGTERM)
        await running.line("Shutting down")
        writer.write(b': "b"}')
        answer = await reader.read()
        writer.close()
        assert answer.startswith(b"HTTP/1.1 404")
        assert await running.process.wait() == 0
    events = [json.loads(line)["event"] for line in running.lines if line.startswith("{")]
    assert events[1:] == ["stopping", "Shutting down"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"host": "0.0.0.0"}, "no API key exists yet"),
        ({"tls_cert": "cert.pem"}, "TLS needs both"),
        ({"tls_cert": "a.pem", "tls_key": "b.pem"}, "there is no file a.pem"),
        ({"store": "ram://", "workers": 2}, "workers cannot share an in-memory store"),
    ],
)
def test_what_would_not_be_safe_or_sound_is_refused(
    given: dict[str, Any], message: str, tmp_path: Path
) -> None:
    call = Call().at(given.pop("store", f"{tmp_path}/a.db"), None)
    with pytest.raises(InvalidInput, match=message):
        serve(call, **given)


async def test_a_server_can_be_seen_by_other_machines_once_there_is_a_key(tmp_path: Path) -> None:
    await new_key(tmp_path)
    work = Work(
        open_memory=lambda: Memory.open(f"sqlite:///{tmp_path}/a.db", counter=Estimator()),
        settings=HttpSettings(),
    )
    assert ["TLS" in note for note in await check(work, Bind(host="0.0.0.0"))] == [True]
    assert await check(work, Bind()) == []


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("[::1]", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("", False),
        ("10.0.0.1", False),
        ("localhost.example.com", False),
    ],
)
def test_an_address_is_loopback_if_no_other_machine_reaches_it(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback


def test_settings_of_a_file_become_settings_of_the_server() -> None:
    given: dict[str, Any] = {
        "server.allowed_hosts": ("Memory.Example.com",),
        "server.allowed_origins": ("https://app.example.com/",),
        "server.issuer": "https://login.example.com",
        "server.audience": "keepthread",
        "server.jwks": "https://login.example.com/keys",
        "server.deadline": 5.0,
    }
    found = http_settings(settings_of(given).server)
    assert found.hosts == {"localhost", "127.0.0.1", "[::1]", "memory.example.com"}
    assert not found.any_host
    assert found.origins == {"https://app.example.com"}
    assert found.issuers[0].audience == "keepthread"
    assert found.deadline == 5.0
    assert http_settings(settings_of({"server.allowed_hosts": ("*",)}).server).any_host
    with pytest.raises(InvalidInput, match=r"server\.audience"):
        http_settings(settings_of({"server.issuer": "https://login.example.com"}).server)
