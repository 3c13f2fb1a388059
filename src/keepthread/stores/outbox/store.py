"""The store with an outbox: appends are taken while the target is away, and delivered later."""

import time
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import CoroutineType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from keepthread.errors import DurabilityTooLow, InvalidInput, StoreClosed, Unavailable
from keepthread.protocols import Progress
from keepthread.stores.backend import Append, Backend
from keepthread.stores.codec import Row, new_id
from keepthread.stores.front import Front
from keepthread.stores.outbox.delivery import Courier, Home, OpenTarget, turn_of
from keepthread.stores.outbox.file import Box, Meant
from keepthread.stores.outbox.types import Batch, KnownSessions, Survey
from keepthread.stores.records import Condition, strength
from keepthread.stores.rows import AwaitedTurn, Draft, as_stored
from keepthread.stores.sqlite.file import Connect, connect
from keepthread.stores.validation import check_id
from keepthread.types import Cleaning, Durability, Message, SessionInfo, SessionKey

P = ParamSpec("P")
T = TypeVar("T")


class Outbox:
    """What waits beside a store; `memory.outbox`."""

    def __init__(self, home: Home) -> None:
        """Look through who delivers."""
        self._home = home

    async def survey(self) -> Survey:
        """Return what waits, what was dropped, and what was set aside and why."""
        return await self._home.courier.box.survey()

    async def deliver(self, *, progress: Progress | None = None) -> None:
        """Deliver now what waits; `Unavailable` if not all of it can be delivered."""
        await self._home.call(lambda courier: courier.deliver(progress=progress))

    async def clear(self) -> None:
        """Forget what was dropped and set aside."""
        await self._home.courier.box.clear()


def _passed_on(
    method: "Callable[Concatenate[Any, str, P], CoroutineType[Any, Any, T]]",
) -> "Callable[Concatenate[Any, str, P], CoroutineType[Any, Any, T]]":
    """Return a method that calls the target's."""

    async def call(self: "OutboxBackend", tenant: str, *args: P.args, **kwargs: P.kwargs) -> T:
        async with self.target() as target:
            return await getattr(target, method.__name__)(tenant, *args, **kwargs)

    return call


def _after_delivery(
    method: "Callable[Concatenate[Any, str, SessionKey, P], CoroutineType[Any, Any, T]]",
) -> "Callable[Concatenate[Any, str, SessionKey, P], CoroutineType[Any, Any, T]]":
    """Return a method that calls the target's once all of the session is delivered."""

    async def call(
        self: "OutboxBackend", tenant: str, session: SessionKey, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        async with self.target(session) as target:
            return await getattr(target, method.__name__)(tenant, session, *args, **kwargs)

    return call


class OutboxBackend:
    """A target's backend, and a box for what is appended while that is away."""

    def __init__(
        self, courier: Courier, durability: Durability, known: Iterable[SessionInfo]
    ) -> None:
        """Stand on a courier that has begun."""
        self.home = Home(courier)
        self.box = courier.box
        self._durability: Durability = durability
        self._known = KnownSessions(known)
        self._closed = False

    @property
    def durability(self) -> Durability:
        """Name what both give: an acknowledgement may be the target's or the outbox's."""
        target = self.home.courier.target
        if target and strength(target.durability) < strength(self._durability):
            return target.durability
        return self._durability

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            if not self.home.is_forked:
                await self.home.call(Courier.close)

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed("the store is closed")

    @asynccontextmanager
    async def target(self, session: SessionKey | None = None) -> AsyncGenerator[Backend]:
        """Give the target, with all that was acknowledged of a session."""
        self._check_open()
        target = await self.home.call(lambda courier: courier.ready(session))
        try:
            yield target
        except Unavailable as error:
            self.home.note(error)
            raise

    describe = _after_delivery(Backend.describe)
    list_sessions = _passed_on(Backend.list_sessions)
    scan_sessions = _passed_on(Backend.scan_sessions)
    load = _after_delivery(Backend.load)
    tail = _after_delivery(Backend.tail)
    gather = _after_delivery(Backend.gather)
    read = _after_delivery(Backend.read)
    find = _after_delivery(Backend.find)
    erase = _after_delivery(Backend.erase)
    recount = _after_delivery(Backend.recount)
    put = _passed_on(Backend.put)
    get = _passed_on(Backend.get)
    scan = _passed_on(Backend.scan)
    owners = _passed_on(Backend.owners)
    drop = _passed_on(Backend.drop)
    verify = _passed_on(Backend.verify)
    finder = _passed_on(Backend.finder)

    # --- sessions ---

    async def create_session(self, tenant: str, session: SessionInfo) -> SessionInfo:
        async with self.target() as target:
            return await self._remember(await target.create_session(tenant, session))

    async def update_session(
        self, tenant: str, session: SessionInfo, seen: SessionInfo | None, now: float
    ) -> SessionInfo:
        async with self.target() as target:
            return await self._remember(await target.update_session(tenant, session, seen, now))

    async def get_session(self, tenant: str, id: str) -> SessionInfo | None:
        """Return the session of that id; while the target is away, what is remembered of it."""
        try:
            async with self.target() as target:
                found = await target.get_session(tenant, id)
        except Unavailable:
            if known := self._known.get(id):
                return known
            raise
        if found is None:
            await self._forget(id)
            return None
        return await self._remember(found)

    async def _remember(self, session: SessionInfo) -> SessionInfo:
        """Take note of a session once; that is a help in outages, and no reason to fail."""
        if session.ready and not self._known.is_written(session.key):
            bare = SessionInfo(
                id=session.id, key=session.key, owner=session.owner, kind=session.kind
            )
            self._known.add(bare)
            with suppress(Unavailable):
                await self.box.remember(bare)
                self._known.note_written(session.key)
        return session

    async def _forget(self, id: str) -> None:
        if self._known.discard(id):
            with suppress(Unavailable):
                await self.box.forget(id)

    async def delete_session(self, tenant: str, session: SessionKey, required: Condition) -> None:
        """Remove a session; what of it still waits in the outbox is dropped, and reported.

        With a condition, what waits is delivered first: it counts as activity.
        """
        async with self.target(session if required else None) as target:
            await target.delete_session(tenant, session, required)
        if id := self._known.id_of(session):
            await self._forget(id)

    # --- the log ---

    async def append(self, tenant: str, session: SessionKey, new: Append) -> list[Message]:
        """Store messages, or put them into the outbox: those have state `queued` and no place."""
        if new.expect is not None or not new.drafts:
            async with self.target(session) as target:
                return await _append(target, tenant, session, new)
        self._check_open()
        return await self.home.call(
            lambda courier: self._append_or_put_in(courier, tenant, session, new)
        )

    async def _append_or_put_in(
        self, courier: Courier, tenant: str, session: SessionKey, new: Append
    ) -> list[Message]:
        if await courier.is_free(session):
            target = await courier.ready()
            try:
                return await _append(target, tenant, session, new)
            except Unavailable as error:  # nobody knows whether they are stored; their ids tell
                courier.note(error)
        turn, opened_by = new.turn, None
        if isinstance(turn, AwaitedTurn):
            turn, opened_by = None, turn.opened_by
        elif turn == 0:
            raise InvalidInput("turn 0 was never opened")
        name = self._known.id_of(session) or session
        await courier.add(Batch(0, session, name, turn, opened_by, ()), new.drafts)
        return [_queued(each) for each in new.drafts]

    # --- integrity ---

    async def clean(
        self,
        tenant: str,
        sessions: Sequence[SessionKey],
        rewrite: bool,
        probes: Sequence[bytes],
    ) -> Cleaning:
        async with self.target() as target:
            there = await target.clean(tenant, sessions, rewrite, probes)
        here = await self.box.clean(probes)
        return Cleaning(
            (*there.done, *here.done),
            (*there.searched, *here.searched),
            min(len(probes), there.found + here.found),
            (*there.residues, *here.residues),
            again=there.again or here.again,
        )


async def _append(target: Backend, tenant: str, session: SessionKey, new: Append) -> list[Message]:
    if isinstance(new.turn, AwaitedTurn):
        opened = await turn_of(target, tenant, session, new.turn.opened_by)
        new = new._replace(turn=opened)
    return await target.append(tenant, session, new)


def _queued(draft: Draft) -> Message:
    """Return what the caller gets of a message that waits: no position yet."""
    _, _, packed, body, tokens, counter, at = draft
    around = (tokens, counter, 0, 0, 0, at, body.digest, 0)
    message = as_stored(draft, Row(0, packed, body.role, None, None, *around))
    return replace(message, state="queued")


class SpooledStore(Front[OutboxBackend]):
    """A `Store` whose appends survive that its target is away; open it with `open`.

    An append without `expect` is acknowledged by the target or, while that is away, by the outbox.
    All else is the target's: it raises `Unavailable` while that is away, or as long as messages of
    the session it is about wait to be delivered.
    """

    def __init__(self, backend: OutboxBackend, **settings: Any) -> None:
        """Take tenant, clock and ids as every store does; callers use `open`."""
        super().__init__(backend, **settings)
        self.outbox = Outbox(backend.home)

    @classmethod
    async def open(
        cls,
        path: str | Path,
        open_target: OpenTarget,
        *,
        target: str,
        tenant: str = "default",
        durability: Durability | None = None,
        clock: Callable[[], float] = time.time,
        ids: Callable[[], str] = new_id,
        connect: Connect = connect,
    ) -> Self:
        """Own an outbox file for one tenant of one target, which may be away already.

        `target` names it: scheme, hosts and database. `durability` is the least that is accepted,
        of both; an outbox gives `power` at most, and `process` if that is asked for.
        """
        level = "power" if durability is None else durability
        if level == "replicated":
            raise DurabilityTooLow("an outbox gives `power` at most; replicated was asked for")
        level = "process" if level == "memory" else level
        box = await Box.open(
            path,
            tenant=check_id(tenant, "tenant"),
            target=target,
            durability=level,
            connect=connect,
        )
        courier = Courier(box, open_target, target, tenant=tenant, clock=clock)
        try:
            await courier.begin()
            known = await box.sessions()
        except BaseException:
            await courier.close()
            raise
        return cls(OutboxBackend(courier, level, known), tenant=tenant, clock=clock, ids=ids)

    def tenant(self, name: str) -> Self:
        raise InvalidInput(
            f"an outbox belongs to one tenant; open a memory with an outbox of its own for {name!r}"
        )

    async def erase_aside(self, meant: Meant) -> int:
        """Take out of the outbox messages that were set aside and are meant; return how many."""
        return await self.backend.box.erase(meant)
