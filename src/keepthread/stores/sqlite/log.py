"""The log in SQLite: each function is one job on a connection."""

import sqlite3
from collections.abc import Iterable, Sequence
from json import dumps
from typing import Any

from keepthread.errors import Conflict, Damaged, MessageNotFound, SessionGone, Stale
from keepthread.stores.backend import Append, Tail
from keepthread.stores.changes import ADDED
from keepthread.stores.codec import Row, decode, guarded, pack_id, unpack_id, value_check
from keepthread.stores.links import names_in_messages
from keepthread.stores.records import forgotten_session, refuses_messages
from keepthread.stores.rows import (
    Head,
    PreparedMessage,
    as_stored,
    check_total,
    check_turn,
    erased_row,
    head_after,
    next_copy,
    next_row,
    same_body,
    same_place,
    without_gaps,
)
from keepthread.stores.sqlite import changes
from keepthread.stores.sqlite.schema import SQL
from keepthread.stores.validation import MAX_COUNT
from keepthread.types import Message, Record

_HEAD = SQL["head"]
_INSERT = SQL["insert_message"]
_NEWEST = SQL["newest"]
_NOTE_UNREAD = SQL["note_unread"]


def head_of(db: sqlite3.Connection, tenant: str, sid: int) -> Head:
    """Return the end of a log; raise `SessionGone` if its session was deleted."""
    return _head_and_session(db, tenant, sid)[0]


def _head_and_session(
    db: sqlite3.Connection, tenant: str, sid: int
) -> tuple[Head, str, str, bytes]:
    """Return the end of a log, its owner and id, and its details if the session is not ready."""
    row = db.execute(_HEAD, (sid, tenant)).fetchone()
    if row is None:
        raise SessionGone("the session was deleted")
    owner, id, details, *last = row
    return _head_at(db, sid, last), owner, id, details or b""


def known_head_of(db: sqlite3.Connection, sid: int) -> Head:
    """Return the end of the log of an existing session."""
    row = db.execute(SQL["last"], (sid,)).fetchone()
    return _head_at(db, sid, row) if row else Head()


def _head_at(db: sqlite3.Connection, sid: int, row: Sequence[Any]) -> Head:
    if row[0] is None:
        return Head()
    if guarded(sid, row):
        return Head(row[0], row[4], row[5])
    return _head_before_damage(db, sid)


def _head_before_damage(db: sqlite3.Connection, sid: int) -> Head:
    """Return the end of the log from its last sound row, plus damaged rows after it."""
    damaged: list[int] = []
    sound = Head()
    for row in db.execute(SQL["newest_of"], (sid, MAX_COUNT)):
        if decode(sid, row).state != "damaged":
            sound = Head(row[0], row[8], row[9])
            break
        damaged.append(row[0])
    in_place = sum(seq <= sound.seq + len(damaged) for seq in damaged)
    return sound._replace(seq=sound.seq + in_place)


def append(
    db: sqlite3.Connection,
    tenant: str,
    sid: int,
    new: Append,
    *,
    touches: bool,
) -> tuple[list[Message], bool]:
    """Store new messages at the end, return known ones, and record activity if `touches`.

    Also return whether the log grew; only then was the activity noted.
    """
    drafts, expect, turn, now = new
    head, owner, id, details = _head_and_session(db, tenant, sid)
    start = head
    check_turn(turn, head)
    if details and refuses_messages(details):
        return [same_body(draft, _tombstone(db, sid, draft)) for draft in drafts], False
    answers: list[Message] = []
    for draft in drafts:
        row = next_row(sid, head, draft, turn)
        try:
            db.execute(_INSERT, (sid, *row))
        except sqlite3.IntegrityError:
            answers.append(same_body(draft, _known(db, sid, draft)))
            continue
        if expect is not None and expect != start.seq:
            raise Stale(f"the log ends at {start.seq}, not at {expect}")
        head = head_after(row)
        check_total(head.total)
        answers.append(as_stored(draft, row))
    grown = head is not start
    if grown:
        if touches:
            touch(db, sid, now)
        added = [message.id for message in answers if message.seq > start.seq]
        name_sessions(db, sid, names_in_messages(drafts))
        changes.note(db, tenant, ADDED, owner, sid, id, added)
        db.execute(_NOTE_UNREAD, (sid,))
    return answers, grown


def _tombstone(db: sqlite3.Connection, sid: int, draft: PreparedMessage) -> Message:
    """Return what a forgotten session has of a message; it takes no new ones."""
    row = db.execute(SQL["message_by_id"], (sid, draft.packed)).fetchone()
    if row is None:
        raise forgotten_session()
    return decode(sid, row)


def _known(db: sqlite3.Connection, sid: int, draft: PreparedMessage) -> Message:
    row = db.execute(SQL["message_by_id"], (sid, draft.packed)).fetchone()
    if row is None:
        raise Damaged("the indexes of the log disagree; run `verify`")
    return decode(sid, row)


def load(db: sqlite3.Connection, tenant: str, sid: int, drafts: Sequence[PreparedMessage]) -> int:
    """Copy messages to the end, skipping stored positions."""
    head, owner, id, _ = _head_and_session(db, tenant, sid)
    new: list[str] = []
    for draft in drafts:
        if draft.message.seq <= head.seq:
            known = db.execute(SQL["message_by_seq"], (sid, draft.message.seq)).fetchone()
            if known is None:
                raise Damaged(f"position {draft.message.seq} is missing; run `verify`")
            same_place(draft, known[1], known[11])
            continue
        row = next_copy(sid, head, draft)
        try:
            db.execute(_INSERT, (sid, *row))
        except sqlite3.IntegrityError:
            raise Conflict(f"message id {draft.id!r} is already at another position") from None
        head = head_after(row)
        new.append(unpack_id(row.id))
    if new:
        name_sessions(db, sid, names_in_messages(drafts))
        changes.note(db, tenant, ADDED, owner, sid, id, new)
        db.execute(_NOTE_UNREAD, (sid,))
    return head.seq


def tail(db: sqlite3.Connection, tenant: str, sid: int, wanted: Tail) -> list[Message]:
    """Return the newest messages that fit, reading backwards."""
    tokens, limit, before, after, min_messages = wanted
    found: list[Message] = []
    left = tokens if tokens is not None else 1 << 62
    room = limit if limit is not None else 1 << 62
    cursor = db.execute(_NEWEST, (sid, tenant, before, after))
    for row in cursor:
        if not room or (len(found) >= min_messages and _costs_more(left, sid, row)):
            cursor.close()
            found.reverse()
            return without_gaps(found)
        message = decode(sid, row)
        if message.state == "damaged" and not found and (end := _end_before(db, sid, row)):
            cursor.close()
            return tail(db, tenant, sid, wanted._replace(before=end))
        left -= message.tokens
        room -= 1
        found.append(message)
    if not found:
        check_session(db, tenant, sid)
    found.reverse()
    return without_gaps(found, after)


def _end_before(db: sqlite3.Connection, sid: int, row: tuple[Any, ...]) -> int | None:
    """Return the end of the log if a damaged row claims a later position."""
    end = known_head_of(db, sid).seq + 1
    return end if row[0] >= end else None


def _costs_more(left: int, sid: int, row: tuple[Any, ...]) -> bool:
    """Return whether a row exceeds the remaining budget; a damaged one costs nothing."""
    if left < 0:
        return True
    return type(row[5]) is int and row[5] > left and guarded(sid, (row[0], *row[5:]))


def read(
    db: sqlite3.Connection, tenant: str, sid: int, after: int, until: int, limit: int
) -> list[Message]:
    """Return the messages after a position, oldest first."""
    rows = db.execute(SQL["oldest"], (sid, tenant, after, until, limit)).fetchall()
    while rows and decode(sid, rows[-1]).state == "damaged" and _end_before(db, sid, rows[-1]):
        rows.pop()
    if not rows:
        check_session(db, tenant, sid)
    return without_gaps([decode(sid, row) for row in rows], after)[:limit]


def find(
    db: sqlite3.Connection, tenant: str, sid: int, ids: Iterable[str], seqs: Iterable[int]
) -> list[Message]:
    """Return the messages with these ids or positions."""
    check_session(db, tenant, sid)
    rows = [db.execute(SQL["message_by_id"], (sid, pack_id(id))).fetchone() for id in ids]
    rows += [db.execute(SQL["message_by_seq"], (sid, seq)).fetchone() for seq in seqs]
    found = {row[:2]: decode(sid, row) for row in rows if row is not None}
    return sorted(found.values(), key=lambda message: message.seq)


def sources(db: sqlite3.Connection, sid: int, records: Sequence[Record]) -> list[Message]:
    """Return the messages of this log that records are made of, by position."""
    key = str(sid)
    spans = {(s.first, s.last) for record in records for s in record.made_of if s.session == key}
    rows = db.execute(SQL["messages_in_spans"], (dumps(list(spans)), sid))
    found = {row[0]: decode(sid, row) for row in rows}
    return sorted(found.values(), key=lambda message: message.seq)


def erase(db: sqlite3.Connection, sid: int, seqs: Iterable[int]) -> dict[int, str]:
    """Replace messages by tombstones; return position and id of those not erased yet."""
    erased: dict[int, str] = {}
    for seq in seqs:
        row = db.execute(SQL["message_by_seq"], (sid, seq)).fetchone()
        if row is None:
            raise MessageNotFound(f"there is no message at position {seq}")
        if row[3] is not None or row[4] is not None:
            tombstone = erased_row(sid, seq, Row._make(row))
            db.execute(SQL["replace_message"], (*tombstone[1:], sid, seq))
            erased[seq] = unpack_id(row[1])
    return erased


def touch(db: sqlite3.Connection, sid: int, now: float) -> None:
    """Record activity, unless the clock went back."""
    db.execute(SQL["touch_session"], (now, value_check(sid, now), sid, now))


def name_sessions(db: sqlite3.Connection, sid: int, names: Sequence[str]) -> None:
    """Note that a session names others of its owner."""
    if names:
        db.executemany(SQL["insert_naming"], [(name, sid) for name in names])


def check_session(db: sqlite3.Connection, tenant: str, sid: int) -> int:
    """Return the session's epoch, or raise `SessionGone`."""
    row = db.execute(SQL["session_exists"], (sid, tenant)).fetchone()
    if row is None:
        raise SessionGone("the session was deleted")
    return row[0]
