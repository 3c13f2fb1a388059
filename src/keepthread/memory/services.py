"""The services of one tenant's memory: search, facts, forgetting, maintenance."""

import logging
import threading
from collections.abc import Callable, Hashable, Iterator
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast

from keepthread.context.views import DEFAULT_VIEWS, strategy_needs
from keepthread.errors import KeepthreadError, Unavailable
from keepthread.memory.blobs.repository import BlobRepository
from keepthread.memory.blobs.types import BlobSizes
from keepthread.memory.conversation import Conversation
from keepthread.memory.options import Options
from keepthread.memory.runtime import Maintenance, NegativeCache, Runtime
from keepthread.memory.search.search import Searching
from keepthread.memory.search.vectors import Vectors
from keepthread.memory.session import Session
from keepthread.memory.summaries import Compaction, Compactor
from keepthread.memory.tracing import Spans
from keepthread.memory.why_log import ChoiceLog
from keepthread.models.tokens import counter as best_counter
from keepthread.protocols import Progress, Store
from keepthread.stores.kinds import FORGET
from keepthread.stores.validation import seconds_of
from keepthread.types import Page, Scope, SessionInfo

if TYPE_CHECKING:
    # Facts and forgetting are loaded when they are first used, and so are stores with an outbox:
    # most programs need none of them to answer.
    from keepthread.memory.facts.extraction import Extractor
    from keepthread.memory.facts.facts import Facts
    from keepthread.memory.facts.repository import FactRepository
    from keepthread.memory.forgetting.forget import Forgetting
    from keepthread.memory.forgetting.receipt import Receipt
    from keepthread.memory.forgetting.receipts import StoredReceipt
    from keepthread.stores.outbox.store import OutboxStore

MAX_TENANTS: Final = 1_000
"""Tenants whose memories are kept for the next call."""

T = TypeVar("T")

_log: Final = logging.getLogger("keepthread")
_WARNED: Final = 1000
"""Sessions of which a memory remembers that it warned about them."""


class Tenants(Generic[T]):
    """The memories of the tenants that were used last; threads may share it."""

    def __init__(self) -> None:
        """Begin without tenants."""
        self._lock = threading.Lock()
        self._known: dict[str, T] = {}

    def get(self, name: str, make: Callable[[str], T]) -> T:
        """Return the memory of a tenant, made if it is not kept."""
        with self._lock:
            found = self._known.pop(name, None) or make(name)
            self._known[name] = found  # at the end: it was used last
            if len(self._known) > MAX_TENANTS:
                del self._known[next(iter(self._known))]
        return found

    def __iter__(self) -> Iterator[T]:
        """Iterate over those that are kept now."""
        with self._lock:
            return iter([*self._known.values()])


class SettlingStore:
    """A tenant's store that completes interrupted erasures before its first call.

    So whichever call comes first, forgotten text is not read, and what is stored later stays.
    """

    def __init__(self, store: Store, services: "Services") -> None:
        """Wrap a store; the services complete the erasures."""
        self._store = store
        self._services = services

    def __getattr__(self, name: str) -> Any:
        """Return a method or an attribute of the store."""
        member = getattr(self._store, name)
        if self._services.is_settled or not iscoroutinefunction(member):
            return member

        async def settled(*args: Any, **options: Any) -> Any:
            await self._services.settle()
            return await member(*args, **options)

        return settled


class Services:
    """The services of one tenant's memory, built from its options."""

    def __init__(self, store: Store, options: Options, runtime: Runtime | None = None) -> None:
        """Build them over a store; tenants of one engine pass what they share."""
        self.own_store = store
        self.is_settled = False
        self._settling = cast(Store, SettlingStore(store, self))
        self.counter = options.counter or best_counter()
        self.options = replace(options, counter=self.counter)  # tenants use the same counter
        self.views = {**DEFAULT_VIEWS, **(options.views or {})}
        self.compaction = options.compaction or Compaction()
        self.runtime = runtime or Runtime(clock=options.clock, spans=Spans(options.tracer))
        self.no_facts = NegativeCache()
        self.explanations = ChoiceLog(
            self.store,
            options.keep_why,
            background=self.runtime.background,
            clock=options.clock,
            ids=options.ids,
        )
        strategies = [view.strategy for view in self.views.values()]
        self.maintenance = Maintenance(
            store=self.store,
            compactor=Compactor(
                store=self.store,
                counter=self.counter,
                compaction=self.compaction,
                leases=self.runtime.leases(self.store),
                spans=self.runtime.spans,
            ),
            needs_summaries=any("summaries" in strategy_needs(each) for each in strategies),
            background=self.runtime.background,
            extractor=self._extractor(),
        )
        self._warned: set[Hashable] = set()

    @property
    def store(self) -> Store:
        """Return the tenant's store."""
        return self.own_store if self.is_settled else self._settling

    async def close(self) -> None:
        """Close the store."""
        await self.own_store.close()

    def warn_once(self, about: Hashable) -> bool:
        """Return whether this warning is new; a server may request it each time."""
        if about in self._warned or len(self._warned) >= _WARNED:
            return False
        self._warned.add(about)
        return True

    def session(self, info: SessionInfo, person: str | None = None) -> Session:
        """Return a stored session, as its owner or one of the people who share it sees it."""
        conversation = Conversation(
            store=self.store,
            id=info.id,
            key=info.key,
            counter=self.counter,
            views=self.views,
            ids=self.options.ids,
            owner=info.owner,
            runtime=self.runtime,
            maintenance=self.maintenance,
            choice_log=self.explanations,
            no_facts=self.no_facts,
            searching=lambda: self.searching,
            blobs=self.blobs(info.owner),
            providers=self.options.providers or {},
            recall=self.options.recall,
            person=person,
        )
        return Session(conversation, info)

    # --- search ---

    @cached_property
    def searching(self) -> Searching:
        """Return the search of this tenant."""
        vectors = None
        if self.options.embedder is not None:
            vectors = Vectors(self.options.embedder)
        return Searching(self.store, background=self.runtime.background, vectors=vectors)

    async def close_search(self) -> None:
        """Cancel the questions that are being embedded."""
        if "searching" in vars(self):  # otherwise there was no search
            await self.searching.close()

    # --- blobs ---

    def blobs(self, owner: str) -> BlobRepository:
        """Return the blobs of an owner."""
        options = self.options
        sizes = options.blob_sizes or BlobSizes()
        return BlobRepository(self.store, owner, sizes=sizes, clock=options.clock)

    async def delete_session(self, info: SessionInfo, *, idle_since: float | None = None) -> None:
        """Delete a session, and the blobs that only its messages refer to."""
        blobs = self.blobs(info.owner)
        used = await blobs.used_in(info.key)
        await self.store.delete_session(info.key, idle_since=idle_since)
        await blobs.release_session(info.key, used)

    # --- facts ---

    def fact_repository(self, owner: str) -> "FactRepository":
        """Return the repository of the facts about an owner."""
        from keepthread.memory.facts.repository import (  # noqa: PLC0415 - 20 ms, if used
            FactRepository,
        )

        return FactRepository(
            self.store,
            owner,
            clock=self.options.clock,
            learned=self.no_facts.discard,
            cache=self.runtime.fact_cache,
        )

    def facts(self, owner: str) -> "Facts":
        """Return the facts about an owner."""
        from keepthread.memory.facts.facts import Facts  # noqa: PLC0415 - 20 ms, if used

        return Facts(self.fact_repository(owner), self.maintenance.extractor)

    def _extractor(self) -> "Extractor | None":
        if self.options.extraction is None:
            return None
        from keepthread.memory.facts.extraction import Extractor  # noqa: PLC0415 - 20 ms, if used

        return Extractor(
            self.store,
            self.options.extraction,
            leases=self.runtime.leases(self.store),
            repository=self.fact_repository,
            spans=self.runtime.spans,
        )

    # --- forgetting ---

    def forgetting(
        self, progress: Progress | None = None, reader: str | None = None
    ) -> "Forgetting":
        """Return the service that erases messages of this tenant; see `Forgetting`."""
        from keepthread.memory.forgetting.forget import Forgetting  # noqa: PLC0415 - 14 ms, rare

        vectors = self.searching.vectors
        store = self.own_store  # it completes what was interrupted, and does not wait for itself
        return Forgetting(
            store,
            clock=self.options.clock,
            ids=self.options.ids,
            outbox=cast("OutboxStore", store) if hasattr(store, "outbox") else None,
            views=[vectors.view] if vectors else [],
            progress=progress,
            reader=reader,
            background=self.runtime.background,
        )

    async def forget(  # noqa: PLR0913 - each names one way to choose
        self,
        session: str | None = None,
        message: str | None = None,
        author: str | None = None,
        source: str | None = None,
        since: float | datetime | None = None,
        until: float | datetime | None = None,
        *,
        owner: str | None = None,
        answers: bool = False,
        rewrite: bool = False,
        dry_run: bool = False,
        progress: Progress | None = None,
        reader: str | None = None,
        id: str | None = None,
    ) -> "Receipt":
        """Erase what matches; without an owner, the messages of all.

        `reader` is the owner who gets the receipt, if that is not the program's operator. `id`
        names the erasure among all of the tenant's.
        """
        began, ended = seconds_of(since, "since"), seconds_of(until, "until")
        await self.settle()
        if vectors := self.searching.vectors:
            await vectors.expect(self.store)
        forgetting = self.forgetting(progress, reader)
        query = forgetting.Query(session, message, owner, author, source, began, ended)
        return await forgetting.forget(
            query, answers=answers, rewrite=rewrite, dry_run=dry_run, id=id
        )

    async def receipts(
        self, owner: str | None, *, limit: int, cursor: str | None
    ) -> Page["StoredReceipt"]:
        """Return the receipts of an owner or, without one, of the tenant, latest first."""
        await self.settle()  # an erasure that was interrupted gets its receipt now
        return await self.forgetting(reader=owner).receipts(limit, cursor)

    async def settle(self) -> None:
        """Complete, once, a forgetting that a process began before it died."""
        if self.is_settled:
            return
        async with self.runtime.locks.of("settle", f"{id(self)}"):
            has_intents = False
            try:
                has_intents = bool(await self.own_store.scan(Scope(), FORGET, limit=1))
                if has_intents:
                    await self.forgetting().complete()
            except KeepthreadError as error:
                if isinstance(error, Unavailable) and not has_intents:
                    return  # the server is unreachable: the next call tries again
                # Reading may continue; the next process that opens the memory tries again.
                name = type(error).__name__
                _log.warning("an interrupted erasure could not be completed: %s", name)
            self.is_settled = True
