"""The pipeline: a request is routed, planned, carried out and answered, and all of it is kept."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Final, TypeVar

from keepthread.errors import ModelCut, ModelRefused, ModelUnavailable
from keepthread.memory import Memory
from keepthread.orchestrator import planning, routing
from keepthread.orchestrator.executing import execute
from keepthread.orchestrator.nouns import (
    Answer,
    Limits,
    Models,
    Plan,
    Planned,
    Result,
    Routed,
    Runnable,
    Said,
    Tell,
    untold,
)
from keepthread.orchestrator.prompts import prompt
from keepthread.orchestrator.structured import Check, read, structured
from keepthread.protocols import ChatModel
from keepthread.session import Session
from keepthread.turn import Turn
from keepthread.types import JSON, Reply

T = TypeVar("T")
ROUTER: Final = "router"
PLANNER: Final = "planner"
CHAT: Final = "chat"


async def orchestrate(
    request: str,
    session: Session | None,
    tools: Sequence[Runnable],
    models: Models,
    *,
    id: str | None = None,
    author: str | None = None,
    limits: Limits | None = None,
    tell: Tell = untold,
) -> Answer:
    """Answer a request; without a session nothing is remembered, and nothing else is different.

    The request is stored first and the answer last; between them stand the steps and their results.
    An id makes it safe to deliver the same request twice. `tell` is called with what happens.
    """
    limits = limits or Limits()
    async with (
        _remembered(session) as main,
        main.exchange(request, id=id, author=author) as turn,
    ):
        if turn.answer is not None:
            return Answer(turn.answer.content, message=turn.answer)
        work = _Work(turn, {each.tool.name: each for each in tools}, models, limits, tell)
        answer = await work.answer(request)
        return answer if session else answer._replace(message=None)


@asynccontextmanager
async def _remembered(session: Session | None) -> AsyncGenerator[Session]:
    """Give a session, or one that is forgotten with the request."""
    if session is not None:
        yield session
        return
    async with Memory.open("ram://") as memory:
        yield await memory.session("once")


class _Work:
    """One request on its way."""

    def __init__(
        self,
        turn: Turn,
        tools: Mapping[str, Runnable],
        models: Models,
        limits: Limits,
        tell: Tell,
    ) -> None:
        self._turn = turn
        self._tools = tools
        self._models = models
        self._limits = limits
        self._tell = tell

    async def answer(self, request: str) -> Answer:
        route = await self._decided(
            ROUTER,
            self._models.router,
            partial(routing.routing_task, request),
            routing.as_route,
            prompt("router"),
            routing.SCHEMA,
        )
        self._tell(Routed(route))
        plan = None if route.direct else await self._plan(request)
        results: list[Result] = []
        if plan:
            results = await execute(
                plan,
                self._turn,
                self._tools,
                self._models.specialist,
                limits=self._limits,
                tell=self._tell,
            )
        reply = await self._said()
        message = await self._turn.finish(
            reply.content, usage=reply.usage._asdict() if reply.usage else None, cut=reply.cut
        )
        return Answer(message.content, route, plan, results, message)

    async def _plan(self, request: str) -> Plan | None:
        """Return a plan; none if the model cannot write one, and the request is answered as is."""
        offered = [each.tool for each in self._tools.values()]
        try:
            made = await self._decided(
                PLANNER,
                self._models.planner,
                partial(planning.planning_task, request),
                partial(planning.as_plan, tools=offered, limits=self._limits),
                planning.planning_prompt(offered, self._limits),
                planning.SCHEMA,
            )
        except ModelRefused as error:
            self._tell(Planned(None, str(error)))
            return None
        self._tell(Planned(made))
        return made

    async def _decided(
        self,
        view: str,
        model: ChatModel,
        task: Callable[[str], str],
        check: Check[T],
        system: str,
        schema: Mapping[str, JSON],
    ) -> T:
        """Let a model decide in a session of its own, which does not fill the next window."""
        before = await self._turn.context(view, newest=False)
        child = self._turn.delegate(
            task(before.text), agent=view, system_prompt=system, recorded=False
        )
        async with _deadline(self._limits.stage_seconds, view), child:
            if child.answer is not None:  # decided before, by a process that died
                return read(child.answer.content, check)
            context = await child.context(budget=self._limits.prompt_tokens)
            decided, text = await structured(
                model, context.messages, check, system=context.system, schema=schema
            )
            await child.finish(text)
        return decided

    async def _said(self) -> Reply:
        """Return the model's answer to the conversation as it stands, steps and results in it."""
        context = await self._turn.context(CHAT)
        system = "\n\n".join(part for part in (context.system, prompt("synthesizer")) if part)
        said = ""
        try:
            async with _deadline(self._limits.stage_seconds, "synthesizer"):
                async for piece in self._models.synthesizer.stream(context.messages, system=system):
                    if isinstance(piece, Reply):
                        if not piece.content.strip():
                            raise ModelRefused("the model said nothing")
                        return piece
                    said += piece
                    self._tell(Said(piece))
        except (ModelCut, ModelUnavailable):
            if not said:
                raise
        return Reply(content=said, cut=True)


@asynccontextmanager
async def _deadline(seconds: float, stage: str) -> AsyncGenerator[None]:
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise ModelUnavailable(f"the {stage} took longer than {seconds:g} seconds") from None
