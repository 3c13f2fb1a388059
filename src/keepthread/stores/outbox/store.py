"""The store with an outbox: appends are queued while the target is unavailable."""

import time
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import CoroutineType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from keepthread.errors import (
    DurabilityTooLow,
    InvalidInput,
    StoreClosed,
    Unavailable,
    Unsupported,
)
from keepthread.protocols import Progress
from keepthread.stores.backend import Append, Backend, TableBackend
from keepthread.stores.codec import Row, new_id
from keepthread.stores.front import Front
from keepthread.stores.outbox.delivery import Delivery, DeliveryLoop, OpenTarget, turn_of
from keepthread.stores.outbox.file import OutboxFile, Selects
from keepthread.stores.outbox.types import Batch, KnownSessions, Survey
from keepthread.stores.records import Condition, Update, strength
from keepthread.stores.rows import AwaitedTurn, PreparedMessage, as_stored
from keepthread.stores.sqlite.file import Connect, connect
from keepthread.stores.validation import MAX_BLOB, check_id
from keepthread.types import Cleaning, Durability, Message, SessionInfo, SessionKey

P = ParamSpec("P")
T = TypeVar("T")


class Outbox:
    """The queued messages of a store; `memory.outbox`."""

    def __init__(self, home: DeliveryLoop) -> None:
        """Use a delivery."""
        self._home = home

    async def survey(self) -> Survey:
        """Return the queued, dropped and set-aside messages, with reasons."""
        return await self._home.delivery.file.survey()

    async def deliver(self, *, progress: Progress | None = None) -> None:
        """Deliver queued messages now; raise `Unavailable` if not all can be delivered."""
        await self._home.call(lambda delivery: delivery.deliver(progress=progress))

    async def clear(self) -> None:
        """Delete the lists of dropped and set-aside messages."""
        await self._home.delivery.file.clear()


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
    """Return a method that calls the target's once the session is delivered."""

    async def call(
        self: "OutboxBackend", tenant: str, session: SessionKey, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        async with self.target(session) as target:
            return await getattr(target, method.__name__)(tenant, session, *args, **kwargs)

    return call


class OutboxBackend:
    """A target's backend, and an outbox for appends while it is unavailable."""

    def __init__(
        self, delivery: Delivery, durability: Durability, known: Iterable[SessionInfo]
    ) -> None:
        """Use a delivery that was started."""
        self.home = DeliveryLoop(delivery)
        self.file = delivery.file
        self._durability: Durability = durability
        self._known = KnownSessions(known)
        self._closed = False

    @property
    def durability(self) -> Durability:
        """Return the lower durability: the target or the outbox may acknowledge an append."""
        target = self.home.delivery.target
        if target and strength(target.durability) < strength(self._durability):
            return target.durability
        return self._durability

    @property
    def max_blob(self) -> int:
        """Return the target's; while it is unavailable, no blob is stored."""
        target = self.home.delivery.target
        return target.max_blob if target else MAX_BLOB

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            if not self.home.is_forked:
                await self.home.call(Delivery.close)

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed("the store is closed; open it again")

    @asynccontextmanager
    async def target(self, session: SessionKey | None = None) -> AsyncGenerator[Backend]:
        """Yield the target once a session is delivered."""
        self._check_open()
        target = await self.home.call(lambda delivery: delivery.ready(session))
        try:
            yield target
        except Unavailable as error:
            self.home.note(error)
            raise

    describe = _after_delivery(Backend.describe)
    list_sessions = _passed_on(Backend.list_sessions)
    scan_sessions = _passed_on(Backend.scan_sessions)
    relatives = _passed_on(Backend.relatives)
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
    updates = _passed_on(Backend.updates)
    made_of = _passed_on(Backend.made_of)
    owners = _passed_on(Backend.owners)
    blob_owners = _passed_on(Backend.blob_owners)
    drop = _passed_on(Backend.drop)
    changes = _passed_on(Backend.changes)
    verify = _passed_on(Backend.verify)
    finder = _passed_on(Backend.finder)
    tenants = _passed_on(Backend.tenants)
    drop_tenant = _passed_on(Backend.drop_tenant)

    def tables(self) -> TableBackend:
        raise Unsupported("a store with an outbox has no server tables; open it without the outbox")

    # --- sessions ---

    async def create_session(self, tenant: str, session: SessionInfo) -> SessionInfo:
        async with self.target() as target:
            return await self._remember(await target.create_session(tenant, session))

    async def update_session(self, tenant: str, update: Update) -> SessionInfo:
        async with self.target() as target:
            return await self._remember(await target.update_session(tenant, update))

    async def get_session(self, tenant: str, owner: str, id: str) -> SessionInfo | None:
        """Return an owner's session; from the outbox while the target is unavailable."""
        try:
            async with self.target() as target:
                found = await target.get_session(tenant, owner, id)
        except Unavailable:
            if known := self._known.get(owner, id):
                return known
            raise
        if found is None:
            await self._forget(owner, id)
            return None
        return await self._remember(found)

    async def _remember(self, session: SessionInfo) -> SessionInfo:
        """Store a session in the outbox once, for outages; a failure is ignored."""
        if session.ready and not self._known.is_written(session.key):
            bare = SessionInfo(
                id=session.id, key=session.key, owner=session.owner, kind=session.kind
            )
            self._known.add(bare)
            with suppress(Unavailable):
                await self.file.remember(bare)
                self._known.note_written(session.key)
        return session

    async def _forget(self, owner: str, id: str) -> None:
        if self._known.discard(owner, id):
            with suppress(Unavailable):
                await self.file.forget(owner, id)

    async def delete_session(self, tenant: str, session: SessionKey, required: Condition) -> None:
        """Remove a session; its queued messages are dropped, and reported.

        With a condition, what waits is delivered first: it counts as activity.
        """
        async with self.target(session if required else None) as target:
            await target.delete_session(tenant, session, required)
        if known := self._known.by_key(session):
            await self._forget(known.owner, known.id)

    # --- the log ---

    async def append(self, tenant: str, session: SessionKey, new: Append) -> list[Message]:
        """Store messages, or queue them: those have the state `queued` and no position."""
        if new.expect is not None or not new.drafts:
            async with self.target(session) as target:
                return await _append(target, tenant, session, new)
        self._check_open()
        return await self.home.call(
            lambda delivery: self._append_or_put_in(delivery, tenant, session, new)
        )

    async def _append_or_put_in(
        self, delivery: Delivery, tenant: str, session: SessionKey, new: Append
    ) -> list[Message]:
        if await delivery.is_free(session):
            target = await delivery.ready()
            try:
                return await _append(target, tenant, session, new)
            except Unavailable as error:  # the outcome is unknown; message ids prevent duplicates
                delivery.note(error)
        turn, opened_by = new.turn, None
        if isinstance(turn, AwaitedTurn):
            turn, opened_by = None, turn.opened_by
        elif turn == 0:
            raise InvalidInput("turn 0 was never opened")
        known = self._known.by_key(session)
        name = known.id if known else session
        await delivery.add(Batch(0, session, name, turn, opened_by, ()), new.drafts)
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
        here = await self.file.clean(probes)
        return Cleaning(
            (*there.done, *here.done),
            (*there.searched, *here.searched),
            sorted({*there.found, *here.found}),
            (*there.residues, *here.residues),
            again=there.again or here.again,
        )


async def _append(target: Backend, tenant: str, session: SessionKey, new: Append) -> list[Message]:
    if isinstance(new.turn, AwaitedTurn):
        opened = await turn_of(target, tenant, session, new.turn.opened_by)
        new = new._replace(turn=opened)
    return await target.append(tenant, session, new)


def _queued(draft: PreparedMessage) -> Message:
    """Return a queued message for the caller: it has no position yet."""
    _, _, packed, body, tokens, counter, at = draft
    around = (tokens, counter, 0, 0, 0, at, body.digest, 0)
    message = as_stored(draft, Row(0, packed, body.role, None, None, *around))
    return replace(message, state="queued")


class OutboxStore(Front[OutboxBackend]):
    """A `Store` that accepts appends while its target is unavailable; open it with `open`.

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
        """Take ownership of an outbox file for one tenant of one target, which may be unavailable.

        `target` names it: scheme, hosts and database. `durability` is the minimum for both; an
        outbox provides `power` at most, or `process` if requested.
        """
        level = "power" if durability is None else durability
        if level == "replicated":
            raise DurabilityTooLow(
                "an outbox provides `power` at most, but `replicated` was requested"
            )
        level = "process" if level == "memory" else level
        file = await OutboxFile.open(
            path,
            tenant=check_id(tenant, "tenant"),
            target=target,
            durability=level,
            connect=connect,
        )
        delivery = Delivery(file, open_target, target, tenant=tenant, clock=clock)
        try:
            await delivery.begin()
            known = await file.sessions()
        except BaseException:
            await delivery.close()
            raise
        return cls(OutboxBackend(delivery, level, known), tenant=tenant, clock=clock, ids=ids)

    def tenant(self, name: str) -> Self:
        raise InvalidInput(f"an outbox belongs to one tenant; open {name!r} with its own outbox")

    async def sessions_aside(self) -> set[SessionKey]:
        """Return the sessions that have messages that were set aside."""
        return await self.backend.file.sessions_aside()

    async def erase_aside(self, meant: Selects) -> int:
        """Remove the selected messages that were set aside; return their number."""
        return await self.backend.file.erase(meant)
