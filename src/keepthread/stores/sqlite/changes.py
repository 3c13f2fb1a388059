"""The feed of changes in SQLite: each function is part of a job on a connection.

A write notes its change in its own transaction. Writers come one after the other, so numbers are
in the order of the commits, and a reader never passes over one.
"""

import json
import sqlite3
import time
from collections.abc import Sequence
from typing import Final, cast

from keepthread.errors import Damaged
from keepthread.stores.backend import Feed, FeedPage
from keepthread.stores.changes import (
    READINGS,
    RecordChanges,
    change_of,
    change_of_record,
    check_trimmed,
    count_expired,
    expired_cursor,
    join_ids,
    split_ids,
)
from keepthread.stores.codec import value_check
from keepthread.stores.cursors import check_position
from keepthread.stores.sqlite.schema import SQL
from keepthread.types import Change, Scope, SessionKey

_INSERT = SQL["insert_change"]
_TRIMMED_AT_ONCE: Final = 256


def note(
    db: sqlite3.Connection,
    tenant: str,
    kind: int,
    owner: str,
    sid: int = 0,
    session: str = "",
    ids: Sequence[str] = (),
) -> None:
    """Add a change; sometimes delete a few that are too old."""
    last = db.execute(SQL["last_change"], (tenant,)).fetchone()
    number = 1 + (last[0] if last else _trimmed(db, tenant))
    change = (owner, sid, kind, session, join_ids(ids))
    db.execute(_INSERT, (tenant, number, time.time(), *change))
    if number % READINGS == 0:
        trim(db, tenant)


def note_session(
    db: sqlite3.Connection, tenant: str, kind: int, sid: int, ids: Sequence[str] = ()
) -> None:
    """Add a change of an existing session."""
    owner, session = db.execute(SQL["owner_and_id"], (sid,)).fetchone()
    note(db, tenant, kind, owner, sid, session, ids)


def note_record(
    db: sqlite3.Connection, tenant: str, sid: int, owner: str, kind: str, key: str
) -> None:
    """Add the change that writing or deleting a record is, if it is one."""
    scope = Scope(session=SessionKey(str(sid) if sid else ""), owner=owner)
    change = change_of_record(scope, kind)
    if change is None:
        return
    if sid:
        note_session(db, tenant, change, sid)
    else:
        note(db, tenant, change, owner, ids=(key,))
        recent = json.dumps(record_changes(db, tenant, owner, kind).add(key).recent)
        row = (tenant, owner, kind, recent)
        db.execute(SQL["put_record_changes"], (*row, value_check(*row)))


def record_changes(db: sqlite3.Connection, tenant: str, owner: str, kind: str) -> RecordChanges:
    """Return the last changes of an owner's records; none if they are damaged."""
    row = db.execute(SQL["record_changes"], (tenant, owner, kind)).fetchone()
    if row is None or row[4] != value_check(*row[:4]):
        return RecordChanges()
    return RecordChanges([(number, key) for number, key in json.loads(row[3])])


def trim(db: sqlite3.Connection, tenant: str) -> None:
    """Delete some of the changes that are too old, and note how far."""
    now = db.execute(SQL["earliest_recent_time"], (tenant, READINGS)).fetchone()[0]
    # Those with a later time are left out here, as there may be any number of them.
    oldest = db.execute(SQL["oldest_times"], (tenant, now, _TRIMMED_AT_ONCE)).fetchall()
    expired = count_expired([at for _, at in oldest], now)
    if not expired:
        return
    last, _ = oldest[expired - 1]
    old = db.execute(SQL["old_changes"], (tenant, last, _TRIMMED_AT_ONCE)).fetchall()
    last_of = {owner: number for number, owner in old} | {"": old[-1][0]}
    marks = [(tenant, owner, number) for owner, number in last_of.items()]
    db.executemany(SQL["note_trimmed"], marks)
    db.execute(SQL["delete_changes"], (tenant, old[-1][0]))


def drop_some(db: sqlite3.Connection, tenant: str, most: int) -> bool:
    """Delete some changes of a tenant that is being deleted; return whether there were any."""
    db.execute(SQL["delete_trimmed"], (tenant,))
    db.execute(SQL["delete_record_changes"], (tenant,))
    return db.execute(SQL["delete_changes_of_tenant"], (tenant, tenant, most)).rowcount > 0


def read(db: sqlite3.Connection, tenant: str, wanted: Feed) -> FeedPage:
    """Return the changes after a position: the number of a change, and its time.

    Another time means another change: the file is an older copy of itself, or the
    tenant was deleted and created again.
    """
    whose = () if wanted.owner is None else (wanted.owner,)
    suffix = "_of_owner" if whose else ""
    after, at = 0, 0.0
    db.execute("BEGIN")  # what was deleted and what is left, of one moment
    try:
        trimmed = _trimmed(db, tenant, wanted.owner or "")
        if wanted.after is not None:
            check_position(wanted.after, (int, float))
            after, at = cast(tuple[int, float], tuple(wanted.after))
            _check_change(db, tenant, after, at)
            check_trimmed(after, trimmed)
        elif not wanted.limit:
            last = db.execute(SQL[f"last_change{suffix}"], (tenant, *whose)).fetchone()
            after, at = last or (trimmed, 0.0)
        rows = db.execute(SQL[f"changes{suffix}"], (tenant, *whose, after, wanted.limit)).fetchall()
    finally:
        db.execute("COMMIT")
    if rows:
        after, at = rows[-1][:2]
    elif after < trimmed:
        after, at = trimmed, 0.0
    return FeedPage([_decode(*row) for row in rows], [after, at])


def _trimmed(db: sqlite3.Connection, tenant: str, owner: str = "") -> int:
    """Return the number of the last change that was deleted, of an owner or the tenant."""
    number: int = db.execute(SQL["trimmed"], (tenant, owner)).fetchone()[0]
    return number


def _check_change(db: sqlite3.Connection, tenant: str, number: int, at: float) -> None:
    """Refuse a position after which changes may be missing: its change is not in this feed."""
    row = db.execute(SQL["time_of_change"], (tenant, number)).fetchone()
    is_ours = number <= _trimmed(db, tenant) if row is None else at == row[0]
    if not is_ours:
        raise expired_cursor()


def _decode(
    _number: int, at: float, owner: str, sid: int, kind: int, session: str, ids: str
) -> Change:
    try:
        key = SessionKey(str(sid) if sid else "")
        return change_of(kind, at, owner, session, key, split_ids(ids))
    except (TypeError, IndexError, AttributeError):
        raise Damaged("a change in the feed is damaged; continue from the present") from None
