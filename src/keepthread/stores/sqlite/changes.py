"""The feed of changes in SQLite: each function is part of a job on a connection.

A write notes its change in its own transaction. Writers come one after the other, so numbers are
in the order of the commits, and a reader never passes over one.
"""

import json
import sqlite3
from collections.abc import Sequence
from typing import Final, cast

from keepthread.errors import Damaged
from keepthread.stores.backend import Feed, FeedPage
from keepthread.stores.changes import (
    KEPT,
    RecordChanges,
    change_of,
    change_of_record,
    check_trimmed,
    join_ids,
    microseconds,
    split_ids,
)
from keepthread.stores.codec import value_check
from keepthread.stores.cursors import check_position
from keepthread.stores.sqlite.schema import SQL
from keepthread.types import Change, Scope, SessionKey

_INSERT = SQL["insert_change"]
_TRIM_EVERY: Final = 64
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
    now = microseconds()
    db.execute(_INSERT, (tenant, now, tenant, owner, sid, kind, session, join_ids(ids)))
    if now % _TRIM_EVERY == 0:
        trim(db, tenant, now - KEPT * 1_000_000)


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


def trim(db: sqlite3.Connection, tenant: str, before: int) -> None:
    """Delete the oldest changes before a number, some at a time, and note how far."""
    old = db.execute(SQL["old_changes"], (tenant, before, _TRIMMED_AT_ONCE)).fetchall()
    if not old:
        return
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
    """Return the changes after a position."""
    whose = () if wanted.owner is None else (wanted.owner,)
    suffix = "_of_owner" if whose else ""
    after = 0
    if wanted.after is not None:
        check_position(wanted.after, (int,))
        after = cast(int, wanted.after[0])
    elif not wanted.limit:
        after = db.execute(SQL[f"last_change{suffix}"], (tenant, *whose)).fetchone()[0]
    values = (tenant, *whose, after, wanted.limit)
    db.execute("BEGIN")  # what was deleted and what is left, of one moment
    try:
        rows = db.execute(SQL[f"changes{suffix}"], values).fetchall()
        trimmed: int = db.execute(SQL["trimmed"], (tenant, wanted.owner or "")).fetchone()[0]
    finally:
        db.execute("COMMIT")
    if wanted.after is not None:
        check_trimmed(after, trimmed)
    found = [_decode(*row) for row in rows]
    return FeedPage(found, [rows[-1][0] if rows else max(after, trimmed)])


def _decode(number: int, owner: str, sid: int, kind: int, session: str, ids: str) -> Change:
    try:
        key = SessionKey(str(sid) if sid else "")
        return change_of(kind, number / 1e6, owner, session, key, split_ids(ids))
    except (TypeError, IndexError, AttributeError):
        raise Damaged("a change in the feed is damaged; continue from the present") from None
