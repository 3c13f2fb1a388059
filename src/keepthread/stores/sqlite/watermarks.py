"""The last indexed position of each index and session in SQLite: each function is one job."""

import sqlite3
from typing import Final, NamedTuple

from keepthread.errors import SessionGone
from keepthread.recall.positions import MOST_SEQ, SESSION
from keepthread.stores.records import check_readable, check_reading
from keepthread.stores.sqlite.log import check_session, known_head_of
from keepthread.stores.sqlite.schema import SQL
from keepthread.types import Segment, SessionKey, Unread

_NO_VIEW: Final = 0
_MOST_SESSION: Final = (1 << 63 - SESSION) - 1
"""The last session whose places fit into SQLite's integers; later ones are not indexed."""


class IndexScope(NamedTuple):
    """A scope: a whole tenant, an owner, or one session."""

    tenant: str
    owner: str | None
    sid: int | None


class IndexView(NamedTuple):
    """An index, as its table has it."""

    number: int
    name: str
    of_words: bool


def unread(db: sqlite3.Connection, scope: IndexScope, view: str) -> list[Unread]:
    """Return the sessions that are not fully indexed, latest activity first."""
    tenant, owner, sid = scope
    number = number_of(db, view)
    if sid is not None:
        check_session(db, tenant, sid)
        rows = db.execute(SQL["unread_of_session"], (number, sid, tenant, owner)).fetchall()
    else:
        whose = (tenant,) if owner is None else (tenant, owner)
        end = "of_tenant" if owner is None else "of_owner"
        if number == _NO_VIEW:
            rows = db.execute(SQL[f"never_read_{end}"], whose).fetchall()
        else:
            found = db.execute(SQL[f"unread_{end}"], (number, *whose)).fetchall()
            found.sort(key=lambda row: (row[3], row[0]), reverse=True)
            rows = [row[:3] for row in found]
    known = [_unread(db, *row) for row in rows if row[0] <= _MOST_SESSION]
    return [each for each in known if each.last > each.until]


def _unread(db: sqlite3.Connection, sid: int, until: int, epoch: int) -> Unread:
    last = min(known_head_of(db, sid).seq, MOST_SEQ)
    segment = last_segment(db, sid, MOST_SEQ) if until else None
    return Unread(SessionKey(str(sid)), until, last, epoch, segment)


def last_segment(db: sqlite3.Connection, sid: int, seq: int) -> Segment | None:
    """Return the last segment that began at or before a position."""
    row = db.execute(SQL["last_segment"], (sid, seq)).fetchone()
    return row and Segment._make(row)


def number_of(db: sqlite3.Connection, view: str) -> int:
    """Return the number of an index, 0 if nothing is indexed yet."""
    row = db.execute(SQL["view"], (view,)).fetchone()
    return row[0] if row else _NO_VIEW


def views_of_words(db: sqlite3.Connection) -> list[IndexView]:
    """Return the word index, if there is one."""
    return [view for view in map(IndexView._make, db.execute(SQL["every_view"])) if view.of_words]


def new_view(db: sqlite3.Connection, view: str, *, of_words: bool) -> int:
    """Create an index, and return its number; it has read nothing yet."""
    number = db.execute(SQL["insert_view"], (view, of_words)).lastrowid
    assert number is not None
    db.execute(SQL["every_session_is_unread"], (number,))
    return number


def read_on(
    db: sqlite3.Connection, tenant: str, view: int, sid: int, read: Unread, until: int
) -> str:
    """Record a session's indexed position, unless it changed; return the session's owner."""
    row = db.execute(SQL["session_to_read"], (sid, tenant)).fetchone()
    if row is None:
        raise SessionGone("the session was deleted")
    owner, epoch, readable = row
    check_readable(readable=readable)
    mark = db.execute(SQL["watermark"], (sid, view)).fetchone()
    last = min(known_head_of(db, sid).seq, MOST_SEQ)
    check_reading(read, until, epoch=epoch, mark=mark[0] if mark else 0, last=last)
    db.execute(SQL["put_watermark"], (sid, view, until))
    if until == last:
        db.execute(SQL["note_read"], (view, tenant, owner, sid))
    return owner


def is_read(db: sqlite3.Connection, sid: int) -> bool:
    """Return whether any index contains a session."""
    return db.execute(SQL["has_watermarks"], (sid,)).fetchone() is not None


def forget_session(db: sqlite3.Connection, sid: int) -> None:
    """Delete a session's indexed positions: every index has all of it to read, or it is gone."""
    db.execute(SQL["delete_watermarks"], (sid,))
    db.execute(SQL["delete_unread"], (sid,))
