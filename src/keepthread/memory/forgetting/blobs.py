"""Erase the blobs that only forgotten messages refer to, with every chunk."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from keepthread.errors import Damaged, KeepthreadError, SessionGone, Stale
from keepthread.memory.blobs.references import BlobUse
from keepthread.memory.blobs.repository import BlobRepository
from keepthread.memory.blobs.types import BlobSizes, Described
from keepthread.memory.forgetting.follow import Sessions
from keepthread.memory.forgetting.plan import ErasurePlan
from keepthread.memory.forgetting.probes import MOST, Probes
from keepthread.protocols import Store
from keepthread.stores.kinds import BLOB, BLOB_CHUNK, BLOB_UPLOAD, BLOB_USE
from keepthread.types import Message, Scope, SessionKey

OF_BLOBS: Final = frozenset((BLOB, BLOB_CHUNK, BLOB_UPLOAD, BLOB_USE))
"""Kinds that are erased here, in an order that leaves no chunk without a name."""


class _Leaving(NamedTuple):
    """References that an erasure drops, and the blobs that it erases with them."""

    uses: list[BlobUse]
    digests: list[str]


class BlobErasure:
    """Erases the blobs of one plan."""

    def __init__(
        self,
        store: Store,
        plan: ErasurePlan,
        sessions: Sessions,
        clock: Callable[[], float],
        *,
        resumed: bool = False,
    ) -> None:
        """Take the plan, and its sessions that exist; `resumed` if another process began it."""
        self._resumed = resumed
        self._store = store
        self._plan = plan
        self._sessions = dict(sessions)
        self._gone: set[SessionKey] = set()
        self._clock = clock

    async def count(self, probes: Probes) -> int:
        """Return how many blobs will be erased; offer pieces of them to search for."""
        number = 0
        for owner in self._owners():
            blobs = self._blobs(owner)
            if owner == self._plan.owner:
                named = {record.key for record in await self._store.scan(_of(owner), BLOB)}
            else:
                named = set((await self._leaving(blobs)).digests)
            for digest in sorted(named):
                number += 1
                if number <= MOST:
                    await self._offer(blobs, digest, probes)
        return number

    async def run(self) -> None:
        """Erase the blobs; those that another message refers to stay."""
        for owner in self._owners():
            blobs = self._blobs(owner)
            if owner == self._plan.owner:
                await self._all(blobs, owner)
                continue
            leaving = await self._leaving(blobs)
            # Marked first: if this process dies, the one that completes the erasure finds them.
            for digest in leaving.digests:
                await blobs.mark_unused(digest)
            await blobs.references.drop(leaving.uses)
            for digest in leaving.digests:
                await blobs.release(digest)
            if self._resumed:
                await self._unused(blobs, owner)
            if leaving.uses or self._resumed:
                await blobs.chunks.sweep()

    async def _unused(self, blobs: BlobRepository, owner: str) -> None:
        """Erase blobs that a process which died had marked, and whose references it dropped."""
        for record in await self._store.scan(_of(owner), BLOB):
            if not Described.of(record).kept:
                await blobs.release(record.key)
        for session in self._plan.sessions:
            if session in self._sessions and self._sessions[session].owner == owner:
                await blobs.references.drop_names(session)

    # --- inside ---

    def _owners(self) -> list[str]:
        touched = [self._sessions[key] for key in self._plan.sessions if key in self._sessions]
        own = [] if self._plan.owner is None else [self._plan.owner]
        return sorted({*own, *(info.owner for info in touched)})

    def _blobs(self, owner: str) -> BlobRepository:
        return BlobRepository(self._store, owner, sizes=BlobSizes(), clock=self._clock)

    async def _leaving(self, blobs: BlobRepository) -> "_Leaving":
        """Return the references of messages in the plan, and the blobs with no other reference."""
        going: list[BlobUse] = []
        for session, uses in (await self._uses(blobs)).items():
            closed = session in self._plan.whole and not await self._is_open(session)
            if closed or not await self._exists(session):
                going += uses
            elif self._plan.positions(session):
                going += await self._erased(session, uses)
        keys = {use.key for use in going}
        digests: list[str] = []
        for digest in dict.fromkeys(use.digest for use in going):
            others = [u for u in await blobs.references.of_blob(digest) if u.key not in keys]
            if not any([await self._exists(use.session) for use in others]):
                going += others
                digests.append(digest)
        return _Leaving(going, digests)

    async def _uses(self, blobs: BlobRepository) -> dict[SessionKey, list[BlobUse]]:
        """Return the references of the plan's sessions; deleted ones are in the owner's list."""
        keys = [*self._plan.sessions, *self._plan.halves]
        found: dict[SessionKey, list[BlobUse]] = {}
        if not self._resumed and all([await self._exists(key) for key in keys]):
            try:
                for key in keys:
                    if self._sessions[key].owner == blobs.owner:
                        for digest in await blobs.used_in(key):
                            uses = await blobs.references.of_session(digest, key)
                            found.setdefault(key, []).extend(uses)
            except SessionGone:  # deleted in the meantime
                found.clear()
            else:
                return found
        for use in await blobs.references.all():
            found.setdefault(use.session, []).append(use)
        return found

    async def _exists(self, session: SessionKey) -> bool:
        if session not in self._sessions and session not in self._gone:
            try:
                self._sessions[session] = await self._store.describe(session)
            except SessionGone:
                self._gone.add(session)
        return session in self._sessions

    async def _erased(self, session: SessionKey, uses: list[BlobUse]) -> list[BlobUse]:
        try:
            found = await self._store.find(session, ids={use.message for use in uses})
        except SessionGone:
            return uses
        seqs = self._plan.reasons(session)
        gone = {m.id for m in found if m.state == "erased" or m.seq in seqs}
        return [use for use in uses if use.message in gone]

    async def _offer(self, blobs: BlobRepository, digest: str, probes: Probes) -> None:
        """Offer a piece of a blob as it is stored."""
        try:
            described = await blobs.chunks.describe(digest)
            key = f"{described.upload}:000000" if described else ""
            chunk = await self._store.get(blobs.chunks.scope, BLOB_CHUNK, key) if key else None
        except KeepthreadError:
            return
        if chunk is not None and isinstance(chunk.value, str):
            probes.offer(Message(role="user", content=chunk.value[:4096]))

    async def _all(self, blobs: BlobRepository, owner: str) -> None:
        """Erase what an owner had when the erasure began.

        Blobs stay that were stored since, or that messages refer to which were stored since.
        """
        for record in await self._store.scan(_of(owner), BLOB):
            while (found := await blobs.chunks.entry(record.key)) and self._plan.takes(
                found.version
            ):
                if await self._newer(await blobs.references.of_blob(record.key)):
                    await blobs.mark_unused(record.key)
                    break
                with suppress(Stale):  # it changed: read it again
                    await blobs.remove(found)
        of_import = await blobs.chunks.adopt()
        await blobs.chunks.sweep(also=lambda r: r.key in of_import or self._plan.takes(r.version))
        uses = await blobs.references.all()
        newer = {use.key for use in await self._newer(uses)}
        await blobs.references.drop([use for use in uses if use.key not in newer])

    async def _newer(self, uses: Sequence[BlobUse]) -> list[BlobUse]:
        """Return the references of messages that were stored, or may still be, after the plan."""
        by_session: dict[SessionKey, list[BlobUse]] = {}
        for use in uses:
            by_session.setdefault(use.session, []).append(use)
        newer: list[BlobUse] = []
        for session, of_session in by_session.items():
            if await self._is_open(session):
                erased = {use.key for use in await self._erased(session, of_session)}
                newer += [use for use in of_session if use.key not in erased]
        return newer

    async def _is_open(self, session: SessionKey) -> bool:
        """Return whether a session exists, or began again since it was forgotten."""
        try:
            return not (await self._store.describe(session)).forgotten
        except (SessionGone, Damaged):
            return False


def _of(owner: str) -> Scope:
    return Scope(owner=owner)
