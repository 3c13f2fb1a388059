"""Carry out a plan: erase messages, and drop every record that was made from them."""

import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, cast

from keepthread.errors import Damaged, SessionGone, Stale
from keepthread.memory.digest_keys import drop_facts_key
from keepthread.memory.forgetting.blobs import OF_BLOBS, BlobErasure
from keepthread.memory.forgetting.choose import ErasureCounts
from keepthread.memory.forgetting.follow import Propagation, Sessions, sessions_of
from keepthread.memory.forgetting.plan import ErasurePlan, Intent, open_intents
from keepthread.memory.forgetting.receipt import Receipt
from keepthread.memory.forgetting.receipts import MAX_PLACES, StoredReceipt, keep
from keepthread.memory.forgetting.repeats import Living, details_of
from keepthread.protocols import Progress, Store
from keepthread.references import References
from keepthread.stores.kinds import (
    BLOB,
    BLOB_CHUNK,
    BLOB_USE,
    FACT,
    FORGET,
    LEASE,
    MARKS,
    RECEIPT,
    WHY,
    WHY_KEY,
)
from keepthread.types import JSON, Record, Residue, Scope, SessionInfo, SessionKey


class DerivedRecords:
    """The records of every scope of a tenant that a plan drops or changes.

    Explanations stay, but lose the digests of what is forgotten.
    """

    def __init__(
        self,
        store: Store,
        plan: ErasurePlan,
        sessions: Sessions,
        closed: Collection[SessionKey] = (),
    ) -> None:
        """Take the plan, its sessions with those that name them, and which of them were closed."""
        self._store = store
        self._plan = plan
        self._sessions = sessions
        self._closed = closed
        self._keys = {(info.owner, info.id): info.key for info in sessions.values()}
        self.residues: dict[Scope, Residue] = {}
        """Scopes whose records cannot be read."""

    async def count(self) -> Counter[str]:
        """Return how many records are dropped, by kind."""
        kinds = [record.kind async for record in self._going()]
        return Counter(kind for kind in kinds if kind != WHY_KEY)

    async def empty(self) -> None:
        """Drop the records; concurrently changed ones are read again."""
        stale = True
        while stale:
            stale = False
            async for record, left in self._touched():
                place = (record.scope, record.kind, record.key)
                try:
                    if left is None:
                        await self._store.drop(*place, version=record.version)
                    else:
                        await self._store.put(*place, left, version=record.version)
                except Stale:
                    stale = True
                except SessionGone:
                    continue
                if record.kind == FACT:  # a context may have made a new key in the meantime
                    await drop_facts_key(self._store, record.scope.owner)

    async def _going(self) -> AsyncGenerator[Record]:
        """Yield the records that are dropped."""
        async for record, left in self._touched():
            if left is None:
                yield record

    async def _touched(self) -> AsyncGenerator[tuple[Record, JSON]]:
        """Yield the records that are dropped, and those that change with their new values."""
        self.residues.clear()
        going = {(r.scope, r.kind, r.key): r for r in await self._dropped()}
        for scope in {r.scope for r in going.values() if r.kind == FACT}:
            for key in await self._scan(scope, WHY_KEY):  # digests of the fact are now meaningless
                going.setdefault((key.scope, key.kind, key.key), key)
        for record in sorted(going.values(), key=lambda r: (r.scope, r.kind != WHY_KEY)):
            yield record, None
        for info in self._sessions.values():
            for record in await self._scan(Scope(session=info.key), WHY):
                left = self._without_digests(record, info.owner)
                if (record.scope, record.kind, record.key) not in going and left is not None:
                    yield record, left

    async def _dropped(self) -> list[Record]:
        """Return the records that are dropped; some more than once."""
        plan = self._plan
        found: list[Record] = []
        for session in plan.sessions:
            made = await self._store.made_of(session, plan.positions(session))
            for scope in made.damaged:
                self._note_damage(scope)
            found += made.records
        for session in plan.whole.keys() & self._sessions.keys():
            kept = await self._scan(Scope(session=session))
            if session in self._closed and not await self._is_closed(session):
                continue  # it began again: the records are those of the new session
            left = (MARKS, LEASE, BLOB_USE)  # ranges hold no text; names of blobs go with the blobs
            found += [record for record in kept if record.kind not in left]
        if plan.owner is not None:
            kept = await self._scan(Scope(owner=plan.owner))
            left = (LEASE, RECEIPT, *OF_BLOBS)  # receipts hold no text
            found += [r for r in kept if r.kind not in left and plan.takes(r.version)]
        for owner, key in sorted(plan.facts):
            found += await self._get(Scope(owner=owner), FACT, key)
        return [record for record in found if record.kind != FORGET]

    async def _is_closed(self, session: SessionKey) -> bool:
        try:
            return (await self._store.describe(session)).forgotten
        except SessionGone:
            return False

    def _without_digests(self, record: Record, owner: str) -> JSON:
        """Return an explanation without the digests of what is forgotten; None if it has none."""
        value = cast(dict[str, Any], record.value)
        session = record.scope.session
        found = References.from_record(value.get("references"), session)

        def covers(id: str, first: int, last: int) -> bool:
            key = self._keys.get((owner, id)) if id else session
            return key is not None and self._plan.covers(key, first, last)

        left = found.without_digests(covers) if found else None
        if left is None or left is found or left == found:
            return None
        return {**value, "references": left.to_record()}

    async def _scan(self, scope: Scope, kind: str | None = None) -> list[Record]:
        try:
            if kind is not None:
                return await self._store.scan(scope, kind)
            return await self._store.scan(scope, without=BLOB_CHUNK)
        except SessionGone:
            return []
        except Damaged:
            self._note_damage(scope)
            return []

    async def _get(self, scope: Scope, kind: str, key: str) -> list[Record]:
        try:
            record = await self._store.get(scope, kind, key)
        except Damaged:
            self._note_damage(scope)
            return []
        return [record] if record else []

    def _note_damage(self, scope: Scope) -> None:
        info = self._sessions.get(scope.session)
        whose = info.id if info else scope.session or scope.owner or "the tenant"
        why = "a damaged record whose source messages are unknown"
        until = "it is dropped; `verify` lists it"
        self.residues[scope] = Residue(f"the records of {whose}", why, until)

    def residues_for(self, reader: str | None) -> list[Residue]:
        """Return the residues that an owner may know of, or all."""
        return [
            residue
            for scope, residue in self.residues.items()
            if reader in (None, self._owner_of(scope))
        ]

    def _owner_of(self, scope: Scope) -> str:
        info = self._sessions.get(scope.session)
        return info.owner if info else scope.owner


_AT_ONCE: Final = 500


class ErasureEnded(Exception):
    """Another process completed the erasure."""


class Erasure:
    """Carries out one intent.

    Two processes may do so at the same time, if one opens the memory while the other erases. Every
    step may be repeated, and each is bounded by the intent, so neither erases what came later.
    """

    def __init__(
        self,
        store: Store,
        intent: Intent,
        sessions: Sessions,
        views: Sequence[str],
        progress: Progress | None,
    ) -> None:
        """Take the plan; nothing is changed yet."""
        self._store = store
        self.intent = intent
        self._plan = intent.plan
        self._sessions = sessions
        self._progress = progress
        self._resumed = intent.planned is not None
        """Whether another process planned it."""
        self._reader = intent.reader
        self._counts = ErasureCounts(store, views)
        self._records: Counter[str] = Counter()
        self._residues: list[Residue] = []
        self._closed: set[SessionKey] = set()
        """Sessions that were closed; one that begins again in the meantime is left alone."""
        self._has_begun = intent.version > 0
        self._done = 0

    async def preview(self, propagation: Propagation, progress: Progress | None = None) -> bool:
        """Count what will be erased, and return whether all its sessions exist."""
        await self._counts.take(self._plan, self._sessions, progress)
        self._records = await (await self._derived(propagation)).count()
        self._records.pop(BLOB_USE, None)
        if number := await self._blobs().count(self._counts.probes):
            self._records[BLOB] = number
        return not self._counts.gone

    def plan_receipt(self, receipt: Receipt) -> Receipt:
        """Return the receipt that is planned, and keep it in the intent."""
        planned = self.report(receipt)
        self.intent = self.intent._replace(planned=planned)
        return planned

    def report(self, receipt: Receipt) -> Receipt:
        """Return a receipt with the counts; those of a plan that another process began stay."""
        if self._resumed:
            return replace(receipt, residues=tuple(self._residues))
        messages = self._counts.messages
        whole = [why for key, why in self._plan.whole.items() if key not in self._counts.closed]
        return replace(
            receipt,
            sessions=whole.count("chosen"),
            messages=messages["chosen"],
            copies=messages["copy"],
            delegates=whole.count("delegate"),
            derived=messages["made"] + messages["delegate"],
            records=dict(sorted(self._records.items())),
            index={what: n for what, n in self._counts.index.items() if n},
            titles=len(self._counts.titles),
            repeated=sorted({detail.where for detail in self._counts.repeats}),
            residues=tuple(self._residues),
        )

    # --- erasing ---

    async def store(self) -> None:
        """Store the intent with what another process added to it, or raise `ErasureEnded`."""
        plan = self._plan
        if plan.owner is not None and plan.newest is None and not self.intent.version:
            scope = Scope(owner=plan.owner)
            plan.newest = await self._store.put(scope, LEASE, FORGET, None)
            await self._store.drop(scope, LEASE, FORGET)
        while True:
            try:
                self.intent = await self.intent.store(self._store)
            except Stale:
                intents = {intent.id: intent for intent in await open_intents(self._store)}
                stored = intents.get(self.intent.id)
                if self._has_begun and (stored is None or stored.done):
                    raise ErasureEnded from None
                for entry in stored.plan.entries() if stored else ():
                    plan.take(entry)
                version = stored.version if stored else 0
                self.intent = self.intent._replace(version=version)
            else:
                self._has_begun = True
                return

    async def run(self) -> None:
        """Erase messages, drop what was made from them, and repeat for what was added since.

        Raises `ErasureEnded` if another process completed the erasure in the meantime.
        """
        plan, size = self._plan, -1
        while size < plan.size() + len(plan.halves):
            if size >= 0:
                await self.store()
                await self._counts.take(plan, self._sessions)
            await self._delete_halves()
            size = plan.size() + len(plan.halves)
            for key in plan.sessions:
                await self._erase(key)
            await self._blank()
            self._sessions = await sessions_of(self._store, plan)
            propagation = Propagation(
                self._store, plan, self._sessions, answers=self.intent.answers
            )
            derived = await self._derived(propagation)
            await derived.empty()
            await self._blobs().run()
            self._residues = derived.residues_for(self._reader)
            self._add_late()
            await propagation.run()

    async def _derived(self, propagation: Propagation) -> DerivedRecords:
        naming = await propagation.naming()
        sessions = {info.key: info for info in naming}
        return DerivedRecords(self._store, self._plan, sessions, self._closed)

    def _blobs(self) -> BlobErasure:
        return BlobErasure(
            self._store, self._plan, self._sessions, time.time, resumed=self._resumed
        )

    async def _delete_halves(self) -> None:
        """Delete forks that are not yet complete; a completed one is kept.

        A completed fork is followed like any other copy, so only its copies are erased.
        """
        for key in list(self._plan.halves):
            try:
                await self._store.delete_session(key, unready=True)
            except SessionGone:  # already deleted
                continue
            except Stale:
                self._plan.halves.discard(key)

    async def _erase(self, key: SessionKey) -> None:
        seqs = self._plan.positions(key)
        for start in range(0, len(seqs), _AT_ONCE):
            some = seqs[start : start + _AT_ONCE]
            with suppress(SessionGone):  # deleted in the meantime, with its messages
                await self._store.erase(key, some)
            self._done += len(some)
            if self._progress:
                self._progress(min(self._done, self._plan.size()), self._plan.size())

    async def _blank(self) -> None:
        """Clear the titles and prompts of forgotten sessions, first where a fork copied them."""
        for twin, originals in self._plan.twins.items():
            for key in originals & self._sessions.keys():
                original = self._sessions[key]
                await self._change(twin, lambda info, o=original: _without_copies(info, o))
        closing = self._to_close()
        for key in self._plan.sessions:
            if key in closing and key not in self._closed:
                await self._change(key, _closed)
            elif key not in self._closed:
                whole = key in self._plan.whole
                await self._change(key, _without_details if whole else self._without_title)
        self._closed |= closing

    def _to_close(self) -> set[SessionKey]:
        """Return the chosen sessions and their delegates, which exist for no other call then."""
        closing = {key for key, reason in self._plan.whole.items() if reason == "chosen"}
        more = closing
        while more:
            ids = {self._sessions[key].id for key in more if key in self._sessions}
            children = {key for key, child in self._sessions.items() if child.parent in ids}
            more = children & self._plan.whole.keys() - closing
            closing |= more
        return closing

    def _add_late(self) -> None:
        """Add what was appended to a session before it was closed."""
        for key in self._closed:
            info = self._sessions.get(key)
            if info is not None and info.forgotten:
                self._plan.add(key, range(1, info.messages + 1), self._plan.whole[key])

    def _without_title(self, info: SessionInfo) -> SessionInfo:
        return replace(info, title="", title_seq=0) if self._plan.takes_title(info) else info

    async def _change(self, key: SessionKey, change: Callable[[SessionInfo], SessionInfo]) -> None:
        try:
            while True:
                known = await self._store.describe(key)
                changed = change(known)
                if changed == known:
                    return
                if changed.forgotten and not await self._is_open():
                    raise ErasureEnded  # and the session may have begun again
                with suppress(Stale):  # changed by another process in the meantime: read it again
                    await self._store.put_session(changed, seen=known, whole=changed.forgotten)
                    return
        except SessionGone:
            return
        except Damaged:
            why = "the session's record is damaged and may contain its title or prompt"
            self._residues.append(Residue(f"session {key}", why, "the session is deleted"))

    async def _is_open(self) -> bool:
        return await self._store.get(Scope(), FORGET, self.intent.id) is not None

    # --- cleaning ---

    async def clean(self, receipt: Receipt) -> Receipt:
        """Let the engine remove the bytes, search for remainders, and end the intent."""
        probes = self._counts.probes.chosen()
        touched = [*self._plan.sessions, *self._plan.halves]
        rewrite = self.intent.rewrite
        cleaning = await self._store.clean(sessions=touched, rewrite=rewrite, probes=probes)
        owners = [self._sessions[key].owner for key in touched if key in self._sessions]
        living = Living(self._store, owners, probes, self._reader)
        if cleaning.found:
            await living.search([probes[n] for n in cleaning.found], self._progress)
            probes = [probe for probe in probes if probe not in living.held]
            again = await self._store.clean(probes=probes)
            if again.found and not again.again:  # in unused space, which only a rewrite removes
                again = await self._store.clean(sessions=touched, rewrite=True, probes=probes)
                cleaning = cleaning._replace(done=again.done)
            cleaning = again._replace(done=cleaning.done)
        receipt = replace(
            receipt,
            cleaned=tuple(cleaning.done),
            # Pieces that others also wrote stay in their messages; they are not the reader's data.
            probes=len(probes) + len(living.held - living.shown),
            excluded=len(living.shown),
            searched=tuple(cleaning.searched),
            found=len(cleaning.found),
            repeated=self._repeated(living),
            residues=(*receipt.residues, *cleaning.residues),
        )
        # Stored before the intent ends, so a process that completes the intent finds or stores it.
        intent = self.intent
        began = intent.planned.at if intent.planned else receipt.at
        kept = StoredReceipt(intent.id, began, receipt, resumed=self._resumed)
        await keep(self._store, self._reader, kept)
        if not cleaning.again:
            await intent.drop(self._store)
        elif not intent.done:  # the next process that opens the memory cleans again
            with suppress(Stale):  # another process ended it
                await intent._replace(done=True).store(self._store)
        return receipt

    def _planned_repeats(self) -> Sequence[str]:
        """Return the places that another process found, while it could still read the text."""
        return self.intent.planned.repeated if self._resumed and self.intent.planned else ()

    def _repeated(self, living: Living) -> list[str]:
        places = sorted({*self._repeats(living), *living.places, *self._planned_repeats()})
        return [_MORE_PLACES, *places] if living.is_cut else places

    def _repeats(self, living: Living) -> list[str]:
        """Return the places in sessions' records that still repeat forgotten text."""
        infos = [s for s in self._sessions.values() if self._reader in (None, s.owner)]
        kept = [detail for info in infos for detail in details_of(info)]
        seen = self._counts.repeats
        return [detail.where for detail in kept if detail in seen or living.has(detail)]


_MORE_PLACES: Final = f"the list may be incomplete: the search stopped after {MAX_PLACES:,} places"


def _closed(info: SessionInfo) -> SessionInfo:
    return replace(_without_details(info), ready=False, forgotten=True)


def _without_details(info: SessionInfo) -> SessionInfo:
    return replace(info, title="", title_seq=0, tags=(), system_prompt=None, meta={})


def _without_copies(info: SessionInfo, original: SessionInfo) -> SessionInfo:
    """Return a session without the fields that it copied from a forgotten one."""
    titled = info.title != original.title
    return replace(
        info,
        title=info.title if titled else "",
        title_seq=info.title_seq if titled else 0,
        tags=() if info.tags == original.tags else info.tags,
        system_prompt=None if info.system_prompt == original.system_prompt else info.system_prompt,
        meta={} if info.meta == original.meta else info.meta,
    )
