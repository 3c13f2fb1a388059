"""Delivery: knows whether the target is available, and delivers queued batches once it is back.

All decisions are made in one event loop, without an await between check and decision. A session is
either free, and its appends go to the target, or it has queued batches, and then all its appends
are queued after them. It is free again when the last of them is delivered and removed.
"""

import asyncio
import logging
import os
import random
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from keepthread.errors import (
    Busy,
    Conflict,
    Damaged,
    InvalidInput,
    KeepthreadError,
    ReadOnly,
    SessionGone,
    StorageFull,
    StoreClosed,
    Unavailable,
)
from keepthread.event_loops import LoopEnded, run_in
from keepthread.protocols import Progress
from keepthread.stores.backend import Append, Backend, Listing
from keepthread.stores.codec import new_id
from keepthread.stores.outbox.file import OutboxFile
from keepthread.stores.outbox.types import Batch, Dropped, Settled
from keepthread.stores.rows import PreparedMessage, draft
from keepthread.types import Message, SessionKey


class Target(Protocol):
    """A store with a backend: the outbox takes messages that are already encoded."""

    @property
    def backend(self) -> Backend:
        """Return its backend."""
        ...


OpenTarget: TypeAlias = Callable[[], Awaitable[Target]]

FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 5.0
_TIMEOUT: Final = 5.0  # seconds that opening waits for the target, and closing for deliveries
_SHORT_TIMEOUT: Final = 1.0  # the same if the target is known to be unavailable
_AT_ONCE: Final = 8
_PAGE: Final = 64
_NOT_AWAY: Final = (Busy, StorageFull, ReadOnly)  # it answers, so reading may work

_log: Final = logging.getLogger("keepthread.outbox")


class Delivery:
    """Delivers from an outbox to its target, in one event loop; other loops use `DeliveryLoop`."""

    def __init__(
        self,
        file: OutboxFile,
        open_target: OpenTarget,
        name: str,
        *,
        tenant: str = "default",
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Keep how to open the target, which may be unavailable; `name` is for display.

        It belongs to the running loop.
        """
        self.loop = asyncio.get_running_loop()
        self.file = file
        self.target: Backend | None = None
        self._open = open_target
        self._name = name
        self._tenant = tenant
        self._clock = clock
        self._away = "it has not been reached yet"
        self._waiting: dict[SessionKey, int] = {}
        self._adding: dict[SessionKey, set[asyncio.Task[None]]] = {}
        self._gates: dict[SessionKey, asyncio.Event] = {}
        self._deliveries: dict[SessionKey, asyncio.Task[None]] = {}
        self._reaching: asyncio.Task[None] | None = None
        self._working: asyncio.Task[None] | None = None
        self._beginning: asyncio.Task[None] | None = None
        self._has_begun = True
        self._delivered: Callable[[int], object] = lambda _: None
        self._closed = False

    def moved(self) -> "Delivery":
        """Return a successor in the running loop, after the loop of this one has ended.

        Queued batches are in the file. Unfinished work of the old loop is repeated: messages have
        ids, so they are not stored twice.
        """
        other = Delivery(self.file, self._open, self._name, tenant=self._tenant, clock=self._clock)
        other.target, other._away, other._closed = self.target, self._away, self._closed
        other._has_begun = False
        return other

    async def begun(self) -> None:
        """Wait until the queued batches are known."""
        if self._has_begun:
            return
        if self._beginning is None or self._beginning.done():
            self._beginning = asyncio.create_task(self._begin_again())
            self._beginning.add_done_callback(_retrieve)
        await asyncio.shield(self._beginning)

    async def _begin_again(self) -> None:
        self._waiting = await self.file.waiting()
        self._has_begun = True
        self._wake()

    async def begin(self) -> None:
        """Read the queued batches, and open the target if it is available soon."""
        self._waiting = await self.file.waiting()
        with suppress(Unavailable, TimeoutError):
            async with asyncio.timeout(_TIMEOUT):
                await self._reach()
        self._wake()

    async def close(self) -> None:
        """Try for a while to deliver queued batches, then close target and file."""
        self._closed = True
        if self._waiting:
            with suppress(KeepthreadError, TimeoutError):
                async with asyncio.timeout(_SHORT_TIMEOUT if self._away else _TIMEOUT):
                    await self.deliver()
        tasks = [task for task in (self._working, self._reaching, self._beginning) if task]
        tasks += self._deliveries.values()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_SHORT_TIMEOUT)
        try:
            if self.target is not None:
                await self.target.close()
        finally:
            await self.file.close()

    # --- state ---

    async def ready(self, session: SessionKey | None = None) -> Backend:
        """Return the target once a session is delivered; raise `Unavailable` if it cannot be."""
        target = self._here()
        if session is not None:
            await self.settle(session)
        return target

    def _here(self) -> Backend:
        if self.target is None or self._away:
            raise Unavailable(f"{self._name} is unavailable: {self._away}")
        return self.target

    async def is_free(self, session: SessionKey) -> bool:
        """Return whether an append may go to the target; the caller must not await in between."""
        if gate := self._gates.get(session):
            await gate.wait()
        return not self._away and session not in self._waiting

    def note(self, error: Unavailable) -> None:
        """Record an error of the target."""
        if not isinstance(error, _NOT_AWAY):
            if not self._away:
                _log.warning("%s is unavailable: %s", self._name, type(error).__name__)
            self._away = str(error)
        self._wake()

    # --- queueing ---

    async def add(self, batch: Batch, drafts: Sequence[PreparedMessage]) -> None:
        """Queue a batch, even if the caller is canceled in the meantime."""
        key = batch.key
        self._waiting[key] = self._waiting.get(key, 0) + 1
        task = asyncio.create_task(self._add(batch, drafts))
        adding = self._adding.setdefault(key, set())
        adding.add(task)
        task.add_done_callback(_retrieve)
        await asyncio.shield(task)

    async def _add(self, batch: Batch, drafts: Sequence[PreparedMessage]) -> None:
        key = batch.key
        try:
            await self.file.add(batch, drafts)
        except BaseException:
            self._settled(key, 1)
            raise
        finally:
            tasks = self._adding[key]
            tasks.discard(_current())
            if not tasks:
                del self._adding[key]
        self._wake()

    def _settled(self, session: SessionKey, batches: int) -> None:
        left = self._waiting[session] - batches
        if left:
            self._waiting[session] = left
        else:
            del self._waiting[session]

    # --- delivery ---

    async def deliver(self, *, progress: Progress | None = None) -> None:
        """Deliver queued batches; raise `Unavailable` if not all of them can be delivered now."""
        await self._reach()
        if progress:
            await self._report(progress)
        try:
            await self._deliver_all()
        finally:
            self._delivered = lambda _: None
        await self.file.tidy()

    async def _report(self, progress: Progress) -> None:
        done, total = 0, (await self.file.survey()).messages

        def report(messages: int) -> None:
            nonlocal done
            done += messages
            progress(done, max(done, total))

        self._delivered = report

    async def _deliver_all(self) -> None:
        sessions = list(reversed(self._waiting))
        failures: list[Unavailable] = []

        async def work() -> None:
            while sessions and not self._away:
                try:
                    await self.settle(sessions.pop())
                except Unavailable as error:
                    failures.append(error)

        await asyncio.gather(*(work() for _ in range(_AT_ONCE)))
        if failures:
            raise failures[0]
        self._here()

    async def settle(self, session: SessionKey) -> None:
        """Deliver the queued batches of one session."""
        if session not in self._waiting:
            return
        delivery = self._deliveries.get(session)
        if delivery is None:
            delivery = asyncio.create_task(self._deliver(session))
            delivery.add_done_callback(_retrieve)
            self._deliveries[session] = delivery
        await asyncio.shield(delivery)

    async def _deliver(self, session: SessionKey) -> None:
        """Deliver page by page; an append in the meantime waits for one page, or for the last.

        So delivery is faster than any number of appends.
        """
        gate = self._gates[session] = asyncio.Event()
        try:
            while session in self._waiting:
                # Counted before the read: a batch added during the read may not be in it.
                committed = self._waiting[session] - len(self._adding.get(session, ()))
                page = await self.file.oldest(session, _PAGE)
                if not page:
                    await self._after_empty_page(session, committed)
                await self._deliver_page(session, page)
                if len(page) == _PAGE:
                    gate.set()
                    gate = self._gates[session] = asyncio.Event()
        finally:
            del self._deliveries[session]
            del self._gates[session]
            gate.set()

    async def _after_empty_page(self, session: SessionKey, committed: int) -> None:
        """Wait for batches that are being added; the session stays busy until they are delivered.

        `committed` is the number of batches in the file before it was read.
        """
        if committed > 0:  # another program changed the file, or it is damaged
            _log.error("%d batches are missing from the outbox file", committed)
            self._settled(session, committed)
        elif adding := self._adding.get(session):
            await asyncio.wait(adding)

    async def _deliver_page(self, session: SessionKey, page: Sequence[Batch]) -> None:
        settled: list[Settled] = []
        try:
            for batch in page:
                settled.append(await self._deliver_batch(batch))
                self._delivered(len(batch.messages))
        finally:
            if settled:
                await self.file.settle(settled)
                self._settled(session, len(settled))

    async def _deliver_batch(self, batch: Batch) -> Settled:
        """Deliver a batch; messages that the target will never accept are dropped or set aside."""
        try:
            stored = await self._append(self._here(), batch)
        except SessionGone:
            return _dropped(batch, batch.messages, "the session was deleted")
        except (Conflict, InvalidInput, Damaged) as refusal:
            _log.error("set aside %d messages of %s", len(batch.messages), batch.session)
            return Settled(batch, reason=str(refusal).encode("utf-8", "replace").decode())
        except Unavailable as error:
            self.note(error)
            raise
        erased = [message for message in stored if message.state == "erased"]
        return _dropped(batch, erased, "the message was erased")

    async def _append(self, target: Backend, batch: Batch) -> list[Message]:
        if any(message.state != "live" for message in batch.messages):
            raise Damaged("this message in the outbox file is damaged")
        turn = batch.turn
        if batch.opened_by:
            turn = await turn_of(target, self._tenant, batch.key, batch.opened_by)
        drafts = [draft(m, clock=self._clock, ids=new_id) for m in batch.messages]
        new = Append(drafts, None, turn, self._clock())
        return await target.append(self._tenant, batch.key, new)

    # --- availability ---

    async def _reach(self) -> None:
        """Open the target, or check that it is available again."""
        if self._reaching is not None:  # started earlier: the target may have come back since
            await asyncio.wait([self._reaching])
        if not self._away:
            return
        if self._reaching is None:
            self._reaching = asyncio.create_task(self._try())
            self._reaching.add_done_callback(_retrieve)
        await asyncio.shield(self._reaching)

    async def _try(self) -> None:
        try:
            if self.target is None:
                self.target = (await self._open()).backend
            else:
                await self.target.list_sessions(self._tenant, None, Listing(1))
        except KeepthreadError as error:
            self._away = str(error)
            raise
        else:
            self._away = ""
            _log.info(
                "%s is available again; %d sessions are waiting", self._name, len(self._waiting)
            )
        finally:
            self._reaching = None

    def _wake(self) -> None:
        """Start a task that retries as long as the target is unavailable or batches are queued."""
        if self._working is None and not self._closed and (self._away or self._waiting):
            self._working = asyncio.create_task(self._work())

    async def _work(self) -> None:
        pause = FIRST_PAUSE
        try:
            while self._away or self._waiting:
                before = sum(self._waiting.values())
                try:
                    await self.deliver()
                except Unavailable:
                    pass
                except Exception as error:  # noqa: BLE001 - nobody awaits it, and it is retried
                    _log.warning("delivery failed: %s", type(error).__name__)
                else:
                    continue
                if sum(self._waiting.values()) < before:
                    pause = FIRST_PAUSE
                await asyncio.sleep(pause * random.uniform(0.5, 1))  # noqa: S311 - spreads the retries of many clients
                pause = min(2 * pause, LONGEST_PAUSE)
        finally:
            self._working = None


async def turn_of(target: Backend, tenant: str, session: SessionKey, opened_by: str) -> int:
    """Return the turn that a user message opened."""
    found = await target.find(tenant, session, [opened_by], ())
    if not found:
        raise InvalidInput(f"the user message {opened_by} of this turn is not stored")
    return found[0].turn


def _dropped(batch: Batch, messages: Sequence[Message], reason: str) -> Settled:
    if messages:
        _log.warning("dropped %d messages of %s: %s", len(messages), batch.session, reason)
    now = time.time()
    return Settled(batch, [Dropped(batch.session, m.id, reason, now) for m in messages])


def _current() -> "asyncio.Task[None]":
    task = asyncio.current_task()
    assert task
    return task


def _retrieve(task: "asyncio.Task[None]") -> None:
    """Mark an error as seen; the waiting callers, if any, got it as well."""
    if not task.cancelled():
        task.exception()


T = TypeVar("T")


class DeliveryLoop:
    """The delivery and its event loop; another loop takes over when that one has ended."""

    def __init__(self, delivery: Delivery) -> None:
        """Start in the loop of the delivery."""
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._courier = delivery

    @property
    def is_forked(self) -> bool:
        """Return whether this is a copy in a forked process: the parent delivers."""
        return os.getpid() != self._pid

    @property
    def delivery(self) -> Delivery:
        """Return the delivery, for attributes that any loop may read."""
        return self._courier

    async def call(self, what: Callable[[Delivery], Coroutine[Any, Any, T]]) -> T:
        """Run a repeatable call in the loop of the delivery."""
        while True:
            delivery = self._living()
            with suppress(LoopEnded):  # this loop, or another, takes over
                return await run_in(delivery.loop, lambda c=delivery: _when_begun(c, what))

    def note(self, error: Unavailable) -> None:
        """Pass an error of the target to the delivery."""
        delivery = self._living()
        if delivery.loop is asyncio.get_running_loop():
            delivery.note(error)
        else:
            with suppress(RuntimeError):  # its loop ended: its successor will notice
                delivery.loop.call_soon_threadsafe(delivery.note, error)

    def _living(self) -> Delivery:
        """Return the delivery, a new one in this loop if the old loop has ended."""
        if self.is_forked:
            raise StoreClosed("the store was opened before a fork; open it again in this process")
        with self._lock:
            if not self._courier.loop.is_running():
                self._courier = self._courier.moved()
            return self._courier


async def _when_begun(delivery: Delivery, what: Callable[[Delivery], Coroutine[Any, Any, T]]) -> T:
    await delivery.begun()
    return await what(delivery)
