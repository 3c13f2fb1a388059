"""A message as one value in Redis, and the seal that its server can compute as well.

The numbers that a log gives (position, turn, totals) are given inside a script, so the guard
over them is made there: `lua/common.lua` says the same in Lua.
"""

import hashlib
import struct
from typing import Final

from keepthread.stores.codec import PackedId, Row, decode, missing
from keepthread.stores.redis.keys import Place
from keepthread.stores.rows import Head, PreparedMessage
from keepthread.types import Message

_ERASED: Final = 4
_PACKED_ID: Final = 8
_KINDS: Final = 16
_NO_GUARD: Final = b""

_guarded = struct.Struct("<6qd")
_numbers = struct.Struct("<8s3q")
_rest = struct.Struct("<qd32sBHHI")
_head = struct.Struct("<4q")
_all = struct.Struct("<8s3qqd32sBHHI")


def seal(mark: bytes, text: bytes) -> bytes:
    """Return the checksum of a value that is stored under one key."""
    return hashlib.sha1(mark + text, usedforsecurity=False).hexdigest()[:8].encode()


def guard_of(
    place: int,
    seq: int,
    tokens: int,
    counter: bytes,
    turn: int,
    turns: int,
    total: int,
    created_at: float,
    digest: bytes,
) -> bytes:
    """Return the checksum of a row's digest and its other values."""
    numbers = _guarded.pack(place, seq, turn, turns, total, tokens, created_at)
    return seal(b"", numbers + digest + counter)


def pack_rest(draft: PreparedMessage) -> bytes:
    """Return the part of a row that does not depend on its position."""
    _, _, id, body, tokens, counter, at = draft
    row = Row(0, id, body.role, body.content, body.extra, tokens, counter, 0, 0, 0, at, b"", b"")
    return _pack_rest(row._replace(digest=body.digest))


def pack_row(row: Row) -> bytes:
    """Return a row as it is stored."""
    guard = row.guard if isinstance(row.guard, bytes) else _NO_GUARD
    return _numbers.pack(guard, row.turn, row.turns, row.total) + _pack_rest(row)


def _pack_rest(row: Row) -> bytes:
    kind = row.role + (_ERASED if row.content is None else 0)
    id = row.id
    if isinstance(id, bytes):
        kind += _PACKED_ID
    else:
        id = id.encode("utf-8", "surrogatepass")
    extra = row.extra or b""
    lengths = (kind, len(row.counter), len(id), len(extra))
    fixed = _rest.pack(row.tokens, row.created_at, row.digest, *lengths)
    return fixed + row.counter + id + extra + (row.content or b"")


def unpack_row(seq: int, data: bytes) -> Row:
    """Return the row at a position; one that cannot be decoded has no checksum."""
    if len(data) < _all.size:
        return Row(seq, "", 1, b"", None, 0, b"", 0, 0, 0, 0.0, b"", _NO_GUARD)
    guard, turn, turns, total, tokens, at, digest, kind, *lengths = _all.unpack_from(data)
    counter_end = _all.size + lengths[0]
    id_end = counter_end + lengths[1]
    extra_end = id_end + lengths[2]
    id = data[counter_end:id_end]
    content = data[extra_end:]
    erased = bool(kind & _ERASED)
    if kind >= _KINDS or extra_end > len(data) or (erased and content):
        guard = _NO_GUARD
    return Row(
        seq,
        id if kind & _PACKED_ID else id.decode("utf-8", "replace"),
        kind % _ERASED,
        None if erased else content,
        data[id_end:extra_end] or None,
        tokens,
        data[_all.size : counter_end],
        turn,
        turns,
        total,
        at,
        digest,
        guard,
    )


def message_at(place: Place, seq: int, data: bytes) -> Message:
    """Return the message at a position, damaged if its row is not what was written."""
    if not data:
        return missing(seq)
    return decode(place.number, unpack_row(seq, data), guard_of)


def id_field(id: PackedId) -> bytes:
    """Return the field that stores a message's position."""
    return b"x" + id if isinstance(id, bytes) else b"t" + id.encode("utf-8", "surrogatepass")


def whole(seq: bytes) -> int:
    """Return a position from a reply of Redis; 0 if there is none."""
    return int(seq) if seq.isdigit() else 0


def pack_head(place: Place, head: Head, ttl: int) -> bytes:
    """Encode the end of a log and the session's time to live in milliseconds."""
    numbers = _head.pack(*head, ttl)
    return numbers + seal(place.mark, numbers)


def unpack_head(place: Place, data: bytes) -> tuple[Head, int] | None:
    """Return the end of a log and the time to live, or None if they are damaged."""
    numbers, check = data[: _head.size], data[_head.size :]
    if len(numbers) < _head.size or check != seal(place.mark, numbers):
        return None
    *head, ttl = _head.unpack(numbers)
    return Head(*head), ttl
