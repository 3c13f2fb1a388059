"""A message's row in PostgreSQL and back: ids as bytes, and a guard that the server can compute."""

import struct
from collections.abc import Sequence
from hashlib import sha256
from typing import Any, Final

from keepthread import codec
from keepthread.codec import PackedId, Row
from keepthread.types import Message

_PACKED: Final = 16  # bytes of an id that is 32 hexadecimal digits

_pack_numbers = struct.Struct(">6qd").pack


def guard_of(
    place: int,
    seq: int,
    tokens: int,
    counter: bytes,
    exchange: int,
    exchanges: int,
    total: int,
    created_at: float,
    digest: bytes,
) -> bytes:
    """Return the check over a row's digest and the values around it, as `guard_of` in SQL does.

    The position and the totals are given inside the server, and SHA-256 is what it knows there.
    """
    numbers = _pack_numbers(place, seq, tokens, exchange, exchanges, total, created_at)
    return sha256(digest + numbers + counter).digest()[:8]


def id_to_bytes(id: PackedId) -> bytes:
    """Return an id as it is stored: a name of 16 bytes has a NUL behind it, to be told apart."""
    if isinstance(id, bytes):
        return id
    data = id.encode()
    return data if len(data) != _PACKED else data + b"\0"


def id_from_bytes(data: bytes) -> PackedId:
    """Return the id that `id_to_bytes` wrote, or a picture of what it did not write."""
    return data if len(data) == _PACKED else data.rstrip(b"\0").decode("utf-8", "replace")


def decode(place: int, row: tuple[Any, ...]) -> Message:
    """Return a row's message; its state is `damaged` if the row is not what was written."""
    id = row[1]
    if len(id) != _PACKED:
        row = (row[0], id_from_bytes(id), *row[2:])
    return codec.decode(place, row, guard_of)


def columns(rows: Sequence[Row]) -> list[list[Any]]:
    """Return the columns of rows, as one statement takes them all."""
    stored = (row._replace(id=id_to_bytes(row.id), extra=row.extra or b"") for row in rows)
    return [list(column) for column in zip(*stored, strict=True)]
