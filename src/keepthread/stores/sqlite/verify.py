"""Looking at everything in a SQLite store: each row, each position, the file itself.

Rows are read from the table, not through its indexes, so that a value is seen as it is stored; the
file's own check then holds the indexes against the table.
"""

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from keepthread.codec import decode
from keepthread.protocols import Progress
from keepthread.stores.sqlite import sessions, shelf
from keepthread.stores.sqlite.statements import SQL
from keepthread.types import Damage, Verification

_STRIDE = 10_000
_NOT_WRITTEN = "the row is not what was written"


@dataclass(slots=True)
class _Log:
    """One session and what is known of its positions."""

    id: str
    mine: bool
    sound: int = 0
    last: int = 0


@dataclass(slots=True)
class _Stray:
    """A message that is damaged, or not where it belongs."""

    rowid: int
    sid: int
    row: tuple[Any, ...]

    def belongs_to(self, sid: int, seq: int) -> bool:
        """Tell whether it is sound but for its place."""
        return decode(sid, (seq, *self.row[1:])).state != "damaged"


@dataclass(slots=True)
class Inspection:
    """One walk through a store, on behalf of one tenant."""

    db: sqlite3.Connection
    tenant: str
    progress: Progress | None = None
    damages: list[Damage] = field(default_factory=list[Damage])
    logs: dict[int, _Log] = field(default_factory=dict[int, _Log])
    strays: list[_Stray] = field(default_factory=list[_Stray])
    messages: int = 0
    records: int = 0

    def run(self) -> Verification:
        """Check everything, and name each damaged row once."""
        for check in (self._sessions, self._messages, self._records, self._file):
            try:
                check()
            except sqlite3.Error as error:  # a page that cannot be read at all
                self.damages.append(Damage(what=f"the file cannot be read: {error}"))
        return Verification(
            sessions=sum(log.mine for log in self.logs.values()),
            messages=self.messages,
            records=self.records,
            damages=tuple(self.damages),
        )

    def _sessions(self) -> None:
        for row in self.db.execute(SQL["every_session"]):
            sid, tenant, id = row[:3]
            sound = sessions.intact(row)
            self.logs[sid] = _Log(str(id), mine=tenant == self.tenant or not sound)
            if not sound:
                what = "the session's record is not what was written"
                self.damages.append(Damage(what=what, session=str(id)))

    def _messages(self) -> None:
        (count,) = self.db.execute(SQL["count_messages"]).fetchone()
        seen = 0
        for seen, (rowid, sid, *row) in enumerate(self.db.execute(SQL["every_message"]), 1):
            self._message(rowid, sid, tuple(row))
            if self.progress and (seen % _STRIDE == 0 or seen == count):
                self.progress(seen, count)
        for sid, seq in self._missing():
            self._explain(sid, seq)
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
        """Yield the places of my sessions where no sound message is."""
        gaps = {sid for sid, log in self.logs.items() if log.mine and log.sound < log.last}
        if not gaps:
            return
        strays = {stray.rowid for stray in self.strays}
        found: dict[int, set[int]] = {sid: set() for sid in gaps}
        for rowid, sid, seq in self.db.execute(SQL["positions"]):
            if sid in gaps and rowid not in strays:
                found[sid].add(seq)
        for sid in sorted(gaps):
            for seq in range(1, self.logs[sid].last):
                if seq not in found[sid]:
                    yield sid, seq

    def _explain(self, sid: int, seq: int) -> None:
        """Name a missing position by the stray that belongs there, if there is one."""
        here = [s for s in self.strays if (s.sid, s.row[0]) == (sid, seq)]
        candidates = here or [s for s in self.strays if s.belongs_to(sid, seq)]
        what = _NOT_WRITTEN if candidates else "the message is missing"
        for stray in candidates[:1]:
            self.strays.remove(stray)
        self.damages.append(Damage(what=what, session=self.logs[sid].id, seq=seq))

    def _records(self) -> None:
        for row in self.db.execute(SQL["every_record"]):
            tenant, sid, owner, kind, key = row[1:6]
            sound = shelf.intact(row)
            self.records += tenant == self.tenant
            if not sound:
                log = self.logs.get(sid)
                what = f"the record {kind}/{key} of {owner or 'the shelf'} is not what was written"
                self.damages.append(Damage(what=what, session=log.id if log else ""))

    def _file(self) -> None:
        for (line,) in self.db.execute("PRAGMA integrity_check"):
            if line != "ok":
                self.damages.append(Damage(what=f"the file: {line}"))
