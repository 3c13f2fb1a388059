"""The executor: runs steps concurrently where possible; a failed step does not stop the others."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from keepthread.errors import KeepthreadError
from keepthread.memory.delegation import CUT
from keepthread.memory.turn import Turn
from keepthread.orchestrator.prompts import prompt
from keepthread.orchestrator.specialist import Specialist, side_by_side
from keepthread.orchestrator.types import (
    Began,
    Ended,
    EventHandler,
    Limits,
    Plan,
    Result,
    Runnable,
    Subtask,
)
from keepthread.protocols import ChatModel
from keepthread.types import Message

_CUT_OFF: Final = " (cut off: only the beginning)"


class NotRun(Exception):
    """A step was not run, because a step that it needs failed."""


async def execute(
    plan: Plan,
    turn: Turn,
    tools: Mapping[str, Runnable],
    model: ChatModel,
    limits: Limits,
    on_event: EventHandler,
) -> list[Result]:
    """Run a plan; each step is a delegated task of the turn, which records its result."""
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
        orders, snippet = prompt("specialist"), _snippet(subtask, needed)
        allowed = {name: tools[name] for name in subtask.tools}
        child = turn.delegate(subtask.task, agent=subtask.id, system_prompt=orders, snippet=snippet)
        async with child:
            if failed := [each.subtask.id for each in needed if each.failed]:
                raise NotRun(f"it needs {', '.join(failed)}, which failed")
            specialist = Specialist(child, subtask, allowed, model, limits, on_event)
            return child.answer or await specialist.work(child.finish)

    async with side_by_side() as group:
        for subtask in plan.subtasks:
            running[subtask.id] = group.create_task(run(subtask))
    return [task.result() for task in running.values()]


def _snippet(subtask: Subtask, needed: Sequence[Result]) -> str | None:
    """Return the text that a step sees beside its task: of the conversation and earlier steps."""
    parts = [subtask.snippet] if subtask.snippet else []
    parts += [
        f"Result of {each.subtask.id}{_CUT_OFF if each.truncated else ''}:\n{each.text}"
        for each in needed
        if each.text
    ]
    return "\n\n".join(parts) or None
