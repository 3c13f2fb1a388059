"""The courier: knows whether the target is away, and delivers what waits once it is back.

All decisions are made in one event loop, without a pause between looking and deciding. A session
is either free, so that its appends go to the target, or it has batches that wait, and then all its
appends go behind them. It is free again when the last of them is delivered and taken out.
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
from keepthread.stores.backend import Append, Backend
from keepthread.stores.codec import new_id
from keepthread.stores.outbox.file import Box
from keepthread.stores.outbox.types import Batch, Dropped, Settled
from keepthread.stores.rows import Draft, draft
from keepthread.types import Message, SessionKey


class Target(Protocol):
    """A store of ours: messages are prepared before they come to an outbox."""

    @property
    def backend(self) -> Backend:
        """Return what is behind its front."""
        ...


OpenTarget: TypeAlias = Callable[[], Awaitable[Target]]

FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 5.0
_PATIENCE: Final = 5.0  # seconds that opening waits for the target, and closing for deliveries
_LITTLE_PATIENCE: Final = 1.0  # the same where the target is known to be away
_AT_ONCE: Final = 8
_PAGE: Final = 64
_NOT_AWAY: Final = (Busy, StorageFull, ReadOnly)  # it answers: reading may go on

_log: Final = logging.getLogger("keepthread.outbox")


class Courier:
    """Stands between a box and its target, in one event loop; others go through `Home`."""

    def __init__(
        self,
        box: Box,
        open_target: OpenTarget,
        name: str,
        *,
        tenant: str = "default",
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Know how to open the target, which may be away already; `name` is for people.

        It belongs to the running loop.
        """
        self.loop = asyncio.get_running_loop()
        self.box = box
        self.target: Backend | None = None
        self._open = open_target
        self._name = name
        self._tenant = tenant
        self._clock = clock
        self._away = "it was not reached yet"
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

    def moved(self) -> "Courier":
        """Return one for the running loop that continues; the loop of this one has ended.

        What waits is in the box. What was under way in the old loop is repeated: messages have ids.
        """
        other = Courier(self.box, self._open, self._name, tenant=self._tenant, clock=self._clock)
        other.target, other._away, other._closed = self.target, self._away, self._closed
        other._has_begun = False
        return other

    async def begun(self) -> None:
        """Wait until it knows what waits."""
        if self._has_begun:
            return
        if self._beginning is None or self._beginning.done():
            self._beginning = asyncio.create_task(self._begin_again())
            self._beginning.add_done_callback(_retrieve)
        await asyncio.shield(self._beginning)

    async def _begin_again(self) -> None:
        self._waiting = await self.box.waiting()
        self._has_begun = True
        self._wake()

    async def begin(self) -> None:
        """Learn what waits, and open the target if it can be had soon."""
        self._waiting = await self.box.waiting()
        with suppress(Unavailable, TimeoutError):
            async with asyncio.timeout(_PATIENCE):
                await self._reach()
        self._wake()

    async def close(self) -> None:
        """Try for a while to deliver what waits, then let go of target and box."""
        self._closed = True
        if self._waiting:
            with suppress(KeepthreadError, TimeoutError):
                async with asyncio.timeout(_LITTLE_PATIENCE if self._away else _PATIENCE):
                    await self.deliver()
        tasks = [task for task in (self._working, self._reaching, self._beginning) if task]
        tasks += self._deliveries.values()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_LITTLE_PATIENCE)
        try:
            if self.target is not None:
                await self.target.close()
        finally:
            await self.box.close()

    # --- what may be done now ---

    async def ready(self, session: SessionKey | None = None) -> Backend:
        """Return the target, with all that was acknowledged of a session; else `Unavailable`."""
        target = self._here()
        if session is not None:
            await self.settle(session)
        return target

    def _here(self) -> Backend:
        if self.target is None or self._away:
            raise Unavailable(f"{self._name} is away: {self._away}")
        return self.target

    async def is_free(self, session: SessionKey) -> bool:
        """Tell whether an append may go to the target; the caller must not pause before it does."""
        if gate := self._gates.get(session):
            await gate.wait()
        return not self._away and session not in self._waiting

    def note(self, error: Unavailable) -> None:
        """Take note of what the target raised."""
        if not isinstance(error, _NOT_AWAY):
            if not self._away:
                _log.warning("%s is away: %s", self._name, type(error).__name__)
            self._away = str(error)
        self._wake()

    # --- putting in ---

    async def add(self, batch: Batch, drafts: Sequence[Draft]) -> None:
        """Put a batch into the box; a caller who goes away meanwhile changes nothing."""
        key = batch.key
        self._waiting[key] = self._waiting.get(key, 0) + 1
        task = asyncio.create_task(self._add(batch, drafts))
        adding = self._adding.setdefault(key, set())
        adding.add(task)
        task.add_done_callback(_retrieve)
        await asyncio.shield(task)

    async def _add(self, batch: Batch, drafts: Sequence[Draft]) -> None:
        key = batch.key
        try:
            await self.box.add(batch, drafts)
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

    # --- delivering ---

    async def deliver(self, *, progress: Progress | None = None) -> None:
        """Deliver what waits; `Unavailable` if not all of it can be delivered now."""
        await self._reach()
        if progress:
            await self._tell(progress)
        try:
            await self._deliver_all()
        finally:
            self._delivered = lambda _: None
        await self.box.tidy()

    async def _tell(self, progress: Progress) -> None:
        done, total = 0, (await self.box.survey()).messages

        def tell(messages: int) -> None:
            nonlocal done
            done += messages
            progress(done, max(done, total))

        self._delivered = tell

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
        """Deliver what waits of one session."""
        if session not in self._waiting:
            return
        delivery = self._deliveries.get(session)
        if delivery is None:
            delivery = asyncio.create_task(self._deliver(session))
            delivery.add_done_callback(_retrieve)
            self._deliveries[session] = delivery
        await asyncio.shield(delivery)

    async def _deliver(self, session: SessionKey) -> None:
        """Deliver page by page; an append meanwhile waits for one page, or for the last.

        So delivering gains on those who append, however fast they are.
        """
        gate = self._gates[session] = asyncio.Event()
        try:
            while session in self._waiting:
                # Counted before the read: a batch that is added while it runs may not be in it.
                committed = self._waiting[session] - len(self._adding.get(session, ()))
                page = await self.box.oldest(session, _PAGE)
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

        `committed` is how many batches were in the box before it was read.
        """
        if committed > 0:  # the file was changed by something else, or is damaged
            _log.error("%d batches are missing in the outbox's file", committed)
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
                await self.box.settle(settled)
                self._settled(session, len(settled))

    async def _deliver_batch(self, batch: Batch) -> Settled:
        """Deliver a batch; what the target will never take is dropped or set aside."""
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
            raise Damaged("the outbox's file is damaged here")
        turn = batch.turn
        if batch.opened_by:
            turn = await turn_of(target, self._tenant, batch.key, batch.opened_by)
        drafts = [draft(m, clock=self._clock, ids=new_id) for m in batch.messages]
        new = Append(drafts, None, turn, self._clock())
        return await target.append(self._tenant, batch.key, new)

    # --- coming back ---

    async def _reach(self) -> None:
        """Open the target, or find that it is back."""
        if self._reaching is not None:  # begun before: the target may have come back since
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
                await self.target.list_sessions(self._tenant, None, 1)
        except KeepthreadError as error:
            self._away = str(error)
            raise
        else:
            self._away = ""
            _log.info("%s is there; %d sessions wait", self._name, len(self._waiting))
        finally:
            self._reaching = None

    def _wake(self) -> None:
        """Have someone look after it for as long as the target is away or something waits."""
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
                except Exception as error:  # noqa: BLE001 - nobody waits for it, and it is tried again
                    _log.warning("delivering failed: %s", type(error).__name__)
                else:
                    continue
                if sum(self._waiting.values()) < before:
                    pause = FIRST_PAUSE
                await asyncio.sleep(pause * random.uniform(0.5, 1))  # noqa: S311 - so that not all come at once
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
    """Look at an error, which its waiters got as well, if any are left."""
    if not task.cancelled():
        task.exception()


T = TypeVar("T")


class Home:
    """The courier and its event loop; another loop takes over when that one has ended."""

    def __init__(self, courier: Courier) -> None:
        """Begin in the loop in which the courier has begun."""
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._courier = courier

    @property
    def is_forked(self) -> bool:
        """Tell whether this is a copy in a forked process: the parent delivers."""
        return os.getpid() != self._pid

    @property
    def courier(self) -> Courier:
        """Return the courier, for what may be read from any loop."""
        return self._courier

    async def call(self, what: Callable[[Courier], Coroutine[Any, Any, T]]) -> T:
        """Run something that may be repeated where the courier lives."""
        while True:
            courier = self._living()
            with suppress(LoopEnded):  # then this loop, or another, takes over
                return await run_in(courier.loop, lambda c=courier: _when_begun(c, what))

    def note(self, error: Unavailable) -> None:
        """Tell the courier what the target raised."""
        courier = self._living()
        if courier.loop is asyncio.get_running_loop():
            courier.note(error)
        else:
            with suppress(RuntimeError):  # its loop ended: who takes over will notice
                courier.loop.call_soon_threadsafe(courier.note, error)

    def _living(self) -> Courier:
        """Return the courier, a new one in this loop if the old one's has ended."""
        if self.is_forked:
            raise StoreClosed("the store was opened before a fork; open it again in this process")
        with self._lock:
            if not self._courier.loop.is_running():
                self._courier = self._courier.moved()
            return self._courier


async def _when_begun(courier: Courier, what: Callable[[Courier], Coroutine[Any, Any, T]]) -> T:
    await courier.begun()
    return await what(courier)
