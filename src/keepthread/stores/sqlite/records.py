"""The shelf in SQLite: each function is one piece of work on a connection."""

import sqlite3
from collections.abc import Mapping, Sequence
from json import dumps
from typing import Any, NamedTuple

from keepthread.errors import Damaged
from keepthread.stores.backend import Put
from keepthread.stores.codec import value_check
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
from keepthread.stores.sqlite.log import check_session
from keepthread.stores.sqlite.schema import SQL
from keepthread.types import Record, Scope, SessionKey

_OF_KIND = SQL["records_of_kind"]
_OF_FOUR_KINDS = SQL["records_of_four_kinds"]
_FOUR = 4


class Shelf(NamedTuple):
    """Whose shelf it is, as the table has it."""

    tenant: str
    sid: int
    owner: str


def shelf_of(tenant: str, scope: Scope) -> Shelf:
    """Return the shelf of a session, an owner, or the tenant when there is neither."""
    return Shelf(tenant, sid_of(scope.session) if scope.session else 0, scope.owner)


def put(db: sqlite3.Connection, shelf: Shelf, record: Put, epochs: Mapping[int, int]) -> int:
    """Replace a record if it and its sources are as the caller saw them."""
    kind, key, value, made_of, _, version, _ = record
    _check_owner(db, shelf)
    _check_version(db, shelf, kind, key, version)
    for sid, epoch in epochs.items():
        check_epoch(check_session(db, shelf.tenant, sid), epoch)
    db.execute(SQL["delete_record"], (*shelf, kind, key))
    new = db.execute(SQL["insert_record"], (*shelf, kind, key, value, made_of)).lastrowid
    assert new is not None
    db.execute(SQL["guard_record"], (value_check(new, *shelf, kind, key, value, made_of), new))
    return new


def get(db: sqlite3.Connection, shelf: Shelf, kind: str, key: str) -> Record | None:
    """Return one record."""
    _check_owner(db, shelf)
    row = db.execute(SQL["record"], (*shelf, kind, key)).fetchone()
    return row and _decode(row)


def scan(db: sqlite3.Connection, shelf: Shelf, kind: str | None, keys: Keys) -> list[Record]:
    """Return the records of a shelf."""
    _check_owner(db, shelf)
    if kind is None:
        rows = db.execute(SQL["records"], shelf).fetchall()
    elif keys is ALL_KEYS:  # a damaged key may be before or behind every bound
        rows = db.execute(_OF_KIND, (*shelf, kind)).fetchall()
    else:
        rows = db.execute(SQL["last_records"], (*shelf, kind, *keys)).fetchall()[::-1]
    return [_decode(row) for row in rows]


def scan_kinds(db: sqlite3.Connection, shelf: Shelf, kinds: Sequence[str]) -> list[Record]:
    """Return the records of some kinds on the shelf of a session that is there, kind by kind."""
    if len(kinds) == _FOUR:  # what a context asks for, in one statement
        found = [_decode(row) for row in db.execute(_OF_FOUR_KINDS, (*shelf, *kinds))]
        return [record for kind in kinds for record in found if record.kind == kind]
    return [_decode(row) for kind in kinds for row in db.execute(_OF_KIND, (*shelf, kind))]


def scan_sessions(
    db: sqlite3.Connection, tenant: str, sids: Sequence[int], kinds: Sequence[str]
) -> list[Record]:
    """Return the records of some kinds on the shelves of several sessions that are there."""
    numbers = dumps(list(sids))
    rows = [db.execute(SQL["records_of_sessions"], (tenant, numbers, kind)) for kind in kinds]
    return [_decode(row) for found in rows for row in found]


def owners(db: sqlite3.Connection, tenant: str) -> list[str]:
    """Return the owners who have a record."""
    return [owner for (owner,) in db.execute(SQL["owners"], (tenant,))]


def drop(db: sqlite3.Connection, shelf: Shelf, kind: str, key: str, version: int | None) -> bool:
    """Take a record away; it need not be sound for that."""
    _check_owner(db, shelf)
    _check_version(db, shelf, kind, key, version)
    return db.execute(SQL["delete_record"], (*shelf, kind, key)).rowcount > 0


def drop_made_of(db: sqlite3.Connection, tenant: str, sid: int, seqs: Sequence[int]) -> None:
    """Take from a session's shelf what is made of these positions of it, which must ascend."""
    session = SessionKey(str(sid))
    # What a damaged record is made of is not known. Nobody can read it, so nobody misses it; but
    # its bytes may still hold what was erased, and erasing is for ever.
    versions = [
        row[:1]
        for row in db.execute(SQL["records_made_of"], (tenant, sid))
        if not intact(row) or touches(decode_spans(row[7]), session, seqs)
    ]
    db.executemany(SQL["delete_version"], versions)


def intact(row: tuple[Any, ...]) -> bool:
    """Tell whether a record's row is what was written."""
    return row[8] == value_check(*row[:8])


def _check_owner(db: sqlite3.Connection, shelf: Shelf) -> None:
    if shelf.sid:
        check_session(db, shelf.tenant, shelf.sid)


def _check_version(
    db: sqlite3.Connection, shelf: Shelf, kind: str, key: str, version: int | None
) -> None:
    if version is not None:
        row = db.execute(SQL["record"], (*shelf, kind, key)).fetchone()
        check_version(row[0] if row else 0, version)


def _decode(row: tuple[Any, ...]) -> Record:
    version, _, sid, owner, kind, key, value, made_of, _ = row
    if not intact(row):
        raise Damaged(f"the record {kind}/{key} is damaged; drop it, or run `verify`")
    scope = Scope(session=SessionKey(str(sid)) if sid else SessionKey(""), owner=owner)
    return decode_record(scope, kind, key, value, version, made_of)
