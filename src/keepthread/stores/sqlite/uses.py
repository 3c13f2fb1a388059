"""The SQLite files that this process has open, and closing them before a fork.

SQLite's locks belong to a process, and SQLite remembers in memory which of them it holds. A forked
child inherits that memory without the locks: it would write and delete the write-ahead log as if it
were protected. So before a fork every connection is closed. The parent opens them again when it has
work; the child starts with no connection and opens its own.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final, TypeAlias

from keepthread.errors import Unavailable
from keepthread.stores.private_files import BINARY

if TYPE_CHECKING:
    from pathlib import Path  # slow to import

FORK_TIMEOUT: Final = 10.0
"""Seconds that a fork waits for running transactions."""
_RESUME_TIMEOUT: Final = 60.0
"""Seconds to wait for the end of a fork that was announced."""

Inode: TypeAlias = tuple[int, int]


class Use:
    """One thread's use of a file; `wake` makes that thread look whether a fork is pending."""

    __slots__ = ("path", "thread", "wake")

    def __init__(self, path: Path, wake: Callable[[], object]) -> None:
        """Name the file; nothing is open yet."""
        self.path = path
        self.wake = wake
        self.thread = 0


class Uses:
    """All uses of files in this process; `USES` is the one instance."""

    def __init__(self) -> None:
        """Start without uses."""
        self.forks = 0
        """How many forks are pending; a thread that sees one closes its connection."""
        # A signal handler may fork while its own thread is in here: the lock is reentrant.
        self._changed = threading.Condition()
        self._open: set[Use] = set()
        self._kept: dict[Inode, int] = {}
        self._unsafe: set[Inode] = set()
        self._pid = os.getpid()

    def begin(self, use: Use) -> None:
        """Note that the calling thread is about to connect; wait until no fork is pending."""
        with self._changed:
            self._changed.wait_for(lambda: not self.forks, _RESUME_TIMEOUT)
            use.thread = threading.get_ident()
            self._open.add(use)

    def end(self, use: Use) -> None:
        """Note that the connection is closed."""
        with self._changed:
            self._open.discard(use)
            self._close_kept()
            self._changed.notify_all()

    @contextmanager
    def during(self, path: Path) -> Generator[None]:
        """Hold off forks while the calling thread has a connection of its own."""
        use = Use(path, lambda: None)
        self.begin(use)
        try:
            yield
        finally:
            self.end(use)

    def check(self, path: Path) -> None:
        """Raise if the file was in use when this process was forked."""
        if os.getpid() != self._pid:  # forked by a program that does not call Python's hooks
            self.after_in_child()
        if self._unsafe and _inode(path) in self._unsafe:
            raise Unavailable(
                f"{path} was in use while this process was forked, so SQLite's locks on it do not"
                " work here; start the process with 'spawn', or fork while the store is idle"
            )

    def descriptor(self, path: Path) -> int:
        """Return a descriptor to read a file by; it is closed after the file's last connection.

        Closing it any earlier would drop the locks that SQLite has on the file in this process.
        """
        with self._changed:
            facts = path.stat()
            inode = (facts.st_dev, facts.st_ino)
            if inode not in self._kept:
                self._kept[inode] = os.open(path, os.O_RDONLY | BINARY)
            return self._kept[inode]

    def _close_kept(self) -> None:
        if self._kept:
            in_use = {_inode(use.path) for use in self._open}
            for inode in [inode for inode in self._kept if inode not in in_use]:
                os.close(self._kept.pop(inode))

    # --- around a fork ---

    def before(self) -> None:
        """Make every other thread finish its transaction and close its connection."""
        me = threading.get_ident()
        with self._changed:
            self.forks += 1
            for use in self._open:
                use.wake()
            # The forking thread's own connections cannot be closed while it uses them.
            self._changed.wait_for(
                lambda: all(use.thread == me for use in self._open), FORK_TIMEOUT
            )

    def after_in_parent(self) -> None:
        """Let connections be opened again."""
        with self._changed:
            self.forks = max(0, self.forks - 1)
            self._changed.notify_all()

    def after_in_child(self) -> None:
        """Forget the parent's connections; a file that is still open in them stays closed here."""
        self._changed = threading.Condition()  # another thread may have held it, and is gone
        self._pid = os.getpid()
        self.forks = 0
        self._unsafe |= {inode for use in self._open if (inode := _inode(use.path))}
        self._open = set()
        for descriptor in self._kept.values():
            with suppress(OSError):
                os.close(descriptor)
        self._kept = {}


def _inode(path: Path) -> Inode | None:
    try:
        facts = path.stat()
    except OSError:
        return None
    return facts.st_dev, facts.st_ino


USES: Final = Uses()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=USES.before,
        after_in_parent=USES.after_in_parent,
        after_in_child=USES.after_in_child,
    )
