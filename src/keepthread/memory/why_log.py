"""Explanations: why contexts were chosen as they were, a limited number for each session.

They hold sizes, positions and reasons, never text. They are written in the background.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Any, Final, NamedTuple, cast

from keepthread.context.why import Why
from keepthread.memory.runtime import Background
from keepthread.protocols import Store
from keepthread.stores.kinds import WHY
from keepthread.types import JSON, Choice, Record, Scope, Selection, SessionKey

IMPORTANT: Final = "important"
RECALLED: Final = "recalled"
_PAUSE: Final = 0.02
"""Seconds before an explanation is written: the caller asks a model first."""
_TIME: Final = 12
"""Digits of a key that are its time."""


class Explanation(NamedTuple):
    """Why a context was chosen as it was, and which context that was."""

    view: str
    at: float
    """When it was built, in seconds since 1970."""
    turn: int
    """The turn that it was for; 0 if there was none."""
    why: Why

    def to_json(self) -> dict[str, Any]:
        """Return all of it as plain JSON."""
        return {
            "view": self.view,
            "at": self.at,
            "turn": self.turn,
            **self.why.to_json(),
        }


class ChoiceLog:
    """Keeps the newest explanations of the sessions of one store."""

    def __init__(
        self,
        store: Store,
        keep: int,
        *,
        background: Background,
        clock: Callable[[], float],
        ids: Callable[[], str],
    ) -> None:
        """Keep up to `keep` explanations of each session; 0 keeps none."""
        self.keep = keep
        self._store = store
        self._background = background
        self._clock = clock
        self._ids = ids
        self._numbers = count()
        self._lock = threading.Lock()  # event loops may share it
        self._waiting: dict[SessionKey, deque[tuple[str, Explanation]]] = {}

    def note(self, session: SessionKey, view: str, turn: int, why: Why) -> None:
        """Write an explanation in the background."""
        kept = Explanation(view=view, at=self._clock(), turn=turn, why=why)
        with self._lock:
            waiting = self._waiting.setdefault(session, deque(maxlen=self.keep))
            waiting.append((self._key(), kept))
        self._background.soon((WHY, session), lambda: self._write(session))

    async def newest(self, session: SessionKey, limit: int) -> list[Explanation]:
        """Return explanations, newest first, including those that are being written."""
        await self._background.done((WHY, session))
        found = await self._store.scan(Scope(session=session), WHY, limit=limit)
        return [account for record in reversed(found) if (account := _explanation(record))]

    def _key(self) -> str:
        """Return a key that sorts by time, and within a millisecond by order of creation."""
        id = self._ids()
        return f"{id[:_TIME]}{next(self._numbers):08x}{id[_TIME:]}"

    async def _write(self, session: SessionKey) -> None:
        await asyncio.sleep(_PAUSE)
        scope = Scope(session=session)
        with self._lock:
            waiting = self._waiting.pop(session, ())
        for key, account in waiting:
            bare = account._replace(why=_without_words(account.why))
            await self._store.put(scope, WHY, key, cast(JSON, bare.to_json()))
        newest = await self._store.scan(scope, WHY, limit=self.keep)
        if len(newest) == self.keep:
            for old in await self._store.scan(scope, WHY, before=newest[0].key):
                await self._store.drop(scope, WHY, old.key)


def _without_words(why: Why) -> Why:
    """Return an explanation without quotations: erasing messages would not find them here."""
    return Why(Selection(why.budget, why.tokens, "", (), [_bare(c) for c in why.choices]))


def _bare(choice: Choice) -> Choice:
    if choice.session:
        return choice._replace(reason=RECALLED)
    return choice._replace(reason=IMPORTANT) if choice.section == "important" else choice


def _explanation(record: Record) -> Explanation | None:
    """Return the explanation in a record, or None if another program wrote something else."""
    value = cast(dict[str, Any], record.value)
    try:
        why = Why.from_json(value)
        return Explanation(view=value["view"], at=value["at"], turn=value["turn"], why=why)
    except (KeyError, TypeError):
        return None
