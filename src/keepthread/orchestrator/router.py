"""The router: answer directly, or make a plan."""

import json
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar, cast

from keepthread.context.chat_templates import sanitize
from keepthread.errors import ModelRefused
from keepthread.orchestrator.prompts import framed, prompt
from keepthread.orchestrator.types import Route
from keepthread.protocols import ChatModel
from keepthread.types import JSON, Message

T = TypeVar("T")
Check = Callable[[Any], T]
"""Converts JSON to a value; a `ValueError` says in a sentence what is wrong with it."""

_MEND: Final = "That cannot be used: {problem}. Write it again, as JSON alone, with this mended."


async def structured(
    model: ChatModel,
    task: str,
    check: Check[T],
    *,
    system: str,
    schema: Mapping[str, JSON],
) -> T:
    """Return a model's decision; raise `ModelRefused` if two answers in a row are invalid."""
    messages = [Message(role="user", content=task)]
    problem = ""
    for _ in range(2):
        reply = await model.complete(messages, system=system, schema=schema)
        try:
            return check(_json(reply.content))
        except ValueError as error:
            problem = str(error)
        messages += [
            Message(role="assistant", content=reply.content or "(nothing)"),
            Message(role="user", content=_MEND.format(problem=sanitize(problem))),
        ]
    raise ModelRefused(f"{model.name} twice wrote what cannot be used: {problem}")


def _json(text: str) -> Any:
    """Return the JSON in a text; models often put words and code fences around it."""
    start, end = text.find("{"), text.rfind("}")
    try:
        return json.loads(text[start : end + 1])
    except (ValueError, RecursionError):
        raise ValueError("it is not a JSON object") from None


TITLE: Final = "Previous conversation:"
SCHEMA: Final[dict[str, JSON]] = {
    "type": "object",
    "properties": {
        "kind": {"type": "string", "enum": ["direct", "plan"]},
        "why": {"type": "string"},
    },
    "required": ["kind", "why"],
    "additionalProperties": False,
}
_LONGEST_WHY: Final = 300


async def route(request: str, model: ChatModel, *, context: str = "") -> Route:
    """Decide how a request is handled; `context` is the conversation so far, as text."""
    task = framed(TITLE, context, f"Request: {request}")
    return await structured(model, task, as_route, system=prompt("router"), schema=SCHEMA)


def as_route(value: Any) -> Route:
    """Return a route from a model's JSON; raise `ValueError` if it is invalid."""
    if not isinstance(value, dict):
        raise ValueError("it is not a JSON object")  # noqa: TRY004 - a model wrote it
    given = cast("dict[str, Any]", value)
    kind, why = given.get("kind"), given.get("why")
    if kind not in ("direct", "plan"):
        raise ValueError('"kind" must be "direct" or "plan"')
    return Route(kind == "direct", why[:_LONGEST_WHY] if isinstance(why, str) else "")
