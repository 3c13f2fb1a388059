"""The outbox's file: add, read and remove batches, each in one transaction."""

import asyncio
import os
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final, Self, TypeAlias

from keepthread.errors import Busy, InvalidInput
from keepthread.stores.codec import decode, guard_of
from keepthread.stores.outbox import statements as sql
from keepthread.stores.outbox.statements import FORMAT, TABLES
from keepthread.stores.outbox.types import (
    MAX_SESSIONS,
    Batch,
    Dropped,
    SetAside,
    Settled,
    Survey,
    Waiting,
)
from keepthread.stores.rows import PreparedMessage
from keepthread.stores.sqlite.engine import CHECKPOINT_PAGES, Engine
from keepthread.stores.sqlite.file import (
    Connect,
    DatabaseFile,
    FileLock,
    connect,
    translate,
    translate_os,
)
from keepthread.stores.sqlite.maintenance import clean
from keepthread.stores.sqlite.schema import Format
from keepthread.stores.sqlite.uses import USES
from keepthread.stores.validation import show
from keepthread.types import Cleaning, Durability, Message, SessionInfo, SessionKey

_DELIVER: Final = "Deliver its waiting messages with keepthread at commit {}"
OUTBOX: Final = Format("outbox", 0x6B747370, FORMAT, TABLES, _DELIVER, ("342397a",))  # "ktsp"
SYNCHRONOUS: Final[dict[Durability, str]] = {"process": "NORMAL", "power": "FULL"}
_TIMEOUT: Final = 1.0


class OutboxDatabase(DatabaseFile):
    """A file that only its owner writes; others may read it in the meantime."""

    def __init__(
        self, path: Path, *, durability: Durability = "power", connect: Connect = connect
    ) -> None:
        """Set the path; nothing is opened yet."""
        synchronous = SYNCHRONOUS[durability]
        super().__init__(
            path, synchronous=synchronous, timeout=_TIMEOUT, connect=connect, kind=OUTBOX
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
            raise Busy(f"{self.path} is in use by {self.owner() or 'another process'}")

    def note_owner(self) -> None:
        """Record the owner of the file, for display; without waiting for the disk."""
        with suppress(OSError):
            self._owning.write_text(f"process {os.getpid()}")

    def owner(self) -> str:
        """Return the process that owns the file; empty if none does."""
        if not self._owning.exists():
            return ""
        with suppress(OSError):
            if self._owner.take():
                self._owner.release()
                return ""
            return self._owning.read_text() or "a process"
        return ""

    def release(self) -> None:
        """Release the file."""
        self._owner.release()

    def checkpoint(self, db: sqlite3.Connection) -> None:
        """Move the log into the file and empty it, so that delivered messages are gone.

        The owner alone resets it. If another process is looking, the next one tries again.
        """
        with suppress(sqlite3.Error):
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


Selects: TypeAlias = Callable[[SessionKey, Message], bool]
"""Returns whether a message of a session is selected."""

_ENOUGH: Final = CHECKPOINT_PAGES * 4096  # bytes after which the engine moves its log


class OutboxFile:
    """One outbox file, owned by this process until it is closed."""

    def __init__(self, file: OutboxDatabase) -> None:
        """Use a file that this process owns; normally called by `open`."""
        self._file = file
        self._engine = Engine(file)

    @classmethod
    async def open(
        cls,
        path: str | Path,
        *,
        tenant: str | None = None,
        target: str | None = None,
        durability: Durability = "power",
        connect: Connect = connect,
    ) -> Self:
        """Take ownership of a file, created if it is missing; it must be of this tenant and target.

        Without a tenant and target, the file must exist.
        """
        file = OutboxDatabase(Path(path), durability=durability, connect=connect)
        if target is None and not file.path.is_file():
            raise InvalidInput(f"there is no outbox at {file.path}")
        await asyncio.to_thread(file.take)
        outbox = cls(file)
        try:
            if target is not None:
                wanted = {"target": target, "tenant": tenant or "default"}
                await outbox._engine.write(lambda db: _claim(db, file.path, wanted))
            file.note_owner()
        except BaseException:
            await outbox.close()
            raise
        return outbox

    async def close(self) -> None:
        """Close the file."""
        await self._engine.close()
        self._file.release()

    # --- batches ---

    async def add(self, batch: Batch, drafts: Sequence[PreparedMessage]) -> None:
        """Add a batch after all others; its messages are the drafts."""
        size = sum(draft.size for draft in drafts)
        await self._engine.write(lambda db: _add(db, batch, drafts), size)

    async def waiting(self) -> dict[SessionKey, int]:
        """Return the number of queued batches of each session."""
        return await self._engine.read(lambda db: dict(db.execute(sql.WAITING).fetchall()))

    async def oldest(self, session: SessionKey, limit: int) -> list[Batch]:
        """Return the oldest queued batches of a session."""
        return await self._engine.read(lambda db: _oldest(db, session, limit))

    async def settle(self, batches: Sequence[Settled]) -> None:
        """Remove delivered and dropped batches, and set aside rejected ones."""
        await self._engine.write(lambda db: _settle(db, batches))

    async def clear(self) -> None:
        """Delete the lists of dropped and set-aside messages."""
        await self._engine.write(lambda db: [_execute(db, each) for each in sql.CLEAR])
        await self.tidy()

    async def sessions_aside(self) -> set[SessionKey]:
        """Return the sessions that have messages that were set aside."""
        rows = await self._engine.read(lambda db: db.execute(sql.ASIDE).fetchall())
        return {SessionKey(key) for _, key in rows}

    async def erase(self, meant: Selects) -> int:
        """Remove the selected messages that were set aside; return their number."""
        return await self._engine.write(lambda db: _erase(db, meant))

    async def clean(self, probes: Sequence[bytes]) -> Cleaning:
        """Rewrite the file, so that nothing of removed messages is left, and search it."""
        file = self._file
        return await self._engine.maintain(lambda db: clean(db, file, rewrite=True, probes=probes))

    async def tidy(self) -> None:
        """Clear removed messages from the file and its log."""
        await self._engine.write(_nothing, _ENOUGH)
        await self._engine.write(_nothing)  # runs after that is done

    # --- sessions ---

    async def sessions(self) -> list[SessionInfo]:
        """Return the known sessions, latest last."""
        return await self._engine.read(_sessions)

    async def remember(self, session: SessionInfo) -> None:
        """Store a session."""
        await self._engine.write(lambda db: _remember(db, session))

    async def forget(self, owner: str, id: str) -> None:
        """Remove a deleted session."""
        await self._engine.write(lambda db: _execute(db, sql.FORGET_SESSION, (owner, id)))

    async def survey(self) -> Survey:
        """Return the state of the file."""
        return await self._engine.read(lambda db: _survey(db, self._file.owner()))


def look(path: str | Path) -> Survey:
    """Return the state of an outbox file, without owning it; nothing is written."""
    file = OutboxDatabase(Path(path))
    if not file.path.is_file():
        raise InvalidInput(f"there is no outbox at {file.path}")
    with USES.during(file.path), closing(file.open_for_reading().db) as db:
        try:
            db.execute("BEGIN")
            return _survey(db, file.owner())
        except sqlite3.Error as error:
            raise translate(error, file.path) from error


# --- jobs on a connection ---


def _nothing(_: sqlite3.Connection) -> None:
    """Do nothing; raises if the file is closed."""


def _execute(db: sqlite3.Connection, statement: str, values: Sequence[Any] = ()) -> None:
    db.execute(statement, values)


def _claim(db: sqlite3.Connection, path: Path, wanted: dict[str, str]) -> None:
    known = dict(db.execute(sql.ABOUT).fetchall())
    if not known:
        db.executemany(sql.NAME, wanted.items())
    for what, value in known.items():
        if wanted[what] != value:
            raise InvalidInput(
                f"{path} is the outbox of {what} {show(value)}, not of {show(wanted[what])};"
                " each needs its own file"
            )


def _add(db: sqlite3.Connection, batch: Batch, drafts: Sequence[PreparedMessage]) -> None:
    values = (batch.key, batch.session, batch.turn, batch.opened_by)
    ((number,),) = db.execute(sql.ADD_BATCH, values).fetchall()
    db.executemany(sql.ADD_MESSAGE, [_row(number, *each) for each in enumerate(drafts)])


def _row(number: int, place: int, draft: PreparedMessage) -> tuple[Any, ...]:
    _, _, packed, body, tokens, counter, at = draft
    guard = guard_of(number, place, tokens, counter, 0, 0, 0, at, body.digest)
    bare = (packed, body.role, body.content, body.extra)
    return (number, place, *bare, tokens, counter, at, body.digest, guard)


def _oldest(db: sqlite3.Connection, session: SessionKey, limit: int) -> list[Batch]:
    found = db.execute(sql.OLDEST, (session, limit)).fetchall()
    return [Batch._make((*row, _messages(db, row[0]))) for row in found]


def _messages(db: sqlite3.Connection, number: int) -> list[Message]:
    return [decode(number, row) for row in db.execute(sql.MESSAGES, (number,)).fetchall()]


def _settle(db: sqlite3.Connection, batches: Sequence[Settled]) -> None:
    for batch, dropped, reason in batches:
        if reason is None:
            db.execute(sql.REMOVE_MESSAGES, (batch.number,))
            db.execute(sql.REMOVE_BATCH, (batch.number,))
            db.executemany(sql.DROPPED, dropped)
        else:
            db.execute(sql.SET_ASIDE, (reason, batch.number))


def _erase(db: sqlite3.Connection, meant: Selects) -> int:
    erased = 0
    for number, key in db.execute(sql.ASIDE).fetchall():
        messages = _messages(db, number)
        gone = [message for message in messages if meant(SessionKey(key), message)]
        db.executemany(sql.REMOVE_MESSAGE, [(number, message.seq) for message in gone])
        if len(gone) == len(messages):
            db.execute(sql.REMOVE_BATCH, (number,))
        erased += len(gone)
    return erased


def _sessions(db: sqlite3.Connection) -> list[SessionInfo]:
    return [
        SessionInfo(id=id, key=SessionKey(key), owner=owner, kind=kind)
        for id, key, owner, kind in db.execute(sql.SESSIONS).fetchall()
    ]


def _remember(db: sqlite3.Connection, session: SessionInfo) -> None:
    db.execute(sql.FORGET_SESSION, (session.owner, session.id))
    db.execute(sql.REMEMBER_SESSION, (session.id, session.key, session.owner, session.kind))
    db.execute(sql.FORGET_OLD_SESSIONS, (MAX_SESSIONS,))


def _survey(db: sqlite3.Connection, owner: str) -> Survey:
    about = dict(db.execute(sql.ABOUT).fetchall())
    aside = db.execute(sql.SURVEY_ASIDE).fetchall()
    return Survey(
        target=about.get("target", ""),
        tenant=about.get("tenant", ""),
        owner=owner,
        waiting=[Waiting(*row) for row in db.execute(sql.SURVEY_WAITING).fetchall()],
        dropped=[Dropped(*row) for row in db.execute(sql.SURVEY_DROPPED).fetchall()],
        set_aside=[
            SetAside(session, reason, _messages(db, number)) for number, session, reason in aside
        ],
    )
