"""Where a recalled text can be added to a call."""

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from bench.cache.clients import Call
from keepthread.apps.proxy.request import read_request, splice
from keepthread.apps.proxy.types import WireName

Put: TypeAlias = Callable[[Call], Mapping[str, Any]]


def nowhere(wire: WireName) -> Put:
    """Return a proxy that adds nothing."""
    return lambda call: call.body


def kept(wire: WireName) -> Put:
    """Return the proxy of keepthread: an addition stays at the turn that it was made for."""
    additions: dict[str, str] = {}

    def put(call: Call) -> Mapping[str, Any]:
        request = read_request(wire, json.dumps(call.body).encode(), {})
        assert request is not None
        if request.ends_with_user:
            additions[request.turns[-1].digest] = call.recalled
        return json.loads(splice(request, additions))

    return put


def in_the_system_prompt(wire: WireName) -> Put:
    """Return a proxy that writes what it recalled into the system prompt."""

    def put(call: Call) -> Mapping[str, Any]:
        if wire == "anthropic":
            (prompt,) = call.body["system"]
            return {**call.body, "system": [_longer(prompt, "text", call.recalled)]}
        prompt, *rest = call.body["messages"]
        return {**call.body, "messages": [_longer(prompt, "content", call.recalled), *rest]}

    return put


def only_in_the_newest(wire: WireName) -> Put:
    """Return a proxy that adds to the newest question alone: the next call does not have it."""

    def put(call: Call) -> Mapping[str, Any]:
        messages = list(call.body["messages"])
        at = max(n for n, message in enumerate(messages) if _is_question(message))
        content = messages[at]["content"]
        if isinstance(content, str):
            messages[at] = _longer(messages[at], "content", call.recalled)
        else:
            changed = [*content[:-1], _longer(content[-1], "text", call.recalled)]
            messages[at] = {**messages[at], "content": changed}
        return {**call.body, "messages": messages}

    return put


def _longer(item: Mapping[str, Any], field: str, text: str) -> dict[str, Any]:
    return {**item, field: f"{item[field]}\n\n{text}"}


def _is_question(message: Mapping[str, Any]) -> bool:
    content = message["content"] if message["role"] == "user" else None
    return isinstance(content, str) or (bool(content) and content[-1]["type"] == "text")


PLACES: Mapping[str, Callable[[WireName], Put]] = {
    "no memory": nowhere,
    "keepthread's place": kept,
    "the newest turn, removed later": only_in_the_newest,
    "the system prompt": in_the_system_prompt,
}
