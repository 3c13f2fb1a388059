"""Follow chosen messages to their copies, to delegated tasks, and to messages made from them.

A fork's messages have the ids, positions and times of those they were copied from. So the copies of
a session are the sessions of its owner with the same first message, even if it is a tombstone now.
The store finds them, and the sessions that name another one, by an index: other sessions of the
owner are not read, and those of other owners never.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar, cast

from keepthread.context.ids import result_ids
from keepthread.errors import InvalidInput, SessionGone
from keepthread.memory.forgetting.answers import answers_to
from keepthread.memory.forgetting.plan import ErasurePlan
from keepthread.protocols import Progress, Relatives, Store
from keepthread.stores.front import every_session
from keepthread.stores.kinds import DELEGATED
from keepthread.types import Message, Record, Scope, SessionInfo, SessionKey

Sessions: TypeAlias = dict[SessionKey, SessionInfo]
"""The sessions that an erasure has met so far: those of its plan, and their relatives."""

_PAGE: Final = 500
_CONCURRENCY: Final = 8  # sessions read at a time, so that a server is not idle between two answers
_NEAR: Final = 200
"""Messages after a call in which its results are searched for, in addition to their ids."""


_FEW: Final = 20
_AT_ONCE: Final = 50_000
"""Messages of all copies of a session that are compared at a time; of each, a `_FEW` at least."""

_T = TypeVar("_T")


class _Copy(NamedTuple):
    """A message in one of the sessions that have the same first message."""

    session: SessionKey
    digest: bytes | None
    """None if it is erased."""


class _Link(NamedTuple):
    """The session and the message that a task was delegated from."""

    record: Record
    parents: Sequence[SessionKey]
    call: str
    result: str


async def all_sessions(store: Store, owner: str | None = None) -> Sessions:
    """Return all sessions of an owner or of the tenant, also forks that are not yet complete."""
    return {session.key: session async for session in every_session(store, owner)}


async def sessions_of(store: Store, plan: ErasurePlan) -> Sessions:
    """Return the sessions of a plan that exist."""
    found = {} if plan.owner is None else await all_sessions(store, plan.owner)
    keys = [key for key in plan.sessions if key not in found]
    for start in range(0, len(keys), _CONCURRENCY):
        some = keys[start : start + _CONCURRENCY]
        infos = await asyncio.gather(*(_described(store, key) for key in some))
        found |= {info.key: info for info in infos if info is not None}
    return found


async def _described(store: Store, key: SessionKey) -> SessionInfo | None:
    try:
        return await store.describe(key)
    except SessionGone:
        return None


async def messages_at(
    store: Store, session: SessionKey, seqs: Sequence[int]
) -> AsyncGenerator[list[Message]]:
    """Yield the messages at positions, page by page; nothing for a deleted session."""
    for some in _pages(seqs):
        try:
            yield await store.find(session, seqs=some)
        except SessionGone:
            return


class ReadCount:
    """Reports how many messages were read, and of how many."""

    def __init__(self, progress: Progress | None, total: int = 0) -> None:
        """Begin with none."""
        self._progress = progress
        self.total = total
        self._done = 0

    def add(self, messages: int) -> None:
        """Add messages that were read now."""
        self._done += messages
        if self._progress:
            self._progress(self._done, max(self.total, self._done))


class Propagation:
    """One round of following; call `run` until the plan no longer grows."""

    def __init__(
        self, store: Store, plan: ErasurePlan, sessions: Sessions, *, answers: bool
    ) -> None:
        """Take the plan and its sessions, to which relatives are added.

        `answers` includes answers that were written from its messages.
        """
        self._store = store
        self._plan = plan
        self._sessions = sessions
        self._answers = answers
        self._relatives: dict[SessionKey, Relatives] = {}
        self._links: dict[SessionKey, _Link | None] = {}
        self._compared: set[tuple[SessionKey, int]] = set()
        """Messages whose copies are in the plan."""

    async def run(self) -> None:
        """Add to the plan everything that follows from what is in it."""
        self._plan.refresh()
        self._compared.clear()
        while fresh := self._plan.take_fresh():
            for session, seqs in fresh.items():
                if session in self._sessions:
                    await self._results(session, seqs)
            await self._copies({key: seqs for key, seqs in fresh.items() if key in self._sessions})
            await self._delegates()
            if self._answers:
                for session, seqs in (await self.answers()).items():
                    self._plan.add(session, seqs, "answer")

    async def answers(self) -> dict[SessionKey, list[int]]:
        """Return the answers that were written from messages of the plan, and are not in it."""
        return await answers_to(self._store, await self._naming(), self._plan)

    async def naming(self) -> list[SessionInfo]:
        """Return the sessions of the plan, and those that name one of them."""
        return list((await self._naming()).values())

    async def _naming(self) -> Sessions:
        found: Sessions = {}
        for key in self._plan.sessions:
            if key in self._sessions:
                found[key] = self._sessions[key]
                found |= {info.key: info for info in (await self._relatives_of(key)).naming}
        return found

    async def _relatives_of(self, session: SessionKey) -> Relatives:
        if session not in self._relatives:
            found = self._relatives[session] = await self._store.relatives(session)
            for info in (*found.copies, *found.naming):
                self._sessions.setdefault(info.key, info)
        return self._relatives[session]

    # --- in the log ---

    async def _results(self, session: SessionKey, seqs: Sequence[int]) -> None:
        """Add a tool's result with its call, and a delegated task with its report."""
        owner = self._sessions[session].owner
        async for page in messages_at(self._store, session, sorted(seqs)):
            live = [message for message in page if message.state == "live"]
            calls = [message for message in live if message.tool_calls]
            self._plan.add(session, await self._results_of(session, calls), "made")
            for message in live:
                if message.role == "tool":
                    await self._reported(message, owner)

    async def _results_of(self, session: SessionKey, calls: Sequence[Message]) -> list[int]:
        """Return where the results of calls are: by their ids, or soon after in the same turn."""
        ids = [id for call in calls for id in result_ids(call)]
        seqs = sorted({seq for call in calls for seq in range(call.seq + 1, call.seq + _NEAR)})
        named = [m for some in _pages(ids) for m in await self._find(session, ids=some)]
        near = [m for some in _pages(seqs) for m in await self._find(session, seqs=some)]
        calls_of: dict[tuple[int, str | None], list[int]] = {}  # positions, by turn and id
        for call in calls:
            for each in call.tool_calls:
                calls_of.setdefault((call.turn, each.id), []).append(call.seq)
        found = named + [
            m
            for m in near
            if any(at < m.seq < at + _NEAR for at in calls_of.get((m.turn, m.tool_call_id), ()))
        ]
        return [m.seq for m in found if m.role == "tool" and m.state == "live"]

    async def _reported(self, result: Message, owner: str) -> None:
        named = result.meta.get("session")
        try:
            child = await self._store.get_session(named, owner) if isinstance(named, str) else None
        except InvalidInput:  # a program wrote something else there
            return
        if child is not None and child.kind == "delegate":
            self._sessions[child.key] = child
            self._plan.add_whole(child.key, child.messages, "delegate")

    # --- copies ---

    async def _copies(self, fresh: Mapping[SessionKey, Sequence[int]]) -> None:
        """Add the copies of messages in forks, and note forks that are not yet complete."""
        families: dict[frozenset[SessionKey], dict[SessionKey, Sequence[int]]] = {}
        for session, seqs in fresh.items():
            family = await self._family(session)
            if len(family) > 1:
                families.setdefault(family, {})[session] = seqs
        for family, chosen in families.items():
            await self._copies_within(family, chosen)

    async def _family(self, session: SessionKey) -> frozenset[SessionKey]:
        """Return a session and those that may have copies of its messages."""
        mine = self._sessions[session]
        found = await self._relatives_of(session)
        for fork in found.naming:
            point = fork.forked_from
            if fork.ready or fork.forgotten or fork.kind != "fork":
                continue
            if point and point.session == mine.id:
                self._plan.halves.add(fork.key)
        if mine.kind == "delegate":
            return frozenset((session,))
        twins = [
            twin.key
            for twin in found.copies
            if twin.kind != "delegate" and twin.key not in self._plan.halves
        ]
        if session in self._plan.whole:
            for twin in twins:
                if twin not in self._plan.whole:
                    self._plan.twins.setdefault(twin, set()).add(session)
        return frozenset((session, *twins))

    async def _copies_within(
        self, family: frozenset[SessionKey], chosen: Mapping[SessionKey, Sequence[int]]
    ) -> None:
        """Add the copies of chosen messages; a position is read once in each session."""
        fresh = {(key, seq) for key, seqs in chosen.items() for seq in seqs} - self._compared
        size = min(_PAGE, max(_FEW, _AT_ONCE // len(family)))
        for seqs in _pages(sorted({seq for _, seq in fresh}), size):
            same: dict[tuple[int, str, float], list[_Copy]] = {}
            for key in family:
                for m in await self._find(key, seqs=seqs):
                    digest = m.digest if m.state == "live" else None
                    same.setdefault((m.seq, m.id, m.created_at), []).append(_Copy(key, digest))
            for (seq, _, _), copies in same.items():
                for alike in _alike(copies):
                    if any((key, seq) in fresh for key in alike):
                        self._compared.update((key, seq) for key in alike)
                        for key in alike:
                            self._plan.add(key, [seq], "copy")

    # --- sub-agents ---

    async def _delegates(self) -> None:
        """Add delegated tasks with the messages they were made from, and reports with answers."""
        touched = set(self._plan.sessions)
        parents = {self._sessions[key].id for key in touched if key in self._sessions}
        for child in await self.naming():
            is_near = child.key in touched or child.parent in parents
            link = await self._link(child) if is_near and child.kind == "delegate" else None
            if link is None:
                continue
            reports = await self._reports(link)
            sent_for = self._plan.touches(link.record.made_of)
            if sent_for or any(self._plan.covers(key, m.seq, m.seq) for key, m in reports):
                self._plan.add_whole(child.key, child.messages, "delegate")
            lost = await self._lost(child, link)
            for key, message in reports:
                if message.id in lost:
                    self._plan.add(key, [message.seq], "made")

    async def _link(self, child: SessionInfo) -> _Link | None:
        if child.key in self._links:
            return self._links[child.key]
        try:
            record = await self._store.get(Scope(session=child.key), DELEGATED, DELEGATED)
        except SessionGone:
            record = None
        link = None
        if record is not None:
            value = cast(dict[str, Any], record.value)
            parents = [s.session for s in record.made_of if await self._exists(s.session)]
            others = parents or await self._others(child)
            link = _Link(record, others, value["call"], value["result"])
        self._links[child.key] = link
        return link

    async def _exists(self, key: SessionKey) -> bool:
        if key not in self._sessions and (info := await _described(self._store, key)):
            self._sessions[key] = info
        return key in self._sessions

    async def _others(self, child: SessionInfo) -> list[SessionKey]:
        """Return the forks that may hold a report if the session it was made to is gone."""
        mine = (await all_sessions(self._store, child.owner)).values()
        self._sessions |= {info.key: info for info in mine if info.key not in self._sessions}
        return [info.key for info in mine if info.kind != "delegate"]

    async def _reports(self, link: _Link) -> list[tuple[SessionKey, Message]]:
        """Return the call and the result of a delegated task in the session it came from."""
        return [
            (key, message)
            for key in link.parents
            for message in await self._find(key, ids=[link.call, link.result])
        ]

    async def _lost(self, child: SessionInfo, link: _Link) -> set[str]:
        """Return which of the two are erased with a task's messages: the call holds the task."""
        if child.key in self._plan.whole:
            return {link.call, link.result}
        roles: set[str] = set()
        async for page in messages_at(self._store, child.key, self._plan.positions(child.key)):
            roles.update(message.role for message in page)
        if "user" in roles:
            return {link.call, link.result}
        return {link.result} if "assistant" in roles else set()

    async def _find(
        self, session: SessionKey, *, ids: Sequence[str] = (), seqs: Sequence[int] = ()
    ) -> list[Message]:
        """Return messages; none if the session was deleted in the meantime."""
        try:
            return await self._store.find(session, ids=ids, seqs=seqs)
        except SessionGone:
            return []


def _alike(copies: Sequence[_Copy]) -> list[list[SessionKey]]:
    """Return which messages with one position, id and time are copies of each other.

    Live ones have the same digest. An erased one has lost its own, and may be a copy of all.
    """
    by_digest: dict[bytes | None, list[SessionKey]] = {}
    for copy in copies:
        by_digest.setdefault(copy.digest, []).append(copy.session)
    if None in by_digest:
        return [[copy.session for copy in copies]]
    return list(by_digest.values())


def _pages(values: Sequence[_T], size: int = _PAGE) -> Iterator[Sequence[_T]]:
    return (values[start : start + size] for start in range(0, len(values), size))
