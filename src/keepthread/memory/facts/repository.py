"""The repository of one owner's facts: read all, add one, change one."""

from collections.abc import Callable, Sequence
from typing import Final, Literal, NamedTuple

from keepthread.context.trust import lowest, origin_of
from keepthread.errors import (
    InvalidInput,
    MessageNotFound,
    SessionNotFound,
    Stale,
    Unsupported,
)
from keepthread.memory.digest_keys import drop_facts_key
from keepthread.memory.facts.grounding import last_position
from keepthread.memory.facts.profile import FactCache, FactIndex
from keepthread.memory.facts.provenance import MadeOf, news_in, trust_of, turn_of, written_from
from keepthread.memory.facts.records import (
    checked,
    gone,
    is_gone,
    key_of,
    noted_of,
    value_of,
)
from keepthread.memory.facts.resolution import resolve
from keepthread.memory.facts.types import Fact, Noted, Source
from keepthread.protocols import Store
from keepthread.stores.kinds import FACT
from keepthread.stores.validation import check_id
from keepthread.types import Message, Origin, Scope, SessionInfo, SessionKey, Span

_NO_FACTS: Final = (
    "this store has no word index, so it does not support search, recall or facts; use SQLite or "
    "PostgreSQL"
)


class Read(NamedTuple):
    """Messages as they were read, and the session before; a later epoch shows an erasure."""

    session: SessionInfo
    messages: Sequence[Message]
    shown: MadeOf = MadeOf()
    """Other messages that a model was shown when it proposed the fact."""


class FactRepository:
    """The facts of one owner."""

    def __init__(
        self,
        store: Store,
        owner: str,
        *,
        clock: Callable[[], float],
        learned: Callable[[str], None] | None = None,
        cache: FactCache | None = None,
    ) -> None:
        """Take the store and the owner; `learned` is called with the owner whose facts changed.

        `cache` holds facts that were read before; without one, every call reads all facts.
        """
        self.store = store
        self.owner = check_id(owner, "owner")
        self.clock = clock
        self._scope = Scope(owner=owner)
        self._learned = learned
        self._cache = cache
        self._able = False

    async def check(self) -> None:
        """Refuse stores that cannot search: facts would never be found."""
        if not self._able and await self.store.finder() is None:
            raise Unsupported(_NO_FACTS)
        self._able = True

    async def index(self) -> FactIndex:
        """Return all facts, with their states now."""
        await self.check()
        cache = FactCache(0) if self._cache is None else self._cache
        return await cache.load(self.store, self.owner, self.clock())

    async def noted(self) -> list[Noted]:
        """Return all facts as they are stored."""
        return (await self.index()).noted()

    async def facts(self, at: float | None = None) -> list[Fact]:
        """Return all facts with their states at a time, in the order in which they became true."""
        index = await self.index()
        return index.facts() if at is None else resolve(index.noted(), self.clock(), asked=at)

    async def fact(self, key: str) -> Fact | None:
        """Return one fact."""
        return (await self.index()).fact(key)

    async def state(self, key: str) -> Literal["there", "gone"] | None:
        """Return whether a fact exists, or was forgotten."""
        record = await self.store.get(self._scope, FACT, check_id(key, "key"))
        return record and ("gone" if is_gone(record) else "there")

    # --- adding ---

    async def read(self, session: str, ids: Sequence[str]) -> Read:
        """Return the messages that a fact comes from; each must exist."""
        info = await self.store.get_session(session, self.owner)
        if info is None or not info.ready:
            raise SessionNotFound(f"{self.owner!r} has no session {session!r}")
        if not ids:
            raise InvalidInput("give the messages that the fact comes from: messages=[ID, …]")
        found = [m for m in await self.store.find(info.key, ids=ids) if m.state == "live"]
        lacking = set(ids) - {m.id for m in found}
        if lacking:
            raise MessageNotFound(f"session {session!r} has no message {min(lacking)!r}")
        return Read(info, found)

    async def trust(self, read: Read, subject: str) -> tuple[Origin, Origin]:
        """Return the origin of messages, and their trust about a subject."""
        trusts: list[Origin] = []
        for message in read.messages:
            turn = await turn_of(self.store, read.session.key, message)
            trusts.append(trust_of(message, turn, owner=self.owner, subject=subject))
        if read.session.kind == "delegate":  # a model wrote its task, in the user's role
            trusts.append("tool")
        return lowest(map(origin_of, read.messages)), lowest(trusts)

    async def add(self, fact: Noted, read: Read | None = None) -> tuple[str, bool]:
        """Note a fact once; return its key, and whether it is new.

        An empty key means that the owner forgot it. If something was erased in the session since
        the messages were read, `Stale` is raised and nothing is noted.
        """
        messages = sorted(read.messages, key=lambda m: m.seq) if read else []
        if read and messages:
            last, id = messages[-1], read.session.id
            owner = "" if read.session.owner == self.owner else read.session.owner
            fact = fact._replace(
                at=last.created_at,
                place=(f"{owner}\n{id}" if owner else id, last.seq),
                messages=[Source(id, m.seq, m.id, owner) for m in messages],
                offset=max(0, last_position(news_in(last), fact.value or fact.text)),
            )
        fact = checked(fact._replace(noted_at=self.clock()), self.owner)
        key = key_of(fact, self.owner, messages)
        spans, epochs = (await self._made_of(read)) if read else ([], None)
        place = (self._scope, FACT, key)
        await self.check()
        try:
            await self.store.put(*place, value_of(fact), made_of=spans, version=0, epochs=epochs)
        except Stale:
            there = await self.store.get(*place)
            if there is None:
                raise  # something was erased
            if not set(spans) <= set(there.made_of):  # a copy of the messages, in a fork
                both = [*there.made_of, *(span for span in spans if span not in there.made_of)]
                await self.store.put(
                    *place, there.value, made_of=both, version=there.version, epochs=epochs
                )
            return ("" if is_gone(there) else key), False
        self._notify_learned()
        return key, True

    async def _made_of(self, read: Read) -> tuple[list[Span], dict[SessionKey, int]]:
        """Return the spans that a fact is made of, and the epochs they were read at."""
        spans = [Span(read.session.key, m.seq, m.seq) for m in read.messages]
        for message in read.messages:
            spans += await written_from(self.store, read.session, message)
        spans += read.shown.spans
        return list(dict.fromkeys(spans)), {
            **read.shown.epochs,
            read.session.key: read.session.epoch,
        }

    # --- changing ---

    async def change(self, key: str, change: Callable[[Noted], Noted]) -> Noted:
        """Change a stored fact and return it; one that is forgotten or erased stays so."""
        while True:
            record = await self.store.get(self._scope, FACT, check_id(key, "key"))
            fact = noted_of(record) if record else None
            if record is None or fact is None:
                raise InvalidInput(f"there is no fact {key!r}; list them to see their keys")
            new = checked(change(fact), self.owner)
            try:
                await self.store.put(
                    self._scope,
                    FACT,
                    key,
                    value_of(new),
                    made_of=record.made_of,
                    version=record.version,
                )
            except Stale:
                continue
            self._notify_learned()
            return new

    async def forget(self, key: str) -> bool:
        """Forget a fact; if messages state it, its key stays, so that it is not proposed again."""
        while True:
            record = await self.store.get(self._scope, FACT, check_id(key, "key"))
            if record is None or is_gone(record):
                return False
            spans, version = record.made_of, record.version
            await drop_facts_key(self.store, self.owner)
            try:
                if spans:
                    left = gone(self.clock())
                    await self.store.put(
                        self._scope, FACT, key, left, made_of=spans, version=version
                    )
                else:
                    await self.store.drop(self._scope, FACT, key, version=version)
            except Stale:
                continue
            await drop_facts_key(self.store, self.owner)  # a context may have made another
            self._notify_learned()
            return True

    def _notify_learned(self) -> None:
        if self._learned:
            self._learned(self.owner)
