"""Intents: what a forgetting is about to do, stored before it begins, without a word of it.

Should its process die, the next one that opens the memory finds the intent and completes it. A
large one is several records; until all of them are there, nothing was begun.
"""

from collections.abc import Mapping
from itertools import islice
from typing import Any, Final, NamedTuple, cast

from keepthread.forgetting.plan import Plan
from keepthread.forgetting.wish import Wish
from keepthread.leases import FORGET
from keepthread.protocols import Store
from keepthread.types import JSON, Record, Scope

_ENTRIES: Final = 4000


class Intent(NamedTuple):
    """What was begun, and how."""

    id: str
    wish: Wish
    plan: Plan
    answers: bool = False
    rewrite: bool = False

    async def store(self, store: Store) -> None:
        """Put it on the tenant's shelf."""
        entries = self.plan.entries()
        parts = [list(islice(entries, _ENTRIES))]
        while more := list(islice(entries, _ENTRIES)):
            parts.append(more)
        for number, part in enumerate(parts):
            value: JSON = {
                "parts": len(parts),
                "asked": self.wish.to_json(),
                "answers": self.answers,
                "rewrite": self.rewrite,
                "entries": part,
            }
            await store.put(Scope(), FORGET, f"{self.id}:{number:06}", value)
        await self._drop(store, after=len(parts) - 1)

    async def drop(self, store: Store) -> None:
        """Take it off: it is done."""
        await self._drop(store)

    async def _drop(self, store: Store, *, after: int = -1) -> None:
        for record in await store.scan(Scope(), FORGET):
            id, _, number = record.key.rpartition(":")
            if id == self.id and int(number) > after:
                await store.drop(Scope(), FORGET, record.key)


async def intents(store: Store) -> list[Intent]:
    """Return what was begun and is not done."""
    begun: dict[str, list[Record]] = {}
    for record in await store.scan(Scope(), FORGET):
        begun.setdefault(record.key.rpartition(":")[0], []).append(record)
    return [_intent(id, records) for id, records in begun.items() if _is_whole(records)]


def _is_whole(records: list[Record]) -> bool:
    return len(records) >= cast(Mapping[str, Any], records[0].value)["parts"]


def _intent(id: str, records: list[Record]) -> Intent:
    plan = Plan()
    for record in records:
        for entry in cast(Mapping[str, Any], record.value)["entries"]:
            plan.take(entry)
    head = cast(Mapping[str, Any], records[0].value)
    return Intent(id, Wish(**head["asked"]), plan, head["answers"], head["rewrite"])
