"""Metadata of answers, and histories, which the proxy makes from quotations and contexts."""

import json
from collections.abc import Collection, Sequence
from typing import Any, Final, cast

from keepthread.apps.proxy.types import WireName
from keepthread.context.context import Context
from keepthread.context.sources import RECALLED_FROM
from keepthread.context.trust import LOWEST_ORIGIN, lowest, origin_of
from keepthread.memory.additions import Addition
from keepthread.types import JSON, Message, Origin

_SYSTEM: Final = ("system", "developer")


def sources_of(additions: Collection[Addition], sent: Sequence[Message]) -> dict[str, JSON]:
    """Return the metadata of an answer: what its request quoted, and the least trusted origin.

    `sent` is the history of the request. `forget(answers=True)` follows the quoted messages. The
    client's own history is not known to be more than what tools said.
    """
    found: dict[str, list[JSON]] = {}
    for session, seq in sorted({place for each in additions for place in each.messages}):
        found.setdefault(session, []).append([seq, seq])
    origins: list[Origin] = [*(each.trust for each in additions), *map(origin_of, sent)]
    trust = lowest(origins, "tool")
    if not additions and trust == "tool":  # an answer that names nothing counts as a tool's
        return {}
    return {LOWEST_ORIGIN: trust, **({RECALLED_FROM: cast(JSON, found)} if found else {})}


def as_history(context: Context, wire: WireName) -> str:
    """Return a context as the JSON array of a wire's messages, without a system prompt.

    The system prompt is the client's, and stays in its request.
    """
    if wire == "anthropic":
        items = context.to_anthropic()["messages"]
    elif wire == "openai-chat":
        items = context.to_openai_chat()["messages"]
    else:
        items = context.to_openai_responses()["input"]
    kept = [each for each in cast(list[dict[str, Any]], items) if each.get("role") not in _SYSTEM]
    return json.dumps(kept, ensure_ascii=False, separators=(",", ":"))
