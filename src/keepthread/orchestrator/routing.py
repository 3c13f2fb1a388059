"""The router: answer at once, or make a plan?"""

from typing import Any, Final, cast

from keepthread.orchestrator.framing import framed
from keepthread.orchestrator.nouns import Route
from keepthread.orchestrator.prompts import prompt
from keepthread.orchestrator.structured import structured
from keepthread.protocols import ChatModel
from keepthread.types import JSON

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
    """Decide how a request is handled; `context` is what was said before, as text."""
    task = framed(TITLE, context, f"Request: {request}")
    return await structured(model, task, as_route, system=prompt("router"), schema=SCHEMA)


def as_route(value: Any) -> Route:
    """Return a route of what a model wrote, or say what is wrong with it."""
    if not isinstance(value, dict):
        raise ValueError("it is no JSON object")  # noqa: TRY004 - it is what a model wrote
    given = cast("dict[str, Any]", value)
    kind, why = given.get("kind"), given.get("why")
    if kind not in ("direct", "plan"):
        raise ValueError('"kind" must be "direct" or "plan"')
    return Route(kind == "direct", why[:_LONGEST_WHY] if isinstance(why, str) else "")
