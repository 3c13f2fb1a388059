"""A session's own hash: its record, where its log ends, when it was last active."""

import struct
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, cast

from keepthread.errors import Damaged, SessionGone
from keepthread.stores.details import KINDS, decode_details, encode_details
from keepthread.stores.redis.link import Link
from keepthread.stores.redis.places import Place
from keepthread.stores.redis.rows import seal
from keepthread.types import SessionInfo

_SEAL: Final = 8
_fixed = struct.Struct("<qBBdqHHH")
_time = struct.Struct("<d")
pack_time = _time.pack


class State(NamedTuple):
    """The fields of a session's hash."""

    life: bytes = b""
    head: bytes = b""
    active: bytes = b""
    record: bytes = b""
    revision: bytes = b""

    @property
    def next_revision(self) -> int:
        """Return what tells a changed session from this one."""
        return int(self.revision) + 1 if self.revision.isdigit() else 1


class Description(NamedTuple):
    """What a sound record holds."""

    info: SessionInfo
    ttl: int
    """Milliseconds from the latest activity; 0: for ever."""


async def read_state(link: Link, place: Place) -> State:
    """Return the session's hash, or say that it is gone."""
    state = state_of(await link.ask("HGETALL", place.session))
    if state.life != place.life.encode():
        raise SessionGone("the session was deleted")
    return state


def state_of(fields: Mapping[bytes, bytes]) -> State:
    """Return a hash as it was read."""
    return State(*(fields.get(name.encode(), b"") for name in State._fields))


def alive(reply: Any) -> Any:
    """Return a script's reply, or say that the session is gone."""
    if reply is None:
        raise SessionGone("the session was deleted")
    return reply


# --- activity ---


def pack_active(place: Place, at: float) -> bytes:
    """Return the time of the latest activity."""
    return _time.pack(at) + seal(place.mark, _time.pack(at))


def unpack_active(place: Place, data: bytes) -> float | None:
    """Return the time of the latest activity, or None if that is damaged."""
    at, check = data[: _time.size], data[_time.size :]
    if len(at) < _time.size or check != seal(place.mark, at):
        return None
    return _time.unpack(at)[0]


# --- the record: all of a session but what its messages change ---


def pack_record(place: Place, tenant: str, info: SessionInfo, ttl: int) -> bytes:
    """Return a session's record."""
    texts = [text.encode() for text in (tenant, info.id, info.owner)]
    lengths = [len(text) for text in texts]
    kind = KINDS.index(info.kind)
    fixed = _fixed.pack(info.epoch, kind, info.ready, info.created_at, ttl, *lengths)
    body = b"".join((fixed, *texts, encode_details(info)))
    return seal(place.mark, body) + body


def unpack_record(place: Place, data: bytes) -> Description | None:
    """Return a session as it was packed, or None if that is damaged."""
    body = data[_SEAL:]
    if len(body) < _fixed.size or data[:_SEAL] != seal(place.mark, body):
        return None
    epoch, kind, ready, created_at, ttl, *_ = _fixed.unpack_from(body)
    _, id, owner, details = _texts(body)
    info = SessionInfo(
        id=id.decode(),
        owner=owner.decode(),
        kind=KINDS[cast(int, kind)],
        ready=bool(ready),
        epoch=epoch,
        created_at=created_at,
        **decode_details(details),
    )
    return Description(info, ttl)


def unpack_damaged(data: bytes) -> SessionInfo:
    """Return what can still be read of a damaged record, for a person's eye."""
    body = data[_SEAL:]
    if len(body) < _fixed.size:
        return SessionInfo(id="")
    id = _texts(body)[1].decode("utf-8", "replace")
    return SessionInfo(id=id, epoch=_fixed.unpack_from(body)[0])


def undamaged(place: Place, data: bytes) -> Description:
    """Return a sound record, or say that it is damaged."""
    described = unpack_record(place, data)
    if described is None:
        raise Damaged(f"the record of session {unpack_damaged(data).id!r} is damaged; run `verify`")
    return described


def _texts(body: bytes) -> list[bytes]:
    texts: list[bytes] = []
    start = _fixed.size
    for length in _fixed.unpack_from(body)[-3:]:
        texts.append(body[start : start + length])
        start += length
    return [*texts, body[start:]]
