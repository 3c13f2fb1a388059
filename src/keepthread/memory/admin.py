"""Admin: operations across all owners of a tenant, for the operator of the store."""

from collections.abc import AsyncGenerator, Collection
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Final

from keepthread.errors import Damaged, SessionGone, Stale
from keepthread.memory.changes import read_changes
from keepthread.memory.search.search import Filters, Hit
from keepthread.memory.services import Services
from keepthread.protocols import Progress
from keepthread.stores.cursors import decode_name, encode_cursor
from keepthread.stores.kinds import PRUNED
from keepthread.stores.validation import check_count, seconds_of
from keepthread.text_caches import clear_text_caches
from keepthread.types import (
    Change,
    Cleaning,
    Damage,
    Page,
    Role,
    Scope,
    SessionInfo,
    Verification,
)

if TYPE_CHECKING:
    # Forgetting is loaded when it is first used.
    from keepthread.memory.forgetting.receipt import Receipt
    from keepthread.memory.forgetting.receipts import StoredReceipt

DAY: Final = 86_400.0
_PAGE: Final = 500
_NOTED_LATE: Final = 1.0  # seconds


class Admin:
    """Operations across all owners of a tenant; get it from `Memory.admin`.

    Never pass it to code that acts for a single user.
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
        """Return the messages most relevant to a question; see `OwnerMemory.search`."""
        filters = Filters(
            since=seconds_of(since, "since"), until=seconds_of(until, "until"), roles=roles
        )
        return await self._services.searching.search(
            query, filters, limit=limit, cursor=cursor, progress=progress
        )

    async def index(self, *, progress: Progress | None = None) -> None:
        """Index new messages, by words and by vectors."""
        await self._services.searching.catch_up(progress=progress)

    async def changes(
        self, *, after: str | None = None, limit: int = 100, wait: float = 0
    ) -> Page[Change]:
        """Return the changes of all owners after a cursor; see `OwnerMemory.changes`."""
        return await read_changes(self._store, None, after, limit, wait)

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

    async def receipts(
        self, *, limit: int = 10, cursor: str | None = None
    ) -> Page["StoredReceipt"]:
        """Return the receipts of `Admin.forget` and `Memory.forget`, latest first, without text.

        Receipts of an owner's handle are in that owner's list: `OwnerMemory.receipts`.
        """
        return await self._services.receipts(None, limit=limit, cursor=cursor)

    async def verify(self, *, progress: Progress | None = None) -> Verification:
        """Check everything that is stored, including the bytes of every blob."""
        verification = await self._store.verify(progress=progress)
        damages = list(verification.damages)
        for owner in await self._store.owners():
            with suppress(Damaged):  # a description, which is among the damages already
                found = self._services.blobs(owner).damages()
                damages += [Damage(what) async for what in found]
        return verification._replace(damages=tuple(damages))

    # --- tenants, for the operator of the store ---

    async def list_tenants(self, *, limit: int = 100, cursor: str | None = None) -> Page[str]:
        """Return the names of the store's tenants, sorted; only for the operator of the store.

        The page's `next` is the `cursor` of the next page, or None. A tenant whose last session
        and record are gone may still be listed. On PostgreSQL, the login must own the tables.
        """
        of = ("tenants",)
        after = None if cursor is None else decode_name(of, cursor)
        found = await self._store.tenants(after=after, limit=check_count(limit, "limit") + 1)
        page = found[:limit]
        more = bool(page) and len(found) > limit
        return Page(page, cursor=encode_cursor(of, [page[-1]]) if more else None)

    async def delete_tenant(self, name: str, *, rewrite: bool = False) -> Cleaning:
        """Erase everything of another tenant, permanently; only for the operator of the store.

        Returns how the engine removed the bytes, and where some may be left. A missing tenant
        raises `NotFound`, and this memory's own tenant `InvalidInput`: its handle is in use. If the
        call is interrupted, the tenant stays in the list, and the next call completes it. `rewrite`
        lets a server rewrite its tables, which locks them for a while.
        """
        try:
            return await self._store.drop_tenant(name, rewrite=rewrite)
        finally:
            clear_text_caches()

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
        for owner in await self._store.blob_owners():
            await self._services.blobs(owner).sweep()
        return pruned

    async def _is_due(self) -> bool:
        """Return whether no program pruned within a day, and record that this one does."""
        now = self._services.options.clock()
        record = await self._store.get(Scope(), PRUNED, PRUNED)
        if record is not None and isinstance(at := record.value, int | float) and now - at < DAY:
            return False
        try:
            version = record.version if record else 0
            await self._store.put(Scope(), PRUNED, PRUNED, now, version=version)
        except Stale:  # another program is pruning
            return False
        return True

    async def _idle(self, before: float) -> AsyncGenerator[list[SessionInfo]]:
        """Yield, page by page, the sessions without activity since a time."""
        cursor: str | None = None
        while True:
            page = await self._store.idle_sessions(before, limit=_PAGE, cursor=cursor)
            yield [session for session in page if session.state == "live"]
            if (cursor := page.next) is None:
                return
