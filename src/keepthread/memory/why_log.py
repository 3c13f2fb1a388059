"""Explanations: the reasons for a context's selection; a limited number per session.

They hold sizes, positions, reasons, references and keyed digests, never text. They are written in
the background.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Any, Final, NamedTuple, cast

from keepthread.context.prompt_digests import references_of, sealed
from keepthread.context.why import Why
from keepthread.errors import Stale
from keepthread.memory.digest_keys import keyring
from keepthread.memory.material import position_key
from keepthread.memory.runtime import Background
from keepthread.protocols import History, Material, Store, Strategy
from keepthread.references import References
from keepthread.stores.kinds import FOLD, WHY
from keepthread.types import JSON, Choice, Record, Scope, Selection, SessionInfo, SessionKey

IMPORTANT: Final = "important"
RECALLED: Final = "recalled"
ADDED: Final = "added"
"""The view name of an explanation of additions to a prompt built by another program."""
_PAUSE: Final = 0.02
"""Seconds before an explanation is written: the caller asks a model first."""
_TIME: Final = 12
"""Digits of a key that are its time."""
_TRIALS: Final = 3
"""How often an explanation is written with digests while messages are being erased."""
_PAGE: Final = 500


class Explanation(NamedTuple):
    """The reasons for a context's selection, and which context it was."""

    view: str
    at: float
    """When it was built, in seconds since 1970."""
    turn: int
    """The turn that it was for; 0 if there was none."""
    why: Why
    references: References | None = None
    """The sources of the prompt; None if that is unknown."""

    def to_json(self) -> dict[str, Any]:
        """Return all of it as plain JSON."""
        return {
            "view": self.view,
            "at": self.at,
            "turn": self.turn,
            **self.why.to_json(),
            "references": self.references and self.references.to_json(),
        }


class PromptSources(NamedTuple):
    """The material of a context, for as long as it takes to write its explanation."""

    selection: Selection
    material: Material
    past: History
    strategy: Strategy
    counter: str
    facts_of: str
    """The owner whose facts it shows."""

    def references(self, info: SessionInfo) -> References | None:
        """Return what the prompt was made of, without digests."""
        return references_of(
            self.selection,
            self.material,
            self.past,
            session=info.key,
            session_id=info.id,
            strategy=self.strategy,
            counter=self.counter,
        )


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
        self._waiting: dict[SessionKey, deque[tuple[str, Explanation, PromptSources | None]]] = {}

    def note(self, session: SessionKey, view: str, why: Why, sources: PromptSources) -> None:
        """Write an explanation in the background."""
        kept = Explanation(view=view, at=self._clock(), turn=sources.material.turn, why=why)
        with self._lock:
            waiting = self._waiting.setdefault(session, deque(maxlen=self.keep))
            waiting.append((self._key(), kept, sources))
        self._background.soon((WHY, session), lambda: self._write(session))

    def note_addition(self, session: SessionKey, why: Why) -> None:
        """Write what was added to a prompt that somebody else built, in the background."""
        if self.keep:
            kept = Explanation(view=ADDED, at=self._clock(), turn=0, why=why)
            with self._lock:
                waiting = self._waiting.setdefault(session, deque(maxlen=self.keep))
                waiting.append((self._key(), kept, None))
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
        for key, account, sources in waiting:
            bare = account._replace(why=_without_words(account.why))
            await self._put(scope, key, bare, sources)
        newest = await self._store.scan(scope, WHY, limit=self.keep)
        if len(newest) == self.keep:
            for old in await self._store.scan(scope, WHY, before=newest[0].key):
                await self._store.drop(scope, WHY, old.key)

    async def _put(
        self, scope: Scope, key: str, account: Explanation, sources: PromptSources | None
    ) -> None:
        """Write one explanation; its digests cover nothing that was erased in the meantime."""
        for _ in range(_TRIALS):
            if sources is None:
                break
            references, epochs = await self._referenced(scope.session, sources)
            value = stored(account, references)
            try:
                await self._store.put(scope, WHY, key, value, epochs=epochs)
            except Stale:  # something was erased at this moment
                continue
            return
        await self._store.put(scope, WHY, key, stored(account, None))

    async def _referenced(
        self, session: SessionKey, sources: PromptSources
    ) -> tuple[References | None, dict[SessionKey, int]]:
        """Return references with digests, and the epochs of the sessions that they are of.

        Epochs are read first: the record is not stored if something is erased after that.
        """
        info = await self._store.describe(session)
        references = sources.references(info)
        if references is None:
            return None, {}
        made = references.messages
        others: list[SessionInfo] = []
        for id in sorted({chunk.session for each in made for chunk in each.chunks} - {""}):
            other = await self._store.get_session(id, info.owner)
            if other is not None and other.ready:
                others.append(other)
        facts_of = sources.facts_of if any(each.facts for each in made) else None
        keys = await keyring(self._store, session, facts_of, others, make=True)
        references = sealed(references, sources.selection, keys)
        erased = {each.id: await self._erased(each, references, each.id) for each in others}
        erased[""] = await self._erased(info, references, "")

        def covers(id: str, first: int, last: int) -> bool:
            return any(first <= seq <= last for seq in erased.get(id, ()))

        epochs = {each.key: each.epoch for each in (info, *others)}
        return references.without_digests(covers), epochs

    async def _erased(self, info: SessionInfo, references: References, id: str) -> set[int]:
        """Return the positions that references name and that are erased by now."""
        if not info.epoch:  # nothing ever was
            return set()
        made = references.messages
        seqs = {chunk.seq for each in made for chunk in each.chunks if chunk.session == id}
        gone: set[int] = set()
        if not id:
            seqs |= {seq for each in made for seq in each.positions()}
            for last in {each.summary.last for each in made if each.summary} - {0}:
                # Erasing a message drops the summaries that cover it.
                found = await self._store.get(Scope(session=info.key), FOLD, position_key(last))
                gone |= set() if found else {last}
        wanted = sorted(seqs)
        for start in range(0, len(wanted), _PAGE):
            page = await self._store.find(info.key, seqs=wanted[start : start + _PAGE])
            gone |= {message.seq for message in page if message.state != "live"}
        return gone


def stored(account: Explanation, references: References | None) -> JSON:
    """Return the value of a record."""
    value = {**account.to_json(), "references": references and references.to_record()}
    return cast(JSON, value)


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
        references = References.from_record(value.get("references"), record.scope.session)
        return Explanation(value["view"], value["at"], value["turn"], why, references)
    except (KeyError, TypeError):
        return None
