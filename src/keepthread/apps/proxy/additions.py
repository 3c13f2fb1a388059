"""Texts that the proxy puts into requests: additions to turns, and histories that it builds."""

import json
from collections.abc import Collection
from typing import Any, Final, cast

from keepthread.apps.proxy.types import WireName
from keepthread.context.context import Context
from keepthread.context.sources import RECALLED_FROM
from keepthread.context.trust import LOWEST_ORIGIN, lowest
from keepthread.memory.additions import Addition
from keepthread.types import JSON

_NAME: Final = "keepthread-memory"
_SYSTEM: Final = ("system", "developer")


def as_addition(text: str) -> str:
    """Return a quotation as the text that is added to a turn.

    The proxy recognizes it by its first and last words if a client sends it back; a quotation
    cannot contain them.
    """
    quoted = text.replace(_NAME, _NAME.replace("-", " "))
    return f"<{_NAME}>\n{quoted}\n</{_NAME}>"


def sources_of(additions: Collection[Addition]) -> dict[str, JSON]:
    """Return the metadata of an answer: what its request quoted, and the least trusted origin.

    `forget(answers=True)` follows the quoted messages. The client's own history is not known to be
    more than what tools said.
    """
    found: dict[str, list[JSON]] = {}
    for session, seq in sorted({place for each in additions for place in each.messages}):
        found.setdefault(session, []).append([seq, seq])
    if not additions:
        return {}
    trust = lowest((each.trust for each in additions), "tool")
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
