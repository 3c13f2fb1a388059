"""The sittings of a SQLite file, kept in memory session by session: every search needs all."""

import sqlite3
from typing import Final

from keepthread.stores.sqlite.marks import Scope
from keepthread.stores.sqlite.statements import SQL
from keepthread.types import Sitting

_MOST: Final = 100_000


class KnownSittings:
    """What was read of sittings lately; used by the thread that reads alone.

    A session's sittings change when it is read on, which its mark tells, and when something is
    forgotten, which the view tells.
    """

    def __init__(self) -> None:
        """Begin with nothing known."""
        self._state: tuple[int, int] | None = None
        self._known: dict[int, tuple[int, list[Sitting]]] = {}
        self._size = 0

    def of(self, db: sqlite3.Connection, scope: Scope, view: str) -> list[Sitting]:
        """Return the sittings of a scope, by session and position; read what is new of them."""
        state = db.execute(SQL["view"], (view,)).fetchone()
        if state != self._state or self._size > _MOST:
            self._state, self._known, self._size = state, {}, 0
        found: list[Sitting] = []
        for sid, upto in sorted(_read_sessions(db, scope, state[0])):
            known = self._known.get(sid)
            if known is None or known[0] != upto:
                known = (upto, _sittings(db, sid))
                self._known[sid] = known
                self._size += len(known[1])
            found += known[1]
        return found


def _sittings(db: sqlite3.Connection, sid: int) -> list[Sitting]:
    return list(map(Sitting._make, db.execute(SQL["sittings"], (sid,))))


def _read_sessions(db: sqlite3.Connection, scope: Scope, view: int) -> sqlite3.Cursor:
    tenant, owner, sid = scope
    if sid is not None:
        return db.execute(SQL["read_of_session"], (view, sid, tenant, owner))
    if owner is None:
        return db.execute(SQL["read_of_tenant"], (view, tenant))
    return db.execute(SQL["read_of_owner"], (view, tenant, owner))
