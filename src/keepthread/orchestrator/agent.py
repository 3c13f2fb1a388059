"""An agent and an orchestrator: models, tools and memory in one object."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from functools import partial

from keepthread.errors import InvalidInput
from keepthread.memory.memory import Memory
from keepthread.memory.session import Session
from keepthread.memory.turn import Turn
from keepthread.models.request import stream_with_tools
from keepthread.orchestrator.models import Counted, Spent, streamed
from keepthread.orchestrator.pipeline import orchestrate
from keepthread.orchestrator.specialist import (
    MEMORY_TOOLS,
    ToolUse,
    until_answered,
    with_distinct_calls,
)
from keepthread.orchestrator.types import (
    Answer,
    AnswerPiece,
    Event,
    EventHandler,
    Limits,
    Models,
    NamedAgent,
    Runnable,
    Subtask,
    ToolsRefused,
    Used,
    noop,
)
from keepthread.protocols import ChatModel
from keepthread.types import JSON, Attachment, Message, Reply, Usage


class Agent:
    """A model with tools and the memory of a session.

    >>> agent = Agent(model, tools, session)
    >>> answer = await agent.run("What is the weather in Jakarta?")
    """

    def __init__(
        self,
        model: ChatModel,
        tools: Sequence[Runnable],
        session: Session,
        *,
        view: str = "chat",
        memory_tools: bool = True,
        limits: Limits | None = None,
        on_event: EventHandler = noop,
    ) -> None:
        """Take the parts; the caller opens and closes them.

        `view` is what the model is shown of the session. `memory_tools` also offers it `remember`
        and `search_memory`. Of the limits, `rounds`, `calls`, `stage_seconds` (one answer of the
        model) and `tool_seconds` count. `on_event` gets `Used`, `AnswerPiece` and `ToolsRefused`
        events: a service that refuses tools is asked once more without them, and offered no more.
        """
        own = MEMORY_TOOLS if memory_tools else {}
        self.tools = {each.tool.name: each for each in tools} | own
        if len(self.tools) < len(tools) + len(own):
            raise InvalidInput("two tools have the same name; each tool needs a name of its own")
        self.model = model
        self.session = session
        self.view = view
        self.limits = limits or Limits()
        self.on_event = on_event
        self._own = frozenset(own)
        self._refused = False

    async def run(
        self,
        message: str,
        *,
        id: str | None = None,
        author: str | None = None,
        attachments: Sequence[Attachment] = (),
        on_event: EventHandler | None = None,
    ) -> Answer:
        """Answer a message; all that is said and found is stored in the session.

        An id makes it safe to deliver the same message twice: the second gets the stored answer.
        `on_event` takes the place of the agent's own.
        """
        turn = self.session.turn(message, id=id, author=author, attachments=attachments)
        async with turn:
            if turn.answer is not None:
                return Answer(turn.answer.content, message=turn.answer)
            spent = Spent()
            reply = await self.answer(turn, Counted(self.model, spent), on_event or self.on_event)
            stored = await turn.finish(
                Message(role="assistant", content=reply.content, native=reply.native),
                usage=_as_json(spent.usage),
                truncated=reply.truncated,
            )
            return Answer(
                stored.content, message=stored, usage=spent.usage, truncated=reply.truncated
            )

    async def stream(self, message: str, *, id: str | None = None) -> AsyncGenerator[str]:
        """Answer a message and yield the text piece by piece, what is said before calls too."""
        pieces: asyncio.Queue[str | None] = asyncio.Queue()

        def on_event(event: Event) -> None:
            if isinstance(event, AnswerPiece):
                pieces.put_nowait(event.text)
            self.on_event(event)

        running = asyncio.create_task(self.run(message, id=id, on_event=on_event))
        running.add_done_callback(lambda _: pieces.put_nowait(None))
        try:
            while (piece := await pieces.get()) is not None:
                yield piece
            await running
        finally:
            running.cancel()
            await asyncio.wait([running])  # the turn closes before the caller continues

    async def answer(self, turn: Turn, model: ChatModel, on_event: EventHandler) -> Reply:
        """Let a model use tools until it answers the turn; the caller stores the answer."""
        task = Subtask("", turn.user.content)

        def used(name: str, given: Mapping[str, JSON], cached: bool, failed: str) -> None:
            on_event(Used(task, name, given, cached, failed))

        use = ToolUse(turn, self.tools, self.limits, used, self._own)
        asked = partial(self._asked, turn, model, on_event)
        return await until_answered(use, asked, self.limits.rounds)

    async def _asked(
        self, turn: Turn, model: ChatModel, on_event: EventHandler, may_call: bool
    ) -> Reply:
        context = await turn.context(self.view)
        may_call = may_call and not self._refused
        tools = [each.tool for each in self.tools.values()] if may_call else []

        def refused(reason: str) -> None:
            self._refused = True
            on_event(ToolsRefused(reason))

        pieces = stream_with_tools(
            model, context.messages, tools, system=context.system, on_refused=refused
        )
        seconds = self.limits.stage_seconds
        reply = await streamed(pieces, stage="model", seconds=seconds, on_event=on_event)
        return with_distinct_calls(reply)


def _as_json(usage: Usage | None) -> dict[str, JSON] | None:
    return usage._asdict() if usage else None


class Orchestrator:
    """Memory, models and tools in one object, with a session for each user.

    >>> orchestrator = Orchestrator(memory, Models.all(model), tools)
    >>> await orchestrator.process("What is the weather in Jakarta?", user_id="ana")
    """

    def __init__(
        self,
        memory: Memory,
        models: Models,
        tools: Sequence[Runnable] = (),
        *,
        system_prompt: str | None = None,
        limits: Limits | None = None,
        agents: Sequence[NamedAgent] = (),
        memory_tools: bool = False,
    ) -> None:
        """Take the parts; the caller opens and closes them.

        `tools` may be the `tools` of `keepthread.orchestrator.mcp.Servers`. `system_prompt` is for
        new sessions. `agents` and `memory_tools` are those of `orchestrate`.
        """
        self.memory = memory
        self.models = models
        self.tools = tools
        self.limits = limits
        self.agents = agents
        self.memory_tools = memory_tools
        self.system_prompt = system_prompt

    async def process(
        self,
        message: str,
        user_id: str = "default",
        *,
        id: str | None = None,
        on_event: EventHandler = noop,
    ) -> str:
        """Answer a user's message in the user's session, and return the answer's text.

        `user_id` names the session and its owner, so it must come from your program, never from a
        model. An id makes it safe to deliver the same message twice. Errors are those of
        `orchestrate`.
        """
        session = await self.session(user_id)
        answer = await orchestrate(
            message,
            session,
            self.tools,
            self.models,
            id=id,
            limits=self.limits,
            agents=self.agents,
            memory_tools=self.memory_tools,
            on_event=on_event,
        )
        return answer.text

    async def session(self, user_id: str = "default") -> Session:
        """Return a user's session, for `clear`, `status` and the like; create it if it is new."""
        return await self.memory.session(user_id, owner=user_id, system_prompt=self.system_prompt)
