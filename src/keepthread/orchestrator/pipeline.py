"""The pipeline: a request is routed, planned, run and answered, and every step is stored."""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from keepthread.errors import InvalidInput, ModelRefused
from keepthread.memory.memory import Memory
from keepthread.memory.session import Session
from keepthread.memory.turn import Turn
from keepthread.models.request import stream_with_tools
from keepthread.orchestrator.executor import execute
from keepthread.orchestrator.models import Counted, Spent, deadline, streamed
from keepthread.orchestrator.planner import as_plan, plan
from keepthread.orchestrator.prompts import prompt
from keepthread.orchestrator.router import as_route, route
from keepthread.orchestrator.specialist import (
    MEMORY_TOOLS,
    ToolUse,
    until_answered,
    with_distinct_calls,
)
from keepthread.orchestrator.types import (
    Answer,
    EventHandler,
    Limits,
    Models,
    NamedAgent,
    Plan,
    Planned,
    Result,
    Route,
    Routed,
    Runnable,
    Subtask,
    ToolsRefused,
    Used,
    noop,
)
from keepthread.types import JSON, Attachment, Reply

Decision = TypeVar("Decision", Route, Plan)
ROUTER: Final = "router"
PLANNER: Final = "planner"
CHAT: Final = "chat"


async def orchestrate(  # noqa: PLR0913 - a request, and all that answers it
    request: str,
    session: Session | None,
    tools: Sequence[Runnable],
    models: Models,
    *,
    id: str | None = None,
    author: str | None = None,
    attachments: Sequence[Attachment] = (),
    limits: Limits | None = None,
    agents: Sequence[NamedAgent] = (),
    memory_tools: bool = False,
    on_event: EventHandler = noop,
) -> Answer:
    """Answer a request; without a session nothing is stored, but all else is the same.

    The request is stored first and the answer last; between them are the steps and their results.
    An id makes it safe to deliver the same request twice. The planner can give steps to `agents`.
    `memory_tools` offers `remember` and `search_memory` to the synthesizer, and `remember` to
    agents. `on_event` is called with events.
    """
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        session = session or await (await enter(Memory.open("ram://"))).session("once")
        turn = await enter(session.turn(request, id=id, author=author, attachments=attachments))
        if (answer := turn.answer) is not None:
            return Answer(answer.content, message=answer)
        given: dict[str, Any] = {"agents": agents, "memory_tools": memory_tools}
        answered = partial(run, limits=limits, on_event=on_event, **given)
        found = await answered(turn, request, tools, models)
        usage = found.usage._asdict() if found.usage else None
        message = await turn.finish(found.text, usage=usage, truncated=found.truncated)
        return found._replace(text=message.content, message=message)


async def run(
    turn: Turn,
    request: str,
    tools: Sequence[Runnable],
    models: Models,
    *,
    limits: Limits | None = None,
    agents: Sequence[NamedAgent] = (),
    memory_tools: bool = False,
    on_event: EventHandler = noop,
) -> Answer:
    """Find the answer to the request of a turn that has begun; the caller stores it."""
    spent = Spent()
    known = {each.tool.name: each for each in tools}
    counted = Models(*(Counted(model, spent) for model in models))
    named = {each.name: _counted(each, spent) for each in agents}
    if len(named) < len(agents):
        raise InvalidInput("two agents have the same name; each agent needs a name of its own")
    own = MEMORY_TOOLS if memory_tools else {}
    own = {name: own[name] for name in own if name not in known}  # a tool of the program wins
    work = _Work(turn, request, known, counted, limits or Limits(), named, own, on_event)
    return (await work.answer())._replace(usage=spent.usage)


def _counted(agent: NamedAgent, spent: Spent) -> NamedAgent:
    return replace(agent, model=Counted(agent.model, spent)) if agent.model else agent


class _Work(NamedTuple):
    """One request that is being answered."""

    turn: Turn
    request: str
    tools: Mapping[str, Runnable]
    models: Models
    limits: Limits
    agents: Mapping[str, NamedAgent]
    memory_tools: Mapping[str, Runnable]
    on_event: EventHandler

    async def answer(self) -> Answer:
        route = await self.route()
        plan = None if route.direct else await self.plan()
        results: list[Result] = []
        if plan:
            specialist = self.models.specialist
            given = (self.tools, specialist, self.limits, self.on_event)
            results = await execute(plan, self.turn, *given, self.agents, self.memory_tools)
        reply = await self.said()
        return Answer(reply.content, route, plan, results, truncated=reply.truncated)

    async def route(self) -> Route:
        """Return the route; if the model writes no valid one, plan the request."""
        asked = partial(route, self.request, self.models.router)
        try:
            decided = await self.decided(ROUTER, asked, as_route)
        except ModelRefused as error:
            decided = Route(direct=False, why=str(error))
        self.on_event(Routed(decided))
        return decided

    async def plan(self) -> Plan | None:
        """Return the plan; None if the model writes no valid one: then answer directly."""
        offered = [each.tool for each in self.tools.values()]
        asked = partial(
            plan,
            self.request,
            offered,
            self.models.planner,
            limits=self.limits,
            agents=self.agents.values(),
        )
        check = partial(as_plan, tools=offered, limits=self.limits)
        try:
            decided = await self.decided(PLANNER, asked, check)
        except ModelRefused as error:
            self.on_event(Planned(None, str(error)))
            return None
        assigned, problem = _assigned(decided, self.agents)
        self.on_event(Planned(assigned, problem))
        return assigned

    async def decided(
        self,
        stage: str,
        asked: Callable[..., Awaitable[Decision]],
        check: Callable[[Any], Decision],
    ) -> Decision:
        """Let a model decide in a delegated session, whose messages appear in no other context.

        If the request is resumed, the decision is found there.
        """
        child = self.turn.delegate(self.request, agent=stage, recorded=False)
        async with deadline(self.limits.stage_seconds, stage), child:
            with suppress(ValueError):  # there is no decision yet, or it was made with other tools
                return check(json.loads(child.answer.content if child.answer else ""))
            context = await self.turn.context(stage, newest=False, text=True)
            decided = await asked(context=context.text)
            await child.finish(json.dumps(decided.to_json(), ensure_ascii=False))
        return decided

    async def said(self) -> Reply:
        """Return the model's answer to the conversation with its steps and results.

        It may call the memory's own tools before; they are recorded in the turn.
        """
        own = self.memory_tools
        use = ToolUse(self.turn, own, self.limits, self.used, own)
        return await until_answered(use, self.asked, self.limits.rounds if own else 0)

    async def asked(self, may_call: bool) -> Reply:
        """Return what the synthesizer says to the conversation as it is now."""
        tools = [each.tool for each in self.memory_tools.values()] if may_call else []
        context = await self.turn.context(CHAT, budget=self.limits.answer_prompt_tokens)
        messages, orders = context.messages, _orders(context.system)
        pieces = stream_with_tools(
            self.models.synthesizer, messages, tools, system=orders, on_refused=self.refused
        )
        seconds, on_event = self.limits.stage_seconds, self.on_event
        reply = await streamed(pieces, stage="synthesizer", seconds=seconds, on_event=on_event)
        return with_distinct_calls(reply)

    def refused(self, reason: str) -> None:
        """Report that the synthesizer's service takes no tools."""
        self.on_event(ToolsRefused(reason))

    def used(self, name: str, given: Mapping[str, JSON], cached: bool, failed: str) -> None:
        """Report that the synthesizer used a tool."""
        self.on_event(Used(Subtask("", self.request), name, given, cached, failed))


def _assigned(plan: Plan, agents: Mapping[str, NamedAgent]) -> tuple[Plan, str]:
    """Return a plan whose agents exist, and which do not: ordinary specialists do their steps."""
    unknown = dict.fromkeys(s.agent for s in plan.subtasks if s.agent and s.agent not in agents)
    if not unknown:
        return plan, ""
    steps = [s._replace(agent="") if s.agent in unknown else s for s in plan.subtasks]
    names = ", ".join(repr(name) for name in unknown)
    problem = f"the plan names agents that do not exist: {names}; an unnamed specialist did"
    return Plan(steps), f"{problem} their steps"


def _orders(system: str) -> str:
    """Return the session's system prompt, followed by the synthesizer's instructions."""
    return f"{system}\n\n{prompt('synthesizer')}" if system else prompt("synthesizer")
