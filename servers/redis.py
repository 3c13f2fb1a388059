"""Real Redis servers: alone, with a replica, or three masters that make a cluster."""

import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import redis

from servers import Missing, did_not_start, ending, free_port, start_anew

SLOTS = 16_384
_SECONDS_TO_START = 30.0
_QUIET = {
    "bind": "127.0.0.1",
    "save": "",
    "appendonly": "no",
    "loglevel": "warning",
    "repl-diskless-sync-delay": "0",
    "enable-debug-command": "local",
}


def wait_for(what: str, happened: Callable[[], Any]) -> None:
    """Return once something is so, or fail."""
    deadline = time.monotonic() + _SECONDS_TO_START
    while not happened():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{what} did not happen in {_SECONDS_TO_START:.0f} seconds")
        time.sleep(0.01)


class RedisServer:
    """One server in a folder of its own; `config` is added to what makes tests quiet."""

    def __init__(self, program: str, **config: str) -> None:
        self.program = program
        self.port = free_port()
        self.config = _QUIET | {name.replace("_", "-"): value for name, value in config.items()}
        self.folder = Path(tempfile.mkdtemp(prefix="keepthread-redis-"))
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Name the server as a store's URL does."""
        return f"redis://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start the server and return once it answers."""
        config = self.config | {"port": str(self.port), "dir": str(self.folder)}
        options = [part for name, value in config.items() for part in (f"--{name}", value)]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [self.program, *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # an interrupted test stops it in order
            )
        wait_for("the start of Redis", self.answers)

    def answers(self) -> bool:
        """Tell whether it is up and has loaded what it had."""
        assert self.process
        if self.process.poll() is not None:
            log = (self.folder / "log").read_text(errors="replace")
            raise did_not_start("Redis", log)
        with suppress(redis.ConnectionError, redis.TimeoutError):
            return self.ask("PING") in (b"PONG", True)
        return False

    def ask(self, *command: Any) -> Any:
        """Run one command, behind the back of any store."""
        with redis.Redis(port=self.port, socket_timeout=20, protocol=2) as client:
            return client.execute_command(*command)

    def replica(self) -> "RedisServer":
        """Start a server that follows this one, and may be promoted when this one is gone."""
        return start_anew(self._replica)

    def _replica(self) -> "RedisServer":
        config = self.config | {"replicaof": f"127.0.0.1 {self.port}"}
        twin = RedisServer(self.program, **config)
        try:
            twin.start()
            wait_for("the link to the primary", twin.is_linked)
        except BaseException:
            twin.close()
            raise
        return twin

    def is_linked(self) -> bool:
        """Tell whether a replica has all of its primary, and hears from it."""
        return self.ask("INFO", "replication").get("master_link_status") == "up"

    def promote(self) -> None:
        """Make a replica a primary."""
        self.config.pop("replicaof", None)
        self.ask("REPLICAOF", "NO", "ONE")

    def cut(self) -> None:
        """Cut a replica's link to its primary; what it has stays."""
        self.ask("REPLICAOF", "127.0.0.1", "1")

    def freeze(self) -> None:
        """Fall silent: lines stay open and new ones are accepted, and nothing is answered."""
        assert self.process
        self.process.send_signal(signal.SIGSTOP)

    def stop(self, *, how: signal.Signals = signal.SIGTERM) -> None:
        """Stop the server; SIGKILL is a crash."""
        if self.process:
            self.process.send_signal(how)
            with suppress(ProcessLookupError):
                self.process.send_signal(signal.SIGCONT)  # it may have been halted
            self.process.wait(timeout=_SECONDS_TO_START)
            self.process = None

    def lose(self) -> None:
        """Lose the machine."""
        self.stop(how=signal.SIGKILL)

    def restart(self, *, how: signal.Signals = signal.SIGTERM) -> None:
        """Stop the server and start it again on the same port, with the same files."""
        self.stop(how=how)
        self.start()

    def ending(self) -> str | None:
        """Return how the server ended and the end of its log, or None while it runs."""
        return ending(self.process, self.folder / "log")

    def start_again(self) -> None:
        """Start a server that ended, on its port."""
        start_anew(lambda: self.restart(how=signal.SIGKILL))

    def close(self) -> None:
        """Stop the server and remove all it had."""
        self.stop(how=signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)


class RedisCluster:
    """Several masters that share the slots."""

    def __init__(self, program: str, masters: int = 3, **config: str) -> None:
        self.servers = [
            RedisServer(
                program,
                cluster_enabled="yes",
                cluster_node_timeout="2000",
                cluster_port=str(free_port()),
                **config,
            )
            for _ in range(masters)
        ]

    @property
    def url(self) -> str:
        """Name the cluster as a store's URL does."""
        return f"redis+cluster://127.0.0.1:{self.servers[0].port}"

    def start(self) -> None:
        """Start all, give each its slots, and return once they agree."""
        share = SLOTS // len(self.servers) + 1
        for server in self.servers:
            server.start()
        for number, server in enumerate(self.servers):
            first, last = number * share, min(SLOTS, (number + 1) * share) - 1
            server.ask("CLUSTER", "ADDSLOTSRANGE", first, last)
            server.ask("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        first = self.servers[0]
        for server in self.servers[1:]:
            place = ("127.0.0.1", server.port, server.config["cluster-port"])
            first.ask("CLUSTER", "MEET", *place)
        wait_for("the cluster's agreement", self.agrees)

    def agrees(self) -> bool:
        """Tell whether every server knows all others and all slots."""
        wanted = (b"cluster_state:ok", b"cluster_known_nodes:%d" % len(self.servers))
        infos = [_bytes(server.ask("CLUSTER", "INFO")) for server in self.servers]
        return all(part in info for info in infos for part in wanted)

    def flush(self) -> None:
        """Empty every server."""
        for server in self.servers:
            server.ask("FLUSHALL")

    def ending(self) -> str | None:
        """Return how servers of the cluster ended and the end of their logs, or None."""
        endings = [text for server in self.servers if (text := server.ending())]
        return "\n".join(endings) or None

    def start_again(self) -> None:
        """Start the servers that ended; each finds its slots in its folder."""
        for server in self.servers:
            if server.ending():
                server.start_again()
        wait_for("the cluster's agreement", self.agrees)

    def close(self) -> None:
        """Stop all."""
        for server in self.servers:
            server.close()


def _bytes(answer: Any) -> bytes:
    if isinstance(answer, dict):  # redis-py takes some answers apart
        return "\n".join(f"{name}:{value}" for name, value in answer.items()).encode()
    return answer


def find_program() -> str:
    """Return where `redis-server` is."""
    program = shutil.which("redis-server")
    if program is None:
        raise Missing("redis-server is missing: scripts/setup --servers installs it, 7.0 or newer")
    return program


def new_server(**config: str) -> RedisServer:
    """Start a server."""
    return start_anew(lambda: _new_server(config))


def _new_server(config: dict[str, str]) -> RedisServer:
    server = RedisServer(find_program(), **config)
    try:
        server.start()
    except BaseException:
        server.close()
        raise
    return server


def new_cluster(masters: int = 3, **config: str) -> RedisCluster:
    """Start a cluster."""
    return start_anew(lambda: _new_cluster(masters, config))


def _new_cluster(masters: int, config: dict[str, str]) -> RedisCluster:
    cluster = RedisCluster(find_program(), masters, **config)
    try:
        cluster.start()
    except BaseException:
        cluster.close()
        raise
    return cluster
