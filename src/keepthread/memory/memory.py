"""Memory: the entry point. Open a store by its URL, and get sessions from it."""

import time
from collections.abc import (
    Callable,
    Collection,
    Coroutine,
    Generator,
    Mapping,
    Sequence,
)
from datetime import datetime
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self

from keepthread.context.views import View
from keepthread.errors import InvalidInput
from keepthread.memory.admin import Admin
from keepthread.memory.options import Options
from keepthread.memory.owner import OwnerMemory
from keepthread.memory.search.search import Hit
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
from keepthread.stores.records import check_durability
from keepthread.stores.url import store_at
from keepthread.stores.validation import check_id
from keepthread.types import JSON, Durability, Page, Role, SessionInfo

if TYPE_CHECKING:
    # Facts and forgetting are loaded when they are first used, and so are stores with an outbox:
    # most programs need none of them to answer.
    from keepthread.memory.facts.extraction import Extraction
    from keepthread.memory.facts.facts import Facts
    from keepthread.memory.forgetting.receipt import Receipt
    from keepthread.stores.outbox.store import Outbox

DEFAULT_OWNER: Final = "default"
_OF_SERVERS: Final = ("http", "https")


async def _remote(url: str, key: str | None, seconds: float | None, **settings: object) -> "Memory":
    # By its name: it derives from `Memory`, and so imports this module.
    opening = import_module("keepthread.memory.remote.memory")
    return await opening.open_remote(url, key, seconds, settings)


class Memory:
    """All conversations, facts and files in a store; get it from `Memory.open`."""

    def __init__(self, store: Store, options: Options | None = None) -> None:
        """Wrap an open store; `open` is the usual way."""
        self._build(Services(store, options or Options()), Tenants(), is_first=True)

    def _build(self, services: Services, tenants: "Tenants[Memory]", *, is_first: bool) -> None:
        self.outbox: Outbox | None = getattr(services.store, "outbox", None)
        """The messages that wait to be delivered, if the memory was opened with an outbox."""
        self.counter = services.counter
        self.views = services.views
        self.compaction = services.compaction
        self.extraction = services.options.extraction
        self._services = services
        self._runtime = services.runtime
        self._tenants = tenants
        self._is_first = is_first

    @property
    def store(self) -> Store:
        """Return the store: its log, records and search, below sessions and owners."""
        # Another tenant's completes interrupted erasures first; the program opened this one itself.
        return self._services.own_store if self._is_first else self._services.store

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
        key: str | None = None,
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
        - `outbox`: the path of a file that stores messages while the server is unavailable and
          delivers them later.
        - `timeout`: seconds that a call waits for a busy or unavailable store.
        - `clock`, `ids`: return the time in seconds since 1970, and a new unique id.
        - `key`: the API key, if the URL is that of a keepthread server (`https://…`). The server's
          settings then decide how contexts are built, and the other arguments but `timeout` are
          refused.
        """
        if isinstance(url, str) and url.partition("://")[0] in _OF_SERVERS:  # pyright: ignore[reportUnnecessaryIsInstance]
            return Opening(
                partial(
                    _remote,
                    url,
                    key,
                    timeout,
                    views=views,
                    counter=counter,
                    compaction=compaction,
                    embedder=embedder,
                    extraction=extraction,
                    recall=None if recall == "session" else recall,
                    keep_why=keep_why or None,
                    providers=providers,
                    tracer=tracer,
                    durability=durability,
                    outbox=outbox,
                    tenant=None if tenant == "default" else tenant,
                )
            )
        if key is not None:
            raise InvalidInput("`key` is for a keepthread server: https://… or http://localhost")
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
                await opened.close()  # otherwise its threads, connections and locks would leak
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
            Services(services.store.tenant(name), services.options, services.runtime),
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
        await self._services.close()

    async def idle(self) -> None:
        """Wait until the background work is done: compactions, facts, explanations."""
        await self._runtime.background.settle()

    async def __aenter__(self) -> Self:
        """Return the memory."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close it."""
        await self.close()

    # --- owners ---

    def for_owner(self, name: str) -> OwnerMemory:
        """Return the memory of one owner, through which nothing of another can be reached.

        Pass it to whatever acts for that person. The methods of this class with an `owner`
        argument are short for it: `memory.session(id, owner=name)` is
        `memory.for_owner(name).session(id)`, and a missing owner is `default`.
        """
        return OwnerMemory(self._services, name)

    @property
    def admin(self) -> Admin:
        """Return the calls over all owners of the tenant."""
        return Admin(self._services)

    async def session(
        self,
        id: str,
        *,
        owner: str = DEFAULT_OWNER,
        system_prompt: str | None = None,
        title: str | None = None,
        tags: Sequence[str] = (),
        meta: Mapping[str, JSON] | None = None,
    ) -> Session:
        """Return an owner's session of that id; create it if it does not exist.

        All other arguments apply only to a new session.
        """
        return await self.for_owner(owner).session(
            id, system_prompt=system_prompt, title=title, tags=tags, meta=meta
        )

    async def create_session(
        self,
        id: str | None = None,
        *,
        owner: str = DEFAULT_OWNER,
        system_prompt: str | None = None,
        title: str | None = None,
        tags: Sequence[str] = (),
        meta: Mapping[str, JSON] | None = None,
    ) -> Session:
        """Create a session; raise `SessionExists` if the owner has one with that id.

        Without an id, it gets a new one: `session.id`.
        """
        return await self.for_owner(owner).create_session(
            id, system_prompt=system_prompt, title=title, tags=tags, meta=meta
        )

    async def get_session(self, id: str, *, owner: str = DEFAULT_OWNER) -> Session:
        """Return an owner's session; raise `SessionNotFound` if it does not exist."""
        return await self.for_owner(owner).get_session(id)

    async def list_sessions(
        self,
        *,
        owner: str = DEFAULT_OWNER,
        limit: int = 10,
        cursor: str | None = None,
        tag: str | None = None,
        title: str | None = None,
    ) -> Page[SessionInfo]:
        """Return information about an owner's sessions; see `OwnerMemory.list_sessions`.

        `memory.admin.list_sessions()` returns those of all owners.
        """
        return await self.for_owner(owner).list_sessions(
            limit=limit, cursor=cursor, tag=tag, title=title
        )

    async def delete_session(self, id: str, *, owner: str = DEFAULT_OWNER) -> None:
        """Remove an owner's session with its messages and its records; facts and forks stay.

        `forget` also erases what was made from the messages, and their bytes.
        """
        await self.for_owner(owner).delete_session(id)

    async def search(
        self,
        query: str,
        *,
        owner: str = DEFAULT_OWNER,
        session: str | None = None,
        since: float | datetime | None = None,
        until: float | datetime | None = None,
        roles: Collection[Role] | None = None,
        limit: int = 10,
        cursor: str | None = None,
        progress: Progress | None = None,
    ) -> Page[Hit]:
        """Return an owner's messages most relevant to a question; see `OwnerMemory.search`."""
        return await self.for_owner(owner).search(
            query,
            session=session,
            since=since,
            until=until,
            roles=roles,
            limit=limit,
            cursor=cursor,
            progress=progress,
        )

    async def index(self, *, owner: str = DEFAULT_OWNER, progress: Progress | None = None) -> None:
        """Index new messages of an owner's sessions, by words and by vectors.

        Searching does so automatically; with an embedder it may take long.
        """
        await self.for_owner(owner).index(progress=progress)

    @property
    def facts(self) -> "Facts":
        """Return the facts about the owner `default`, which outlive sessions.

        Those about another owner are `memory.for_owner(name).facts`.
        """
        return self.for_owner(DEFAULT_OWNER).facts

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
        """Erase an owner's messages, their copies and everything made from them, permanently.

        See `OwnerMemory.forget`. If only an owner is given, everything of that owner is erased.
        `rewrite` lets a server rewrite its tables, which locks them for a while.
        """
        given = (session, message, author, source, since, until)
        if owner is None and any(value is not None for value in given):
            owner = DEFAULT_OWNER
        return await self._services.forget(
            *given,
            owner=owner,
            answers=answers,
            rewrite=rewrite,
            dry_run=dry_run,
            progress=progress,
        )


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

    if not TYPE_CHECKING:  # otherwise a type checker would accept every name

        def __getattr__(self, name: str) -> NoReturn:
            """Say how to open it: what is missing is usually `async with` or `await`."""
            reason = f"{type(self).__name__!r} object has no attribute {name!r}"
            if hasattr(Memory, name) or not name.startswith("_"):
                reason = (
                    f"the memory is not open yet, so it has no {name!r}; write `async with"
                    " Memory.open(…) as memory:` or `memory = await Memory.open(…)`"
                )
            raise AttributeError(reason)
