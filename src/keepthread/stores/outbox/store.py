"""The store with an outbox: appends are taken while the target is away, and delivered later."""

import time
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Self

from keepthread.errors import DurabilityTooLow, InvalidInput, StoreClosed, Unavailable
from keepthread.protocols import Progress, Searchable, Store, TokenCounter
from keepthread.stores.codec import Row
from keepthread.stores.ids import new_id
from keepthread.stores.outbox.delivery import Courier, Home, OpenTarget, turn_of
from keepthread.stores.outbox.file import Box, Meant
from keepthread.stores.outbox.sessions import KnownSessions
from keepthread.stores.outbox.types import Batch, Survey
from keepthread.stores.records import strength
from keepthread.stores.rows import AwaitedTurn, Draft, as_stored, draft
from keepthread.stores.sqlite.file import Connect, connect
from keepthread.stores.validation import check_count, check_id
from keepthread.types import (
    JSON,
    Cleaning,
    Durability,
    Gathered,
    Message,
    Record,
    Scope,
    SessionInfo,
    SessionKey,
    Span,
    Verification,
)


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


class SpooledStore:
    """A `Store` whose appends survive that its target is away; open it with `open`.

    An append without `expect` is acknowledged by the target or, while that is away, by the outbox.
    All else is the target's: it raises `Unavailable` while that is away, or as long as messages of
    the session it is about wait to be delivered.
    """

    def __init__(
        self,
        courier: Courier,
        *,
        durability: Durability,
        clock: Callable[[], float],
        ids: Callable[[], str],
        known: Iterable[SessionInfo],
    ) -> None:
        """Stand on a courier that has begun; callers use `open`."""
        self._home = Home(courier)
        self.outbox = Outbox(self._home)
        self._box = courier.box
        self._durability: Durability = durability
        self._clock = clock
        self._ids = ids
        self._known = KnownSessions(known)
        self._closed = False

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
        courier = Courier(box, open_target, target)
        try:
            await courier.begin()
            known = await box.sessions()
        except BaseException:
            await courier.close()
            raise
        return cls(courier, durability=level, clock=clock, ids=ids, known=known)

    @property
    def durability(self) -> Durability:
        """Name what both give: an acknowledgement may be the target's or the outbox's."""
        target = self._home.courier.target
        if target and strength(target.durability) < strength(self._durability):
            return target.durability
        return self._durability

    def tenant(self, name: str) -> Self:
        raise InvalidInput(
            f"an outbox belongs to one tenant; open a memory with an outbox of its own for {name!r}"
        )

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            if self._home.is_forked:
                return
            await self._home.call(Courier.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @asynccontextmanager
    async def _target(self, session: SessionKey | None = None) -> AsyncGenerator[Store]:
        """Give the target, with all that was acknowledged of a session."""
        if self._closed:
            raise StoreClosed("the store is closed")
        target = await self._home.call(lambda courier: courier.ready(session))
        try:
            yield target
        except Unavailable as error:
            self._home.note(error)
            raise

    # --- sessions ---

    async def put_session(
        self, session: SessionInfo, *, seen: SessionInfo | None = None
    ) -> SessionInfo:
        async with self._target() as target:
            return await self._remember(await target.put_session(session, seen=seen))

    async def get_session(self, id: str) -> SessionInfo | None:
        """Return the session of that id; while the target is away, what is remembered of it."""
        try:
            async with self._target() as target:
                found = await target.get_session(id)
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
                await self._box.remember(bare)
                self._known.note_written(session.key)
        return session

    async def _forget(self, id: str) -> None:
        if self._known.discard(id):
            with suppress(Unavailable):
                await self._box.forget(id)

    async def describe(self, session: SessionKey) -> SessionInfo:
        async with self._target(session) as target:
            return await target.describe(session)

    async def list_sessions(
        self, *, owner: str | None = None, limit: int = 10
    ) -> list[SessionInfo]:
        async with self._target() as target:
            return await target.list_sessions(owner=owner, limit=limit)

    async def scan_sessions(
        self, *, after: SessionKey | None = None, limit: int = 100
    ) -> list[SessionInfo]:
        async with self._target() as target:
            return await target.scan_sessions(after=after, limit=limit)

    async def delete_session(
        self, session: SessionKey, *, unready: bool = False, idle_since: float | None = None
    ) -> None:
        """Remove a session; what of it still waits in the outbox is dropped, and reported.

        With a condition, what waits is delivered first: it counts as activity.
        """
        conditional = unready or idle_since is not None
        async with self._target(session if conditional else None) as target:
            await target.delete_session(session, unready=unready, idle_since=idle_since)
        if id := self._known.id_of(session):
            await self._forget(id)

    # --- the log ---

    async def append(
        self,
        session: SessionKey,
        messages: Sequence[Message],
        *,
        expect: int | None = None,
        turn: int | None = None,
    ) -> list[Message]:
        """Store messages, or put them into the outbox: those have state `queued` and no place."""
        named = [self._named(message) for message in messages]
        if expect is not None or not named:
            async with self._target(session) as target:
                return await _append(target, session, named, expect, turn)
        if self._closed:
            raise StoreClosed("the store is closed")
        return await self._home.call(
            lambda courier: self._append_or_put_in(courier, session, named, turn)
        )

    async def _append_or_put_in(
        self,
        courier: Courier,
        session: SessionKey,
        messages: Sequence[Message],
        turn: int | None,
    ) -> list[Message]:
        if await courier.is_free(session):
            target = await courier.ready()
            try:
                return await _append(target, session, messages, None, turn)
            except Unavailable as error:  # nobody knows whether they are stored; their ids tell
                courier.note(error)
        return await self._put_in(courier, session, messages, turn)

    def _named(self, message: Message) -> Message:
        """Return a message with what must not change from attempt to attempt: id and time."""
        if type(message) is not Message:
            return message  # refused by whoever drafts it
        id = self._ids() if message.id == "" else message.id
        at = self._clock() if message.created_at == 0 else message.created_at
        state = "live" if message.state == "queued" else message.state
        return replace(message, id=id, created_at=at, state=state)

    async def _put_in(
        self,
        courier: Courier,
        session: SessionKey,
        messages: Sequence[Message],
        turn: int | None,
    ) -> list[Message]:
        drafts = [draft(m, clock=self._clock, ids=self._ids) for m in messages]
        opened_by = turn.opened_by if isinstance(turn, AwaitedTurn) else None
        if opened_by:
            turn = None
        elif turn is not None and check_count(turn, "turn") == 0:
            raise InvalidInput("turn 0 was never opened")
        name = self._known.id_of(session) or session
        await courier.add(Batch(0, session, name, turn, opened_by, ()), drafts)
        return [_queued(each) for each in drafts]

    async def load(self, session: SessionKey, messages: Sequence[Message]) -> int:
        async with self._target(session) as target:
            return await target.load(session, messages)

    async def tail(
        self,
        session: SessionKey,
        *,
        tokens: int | None = None,
        limit: int | None = None,
        before: int | None = None,
        after: int = 0,
        least: int = 0,
    ) -> list[Message]:
        async with self._target(session) as target:
            return await target.tail(
                session, tokens=tokens, limit=limit, before=before, after=after, least=least
            )

    async def gather(
        self,
        session: SessionKey,
        *,
        tokens: int,
        least: int = 0,
        kinds: Sequence[str] = (),
        follow: Sequence[str] = (),
    ) -> Gathered:
        async with self._target(session) as target:
            return await target.gather(
                session, tokens=tokens, least=least, kinds=kinds, follow=follow
            )

    async def read(
        self, session: SessionKey, *, after: int = 0, upto: int | None = None, limit: int = 100
    ) -> list[Message]:
        async with self._target(session) as target:
            return await target.read(session, after=after, upto=upto, limit=limit)

    async def find(
        self, session: SessionKey, *, ids: Iterable[str] = (), seqs: Iterable[int] = ()
    ) -> list[Message]:
        async with self._target(session) as target:
            return await target.find(session, ids=ids, seqs=seqs)

    async def erase(self, session: SessionKey, seqs: Iterable[int]) -> int:
        async with self._target(session) as target:
            return await target.erase(session, seqs)

    async def recount(
        self, session: SessionKey, counter: TokenCounter, *, progress: Progress | None = None
    ) -> int:
        async with self._target(session) as target:
            return await target.recount(session, counter, progress=progress)

    # --- the shelf ---

    async def put(
        self,
        scope: Scope,
        kind: str,
        key: str,
        value: JSON,
        *,
        made_of: Sequence[Span] = (),
        version: int | None = None,
        epochs: Mapping[SessionKey, int] | None = None,
    ) -> int:
        async with self._target() as target:
            return await target.put(
                scope, kind, key, value, made_of=made_of, version=version, epochs=epochs
            )

    async def get(self, scope: Scope, kind: str, key: str) -> Record | None:
        async with self._target() as target:
            return await target.get(scope, kind, key)

    async def scan(
        self,
        scope: Scope,
        kind: str | None = None,
        *,
        after: str | None = None,
        before: str | None = None,
        limit: int | None = None,
    ) -> list[Record]:
        async with self._target() as target:
            return await target.scan(scope, kind, after=after, before=before, limit=limit)

    async def owners(self) -> list[str]:
        async with self._target() as target:
            return await target.owners()

    async def drop(self, scope: Scope, kind: str, key: str, *, version: int | None = None) -> bool:
        async with self._target() as target:
            return await target.drop(scope, kind, key, version=version)

    # --- integrity ---

    async def verify(self, *, progress: Progress | None = None) -> Verification:
        async with self._target() as target:
            return await target.verify(progress=progress)

    async def clean(
        self,
        *,
        sessions: Sequence[SessionKey] = (),
        rewrite: bool = False,
        probes: Sequence[bytes] = (),
    ) -> Cleaning:
        async with self._target() as target:
            there = await target.clean(sessions=sessions, rewrite=rewrite, probes=probes)
        here = await self._box.clean(probes)
        return Cleaning(
            (*there.done, *here.done),
            (*there.searched, *here.searched),
            min(len(probes), there.found + here.found),
            (*there.residues, *here.residues),
            again=there.again or here.again,
        )

    async def erase_aside(self, meant: Meant) -> int:
        """Take out of the outbox messages that were set aside and are meant; return how many."""
        return await self._box.erase(meant)

    async def finder(self) -> Searchable | None:
        async with self._target() as target:
            return await target.finder()


async def _append(
    target: Store,
    session: SessionKey,
    messages: Sequence[Message],
    expect: int | None,
    turn: int | None,
) -> list[Message]:
    if isinstance(turn, AwaitedTurn):
        turn = await turn_of(target, session, turn.opened_by)
    return await target.append(session, messages, expect=expect, turn=turn)


def _queued(draft: Draft) -> Message:
    """Return what the caller gets of a message that waits: no position yet."""
    _, _, packed, body, tokens, counter, at = draft
    around = (tokens, counter, 0, 0, 0, at, body.digest, 0)
    message = as_stored(draft, Row(0, packed, body.role, None, None, *around))
    return replace(message, state="queued")
