"""Where the store of a proof lives: in a file, or on a real server that dies and comes back."""

import asyncio
import os
import random
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

from keepthread.errors import Unavailable
from keepthread.protocols import Store
from keepthread.stores.url import store_at
from proofs import Outcome, Progress
from servers import postgres, redis
from servers.redis import wait_for

_ON_DISK: Final = {"appendonly": "yes", "appendfsync": "always"}


class Place(Protocol):
    """A store that any process opens by its URL."""

    @property
    def url(self) -> str:
        """Name it as `Memory.open` does."""
        ...

    def empty(self) -> None:
        """Take everything out."""
        ...

    def go_down(self, how: signal.Signals) -> None:
        """Stop the server with all its processes; SIGKILL leaves none of them a moment."""
        ...

    def come_back(self) -> None:
        """Start the server on the files it has."""
        ...

    def close(self) -> None:
        """Stop it and remove all it had."""
        ...


class OnPostgres:
    """A PostgreSQL server that survives the death of its processes.

    With fsync off what is acknowledged is with the kernel, not on the disk: that is enough, since
    no kernel dies here.
    """

    def __init__(self) -> None:
        self.server = postgres.new_server()

    @property
    def url(self) -> str:
        return self.server.url()

    def empty(self) -> None:
        self.server.empty()

    def go_down(self, how: signal.Signals) -> None:
        assert self.server.process
        if how != signal.SIGKILL:
            self.server.stop(how=how)
            return
        self.server.process.send_signal(signal.SIGSTOP)  # it must not start another child now
        children = _children(self.server.process.pid)
        for child in children:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        self.server.stop(how=signal.SIGKILL)
        wait_for("the end of PostgreSQL", lambda: not any(map(_runs, children)))

    def come_back(self) -> None:
        self.server.start()

    def close(self) -> None:
        self.server.close()


class OnRedis:
    """A Redis server that writes its log before it answers."""

    def __init__(self) -> None:
        self.server = redis.new_server(**_ON_DISK)

    @property
    def url(self) -> str:
        return self.server.url

    def empty(self) -> None:
        self.server.ask("FLUSHALL")

    def go_down(self, how: signal.Signals) -> None:
        self.server.stop(how=how)

    def come_back(self) -> None:
        self.server.start()

    def close(self) -> None:
        self.server.close()


class OnCluster:
    """A Redis Cluster of which another server dies each time."""

    def __init__(self) -> None:
        self.cluster = redis.new_cluster(3, **_ON_DISK)
        self._rng = random.Random(0)
        self._gone = self.cluster.servers[0]

    @property
    def url(self) -> str:
        return self.cluster.url

    def empty(self) -> None:
        self.cluster.flush()

    def go_down(self, how: signal.Signals) -> None:
        self._gone = self._rng.choice(self.cluster.servers)
        self._gone.stop(how=how)

    def come_back(self) -> None:
        self._gone.start()
        wait_for("the cluster's agreement", self.cluster.agrees)

    def close(self) -> None:
        self.cluster.close()


PLACES: Final[dict[str, Callable[[], Place]]] = {
    "postgres": OnPostgres,
    "redis": OnRedis,
    "cluster": OnCluster,
}


@contextmanager
def new_place(kind: str) -> Iterator[Place]:
    """Start a server, or a cluster, for as long as the block lasts."""
    place = PLACES[kind]()
    try:
        yield place
    finally:
        place.close()


def file_url(path: Path) -> str:
    """Name a store in a file."""
    return f"sqlite:///{path}"


Proving: TypeAlias = Callable[
    [str, Place | None, int, random.Random, Progress], Coroutine[Any, Any, Outcome]
]
"""A proof over the store at a URL; with a place, its server can be stopped."""


def prove_in_a_file(prove: Proving, size: int, seed: int, progress: Progress) -> Outcome:
    """Run a proof on a new SQLite file."""
    with tempfile.TemporaryDirectory() as folder:
        url = file_url(Path(folder) / "memory.db")
        return _held_or_not(prove(url, None, size, random.Random(seed), progress))


def prove_on_a_server(
    prove: Proving, kind: str, size: int, seed: int, progress: Progress
) -> Outcome:
    """Run a proof on a new server."""
    with new_place(kind) as place:
        return _held_or_not(prove(place.url, place, size, random.Random(seed), progress))


def _held_or_not(proving: Coroutine[Any, Any, Outcome]) -> Outcome:
    """Run a proof; one that could not go on did not hold."""
    try:
        return asyncio.run(proving)
    except (RuntimeError, TimeoutError, ExceptionGroup) as error:
        found = error.exceptions if isinstance(error, ExceptionGroup) else [error]
        return Outcome(figures={}, broken=tuple(map(repr, found)))


@asynccontextmanager
async def opened(url: str, *, patience: float = 0.0, **options: Any) -> AsyncIterator[Store]:
    """Open a store for as long as the block lasts; wait so long for a server that is away."""
    deadline = time.monotonic() + patience
    while True:
        try:
            store = await store_at(url)(**options)
        except Unavailable:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.05)
        else:
            break
    try:
        yield store
    finally:
        await store.close()


def _children(parent: int) -> list[int]:
    return [int(id) for id in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]


def _runs(process: int) -> bool:
    """Tell whether a process is still there, and not merely its name."""
    with suppress(OSError):
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
        return state not in "ZX"
    return False
