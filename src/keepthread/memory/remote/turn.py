"""A turn on a server: tools run in this process, and their results are stored on the server."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Final, Self

from keepthread.context.context import Context
from keepthread.context.full_text import has_text
from keepthread.errors import InvalidInput, KeepthreadError, Unsupported
from keepthread.memory.remote.connection import given, segment
from keepthread.memory.remote.requests import (
    RemoteContext,
    RemoteMessages,
    Requests,
    attachment_bodies,
    context_body,
    message_body,
)
from keepthread.memory.remote.values import from_json
from keepthread.memory.runtime import at_last
from keepthread.memory.tool_calls import (
    Calls,
    ToolRequest,
    failure_of,
    pair,
    result_of,
    run_tool,
    tool_request,
)
from keepthread.memory.turn import Turn
from keepthread.stores.codec import new_id
from keepthread.stores.validation import check_count, show
from keepthread.types import JSON, Message

_log: Final = logging.getLogger("keepthread")


class RemoteTurn(Turn):
    """One turn of a session on a server."""

    def __init__(
        self, session: str, requests: Requests, message: Message, *, resumes: bool = False
    ) -> None:
        """Take the user message; entering the turn stores it, or finds it if it `resumes`."""
        self._session = session
        self._of_session = requests
        self._turns = requests.below("/turns")
        self._requests = self._turns.below(f"/{segment(message.id)}")
        self._connection = requests.connection
        self._resumes = resumes
        self._calls = Calls()
        self._appending = asyncio.Lock()  # tools of one turn may run side by side
        self.user = message
        self.answer: Message | None = None

    async def __aenter__(self) -> Self:
        """Store the user message, or find what was stored under its id."""
        if self._resumes:
            state = await self._requests.json("GET", "")
            await self._read_calls(from_json(Message, state["user"]))
        else:
            body = {
                "text": self.user.content,
                "id": self.user.id,
                "attachments": attachment_bodies(self.user.attachments),
                **given(author=self.user.author),
            }
            state = await self._connection.json(self._turns.route("POST", "", body))
        self.user = from_json(Message, state["user"])
        self.answer = from_json(Message, state["answer"]) if state["answer"] else None
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close open tool calls if the turn is left by an exception."""
        if error is not None and (last := self._calls.markers()):
            await at_last(self._send(last), error, "open tool calls could not be closed")

    async def append(self, *messages: Message) -> list[Message]:
        """Store messages of the model and its tools in this turn, and return them as stored."""
        self._check_open()
        if not messages:
            return []
        async with self._appending:
            named, calls = self._calls.name(messages, new_id)
            # A call whose append broke off may be stored, so it must be closed, too.
            self._calls = Calls(calls.calls, self._calls.answered)
            stored = await self._send(named)
            self._calls = calls
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
        """Run a tool here, or take its cached result, and return the text that is recorded for it.

        Callers in other processes may run the same tool at the same time: only a store in this
        process can let them wait for each other.
        """
        self._check_open()
        request = tool_request(name, args)
        if call_id is not None and not self._calls.has(call_id):
            raise InvalidInput(f"this turn has no call {show(call_id)}; append it first")
        check_count(cache_turns, "cache_turns")
        if cache_turns and side_effects:
            _log.warning("cache_turns of tool %r is ignored, because it has side effects", name)
            cache_turns = 0
        text = None
        if cache_turns:
            text = await self._cached(request)
            if text is not None and call_id is None:
                return text
        if text is None:
            text = await self._run(request, run, call_id)
        return await self._store_result(request, text, call_id, cache_turns)

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
    ) -> Turn:
        """Raise `Unsupported`: tasks are delegated where the store is opened."""
        del task, agent, system_prompt, snippet, facts, own_facts, recorded
        raise Unsupported("delegation is not available over HTTP; open the store directly")

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
        body = context_body(view, budget, query, newest=newest, text=text)
        return RemoteContext(await self._requests.json("POST", "/context", body), is_text=text)

    async def finish(
        self,
        answer: str | Message,
        *,
        id: str | None = None,
        usage: Mapping[str, JSON] | None = None,
        truncated: bool = False,
    ) -> Message:
        """Store the answer, close the turn, and return the answer that is stored."""
        self._check_open()
        if self.answer is not None:
            self._warn(answer)
            return self.answer
        body: dict[str, Any] = {"truncated": truncated}
        if usage is not None:
            body["usage"] = dict(usage)
        if isinstance(answer, str) and id is None:
            body["text"] = answer
        else:
            message = (
                Message(role="assistant", content=answer) if isinstance(answer, str) else answer
            )
            body["message"] = message_body(message)
            if not (id or message.id):
                del body["message"]["id"]  # the turn gives the answer its id
            elif id:
                body["message"]["id"] = id
        self.answer = from_json(Message, await self._requests.json("POST", "/finish", body))
        self._warn(answer)
        return self.answer

    async def suspend(self) -> None:
        """Prepare to leave the turn; the server knows already what its last context showed."""
        self._check_open()

    async def memory_tool(
        self, name: str, args: Mapping[str, JSON], *, call_id: str | None = None
    ) -> str:
        """Run `remember` or `search_memory` for a model, record it, and return the model's text."""
        self._check_open()
        body = {"name": name, "arguments": dict(args), **given(call_id=call_id)}
        return (await self._requests.json("POST", "/memory-tools", body, once=True))["text"]

    # --- inside ---

    async def _send(self, messages: list[Message]) -> list[Message]:
        body = {"messages": [message_body(each) for each in messages]}
        route = self._requests.route("POST", "/messages", body)
        return await self._connection.page(Message, route)

    async def _cached(self, request: ToolRequest) -> str | None:
        body = {
            "name": request.name,
            "arguments": dict(request.args),
            **given(author=self.user.author),
        }
        route = self._of_session.route("POST", "/tools/find", body)
        return (await self._connection.json(route))["result"]

    async def _read_calls(self, user: Message) -> None:
        """Learn which tool calls of the turn are open."""
        async for message in RemoteMessages(self._of_session, user.seq, None, None):
            if message.turn != user.turn:
                break
            _, self._calls = self._calls.name([message], new_id)

    async def _run(
        self, request: ToolRequest, run: Callable[..., object], call_id: str | None
    ) -> str:
        try:
            return await run_tool(run, request.args)
        except Exception as error:
            try:
                failed = failure_of(error)
                if call_id is None:
                    await self.append(*pair(request, failed, new_id))
                else:
                    await self.append(result_of(request, failed, call_id))
            except KeepthreadError as failure:  # the caller must see what failed first
                error.add_note(f"the failure could not be recorded: {failure}")
            raise

    async def _store_result(
        self, request: ToolRequest, text: str, call_id: str | None, cache_turns: int
    ) -> str:
        body = {
            "name": request.name,
            "arguments": dict(request.args),
            "result": text,
            "cache_turns": cache_turns,
            **given(call_id=call_id),
        }
        recorded: str = (await self._requests.json("POST", "/tools", body, once=True))["text"]
        if call_id is not None:
            async with self._appending:
                result = result_of(request, recorded, call_id)
                _, self._calls = self._calls.name([result], new_id)
        return recorded

    def _warn(self, answer: str | Message) -> None:
        text = answer.content if isinstance(answer, Message) else answer
        if self.answer is not None and not has_text(self.answer, text):
            _log.warning(
                "turn %d of session %r already has an answer; the new one is dropped",
                self.number,
                self._session,
            )
