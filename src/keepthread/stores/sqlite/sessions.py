"""Sessions in SQLite: each function is one job on a connection."""

import sqlite3
from collections.abc import Sequence
from functools import lru_cache
from math import inf
from typing import Any, Final, cast

from keepthread.errors import SessionExists, SessionGone
from keepthread.protocols import Relatives
from keepthread.recall.positions import MOST_SEQ
from keepthread.stores.backend import Gather, Listing, Position, Tail
from keepthread.stores.changes import CREATED, DELETED, ERASED, UPDATED
from keepthread.stores.codec import value_check
from keepthread.stores.links import names_in_session
from keepthread.stores.records import (
    KINDS,
    Condition,
    Update,
    damaged_session,
    decode_details,
    encode_details,
    sid_of,
)
from keepthread.stores.sqlite import changes, index, watermarks
from keepthread.stores.sqlite import vectors as embeddings
from keepthread.stores.sqlite.log import (
    check_session,
    erase,
    known_head_of,
    name_sessions,
    sources,
    tail,
    touch,
)
from keepthread.stores.sqlite.records import FileScope, drop_made_of, scan_kinds, scan_newest
from keepthread.stores.sqlite.schema import SQL
from keepthread.stores.validation import MAX_COUNT
from keepthread.text_caches import register_cache
from keepthread.types import Gathered, SessionInfo, SessionKey


def create(db: sqlite3.Connection, tenant: str, session: SessionInfo) -> SessionInfo:
    """Create a session."""
    kind = KINDS.index(session.kind)
    details = encode_details(session)
    values = (tenant, session.id, session.owner, kind, session.ready, session.created_at, details)
    try:
        sid = db.execute(SQL["insert_session"], values).lastrowid
    except sqlite3.IntegrityError:
        raise SessionExists(f"session {session.id!r} already exists") from None
    assert sid is not None
    _seal(db, sid)
    touch(db, sid, session.updated_at)
    name_sessions(db, sid, names_in_session(session))
    changes.note(db, tenant, CREATED, session.owner, sid, session.id)
    return by_sid(db, tenant, sid)


def update(db: sqlite3.Connection, tenant: str, update: Update) -> SessionInfo:
    """Replace title, tags, system prompt, meta and readiness."""
    sid = sid_of(update.key)
    known = _undamaged(by_sid(db, tenant, sid))
    changed = update.of(known)
    details = encode_details(changed)
    if known.ready and not changed.ready:
        _forget_views(db, known)
    db.execute(SQL["update_session"], (changed.ready, details, sid))
    if changed.ready and not known.ready:
        db.execute(SQL["note_unread"], (sid,))
    _seal(db, sid)
    if known.ready:
        touch(db, sid, update.now)
    changes.note(db, tenant, UPDATED, known.owner, sid, known.id)
    return by_sid(db, tenant, sid)


def by_id(db: sqlite3.Connection, tenant: str, owner: str, id: str) -> SessionInfo | None:
    """Return an owner's session with an id, or None."""
    row = db.execute(SQL["session_by_id"], (tenant, owner, id)).fetchone()
    return row and _decode(db, row)


def by_sid(db: sqlite3.Connection, tenant: str, sid: int) -> SessionInfo:
    """Return the session with a key."""
    row = db.execute(SQL["session_by_sid"], (sid, tenant)).fetchone()
    if row is None:
        raise SessionGone("the session was deleted")
    return _decode(db, row)


def readable(db: sqlite3.Connection, tenant: str, sid: int) -> tuple[str, str, int] | None:
    """Return a session's id, owner and epoch if it exists, is sound, and is indexed."""
    row = db.execute(SQL["session_by_sid"], (sid, tenant)).fetchone()
    return row and _readable(*row[:10])


@lru_cache(maxsize=4096)
def _readable(*row: Any) -> tuple[str, str, int] | None:
    # Recalled messages may come from dozens of sessions, which rarely change.
    _, _, id, owner, kind, ready, epoch, *_ = row
    sound = row[9] == value_check(*row[:9])
    return (id, owner, epoch) if sound and ready and KINDS[kind] != "delegate" else None


def prompt_and_delimiter(db: sqlite3.Connection, tenant: str, sid: int) -> tuple[str | None, str]:
    """Return a session's system prompt and delimiter, which a context needs."""
    row = db.execute(SQL["session_by_sid"], (sid, tenant)).fetchone()
    if row is None:
        raise SessionGone("the session was deleted")
    return _prompt_and_delimiter(*row[:10])


@lru_cache(maxsize=1024)
def _prompt_and_delimiter(*row: Any) -> tuple[str | None, str]:
    # Every context needs it, and it rarely changes.
    if row[9] != value_check(*row[:9]):
        raise damaged_session(row[2])
    details = decode_details(row[8])
    return details["system_prompt"], details.get("delimiter", "")


def gather(db: sqlite3.Connection, tenant: str, sid: int, wanted: Gather) -> Gathered:
    """Return the material of a context, read at one moment."""
    tokens, min_messages, kinds, follow, limit = wanted
    where = FileScope(tenant, sid, "")
    db.execute("BEGIN")
    try:
        prompt, delimiter = prompt_and_delimiter(db, tenant, sid)
        newest = tail(db, tenant, sid, Tail(tokens, None, MAX_COUNT, 0, min_messages))
        records = scan_kinds(db, where, kinds)
        read = [scan_newest(db, where, kind, limit) for kind in follow]
        followed = [record for found, _ in read for record in found]
        made_of = sources(db, sid, followed) if followed else []
        more = [kind for kind, (_, is_cut) in zip(follow, read, strict=True) if is_cut]
        return Gathered(prompt, newest, [*records, *followed], made_of, delimiter, more)
    finally:
        db.execute("COMMIT")


def listed(
    db: sqlite3.Connection, tenant: str, owner: str | None, wanted: Listing
) -> list[tuple[Position, SessionInfo]]:
    """Return sessions by activity."""
    name = "earliest_sessions" if wanted.after else "latest_sessions"
    name = "unlisted_sessions" if wanted.unlisted else name
    whose = (tenant,) if owner is None else (tenant, owner)
    place = wanted.after or wanted.before
    bound = (place.at, sid_of(place.key)) if place else (inf, 0)
    statement = SQL[name if owner is None else f"{name}_of_owner"]
    rows = db.execute(statement, (*whose, *bound, wanted.limit)).fetchall()
    return [(Position(row[10], SessionKey(str(row[0]))), _decode(db, row)) for row in rows]


def scan(
    db: sqlite3.Connection, tenant: str, owner: str | None, after: int, limit: int
) -> list[SessionInfo]:
    """Return every session after a key."""
    if owner is None:
        rows = db.execute(SQL["sessions_behind"], (tenant, after, limit)).fetchall()
    else:
        values = (tenant, owner, after, limit)
        rows = db.execute(SQL["sessions_of_owner_behind"], values).fetchall()
    return [_decode(db, row) for row in rows]


def relatives(db: sqlite3.Connection, tenant: str, sid: int) -> Relatives:
    """Return the sessions of the same owner that may repeat messages of this one."""
    row = db.execute(SQL["session_by_sid"], (sid, tenant)).fetchone()
    if row is None:
        return Relatives((), ())
    id, owner = row[2:4]
    copies = db.execute(SQL["session_copies"], (sid, tenant, owner)).fetchall()
    naming = db.execute(SQL["sessions_naming"], (tenant, owner, id)).fetchall()
    return Relatives([_decode(db, each) for each in copies], [_decode(db, each) for each in naming])


def delete(db: sqlite3.Connection, tenant: str, sid: int, required: Condition) -> None:
    """Remove a session and all its data, if it meets the condition."""
    session = by_sid(db, tenant, sid)
    required.check(session)
    changes.note_session(db, tenant, DELETED, sid)
    _forget_views(db, session)
    db.execute(SQL["delete_messages"], (sid,))
    db.execute(SQL["delete_records_of_session"], (tenant, sid))
    db.execute(SQL["delete_naming"], (sid,))
    db.execute(SQL["delete_session"], (sid, tenant))
    db.execute(SQL["delete_scope"], (tenant, session.owner) * 2)
    db.execute(SQL["delete_scope_of_tenant"], (tenant, tenant))


def tenants(db: sqlite3.Connection, after: str, limit: int) -> list[str]:
    """Return tenants after a name; each is found by one search in an index."""
    found: list[str] = []
    last: str | None = after
    while len(found) < limit:
        (last,) = db.execute(SQL["next_tenant"], (last, last)).fetchone()
        if last is None:
            break
        found.append(last)
    return found


_DROPPED_SESSIONS: Final = 20
_DROPPED_RECORDS: Final = 1000


def drop_some(db: sqlite3.Connection, tenant: str) -> bool:
    """Delete some sessions or records of a tenant; return whether there were any."""
    rows = db.execute(SQL["sessions_behind"], (tenant, 0, _DROPPED_SESSIONS)).fetchall()
    for sid, *_ in rows:
        delete(db, tenant, sid, Condition())
    if rows:
        return True
    db.execute(SQL["delete_scopes_of_tenant"], (tenant,))
    if db.execute(SQL["delete_records_of_tenant"], (tenant, _DROPPED_RECORDS)).rowcount > 0:
        return True
    return changes.drop_some(db, tenant, _DROPPED_RECORDS)


def erase_messages(db: sqlite3.Connection, tenant: str, sid: int, seqs: Sequence[int]) -> int:
    """Erase messages and the records made of them; return the new epoch."""
    _forget_views(db, _undamaged(by_sid(db, tenant, sid)), seqs)
    if erased := erase(db, sid, seqs):
        drop_made_of(db, tenant, sid, list(erased))
        changes.note_session(db, tenant, ERASED, sid, list(erased.values()))
        db.execute(SQL["next_epoch"], (sid,))
        _seal(db, sid)
    return check_session(db, tenant, sid)


def _forget_views(
    db: sqlite3.Connection, session: SessionInfo, seqs: Sequence[int] | None = None
) -> None:
    """Remove some positions of a session, or all, from every index, while the text exists."""
    sid = int(session.key)
    if not watermarks.is_read(db, sid):
        if seqs is None:
            watermarks.forget_session(db, sid)
        return
    places = None if seqs is None else [seq for seq in seqs if seq <= MOST_SEQ]
    if session.state == "damaged":  # its owner is unknown
        index.drop(db)
    else:
        index.forget(db, sid, places)
    embeddings.forget(db, sid, places)
    if places is None:
        watermarks.forget_session(db, sid)


def intact(row: tuple[Any, ...]) -> bool:
    """Return whether a session's row is what was written."""
    active_at, active_guard = row[10:12]
    return row[9] == value_check(*row[:9]) and active_guard == value_check(row[0], active_at)


def _seal(db: sqlite3.Connection, sid: int) -> None:
    row = db.execute(SQL["session_to_guard"], (sid,)).fetchone()
    db.execute(SQL["guard_session"], (value_check(*row), sid))


def _undamaged(session: SessionInfo) -> SessionInfo:
    """Raise `Damaged` for a damaged session: a new checksum would hide the damage."""
    if session.state == "damaged":
        raise damaged_session(session.id)
    return session


def _decode(db: sqlite3.Connection, row: tuple[Any, ...]) -> SessionInfo:
    sid, _, id, owner, kind, ready, epoch, created_at, details, _, active_at, _ = row
    key = SessionKey(str(sid))
    seq, turns, total = known_head_of(db, sid)
    if not intact(row):
        return SessionInfo(
            id=str(id),
            key=key,
            messages=seq,
            turns=turns,
            tokens=total,
            epoch=epoch,
            state="damaged",
        )
    return SessionInfo(
        id=id,
        key=key,
        owner=owner,
        kind=KINDS[cast(int, kind)],
        ready=bool(ready),
        epoch=epoch,
        created_at=created_at,
        updated_at=active_at,
        messages=seq,
        turns=turns,
        tokens=total,
        **decode_details(details),
    )


register_cache(_readable.cache_clear, _prompt_and_delimiter.cache_clear)
