"""A lock between processes, on a file of its own beside the database.

The database file itself must never be opened by anyone but SQLite: closing a second descriptor
of it would drop SQLite's own locks.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from pathlib import Path  # its import costs a twentieth of ours

if sys.platform == "win32":  # pragma: no cover
    import msvcrt

    def _try_lock(descriptor: int) -> None:
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)

    def _unlock(descriptor: int) -> None:
        msvcrt.locking(descriptor, msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def _try_lock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _unlock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_UN)


_DESCRIPTORS: Final[set[int]] = set()
"""Those of all locks that are held, or tried, in this process."""


def _close_inherited() -> None:
    """Close a forked child's copies: one left open would hold the lock for the child's life."""
    for descriptor in _DESCRIPTORS:
        with suppress(OSError):
            os.close(descriptor)
    _DESCRIPTORS.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_inherited)


# A planted link must not make us create or change a file elsewhere; Windows has no O_NOFOLLOW.
_FLAGS = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)


class FileLock:
    """Held by at most one process, and let go by the system if that process dies."""

    def __init__(self, path: Path) -> None:
        """Name the file; it is made when first needed and stays."""
        self._path = path
        self._descriptor = -1
        self._pid = 0

    def take(self, *, timeout: float = 0.0) -> bool:
        """Take the lock within `timeout` seconds; tell whether that worked."""
        deadline = time.monotonic() + timeout
        descriptor = os.open(self._path, _FLAGS, 0o600)
        _DESCRIPTORS.add(descriptor)
        while True:
            try:
                _try_lock(descriptor)
            except OSError:
                if time.monotonic() >= deadline:
                    _close(descriptor)
                    return False
                time.sleep(0.002)
            else:
                self._descriptor, self._pid = descriptor, os.getpid()
                return True

    def release(self) -> None:
        """Let go; a forked child does not let go of its parent's lock."""
        # First forgotten, then released: another thread may take the lock at once.
        descriptor, self._descriptor = self._descriptor, -1
        if os.getpid() == self._pid:
            # Closing alone would leave the lock to a child that has a copy of the descriptor.
            _unlock(descriptor)
            _close(descriptor)

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


def _close(descriptor: int) -> None:
    _DESCRIPTORS.discard(descriptor)
    os.close(descriptor)
