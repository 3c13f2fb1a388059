"""The executor: runs steps concurrently where possible; a failed step does not stop the others."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

from keepthread.errors import KeepthreadError
from keepthread.memory.delegation import CUT
from keepthread.memory.facts.provenance import REMEMBER
from keepthread.memory.turn import Turn
from keepthread.orchestrator.prompts import prompt
from keepthread.orchestrator.specialist import Specialist, side_by_side
from keepthread.orchestrator.types import (
    Began,
    Ended,
    EventHandler,
    Limits,
    NamedAgent,
    Plan,
    Result,
    Runnable,
    Subtask,
)
from keepthread.protocols import ChatModel
from keepthread.types import Message

_CUT_OFF: Final = " (cut off: only the beginning)"
_SHARED: Final = "Facts that you know for every user:"


class NotRun(Exception):
    """A step was not run, because a step that it needs failed."""


async def execute(
    plan: Plan,
    turn: Turn,
    tools: Mapping[str, Runnable],
    model: ChatModel,
    limits: Limits,
    on_event: EventHandler,
    agents: Mapping[str, NamedAgent] | None = None,
    memory_tools: Mapping[str, Runnable] | None = None,
) -> list[Result]:
    """Run a plan; each step is a delegated task of the turn, which records its result.

    A step that names one of the agents gets its prompt, its model, its tools and its facts; and of
    the memory's own tools `remember`, by which it notes facts for itself.
    """
    own_tools = memory_tools or {}
    places = asyncio.Semaphore(limits.at_once)
    running: dict[str, asyncio.Task[Result]] = {}

    async def run(subtask: Subtask) -> Result:
        needed = [await running[id] for id in subtask.needs]
        async with places:
            on_event(Began(subtask))
            try:
                async with asyncio.timeout(limits.subtask_seconds):
                    answer = await carried_out(subtask, needed)
                result = Result(subtask, answer.content, truncated=answer.meta.get(CUT) is True)
            except TimeoutError:
                late = f"it took longer than {limits.subtask_seconds:g} seconds"
                result = Result(subtask, failed=late)
            except (KeepthreadError, NotRun) as error:
                result = Result(subtask, failed=str(error) or type(error).__name__)
        on_event(Ended(result))
        return result

    async def carried_out(subtask: Subtask, needed: Sequence[Result]) -> Message:
        agent = (agents or {}).get(subtask.agent)
        names = agent.tools if agent and agent.tools else subtask.tools
        allowed = {name: tools[name] for name in names if name in tools}
        if agent and (not agent.tools or REMEMBER in agent.tools):
            allowed |= {name: own_tools[name] for name in own_tools if name == REMEMBER}
        snippet = _snippet(subtask, needed)
        child = turn.delegate(subtask.task, snippet=snippet, **_given(subtask, agent))
        async with child:
            if failed := [each.subtask.id for each in needed if each.failed]:
                raise NotRun(f"it depends on {', '.join(failed)}, which failed")
            asked = (agent.model if agent else None) or model
            specialist = Specialist(child, subtask, allowed, asked, limits, on_event, own_tools)
            return child.answer or await specialist.work(child.finish)

    async with side_by_side() as group:
        for subtask in plan.subtasks:
            running[subtask.id] = group.create_task(run(subtask))
    return [task.result() for task in running.values()]


def _given(subtask: Subtask, agent: NamedAgent | None) -> dict[str, Any]:
    """Return a delegated task's options in addition to its text, from its agent if it has one."""
    named = agent or NamedAgent(name=subtask.id)
    return {
        "agent": named.name,
        "system_prompt": _orders(named),
        "facts": named.facts,
        "own_facts": agent is not None,  # a step's id is a label, and could be an agent's name
    }


def _orders(agent: NamedAgent) -> str:
    """Return the system prompt of a specialist: the agent's own, followed by what holds for all."""
    shared = "\n".join([_SHARED, *(f"- {' '.join(fact.split())}" for fact in agent.shared_facts)])
    parts = [agent.system_prompt.strip(), shared if agent.shared_facts else ""]
    return "\n\n".join(filter(None, [*parts, prompt("specialist")]))


def _snippet(subtask: Subtask, needed: Sequence[Result]) -> str | None:
    """Return a step's extra text: parts of the conversation, and earlier results."""
    parts = [subtask.snippet] if subtask.snippet else []
    parts += [
        f"Result of {each.subtask.id}{_CUT_OFF if each.truncated else ''}:\n{each.text}"
        for each in needed
        if each.text
    ]
    return "\n\n".join(parts) or None
