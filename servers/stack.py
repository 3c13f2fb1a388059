"""The services of deploy/compose.postgres.yaml as plain processes, without containers.

Commands, variables and files are those of the compose file. Its names of machines become ports of
this one, and each container's path of a file becomes the path of that file in deploy/.
"""

import datetime as dt
import ipaddress
import os
import pwd
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psycopg
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from servers import Missing, PortTaken, did_not_start, free_port, start_anew
from servers.postgres import PostgresServer, find_programs

DEPLOY: Final = Path(__file__).parents[1] / "deploy"
COMPOSE: Final = DEPLOY / "compose.postgres.yaml"
NAME: Final = "memory.example.com"
"""The name by which clients call the server."""
WORKERS: Final = ("worker1", "worker2")
_SECONDS: Final = 120.0
_HERE: Final = "127.0.0.1"
_VARIABLE: Final = re.compile(r"\$\{(\w+)(?::([-?])([^}]*))?\}")
_PASSWORDS_ARE_CHECKED: Final = f"host all keepthread_api {_HERE}/32 scram-sha-256\n"

Say = Callable[[str], object]


@dataclass
class Stack:
    """The running services."""

    folder: Path
    values: Mapping[str, str]
    """The variables that a person sets for the compose file."""
    services: Mapping[str, Any] = field(default_factory=dict)
    addresses: dict[str, str] = field(default_factory=dict)
    """Where each `name:port` of the compose file is on this machine."""
    processes: dict[str, "subprocess.Popen[Any]"] = field(default_factory=dict)
    starter: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))
    """A thread that starts processes: Ctrl-C interrupts the main thread alone."""
    key: str = ""
    """An API key of the owner `ana`."""

    def __post_init__(self) -> None:
        """Start the thread now: a process must not depend on a thread that Ctrl-C interrupts."""
        self.starter.submit(bool).result()

    @property
    def url(self) -> str:
        """Return the address of the proxy."""
        return f"https://{self.addresses['proxy:8443']}"

    @property
    def certificate(self) -> Path:
        """Return the file with the proxy's certificate."""
        return self.folder / "tls.pem"

    def log(self, service: str) -> str:
        """Return what a service wrote."""
        return (self.folder / f"{service}.log").read_text(errors="replace")

    def keepthread(self, service: str, *arguments: str) -> str:
        """Run a command in a service, as `docker compose run` does; return what it printed."""
        command = [sys.executable, "-m", "keepthread", *arguments]
        return self._call(f"keepthread {arguments[0]}", command, self._environment(service))

    def stop(self, service: str) -> int:
        """Stop a service and return its exit status."""
        process = self.processes.pop(service)
        process.terminate()
        try:
            return process.wait(timeout=_SECONDS)
        finally:
            process.kill()

    def close(self) -> None:
        """Stop all services at once: a second signal means that nobody waits for a response."""
        self.starter.shutdown()
        for process in self.processes.values():
            process.send_signal(signal.SIGINT)
        for service in reversed(list(self.processes)):
            with suppress(subprocess.TimeoutExpired):
                self.stop(service)

    # --- the services ---

    def create_roles(self, server: PostgresServer) -> None:
        """Run deploy/roles.sql as the database's superuser."""
        self.addresses["postgres:5432"] = f"{_HERE}:{server.port}"
        roles, _ = self._file("postgres", "/docker-entrypoint-initdb.d/roles.sql")
        psql = [str(server.programs / "psql"), "--quiet", "--no-psqlrc", f"--file={roles}"]
        self._call("psql", [*psql, server.url()], self._environment("postgres"))

    def start_pgbouncer(self) -> None:
        """Start the pooler with deploy/pgbouncer.ini and deploy/pgbouncer.sh."""
        program = _found("pgbouncer")
        template, _ = self._file("pgbouncer", "/etc/pgbouncer/pgbouncer.ini")
        host, _, port = self.addresses["postgres:5432"].partition(":")

        def start() -> None:
            address = self._place("pgbouncer:6432")
            text = template.read_text()
            for ours, here in {
                "host=postgres port=5432": f"host={host} port={port}",
                "listen_addr = *": f"listen_addr = {_HERE}",
                "listen_port = 6432": f"listen_port = {address.partition(':')[2]}",
                "auth_file = /tmp/users": f"auth_file = {self.folder}/users",
            }.items():
                assert text.count(ours) == 1, ours
                text = text.replace(ours, here)
            (self.folder / "pgbouncer.ini").write_text(text)
            environment = self._environment("pgbouncer", KEEPTHREAD_USERS=f"{self.folder}/users")
            environment["PATH"] += f":{Path(program).parent}"
            command = [str(DEPLOY / "pgbouncer.sh"), str(self.folder / "pgbouncer.ini")]
            self._run("pgbouncer", command, environment, as_root=False)
            worker = self._environment("worker1")
            url = worker["KEEPTHREAD_STORE"]
            self._wait("pgbouncer", lambda: _answers(url, worker["PGPASSWORD"]))

        start_anew(start)

    def start_worker(self, name: str) -> None:
        """Start `keepthread serve` as a worker does; it may not be ready yet."""
        address = self._place(f"{name}:8765")
        given = {"0.0.0.0": _HERE, "8765": address.partition(":")[2]}
        command = [given.get(word, word) for word in self.services[name]["command"]]
        command = [sys.executable, "-m", "keepthread", *command]
        self._run(name, command, self._environment(name))

    def wait_for_worker(self, name: str) -> None:
        """Return once a worker is ready; start it on another port if its port was taken."""
        for _ in range(3):
            try:
                self._wait(name, lambda: _is_ready(self.addresses[f"{name}:8765"]))
            except PortTaken:
                self.start_worker(name)
            else:
                return

    def start_proxy(self) -> None:
        """Start HAProxy with deploy/haproxy.cfg."""
        program = _found("haproxy")
        certify(self.certificate)
        settings, inside = self._file("proxy", "/usr/local/etc/haproxy/haproxy.cfg")
        command = [str(settings) if word == inside else word for word in self._command("proxy")]

        def start() -> None:
            environment = self._environment(
                "proxy",
                KEEPTHREAD_BIND=self._place("proxy:8443"),
                KEEPTHREAD_CERTIFICATE=str(self.certificate),
                KEEPTHREAD_WORKER_1=self.addresses["worker1:8765"],
                KEEPTHREAD_WORKER_2=self.addresses["worker2:8765"],
            )
            self._run("proxy", [program, *command[1:]], environment, as_root=False)
            self._wait("proxy", lambda: _listens(self.addresses["proxy:8443"]))

        start_anew(start)

    # --- parts of the compose file ---

    def _command(self, service: str) -> list[str]:
        return list(self.services[service]["command"])

    def _file(self, service: str, inside: str) -> tuple[Path, str]:
        """Return where a file of a container is on this machine, and where it is in there."""
        for volume in self.services[service]["volumes"]:
            ours, _, rest = volume.partition(":")
            if rest.partition(":")[0] == inside:
                return DEPLOY / ours, inside
        raise LookupError(f"{COMPOSE.name} gives {service} no {inside}")

    def _environment(self, service: str, **more: str) -> dict[str, str]:
        """Return the variables of a service, with addresses of this machine."""
        found = {"PATH": os.environ["PATH"], "HOME": str(self.folder), "TMPDIR": str(self.folder)}
        for name, text in self.services[service].get("environment", {}).items():
            value = filled(text, self.values)
            for there, here in self.addresses.items():
                value = value.replace(there, here)
            found[name] = value
        return found | more

    def _place(self, name: str) -> str:
        """Choose where a service listens."""
        self.addresses[name] = f"{_HERE}:{free_port()}"
        return self.addresses[name]

    def _call(self, name: str, command: list[str], environment: dict[str, str]) -> str:
        """Run a command to its end; return what it printed."""
        with tempfile.TemporaryFile("w+") as printed, tempfile.TemporaryFile("w+") as complaint:
            process = self._start(name, command, env=environment, stdout=printed, stderr=complaint)
            status = process.wait(timeout=_SECONDS)
            del self.processes[name]
            printed.seek(0)
            complaint.seek(0)
            if status:
                raise RuntimeError(f"{name} failed:\n{complaint.read()}")
            return printed.read().strip()

    def _run(
        self, name: str, command: list[str], environment: dict[str, str], *, as_root: bool = True
    ) -> None:
        user: dict[str, Any] = {}
        if not as_root and os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            user = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
        with (self.folder / f"{name}.log").open("wb") as log:
            self._start(name, command, env=environment, stdout=log, stderr=log, **user)

    def _start(self, name: str, command: list[str], **settings: Any) -> "subprocess.Popen[Any]":
        """Start a process in a thread: Ctrl-C must not come before it is among the processes."""

        def start() -> None:
            self.processes[name] = subprocess.Popen(
                command,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C reaches whoever started it, who stops it in order
                **settings,
            )

        self.starter.submit(start).result()
        return self.processes[name]

    def _wait(self, name: str, is_up: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _SECONDS
        process = self.processes[name]
        while not is_up():
            if process.poll() is not None or time.monotonic() > deadline:
                self.stop(name)
                raise did_not_start(name, self.log(name))
            time.sleep(0.05)


def filled(text: str, values: Mapping[str, str]) -> str:
    """Return a text of a compose file with its variables filled in."""

    def value(found: re.Match[str]) -> str:
        name, kind, rest = found.groups()
        if name in values:
            return values[name]
        if kind == "-":
            return rest
        raise LookupError(f"{name} is not set: {rest}")

    return _VARIABLE.sub(value, text)


@contextmanager
def running(say: Say) -> Iterator[Stack]:
    """Start all services in order, and stop them when the block ends."""
    for program in ("haproxy", "pgbouncer"):
        _found(program)
    with ExitStack() as opened:
        name = opened.enter_context(tempfile.TemporaryDirectory(prefix="keepthread-stack-"))
        folder = Path(name)
        if os.geteuid() == 0:  # PgBouncer and HAProxy run as another user, and write here
            shutil.chown(folder, "nobody")
        values = {
            "KEEPTHREAD_NAME": NAME,
            "KEEPTHREAD_DATABASE_PASSWORD": secrets.token_urlsafe(24),
            "POSTGRES_PASSWORD": secrets.token_urlsafe(24),
        }
        stack = Stack(folder, values, yaml.safe_load(COMPOSE.read_text())["services"])
        server = start_anew(_postgres)
        opened.callback(server.close)
        opened.callback(stack.close)
        stack.create_roles(server)
        say("PostgreSQL runs, with the roles of deploy/roles.sql.")
        stack.keepthread("migrate", *stack.services["migrate"]["command"])
        say("`keepthread migrate` has created the tables, as their owner.")
        stack.start_pgbouncer()
        say("PgBouncer pools sessions before it, with deploy/pgbouncer.ini.")
        stack.key = stack.keepthread(WORKERS[0], "keys", "create", "chat", "--owner", "ana")
        say("`keepthread keys create` has made a key for ana.")
        for worker in WORKERS:
            stack.start_worker(worker)
        for worker in WORKERS:
            stack.wait_for_worker(worker)
        say("Two workers run `keepthread serve` over PgBouncer.")
        stack.start_proxy()
        say(f"HAProxy offers them at {stack.url}, with deploy/haproxy.cfg.")
        yield stack


def _postgres() -> PostgresServer:
    """Start PostgreSQL; the login of the servers needs its password."""
    server = PostgresServer(find_programs())
    try:
        server.initialise()
        rules = server.data / "pg_hba.conf"
        rules.write_text(_PASSWORDS_ARE_CHECKED + rules.read_text())
        server.start()
        server.create_database("keepthread")
    except BaseException:
        server.close()
        raise
    return server


def _found(program: str) -> str:
    found = shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin")
    if found is None:
        raise Missing(f"{program} is missing: scripts/setup --servers installs it")
    return found


def _answers(url: str, password: str) -> bool:
    try:
        psycopg.connect(url, password=password, connect_timeout=5).close()
    except psycopg.OperationalError:
        return False
    return True


def _is_ready(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://{address}/readyz", timeout=5) as answer:
            return answer.status == 200
    except (OSError, urllib.error.URLError):
        return False


def _listens(address: str) -> bool:
    host, _, port = address.partition(":")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except OSError:
        return False
    return True


def certify(path: Path) -> None:
    """Write a certificate for this run and its key, as HAProxy reads them: in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, NAME)])
    now = dt.datetime.now(dt.UTC)
    names = [x509.DNSName(NAME), x509.IPAddress(ipaddress.ip_address(_HERE))]
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    plain = serialization.NoEncryption()
    path.touch(0o600)
    path.write_bytes(
        made.public_bytes(pem) + key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain)
    )
    if os.geteuid() == 0:
        shutil.chown(path, "nobody")
