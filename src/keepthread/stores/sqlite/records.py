"""Records in SQLite: each function is one job on a connection."""

import sqlite3
from collections.abc import Mapping, Sequence
from json import dumps
from typing import Any, NamedTuple

from keepthread.errors import Damaged, SessionGone
from keepthread.protocols import MadeRecords, Updates
from keepthread.stores.backend import Put
from keepthread.stores.codec import value_check
from keepthread.stores.links import node_of, nodes_above
from keepthread.stores.records import (
    ALL_KEYS,
    Keys,
    check_epoch,
    check_version,
    decode_record,
    decode_spans,
    sid_of,
    touches,
)
from keepthread.stores.sqlite import changes
from keepthread.stores.sqlite.log import check_session, name_sessions
from keepthread.stores.sqlite.schema import SQL
from keepthread.types import Record, Scope, SessionKey, Span

_OF_KIND = SQL["records_of_kind"]
_NEWEST = SQL["newest_records"]


class FileScope(NamedTuple):
    """The owner of records, as the table has it."""

    tenant: str
    sid: int
    owner: str


def scope_of(tenant: str, scope: Scope) -> FileScope:
    """Return a scope as the table has it: a session, an owner, or neither for the tenant."""
    return FileScope(tenant, sid_of(scope.session) if scope.session else 0, scope.owner)


def put(db: sqlite3.Connection, where: FileScope, record: Put, epochs: Mapping[int, int]) -> int:
    """Store a record, unless it or its sources changed since the caller read them."""
    kind, key, value, made_of, spans, version, _, names = record
    _check_owner(db, where)
    _check_version(db, where, kind, key, version)
    for sid, epoch in epochs.items():
        check_epoch(check_session(db, where.tenant, sid), epoch)
    db.execute(SQL["delete_record"], (*where, kind, key))
    new = db.execute(SQL["insert_record"], (*where, kind, key, value, made_of)).lastrowid
    assert new is not None
    db.execute(SQL["guard_record"], (value_check(new, *where, kind, key, value, made_of), new))
    db.executemany(SQL["insert_source"], {(*at, new) for at in map(_source, spans) if at})
    name_sessions(db, where.sid, names)
    changes.note_record(db, *where, kind, key)
    return new


def _source(span: Span) -> tuple[int, int] | None:
    """Return where a span is entered in the index; None for one that holds no message."""
    node = node_of(span)
    try:
        return None if node is None else (sid_of(span.session), node)
    except SessionGone:  # the key of another store
        return None


def get(db: sqlite3.Connection, where: FileScope, kind: str, key: str) -> Record | None:
    """Return one record."""
    _check_owner(db, where)
    row = db.execute(SQL["record"], (*where, kind, key)).fetchone()
    return row and _decode(row)


def scan(db: sqlite3.Connection, where: FileScope, kind: str | None, keys: Keys) -> list[Record]:
    """Return the records of a scope."""
    _check_owner(db, where)
    if kind is None:
        rows = db.execute(SQL["records"], (*where, keys.without)).fetchall()
    elif keys is ALL_KEYS:  # a damaged key may be outside every bound
        rows = db.execute(_OF_KIND, (*where, kind)).fetchall()
    else:
        rows = db.execute(SQL["last_records"], (*where, kind, *keys[:3])).fetchall()[::-1]
    return [_decode(row) for row in rows]


def scan_kinds(db: sqlite3.Connection, where: FileScope, kinds: Sequence[str]) -> list[Record]:
    """Return the records of some kinds of an existing session, kind by kind."""
    return [_decode(row) for kind in kinds for row in db.execute(_OF_KIND, (*where, kind))]


def scan_newest(
    db: sqlite3.Connection, where: FileScope, kind: str, limit: int
) -> tuple[list[Record], bool]:
    """Return the records of an existing session that were put last, and whether it has more."""
    rows = db.execute(_NEWEST, (*where, kind, limit + 1)).fetchall()
    found = [_decode(row) for row in rows[:limit]]
    return sorted(found, key=lambda record: record.key), len(rows) > limit


def updates(db: sqlite3.Connection, where: FileScope, kind: str, since: int) -> Updates:
    """Return the records of an owner or of the tenant that changed after a number."""
    known = changes.record_changes(db, where.tenant, where.owner, kind)
    if since and known.number == since:
        return Updates(since, False, [])
    db.execute("BEGIN")
    try:
        known = changes.record_changes(db, where.tenant, where.owner, kind)
        keys = known.since(since)
        if keys is None:
            return Updates(known.number, True, scan(db, where, kind, ALL_KEYS))
        found = [get(db, where, kind, key) for key in keys]
        dropped = [key for key, record in zip(keys, found, strict=True) if record is None]
        return Updates(known.number, False, [record for record in found if record], dropped)
    finally:
        db.execute("COMMIT")


def scan_sessions(
    db: sqlite3.Connection, tenant: str, sids: Sequence[int], kinds: Sequence[str]
) -> list[Record]:
    """Return the records of some kinds of several existing sessions."""
    numbers = dumps(list(sids))
    rows = [db.execute(SQL["records_of_sessions"], (tenant, numbers, kind)) for kind in kinds]
    return [_decode(row) for found in rows for row in found]


def owners(db: sqlite3.Connection, tenant: str) -> list[str]:
    """Return the owners who have a record."""
    return [owner for (owner,) in db.execute(SQL["owners"], (tenant,))]


def blob_owners(db: sqlite3.Connection, tenant: str) -> list[str]:
    """Return the owners who have blobs."""
    return [owner for (owner,) in db.execute(SQL["blob_owners"], (tenant,))]


def drop(
    db: sqlite3.Connection, where: FileScope, kind: str, key: str, version: int | None
) -> bool:
    """Delete a record, even a damaged one."""
    _check_owner(db, where)
    _check_version(db, where, kind, key, version)
    if not db.execute(SQL["delete_record"], (*where, kind, key)).rowcount:
        return False
    changes.note_record(db, *where, kind, key)
    return True


def made_of(
    db: sqlite3.Connection, tenant: str, sid: int, nodes: Sequence[int] | None
) -> MadeRecords:
    """Return the records at some nodes of a session, or at all."""
    rows = _made_of(db, tenant, sid, nodes)
    damaged = {_scope(row) for row in rows if not intact(row)}
    return MadeRecords([_decode(row) for row in rows if intact(row)], list(damaged))


def _made_of(
    db: sqlite3.Connection, tenant: str, sid: int, nodes: Sequence[int] | None
) -> list[tuple[Any, ...]]:
    if nodes is None:
        found = db.execute(SQL["records_from_session"], (sid, tenant))
    else:
        found = db.execute(SQL["records_at_nodes"], (dumps(nodes), sid, tenant))
    return list({row[0]: row for row in found}.values())


def drop_made_of(db: sqlite3.Connection, tenant: str, sid: int, seqs: Sequence[int]) -> None:
    """Delete a session's records made of these positions of it, which must ascend."""
    session = SessionKey(str(sid))
    # The sources of a damaged record are unknown, so it is deleted too: nobody can read it, but
    # its bytes may still contain erased text.
    versions = [
        row[:1]
        for row in _made_of(db, tenant, sid, nodes_above(seqs))
        if row[2] == sid and (not intact(row) or touches(decode_spans(row[7]), session, seqs))
    ]
    db.executemany(SQL["delete_version"], versions)


def intact(row: tuple[Any, ...]) -> bool:
    """Return whether a record's row is what was written."""
    return row[8] == value_check(*row[:8])


def _check_owner(db: sqlite3.Connection, where: FileScope) -> None:
    if where.sid:
        check_session(db, where.tenant, where.sid)


def _check_version(
    db: sqlite3.Connection, where: FileScope, kind: str, key: str, version: int | None
) -> None:
    if version is not None:
        row = db.execute(SQL["record"], (*where, kind, key)).fetchone()
        check_version(row[0] if row else 0, version)


def _decode(row: tuple[Any, ...]) -> Record:
    version, _, _, _, kind, key, value, made_of, _ = row
    if not intact(row):
        raise Damaged(f"the record {kind}/{key} is damaged; drop it, or run `verify`")
    return decode_record(_scope(row), kind, key, value, version, made_of)


def _scope(row: tuple[Any, ...]) -> Scope:
    sid, owner = row[2:4]
    return Scope(session=SessionKey(str(sid)) if sid else SessionKey(""), owner=owner)
