"""A turn: the user message is stored before any model is asked, and there is one answer."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Final, Self, cast

from keepthread.context.blocks import calls_of, is_answer
from keepthread.context.context import Context
from keepthread.context.full_text import has_text
from keepthread.context.ids import derived_id
from keepthread.context.sources import Shown, shown_by
from keepthread.context.trust import lowest, origin_of
from keepthread.errors import (
    Conflict,
    InvalidInput,
    KeepthreadError,
    MessageNotFound,
    Stale,
    Unavailable,
)
from keepthread.memory.conversation import Conversation
from keepthread.memory.delegation import CUT, DelegatedTask, Task
from keepthread.memory.runtime import at_last
from keepthread.memory.tool_cache import Recorded
from keepthread.memory.tool_calls import (
    INTERRUPTED,
    Calls,
    ToolRequest,
    failure_of,
    pair,
    result_of,
    run_tool,
    tool_request,
)
from keepthread.memory.tracing import TOOL_NAME
from keepthread.memory.turn_state import complete, resumed, suspend, with_sources
from keepthread.stores.kinds import FINISHED
from keepthread.stores.rows import AwaitedTurn
from keepthread.stores.validation import check_count, show
from keepthread.types import JSON, Message, Origin, Record, Scope, Span

_log: Final = logging.getLogger("keepthread")
NO_ANSWER: Final = "(no answer)"


class Turn:
    """One turn: a user message and the messages of model and tools until it is finished."""

    def __init__(
        self,
        conversation: Conversation,
        message: Message,
        task: DelegatedTask | None = None,
        *,
        resumes: bool = False,
    ) -> None:
        """Take the user message; entering the turn stores it, or finds it if it `resumes`."""
        self._conversation = conversation
        self._task = task
        self._children: set[str] = set()
        self._calls = Calls()
        self._unsure: list[Message] = []
        self._appending = asyncio.Lock()  # tools of one turn may run side by side
        self._may_be_known = bool(message.id)
        self._resumes = resumes
        self._shown: Shown | None = None
        """The messages of the last context; a model writes from them and from later ones."""
        self._heard: Origin = "operator"
        """The least trusted origin of the messages in this turn, also after the last context."""
        self.user = message
        """The user message, as stored once the turn is entered."""
        self.answer: Message | None = None
        """The answer, once there is one."""

    @property
    def number(self) -> int:
        """Return the number of the turn; 0 while its user message waits in an outbox."""
        return self.user.turn

    async def __aenter__(self) -> Self:
        """Store the user message, or find what was stored under its id."""
        if self._resumes:
            state = await resumed(self._conversation, self.user.id)
            self.user, self._calls, self._heard, self._shown = state
            self.answer, _ = await self._finished()
            return self
        if self._task:
            self._conversation, self.user, is_new = await self._task.begin()
            self._may_be_known = not is_new
        (self.user,) = await self._conversation.append([self.user])
        if self._may_be_known and self.user.state != "queued":
            self.answer, _ = await self._finished()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close open tool calls if the turn is left by an exception."""
        if error is not None and (last := self._closing()):
            closing = self._store(last, {message.id for message in last if message.role == "tool"})
            await at_last(closing, error, "open tool calls could not be closed")
        if self._task:
            report = self._report_to_parent(self._task, error)
            await at_last(report, error, "the result could not be recorded in the parent turn")

    async def append(self, *messages: Message) -> list[Message]:
        """Store messages of the model and its tools in this turn, and return them as stored.

        A tool's result without an id gets one from its call, and the first result stays.
        """
        self._check_open()
        async with self._appending:
            named, calls = self._calls.name(messages, self._conversation.ids)
            given = {message.id for message in messages}
            try:
                stored = await self._store(named, {m.id for m in named if m.role == "tool"} - given)
            except asyncio.CancelledError:
                self._unsure += [message for message in named if calls_of(message)]
                raise
            self._calls = calls
            self._heard = lowest(map(origin_of, stored), self._heard)
        return stored

    async def tool(
        self,
        name: str,
        args: Mapping[str, JSON],
        run: Callable[..., object],
        *,
        call_id: str | None = None,
        cache_turns: int = 0,
        side_effects: bool = False,
    ) -> str:
        """Run a tool, or take its cached result, and return the text that is recorded for it.

        `run` takes the arguments by name, may be asynchronous, and returns a text or other JSON.
        The result answers `call_id`, a call that was appended before; without one, call and result
        are recorded together, and a cached result is not recorded again. With `cache_turns=N` the
        result is cached for this turn and the N - 1 after it, and each use starts that lifetime
        again; concurrent callers run the tool once. An exception of `run` is recorded and raised;
        exceptions, and results of a tool with `side_effects`, are never cached.
        """
        self._check_open()
        request = tool_request(name, args)
        if call_id is not None and not self._calls.has(call_id):
            raise InvalidInput(f"this turn has no call {show(call_id)}; append it first")
        check_count(cache_turns, "cache_turns")
        if cache_turns and side_effects:
            _log.warning("cache_turns of tool %r is ignored, because it has side effects", name)
        ran = False

        async def running() -> Recorded:
            nonlocal ran
            ran = True
            return await self._run_tool(request, run, call_id)

        conversation, cache = self._conversation, self._conversation.cache
        with conversation.runtime.spans.open(
            "execute_tool", conversation.id, {TOOL_NAME: name}
        ) as span:
            if cache_turns == 0 or side_effects:
                text = (await running()).result.content
            else:
                await self._arrived()
                text = await cache.once(
                    request,
                    self.user.author,
                    await conversation.tool_turn(self.number),
                    cache_turns,
                    run=running,
                    repeat=None if call_id is None else partial(self._record, request, call_id),
                )
                conversation.maintenance.remembers(cache.session)
                self._heard = lowest(("tool",), self._heard)  # a cached result is not appended
            span.set_attribute("keepthread.hit", not ran)
        return text

    def delegate(
        self,
        task: str,
        *,
        agent: str | None = None,
        system_prompt: str | None = None,
        snippet: str | None = None,
        facts: bool = False,
        own_facts: bool = True,
        recorded: bool = True,
    ) -> "Turn":
        """Run a task in an isolated child: `async with turn.delegate("Find flights") as child`.

        The child is a turn in a session of its own. It sees its task, its system prompt and the
        snippet, but not the conversation, and it uses this session's tool cache. Its answer is
        recorded here as the result of a tool named `delegate`. If it ends without an answer, `(no
        answer)` is recorded, or how it failed. If the turn is resumed, the same task finds its
        child, and `child.answer` if there is one. `facts` lets it see the owner's facts. An
        `agent` also sees the facts that were noted for it or by it (`remember`) and for this owner;
        with `own_facts=False` its name is a label alone. With `recorded=False` the child leaves
        nothing in this log: for a stage of a pipeline whose answer later contexts do not need.
        """
        self._check_open()
        if self.user.state == "queued":
            raise Unavailable("a task can be delegated only after the user message was delivered")
        given = Task(
            text=task,
            agent=agent,
            system_prompt=system_prompt,
            snippet=snippet,
            facts=facts,
            own_facts=own_facts,
            recorded=recorded,
        )
        delegated = DelegatedTask(self._conversation, self.user, given, self._children)
        if recorded:
            self._heard = lowest(("tool",), self._heard)  # its answer is a tool's result here
        return Turn(self._conversation, delegated.message(), delegated)

    async def context(
        self,
        view: str | None = None,
        *,
        budget: int | None = None,
        query: str | None = None,
        newest: bool = True,
        text: bool = False,
    ) -> Context:
        """Return what a model should see to answer this turn; see `Session.context`."""
        self._check_open()
        await self._arrived()
        context = await self._conversation.context(
            view,
            budget=budget,
            query=query,
            newest=newest,
            text=text,
            user_seq=self.user.seq,
        )
        self._shown = shown_by(context.selection, self._conversation.id)
        return context

    async def finish(
        self,
        answer: str | Message,
        *,
        id: str | None = None,
        usage: Mapping[str, JSON] | None = None,
        truncated: bool = False,
    ) -> Message:
        """Store the answer, close the turn, and return the answer that is stored.

        If the turn already has an answer, that one is returned. `usage` is the model's report,
        `truncated` says that it was cut off; both are stored beside the answer. The answer's meta
        says under `written_from` which positions the turn's last context showed or summarized,
        under `recalled_from` which it recalled from other sessions, and under `lowest_origin` the
        least trusted origin of all these; without a context, none of it is known. In an outbox,
        `usage` and `truncated` go into the answer's meta.
        """
        self._check_open()
        if self.answer is not None:
            self._warn_if_dropped(answer)
        else:
            message = Message(role="assistant", content=answer) if type(answer) is str else answer
            if not isinstance(message, Message) or message.role != "assistant":
                raise InvalidInput("an answer must be a text or an assistant message")
            if message.tool_calls:
                raise InvalidInput(
                    "an answer cannot have tool calls; store them first with `append`"
                )
            message = replace(message, id=id or message.id or self._answer_id())
            if self._shown:
                message = with_sources(message, self._shown, self._heard)
            if truncated and self._task:  # the parent must know, also if it resumes the turn
                message = replace(message, meta={**message.meta, CUT: True})
            with suppress(Unavailable):
                await self._arrived()
            plain = usage is None and not truncated and message.id == self._answer_id()
            if plain and not self._may_be_known:  # no other process can finish it under another id
                self.answer = await self._first(message)
            else:
                note: dict[str, JSON] = {"usage": dict(usage or {}), "truncated": truncated}
                self.answer = await self._agreed_or_queued(message, note)
                if self._resumes:
                    await complete(self._conversation, self.user)
            if self.answer.state != "queued" and not self._task:  # a child needs no maintenance
                self._conversation.maintenance.after(self._conversation.key, self.number)
        if self._task:
            await self._task.report_answer(self.answer)
        return self.answer

    async def suspend(self) -> None:
        """Prepare to leave the turn, so that another process can finish it: `session.resume_turn`.

        Its answer then says what the last context of this process showed.
        """
        self._check_open()
        if self._task:
            raise InvalidInput("a delegated task cannot be suspended: delegate it again to resume")
        if self._shown and self.answer is None:
            await self._arrived()
            await suspend(self._conversation, self.user, self._shown, self._heard)

    # --- inside ---

    def _check_open(self) -> None:
        if self.user.seq == 0 and self.user.state != "queued":
            raise InvalidInput(
                "the turn is not open yet; enter it first: `async with session.turn(…) as turn:`"
                " (`with` in keepthread.sync)"
            )

    def _warn_if_dropped(self, answer: str | Message) -> None:
        """Log that an answer is dropped, because the turn has another one already."""
        text = answer.content if isinstance(answer, Message) else answer
        if self.answer is not None and not has_text(self.answer, text):
            _log.warning(
                "turn %d of session %r already has an answer; the new one is discarded",
                self.number,
                self._conversation.id,
            )

    def _closing(self) -> list[Message]:
        """Return the messages that close open calls.

        A call whose append was cancelled may be stored or not. It is stored again under its id, so
        that its marker never precedes it.
        """
        known = {call.message for call in self._calls.calls}
        unsure = [message for message in self._unsure if message.id not in known]
        _, calls = self._calls.name(unsure, self._conversation.ids)
        return [*unsure, *calls.markers()]

    async def _store(self, messages: Sequence[Message], results: set[str]) -> list[Message]:
        """Store messages in this turn; results that are already stored stay as they are."""
        while True:
            try:
                return await self._conversation.append(messages, turn=self._place())
            except Conflict:
                found = await self._conversation.store.find(self._conversation.key, ids=results)
                first = {message.id: message for message in found if message.state == "live"}
                known = [first.get(message.id, message) for message in messages]
                if known == messages:
                    raise
                messages = known

    def _place(self) -> int:
        """Return the turn to append to; it may not have a number yet."""
        return AwaitedTurn(self.user.id) if self.user.state == "queued" else self.number

    async def _arrived(self) -> None:
        """Find the position of a queued user message; raise `Unavailable` while it waits."""
        if self.user.state == "queued":
            found = await self._conversation.store.find(self._conversation.key, ids=[self.user.id])
            if not found:
                raise MessageNotFound("the user message was not stored; `memory.outbox` says why")
            (self.user,) = found

    async def memory_tool(
        self, name: str, args: Mapping[str, JSON], *, call_id: str | None = None
    ) -> str:
        """Run `remember` or `search_memory` for a model, record it, and return the model's text.

        `keepthread.memory.facts.model_tools.TOOLS` are what to offer. `call_id` as in `tool`.
        """
        from keepthread.memory.facts.model_tools import MemoryTools  # noqa: PLC0415 - 20 ms, if used

        conversation = self._conversation
        tools = MemoryTools(
            conversation.store,
            await conversation.store.describe(conversation.key),
            self.user,
            partial(conversation.search, turn=self.user.turn or None),
            shown=self._shown,
            clock=conversation.runtime.clock,
            learned=conversation.no_facts.discard,
            person=conversation.person,
            agent=conversation.agent,
        )

        async def run(**_: object) -> str:
            return await tools.call(name, args)

        return await self.tool(name, args, run, call_id=call_id, side_effects=True)

    async def _run_tool(
        self, request: ToolRequest, run: Callable[..., object], call_id: str | None
    ) -> Recorded:
        """Run a tool and record its result, or how it failed."""
        try:
            text = await run_tool(run, request.args)
        except Exception as error:
            try:
                await self._record(request, call_id, failure_of(error))
            except KeepthreadError as failure:  # the caller must get the first error
                error.add_note(f"the failure could not be recorded: {failure}")
            raise
        return await self._record(request, call_id, text)

    async def _record(self, request: ToolRequest, call_id: str | None, text: str) -> Recorded:
        """Record a result, with its call if that is not recorded yet."""
        if call_id is None:
            caller, stored = await self.append(*pair(request, text, self._conversation.ids))
            return Recorded(caller.id, stored)
        result = result_of(request, text, call_id)
        (stored,) = await self.append(result)
        kept = self._conversation.large_texts.shortened(result)
        fresh = stored.state == "live" and stored.content == kept.content
        return Recorded(self._calls.message_of(stored.id), stored, fresh)

    async def _report_to_parent(self, task: DelegatedTask, error: BaseException | None) -> None:
        """Record the outcome of a delegated task in the parent."""
        answer = self.answer or (await self._finished())[0]
        if answer is not None:
            await task.report_answer(answer)
        elif error is None:
            await task.report(NO_ANSWER, failed=True)
        else:
            ours = isinstance(error, Exception)
            await task.report(failure_of(error) if ours else INTERRUPTED, failed=True)

    async def _agreed_or_queued(self, message: Message, note: Mapping[str, JSON]) -> Message:
        """Store the answer with its note; in an outbox, as one message."""
        if self.user.state != "queued":
            try:
                return await self._agreed(message, note)
            except Unavailable:
                if not hasattr(self._conversation.store, "outbox"):
                    raise
        said = {name: value for name, value in note.items() if value}
        return await self._first(replace(message, meta={**said, **message.meta}))

    async def _agreed(self, message: Message, note: Mapping[str, JSON]) -> Message:
        """Store the answer and its note under the first recorded id.

        A process may have died after it stored its note and before its answer; this completes it.
        """
        conversation, user = self._conversation, self.user.seq
        made_of = [Span(session=conversation.key, first=user, last=user)]
        while True:
            answer, known = await self._finished()
            if answer is not None:
                return answer
            id = self._noted_id(known) if known else await self._free(message.id)
            try:
                await conversation.store.put(
                    Scope(session=conversation.key),
                    FINISHED,
                    self._note_key(),
                    {"id": id, **note},
                    made_of=made_of,
                    version=known.version if known else 0,
                )
            except Stale:  # another process is finishing the turn
                continue
            return await self._first(replace(message, id=id))

    async def _finished(self) -> tuple[Message | None, Record | None]:
        """Return the stored answer and the note beside it, each if it exists."""
        store, key = self._conversation.store, self._conversation.key
        note = await store.get(Scope(session=key), FINISHED, self._note_key())
        found = await store.find(key, ids=[self._noted_id(note) if note else self._answer_id()])
        return next(filter(self._is_answer, found), None), note

    async def _first(self, answer: Message) -> Message:
        """Store the answer, or return the one that was stored under its id first."""
        try:
            (stored,) = await self._conversation.append([answer], turn=self._place())
        except Conflict:
            (stored,) = await self._conversation.store.find(self._conversation.key, ids=[answer.id])
            if not self._is_answer(stored):
                raise
        return stored

    async def _free(self, id: str) -> str:
        """Return an id for the answer; raise `Conflict` if another message has it."""
        found = await self._conversation.store.find(self._conversation.key, ids=[id])
        if found and not self._is_answer(found[0]):
            raise Conflict(
                f"message id {id!r} is taken by a message that is not this turn's answer"
            )
        return id

    def _is_answer(self, message: Message) -> bool:
        return message.turn == self.number and is_answer(message)

    def _answer_id(self) -> str:
        return derived_id("answer", self.user.id)

    def _note_key(self) -> str:
        return derived_id("finished", self.user.id)

    def _noted_id(self, note: Record) -> str:
        return cast(dict[str, str], note.value)["id"]
