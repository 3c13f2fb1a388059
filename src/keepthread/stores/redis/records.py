"""A record as one value in Redis; `lua/common.lua` says the same in Lua."""

import asyncio
import json
import os
import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from keepthread.errors import Damaged, SessionGone, Stale
from keepthread.protocols import MadeRecords, Relatives, Updates
from keepthread.stores.backend import Put
from keepthread.stores.links import node_of
from keepthread.stores.records import ALL_KEYS, Keys, check_epoch, check_version, decode_record
from keepthread.stores.redis.changes import (
    PlaceWriter,
    all_spans,
    begun_with,
    bounds_of,
    enter,
    entered,
    named,
    spans_at,
    withdraw_entries,
)
from keepthread.stores.redis.engine import LUA, RedisLink
from keepthread.stores.redis.keys import (
    Place,
    place_from_index,
    place_in_index,
    scope_place,
    session_place,
)
from keepthread.stores.redis.rows import message_at, seal
from keepthread.stores.redis.sessions import alive, describe, describe_if_there, epoch_of
from keepthread.stores.validation import MAX_COUNT
from keepthread.types import Record, Scope, SessionInfo, SessionKey, Span

_SEAL: Final = 8
_rest = struct.Struct("<8sIII")
_version = struct.Struct("<q")
_REST: Final = _version.size + _SEAL


class Kept(NamedTuple):
    """A record, and the epochs of other sessions that must be confirmed before it counts."""

    record: Record
    waits: Mapping[SessionKey, int]
    settled: bytes
    """Its encoding once it is confirmed."""


def name_of(kind: str, key: str) -> bytes:
    """Return the field of a record; names sort by kind and key, because neither contains NUL."""
    return f"{kind}\0{key}".encode()


def name_by_version(member: bytes) -> bytes:
    """Return the field of a record from its member in the order by version."""
    kind, _, rest = member.partition(b"\0")
    return kind + b"\0" + rest.partition(b"\0")[2]


def pack_rest(value: bytes, made_of: bytes | None, waits: Mapping[SessionKey, int]) -> bytes:
    """Return an encoded record without its version; two puts of the same value differ."""
    made, waiting = made_of or b"", json.dumps(dict(waits)).encode() if waits else b""
    fixed = _rest.pack(os.urandom(8), zlib.crc32(value), len(made), len(waiting))
    return fixed + made + waiting + value


def settled(rest: bytes) -> bytes:
    """Return the same without the epochs to confirm."""
    token, check, made, waiting = _rest.unpack_from(rest)
    start = _rest.size + made
    return _rest.pack(token, check, made, 0) + rest[_rest.size : start] + rest[start + waiting :]


def unpack(place: Place, scope: Scope, name: bytes, data: bytes) -> Kept:
    """Return a record, or raise `Damaged`."""
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


_PUT: Final = 1
_OTHER_EPOCH: Final = -1


class ScopedRecords:
    """The records of one scope of a tenant."""

    def __init__(self, link: RedisLink, tenant: str, place: Place, scope: Scope) -> None:
        """Keep the scope; nothing is read yet."""
        self.link = link
        self.tenant = tenant
        self.place = place
        self.scope = scope
        self._who = (place.life, place.mark)

    async def put(self, new: Put, writer: PlaceWriter, change: int | None) -> int:
        """Store a record, unless it or its sources changed since the caller read them."""
        kind, key, value, made_of, spans, version, epochs, names = new
        others = {s: epoch for s, epoch in epochs.items() if s != self.place.key}
        own = epochs.get(self.place.key) if self.place.key else None
        name = name_of(kind, key)
        try:
            await self._check(others)
        except (Stale, SessionGone):
            record = await self.get(kind, key)  # another version is reported first
            check_version(record.version if record else 0, version)
            raise
        sources = _sources(spans, self.place.key)
        place = place_in_index(self.scope, kind, key)
        await writer.name(names)
        await enter(self.link, self.tenant, sources, place)
        rest = pack_rest(value, made_of, others)
        seen = ("" if version is None else version, "" if own is None else own)
        args = (*self._who, name, *seen, rest)
        verdict, number = alive(await writer.run("put", args, change, self._changed(key)))
        if verdict == _OTHER_EPOCH:
            check_epoch(number, own or 0)
        if verdict != _PUT:
            check_version(number, version)
        # Again, because another process may have dropped the record, with its entries, just before.
        await enter(self.link, self.tenant, sources, place)
        if others:
            await self._settle(name, number, others, settled(rest))
        return number

    async def get(self, kind: str, key: str) -> Record | None:
        """Return one record."""
        name = name_of(kind, key)
        while True:
            data = alive(await self.link.run(LUA["get"], self.place.keys, (*self._who, name)))
            if not data:
                return None
            kept = unpack(self.place, self.scope, name, data)
            if not await self.settled([(name, kept)]):
                continue
            return kept.record

    async def scan(self, kind: str | None, keys: Keys) -> list[Record]:
        """Return the records of the scope."""
        count = -1 if keys.limit == MAX_COUNT else keys.limit
        while True:
            found: list[bytes] = []
            for first, last in _bounds(kind, keys):
                args = (*self._who, first, last, count)
                found += alive(await self.link.run(LUA["scan"], self.place.keys, args))
            kept = self.unpack_all(found)
            if await self.settled(kept):
                return [k.record for _, k in kept]

    async def updates(self, kind: str, since: int) -> Updates:
        """Return all records of a kind, or nothing if no record of the scope changed."""
        while True:
            found = await self.link.run(LUA["updates"], self.place.keys, (*self._who, kind, since))
            kept = self.unpack_all(found[2])
            if await self.settled(kept):
                return Updates(int(found[0]), bool(found[1]), [k.record for _, k in kept])

    async def drop(
        self, kind: str, key: str, version: int | None, writer: PlaceWriter, change: int | None
    ) -> bool:
        """Delete a record, even a damaged one."""
        args = (*self._who, name_of(kind, key), "" if version is None else version)
        ids = self._changed(key)
        reply = await writer.run("drop", (*args, 0), change, ids, again=(*args, 1), frees=True)
        verdict, number = alive(reply)
        if not verdict:
            check_version(number, version)
        if not self.place.key:  # those of a session go with it
            await withdraw_entries(self.link, self.tenant, [place_in_index(self.scope, kind, key)])
        return bool(number)

    def _changed(self, key: str) -> Sequence[str]:
        """Return what the feed names: the key of an owner's record; of a session only itself."""
        return () if self.place.key else (key,)

    def unpack_all(self, found: Sequence[bytes]) -> list[tuple[bytes, Kept]]:
        """Return records from names and values in descending order."""
        pairs = zip(found[::2], found[1::2], strict=True)
        return [(n, unpack(self.place, self.scope, n, data)) for n, data in pairs][::-1]

    async def settled(self, kept: Sequence[tuple[bytes, Kept]]) -> bool:
        """Return whether all records are confirmed; confirm or revert those that are not."""
        waiting = [(name, one) for name, one in kept if one.waits]
        for name, one in waiting:
            try:
                await self._settle(name, one.record.version, one.waits, one.settled)
            except (Stale, SessionGone):
                continue
        return not waiting

    async def _settle(
        self, name: bytes, version: int, waits: Mapping[SessionKey, int], rest: bytes
    ) -> None:
        """Confirm a waiting record, or revert it and raise the reason."""
        args = (*self._who, name, version)
        try:
            await self._check(waits)
        except (Stale, SessionGone):
            await self.link.run(LUA["settle"], self.place.keys, (*args, b""))
            raise
        if not alive(await self.link.run(LUA["settle"], self.place.keys, (*args, rest))):
            raise Stale("the record was replaced or reverted in the meantime")

    async def _check(self, epochs: Mapping[SessionKey, int]) -> None:
        for session, epoch in epochs.items():
            check_epoch(await epoch_of(self.link, session_place(self.tenant, session)), epoch)


def _sources(spans: Sequence[Span], own: SessionKey) -> list[str]:
    """Return the sources of entries that lead to a record; its own session is read as a whole."""
    nodes = [(span.session, node_of(span)) for span in spans if span.session != own]
    return [spans_at(session, node) for session, node in nodes if node is not None]


async def made_of(
    link: RedisLink, tenant: str, session: SessionKey, nodes: Sequence[int] | None
) -> MadeRecords:
    """Return the records of other scopes at some nodes of a session, and all of its own."""
    if nodes is None:
        bounds = all_spans(session)
    else:
        bounds = tuple(b for node in nodes for b in bounds_of(spans_at(session, node)))
    places = [place_from_index(place) for place in await entered(link, tenant, bounds)]
    found: list[Record] = []
    damaged: list[Scope] = []
    for scope, kind, key in places:
        try:
            records = ScopedRecords(link, tenant, scope_place(tenant, scope), scope)
            record = await records.get(kind, key)
        except SessionGone:
            continue
        except Damaged:
            damaged.append(scope)
        else:
            found += [record] if record else []
    own = Scope(session=session)
    try:
        records = ScopedRecords(link, tenant, session_place(tenant, session), own)
        found += await records.scan(None, ALL_KEYS)
    except SessionGone:
        pass
    except Damaged:
        damaged.append(own)
    return MadeRecords(found, list(dict.fromkeys(damaged)))


async def relatives(link: RedisLink, tenant: str, place: Place) -> Relatives:
    """Return the sessions of the same owner that may repeat messages of this one."""
    try:
        mine = await describe(link, place)
        first = await _first(link, place)
    except SessionGone:
        return Relatives((), ())
    naming = await _entered(link, tenant, named(mine.owner, mine.id))
    if first is None:
        return Relatives((), naming)
    others = await _entered(link, tenant, begun_with(mine.owner, *first))
    others = [info for info in others if info.key != mine.key]
    begun = await asyncio.gather(
        *(_first(link, session_place(tenant, info.key)) for info in others)
    )
    pairs = zip(others, begun, strict=True)
    return Relatives([info for info, its in pairs if its == first], naming)


async def _entered(link: RedisLink, tenant: str, source: str) -> list[SessionInfo]:
    places = await entered(link, tenant, bounds_of(source))
    keys = [place.partition(b"\0")[0] for place in places]
    found = await asyncio.gather(*(describe_if_there(link, tenant, key) for key in keys))
    return sorted((info for info in found if info), key=lambda info: info.key)


async def _first(link: RedisLink, place: Place) -> tuple[str, float] | None:
    """Return the id and the time of a session's first message."""
    data = await link.ask("HGET", place.messages, 1)
    message = message_at(place, 1, data) if data else None
    return (message.id, message.created_at) if message else None


def _bounds(kind: str | None, keys: Keys) -> list[tuple[bytes, bytes]]:
    """Return ranges of names, the last first, each with two bounds, both exclusive."""
    if kind is not None:
        return [(b"(" + name_of(kind, keys.after), b"(" + name_of(kind, keys.before))]
    if not keys.without:
        return [(b"-", b"+")]
    skipped = b"(" + keys.without.encode()  # no kind contains a control character
    return [(skipped + b"\1", b"+"), (b"-", skipped + b"\0")]
