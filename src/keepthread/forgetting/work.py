"""Carrying out a plan: erasing, emptying shelves, cleaning up; done twice as done once.

Messages are erased before shelves are looked at: from then on the sessions' epochs refuse whatever
was being made of them. What was copied meanwhile is found by following once more.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from keepthread.codec import dumps
from keepthread.errors import Damaged, SessionGone
from keepthread.forgetting.choosing import Survey
from keepthread.forgetting.following import Following, Sessions, every_session
from keepthread.forgetting.intents import Intent
from keepthread.forgetting.probes import held_by
from keepthread.forgetting.receipt import Receipt
from keepthread.forgetting.shelves import Shelves
from keepthread.protocols import Progress, Store
from keepthread.types import Residue, Scope, SessionInfo, SessionKey

_AT_ONCE: Final = 500


class Work:
    """One intent on its way."""

    def __init__(
        self,
        store: Store,
        intent: Intent,
        sessions: Sessions,
        views: Sequence[str],
        progress: Progress | None,
    ) -> None:
        """Know what to do; nothing is touched yet."""
        self._store = store
        self._intent = intent
        self._plan = intent.plan
        self._sessions = sessions
        self._progress = progress
        self._survey = Survey(store, views)
        self._records: Counter[str] = Counter()
        self._residues: list[Residue] = []
        self._done = 0

    async def look(self) -> None:
        """Count what goes, while it is there."""
        await self._survey.take(self._plan)
        self._records = await Shelves(self._store, self._plan, self._sessions).count()

    def said(self, told: Receipt) -> Receipt:
        """Return a receipt with what was counted."""
        messages, whole = self._survey.messages, list(self._plan.whole.values())
        return replace(
            told,
            sessions=whole.count("chosen"),
            messages=messages["chosen"],
            copies=messages["copy"],
            delegates=whole.count("delegate"),
            derived=messages["made"] + messages["delegate"],
            records=dict(sorted(self._records.items())),
            index={what: n for what, n in self._survey.index.items() if n},
            residues=tuple(self._residues),
        )

    # --- erasing ---

    async def run(self) -> None:
        """Erase, take off what was made of it, and follow what came meanwhile, to the end."""
        plan, size = self._plan, -1
        while size < plan.size() + len(plan.halves):
            if size >= 0:
                await self._intent.store(self._store)
                await self._survey.take(plan)
            size = plan.size() + len(plan.halves)
            for key in plan.halves:
                with suppress(SessionGone):  # whoever was making it begins again
                    await self._store.delete_session(key)
            for key in plan.sessions:
                await self._erase(key)
            await self._blank()
            self._sessions = await every_session(self._store)
            shelves = Shelves(self._store, plan, self._sessions)
            await shelves.empty()
            self._residues = shelves.residues
            answers = self._intent.answers
            await Following(self._store, plan, self._sessions, answers=answers).run()

    async def _erase(self, key: SessionKey) -> None:
        seqs = self._plan.positions(key)
        for start in range(0, len(seqs), _AT_ONCE):
            some = seqs[start : start + _AT_ONCE]
            with suppress(SessionGone):  # deleted meanwhile, and its messages with it
                await self._store.erase(key, some)
            self._done += len(some)
            if self._progress:
                self._progress(min(self._done, self._plan.size()), self._plan.size())

    async def _blank(self) -> None:
        """Take away what is said of forgotten sessions, first where a fork copied it."""
        for twin, originals in self._plan.twins.items():
            for key in originals & self._sessions.keys():
                original = self._sessions[key]
                await self._change(twin, lambda info, o=original: _without_copies(info, o))
        for key in self._plan.whole:
            await self._change(key, _without_details)

    async def _change(self, key: SessionKey, change: Callable[[SessionInfo], SessionInfo]) -> None:
        try:
            known = await self._store.describe(key)
            changed = change(known)
            if changed != known:
                await self._store.put_session(changed)
        except SessionGone:
            return
        except Damaged:
            why = "the session's record is damaged, and may hold its title or its prompt"
            self._residues.append(Residue(f"session {key}", why, "the session is deleted"))

    # --- cleaning ---

    async def clean(self, told: Receipt) -> Receipt:
        """Let the engine let go of the bytes, look whether it did, and end the intent."""
        probes = self._survey.probes.chosen()
        touched = [*self._plan.sessions, *self._plan.halves]
        rewrite = self._intent.rewrite
        cleaning = await self._store.clean(sessions=touched, rewrite=rewrite, probes=probes)
        if cleaning.found:
            probes = await self._held_by_none(probes)
            again = await self._store.clean(probes=probes)
            cleaning = again._replace(done=cleaning.done)
        if not cleaning.again:  # else the next one who opens the memory does it over
            await self._intent.drop(self._store)
        return replace(
            told,
            cleaned=tuple(cleaning.done),
            probes=len(probes),
            searched=tuple(cleaning.searched),
            found=cleaning.found,
            residues=(*told.residues, *cleaning.residues),
        )

    async def _held_by_none(self, probes: Sequence[bytes]) -> list[bytes]:
        """Return the probes that no living message, record or session has."""
        held: set[bytes] = set()
        scopes = [Scope(), *(Scope(owner=owner) for owner in await self._store.owners())]
        for info in self._sessions.values():
            held |= _found(probes, f"{info.title}\0{info.system_prompt}".encode())
            scopes.append(Scope(session=info.key))
            with suppress(SessionGone):
                held |= await self._held_in(info.key, probes)
        for scope in scopes:
            with suppress(SessionGone, Damaged):
                for record in await self._store.scan(scope):
                    held |= _found(probes, dumps(record.value, "the value"))
        return [probe for probe in probes if probe not in held]

    async def _held_in(self, key: SessionKey, probes: Sequence[bytes]) -> set[bytes]:
        held: set[bytes] = set()
        after = 0
        while page := await self._store.read(key, after=after, limit=_AT_ONCE):
            for message in page:
                held |= held_by(message, probes)
            after = page[-1].seq
        return held


def _found(probes: Sequence[bytes], data: bytes) -> set[bytes]:
    return {probe for probe in probes if probe in data}


def _without_details(info: SessionInfo) -> SessionInfo:
    return replace(info, title="", tags=(), system_prompt=None, meta={})


def _without_copies(info: SessionInfo, original: SessionInfo) -> SessionInfo:
    """Return a session without what it has from another that is forgotten."""
    return replace(
        info,
        title="" if info.title == original.title else info.title,
        tags=() if info.tags == original.tags else info.tags,
        system_prompt=None if info.system_prompt == original.system_prompt else info.system_prompt,
        meta={} if info.meta == original.meta else info.meta,
    )
