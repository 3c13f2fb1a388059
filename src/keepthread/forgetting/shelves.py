"""What is made of messages and lies on shelves: found on every one of them, and taken off."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from typing import Final, NamedTuple

from keepthread.accounts import WHY
from keepthread.errors import Damaged, SessionGone, Stale
from keepthread.forgetting.following import Sessions
from keepthread.forgetting.plan import Plan
from keepthread.gather import MARKS
from keepthread.leases import FORGET, LEASE
from keepthread.protocols import Store
from keepthread.types import Record, Residue, Scope, SessionInfo

_ABREAST: Final = 8  # shelves at a time: a server is asked again while it answers


class Shelves:
    """Every shelf of a tenant, looked at for what a plan takes away."""

    def __init__(self, store: Store, plan: Plan, sessions: Sessions) -> None:
        """Know what goes."""
        self._store = store
        self._plan = plan
        self._sessions = sessions
        self.residues: list[Residue] = []
        """Shelves that cannot be read."""

    async def count(self) -> Counter[str]:
        """Return how many records go, by kind."""
        return Counter([record.kind async for record in self._going()])

    async def empty(self) -> None:
        """Take off what goes; what was changed at that moment is looked at again."""
        stale = True
        while stale:
            stale = False
            async for record in self._going():
                try:
                    place = (record.scope, record.kind, record.key)
                    await self._store.drop(*place, version=record.version)
                except Stale:
                    stale = True
                except SessionGone:
                    continue

    async def _going(self) -> AsyncGenerator[Record]:
        self.residues.clear()
        shelves = [self._of_session(info) for info in self._sessions.values()]
        for owner in await self._store.owners():
            goes = _everything if owner == self._plan.owner else self._is_made
            shelves.append(_Shelf(Scope(owner=owner), owner, goes))
        shelves.append(_Shelf(Scope(), "the tenant", self._is_made))
        for start in range(0, len(shelves), _ABREAST):
            some = shelves[start : start + _ABREAST]
            found = await asyncio.gather(*(self._scan(shelf) for shelf in some))
            for shelf, records in zip(some, found, strict=True):
                for record in filter(shelf.goes, records):
                    yield record

    def _of_session(self, info: SessionInfo) -> "_Shelf":
        if info.key in self._plan.whole:
            goes = _all_but_marks
        else:
            goes = self._is_made_or_told if self._plan.positions(info.key) else self._is_made
        return _Shelf(Scope(session=info.key), info.id, goes)

    def _is_made(self, record: Record) -> bool:
        return record.kind != FORGET and self._plan.touches(record.made_of)

    def _is_made_or_told(self, record: Record) -> bool:
        return record.kind == WHY or self._is_made(record)

    async def _scan(self, shelf: "_Shelf") -> list[Record]:
        try:
            return await self._store.scan(shelf.scope)
        except SessionGone:
            return []
        except Damaged:
            why = "a record there is damaged, and nobody knows what it was made of"
            self.residues.append(
                Residue(f"the shelf of {shelf.whose}", why, "it is dropped; `verify` names it")
            )
            return []


class _Shelf(NamedTuple):
    scope: Scope
    whose: str
    goes: Callable[[Record], bool]


def _everything(record: Record) -> bool:
    return record.kind != LEASE


def _all_but_marks(record: Record) -> bool:
    """Tell whether a record of a forgotten session goes; marks are but positions."""
    return record.kind not in (MARKS, LEASE)
