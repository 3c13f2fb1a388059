"""Follow chosen messages to their copies, to delegated tasks, and to messages made from them.

A fork's messages have the ids, positions and times of those they were copied from. So the copies of
a session are the sessions of its owner with the same first message, even if it is a tombstone now.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any, Final, NamedTuple, TypeAlias, cast

from keepthread.context.ids import result_ids
from keepthread.errors import SessionGone
from keepthread.memory.forgetting.answers import answers_to
from keepthread.memory.forgetting.plan import ErasurePlan
from keepthread.protocols import Store
from keepthread.stores.front import every_session
from keepthread.stores.kinds import DELEGATED
from keepthread.types import Message, Record, Scope, SessionInfo, SessionKey

Sessions: TypeAlias = dict[SessionKey, SessionInfo]

_PAGE: Final = 500
_CONCURRENCY: Final = 8  # sessions read at a time, so that a server is not idle between two answers
_NEAR: Final = 200
"""Messages after a call in which its results are searched for, in addition to their ids."""


class _First(NamedTuple):
    """A session's first message, which its copies share."""

    id: str
    at: float


class _Link(NamedTuple):
    """The session and the message that a task was delegated from."""

    record: Record
    parents: Sequence[SessionKey]
    call: str
    result: str


async def all_sessions(store: Store) -> Sessions:
    """Return all sessions by key, also forks that are not yet complete."""
    return {session.key: session async for session in every_session(store)}


async def messages_at(
    store: Store, session: SessionKey, seqs: Sequence[int]
) -> AsyncGenerator[list[Message]]:
    """Yield the messages at positions, page by page; nothing for a deleted session."""
    for start in range(0, len(seqs), _PAGE):
        try:
            yield await store.find(session, seqs=seqs[start : start + _PAGE])
        except SessionGone:
            return


class Propagation:
    """One round of following; call `run` until the plan no longer grows."""

    def __init__(
        self, store: Store, plan: ErasurePlan, sessions: Sessions, *, answers: bool
    ) -> None:
        """Take the plan; `answers` includes answers that were written from its messages."""
        self._store = store
        self._plan = plan
        self._sessions = sessions
        self._answers = answers
        self._firsts: dict[str, dict[_First, list[SessionKey]]] = {}
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
                found = await answers_to(self._store, self._sessions, self._plan)
                for session, seqs in found.items():
                    self._plan.add(session, seqs, "answer")

    # --- in the log ---

    async def _results(self, session: SessionKey, seqs: Sequence[int]) -> None:
        """Add a tool's result with its call, and a delegated task with its report."""
        owner = self._sessions[session].owner
        async for page in messages_at(self._store, session, sorted(seqs)):
            for message in page:
                if message.state == "live" and message.tool_calls:
                    self._plan.add(session, await self._results_of(session, message), "made")
                if message.state == "live" and message.role == "tool":
                    self._reported(message, owner)

    async def _results_of(self, session: SessionKey, call: Message) -> list[int]:
        calls = {each.id for each in call.tool_calls}
        found = await self._find(session, ids=result_ids(call))
        near = await self._find(session, seqs=range(call.seq + 1, call.seq + _NEAR))
        found += [m for m in near if m.turn == call.turn and m.tool_call_id in calls]
        return [m.seq for m in found if m.role == "tool" and m.state == "live"]

    def _reported(self, result: Message, owner: str) -> None:
        named = result.meta.get("session")
        if isinstance(named, str):
            for child in self._sessions.values():
                if (child.owner, child.id, child.kind) == (owner, named, "delegate"):
                    self._plan.add_whole(child.key, child.messages, "delegate")

    # --- copies ---

    async def _copies(self, session: SessionKey, seqs: Sequence[int]) -> None:
        mine = self._sessions[session]
        for fork in self._sessions.values():
            point = fork.forked_from
            if fork.ready or fork.forgotten or fork.kind != "fork":
                continue
            if point and (fork.owner, point.session) == (mine.owner, mine.id):
                self._plan.halves.add(fork.key)
        for twin in await self._twins(mine):
            if session in self._plan.whole and twin.key not in self._plan.whole:
                self._plan.twins.setdefault(twin.key, set()).add(session)
            common = sorted(seq for seq in seqs if seq <= twin.messages)
            async for page in messages_at(self._store, session, common):
                theirs = await self._find(twin.key, seqs=[m.seq for m in page])
                there = {m.seq: m for m in theirs}
                alike = [m.seq for m in page if m.seq in there and _is_copy(m, there[m.seq])]
                self._plan.add(twin.key, alike, "copy")

    async def _twins(self, info: SessionInfo) -> list[SessionInfo]:
        """Return the sessions that have the same first message."""
        if info.kind == "delegate":
            return []
        firsts = self._firsts.get(info.owner)
        if firsts is None:
            firsts = self._firsts[info.owner] = await self._firsts_of(info.owner)
        families = [keys for keys in firsts.values() if info.key in keys]
        keys = [key for family in families for key in family if key != info.key]
        return [self._sessions[key] for key in keys if key not in self._plan.halves]

    async def _firsts_of(self, owner: str) -> dict[_First, list[SessionKey]]:
        mine = [info for info in self._sessions.values() if info.owner == owner and info.messages]
        keys = [info.key for info in mine if info.kind != "delegate"]
        found: dict[_First, list[SessionKey]] = {}
        for start in range(0, len(keys), _CONCURRENCY):
            some = keys[start : start + _CONCURRENCY]
            firsts = await asyncio.gather(*(self._find(key, seqs=[1]) for key in some))
            for key, messages in zip(some, firsts, strict=True):
                for first in messages:
                    found.setdefault(_First(first.id, first.created_at), []).append(key)
        return found

    # --- sub-agents ---

    async def _delegates(self) -> None:
        """Add delegated tasks with the messages they were made from, and reports with answers."""
        touched = set(self._plan.sessions)
        near = [self._sessions[key] for key in touched if key in self._sessions]
        parents = {(info.owner, info.id) for info in near}
        for child in self._sessions.values():
            is_near = child.key in touched or (child.owner, child.parent) in parents
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
            parents = [span.session for span in record.made_of if span.session in self._sessions]
            link = _Link(record, parents or self._others(child), value["call"], value["result"])
        self._links[child.key] = link
        return link

    def _others(self, child: SessionInfo) -> list[SessionKey]:
        """Return the forks that may hold a report if the session it was made to is gone."""
        mine = [info for info in self._sessions.values() if info.owner == child.owner]
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
