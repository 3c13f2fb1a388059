"""Admin: what concerns all owners of a tenant, for the person or program that runs the store."""

from collections.abc import AsyncGenerator, Collection
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Final

from keepthread.errors import SessionGone, Stale
from keepthread.memory.search.search import Filters, Hit
from keepthread.memory.services import Services
from keepthread.protocols import Progress
from keepthread.stores.kinds import PRUNED
from keepthread.stores.validation import check_count, seconds_of
from keepthread.types import Page, Role, Scope, SessionInfo, SessionKey, Verification

if TYPE_CHECKING:
    from keepthread.memory.forgetting.receipt import Receipt  # loaded when it is first used

DAY: Final = 86_400.0
_PAGE: Final = 500
_NOTED_LATE: Final = 1.0  # seconds


class Admin:
    """Calls over all owners of a tenant; get it from `Memory.admin`.

    A program that serves several people passes it to nothing that acts for one of them.
    """

    def __init__(self, services: Services) -> None:
        """Take the services of a tenant; callers use `Memory.admin`."""
        self._services = services
        self._store = services.store

    async def list_sessions(
        self, *, limit: int = 10, cursor: str | None = None
    ) -> Page[SessionInfo]:
        """Return information about sessions, latest activity first, without delegated tasks.

        `cursor` is the `next` of an earlier page.
        """
        return await self._store.list_sessions(limit=limit, cursor=cursor)

    async def search(
        self,
        query: str,
        *,
        since: float | datetime | None = None,
        until: float | datetime | None = None,
        roles: Collection[Role] | None = None,
        limit: int = 10,
        cursor: str | None = None,
        progress: Progress | None = None,
    ) -> Page[Hit]:
        """Return the messages most related to a question; see `OwnerMemory.search`."""
        filters = Filters(
            since=seconds_of(since, "since"), until=seconds_of(until, "until"), roles=roles
        )
        return await self._services.searching.search(
            query, filters, limit=limit, cursor=cursor, progress=progress
        )

    async def index(self, *, progress: Progress | None = None) -> None:
        """Index the messages written since the last time, by words and by vectors."""
        await self._services.searching.catch_up(progress=progress)

    async def forget(
        self,
        *,
        author: str | None = None,
        source: str | None = None,
        since: float | datetime | None = None,
        until: float | datetime | None = None,
        answers: bool = False,
        rewrite: bool = False,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> "Receipt":
        """Erase the matching messages of all owners; see `OwnerMemory.forget`.

        `rewrite` lets a server rewrite its tables, which locks them for a while.
        """
        return await self._services.forget(
            author=author,
            source=source,
            since=since,
            until=until,
            answers=answers,
            rewrite=rewrite,
            dry_run=dry_run,
            progress=progress,
        )

    async def verify(self, *, progress: Progress | None = None) -> Verification:
        """Check everything that is stored."""
        return await self._store.verify(progress=progress)

    # --- pruning ---

    async def prune(
        self, days: int = 30, *, daily: bool = False, progress: Progress | None = None
    ) -> int:
        """Delete sessions of all kinds without activity for `days` days; return how many.

        `daily` does nothing if a program did it within a day. `progress` gets the number of deleted
        sessions and the total.
        """
        if daily and not await self._is_due():
            return 0
        # Activity is noted up to a second late, so the last second before counts as activity;
        # not with 0 days, which means every session.
        late = _NOTED_LATE if check_count(days, "days") else 0.0
        before = max(0.0, self._services.options.clock() - days * DAY - late)
        total = 0
        if progress:
            async for page in self._idle(before):
                total += sum(not info.forgotten for info in page)
        pruned = 0
        async for page in self._idle(before):
            for info in page:
                # Another process may have pruned it, or used it since the page was read.
                with suppress(SessionGone, Stale):
                    await self._services.delete_session(info, idle_since=before)
                    pruned += not info.forgotten
                    if progress:
                        progress(pruned, max(total, pruned))
        for owner in await self._store.owners():
            await self._services.blobs(owner).sweep()
        return pruned

    async def _is_due(self) -> bool:
        """Return whether nobody pruned within a day, and note that it is done now."""
        now = self._services.options.clock()
        record = await self._store.get(Scope(), PRUNED, PRUNED)
        if record is not None and isinstance(at := record.value, int | float) and now - at < DAY:
            return False
        try:
            version = record.version if record else 0
            await self._store.put(Scope(), PRUNED, PRUNED, now, version=version)
        except Stale:  # another program is about to
            return False
        return True

    async def _idle(self, before: float) -> AsyncGenerator[list[SessionInfo]]:
        """Yield, page by page, the sessions without activity since a time."""
        after: SessionKey | None = None
        while page := await self._store.scan_sessions(after=after, limit=_PAGE):
            yield [s for s in page if s.state == "live" and s.updated_at < before]
            after = page[-1].key
