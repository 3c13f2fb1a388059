"""Forgetting, step by step: choose, store the intent, carry it out, clean up, return a receipt."""

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from keepthread.errors import SessionGone, Stale
from keepthread.memory.forgetting.choose import choose
from keepthread.memory.forgetting.execute import Erasure, ErasureEnded
from keepthread.memory.forgetting.follow import Propagation, Sessions, sessions_of
from keepthread.memory.forgetting.plan import ErasurePlan, ForgetQuery, Intent, open_intents
from keepthread.memory.forgetting.receipt import AffectedAnswer, Receipt
from keepthread.memory.forgetting.receipts import StoredReceipt, find_receipt, read_receipts
from keepthread.memory.runtime import Background
from keepthread.protocols import Progress, Store
from keepthread.text_caches import clear_text_caches
from keepthread.types import Page

if TYPE_CHECKING:
    from keepthread.stores.outbox.store import OutboxStore

_log: Final = logging.getLogger("keepthread")


class Forgetting:
    """Erases messages in one store, for one tenant."""

    Query: Final = ForgetQuery
    """What to erase: the messages that match every given field."""

    def __init__(
        self,
        store: Store,
        *,
        clock: Callable[[], float],
        ids: Callable[[], str],
        outbox: "OutboxStore | None" = None,
        views: Sequence[str] = (),
        progress: Progress | None = None,
        reader: str | None = None,
        background: Background,
    ) -> None:
        """Take the store, the same store with its outbox if any, and the views of vectors.

        `reader` is the owner who gets the receipt: it then names nothing of another owner.
        """
        self._store = store
        self._clock = clock
        self._ids = ids
        self._outbox = outbox
        self._views = views
        self._progress = progress
        self._reader = reader
        self._background = background

    async def forget(
        self,
        query: ForgetQuery,
        *,
        answers: bool,
        rewrite: bool,
        dry_run: bool,
        id: str | None = None,
    ) -> Receipt:
        """Forget what a query matches, or report what that would be.

        `id` names the erasure: one that was done returns its receipt, one that was interrupted is
        completed. Without an id, an interrupted one of the same query is completed first. If the
        caller is canceled after the erasure began, it continues in the background.
        """
        query.check()
        completed = None if dry_run else await self._completed(query, id)
        if id and completed:
            return completed
        if self._outbox is not None:
            await self._outbox.outbox.deliver()  # so that the log has all messages
        id = id or self._ids()
        while True:
            sessions: Sessions = {}
            plan = await choose(self._store, sessions, query, self._progress)
            propagation = Propagation(self._store, plan, sessions, answers=answers)
            await propagation.run()
            intent = Intent(id, query, plan, answers, rewrite, reader=self._reader)
            erasure = Erasure(self._store, intent, sessions, self._views, self._progress)
            if await erasure.preview(propagation, self._progress):
                break  # else a session was deleted, perhaps before its copies were looked up
        affected = await self._answers(plan, sessions, propagation, erased=answers)
        receipt = replace(_blank(query, self._clock()), answers=affected, answers_erased=answers)
        planned = erasure.plan_receipt(receipt)
        if dry_run:
            return replace(planned, dry_run=True)
        if completed and not planned.any:
            return replace(completed, asked=query.to_json())
        return await self._background.finish(
            ("forget", intent.id), lambda: self._carry_out(erasure, planned)
        )

    async def receipts(self, limit: int, cursor: str | None) -> Page[StoredReceipt]:
        """Return the receipts that the reader got, latest first."""
        return await read_receipts(self._store, self._reader, limit=limit, cursor=cursor)

    async def complete(self) -> int:
        """Complete what a process began before it died; return the number of intents."""
        intents = await open_intents(self._store)
        for intent in intents:
            if receipt := await self._complete(intent):
                _log.info("completed an interrupted erasure of %d messages", receipt.messages)
        return len(intents)

    async def _completed(self, query: ForgetQuery, id: str | None) -> Receipt | None:
        """Return the receipt of an earlier erasure of this id, or this query, once it has ended."""
        if id and (stored := await find_receipt(self._store, self._reader, id)):
            return stored.receipt
        receipt = None
        for intent in await open_intents(self._store):
            is_same = intent.id == id if id else intent.query == query and not intent.done
            if is_same and intent.reader == self._reader:
                receipt = await self._complete(intent) or receipt
        return receipt

    async def _complete(self, intent: Intent) -> Receipt | None:
        """Complete an erasure; None if it never began."""

        async def resume() -> Receipt | None:
            # A task of this process may have changed or ended it since it was read.
            intents = {each.id: each for each in await open_intents(self._store)}
            stored = intents.get(intent.id)
            if stored is None:
                kept = await find_receipt(self._store, intent.reader, intent.id)
                return kept and kept.receipt
            if not stored.plan:
                with suppress(Stale):  # its process lives
                    await stored.drop(self._store, version=stored.version)
                return None
            sessions = await sessions_of(self._store, stored.plan)
            propagation = Propagation(self._store, stored.plan, sessions, answers=stored.answers)
            if not stored.done:
                await propagation.run()
            erasure = Erasure(self._store, stored, sessions, self._views, None)
            await erasure.preview(propagation)
            planned = stored.planned or _blank(stored.query, self._clock())
            return await self._carry_out(erasure, planned)

        return await self._background.finish(("forget", intent.id), resume)

    async def _carry_out(self, erasure: Erasure, receipt: Receipt) -> Receipt:
        query, plan = erasure.intent.query, erasure.intent.plan
        try:
            queued = 0
            with suppress(ErasureEnded):
                if plan and not erasure.intent.done:
                    await erasure.store()
                queued = await self._empty_outbox(query, plan)
                # If all was erased, a session may have been created again since.
                if plan and not erasure.intent.done:
                    await erasure.run()
            receipt = replace(erasure.report(receipt), at=self._clock(), queued=queued)
            return await erasure.clean(receipt) if plan or queued else receipt
        finally:
            clear_text_caches()

    async def _answers(
        self, plan: ErasurePlan, sessions: Sessions, propagation: Propagation, *, erased: bool
    ) -> list[AffectedAnswer]:
        if erased:
            seqs = {
                key: [q for q in plan.positions(key) if plan.reasons(key)[q] == "answer"]
                for key in plan.sessions
            }
        else:
            seqs = await propagation.answers()
        return [
            AffectedAnswer(sessions[key].id, seq)
            for key, found in seqs.items()
            for seq in found
            if self._reader in (None, sessions[key].owner)
        ]

    async def _empty_outbox(self, query: ForgetQuery, plan: ErasurePlan) -> int:
        """Remove messages from the outbox that were set aside there and match as well."""
        if self._outbox is None:
            return 0
        sessions: Sessions = {}
        for key in await self._outbox.sessions_aside():
            with suppress(SessionGone):
                sessions[key] = await self._store.describe(key)
        return await self._outbox.erase_aside(
            lambda key, message: (
                key in plan.whole
                or (
                    (info := sessions.get(key)) is not None
                    and query.matches_session(info)
                    and query.matches(info.owner, message)
                )
            )
        )


def _blank(query: ForgetQuery, at: float) -> Receipt:
    return Receipt(asked=query.to_json(), at=at, records={}, index={})
