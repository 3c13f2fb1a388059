"""Memory: the door. Open a store by its address, and get sessions from it."""

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
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Self, cast

from keepthread.context.strategies import DEFAULT_VIEWS, View, Window
from keepthread.errors import (
    KeepthreadError,
    SessionExists,
    SessionGone,
    SessionNotFound,
    Stale,
    Unavailable,
)
from keepthread.memory.conversation import Thread
from keepthread.memory.facts.extraction import Extraction, Extractor
from keepthread.memory.facts.facts import Facts
from keepthread.memory.facts.repository import FactShelf
from keepthread.memory.forgetting.forget import Forgetting
from keepthread.memory.forgetting.plan import Wish
from keepthread.memory.forgetting.receipt import Receipt
from keepthread.memory.runtime import Ignorance, Shared, Upkeep
from keepthread.memory.search.search import Filters, Hit, Searching
from keepthread.memory.search.vectors import Vectors
from keepthread.memory.session import Session
from keepthread.memory.summaries import Folder, Folding
from keepthread.memory.tracing import Spans
from keepthread.memory.why_log import Accounts
from keepthread.models.tokens import counter as best_counter
from keepthread.protocols import Embedder, Progress, Store, TokenCounter, Tracer
from keepthread.recall.weights import Weights
from keepthread.stores.ids import new_id
from keepthread.stores.leases import FORGET
from keepthread.stores.url import store_at
from keepthread.stores.validation import check_count
from keepthread.types import JSON, Durability, Role, Scope, SessionInfo, SessionKey, Verification

if TYPE_CHECKING:
    # A store with a spool is rare, and its modules take as long to load as all of SQLite's.
    from keepthread.stores.outbox.store import Spool, SpooledStore

DAY: Final = 86_400.0
_PAGE: Final = 500
_NOTED_LATE: Final = 1.0  # seconds

_log: Final = logging.getLogger("keepthread")


class Memory:
    """A store with a counter and views; `async with Memory.open("sqlite:///chat.db") as memory`."""

    def __init__(  # noqa: PLR0913 - configuration is arguments
        self,
        store: Store,
        *,
        views: Mapping[str, View] | None = None,
        counter: TokenCounter | None = None,
        folding: Folding | None = None,
        embedder: Embedder | None = None,
        weights: Weights | None = None,
        extraction: Extraction | None = None,
        keep_why: int = 0,
        tracer: Tracer | None = None,
        clock: Callable[[], float] = time.time,
        ids: Callable[[], str] = new_id,
    ) -> None:
        """Stand on a store that is open; `open` is the usual way.

        `embedder` helps to find what was said in other words, and `weights` say what counts how
        much for what is recalled; `extraction` draws facts from what is said; `keep_why` is how
        many accounts of contexts each session keeps; `tracer` gets a span for each append,
        context, fold and tool.
        """
        self.store = store
        self.spool: Spool | None = getattr(store, "spool", None)
        """What waits to be delivered, if the memory was opened with a spool."""
        self.counter = counter or best_counter()
        self.views = {**DEFAULT_VIEWS, **(views or {})}
        self.folding = folding or Folding()
        self._embedder = embedder
        self._weights = weights
        self.extraction = extraction
        self._clock = clock
        self._ids = ids
        self._keep_why = check_count(keep_why, "keep_why")
        self._shared = Shared(clock=clock, spans=Spans(tracer))
        self._owns_engine = True
        self._settled = False
        self._ignorance = Ignorance()
        self._upkeep, self._accounts = self._caretaker(), self._bookkeeper()

    def _caretaker(self) -> Upkeep:
        strategies = [view.strategy for view in self.views.values()]
        return Upkeep(
            store=self.store,
            folder=Folder(
                store=self.store,
                counter=self.counter,
                folding=self.folding,
                leases=self._shared.leases(self.store),
                spans=self._shared.spans,
            ),
            folds=any(isinstance(each, Window) and each.folds for each in strategies),
            background=self._shared.background,
            extractor=self._extractor(),
        )

    def _bookkeeper(self) -> Accounts:
        return Accounts(
            self.store,
            self._keep_why,
            background=self._shared.background,
            clock=self._clock,
            ids=self._ids,
        )

    @staticmethod
    def open(  # noqa: PLR0913 - configuration is arguments
        url: str,
        *,
        tenant: str = "default",
        views: Mapping[str, View] | None = None,
        counter: TokenCounter | None = None,
        folding: Folding | None = None,
        embedder: Embedder | None = None,
        weights: Weights | None = None,
        extraction: Extraction | None = None,
        keep_why: int = 0,
        tracer: Tracer | None = None,
        durability: Durability | None = None,
        spool: str | None = None,
        patience: float | None = None,
        clock: Callable[[], float] = time.time,
        ids: Callable[[], str] = new_id,
    ) -> "Opening":
        """Open `sqlite:///path` (four slashes for an absolute path), a server's URL, or `ram://`.

        Use it with `async with`, or `await` it and close it yourself. `spool` is the path of a
        file that takes messages while the server is away, and delivers them when it is back.
        `patience` is for how many seconds a call waits for a store that is busy or away.
        """
        store = store_at(url, spool, patience)

        async def memory() -> Memory:
            opened = await store(tenant=tenant, durability=durability, clock=clock, ids=ids)
            try:
                made = Memory(
                    opened,
                    views=views,
                    counter=counter,
                    folding=folding,
                    embedder=embedder,
                    weights=weights,
                    extraction=extraction,
                    keep_why=keep_why,
                    tracer=tracer,
                    clock=clock,
                    ids=ids,
                )
                await made._settle()
                if embedder is not None:
                    made._searching.warm()
            except BaseException:
                await opened.close()  # else its threads, connections and locks stay
                raise
            return made

        return Opening(memory)

    def tenant(self, name: str) -> "Memory":
        """Return this memory behind another tenant's wall; both share one engine.

        A spool belongs to one tenant: a memory with a spool refuses.
        """
        other = Memory(
            self.store.tenant(name),
            views=self.views,
            counter=self.counter,
            folding=self.folding,
            embedder=self._embedder,
            weights=self._weights,
            extraction=self.extraction,
            keep_why=self._keep_why,
            clock=self._clock,
            ids=self._ids,
        )
        other._shared, other._owns_engine = self._shared, False
        other._upkeep, other._accounts = other._caretaker(), other._bookkeeper()
        return other

    async def close(self) -> None:
        """Finish what was begun, waiting 5 seconds for it at most, and let go of the store."""
        if self._owns_engine:
            await self._shared.background.close()
        if "_searching" in vars(self):  # else nothing was ever looked for
            await self._searching.close()
        await self.store.close()

    async def idle(self) -> None:
        """Wait until nothing is being done off the callers' path: folds, facts, accounts."""
        await self._shared.background.settle()

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
        """Return the session of that id, made if it is not there.

        With an owner, another's session is not found; what else is given applies to a new one.
        """
        found = await self._find(id, owner)
        if found is not None:
            return found
        try:
            return await self.create_session(
                id, owner=owner, system_prompt=system_prompt, title=title, tags=tags, meta=meta
            )
        except SessionExists:  # another made it meanwhile
            return await self.get_session(id, owner=owner)

    async def create_session(
        self,
        id: str,
        *,
        owner: str | None = None,
        system_prompt: str | None = None,
        title: str | None = None,
        tags: Sequence[str] = (),
        meta: Mapping[str, JSON] | None = None,
    ) -> Session:
        """Make a session; one that is there already is an error."""
        info = SessionInfo(
            id=id,
            owner="default" if owner is None else owner,
            system_prompt=system_prompt,
            title=title or "",
            tags=tags,
            meta=meta or {},
        )
        return self._session(await self.store.put_session(info))

    async def get_session(self, id: str, *, owner: str | None = None) -> Session:
        """Return the session of that id; one that is not there is an error."""
        found = await self._find(id, owner)
        if found is None:
            raise SessionNotFound(f"there is no session {id!r}")
        return found

    async def list_sessions(
        self, *, owner: str | None = None, limit: int = 10
    ) -> list[SessionInfo]:
        """Return what is known of sessions, latest activity first, without delegates."""
        return await self.store.list_sessions(owner=owner, limit=limit)

    async def delete_session(self, id: str, *, owner: str | None = None) -> None:
        """Remove a session with its messages and its shelf."""
        info = await self.store.get_session(id)  # also one that was never finished
        if info is None or owner not in (None, info.owner):
            raise SessionNotFound(f"there is no session {id!r}")
        await self.store.delete_session(info.key)

    async def prune(self, days: int = 30, *, progress: Progress | None = None) -> int:
        """Delete sessions without activity for so many days, all kinds of them; return how many.

        `progress` tells of the sessions that were deleted, and of how many are to be.
        """
        # Activity is noted up to a second late, so the last second before counts as activity;
        # not with 0 days, which means every session.
        late = _NOTED_LATE if check_count(days, "days") else 0.0
        before = max(0.0, self._clock() - days * DAY - late)
        total = sum([len(page) async for page in self._idle(before)]) if progress else 0
        pruned = 0
        async for page in self._idle(before):
            for session in page:
                # Another process may have pruned it, or used it since the page was read.
                with suppress(SessionGone, Stale):
                    await self.store.delete_session(session, idle_since=before)
                    pruned += 1
                    if progress:
                        progress(pruned, max(total, pruned))
        return pruned

    async def _idle(self, before: float) -> AsyncGenerator[list[SessionKey]]:
        """Yield, page by page, the sessions without activity since a time."""
        after: SessionKey | None = None
        while page := await self.store.scan_sessions(after=after, limit=_PAGE):
            yield [s.key for s in page if s.state == "live" and s.updated_at < before]
            after = page[-1].key

    # --- finding ---

    @cached_property
    def _searching(self) -> Searching:
        """Return what finds messages here."""
        vectors = None
        if self._embedder is not None:
            vectors = Vectors(self._embedder)
        return Searching(
            self.store,
            background=self._shared.background,
            vectors=vectors,
            weights=self._weights,
        )

    async def search(
        self,
        query: str,
        *,
        owner: str | None = None,
        session: str | None = None,
        since: float | None = None,
        until: float | None = None,
        roles: Collection[Role] | None = None,
        limit: int = 10,
        progress: Progress | None = None,
    ) -> list[Hit]:
        """Return the messages that bear most on a question, the best first, each with the reason.

        `since` and `until` are seconds since 1970. Everything in the log is found, also what
        contexts hide; delegates are not. `progress` tells of reading on what was written since.
        """
        filters = Filters(owner, session, since, until, roles)
        return await self._searching.search(query, filters, limit=limit, progress=progress)

    async def index(self, *, owner: str | None = None, progress: Progress | None = None) -> None:
        """Read into the index, and into the vectors, what was written since the last time.

        Searching does so by itself; with an embedder this is what may take long.
        """
        await self._searching.catch_up(owner=owner, progress=progress)

    # --- facts ---

    def facts(self, owner: str = "default") -> Facts:
        """Return what is known of an owner beyond one session."""
        return Facts(self._fact_shelf(owner), self._upkeep.extractor)

    def _fact_shelf(self, owner: str) -> FactShelf:
        return FactShelf(self.store, owner, clock=self._clock, learned=self._ignorance.end)

    def _extractor(self) -> Extractor | None:
        if self.extraction is None:
            return None
        return Extractor(
            self.store,
            self.extraction,
            leases=self._shared.leases(self.store),
            shelf=self._fact_shelf,
            spans=self._shared.spans,
        )

    # --- forgetting ---

    async def forget(  # noqa: PLR0913 - each names one way to choose
        self,
        *,
        session: str | None = None,
        message: str | None = None,
        owner: str | None = None,
        author: str | None = None,
        source: str | None = None,
        since: float | None = None,
        until: float | None = None,
        answers: bool = False,
        rewrite: bool = False,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> Receipt:
        """Erase messages, their copies and all that was made from them, for ever.

        What is given must all hold for a message; `since` and `until` are seconds since 1970. With
        nothing but a session or an owner, all of it is meant: also titles, prompts, and the owner's
        facts. `answers` also erases what is known to have been written from it; `rewrite` lets a
        server rewrite its tables, which locks them for a while; `dry_run` only tells what would go.
        """
        await self._settle()
        wish = Wish(session, message, owner, author, source, since, until)
        if vectors := self._searching.vectors:
            await vectors.expect(self.store)
        work = self._forgetting(progress)
        return await work.forget(wish, answers=answers, rewrite=rewrite, dry_run=dry_run)

    async def _settle(self) -> None:
        """Complete, once, what a process that died had begun to forget."""
        if self._settled:
            return
        found = False
        try:
            found = bool(await self.store.scan(Scope(), FORGET, limit=1))
            if found:
                await self._forgetting().complete()
        except KeepthreadError as error:
            if isinstance(error, Unavailable) and not found:
                return  # the store is away: the next call looks again
            # Reading may go on; the next one who opens the memory tries again.
            _log.warning("a forgetting could not be completed: %s", type(error).__name__)
        self._settled = True

    def _forgetting(self, progress: Progress | None = None) -> Forgetting:
        vectors = self._searching.vectors
        return Forgetting(
            self.store,
            clock=self._clock,
            ids=self._ids,
            spool=cast("SpooledStore", self.store) if self.spool else None,
            views=[vectors.view] if vectors else [],
            progress=progress,
        )

    async def verify(self, *, progress: Progress | None = None) -> Verification:
        """Check everything that is stored."""
        return await self.store.verify(progress=progress)

    async def _find(self, id: str, owner: str | None) -> Session | None:
        await self._settle()
        info = await self.store.get_session(id)
        if info is None or not info.ready:
            return None
        if owner is not None and info.owner != owner:
            raise SessionNotFound(f"there is no session {id!r}")
        return self._session(info)

    def _session(self, info: SessionInfo) -> Session:
        thread = Thread(
            store=self.store,
            id=info.id,
            key=info.key,
            counter=self.counter,
            views=self.views,
            ids=self._ids,
            owner=info.owner,
            shared=self._shared,
            upkeep=self._upkeep,
            accounts=self._accounts,
            ignorance=self._ignorance,
            searching=lambda: self._searching,
        )
        return Session(thread, info)


class Opening:
    """A memory about to be opened: enter it, or await it."""

    def __init__(self, opened: Callable[[], Coroutine[Any, Any, Memory]]) -> None:
        """Hold what opens it."""
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
