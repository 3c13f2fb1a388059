"""Check everything in a SQLite store: each row, each position, the file itself.

Rows are read from the table, not through its indexes, so that a value is seen as it is stored; the
file's own check then holds the indexes against the table.
"""

import sqlite3
from collections.abc import Iterator
from typing import Any, NamedTuple

from keepthread.protocols import Progress
from keepthread.stores.codec import decode
from keepthread.stores.sqlite import records, sessions
from keepthread.stores.sqlite.file import SQLITE_ERRORS
from keepthread.stores.sqlite.schema import SQL
from keepthread.stores.tables import is_sound_entry, is_sound_key
from keepthread.types import Damage, Verification

_STRIDE = 10_000
_MOST_PLACED = 20
_MOST_TRIED = 100_000
_MAX_MISSING = 1000
_NOT_WRITTEN = "the row is corrupted"


class _Log:
    """A session and its positions."""

    __slots__ = ("id", "last", "mine", "sound")

    def __init__(self, id: str, *, mine: bool) -> None:
        self.id = id
        self.mine = mine
        self.sound = 0
        self.last = 0


class _Stray(NamedTuple):
    """A message that is damaged or misplaced."""

    rowid: int
    sid: int
    row: tuple[Any, ...]

    def belongs_to(self, sid: int, seq: int) -> bool:
        """Return whether it is sound except for its position."""
        return decode(sid, (seq, *self.row[1:])).state != "damaged"


class SQLiteInspection:
    """One check of a store, for one tenant."""

    def __init__(self, db: sqlite3.Connection, tenant: str, progress: Progress | None) -> None:
        """Start without results."""
        self.db = db
        self.tenant = tenant
        self.progress = progress
        self.damages: list[Damage] = []
        self.logs: dict[int, _Log] = {}
        self.strays: list[_Stray] = []
        self.messages = 0
        self.records = 0

    def run(self) -> Verification:
        """Check everything at one moment, and report each damaged row once."""
        # In one transaction: a session that another process adds between two of the checks would
        # look like damage.
        self.db.execute("BEGIN")
        try:
            self._check_all()
        finally:
            if self.db.in_transaction:
                self.db.execute("ROLLBACK")
        return Verification(
            sessions=sum(log.mine for log in self.logs.values()),
            messages=self.messages,
            records=self.records,
            damages=tuple(self.damages),
        )

    def _check_all(self) -> None:
        checks = (self._sessions, self._messages, self._records, self._tables)
        for check in (*checks, self._words, self._file):
            try:
                check()
            except SQLITE_ERRORS as error:  # a page that cannot be read at all
                self.damages.append(Damage(what=f"the file cannot be read: {error}"))

    def _sessions(self) -> None:
        for row in self.db.execute(SQL["every_session"]):
            sid, tenant, id = row[:3]
            mine = tenant == self.tenant
            self.logs[sid] = _Log(str(id), mine=mine)
            if not sessions.intact(row):  # of another tenant, only its number is reported
                what = f"the record of session number {sid} is corrupted"
                self.damages.append(Damage(what=what, session=str(id) if mine else ""))

    def _messages(self) -> None:
        (count,) = self.db.execute(SQL["count_messages"]).fetchone()
        seen = 0
        for seen, (rowid, sid, *row) in enumerate(self.db.execute(SQL["every_message"]), 1):
            self._message(rowid, sid, tuple(row))
            if self.progress and (seen % _STRIDE == 0 or seen == count):
                self.progress(seen, count)
        for sid, seq in self._missing():
            self._explain(sid, seq)
        self._place_strays()
        for stray in self.strays:
            log = self.logs.get(stray.sid)
            if log is None or log.mine:
                session, seq = log.id if log else "", stray.row[0]
                seq = seq if isinstance(seq, int) else 0
                self.damages.append(Damage(what=_NOT_WRITTEN, session=session, seq=seq))

    def _message(self, rowid: int, sid: int, row: tuple[Any, ...]) -> None:
        log = self.logs.get(sid)
        self.messages += bool(log and log.mine)
        if log is None or decode(sid, row).state == "damaged":
            self.strays.append(_Stray(rowid, sid, row))
        else:
            log.sound += 1
            log.last = max(log.last, row[0])

    def _missing(self) -> Iterator[tuple[int, int]]:
        """Yield the positions of this tenant's sessions without a sound message."""
        gaps = {sid for sid, log in self.logs.items() if log.mine and log.sound < log.last}
        if not gaps:
            return
        strays = {stray.rowid for stray in self.strays}
        found: dict[int, set[int]] = {sid: set() for sid in gaps}
        for rowid, sid, seq in self.db.execute(SQL["positions"]):
            if sid in gaps and rowid not in strays:
                found[sid].add(seq)
        for sid in sorted(gaps):
            yield from ((sid, seq) for seq in _absent(found[sid]))

    def _explain(self, sid: int, seq: int) -> None:
        """Report a missing position, with the misplaced message that belongs there, if any."""
        here = [s for s in self.strays if (s.sid, s.row[0]) == (sid, seq)]
        candidates = here or [s for s in self.strays if s.belongs_to(sid, seq)]
        what = _NOT_WRITTEN if candidates else "the message is missing"
        for stray in candidates[:1]:
            self.strays.remove(stray)
        self.damages.append(Damage(what=what, session=self.logs[sid].id, seq=seq))

    def _place_strays(self) -> None:
        """Report a misplaced message by its former position, unless a gap already reports it."""
        for stray in self.strays[:_MOST_PLACED]:
            place = self._former_place(stray)
            if place is not None:
                self.strays.remove(stray)
                session = self.logs[place[0]].id
                self.damages.append(Damage(what=_NOT_WRITTEN, session=session, seq=place[1]))

    def _former_place(self, stray: _Stray) -> tuple[int, int] | None:
        own = self.logs.get(stray.sid)
        mine = [sid for sid, log in self.logs.items() if log.mine]
        places = [(sid, self.logs[sid].last + 1) for sid in mine]
        if isinstance(stray.row[0], int):  # if only its session is damaged, this was its position
            places += [(sid, stray.row[0]) for sid in mine]
        if own is not None and own.mine:
            places += [(stray.sid, seq) for seq in range(own.last, 0, -1)[:_MOST_TRIED]]
        return next((place for place in places if stray.belongs_to(*place)), None)

    def _records(self) -> None:
        for row in self.db.execute(SQL["every_record"]):
            version, tenant, sid, owner, kind, key = row[:6]
            mine = tenant == self.tenant
            self.records += mine
            if not records.intact(row):  # of another tenant, only its number is reported
                log = self.logs.get(sid)
                name = f"{kind}/{key} of {owner or 'the tenant'}" if mine else f"number {version}"
                session = log.id if log and mine else ""
                what = f"the record {name} is corrupted"
                self.damages.append(Damage(what=what, session=session))

    def _tables(self) -> None:
        """Check the tables of a server; keys of other tenants are not named."""
        for id, tenant, data in self.db.execute(SQL["every_key"]):
            if not is_sound_key(id, data):
                which = f"the API key {id!r}" if tenant == self.tenant else "an API key"
                self.damages.append(Damage(what=f"{which} is corrupted"))
        for number, _, data in self.db.execute(SQL["every_entry"]):
            if not is_sound_entry(data):
                what = f"entry {number} of the audit log is corrupted"
                self.damages.append(Damage(what=what))

    def _words(self) -> None:
        """Read the whole word index; it can be rebuilt, so nothing more is checked."""
        try:
            self.db.execute(SQL["vocabulary"])
            self.db.execute(SQL["count_words"]).fetchone()
        except sqlite3.DatabaseError as error:
            what = f"the word index cannot be read: {error}; the next search rebuilds it"
            self.damages.append(Damage(what=what))

    def _file(self) -> None:
        for (line,) in self.db.execute("PRAGMA integrity_check"):
            # Some versions write before they check FTS5, but this connection is read-only.
            if line != "ok" and not line.startswith("unable to validate the inverted index"):
                self.damages.append(Damage(what=f"the file: {line}"))


def _absent(positions: set[int]) -> Iterator[int]:
    """Yield the positions missing below the last, up to a limit for each gap."""
    before = 0
    for seq in sorted(positions):
        yield from range(before + 1, min(seq, before + 1 + _MAX_MISSING))
        before = seq
