"""Forgetting, step by step: choose, store the intent, carry it out, clean up, return a receipt."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from keepthread.memory.forgetting.answers import answers_to
from keepthread.memory.forgetting.choose import choose
from keepthread.memory.forgetting.execute import Work
from keepthread.memory.forgetting.follow import Following, Sessions, all_sessions
from keepthread.memory.forgetting.plan import Intent, Plan, Wish, intents
from keepthread.memory.forgetting.receipt import Answer, Receipt
from keepthread.protocols import Progress, Store
from keepthread.text_caches import clear_text_caches

if TYPE_CHECKING:
    from keepthread.stores.outbox.store import OutboxStore

_log: Final = logging.getLogger("keepthread")


class Forgetting:
    """Erases messages in one store, for one tenant."""

    def __init__(
        self,
        store: Store,
        *,
        clock: Callable[[], float],
        ids: Callable[[], str],
        outbox: "OutboxStore | None" = None,
        views: Sequence[str] = (),
        progress: Progress | None = None,
    ) -> None:
        """Take the store, the same store with its outbox if any, and the views of vectors."""
        self._store = store
        self._clock = clock
        self._ids = ids
        self._outbox = outbox
        self._views = views
        self._progress = progress

    async def forget(self, wish: Wish, *, answers: bool, rewrite: bool, dry_run: bool) -> Receipt:
        """Forget what a query matches, or report what that would be."""
        wish.check()
        if self._outbox is not None:
            await self._outbox.outbox.deliver()  # so that the log has all messages
        sessions = await all_sessions(self._store)
        plan = await choose(self._store, sessions, wish)
        await Following(self._store, plan, sessions, answers=answers).run()
        intent = Intent(self._ids(), wish, plan, answers, rewrite)
        work = Work(self._store, intent, sessions, self._views, self._progress)
        await work.look()
        known = await self._answers(plan, sessions, erased=answers)
        told = replace(_blank(wish, self._clock()), answers=known, answers_erased=answers)
        if dry_run:
            return replace(work.said(told), dry_run=True)
        return await self._carry_out(intent, work, told)

    async def complete(self) -> int:
        """Complete what a process began before it died; return the number of intents."""
        found = await intents(self._store)
        for intent in found:
            sessions = await all_sessions(self._store)
            await Following(self._store, intent.plan, sessions, answers=intent.answers).run()
            work = Work(self._store, intent, sessions, self._views, None)
            await work.look()
            told = await self._carry_out(intent, work, _blank(intent.wish, self._clock()))
            _log.info("completed a forgetting of %d messages", told.messages)
        return len(found)

    async def _carry_out(self, intent: Intent, work: Work, told: Receipt) -> Receipt:
        try:
            if intent.plan:
                await intent.store(self._store)
            queued = await self._empty_outbox(intent.wish, intent.plan)
            if intent.plan:
                await work.run()
            told = replace(work.said(told), at=self._clock(), queued=queued)
            return await work.clean(told) if intent.plan or queued else told
        finally:
            clear_text_caches()

    async def _answers(self, plan: Plan, sessions: Sessions, *, erased: bool) -> list[Answer]:
        if erased:
            seqs = {
                key: [q for q in plan.positions(key) if plan.reasons(key)[q] == "answer"]
                for key in plan.sessions
            }
        else:
            seqs = await answers_to(self._store, sessions, plan)
        return [Answer(sessions[key].id, seq) for key, found in seqs.items() for seq in found]

    async def _empty_outbox(self, wish: Wish, plan: Plan) -> int:
        """Remove messages from the outbox that were set aside there and match as well."""
        if self._outbox is None:
            return 0
        sessions = await all_sessions(self._store)
        return await self._outbox.erase_aside(
            lambda key, message: (
                key in plan.whole
                or (
                    (info := sessions.get(key)) is not None
                    and wish.admits(info)
                    and wish.means(info.owner, message)
                )
            )
        )


def _blank(wish: Wish, at: float) -> Receipt:
    return Receipt(asked=wish.to_json(), at=at, records={}, index={})
