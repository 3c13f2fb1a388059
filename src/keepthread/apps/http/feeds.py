"""Event streams share their reads: one look at a tenant's changes serves all who watch it.

A stream reads what its client missed from its owner's own feed. Then it joins the feed of its
tenant, which looks again after 0.2 to 1 second and hands each owner's changes to the streams of
that owner. A worker without streams does not look.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from keepthread.memory.memory import Memory
from keepthread.memory.owner import OwnerMemory
from keepthread.stores.cursors import owner_cursor
from keepthread.types import Change, Page

PAGE: Final = 100
"""Changes of one owner that are read at once."""
_MANY: Final = 1000
"""Changes of a tenant that are read at once, and those that may wait for one stream."""
_FIRST_PAUSE: Final = 0.2
_LONGEST_PAUSE: Final = 1.0


@dataclass(slots=True)
class EventBatch:
    """Changes of one owner, for all streams of that owner."""

    page: Page[Change]
    data: bytes = b""
    """The same as the wire has it, once a stream has encoded it."""


class Subscription:
    """The changes that a feed hands to one stream."""

    def __init__(self, owner: str) -> None:
        """Begin with nothing."""
        self.owner = owner
        self.is_full = False
        """Whether the stream was too slow, and gets no more."""
        self._batches: deque[EventBatch] = deque()
        self._arrived = asyncio.Event()
        self._error: Exception | None = None

    def put(self, batch: EventBatch) -> None:
        """Take changes; too many are left to be read again."""
        self._batches.append(batch)
        self.is_full = sum(len(each.page) for each in self._batches) > _MANY
        self._arrived.set()

    def wake(self) -> None:
        """End the wait for changes."""
        self._arrived.set()

    def fail(self, error: Exception) -> None:
        """End with an error."""
        self._error = error
        self._arrived.set()

    async def take(self, seconds: float) -> EventBatch | None:
        """Return the next changes, or None after some seconds without any."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._arrived.wait()
        if self._batches:
            batch = self._batches.popleft()
            if not self._batches and self._error is None:
                self._arrived.clear()
            return batch
        if self._error is not None:
            raise self._error
        return None


class TenantFeed:
    """Looks at the changes of a tenant while somebody watches."""

    def __init__(self, memory: Callable[[], Memory], tenant: str) -> None:
        """Take what returns the memory of a tenant, and its name."""
        self._memory = memory
        self._tenant = tenant
        self._streams: dict[str, list[Subscription]] = {}
        self._joining: list[tuple[str, asyncio.Future[Subscription]]] = []
        self._hurry = asyncio.Event()
        self._cursor: str | None = None
        self._task: asyncio.Task[None] | None = None

    async def join(self, owner: str) -> Subscription:
        """Return a subscription to an owner's changes, from a look on that begins now."""
        joined: asyncio.Future[Subscription] = asyncio.get_running_loop().create_future()
        self._joining.append((owner, joined))
        self._hurry.set()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        try:
            return await joined
        except asyncio.CancelledError:
            if joined.done() and not joined.cancelled() and joined.exception() is None:
                self.leave(joined.result())
            raise

    def leave(self, subscription: Subscription) -> None:
        """End a subscription."""
        streams = self._streams.get(subscription.owner, [])
        with suppress(ValueError):
            streams.remove(subscription)
        if not streams:
            self._streams.pop(subscription.owner, None)
        if not self._streams:
            self._hurry.set()  # to detect that no stream is left

    def present(self, owner: str) -> str | None:
        """Return the cursor of an owner's feed up to which everything was handed out."""
        return self._cursor and owner_cursor(self._tenant, owner, self._cursor)

    async def _run(self) -> None:
        """Look until nobody watches; an error ends all streams, and their clients come again."""
        pause = _FIRST_PAUSE
        try:
            while self._streams or self._joining:
                changed = await self._look()
                pause = _FIRST_PAUSE if changed else min(2 * pause, _LONGEST_PAUSE)
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._hurry.wait()
        except Exception as error:  # noqa: BLE001 - nobody awaits this
            self._fail(error)
        finally:
            self._cursor = None

    async def _look(self) -> bool:
        """Read on, hand out what is new, and let those join who waited for it."""
        joining, self._joining = self._joining, []
        self._hurry.clear()
        changed, more = False, True
        try:
            while more:
                limit = _MANY if self._cursor else 0  # 0: begin with the present
                page = await self._memory().admin.changes(after=self._cursor, limit=limit)
                self._cursor = page.next
                self._hand_out(page)
                changed, more = changed or bool(page), 0 < limit == len(page)
        except BaseException:
            self._joining += joining
            raise
        for owner, joined in joining:
            if not joined.done():  # otherwise its client disconnected
                subscription = Subscription(owner)
                self._streams.setdefault(owner, []).append(subscription)
                joined.set_result(subscription)
        return changed

    def _hand_out(self, page: Page[Change]) -> None:
        found: dict[str, list[Change]] = {}
        for change in page:
            if change.owner in self._streams:
                found.setdefault(change.owner, []).append(change)
        for owner, changes in found.items():
            batch = EventBatch(Page(changes, cursor=self.present(owner)))
            for stream in [*self._streams[owner]]:
                stream.put(batch)
                if stream.is_full:
                    self.leave(stream)

    def _fail(self, error: Exception) -> None:
        for streams in self._streams.values():
            for stream in streams:
                stream.fail(error)
        for _, joined in self._joining:
            if not joined.done():
                joined.set_exception(error)
        self._streams, self._joining = {}, []


class Watch:
    """Changes that one client has not seen: those that it missed, then those that happen."""

    def __init__(self, memory: OwnerMemory, feed: TenantFeed, after: str | None) -> None:
        """Begin after a cursor of the owner's feed."""
        self._memory = memory
        self._feed = feed
        self._after = after
        self._live: Subscription | None = None
        self._is_woken = False
        self._seen: Sequence[Change] = ()

    async def next(self, seconds: float) -> EventBatch:
        """Return the next changes; after some seconds without any, an empty page with a cursor."""
        if self._live is None:
            page = await self._missed()
            if page:
                return EventBatch(page)
        assert self._live is not None
        batch = await self._live.take(0 if self._is_woken else seconds)
        if batch is None:
            return EventBatch(Page([], cursor=self._feed.present(self._live.owner) or self._after))
        self._after = batch.page.next
        if self._live.is_full:  # what did not fit is read again
            self._live = None
        return self._without_seen(batch)

    def wake(self) -> None:
        """Make `next` return now and not wait again, even if it is not waiting yet."""
        self._is_woken = True
        if self._live is not None:
            self._live.wake()

    def close(self) -> None:
        """Watch no longer."""
        if self._live is not None:
            self._feed.leave(self._live)
            self._live = None

    async def _missed(self) -> Page[Change]:
        """Return changes from before the live ones; if there are none, join these."""
        page = await self._read()
        if not page:
            self._live = await self._feed.join(self._memory.owner)
            page = await self._read()  # what happened while it joined is in both
            self._seen = page
            if len(page) == PAGE:
                self.close()
        return page

    async def _read(self) -> Page[Change]:
        page = await self._memory.changes(after=self._after, limit=PAGE)
        self._after = page.next
        return page

    def _without_seen(self, batch: EventBatch) -> EventBatch:
        """Leave out changes that were read while it joined."""
        if not self._seen:
            return batch
        fresh = [change for change in batch.page if change not in self._seen]
        if fresh:
            self._seen = ()
        return EventBatch(Page(fresh, cursor=batch.page.next))
