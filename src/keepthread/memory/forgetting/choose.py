"""Choose the messages to forget, and count what will be erased with them."""

from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from math import inf
from typing import Final

from keepthread.errors import MessageNotFound, SessionGone, SessionNotFound
from keepthread.memory.facts.records import all_noted
from keepthread.memory.forgetting.follow import ReadCount, Sessions, messages_at
from keepthread.memory.forgetting.plan import ErasurePlan, ForgetQuery
from keepthread.memory.forgetting.probes import Probes
from keepthread.memory.forgetting.repeats import Detail, details_of, repeated_by
from keepthread.protocols import Progress, Searchable, Store
from keepthread.recall.chunks import parts_of
from keepthread.recall.positions import VIEW
from keepthread.stores.front import every_session
from keepthread.stores.kinds import FACT
from keepthread.types import Message, Scope, SessionInfo, SessionKey

_PAGE: Final = 500


async def choose(
    store: Store, sessions: Sessions, query: ForgetQuery, progress: Progress | None = None
) -> ErasurePlan:
    """Return a plan with the positions that match a query; add their sessions to those given.

    `progress` is called with the messages read so far, and all that are to be read.
    """
    plan = ErasurePlan()
    reading = ReadCount(progress)
    if progress and not query.is_whole and query.message is None:
        reading.total = sum([info.messages async for info in _matching(store, query)])
    if query.is_whole and query.session is None:
        plan.owner = query.owner
    async for info in _matching(store, query):
        known = plan.size()
        if query.is_whole:
            plan.add_whole(info.key, info.messages, "chosen")
        else:
            await _choose_some(store, plan, info, query, reading)
        if info.key in plan.whole or plan.size() > known:
            sessions[info.key] = info
    if query.can_match_facts:
        await _choose_facts(store, plan, query)
    if query.message is not None and not plan:
        raise MessageNotFound(f"session {query.session!r} has no message {query.message!r}")
    return plan


async def _matching(store: Store, query: ForgetQuery) -> AsyncGenerator[SessionInfo]:
    """Yield the sessions that may have matching messages."""
    found = False
    if query.session is not None and query.owner is not None:
        named = await store.get_session(query.session, query.owner)
        if named is not None:
            found = True
            yield named
    else:
        async for info in every_session(store, query.owner):
            if query.matches_session(info):
                found = True
                yield info
    if query.session is not None and not found:
        raise SessionNotFound(f"there is no session {query.session!r}")


async def _choose_facts(store: Store, plan: ErasurePlan, query: ForgetQuery) -> None:
    """Choose the facts that came from a source and not from messages."""
    owners = [query.owner] if query.owner is not None else await store.owners()
    for owner in owners:
        for fact in all_noted(await store.scan(Scope(owner=owner), FACT)):
            after = query.since is None or fact.at >= query.since
            if fact.source == query.source and after and fact.at < (query.until or inf):
                plan.facts.add((owner, fact.key))


async def _choose_some(
    store: Store, plan: ErasurePlan, info: SessionInfo, query: ForgetQuery, reading: "ReadCount"
) -> None:
    try:
        if query.message is not None:
            found = await store.find(info.key, ids=[query.message])
            plan.add(info.key, [m.seq for m in found if query.matches(info.owner, m)], "chosen")
            return
        after = 0
        while page := await store.read(info.key, after=after, limit=_PAGE):
            matching = [m for m in page if m.state != "erased" and query.matches(info.owner, m)]
            if matching:
                plan.add(info.key, [m.seq for m in matching], "chosen")
            after = page[-1].seq
            reading.add(len(page))
    except SessionGone:  # deleted in the meantime
        return


class ErasureCounts:
    """Counts what will be erased, while it can still be read."""

    def __init__(self, store: Store, views: Sequence[str]) -> None:
        """Read a store; `views` are the names of its views of vectors."""
        self.messages: Counter[str] = Counter()
        """Live messages by the reason why they are erased."""
        self.index: Counter[str] = Counter()
        self.probes = Probes()
        self.titles: set[SessionKey] = set()
        """Sessions whose title was made from an erased message."""
        self.closed: set[SessionKey] = set()
        """Sessions that were forgotten before, and are not counted again."""
        self.repeats: set[Detail] = set()
        """Texts in the records of sessions that stay, which repeat an erased message."""
        self.gone: set[SessionKey] = set()
        """Sessions whose messages could not be read, because they were deleted."""
        self._store = store
        self._views = views
        self._places: list[int] = []
        self._seen: set[tuple[SessionKey, int]] = set()

    async def take(
        self, plan: ErasurePlan, sessions: Sessions, progress: Progress | None = None
    ) -> None:
        """Read the positions that were not read yet."""
        reading = ReadCount(progress, plan.size())
        for session in plan.sessions:
            if (info := sessions.get(session)) is not None and info.forgotten:
                self.closed.add(session)
            reasons = plan.reasons(session)
            details = self._details(sessions.get(session), plan)
            new = [seq for seq in plan.positions(session) if (session, seq) not in self._seen]
            if new:
                self.gone.add(session)
            async for page in messages_at(self._store, session, new):
                self.gone.discard(session)
                reading.add(len(page))
                for message in page:
                    self._seen.add((session, message.seq))
                    if message.state != "erased":
                        self.messages[reasons[message.seq]] += 1
                        self._offer(session, message)
                        self.repeats |= repeated_by(details, message)
        await self._count_index()

    def _details(self, info: SessionInfo | None, plan: ErasurePlan) -> list[Detail]:
        """Return the texts of a session's record that stay."""
        if info is None or info.key in plan.whole:
            return []
        if plan.takes_title(info):
            self.titles.add(info.key)
            info = replace(info, title="")
        return details_of(info)

    def _offer(self, session: SessionKey, message: Message) -> None:
        self.probes.offer(message)
        if session.isdecimal():  # only the engines with an index have such keys
            self._places += [part.place for part in parts_of(int(session), message)]

    async def _count_index(self) -> None:
        places, self._places = self._places, []
        finder = await self._store.finder()
        if finder is not None and places:
            self.index.update(await rows_of(finder, places, self._views))


async def rows_of(finder: Searchable, places: Sequence[int], views: Sequence[str]) -> Counter[str]:
    """Return how many pieces and vectors an index has at these positions."""
    found: Counter[str] = Counter()
    for start in range(0, len(places), _PAGE):
        some = places[start : start + _PAGE]
        found["pieces"] += len(await finder.parts(VIEW, some))
        for view in views:
            found["vectors"] += len(await finder.vectors(view, some))
    return found
