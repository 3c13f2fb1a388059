"""A record as one value in Redis; `lua/common.lua` says the same in Lua."""

import json
import os
import struct
import zlib
from collections.abc import Mapping
from typing import Final, NamedTuple

from keepthread.errors import Damaged
from keepthread.stores.details import decode_record
from keepthread.stores.redis.places import Place
from keepthread.stores.redis.rows import seal
from keepthread.types import Record, Scope, SessionKey

_SEAL: Final = 8
_rest = struct.Struct("<8sIII")
_version = struct.Struct("<q")
_REST: Final = _version.size + _SEAL


class Kept(NamedTuple):
    """A record, and the epochs of other sessions on which it still waits."""

    record: Record
    waits: Mapping[SessionKey, int]
    settled: bytes
    """What it is once it waits no more."""


def name_of(kind: str, key: str) -> bytes:
    """Return the field of a record; names sort by kind and key, for neither can hold NUL."""
    return f"{kind}\0{key}".encode()


def pack_rest(value: bytes, made_of: bytes | None, waits: Mapping[SessionKey, int]) -> bytes:
    """Return a record but for its version; two puts of the same are told apart."""
    made, waiting = made_of or b"", json.dumps(dict(waits)).encode() if waits else b""
    fixed = _rest.pack(os.urandom(8), zlib.crc32(value), len(made), len(waiting))
    return fixed + made + waiting + value


def settled(rest: bytes) -> bytes:
    """Return the same without the epochs on which it waits."""
    token, check, made, waiting = _rest.unpack_from(rest)
    start = _rest.size + made
    return _rest.pack(token, check, made, 0) + rest[_rest.size : start] + rest[start + waiting :]


def unpack(place: Place, scope: Scope, name: bytes, data: bytes) -> Kept:
    """Return a record, or say that it is damaged."""
    kind, _, key = name.decode("utf-8", "replace").partition("\0")
    rest = data[_REST:]
    if len(rest) < _rest.size:
        raise damaged(kind, key)
    _, check, made, waiting = _rest.unpack_from(rest)
    end = _rest.size + made + waiting
    version, value = data[: _version.size], rest[end:]
    sealed = seal(place.mark, name + version + rest[:end])
    if data[_version.size : _REST] != sealed or zlib.crc32(value) != check:
        raise damaged(kind, key)
    made_of = rest[_rest.size : _rest.size + made]
    waits: dict[SessionKey, int] = json.loads(rest[_rest.size + made : end] or b"{}")
    number: int = _version.unpack(version)[0]
    record = decode_record(scope, kind, key, value, number, made_of or None)
    return Kept(record, waits, settled(rest))


def damaged(kind: str, key: str) -> Damaged:
    """Return the error for a record that is not what was written."""
    return Damaged(f"the record {kind}/{key} is damaged; drop it, or run `verify`")
