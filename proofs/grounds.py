"""Where P9 runs: a store with all the files that it and its outbox have."""

import random
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from keepthread import Memory, Options
from keepthread.stores.url import store_at
from proofs.marked import SIZES, Marker, contents, in_files, settings
from proofs.places import file_url
from servers import postgres, redis


class Ground(NamedTuple):
    """A store, and the folders with all files that it and its outbox have."""

    kind: str
    url: str
    folders: Sequence[Path]
    settle: Callable[[], object]
    """Has a server let go of the parts of its log that it needs no more."""
    older: frozenset[bytes] = frozenset()
    """What was in its files before any marker was made."""

    @property
    def finds(self) -> bool:
        return self.kind != "redis"

    @property
    def outbox(self) -> Path:
        return self.folders[0] / "outbox"

    @asynccontextmanager
    async def opened(
        self, rng: random.Random | None = None, *, embeds: bool = False
    ) -> AsyncIterator[Memory]:
        """Open the memory as `Memory.open` does, with small blobs."""
        chosen = settings(finds=self.finds, embeds=embeds, rng=rng)
        options = Options(**chosen, blob_sizes=SIZES)
        async with Memory(await store_at(self.url)(), options) as memory:
            await memory._services.settle()  # completes what was begun
            yield memory

    async def index(self) -> None:
        """Read everything into the index of words and of vectors."""
        if self.finds:
            async with self.opened(embeds=True) as memory:
                await memory.admin.index()

    def found(self, markers: Sequence[Marker]) -> dict[Marker, list[str]]:
        """Return which markers are in a file."""
        self.settle()
        return in_files(self.folders, markers, self.older)


@contextmanager
def on_sqlite() -> Iterator[Ground]:
    with tempfile.TemporaryDirectory() as folder:
        yield Ground("sqlite", file_url(Path(folder) / "chat.db"), [Path(folder)], lambda: None)


@contextmanager
def on_postgres() -> Iterator[Ground]:
    # Parts of the log that are recycled keep their bytes until they are written over.
    server = postgres.new_server(wal_recycle="off")

    def settle() -> None:
        server.execute("SELECT pg_switch_wal()")
        server.execute("CHECKPOINT")

    try:
        with tempfile.TemporaryDirectory() as folder:
            folders = [Path(folder), server.folder]
            yield Ground("postgres", server.url(), folders, settle, contents(folders))
    finally:
        server.close()


@contextmanager
def on_redis() -> Iterator[Ground]:
    server = redis.new_server(appendonly="yes", appendfsync="always", rdbcompression="no")
    try:
        with tempfile.TemporaryDirectory() as folder:
            yield Ground("redis", server.url, [Path(folder), server.folder], lambda: None)
    finally:
        server.close()


GROUNDS: Final = {"sqlite": on_sqlite, "postgres": on_postgres, "redis": on_redis}
