"""Ways in which a chat's SQLite store is slow, away or broken, and comes back."""

import sqlite3
import time
from contextlib import suppress
from pathlib import Path

from keepthread.stores.sqlite.file import FileLock

GARBAGE = b"this is not a database; " * 400


class Outage:
    """Nothing is wrong; the others override what they need."""

    def __init__(self, store: Path, seconds: float) -> None:
        self.store = store
        self.seconds = seconds

    def begin(self) -> None:
        """Called before the chat starts."""

    def started(self) -> None:
        """Called when the chat shows its first prompt."""

    def answered(self) -> None:
        """Called after the first answer."""

    def end(self) -> None:
        """Called in any case after the chat, or before its last question."""


class SlowOpen(Outage):
    """Another process opens the store; it is done a moment after the first prompt."""

    def __init__(self, store: Path, seconds: float) -> None:
        super().__init__(store, seconds)
        self._lock: FileLock | None = FileLock(store.with_name(f"{store.name}-lock"))

    def begin(self) -> None:
        assert self._lock is not None
        if not self._lock.take(timeout=10.0):
            self._lock = None

    def started(self) -> None:
        time.sleep(self.seconds)
        self.end()

    def end(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.release()


class AwayAtStart(SlowOpen):
    """The store cannot be opened for as long as the outage lasts."""

    def started(self) -> None:
        pass


class AwayInTheMiddle(Outage):
    """Another process holds the store after the first answer."""

    _other: sqlite3.Connection | None = None

    def answered(self) -> None:
        self._other = sqlite3.connect(self.store, timeout=30.0, isolation_level=None)
        self._other.execute("BEGIN IMMEDIATE")

    def end(self) -> None:
        other, self._other = self._other, None
        if other is not None:
            other.close()


class BrokenFile(Outage):
    """Something else is in the place of the file."""

    _moved: Path | None = None

    def begin(self) -> None:
        self._moved = self.store.parent / "moved"
        self._moved.mkdir()
        for path in list(self.store.parent.glob(f"{self.store.name}*")):
            path.rename(self._moved / path.name)
        self.store.write_bytes(GARBAGE)

    def end(self) -> None:
        moved, self._moved = self._moved, None
        if moved is None:
            return
        for path in list(self.store.parent.glob(f"{self.store.name}*")):
            path.unlink()
        for path in list(moved.iterdir()):
            path.rename(self.store.parent / path.name)
        with suppress(OSError):
            moved.rmdir()


OUTAGES: dict[str, type[Outage]] = {
    "none": Outage,
    "slow open": SlowOpen,
    "away at the start": AwayAtStart,
    "away in the middle": AwayInTheMiddle,
    "broken file": BrokenFile,
}
