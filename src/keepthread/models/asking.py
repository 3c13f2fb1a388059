"""What both wires need to ask: who is asked, a conversation that is in order, names of tools."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from keepthread.context.blocks import calls_of
from keepthread.errors import InvalidInput
from keepthread.tokens.counting import wire_name
from keepthread.types import JSON, Message, Native, Selection, Tool, Wire

_NO_PARAMETERS: Final[Mapping[str, JSON]] = {"type": "object", "properties": {}}


class Question(NamedTuple):
    """One question to a model."""

    selection: Selection
    tools: Sequence[Tool] = ()
    schema: Mapping[str, JSON] | None = None
    max_tokens: int | None = None


def conversation(messages: Sequence[Message], system: str) -> Selection:
    """Return messages as what is rendered; refuse them if a call lacks its results."""
    results: list[str] = []
    for message in messages:
        if not results:
            results = [call.id for call in calls_of(message)]
        elif message.role == "tool" and message.tool_call_id == results[0]:
            del results[0]
        else:
            break
    if results:
        raise InvalidInput(
            f"the call {results[0]!r} has no result behind it; give the messages of a context,"
            " or each call's results right behind it, in the order of the calls"
        )
    return Selection(0, 0, system, messages, ())


def wire_names(tools: Sequence[Tool]) -> dict[str, str]:
    """Return the names of tools by the names that a provider takes."""
    names = {wire_name(tool.name): tool.name for tool in tools}
    if len(names) < len(tools):
        raise InvalidInput(
            "two tools have names that a provider cannot tell apart: use letters, digits, _ and -"
            " alone, 64 at most"
        )
    return names


def parameters_of(tool: Tool) -> dict[str, Any]:
    """Return a tool's parameters as the object that providers ask for."""
    return {**_NO_PARAMETERS, **tool.parameters}


def address_of(url: str, *, ends: Sequence[str], root: str) -> tuple[str, str]:
    """Return a base address and its host; `ends` are what people copy along, `root` is added."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
        raise InvalidInput("base_url must be like https://HOST/v1 and nothing more")
    if parts.username is not None:
        raise InvalidInput("base_url has a user's name in it; give what is secret as key")
    path = parts.path.rstrip("/")
    for end in ends:
        path = path.removesuffix(end)
    return f"{parts.scheme}://{parts.netloc}{path or root}", parts.netloc


def native_of(wire: Wire, items: Sequence[JSON], provider: str) -> Native:
    """Return a provider's own items; raise `ValueError` if no request could carry them."""
    json.dumps(items, ensure_ascii=False).encode()
    return Native(wire, items, provider)
