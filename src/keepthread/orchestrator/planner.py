"""The planner: turns a request into steps, with what each needs and may use."""

import re
from collections.abc import Sequence
from functools import partial
from typing import Any, Final, cast

from keepthread.context.chat_templates import sanitize
from keepthread.orchestrator.prompts import framed, prompt
from keepthread.orchestrator.router import structured
from keepthread.orchestrator.types import Limits, Plan, Subtask
from keepthread.protocols import ChatModel
from keepthread.types import JSON, Tool

TITLE: Final = "Conversation context:"
BEGIN_TOOLS: Final = "[tools]"
END_TOOLS: Final = "[end of tools]"
_STRINGS: Final[JSON] = {"type": "array", "items": {"type": "string"}}
SCHEMA: Final[dict[str, JSON]] = {
    "type": "object",
    "properties": {
        "steps": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "id": {"type": "string"},
                    "task": {"type": "string"},
                    "tools": _STRINGS,
                    "needs": _STRINGS,
                    "snippet": {"type": "string"},
                },
                "required": ["id", "task", "tools", "needs", "snippet"],
                "additionalProperties": False,
            },
        }
    },
    "required": ["steps"],
    "additionalProperties": False,
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
) -> Plan:
    """Write a plan; `context` is the conversation so far, as text."""
    limits = limits or Limits()
    check = partial(as_plan, tools=tools, limits=limits)
    task = framed(TITLE, context, f"{tool_list(tools)}\n\nRequest: {request}")
    return await structured(model, task, check, system=planning_prompt(limits), schema=SCHEMA)


def planning_prompt(limits: Limits) -> str:
    """Return the planner's instructions. No part of them was written by a tool's author."""
    return f"{prompt('planner')}\n\nAt most {limits.subtasks} steps."


def tool_list(tools: Sequence[Tool]) -> str:
    """Return the tools as a quotation, one on each line: their authors may write anything."""
    lines = [f"> {_line(tool.name)}: {_about(tool)}" for tool in tools] or ["> (none)"]
    return "\n".join(["Tools:", BEGIN_TOOLS, *lines, END_TOOLS])


def _about(tool: Tool) -> str:
    line = _line(tool.description)
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
    wanted = _names(step, "tools", id)
    if unknown := [name for name in wanted if name not in known]:
        raise ValueError(f'step "{id}" wants tools that do not exist: {", ".join(unknown)}')
    return Subtask(id, task, wanted, _names(step, "needs", id), snippet)


def _names(step: dict[str, Any], field: str, id: str) -> list[str]:
    names: Any = step.get(field) or []
    if not isinstance(names, list):
        raise ValueError(f'"{field}" of step "{id}" must be a list of names')  # noqa: TRY004
    found = cast("list[Any]", names)
    if not all(isinstance(name, str) for name in found):
        raise ValueError(f'"{field}" of step "{id}" must be a list of names')
    return list(dict.fromkeys(cast("list[str]", found)))


def _in_order(steps: Sequence[Subtask]) -> list[Subtask]:
    """Return steps, each after those it needs; refuse steps that need each other in a circle."""
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
