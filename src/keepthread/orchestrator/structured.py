"""Asking a model for JSON, checking what it wrote, and letting it mend that once."""

import json
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from keepthread.errors import ModelRefused
from keepthread.protocols import ChatModel
from keepthread.templates import sanitize
from keepthread.types import JSON, Message

T = TypeVar("T")
Check = Callable[[Any], T]
"""Makes a noun of JSON; `ValueError` says in a sentence what is wrong with it."""

_MEND: Final = "That cannot be used: {problem}. Write it again, as JSON alone, with this mended."


async def structured(
    model: ChatModel,
    task: str,
    check: Check[T],
    *,
    system: str,
    schema: Mapping[str, JSON],
) -> T:
    """Return what a model decided; `ModelRefused` if twice it wrote what cannot be used."""
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
    """Return the JSON in a text; models like to put words and fences around it."""
    start, end = text.find("{"), text.rfind("}")
    try:
        return json.loads(text[start : end + 1])
    except (ValueError, RecursionError):
        raise ValueError("it is no JSON object") from None
