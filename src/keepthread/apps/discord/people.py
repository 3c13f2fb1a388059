"""People and the names they used, so that all of their messages can be found again."""

import asyncio
import unicodedata
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, NamedTuple, cast
from weakref import WeakValueDictionary

from keepthread.apps.discord.types import DiscordUser
from keepthread.errors import Stale
from keepthread.protocols import Store
from keepthread.types import Record, Scope

KIND: Final = "discord-person"
_LONGEST_NAME: Final = 32
_KEPT: Final = " .-_'"
_NAMELESS: Final = "someone"


class PersonState(NamedTuple):
    """The stored state of a person."""

    authors: Sequence[str] = ()
    """Under which authors messages were stored: a name may change."""
    forgotten: int = 0
    """Messages up to this number are to be forgotten, also those that arrive late."""


class People:
    """Who wrote under which names, in a record of the tenant."""

    def __init__(self, store: Store) -> None:
        """Use a store."""
        self._store = store
        self._locks: WeakValueDictionary[int, asyncio.Lock] = WeakValueDictionary()

    def alone(self, id: int) -> AbstractAsyncContextManager[None]:
        """Lock a person: storing and forgetting exclude each other."""
        return self._locks.setdefault(id, asyncio.Lock())

    async def known(self, id: int) -> PersonState:
        """Return a person's stored state."""
        return _known(await self._record(id))

    async def meet(self, person: DiscordUser) -> PersonState:
        """Record a person's name before any message is stored under it."""
        while True:
            record = await self._record(person.id)
            known = _known(record)
            if person.author in known.authors:
                return known
            known = known._replace(authors=(*known.authors, person.author))
            if await self._put(person.id, known, record):
                return known

    async def forget(self, id: int, upto: int) -> None:
        """Drop a person's names, and keep the number up to which messages are forgotten."""
        while True:
            record = await self._record(id)
            known = _known(record)
            left = PersonState(forgotten=max(upto, known.forgotten))
            if known == left or await self._put(id, left, record):
                return

    async def _record(self, id: int) -> Record | None:
        return await self._store.get(Scope(), KIND, str(id))

    async def _put(self, id: int, known: PersonState, record: Record | None) -> bool:
        # Numbers are written as text: they are larger than every JSON keeps exactly.
        value = {"authors": list(known.authors), "forgotten": str(known.forgotten)}
        try:
            await self._store.put(
                Scope(), KIND, str(id), value, version=record.version if record else 0
            )
        except Stale:  # another process was faster
            return False
        return True


def _known(record: Record | None) -> PersonState:
    if record is None:
        return PersonState()
    value = cast("dict[str, Any]", record.value)
    return PersonState(tuple(value["authors"]), int(value["forgotten"]))


def plain_name(*names: str | None) -> str:
    """Return the first name that is not empty after sanitizing.

    Only letters, digits and a few marks remain: no bracket or colon that could imitate another
    person's turn.
    """
    for name in names:
        kept = "".join(c for c in unicodedata.normalize("NFC", name or "") if _is_kept(c))
        if plain := " ".join(kept[:_LONGEST_NAME].split()):
            return plain
    return _NAMELESS


def _is_kept(character: str) -> bool:
    return unicodedata.category(character)[0] in "LMN" or character in _KEPT
