"""The planner: turns a request into steps with dependencies, tools and agents."""

import re
from collections.abc import Collection, Sequence
from functools import partial
from typing import Any, Final, cast

from keepthread.context.chat_templates import sanitize
from keepthread.orchestrator.prompts import framed, prompt
from keepthread.orchestrator.router import structured
from keepthread.orchestrator.types import Limits, NamedAgent, Plan, Subtask
from keepthread.protocols import ChatModel
from keepthread.types import JSON, Tool

TITLE: Final = "Conversation context:"
BEGIN_TOOLS: Final = "[tools]"
END_TOOLS: Final = "[end of tools]"
BEGIN_AGENTS: Final = "[agents]"
END_AGENTS: Final = "[end of agents]"
_STRINGS: Final[JSON] = {"type": "array", "items": {"type": "string"}}
_STEP: Final[dict[str, JSON]] = {
    "id": {"type": "string"},
    "task": {"type": "string"},
    "tools": _STRINGS,
    "needs": _STRINGS,
    "snippet": {"type": "string"},
}
_ID: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_LONGEST: Final = 8000  # characters of a task or its snippet
_LONGEST_ABOUT: Final = 400


async def plan(
    request: str,
    tools: Sequence[Tool],
    model: ChatModel,
    *,
    context: str = "",
    limits: Limits | None = None,
    agents: Collection[NamedAgent] = (),
) -> Plan:
    """Write a plan; `context` is the conversation so far, as text.

    A step may name one of the agents, or, as a model can err, one that does not exist.
    """
    limits = limits or Limits()
    check = partial(as_plan, tools=tools, limits=limits)
    lists = [tool_list(tools), *([agent_list(agents)] if agents else [])]
    task = framed(TITLE, context, "\n\n".join([*lists, f"Request: {request}"]))
    orders = planning_prompt(limits, agents)
    return await structured(model, task, check, system=orders, schema=schema_of(agents))


def schema_of(agents: Collection[NamedAgent] = ()) -> dict[str, JSON]:
    """Return the schema of a plan; its steps have agents if there are any."""
    step: dict[str, JSON] = {**_STEP, "agent": {"type": "string"}} if agents else _STEP
    steps: JSON = {
        "type": "array",
        "items": {
            "type": "object",
            "properties": step,
            "required": list(step),
            "additionalProperties": False,
        },
    }
    return {
        "type": "object",
        "properties": {"steps": steps},
        "required": ["steps"],
        "additionalProperties": False,
    }


def planning_prompt(limits: Limits, agents: Collection[NamedAgent] = ()) -> str:
    """Return the planner's instructions. No part of them was written by a tool's author."""
    parts = [prompt("planner"), f"At most {limits.subtasks} steps."]
    return "\n\n".join([*parts, prompt("agents")] if agents else parts)


def tool_list(tools: Sequence[Tool]) -> str:
    """Return the tools as a quotation, one on each line: their authors may write anything."""
    lines = [f"> {_line(tool.name)}: {_about(tool)}" for tool in tools] or ["> (none)"]
    return "\n".join(["Tools:", BEGIN_TOOLS, *lines, END_TOOLS])


def agent_list(agents: Collection[NamedAgent]) -> str:
    """Return the agents as a quotation, one on each line, with the tools of each."""
    lines = [f"> {_line(agent.name)}: {_about(agent)}{_own_tools(agent)}" for agent in agents]
    return "\n".join(["Agents:", BEGIN_AGENTS, *lines, END_AGENTS])


def _own_tools(agent: NamedAgent) -> str:
    return f" (its tools: {_line(', '.join(agent.tools))})" if agent.tools else ""


def _about(described: Tool | NamedAgent) -> str:
    line = _line(described.description)
    return line if len(line) <= _LONGEST_ABOUT else f"{line[:_LONGEST_ABOUT]}…"


def _line(text: str) -> str:
    """Return a text on one line, without marks of a chat template."""
    return sanitize(" ".join(text.split()))


def as_plan(value: Any, *, tools: Sequence[Tool], limits: Limits) -> Plan:
    """Return a plan from a model's JSON, each step after those it needs; or raise `ValueError`."""
    steps = cast("dict[str, Any]", value).get("steps") if isinstance(value, dict) else None
    if not isinstance(steps, list) or not steps:
        raise ValueError('"steps" must be a list with at least one step')
    given = cast("list[Any]", steps)
    if len(given) > limits.subtasks:
        raise ValueError(f"there are {len(given)} steps, and at most {limits.subtasks} are allowed")
    known = {tool.name for tool in tools}
    return Plan(_in_order([_subtask(step, known) for step in given]))


def _subtask(value: Any, known: set[str]) -> Subtask:
    if not isinstance(value, dict):
        raise ValueError("each step must be an object")  # noqa: TRY004 - it is what a model wrote
    step = cast("dict[str, Any]", value)
    id, task, snippet = step.get("id"), step.get("task"), step.get("snippet") or ""
    if not isinstance(id, str) or not _ID.fullmatch(id):
        raise ValueError('each step needs an "id" of letters, digits, "_", "-" and "."')
    if not isinstance(task, str) or not task.strip() or len(task) > _LONGEST:
        raise ValueError(f'step "{id}" needs a "task" of 1 to {_LONGEST} characters')
    if not isinstance(snippet, str) or len(snippet) > _LONGEST:
        raise ValueError(f'the "snippet" of step "{id}" must be a text, no longer than {_LONGEST}')
    agent = step.get("agent") or ""
    if not isinstance(agent, str) or len(agent) > _LONGEST_ABOUT:
        raise ValueError(f'the "agent" of step "{id}" must be a name, or "" for none')
    wanted = _names(step, "tools", id)
    if unknown := [name for name in wanted if name not in known]:
        raise ValueError(f'step "{id}" wants tools that do not exist: {", ".join(unknown)}')
    return Subtask(id, task, wanted, _names(step, "needs", id), snippet, agent.strip())


def _names(step: dict[str, Any], field: str, id: str) -> list[str]:
    names: Any = step.get(field) or []
    if not isinstance(names, list):
        raise ValueError(f'"{field}" of step "{id}" must be a list of names')  # noqa: TRY004
    found = cast("list[Any]", names)
    if not all(isinstance(name, str) for name in found):
        raise ValueError(f'"{field}" of step "{id}" must be a list of names')
    return list(dict.fromkeys(cast("list[str]", found)))


def _in_order(steps: Sequence[Subtask]) -> list[Subtask]:
    """Return steps in dependency order; refuse circular dependencies."""
    left = {step.id: step for step in steps}
    if len(left) < len(steps):
        raise ValueError("two steps have the same id")
    for step in steps:
        if unknown := [name for name in step.needs if name not in left]:
            raise ValueError(f'step "{step.id}" needs steps that do not exist: {unknown}')
    ordered: list[Subtask] = []
    while left:
        ready = [step for step in left.values() if not any(need in left for need in step.needs)]
        if not ready:
            raise ValueError(f"steps need each other in a circle: {', '.join(left)}")
        ordered += ready
        for step in ready:
            del left[step.id]
    return ordered
