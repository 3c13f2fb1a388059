"""Follow chosen messages to their copies, to delegated tasks, and to messages made from them.

A fork's messages have the ids, positions and times of those they were copied from. So the copies of
a session are the sessions of its owner with the same first message, even if it is a tombstone now.
The store finds them, and the sessions that name another one, by an index: other sessions of the
owner are not read, and those of other owners never.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any, Final, NamedTuple, TypeAlias, cast

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
    for start in range(0, len(seqs), _PAGE):
        try:
            yield await store.find(session, seqs=seqs[start : start + _PAGE])
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

    async def run(self) -> None:
        """Add to the plan everything that follows from what is in it."""
        self._plan.refresh()
        while fresh := self._plan.take_fresh():
            for session, seqs in fresh.items():
                if session in self._sessions:
                    await self._results(session, seqs)
                    await self._copies(session, seqs)
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
            for message in page:
                if message.state == "live" and message.tool_calls:
                    self._plan.add(session, await self._results_of(session, message), "made")
                if message.state == "live" and message.role == "tool":
                    await self._reported(message, owner)

    async def _results_of(self, session: SessionKey, call: Message) -> list[int]:
        calls = {each.id for each in call.tool_calls}
        found = await self._find(session, ids=result_ids(call))
        near = await self._find(session, seqs=range(call.seq + 1, call.seq + _NEAR))
        found += [m for m in near if m.turn == call.turn and m.tool_call_id in calls]
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

    async def _copies(self, session: SessionKey, seqs: Sequence[int]) -> None:
        mine = self._sessions[session]
        found = await self._relatives_of(session)
        for fork in found.naming:
            point = fork.forked_from
            if fork.ready or fork.forgotten or fork.kind != "fork":
                continue
            if point and point.session == mine.id:
                self._plan.halves.add(fork.key)
        for twin in found.copies if mine.kind != "delegate" else ():
            if twin.kind == "delegate" or twin.key in self._plan.halves:
                continue
            if session in self._plan.whole and twin.key not in self._plan.whole:
                self._plan.twins.setdefault(twin.key, set()).add(session)
            common = sorted(seq for seq in seqs if seq <= twin.messages)
            async for page in messages_at(self._store, session, common):
                theirs = await self._find(twin.key, seqs=[m.seq for m in page])
                there = {m.seq: m for m in theirs}
                alike = [m.seq for m in page if m.seq in there and _is_copy(m, there[m.seq])]
                self._plan.add(twin.key, alike, "copy")

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


def _is_copy(one: Message, other: Message) -> bool:
    """Return whether two messages at one position are copies; one may be a tombstone."""
    if (one.id, one.created_at) != (other.id, other.created_at):
        return False
    return one.state != "live" or other.state != "live" or one.digest == other.digest
