"""A turn: the user message is safe before any model is asked, and there is one answer."""

import asyncio
import hashlib
from collections.abc import Mapping
from dataclasses import replace
from types import TracebackType
from typing import Final, Self, cast

from keepthread.context.render import Context
from keepthread.errors import Conflict
from keepthread.thread import Thread
from keepthread.types import JSON, Message, Scope, ToolCall

FINISHED: Final = "finished"
INTERRUPTED: Final = "(interrupted before there was a result)"


class Turn:
    """One exchange: a user message and what model and tools say until it is finished."""

    def __init__(self, thread: Thread, message: Message) -> None:
        """Hold the user message; it is stored when the turn is entered."""
        self._thread = thread
        self._callers: list[Message] = []
        self._answered: set[tuple[str, str]] = set()
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
        may_be_known = bool(self.user.id)
        (self.user,) = await self._thread.append([self.user])
        if may_be_known:
            self.answer = await self._stored_answer()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close open tool calls if the turn is left by an exception."""
        if kind is not None and self._open_calls():
            # Also when the task is being cancelled: the next context must be valid.
            await asyncio.shield(self._interrupt())

    async def append(self, *messages: Message) -> list[Message]:
        """Store what the model and its tools say, in this exchange, and return it as stored.

        A tool's result without an id gets one from its call, and the first result stays.
        """
        named = [self._named(message) for message in messages]
        try:
            stored = await self._thread.append(named, exchange=self.exchange)
        except Conflict:
            stored = [await self._first(message) for message in named]
        self._callers += [message for message in stored if message.tool_calls]
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
        message = Message(role="assistant", content=answer) if isinstance(answer, str) else answer
        message = replace(message, id=id or message.id or self._answer_id())
        if usage is not None or cut or message.id != self._answer_id():
            note: dict[str, JSON] = {"id": message.id, "usage": dict(usage or {}), "cut": cut}
            message = replace(message, id=await self._note(note))
        self.answer = await self._first(message)
        return self.answer

    # --- inside ---

    def _named(self, message: Message) -> Message:
        """Give a result the id that its call stands for."""
        if message.role != "tool" or message.id or message.tool_call_id is None:
            return message
        for caller in reversed(self._callers):
            if any(call.id == message.tool_call_id for call in caller.tool_calls):
                key = (caller.id, message.tool_call_id)
                self._answered.add(key)
                return replace(message, id=derived_id("result", *key))
        return message

    async def _first(self, message: Message) -> Message:
        """Store a message, or return the one that was stored under its id first."""
        try:
            (stored,) = await self._thread.append([message], exchange=self.exchange)
        except Conflict:
            (stored,) = await self._thread.store.find(self._thread.key, ids=[message.id])
        return stored

    def _open_calls(self) -> list[tuple[Message, ToolCall]]:
        return [
            (caller, call)
            for caller in self._callers
            for call in caller.tool_calls
            if (caller.id, call.id) not in self._answered
        ]

    async def _interrupt(self) -> None:
        for caller, call in self._open_calls():
            await self._first(
                Message(
                    role="tool",
                    content=INTERRUPTED,
                    tool_call_id=call.id,
                    name=call.name,
                    id=derived_id("result", caller.id, call.id),
                )
            )

    def _answer_id(self) -> str:
        return derived_id("answer", self.user.id)

    async def _note(self, note: dict[str, JSON]) -> str:
        """Put down what goes with the answer, once, and return the id the answer has."""
        store, scope = self._thread.store, Scope(session=self._thread.key)
        known = await store.get(scope, FINISHED, self._note_key())
        if known is None:
            await store.put(scope, FINISHED, self._note_key(), note)
            return cast(str, note["id"])
        return cast(dict[str, str], known.value)["id"]

    def _note_key(self) -> str:
        return derived_id("finished", self.user.id)

    async def _stored_answer(self) -> Message | None:
        store, key = self._thread.store, self._thread.key
        note = await store.get(Scope(session=key), FINISHED, self._note_key())
        id = cast(dict[str, str], note.value)["id"] if note else self._answer_id()
        found = await store.find(key, ids=[id])
        return found[0] if found else None


def derived_id(*parts: str) -> str:
    """Return an id that the same parts always give, of the shape of our own ids."""
    seed = "\0".join(parts).encode("utf-8", "surrogatepass")
    return hashlib.sha256(seed).hexdigest()[:32]
