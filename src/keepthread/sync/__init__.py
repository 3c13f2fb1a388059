"""The same surface, blocking: it runs the asynchronous code on an event loop of its own.

`with Memory.open("sqlite:///chat.db") as memory` also works where an event loop runs already, as in
a notebook. Any thread may call; what is documented in `keepthread` holds here.
"""

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Self

from keepthread.context.context import Context
from keepthread.context.strategies import View
from keepthread.errors import StoreClosed
from keepthread.memory.memory import Memory as AsyncMemory
from keepthread.memory.session import Session as AsyncSession
from keepthread.memory.session import Status
from keepthread.memory.summaries import Folding
from keepthread.memory.turn import Turn as AsyncTurn
from keepthread.memory.why_log import KeptWhy
from keepthread.protocols import Embedder, Progress, Store, TokenCounter, Tracer
from keepthread.stores.ids import new_id
from keepthread.sync.facts import Facts
from keepthread.sync.loop import Call, Loop
from keepthread.types import (
    JSON,
    Attachment,
    CachedTool,
    Durability,
    Message,
    ProactiveTool,
    Role,
    SessionInfo,
    SessionKey,
    Verification,
)

if TYPE_CHECKING:
    from keepthread.memory.facts.extraction import Extraction
    from keepthread.memory.forgetting.receipt import Receipt
    from keepthread.memory.search.search import Hit
    from keepthread.recall.weights import Weights
    from keepthread.stores.outbox.store import Spool as AsyncSpool
    from keepthread.stores.outbox.types import Survey

__all__ = ["Facts", "Memory", "Session", "Spool", "Turn"]


class Memory:
    """See `keepthread.Memory`; `with Memory.open("sqlite:///chat.db") as memory`."""

    def __init__(  # noqa: PLR0913 - configuration is arguments
        self,
        store: Store,
        *,
        views: Mapping[str, View] | None = None,
        counter: TokenCounter | None = None,
        folding: Folding | None = None,
        embedder: Embedder | None = None,
        weights: "Weights | None" = None,
        extraction: "Extraction | None" = None,
        keep_why: int = 0,
        tracer: Tracer | None = None,
        clock: Callable[[], float] = time.time,
        ids: Callable[[], str] = new_id,
    ) -> None:
        """Stand on a store that is open; `open` is the usual way."""
        self._memory = AsyncMemory(
            store,
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
        self._loop = Loop(self._memory.close)
        self._owns_loop = True

    @staticmethod
    def open(  # noqa: PLR0913 - configuration is arguments
        url: str,
        *,
        tenant: str = "default",
        views: Mapping[str, View] | None = None,
        counter: TokenCounter | None = None,
        folding: Folding | None = None,
        embedder: Embedder | None = None,
        weights: "Weights | None" = None,
        extraction: "Extraction | None" = None,
        keep_why: int = 0,
        tracer: Tracer | None = None,
        durability: Durability | None = None,
        spool: str | None = None,
        patience: float | None = None,
        clock: Callable[[], float] = time.time,
        ids: Callable[[], str] = new_id,
    ) -> "Memory":
        """Open a store, as `keepthread.Memory.open` does; use it with `with`, or close it."""
        opening = AsyncMemory.open(
            url,
            tenant=tenant,
            views=views,
            counter=counter,
            folding=folding,
            embedder=embedder,
            weights=weights,
            extraction=extraction,
            keep_why=keep_why,
            tracer=tracer,
            durability=durability,
            spool=spool,
            patience=patience,
            clock=clock,
            ids=ids,
        )
        loop = Loop(opening.__aexit__)
        try:
            memory = loop.run(opening.__aenter__)
        except BaseException:
            loop.end()
            raise
        return Memory._over(loop, memory, owns_loop=True)

    @staticmethod
    def _over(loop: Loop, memory: AsyncMemory, *, owns_loop: bool) -> "Memory":
        made = object.__new__(Memory)
        made._loop, made._memory, made._owns_loop = loop, memory, owns_loop
        return made

    @property
    def store(self) -> Store:
        """Return the store, whose methods are asynchronous."""
        return self._memory.store

    @property
    def spool(self) -> "Spool | None":
        """Return what waits to be delivered, if the memory was opened with a spool."""
        spool = self._memory.spool
        return None if spool is None else Spool(self._loop, spool)

    @property
    def counter(self) -> TokenCounter:
        """Return what counts tokens."""
        return self._memory.counter

    @property
    def folding(self) -> Folding:
        """Return how old exchanges become a summary."""
        return self._memory.folding

    @property
    def extraction(self) -> "Extraction | None":
        """Return how facts are drawn from what is said, if they are."""
        return self._memory.extraction

    @property
    def views(self) -> dict[str, View]:
        """Return the views by name."""
        return self._memory.views

    def tenant(self, name: str) -> "Memory":
        """See `keepthread.Memory.tenant`."""
        return Memory._over(self._loop, self._memory.tenant(name), owns_loop=False)

    def close(self) -> None:
        """Finish what was begun, let go of the store, and end the event loop."""
        if self._owns_loop:
            self._loop.end()
        else:
            with suppress(StoreClosed):  # closed with the memory it came from
                self._loop.run(self._memory.close)

    def idle(self) -> None:
        """See `keepthread.Memory.idle`."""
        self._loop.run(self._memory.idle)

    def __enter__(self) -> Self:
        """Use it as it is."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    # --- sessions ---

    def session(
        self,
        id: str,
        *,
        owner: str | None = None,
        system_prompt: str | None = None,
        title: str | None = None,
        tags: Sequence[str] = (),
        meta: Mapping[str, JSON] | None = None,
    ) -> "Session":
        """See `keepthread.Memory.session`."""
        found = self._loop.run(
            self._memory.session,
            id,
            owner=owner,
            system_prompt=system_prompt,
            title=title,
            tags=tags,
            meta=meta,
        )
        return Session(self._loop, found)

    def create_session(
        self,
        id: str,
        *,
        owner: str | None = None,
        system_prompt: str | None = None,
        title: str | None = None,
        tags: Sequence[str] = (),
        meta: Mapping[str, JSON] | None = None,
    ) -> "Session":
        """See `keepthread.Memory.create_session`."""
        made = self._loop.run(
            self._memory.create_session,
            id,
            owner=owner,
            system_prompt=system_prompt,
            title=title,
            tags=tags,
            meta=meta,
        )
        return Session(self._loop, made)

    def get_session(self, id: str, *, owner: str | None = None) -> "Session":
        """See `keepthread.Memory.get_session`."""
        found = self._loop.run(self._memory.get_session, id, owner=owner)
        return Session(self._loop, found)

    def list_sessions(self, *, owner: str | None = None, limit: int = 10) -> list[SessionInfo]:
        """See `keepthread.Memory.list_sessions`."""
        return self._loop.run(self._memory.list_sessions, owner=owner, limit=limit)

    def delete_session(self, id: str, *, owner: str | None = None) -> None:
        """See `keepthread.Memory.delete_session`."""
        self._loop.run(self._memory.delete_session, id, owner=owner)

    def prune(self, days: int = 30, *, progress: Progress | None = None) -> int:
        """See `keepthread.Memory.prune`; `progress` is called in the thread that waits."""
        call = Call(self._loop)
        return call.run(self._memory.prune, days, progress=progress and call.here(progress))

    def search(
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
    ) -> "list[Hit]":
        """See `keepthread.Memory.search`; `progress` is called in the thread that waits."""
        call = Call(self._loop)
        return call.run(
            self._memory.search,
            query,
            owner=owner,
            session=session,
            since=since,
            until=until,
            roles=roles,
            limit=limit,
            progress=progress and call.here(progress),
        )

    def index(self, *, owner: str | None = None, progress: Progress | None = None) -> None:
        """See `keepthread.Memory.index`; `progress` is called in the thread that waits."""
        call = Call(self._loop)
        call.run(self._memory.index, owner=owner, progress=progress and call.here(progress))

    def facts(self, owner: str = "default") -> Facts:
        """See `keepthread.Memory.facts`."""
        return Facts(self._loop, self._memory.facts(owner))

    def forget(  # noqa: PLR0913 - each names one way to choose
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
    ) -> "Receipt":
        """See `keepthread.Memory.forget`; `progress` is called in the thread that waits."""
        call = Call(self._loop)
        return call.run(
            self._memory.forget,
            session=session,
            message=message,
            owner=owner,
            author=author,
            source=source,
            since=since,
            until=until,
            answers=answers,
            rewrite=rewrite,
            dry_run=dry_run,
            progress=progress and call.here(progress),
        )

    def verify(self, *, progress: Progress | None = None) -> Verification:
        """See `keepthread.Memory.verify`; `progress` is called in the thread that waits."""
        call = Call(self._loop)
        return call.run(self._memory.verify, progress=progress and call.here(progress))


class Session:
    """See `keepthread.Session`; get it from `Memory.session`."""

    def __init__(self, loop: Loop, session: AsyncSession) -> None:
        """Hold an asynchronous session and the loop that runs it."""
        self._loop = loop
        self._session = session

    @property
    def info(self) -> SessionInfo:
        """Return what was known of the session when it was last asked for."""
        return self._session.info

    @property
    def id(self) -> str:
        """Return the session's id."""
        return self._session.id

    @property
    def key(self) -> SessionKey:
        """Return the key of this life of the session."""
        return self._session.key

    @property
    def owner(self) -> str:
        """Return whose conversation it is."""
        return self._session.owner

    # --- writing ---

    def append(self, *messages: Message, expect: int | None = None) -> list[Message]:
        """See `keepthread.Session.append`."""
        return self._loop.run(self._session.append, *messages, expect=expect)

    def add_turn(self, role: Role, content: str, *, id: str | None = None) -> Message:
        """See `keepthread.Session.add_turn`."""
        return self._loop.run(self._session.add_turn, role, content, id=id)

    def exchange(
        self,
        text: str,
        *,
        id: str | None = None,
        author: str | None = None,
        attachments: Sequence[Attachment] = (),
    ) -> "Turn":
        """Begin a turn: `with session.exchange("…") as turn`; see `keepthread.Session.exchange`."""
        turn = self._session.exchange(text, id=id, author=author, attachments=attachments)
        return Turn(self._loop, turn)

    def inject(
        self,
        key: str,
        text: str,
        *,
        tools: Iterable[ProactiveTool] = (),
        once: bool = True,
        lifetime: int | None = None,
    ) -> bool:
        """See `keepthread.Session.inject`."""
        return self._loop.run(
            self._session.inject, key, text, tools=[*tools], once=once, lifetime=lifetime
        )

    # --- reading ---

    def messages(self, after: int = 0, limit: int = 100) -> list[Message]:
        """See `keepthread.Session.messages`."""
        return self._loop.run(self._session.messages, after, limit)

    def context(
        self,
        view: str | None = None,
        *,
        budget: int | None = None,
        query: str | None = None,
        newest: bool = True,
    ) -> Context:
        """See `keepthread.Session.context`."""
        return self._loop.run(
            self._session.context, view, budget=budget, query=query, newest=newest
        )

    def accounts(self, limit: int = 10) -> list[KeptWhy]:
        """See `keepthread.Session.accounts`."""
        return self._loop.run(self._session.accounts, limit)

    def status(self) -> Status:
        """See `keepthread.Session.status`."""
        return self._loop.run(self._session.status)

    # --- remembered tool results ---

    def cache_tool(
        self,
        name: str,
        args: Mapping[str, JSON],
        result: JSON,
        lifetime: int,
        *,
        author: str | None = None,
    ) -> None:
        """See `keepthread.Session.cache_tool`."""
        self._loop.run(self._session.cache_tool, name, args, result, lifetime, author=author)

    def cached_tool(
        self, name: str, args: Mapping[str, JSON], *, author: str | None = None
    ) -> str | None:
        """See `keepthread.Session.cached_tool`."""
        return self._loop.run(self._session.cached_tool, name, args, author=author)

    def cached_tools(self) -> list[CachedTool]:
        """See `keepthread.Session.cached_tools`."""
        return self._loop.run(self._session.cached_tools)

    def fold(self, *, progress: Progress | None = None) -> int:
        """See `keepthread.Session.fold`; `progress` is called in the thread that waits."""
        call = Call(self._loop)
        return call.run(self._session.fold, progress=progress and call.here(progress))

    # --- hiding, branching, details ---

    def clear(self) -> None:
        """See `keepthread.Session.clear`."""
        self._loop.run(self._session.clear)

    def rewind(self, to: int) -> None:
        """See `keepthread.Session.rewind`."""
        self._loop.run(self._session.rewind, to)

    def fork(self, at: int | None = None, *, id: str | None = None) -> "Session":
        """See `keepthread.Session.fork`."""
        return Session(self._loop, self._loop.run(self._session.fork, at, id=id))

    def pin(self, id: str) -> None:
        """See `keepthread.Session.pin`."""
        self._loop.run(self._session.pin, id)

    def unpin(self, id: str) -> bool:
        """See `keepthread.Session.unpin`."""
        return self._loop.run(self._session.unpin, id)

    def update(
        self,
        *,
        title: str | None = None,
        title_from: str | None = None,
        tags: Sequence[str] | None = None,
        system_prompt: str | None = None,
        meta: Mapping[str, JSON] | None = None,
    ) -> SessionInfo:
        """See `keepthread.Session.update`."""
        return self._loop.run(
            self._session.update,
            title=title,
            title_from=title_from,
            tags=tags,
            system_prompt=system_prompt,
            meta=meta,
        )

    def refresh(self) -> SessionInfo:
        """See `keepthread.Session.refresh`."""
        return self._loop.run(self._session.refresh)


class Turn:
    """See `keepthread.Turn`; get it from `Session.exchange`."""

    def __init__(self, loop: Loop, turn: AsyncTurn) -> None:
        """Hold an asynchronous turn and the loop that runs it."""
        self._loop = loop
        self._turn = turn

    @property
    def user(self) -> Message:
        """Return the user message, as stored once the turn is entered."""
        return self._turn.user

    @property
    def answer(self) -> Message | None:
        """Return the answer, once there is one."""
        return self._turn.answer

    @property
    def exchange(self) -> int:
        """Return the number of the exchange."""
        return self._turn.exchange

    def __enter__(self) -> Self:
        """Store the user message, or find what was stored under its id."""
        self._loop.run(self._turn.__aenter__)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close open tool calls if the turn is left by an exception."""
        self._loop.run(self._turn.__aexit__, kind, error, trace)

    def append(self, *messages: Message) -> list[Message]:
        """See `keepthread.Turn.append`."""
        return self._loop.run(self._turn.append, *messages)

    def tool(
        self,
        name: str,
        args: Mapping[str, JSON],
        run: Callable[..., object],
        *,
        call_id: str | None = None,
        lifetime: int = 0,
        effects: bool = False,
    ) -> str:
        """See `keepthread.Turn.tool`; `run` is a plain function, called in this thread."""
        call = Call(self._loop)
        return call.run(
            self._turn.tool,
            name,
            args,
            call.ask(run),
            call_id=call_id,
            lifetime=lifetime,
            effects=effects,
        )

    def memory_tool(
        self, name: str, args: Mapping[str, JSON], *, call_id: str | None = None
    ) -> str:
        """See `keepthread.Turn.memory_tool`."""
        return self._loop.run(self._turn.memory_tool, name, args, call_id=call_id)

    def delegate(
        self,
        task: str,
        *,
        agent: str | None = None,
        system_prompt: str | None = None,
        snippet: str | None = None,
        facts: bool = False,
        recorded: bool = True,
    ) -> "Turn":
        """Begin a one-shot child: `with turn.delegate("…") as child`; see `keepthread.Turn`."""
        child = self._turn.delegate(
            task,
            agent=agent,
            system_prompt=system_prompt,
            snippet=snippet,
            facts=facts,
            recorded=recorded,
        )
        return Turn(self._loop, child)

    def context(
        self,
        view: str | None = None,
        *,
        budget: int | None = None,
        query: str | None = None,
        newest: bool = True,
    ) -> Context:
        """See `keepthread.Turn.context`."""
        return self._loop.run(self._turn.context, view, budget=budget, query=query, newest=newest)

    def finish(
        self,
        answer: str | Message,
        *,
        id: str | None = None,
        usage: Mapping[str, JSON] | None = None,
        cut: bool = False,
    ) -> Message:
        """See `keepthread.Turn.finish`."""
        return self._loop.run(self._turn.finish, answer, id=id, usage=usage, cut=cut)


class Spool:
    """See `keepthread.stores.outbox.store.Spool`; `memory.spool`."""

    def __init__(self, loop: Loop, spool: "AsyncSpool") -> None:
        """Hold a spool that is open."""
        self._loop = loop
        self._spool = spool

    def survey(self) -> "Survey":
        """Return what waits, what was dropped, and what was set aside and why."""
        return self._loop.run(self._spool.survey)

    def deliver(self, *, progress: Progress | None = None) -> None:
        """Deliver now what waits; `progress` is called in the thread that waits."""
        call = Call(self._loop)
        call.run(self._spool.deliver, progress=progress and call.here(progress))

    def clear(self) -> None:
        """Forget what was dropped and set aside."""
        self._loop.run(self._spool.clear)
