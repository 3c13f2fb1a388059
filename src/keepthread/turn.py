"""A turn: the user message is safe before any model is asked, and there is one answer."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Final, NamedTuple, Self, cast

from keepthread.context.render import Context
from keepthread.derived import derived_id, result_ids
from keepthread.errors import Conflict, InvalidInput, KeepthreadError, Stale
from keepthread.thread import Thread
from keepthread.types import JSON, Message, Record, Scope, Span

FINISHED: Final = "finished"
INTERRUPTED: Final = "(interrupted before there was a result)"


class Turn:
    """One exchange: a user message and what model and tools say until it is finished."""

    def __init__(self, thread: Thread, message: Message) -> None:
        """Hold the user message; it is stored when the turn is entered."""
        self._thread = thread
        self._calls = _Calls()
        self._may_be_known = bool(message.id)
        self.user = message
        """The user message, as stored once the turn is entered."""
        self.answer: Message | None = None
        """The answer, once there is one."""

    @property
    def exchange(self) -> int:
        """Return the number of the exchange."""
        return self.user.exchange

    async def __aenter__(self) -> Self:
        """Store the user message, or find what was stored under its id."""
        (self.user,) = await self._thread.append([self.user])
        if self._may_be_known:
            self.answer, _ = await self._finished()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close open tool calls if the turn is left by an exception."""
        markers = self._calls.markers()
        if error is None or not markers:
            return
        try:
            # Also when the task is being cancelled: the next context must be valid.
            await asyncio.shield(self._store(markers, {marker.id for marker in markers}))
        except KeepthreadError as failure:  # the caller must see what ended the turn
            error.add_note(f"open tool calls could not be closed: {failure}")

    async def append(self, *messages: Message) -> list[Message]:
        """Store what the model and its tools say, in this exchange, and return it as stored.

        A tool's result without an id gets one from its call, and the first result stays.
        """
        named, calls = self._calls.name(messages, self._thread.ids)
        given = {message.id for message in messages}
        stored = await self._store(named, {m.id for m in named if m.role == "tool"} - given)
        self._calls = calls
        return stored

    async def context(
        self,
        view: str | None = None,
        *,
        budget: int | None = None,
        query: str | None = None,
        newest: bool = True,
    ) -> Context:
        """Return what a model should see to answer this turn; see `Session.context`."""
        return await self._thread.context(
            view, budget=budget, query=query, newest=newest, user_seq=self.user.seq
        )

    async def finish(
        self,
        answer: str | Message,
        *,
        id: str | None = None,
        usage: Mapping[str, JSON] | None = None,
        cut: bool = False,
    ) -> Message:
        """Store the answer, close the exchange, and return the answer that is stored.

        If the exchange has an answer already, that one is returned. `usage` is what the model
        reported, `cut` that it was broken off; both are kept beside the answer.
        """
        if self.answer is None:
            message = Message(role="assistant", content=answer) if type(answer) is str else answer
            if not isinstance(message, Message) or message.role != "assistant":
                raise InvalidInput("an answer is a text or a message of the assistant")
            if message.tool_calls:
                raise InvalidInput("an answer has no tool calls; they come before it, by `append`")
            message = replace(message, id=id or message.id or self._answer_id())
            plain = usage is None and not cut and message.id == self._answer_id()
            if plain and not self._may_be_known:  # nobody else can finish it under another id
                self.answer = await self._first(message)
            else:
                self.answer = await self._agreed(message, {"usage": dict(usage or {}), "cut": cut})
        return self.answer

    # --- inside ---

    async def _store(self, messages: Sequence[Message], results: set[str]) -> list[Message]:
        """Store messages in this exchange; of results that were there before, the first stay."""
        while True:
            try:
                return await self._thread.append(messages, exchange=self.exchange)
            except Conflict:
                found = await self._thread.store.find(self._thread.key, ids=results)
                first = {message.id: message for message in found if message.state == "live"}
                known = [first.get(message.id, message) for message in messages]
                if known == messages:
                    raise
                messages = known

    async def _agreed(self, message: Message, note: Mapping[str, JSON]) -> Message:
        """Store the answer, with a note beside it, under the id that was noted first.

        A process may have died between its note and its answer; the next one takes its place.
        """
        thread, user = self._thread, self.user.seq
        made_of = [Span(session=thread.key, first=user, last=user)]
        while True:
            answer, known = await self._finished()
            if answer is not None:
                return answer
            id = self._noted_id(known) if known else await self._free(message.id)
            try:
                await thread.store.put(
                    Scope(session=thread.key),
                    FINISHED,
                    self._note_key(),
                    {"id": id, **note},
                    made_of=made_of,
                    version=known.version if known else 0,
                )
            except Stale:  # another finishes at this moment
                continue
            return await self._first(replace(message, id=id))

    async def _finished(self) -> tuple[Message | None, Record | None]:
        """Return the answer that is stored, and the note beside it, as far as they are there."""
        store, key = self._thread.store, self._thread.key
        note = await store.get(Scope(session=key), FINISHED, self._note_key())
        found = await store.find(key, ids=[self._noted_id(note) if note else self._answer_id()])
        return next(filter(self._is_answer, found), None), note

    async def _first(self, answer: Message) -> Message:
        """Store the answer, or return the one that was stored under its id first."""
        try:
            (stored,) = await self._thread.append([answer], exchange=self.exchange)
        except Conflict:
            (stored,) = await self._thread.store.find(self._thread.key, ids=[answer.id])
            if not self._is_answer(stored):
                raise
        return stored

    async def _free(self, id: str) -> str:
        """Return an id for the answer, unless another message has it."""
        found = await self._thread.store.find(self._thread.key, ids=[id])
        if found and not self._is_answer(found[0]):
            raise Conflict(f"message id {id!r} is stored, and it is no answer of this exchange")
        return id

    def _is_answer(self, message: Message) -> bool:
        mine = message.exchange == self.exchange
        return mine and message.role == "assistant" and not message.tool_calls

    def _answer_id(self) -> str:
        return derived_id("answer", self.user.id)

    def _note_key(self) -> str:
        return derived_id("finished", self.user.id)

    def _noted_id(self, note: Record) -> str:
        return cast(dict[str, str], note.value)["id"]


class _Call(NamedTuple):
    """A tool call, the message it is in, and the id that its result has."""

    message: str
    id: str
    name: str
    result: str


@dataclass(frozen=True, slots=True)
class _Calls:
    """The tool calls of a turn, in order, and the results of which it is known they are stored."""

    calls: Sequence[_Call] = ()
    answered: frozenset[str] = frozenset()

    def name(
        self, messages: Sequence[Message], ids: Callable[[], str]
    ) -> "tuple[list[Message], _Calls]":
        """Return messages with the ids that tie results to calls, and the calls once stored."""
        named: list[Message] = []
        calls, answered = list(self.calls), set(self.answered)
        for given in messages:
            message = given
            if message.role == "assistant" and message.tool_calls:
                message = replace(message, id=message.id or ids())
                calls += _calls_of(message)
            elif message.role == "tool":
                mine = [call for call in calls if call.id == message.tool_call_id]
                still_open = [call for call in mine if call.result not in answered]
                if call := _first_of_latest(still_open or mine):
                    message = replace(message, id=message.id or call.result)
                    answered.add(call.result)
            named.append(message)
        return named, _Calls(calls, frozenset(answered))

    def markers(self) -> list[Message]:
        """Return what closes the calls that have no result."""
        return [
            Message(
                role="tool",
                content=INTERRUPTED,
                tool_call_id=call.id,
                name=call.name,
                id=call.result,
            )
            for call in self.calls
            if call.result not in self.answered
        ]


def _calls_of(message: Message) -> list[_Call]:
    """Return a message's calls with the ids of their results."""
    return [
        _Call(message.id, call.id, call.name, result)
        for call, result in zip(message.tool_calls, result_ids(message), strict=True)
    ]


def _first_of_latest(calls: Sequence[_Call]) -> _Call | None:
    """Return the first of those calls that stand in the latest message."""
    return next((call for call in calls if call.message == calls[-1].message), None)
