"""A lock between processes, on a file of its own beside the database.

The database file itself must never be opened by anyone but SQLite: closing a second descriptor
of it would drop SQLite's own locks.
"""

from __future__ import annotations

import os
import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from pathlib import Path  # its import costs a twentieth of ours

if sys.platform == "win32":  # pragma: no cover
    import msvcrt

    def _try_lock(descriptor: int) -> None:
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)

else:
    import fcntl

    def _try_lock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


class FileLock:
    """Held by at most one process, and let go by the system if that process dies."""

    def __init__(self, path: Path) -> None:
        """Name the file; it is made when first needed and stays."""
        self._path = path
        self._descriptor = -1

    def take(self, *, timeout: float = 0.0) -> bool:
        """Take the lock within `timeout` seconds; tell whether that worked."""
        deadline = time.monotonic() + timeout
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        while True:
            try:
                _try_lock(descriptor)
            except OSError:
                if time.monotonic() >= deadline:
                    os.close(descriptor)
                    return False
                time.sleep(0.002)
            else:
                self._descriptor = descriptor
                return True

    def release(self) -> None:
        """Let go; closing the descriptor does."""
        os.close(self._descriptor)
        self._descriptor = -1

    def __enter__(self) -> Self:
        """Hold the lock that `take` took."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Let go."""
        self.release()
