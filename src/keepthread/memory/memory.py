"""Memory: the entry point. Open a store by its URL, and get sessions from it."""

import logging
import time
from collections.abc import (
    AsyncGenerator,
    Callable,
    Collection,
    Coroutine,
    Generator,
    Mapping,
    Sequence,
)
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Self

from keepthread.context.views import View
from keepthread.errors import (
    SessionExists,
    SessionGone,
    SessionNotFound,
    Stale,
)
from keepthread.memory.options import Options
from keepthread.memory.search.search import Filters, Hit
from keepthread.memory.services import Services, Tenants
from keepthread.memory.session import Session
from keepthread.memory.summaries import Compaction
from keepthread.protocols import (
    Embedder,
    NoteProvider,
    Progress,
    RecallScope,
    Store,
    TokenCounter,
    Tracer,
)
from keepthread.stores.codec import new_id
from keepthread.stores.front import begin_again
from keepthread.stores.kinds import PRUNED
from keepthread.stores.records import check_durability
from keepthread.stores.url import store_at
from keepthread.stores.validation import check_count, check_id, seconds_of
from keepthread.types import JSON, Durability, Role, Scope, SessionInfo, SessionKey, Verification

if TYPE_CHECKING:
    # Facts and forgetting are loaded when they are first used, and so are stores with an outbox:
    # most programs need none of them to answer.
    from keepthread.memory.facts.extraction import Extraction
    from keepthread.memory.facts.facts import Facts
    from keepthread.memory.forgetting.receipt import Receipt
    from keepthread.stores.outbox.store import Outbox

DAY: Final = 86_400.0
_PAGE: Final = 500
_NOTED_LATE: Final = 1.0  # seconds

_log: Final = logging.getLogger("keepthread")
_WARNED: Final = 1000
"""Sessions of which a memory remembers that it warned about them."""


class Memory:
    """A store with a counter and views; `async with Memory.open("sqlite:///chat.db") as memory`."""

    def __init__(self, store: Store, options: Options | None = None) -> None:
        """Wrap an open store; `open` is the usual way."""
        self._build(Services(store, options or Options()), Tenants(), is_first=True)

    def _build(self, services: Services, tenants: "Tenants[Memory]", *, is_first: bool) -> None:
        self.store = services.store
        self.outbox: Outbox | None = getattr(self.store, "outbox", None)
        """The messages that wait to be delivered, if the memory was opened with an outbox."""
        self.counter = services.counter
        self.views = services.views
        self.compaction = services.compaction
        self.extraction = services.options.extraction
        self._services = services
        self._warned: set[str] = set()
        self._runtime = services.runtime
        self._maintenance = services.maintenance
        self._tenants = tenants
        self._is_first = is_first

    @staticmethod
    def open(  # noqa: PLR0913 - configuration is arguments
        url: str,
        *,
        tenant: str = "default",
        views: Mapping[str, View] | None = None,
        counter: TokenCounter | None = None,
        compaction: Compaction | None = None,
        embedder: Embedder | None = None,
        extraction: "Extraction | None" = None,
        recall: RecallScope = "session",
        keep_why: int = 0,
        providers: Mapping[str, NoteProvider] | None = None,
        tracer: Tracer | None = None,
        durability: Durability | None = None,
        outbox: str | None = None,
        timeout: float | None = None,
        clock: Callable[[], float] = time.time,
        ids: Callable[[], str] = new_id,
    ) -> "Opening":
        """Open `sqlite:///path` (four slashes for an absolute path), a server's URL, or `ram://`.

        Use it with `async with`, or `await` it and close it yourself.

        - `views`: views by name, in addition to `router`, `planner` and `chat`.
        - `counter`: counts tokens; by default the best counter that is installed.
        - `compaction`: how old turns become a summary.
        - `embedder`: makes vectors, so that search also finds other words for the same thing.
        - `extraction`: how facts are extracted from conversations; None extracts none.
        - `recall`: where contexts recall from and models search: the `session` that asks, or all
          sessions of its `owner`.
        - `keep_why`: how many explanations of contexts each session keeps.
        - `providers`: functions that `session.provide` asks for notes, by the notes' keys.
        - `tracer`: gets a span for each append, context, compact and tool.
        - `durability`: the least a write must survive: `memory`, `process`, `power` or
          `replicated`; an engine that gives less raises `DurabilityTooLow`.
        - `outbox`: the path of a file that takes messages while the server is away, and delivers
          them when it is back.
        - `timeout`: for how many seconds a call waits for a store that is busy or away.
        - `clock`, `ids`: return the time in seconds since 1970, and a new unique id.
        """
        options = Options(
            views=views,
            counter=counter,
            compaction=compaction,
            embedder=embedder,
            extraction=extraction,
            recall=recall,
            keep_why=keep_why,
            providers=providers,
            tracer=tracer,
            clock=clock,
            ids=ids,
        )
        check_durability(durability)
        store = store_at(url, outbox, timeout)

        async def memory() -> Memory:
            opened = await store(tenant=tenant, durability=durability, clock=clock, ids=ids)
            try:
                made = Memory(opened, options)
                await made._services.settle()
                if embedder is not None:
                    made._services.searching.warm()
            except BaseException:
                await opened.close()  # else its threads, connections and locks stay
                raise
            return made

        return Opening(memory)

    def tenant(self, name: str) -> "Memory":
        """Return the memory of another tenant; both share one engine, closed with the first memory.

        Calls with the same name return the same memory. An outbox belongs to one tenant, so a
        memory with an outbox raises an error.
        """
        return self._tenants.get(check_id(name, "tenant"), self._tenant)

    def _tenant(self, name: str) -> "Memory":
        services = self._services
        made = object.__new__(Memory)
        made._build(
            Services(self.store.tenant(name), services.options, services.runtime),
            self._tenants,
            is_first=False,
        )
        return made

    async def close(self) -> None:
        """Finish pending work, for up to 5 seconds, and close the store.

        The memory of a tenant is closed with the memory that it came from.
        """
        if not self._is_first:
            return  # others may use the same memory; it is closed with the first
        await self._runtime.background.close()
        for each in (self, *self._tenants):
            await each._services.close_search()  # noqa: SLF001 - of this class
        await self.store.close()

    async def idle(self) -> None:
        """Wait until the background work is done: compactions, facts, explanations."""
        await self._runtime.background.settle()

    async def __aenter__(self) -> Self:
        """Use it as it is."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close it."""
        await self.close()

    # --- sessions ---

    async def session(
        self,
        id: str,
        *,
        owner: str | None = None,
        system_prompt: str | None = None,
        title: str | None = None,
        tags: Sequence[str] = (),
        meta: Mapping[str, JSON] | None = None,
    ) -> Session:
        """Return the session of that id; create it if it does not exist.

        With an owner, another owner's session is not found. All other arguments apply only to a new
        session.
        """
        found = await self._find(id, owner)
        if found is not None:
            ignored = system_prompt is not None and system_prompt != found.info.system_prompt
            if ignored and self._warn_once(id):
                _log.warning(
                    "session %r exists already, so system_prompt is ignored;"
                    " `session.update(system_prompt=…)` changes it",
                    id,
                )
            return found
        try:
            return await self.create_session(
                id, owner=owner, system_prompt=system_prompt, title=title, tags=tags, meta=meta
            )
        except SessionExists:  # another caller made it in the meantime
            return await self.get_session(id, owner=owner)

    async def create_session(
        self,
        id: str | None = None,
        *,
        owner: str | None = None,
        system_prompt: str | None = None,
        title: str | None = None,
        tags: Sequence[str] = (),
        meta: Mapping[str, JSON] | None = None,
    ) -> Session:
        """Create a session; raise `SessionExists` if the id is taken.

        Without an id, it gets a new one: `session.id`.
        """
        info = SessionInfo(
            id=self._services.options.ids() if id is None else id,
            owner="default" if owner is None else owner,
            system_prompt=system_prompt,
            title=title or "",
            tags=tags,
            meta=meta or {},
        )
        try:
            made = await self.store.put_session(info)
        except SessionExists:
            known = await self.store.get_session(info.id)
            if known is None or not known.forgotten:
                raise
            if await self._services.forgetting().complete():  # else it would be closed again
                known = await self.store.describe(known.key)
            made = await begin_again(self.store, known, info)
        return self._services.session(made)

    async def get_session(self, id: str, *, owner: str | None = None) -> Session:
        """Return the session of that id; raise `SessionNotFound` if it does not exist."""
        found = await self._find(id, owner)
        if found is None:
            raise SessionNotFound(f"there is no session {id!r}")
        return found

    async def list_sessions(
        self, *, owner: str | None = None, limit: int = 10
    ) -> list[SessionInfo]:
        """Return information about sessions, latest activity first, without delegated tasks."""
        return await self.store.list_sessions(owner=owner, limit=limit)

    async def delete_session(self, id: str, *, owner: str | None = None) -> None:
        """Remove a session with its messages and its records; facts and forks stay.

        `forget` also erases what was made from the messages, and their bytes.
        """
        info = await self.store.get_session(id)  # also a fork that was never completed
        if info is None or info.forgotten or owner not in (None, info.owner):
            raise SessionNotFound(f"there is no session {id!r}")
        await self.store.delete_session(info.key)

    async def prune(
        self, days: int = 30, *, daily: bool = False, progress: Progress | None = None
    ) -> int:
        """Delete sessions of all kinds without activity for `days` days; return how many.

        `daily` does nothing if a program did it within a day. `progress` gets the number of deleted
        sessions and the total.
        """
        if daily and not await self._is_due():
            return 0
        # Activity is noted up to a second late, so the last second before counts as activity;
        # not with 0 days, which means every session.
        late = _NOTED_LATE if check_count(days, "days") else 0.0
        before = max(0.0, self._services.options.clock() - days * DAY - late)
        total = 0
        if progress:
            async for page in self._idle(before):
                total += sum(not info.forgotten for info in page)
        pruned = 0
        async for page in self._idle(before):
            for info in page:
                # Another process may have pruned it, or used it since the page was read.
                with suppress(SessionGone, Stale):
                    await self.store.delete_session(info.key, idle_since=before)
                    pruned += not info.forgotten
                    if progress:
                        progress(pruned, max(total, pruned))
        return pruned

    async def _is_due(self) -> bool:
        """Return whether nobody pruned within a day, and note that it is done now."""
        now = self._services.options.clock()
        record = await self.store.get(Scope(), PRUNED, PRUNED)
        if record is not None and isinstance(at := record.value, int | float) and now - at < DAY:
            return False
        try:
            version = record.version if record else 0
            await self.store.put(Scope(), PRUNED, PRUNED, now, version=version)
        except Stale:  # another program is about to
            return False
        return True

    async def _idle(self, before: float) -> AsyncGenerator[list[SessionInfo]]:
        """Yield, page by page, the sessions without activity since a time."""
        after: SessionKey | None = None
        while page := await self.store.scan_sessions(after=after, limit=_PAGE):
            yield [s for s in page if s.state == "live" and s.updated_at < before]
            after = page[-1].key

    # --- finding ---

    async def search(
        self,
        query: str,
        *,
        owner: str | None = None,
        session: str | None = None,
        since: float | datetime | None = None,
        until: float | datetime | None = None,
        roles: Collection[Role] | None = None,
        limit: int = 10,
        progress: Progress | None = None,
    ) -> list[Hit]:
        """Return the messages most related to a question, the best first, each with the reason.

        `since` and `until` are seconds since 1970, or datetimes with a time zone. The search covers
        the whole log, including messages that contexts hide, but not delegated tasks. `progress`
        reports the indexing of new messages.
        """
        began, ended = seconds_of(since, "since"), seconds_of(until, "until")
        filters = Filters(owner, session, began, ended, roles)
        return await self._services.searching.search(query, filters, limit=limit, progress=progress)

    async def index(self, *, owner: str | None = None, progress: Progress | None = None) -> None:
        """Index the messages written since the last time, by words and by vectors.

        Searching does so automatically; with an embedder it may take long.
        """
        await self._services.searching.catch_up(owner=owner, progress=progress)

    # --- facts ---

    def facts(self, owner: str = "default") -> "Facts":
        """Return the facts about an owner, which hold beyond one session."""
        from keepthread.memory.facts.facts import Facts  # noqa: PLC0415 - 20 ms, if used

        return Facts(self._services.fact_repository(owner), self._maintenance.extractor)

    # --- forgetting ---

    async def forget(  # noqa: PLR0913 - each names one way to choose
        self,
        *,
        session: str | None = None,
        message: str | None = None,
        owner: str | None = None,
        author: str | None = None,
        source: str | None = None,
        since: float | datetime | None = None,
        until: float | datetime | None = None,
        answers: bool = False,
        rewrite: bool = False,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> "Receipt":
        """Erase messages, their copies and everything that was made from them, permanently.

        A message is erased if it matches every given argument; `since` and `until` are seconds
        since 1970, or datetimes with a time zone. If only a session or an owner is given, all of it
        is erased, including titles, prompts and the owner's facts; such a session then no longer
        exists for any other call. `answers` also erases answers
        known to have been written from the messages. `rewrite` lets a server rewrite its tables,
        which locks them for a while. `dry_run` only reports what would be erased.
        """
        from keepthread.memory.forgetting.plan import ForgetQuery  # noqa: PLC0415 - 14 ms, rare

        began, ended = seconds_of(since, "since"), seconds_of(until, "until")
        await self._services.settle()
        query = ForgetQuery(session, message, owner, author, source, began, ended)
        if vectors := self._services.searching.vectors:
            await vectors.expect(self.store)
        forgetting = self._services.forgetting(progress)
        return await forgetting.forget(query, answers=answers, rewrite=rewrite, dry_run=dry_run)

    async def verify(self, *, progress: Progress | None = None) -> Verification:
        """Check everything that is stored."""
        return await self.store.verify(progress=progress)

    def _warn_once(self, id: str) -> bool:
        """Return whether a session was not warned about yet; a server may ask for it each time."""
        if id in self._warned or len(self._warned) >= _WARNED:
            return False
        self._warned.add(id)
        return True

    async def _find(self, id: str, owner: str | None) -> Session | None:
        await self._services.settle()
        info = await self.store.get_session(id)
        if info is None or not info.ready:
            return None
        if owner is not None and info.owner != owner:
            raise SessionNotFound(f"there is no session {id!r}")
        return self._services.session(info)


class Opening:
    """A memory about to be opened: enter it, or await it."""

    def __init__(self, opened: Callable[[], Coroutine[Any, Any, Memory]]) -> None:
        """Take the function that opens it."""
        self._open = opened
        self._memory: Memory | None = None

    def __await__(self) -> Generator[Any, None, Memory]:
        """Open it and leave closing to the caller."""
        return self._open().__await__()

    async def __aenter__(self) -> Memory:
        """Open it."""
        self._memory = await self._open()
        return self._memory

    async def __aexit__(self, *_: object) -> None:
        """Close it."""
        if self._memory is not None:
            await self._memory.close()
