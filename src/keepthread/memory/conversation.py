"""One session's conversation: the log, token counter and views that a session's turns share."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple

from keepthread.context.context import Context, text_counter
from keepthread.context.quoting import speaker
from keepthread.context.trust import trust_in
from keepthread.context.views import View, plan_of
from keepthread.errors import InvalidInput, KeepthreadError
from keepthread.memory import debug_log
from keepthread.memory.blobs.large_texts import LargeTexts
from keepthread.memory.blobs.repository import BlobRepository
from keepthread.memory.facts.profile import FactIndex
from keepthread.memory.history import (
    MOST_SYSTEM_MESSAGES,
    current_turn,
    is_from_operator,
    keep_system_messages,
)
from keepthread.memory.material import asked_of, gather, gather_older, load_history
from keepthread.memory.runtime import Maintenance, NegativeCache, Runtime
from keepthread.memory.search.search import Asker, Filters, Searching
from keepthread.memory.summaries import costs_of
from keepthread.memory.tool_cache import ToolCache
from keepthread.memory.tracing import RECORDS
from keepthread.memory.why_log import ChoiceLog, PromptSources
from keepthread.protocols import (
    ContextPlan,
    History,
    KnownFact,
    Material,
    NoteProvider,
    Recalled,
    RecallRequest,
    RecallScope,
    Store,
    Strategy,
    TokenCounter,
    WindowStart,
)
from keepthread.stores.codec import encode
from keepthread.stores.kinds import COSTS
from keepthread.stores.validation import check_count, check_message
from keepthread.types import JSON, Message, Scope, Selection, SessionKey

_MOST_READS: Final = 6
"""How often a context reads older messages; each time up to twice as many as before."""
_LARGE: Final = 32_768  # characters; longer texts are counted in a thread, not in the event loop


class Conversation(NamedTuple):
    """One session's log with its counter, its views and the services of its memory."""

    store: Store
    id: str
    key: SessionKey
    counter: TokenCounter
    views: Mapping[str, View]
    ids: Callable[[], str]
    owner: str
    runtime: Runtime
    maintenance: Maintenance
    choice_log: ChoiceLog
    no_facts: NegativeCache
    searching: Callable[[], Searching]
    blobs: BlobRepository
    recall: RecallScope = "session"
    """The scope of recall and of `search_memory`: the session, or all of the owner's."""
    tools: SessionKey | None = None
    """The session whose tool cache is used; None is this session."""
    asked_in: int = 0
    """The turn of that session which a delegate works for; 0 is the current one."""
    isolated: bool = False
    """Whether it sees nothing of the owner's other sessions; True for a delegated task."""
    knows: bool = True
    """Whether it sees the owner's facts."""
    agent: str = ""
    """The agent whose own facts it sees and notes; empty for none."""
    person: str | None = None
    """The owner of the facts it sees, if that is not the session's owner."""
    providers: Mapping[str, NoteProvider] = {}
    """Functions that are asked for notes, by the notes' keys."""

    async def append(
        self, messages: Sequence[Message], *, expect: int | None = None, turn: int | None = None
    ) -> list[Message]:
        """Store messages with their counts; texts that are too long for the log become blobs."""
        if self.large_texts.concern(messages):
            store = partial(self._append, expect=expect, turn=turn)
            return await self.large_texts.append(messages, store)
        return await self._append(messages, expect=expect, turn=turn)

    async def _append(
        self, messages: Sequence[Message], *, expect: int | None, turn: int | None
    ) -> list[Message]:
        counted = [await self._counted(message) for message in messages]
        if self.runtime.spans.tracer is None:  # no overhead when tracing is off
            stored = await self.store.append(self.key, counted, expect=expect, turn=turn)
        else:
            with self.runtime.spans.open("create_memory", self.id) as span:
                span.set_attribute(RECORDS, len(counted))
                span.set_attribute("keepthread.tokens", sum([m.tokens for m in counted]))
                stored = await self.store.append(self.key, counted, expect=expect, turn=turn)
        if "system" in [message.role for message in counted]:
            await self._keep_system_messages(stored)
        return stored

    async def _keep_system_messages(self, messages: Sequence[Message]) -> None:
        """Keep the operator's among stored messages in every context.

        The messages are stored already, so a store that fails now raises nothing: the next context
        that reads them keeps them.
        """
        found = [message for message in messages if is_from_operator(message)]
        if found:
            with suppress(KeepthreadError):
                await keep_system_messages(self.store, self.key, found)

    @property
    def large_texts(self) -> LargeTexts:
        """Return what stores the long texts of this conversation."""
        return LargeTexts(self.store, self.key, self.blobs, self.ids)

    @property
    def cache(self) -> ToolCache:
        """Return the tool cache of this conversation."""
        return ToolCache(
            store=self.store,
            leases=self.runtime.leases(self.store),
            locks=self.runtime.locks,
            log=self.key,
            session=self.tools or self.key,
            owner=self.owner,
        )

    async def tool_turn(self, own: int | None = None) -> int:
        """Return the turn that the lifetimes in the tool cache are counted by.

        A delegated task uses its parent's cache, and so its parent's turns; otherwise it is `own`,
        if given, or the current turn.
        """
        known = own if self.tools is None else self.asked_in or None
        if known is not None:
            return known
        return await current_turn(self.store, self.tools or self.key)

    async def _counted(self, message: Message) -> Message:
        """Return a message with its token count; a count given by the caller is kept."""
        check_message(message)
        try:
            tokens = message.tokens or await self._count(message)
        except (AttributeError, TypeError, ValueError, RecursionError):
            encode(message, message.id)  # raises the error that explains the problem
            raise
        return replace(message, tokens=tokens, counter=message.counter or self.counter.name)

    async def _count(self, message: Message) -> int:
        if len(message.content) > _LARGE:
            return await asyncio.to_thread(self.counter.count, message)
        return self.counter.count(message)

    async def context(
        self,
        view: str | None,
        *,
        budget: int | None,
        query: str | None,
        newest: bool,
        text: bool = False,
        user_seq: int = 0,
    ) -> Context:
        """Gather and select messages, and return the context for a model."""
        if isinstance(view, int):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidInput(f"a view is a name, not {view}; did you mean budget={view}?")
        name = "chat" if view is None else view
        chosen = self._view(name)
        tokens = chosen.budget if budget is None else check_count(budget, "budget")
        with self.runtime.spans.open("search_memory", self.id) as span:
            recalls = not self.isolated and "recall" in chosen.needs
            material = await gather(
                self.store,
                self.key,
                text_counter(self.counter) if text else self.counter,
                tokens=tokens,
                owner=self.owner,
                user_seq=user_seq,
                newest=newest,
                query=query,
                recalls=recalls and await self.store.finder() is not None,
            )
            await self._keep_unrecorded(material)
            material = material._replace(recall_scope=self.recall)
            if text:  # the system prompt is not in it
                material = material._replace(is_text=True, system_prompt="", system_tokens=0)
            if (self.knows or self.agent) and "facts" in chosen.needs:
                material = material._replace(facts=await self._facts(material))
            selection, past, read = await self._select(chosen, material, tokens)
            span.set_attribute(RECORDS, len(selection.messages))
            span.set_attribute("keepthread.view", name)
            span.set_attribute("keepthread.budget", tokens)
            span.set_attribute("keepthread.tokens", selection.tokens)
        if debug_log.is_on():
            costs = await self.store.get(Scope(session=self.key), COSTS, COSTS)
            compressions = costs_of(costs.value if costs else None).compressions
            debug_log.log_context(
                self.id, name, material, past, selection, compressions=compressions
            )
        context = Context(selection, is_text=text)
        if self.choice_log.keep:
            sources = PromptSources(
                selection, read, past, chosen.strategy, self.counter.name, self.facts_owner
            )
            self.choice_log.note(self.key, name, context.why, sources)
        return context

    async def _keep_unrecorded(self, material: Material) -> None:
        """Keep system messages that were stored without it: copied, or cut off while stored."""
        recorded = {message.seq for message in material.system_messages}
        if len(recorded) >= MOST_SYSTEM_MESSAGES:
            return
        read = [m for m in material.messages if m.role == "system" and m.seq not in recorded]
        if read:
            await self._keep_system_messages(read)

    async def _select(
        self, view: View, material: Material, budget: int
    ) -> tuple[Selection, History, Material]:
        """Let a strategy plan, read what the plan asks for and `needs` names, and let it finish."""
        plan, material = await self._planned(view.strategy, material, budget)
        start = plan.window_start if "summaries" in view.needs else None
        # An isolated session recalls nothing, whatever a plan asks for.
        request = plan.recall if material.recalls else None
        if request is not None and request.room <= 0:
            request = None
        past, recalled = History(), None
        if start is not None and request is not None:  # concurrently, to save round trips
            past, recalled = await asyncio.gather(
                self._history(material, start, budget), self._recall(material, request)
            )
        elif start is not None:
            past = await self._history(material, start, budget)
        elif request is not None:
            recalled = await self._recall(material, request)
        return plan.finish(past, recalled), past, material

    async def _history(self, material: Material, start: WindowStart, budget: int) -> History:
        """Return the summary and the messages before a window."""
        size = self.maintenance.compactor.compaction.digest_bytes
        return await load_history(
            self.store, self.key, material, start, budget=budget, digest_from=size
        )

    async def _planned(
        self, strategy: Strategy, material: Material, budget: int
    ) -> tuple[ContextPlan, Material]:
        """Place the window; if the messages that were read do not fill it, read older ones.

        That happens where many messages cannot be shown, or were counted by another counter. The
        number of reads is limited.
        """
        plan = plan_of(strategy, material, budget)
        for trial in range(_MOST_READS):
            if not plan.missing:
                break
            material = await gather_older(
                self.store,
                self.key,
                material,
                tokens=plan.missing << trial,
                min_messages=2 << trial,
            )
            plan = plan_of(strategy, material, budget)
        return plan, material

    async def search(self, query: str, limit: int, turn: int | None = None) -> list[JSON]:
        """Return messages related to a question, for a model; a delegated task sees its own log.

        Messages that `clear` and `rewind` hide are not found, nor those of the turn in which the
        model asks: `turn`, or else the session's last.
        """
        if turn is None:
            turn = (await self.store.describe(self.key)).turns
        alone = self.isolated or self.recall == "session"
        filters = Filters(owner=self.owner, session=self.id if alone else None)
        asker = Asker(self.key, turn)
        hits = await self.searching().search(query, filters, limit=limit, asker=asker)
        return [
            {
                "session": hit.session,
                "from": speaker(hit.message),
                "origin": trust_in(hit.message),
                "said": hit.snippet,
            }
            for hit in hits
        ]

    @property
    def facts_owner(self) -> str:
        """Return the owner whose facts it reads and writes."""
        return self.owner if self.person is None else self.person

    async def fact_index(self) -> FactIndex | None:
        """Return the facts about the owner, or about the person who asks; None if there are none.

        That an owner has no facts is cached for some seconds. Other facts are kept, and the store
        is asked each time which of them changed.
        """
        owner = self.facts_owner
        if self.no_facts.contains(owner):
            return None
        index = await self.runtime.fact_cache.load(self.store, owner, self.runtime.clock())
        if not index:
            self.no_facts.add(owner)
            return None
        return index

    async def _facts(self, material: Material) -> Sequence[KnownFact]:
        """Return the facts about the owner, or about the person who asks, and the agent's own."""
        index = await self.fact_index()
        if index is None:
            return ()
        agents = [*([""] if self.knows else []), *([self.agent] if self.agent else [])]
        return index.known(asked_of(material), agents)

    async def _recall(self, material: Material, request: RecallRequest) -> Recalled:
        """Return messages relevant to the question that are not in the window."""
        searching = self.searching()
        found = await searching.relevant(
            asked_of(material),
            owner=self.owner,
            session=self.key,
            everywhere=request.everywhere,
            before=request.before,
            room=request.room,
            relevant_only=request.relevant_only,
        )
        return await searching.recalled(found, self.key, material.hidden)

    def _view(self, name: str) -> View:
        found = self.views.get(name)
        if found is None:
            known = ", ".join(sorted(self.views))
            raise InvalidInput(f"there is no view {name!r}; there are {known}")
        return found
