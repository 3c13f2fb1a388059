"""The spool's file: a SQLite file of a format of its own, which one process owns."""

import os
import sqlite3
from contextlib import suppress
from pathlib import Path
from typing import Final

from keepthread.errors import Busy
from keepthread.spool.statements import FORMAT, script
from keepthread.stores.sqlite.faults import translate_os
from keepthread.stores.sqlite.file import Connect, DatabaseFile, connect
from keepthread.stores.sqlite.lock import FileLock
from keepthread.stores.sqlite.schema import Format
from keepthread.types import Durability

SPOOL: Final = Format("spool", 0x6B747370, FORMAT, script)  # "ktsp"
SYNCHRONOUS: Final[dict[Durability, str]] = {"process": "NORMAL", "power": "FULL"}
_TIMEOUT: Final = 1.0


class SpoolFile(DatabaseFile):
    """A file that is written by its owner alone, and may be read by others meanwhile."""

    def __init__(
        self, path: Path, *, durability: Durability = "power", connect: Connect = connect
    ) -> None:
        """Name the file; nothing is touched yet."""
        synchronous = SYNCHRONOUS[durability]
        super().__init__(
            path, synchronous=synchronous, timeout=_TIMEOUT, connect=connect, kind=SPOOL
        )
        self._owning = self.path.with_name(f"{self.path.name}-owner")
        self._owner = FileLock(self._owning)

    def take(self) -> None:
        """Own the file until `release`."""
        try:
            taken = self._owner.take(timeout=_TIMEOUT)
        except OSError as error:
            raise translate_os(error, self.path) from error
        if not taken:
            raise Busy(f"{self.path} belongs to {self.owner() or 'a process'}, which runs")

    def note_owner(self) -> None:
        """Write down who owns the file, for people; not waiting for the disk."""
        with suppress(OSError):
            self._owning.write_text(f"process {os.getpid()}")

    def owner(self) -> str:
        """Name the process that owns the file; nobody if none does."""
        if not self._owning.exists():
            return ""
        with suppress(OSError):
            if self._owner.take():
                self._owner.release()
                return ""
            return self._owning.read_text() or "a process"
        return ""

    def release(self) -> None:
        """Let others own the file."""
        self._owner.release()

    def checkpoint(self, db: sqlite3.Connection) -> None:
        """Move the log into the file and leave nothing in it: what was delivered is gone.

        The owner alone resets it. If another process is looking, the next one tries again.
        """
        with suppress(sqlite3.Error):
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
