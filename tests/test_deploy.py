"""The files in deploy/: containers, compose files, a unit of systemd, settings of a proxy."""

import asyncio
import configparser
import os
import re
import shutil
import signal
import ssl
import subprocess
import sys
import tomllib
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml
from typer.main import get_command

from keepthread.apps.cli.app import app
from keepthread.apps.cli.settings.load import read_config
from keepthread.apps.http import serve, worker
from keepthread.apps.http.routes.events import HEARTBEAT
from keepthread.apps.http.settings import HttpSettings
from proofs.p36_one_client import haproxy
from servers import free_port
from servers.stack import filled
from tests.containerfile import Built, instructions, python_is_reachable, stages

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
CONTAINERFILES = sorted(DEPLOY.glob("*Containerfile"))
COMPOSE = sorted(DEPLOY.glob("compose.*.yaml"))
UNIT = DEPLOY / "keepthread.service"
INSIDE = ("/src", "/tools", "/opt/keepthread", "/empty", "/var/lib/keepthread")
VALUES = {"KEEPTHREAD_DATABASE_PASSWORD": "one", "POSTGRES_PASSWORD": "two"}
SETTINGS = HttpSettings()
CLOSING = serve._CLOSING  # pyright: ignore[reportPrivateUsage]
SECONDS = 240.0


def named(extra: str, extras: dict[str, list[str]]) -> Iterator[str]:
    """Yield the packages of an extra, without versions."""
    for each in extras[extra]:
        if inner := re.fullmatch(r"keepthread\[(.+)\]", each):
            for one in inner[1].split(","):
                yield from named(one, extras)
        else:
            yield re.split(r"[<>=]", each)[0]


def called(*command: str | Path) -> tuple[int, str]:
    """Run a command; return its exit status and all that it said."""
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    return done.returncode, done.stdout


# --- containers ---


@pytest.mark.skipif(sys.platform != "linux", reason="hadolint comes as a wheel for Linux")
@pytest.mark.parametrize("path", CONTAINERFILES, ids=lambda path: path.name)
def test_hadolint_finds_nothing_in_a_containerfile(path: Path) -> None:
    program = Path(sys.executable).parent / "hadolint"
    assert called(program, "--no-color", path) == (0, "")


@pytest.mark.parametrize("path", CONTAINERFILES, ids=lambda path: path.name)
def test_an_image_runs_as_a_user_without_rights(path: Path) -> None:
    last = dict(stages(path)[-1])
    assert last["USER"] == "10001:10001"
    assert not last["EXPOSE"].startswith("0")


def test_the_image_of_the_server_is_built_from_pinned_packages_and_has_no_installer() -> None:
    build, last = stages(DEPLOY / "Containerfile")
    assert build[0][1].partition(" ")[0] == last[0][1]
    installs = [rest for word, rest in build if word == "RUN" and " install " in rest]
    for line in "&&".join(installs).split("&&"):
        if " install " in line:
            assert "--require-hashes" in line or "--no-index --no-deps" in line, line
    assert [rest for word, rest in last if word == "RUN"] == ["python -m pip uninstall --yes pip"]
    assert "/livez" in dict(last)["HEALTHCHECK"]
    assert all("--from=build" in rest for word, rest in last if word == "COPY"), (
        "the last stage takes nothing but what the first one made"
    )


def test_the_image_has_the_packages_of_the_extras_it_names() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = {
        name
        for extra in ("server", "postgres", "redis")
        for name in named(extra, extras["optional-dependencies"])
    }
    lines = (ROOT / "requirements" / "server.in").read_text().splitlines()
    assert {line for line in lines if line[0] not in "#-"} == wanted


@pytest.mark.parametrize("path", CONTAINERFILES, ids=lambda path: path.name)
def test_what_a_containerfile_copies_exists_and_is_not_ignored(path: Path) -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    kept = tuple(line.removeprefix("!") for line in ignored if line.startswith("!"))
    for word, rest in instructions(path):
        if word == "COPY" and "--from" not in rest:
            for source in [each for each in rest.split()[:-1] if not each.startswith("--")]:
                assert source.startswith(kept)
                assert (ROOT / source).exists()


@pytest.mark.parametrize("path", COMPOSE, ids=lambda path: path.name)
def test_a_compose_file_builds_images_in_the_projects_folder(path: Path) -> None:
    for service in services(path).values():
        if build := service.get("build"):
            assert (path.parent / build["context"]).resolve() == ROOT
            assert (ROOT / build["dockerfile"]) in CONTAINERFILES
        else:
            assert re.fullmatch(r"docker\.io/library/\w+:[\d.]+", service["image"])


@pytest.mark.nightly
@pytest.mark.timeout(1800)  # it installs thirty packages
def test_the_commands_of_the_containerfile_make_a_server() -> None:
    """They run in an empty folder. The result writes to its volume only, as another user."""
    with TemporaryDirectory(prefix="keepthread-image-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        built = Built(folder)
        built.build(DEPLOY / "Containerfile", INSIDE)
        assert not list(folder.glob("base/lib/python3*/site-packages/pip"))
        assert not (folder / "opt/keepthread/bin/pip").exists()
        check_server(built)


def check_server(built: Built) -> None:
    """Make a key, serve, ask for the health, stop; nothing outside of the volume changes."""
    volume = built.folder / "var/lib/keepthread"
    port = free_port()
    arguments: dict[str, Any] = {
        "env": {**built.environment, "KEEPTHREAD_SERVER_PORT": str(port)},
        "cwd": volume,
    }
    if os.geteuid() == 0 and python_is_reachable():
        arguments |= {"user": 10001, "group": 10001, "extra_groups": []}
        shutil.chown(volume, 10001, 10001)
    before = contents(built.folder, volume)
    create = [*built.command[:1], "keys", "create", "test"]
    assert subprocess.check_output(create, **arguments).startswith(b"kt_")
    process = subprocess.Popen(built.command, **arguments, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr
        while "Started server process" not in process.stderr.readline():
            assert process.poll() is None
        health = [word.replace(":8765", f":{port}") for word in built.health]
        subprocess.run(health, **arguments, check=True, timeout=SECONDS)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=SECONDS)
    finally:
        process.kill()
    assert process.returncode == 0
    assert contents(built.folder, volume) == before
    assert (volume / "memory.db").exists()


def contents(folder: Path, without: Path) -> set[str]:
    """Return the files in a folder, except those below another."""
    return {str(path) for path in folder.rglob("*") if not path.is_relative_to(without)}


# --- compose files ---


def services(path: Path) -> dict[str, Any]:
    return yaml.safe_load(path.read_text())["services"]


def ours(path: Path) -> list[tuple[str, Any]]:
    return [each for each in services(path).items() if each[1].get("image") == "keepthread"]


@pytest.mark.parametrize("path", COMPOSE, ids=lambda path: path.name)
def test_a_service_has_few_rights_and_no_password_in_the_file(path: Path) -> None:
    for name, service in services(path).items():
        if name != "postgres":  # its entry point changes users and writes its folder
            assert service["read_only"] is True
            assert service["cap_drop"] == ["ALL"]
            assert service["security_opt"] == ["no-new-privileges:true"]
            assert service["tmpfs"] == ["/tmp"]
        for variable, value in service.get("environment", {}).items():
            if "PASSWORD" in variable:
                assert re.fullmatch(r"\$\{\w+:\?[\w ]+\}", value)
        for volume in service.get("volumes", ()):
            source = volume.partition(":")[0]
            if source.startswith("."):
                assert volume.endswith(":ro")
                assert source == "./tls.pem" or (path.parent / source).exists()
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:") or name == "proxy"


@pytest.mark.parametrize("path", COMPOSE, ids=lambda path: path.name)
def test_a_service_of_keepthread_has_settings_that_exist_and_time_to_stop(path: Path) -> None:
    program: Any = get_command(app)
    image = {"KEEPTHREAD_SERVER_HOST": "0.0.0.0"}
    for _, service in ours(path):
        given = {
            name: filled(value, VALUES) for name, value in service.get("environment", {}).items()
        }
        found = read_config(image | given, path.parent).settings
        command, *options = service.get("command", ["serve"])
        known = {each for option in program.commands[command].params for each in option.opts}
        assert {word for word in options if word.startswith("--")} <= known
        if command == "serve":
            assert found.server.host == "0.0.0.0"
            assert found.server.allowed_hosts == ("localhost",)
            patience = found.server.stop_delay + found.server.drain + CLOSING
            assert seconds(service["stop_grace_period"]) > patience


def test_two_workers_differ_by_their_names_only_and_use_the_pooler() -> None:
    found = services(DEPLOY / "compose.postgres.yaml")
    assert found["worker1"] == found["worker2"]
    assert "@pgbouncer:6432/" in found["worker1"]["environment"]["KEEPTHREAD_STORE"]
    assert "pool_mode = session\n" in (DEPLOY / "pgbouncer.ini").read_text()


def seconds(text: str) -> float:
    """Return a time of a settings file."""
    return float(text.removesuffix("s"))


# --- the proxy ---


def test_the_times_of_the_proxy_fit_those_of_the_server() -> None:
    text = (DEPLOY / "haproxy.cfg").read_text()
    lines = re.findall(r"^    timeout ([\w-]+) (\w+)$", text, re.MULTILINE)
    timeout = {name: seconds(value) for name, value in lines}
    keep_alive = worker._KEEP_ALIVE  # pyright: ignore[reportPrivateUsage]
    assert timeout["http-keep-alive"] < keep_alive
    for name in ("client", "server"):
        assert timeout[name] > max(SETTINGS.deadline, 2 * HEARTBEAT)


@asynccontextmanager
async def worker_behind_haproxy() -> AsyncGenerator[tuple[int, list[bytes]]]:
    """Yield the port of HAProxy, and the requests that the worker behind it gets."""
    seen: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            seen.append(head.partition(b" HTTP")[0])
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as worker:
        with haproxy(worker.sockets[0].getsockname()[1]) as port:
            if port is None:
                pytest.skip("haproxy is not installed")
            async with asyncio.timeout(SECONDS):
                while not (await through(port)).endswith(b"ok"):  # noqa: ASYNC110 - a process
                    await asyncio.sleep(0.05)
            yield port, seen


def trusting() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


async def through(port: int, source: str = "127.0.0.1") -> bytes:
    """Send a request through HAProxy; return the answer, empty if it was refused."""
    try:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=trusting(), local_addr=(source, 0)
        )
        writer.write(b"GET /v1/who HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        answer = await reader.read()
        writer.close()
    except OSError:
        return b""
    return answer


async def test_a_body_that_does_not_end_reaches_no_worker() -> None:
    async with worker_behind_haproxy() as (port, seen):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting())
        writer.write(b"POST /v1/begun HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n{")
        await writer.drain()
        assert (await through(port)).endswith(b"ok")
        assert b"POST /v1/begun" not in seen
        writer.write(b'"a": 12}')
        async with asyncio.timeout(SECONDS):
            assert b"200 OK" in await reader.readline()
        assert b"POST /v1/begun" in seen
        writer.close()


@pytest.mark.skipif(sys.platform != "linux", reason="needs 127.0.0.2")
async def test_an_address_has_a_share_of_the_connections() -> None:
    async with worker_behind_haproxy() as (port, _):
        opened = [
            await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.2", 0))
            for _ in range(200)
        ]
        assert await through(port, "127.0.0.2") == b""
        assert (await through(port)).endswith(b"ok")
        for _, writer in opened:
            writer.close()


def test_the_log_of_the_proxy_has_no_paths() -> None:
    (line,) = re.findall(r"log-format '(.+)'", (DEPLOY / "haproxy.cfg").read_text())
    assert set(re.findall(r"%(\w+)", line)) == {"s", "ST", "Ta", "ts"}


# --- systemd ---


def unit() -> configparser.SectionProxy:
    parser = configparser.RawConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # pyright: ignore[reportAttributeAccessIssue]
    parser.read(UNIT)
    return parser["Service"]


def test_the_unit_starts_a_command_that_exists_and_waits_for_its_end() -> None:
    service = unit()
    program: Any = get_command(app)
    assert service["ExecStart"].split() == ["/opt/keepthread/bin/keepthread", "serve"]
    assert "serve" in program.commands
    assert int(service["TimeoutStopSec"]) > SETTINGS.drain + CLOSING
    assert service["User"] == "keepthread"
    assert service["ProtectSystem"] == "strict"
    assert "KEEPTHREAD_STORE=sqlite:////var/lib/keepthread/memory.db" in UNIT.read_text()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_reads_the_unit_and_finds_it_hardened(tmp_path: Path) -> None:
    here = tmp_path / UNIT.name
    program = Path(sys.executable).parent / "keepthread"
    here.write_text(UNIT.read_text().replace("/opt/keepthread/bin/keepthread", str(program)))
    status, output = called("systemd-analyze", "verify", here)
    assert status == 0, output
    assert f"{UNIT.name}:" not in output
    status, output = called("systemd-analyze", "security", "--offline=true", "--threshold=15", here)
    assert status == 0, output
