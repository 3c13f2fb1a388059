"""The shelf in Redis: each function is one operation.

A value may be made from sessions in other slots, whose epochs no script can look at together with
the record. Such a record is put waiting: it names the epochs it was made under, and keeps what it
replaces. Then the epochs are looked at once more, and it is let stand or taken back. Whoever meets
a waiting record does the same before looking at it, so nobody ever sees a value that was made
before an erasure and put behind it, wherever the one who put it died.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from keepthread.checks import MAX_COUNT
from keepthread.errors import SessionGone, Stale
from keepthread.stores.details import Keys, check_epoch, check_version
from keepthread.stores.redis.link import Link
from keepthread.stores.redis.places import Place, session_place
from keepthread.stores.redis.records import Kept, name_of, pack_rest, settled, unpack
from keepthread.stores.redis.scripts import LUA
from keepthread.stores.redis.sessions import epoch_of
from keepthread.stores.redis.state import alive
from keepthread.types import Record, Scope, SessionKey

_PUT: Final = 1
_OTHER_EPOCH: Final = -1


class Shelf:
    """One shelf of a tenant."""

    def __init__(self, link: Link, tenant: str, place: Place, scope: Scope) -> None:
        """Name the shelf; nothing is asked yet."""
        self.link = link
        self.tenant = tenant
        self.place = place
        self.scope = scope
        self._who = (place.life, place.mark)

    async def put(
        self,
        kind: str,
        key: str,
        value: bytes,
        made_of: bytes | None,
        version: int | None,
        epochs: Mapping[SessionKey, int],
    ) -> int:
        """Replace a record if it and its sources are as the caller saw them."""
        others = {s: epoch for s, epoch in epochs.items() if s != self.place.key}
        own = epochs.get(self.place.key) if self.place.key else None
        name = name_of(kind, key)
        try:
            await self._check(others)
        except (Stale, SessionGone):
            record = await self.get(kind, key)  # another version is the first thing to be said
            check_version(record.version if record else 0, version)
            raise
        rest = pack_rest(value, made_of, others)
        seen = ("" if version is None else version, "" if own is None else own)
        args = (*self._who, name, *seen, rest)
        verdict, number = alive(await self.link.run(LUA["put"], self.place.keys, args))
        if verdict == _OTHER_EPOCH:
            check_epoch(number, own or 0)
        if verdict != _PUT:
            check_version(number, version)
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
        """Return the records of the shelf."""
        first, last = _bounds(kind, keys)
        count = -1 if keys.limit == MAX_COUNT else keys.limit
        args = (*self._who, first, last, count)
        while True:
            found = alive(await self.link.run(LUA["scan"], self.place.keys, args))
            kept = self.unpack_all(found)
            if await self.settled(kept):
                return [k.record for _, k in kept]

    async def drop(self, kind: str, key: str, version: int | None) -> bool:
        """Take a record away; it need not be sound for that."""
        args = (*self._who, name_of(kind, key), "" if version is None else version)
        reply = await self.link.run(LUA["drop"], self.place.keys, (*args, 0), again=(*args, 1))
        verdict, number = alive(reply)
        if not verdict:
            check_version(number, version)
        return bool(number)

    def unpack_all(self, found: Sequence[bytes]) -> list[tuple[bytes, Kept]]:
        """Return records from names and values that come last first."""
        pairs = zip(found[::2], found[1::2], strict=True)
        return [(n, unpack(self.place, self.scope, n, data)) for n, data in pairs][::-1]

    async def settled(self, kept: Sequence[tuple[bytes, Kept]]) -> bool:
        """Tell whether no record waits; those that do are let stand or taken back."""
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
        """Let a record that waits stand, or take it back and say why."""
        args = (*self._who, name, version)
        try:
            await self._check(waits)
        except (Stale, SessionGone):
            await self.link.run(LUA["settle"], self.place.keys, (*args, b""))
            raise
        if not alive(await self.link.run(LUA["settle"], self.place.keys, (*args, rest))):
            raise Stale("the record was replaced or taken back meanwhile")

    async def _check(self, epochs: Mapping[SessionKey, int]) -> None:
        for session, epoch in epochs.items():
            check_epoch(await epoch_of(self.link, session_place(self.tenant, session)), epoch)


def _bounds(kind: str | None, keys: Keys) -> tuple[bytes, bytes]:
    """Return the first and the last name, neither included."""
    if kind is None:
        return b"-", b"+"
    return b"(" + name_of(kind, keys.after), b"(" + name_of(kind, keys.before)
