"""Sessions in Redis: each function is one operation."""

import struct
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple, cast

from keepthread.errors import Damaged, SessionGone, Stale
from keepthread.stores.backend import Listing, Position
from keepthread.stores.changes import CREATED, DELETED, UPDATED
from keepthread.stores.codec import decode
from keepthread.stores.records import (
    KINDS,
    NOT_DELETED,
    Condition,
    Update,
    damaged_session,
    decode_details,
    encode_details,
    is_listed,
)
from keepthread.stores.redis.changes import PlaceWriter, withdraw_entries
from keepthread.stores.redis.engine import LUA, RedisLink
from keepthread.stores.redis.keys import (
    Place,
    index_of,
    owner_tag,
    session_name,
    session_place,
    tag_of,
)
from keepthread.stores.redis.rows import guard_of, pack_head, seal, unpack_head, unpack_row
from keepthread.stores.rows import Head
from keepthread.stores.validation import MAX_COUNT
from keepthread.types import SessionInfo, SessionKey

_SEAL: Final = 8
_fixed = struct.Struct("<qBBdqHHH")
_time = struct.Struct("<d")
pack_time = _time.pack


class SessionHash(NamedTuple):
    """The fields of a session's hash."""

    life: bytes = b""
    head: bytes = b""
    active: bytes = b""
    record: bytes = b""
    revision: bytes = b""

    @property
    def next_revision(self) -> int:
        """Return the revision, which differs once the session is changed."""
        return int(self.revision) + 1 if self.revision.isdigit() else 1


class Description(NamedTuple):
    """The content of a sound record."""

    info: SessionInfo
    ttl: int
    """Milliseconds from the latest activity; 0: forever."""


async def read_state(link: RedisLink, place: Place) -> SessionHash:
    """Return the session's hash, or raise `SessionGone`."""
    state = state_of(await link.ask("HGETALL", place.session))
    if state.life != place.life.encode():
        raise SessionGone("the session was deleted")
    return state


def state_of(fields: Mapping[bytes, bytes]) -> SessionHash:
    """Return a hash as it was read."""
    return SessionHash(*(fields.get(name.encode(), b"") for name in SessionHash._fields))


def alive(reply: Any) -> Any:
    """Return a script's reply, or raise `SessionGone`."""
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


# --- the record: all fields of a session that its messages do not change ---


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
    """Return the readable parts of a damaged record, for display."""
    body = data[_SEAL:]
    if len(body) < _fixed.size:
        return SessionInfo(id="")
    id = _texts(body)[1].decode("utf-8", "replace")
    return SessionInfo(id=id, epoch=_fixed.unpack_from(body)[0])


def undamaged(place: Place, data: bytes) -> Description:
    """Return a sound record, or raise `Damaged`."""
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


async def sound_head(link: RedisLink, place: Place, data: bytes) -> tuple[Head, int] | None:
    """Return the end of a log and the time to live; repair damaged ones and return None."""
    head = unpack_head(place, data)
    if head is None:
        await _mend_head(link, place, data)
    return head


async def find_head(link: RedisLink, place: Place) -> Head:
    """Find the end of a log from its rows: the last sound one, plus damaged ones after it."""
    fields: list[bytes] = await link.ask("HKEYS", place.messages)
    seqs = sorted((int(field) for field in fields if field.isdigit()), reverse=True)
    last = seqs[0] if seqs else 0
    for seq in seqs:
        row = unpack_row(seq, await link.ask("HGET", place.messages, seq) or b"")
        if decode(place.number, row, guard_of).state != "damaged":
            return Head(last, row.turns, row.total)
    return Head(last)


async def _mend_head(link: RedisLink, place: Place, damaged: bytes) -> None:
    """Replace a damaged head by one computed from the rows, so that the log can be used."""
    state = await read_state(link, place)
    described = unpack_record(place, state.record)
    head = await find_head(link, place)
    whole = pack_head(place, head, described.ttl if described else 0)
    alive(await link.run(LUA["mend"], place.keys, (place.life, place.mark, damaged, whole)))


async def create(writer: PlaceWriter, tenant: str, info: SessionInfo, ttl: int) -> bool:
    """Create a session; return whether its id was free."""
    place = writer.place
    values = (
        pack_head(place, Head(), ttl),
        pack_active(place, info.updated_at),
        pack_record(place, tenant, info, ttl),
    )
    return bool(await writer.run("create", (place.life, place.mark, *values), CREATED))


async def update(writer: PlaceWriter, tenant: str, update: Update) -> SessionInfo:
    """Replace title, tags, system prompt, meta and readiness."""
    link, place = writer.link, writer.place
    while True:
        state = await read_state(link, place)
        known = await describe_state(link, place, state)
        ttl = undamaged(place, state.record).ttl
        record = pack_record(place, tenant, update.of(known), ttl)
        active = pack_active(place, update.now) if known.ready else b""
        args = (place.life, place.mark, state.revision, state.next_revision, record, active)
        if alive(await writer.run("update", args, UPDATED)):
            return await describe(link, place)


async def delete(writer: PlaceWriter, required: Condition) -> None:
    """Remove a session and all its data, if it meets the condition."""
    link, place = writer.link, writer.place
    unready, since = required
    args = (int(unready), b"" if since is None else pack_time(since))
    keyed = (place.life, place.mark)
    again = (*keyed, 1, *args)
    outcome = await writer.run("delete", (*keyed, 0, *args), DELETED, again=again, frees=True)
    reason = alive(outcome).decode()
    if reason == "damaged":
        raise damaged_session((await describe(link, place)).id)
    if reason != "deleted":
        raise Stale(NOT_DELETED[reason])


async def by_id(link: RedisLink, tenant: str, owner: str, id: str) -> SessionInfo | None:
    """Return an owner's session with an id, or None."""
    state = state_of(await link.ask("HGETALL", session_name(tenant, owner, id)))
    if not state.life:
        return None
    key = SessionKey(f"{state.life.decode('ascii', 'replace')}-{tag_of(owner, id)}")
    try:
        return await describe_state(link, session_place(tenant, key), state)
    except SessionGone:
        raise Damaged(f"the record of session {id!r} is damaged; run `verify`") from None


async def describe(link: RedisLink, place: Place) -> SessionInfo:
    """Return a session's metadata."""
    return await describe_state(link, place, await read_state(link, place))


async def owner_and_id(link: RedisLink, place: Place) -> tuple[str, str]:
    """Return the owner and the id of a session; without an owner if its record is damaged."""
    life, record = await link.ask("HMGET", place.session, "life", "record")
    if life != place.life.encode():
        raise SessionGone("the session was deleted")
    described = unpack_record(place, record or b"")
    info = described.info if described else replace(unpack_damaged(record or b""), owner="")
    return info.owner, info.id


async def epoch_of(link: RedisLink, place: Place) -> int:
    """Return the number of erasures in a session."""
    life, record = await link.ask("HMGET", place.session, "life", "record")
    if life != place.life.encode():
        raise SessionGone("the session was deleted")
    return undamaged(place, record or b"").info.epoch


async def describe_state(link: RedisLink, place: Place, state: SessionHash) -> SessionInfo:
    """Return the metadata in a session's hash."""
    head, _ = unpack_head(place, state.head) or (await find_head(link, place), 0)
    described = unpack_record(place, state.record)
    active = unpack_active(place, state.active)
    sound = described is not None and active is not None
    known = described.info if described else unpack_damaged(state.record)
    return replace(
        known if sound else SessionInfo(id=known.id, epoch=known.epoch, state="damaged"),
        key=place.key,
        updated_at=active if sound and active is not None else 0.0,
        messages=head.seq,
        turns=head.turns,
        tokens=head.total,
    )


GRACE: Final = 60_000_000
"""Microseconds after which an announced session is not created any more."""

_PAGE: Final = 100
_SWEPT_BY_A_LIST: Final = 1000
SWEPT_BY_A_NEW_SESSION: Final = 20
"""More than one, so that the index shrinks while sessions are created."""


async def register(link: RedisLink, tenant: str, info: SessionInfo, ttl: int) -> SessionKey:
    """Announce a session before it is created, and return its key."""
    index = index_of(tenant)
    keys = (index.last, index.sessions, index.active, index.active_of(info.owner), index.ends)
    keys += (index.unlisted, index.sessions_of(info.owner))
    about = (tag_of(info.owner, info.id), int(is_listed(info)), repr(info.updated_at))
    key: bytes = await link.run(LUA["register"], keys, (*about, ttl, GRACE, owner_tag(info.owner)))
    return SessionKey(key.decode())


async def update_index(link: RedisLink, tenant: str, info: SessionInfo) -> None:
    """Update the index with a session's activity, and whether it is listed."""
    index = index_of(tenant)
    keys = (index.sessions, index.active, index.active_of(info.owner), index.unlisted)
    number = info.key.partition("-")[0]
    args = (info.key, number, int(is_listed(info)), repr(info.updated_at))
    await link.run(LUA["list"], keys, args)


async def withdraw(link: RedisLink, tenant: str, key: SessionKey, owner: str) -> None:
    """Remove a session from the index."""
    index = index_of(tenant)
    keys = (index.sessions, index.active, index.active_of(owner), index.unlisted)
    keys += (index.sessions_of(owner),)
    await link.run(LUA["clear"], keys, (-GRACE, key))
    await withdraw_entries(link, tenant, [key])


async def listed(
    link: RedisLink, tenant: str, owner: str | None, wanted: Listing
) -> list[tuple[Position, SessionInfo]]:
    """Return listed sessions by activity, as the index knows it."""
    index = index_of(tenant)
    name = index.active if owner is None else index.active_of(owner)
    name = index.unlisted if wanted.unlisted else name
    found: list[tuple[Position, SessionInfo]] = []
    gone = 0
    if wanted.limit:
        async for places in _by_activity(link, name, wanted, min(_PAGE, max(10, wanted.limit))):
            infos = await _there(link, tenant, [place.key.encode() for place in places], name)
            gone += len(places) - len(infos)
            there = {info.key: info for info in infos if _is_wanted(info, wanted)}
            found += [(place, there[place.key]) for place in places if place.key in there]
            if len(found) >= wanted.limit:
                break
    if gone:
        await sweep(link, tenant, most=_SWEPT_BY_A_LIST)
    found.sort(key=lambda each: each[0], reverse=wanted.after is None)
    return found[: wanted.limit]


def _is_wanted(info: SessionInfo, wanted: Listing) -> bool:
    return info.state == "damaged" or is_listed(info) != wanted.unlisted


async def _by_activity(
    link: RedisLink, name: str, wanted: Listing, page: int
) -> AsyncIterator[list[Position]]:
    """Yield the entries of a sorted set beyond a position, each of them once.

    They are read by score. Ranks shift whenever an entry is cleared away or becomes active, and a
    page of ranks passes over as many others.
    """
    bound = wanted.after or wanted.before
    command, end = ("ZRANGEBYSCORE", b"+inf") if wanted.after else ("ZREVRANGEBYSCORE", b"-inf")
    start = repr(bound.at).encode() if bound else b"+inf"
    seen: set[Position] = set()
    top, last, tied, pages = b"", start, 0, 0
    while True:
        asked = page + tied
        limits = (last, end, b"WITHSCORES", b"LIMIT", 0, asked)
        rows: list[bytes] = await link.ask(command, name, *limits)
        keys, scores = rows[::2], rows[1::2]
        new = [place for place in map(_position, scores, keys) if place not in seen]
        if not new:
            break
        top, last, pages = top or scores[0], scores[-1], pages + 1
        tied = scores.count(last)
        seen.update(new)
        yield [place for place in new if _is_beyond(place, wanted)]
        if len(keys) < asked:
            break
    if pages > 1 and bound is None:  # sessions active since the first page have moved to the front
        newer: list[bytes] = await link.ask(
            "ZREVRANGEBYSCORE", name, b"+inf", b"(" + top, b"WITHSCORES"
        )
        known = {place.key for place in seen}
        places = map(_position, newer[1::2], newer[::2])
        yield [place for place in places if place.key not in known]


def _position(score: bytes, key: bytes) -> Position:
    return Position(float(score), SessionKey(key.decode()))


def _is_beyond(place: Position, wanted: Listing) -> bool:
    if wanted.after:
        return place > wanted.after
    return wanted.before is None or place < wanted.before


async def sweep(link: RedisLink, tenant: str, *, most: int) -> None:
    """Remove up to `most` expired sessions from the index."""
    index = index_of(tenant)
    while most > 0:
        entries: list[bytes] = await link.run(LUA["due"], (index.ends,), (min(most, _PAGE),))
        if not entries:
            return
        left = await _times_left(link, tenant, entries)
        gone = [e.decode("utf-8", "replace") for e, t in zip(entries, left, strict=True) if t < 0]
        await withdraw_entries(link, tenant, [entry.partition(" ")[0] for entry in gone])
        pairs = [part for pair in zip(entries, left, strict=True) for part in pair]
        keys = (index.sessions, index.active, index.ends, index.unlisted)
        await link.run(LUA["sweep"], keys, (GRACE, *pairs))
        most -= len(entries)


async def _times_left(link: RedisLink, tenant: str, entries: Sequence[bytes]) -> list[int]:
    """Return the least remaining life of sessions in milliseconds; -1 if one is gone."""
    places = [_place_of(tenant, entry.partition(b" ")[0]) for entry in entries]
    known = [place for place in places if place]
    ends = await link.ask_together([("PTTL", place.session) for place in known])
    lives = await link.ask_together([("HGET", place.session, "life") for place in known])
    left = {
        place.key: max(0, end) if life == place.life.encode() else -1
        for place, end, life in zip(known, ends, lives, strict=True)
    }
    return [left[place.key] if place else -1 for place in places]


def _place_of(tenant: str, key: bytes) -> Place | None:
    """Return where a session of the index is, or None if the entry is damaged."""
    try:
        return session_place(tenant, SessionKey(key.decode("utf-8", "replace")))
    except SessionGone:
        return None


async def scan(
    link: RedisLink, tenant: str, owner: str | None, after: SessionKey | None, limit: int
) -> list[SessionInfo]:
    """Return every session after a key, in the order of creation."""
    found: list[SessionInfo] = []
    async for info in every(link, tenant, owner, after=after, page=min(limit, _PAGE)):
        found.append(info)
        if len(found) == limit:
            break
    if owner is None and len(found) < limit:  # it has passed all expired sessions too
        await sweep(link, tenant, most=MAX_COUNT)
    return found


async def every(
    link: RedisLink,
    tenant: str,
    owner: str | None = None,
    *,
    after: SessionKey | None = None,
    page: int = _PAGE,
) -> AsyncIterator[SessionInfo]:
    """Yield every session after a key, or from the first."""
    index = index_of(tenant)
    name = index.sessions if owner is None else index.sessions_of(owner)
    last = f"({after.partition('-')[0]}" if after else "-inf"
    while page > 0:
        keys = await link.ask("ZRANGEBYSCORE", name, last, "+inf", "LIMIT", 0, page)
        for info in await _there(link, tenant, keys, name):
            yield info
        if len(keys) < page:
            return
        last = f"({keys[-1].decode().partition('-')[0]}"


async def _there(
    link: RedisLink, tenant: str, keys: Sequence[bytes], met_in: str
) -> list[SessionInfo]:
    """Return the existing sessions of these keys; remove the others from the index."""
    places = [_place_of(tenant, key) for key in keys]
    known = [place for place in places if place]
    states = await link.ask_together([("HGETALL", place.session) for place in known])
    found: dict[SessionKey, SessionInfo] = {}
    for place, fields in zip(known, states, strict=True):
        state = state_of(fields)
        if state.life == place.life.encode():
            found[place.key] = await describe_state(link, place, state)
    gone = [
        key for key, place in zip(keys, places, strict=True) if not place or place.key not in found
    ]
    if gone:
        index = index_of(tenant)
        sets = (index.sessions, index.active, index.unlisted, met_in)
        await link.run(LUA["clear"], sets, (GRACE, *gone))
    return list(found.values())


async def describe_if_there(link: RedisLink, tenant: str, key: bytes) -> SessionInfo | None:
    """Return a session's metadata, or None if it is gone."""
    try:
        return await describe(link, session_place(tenant, SessionKey(key.decode())))
    except SessionGone:
        return None
