"""Debug logs of each context in three blocks: memory, cached tool results, and the model's input.

They go to the logger `keepthread.context` at DEBUG, with ids and sizes. They include text only if
`keepthread.context.text` is set to DEBUG as well: that logger inherits no level from its parents.
"""

import logging
from collections.abc import Sequence
from typing import Any, Final

from keepthread.protocols import CachedResult, History, Material
from keepthread.types import Message, Selection

_log: Final = logging.getLogger("keepthread.context")
_text: Final = logging.getLogger("keepthread.context.text")
_text.setLevel(logging.WARNING)  # must be set explicitly: debugging must not log text by accident
_MOST: Final = 200


def is_on() -> bool:
    """Return whether contexts are logged."""
    return _log.isEnabledFor(logging.DEBUG) or _text.isEnabledFor(logging.DEBUG)


def log_context(
    session: str,
    view: str,
    material: Material,
    past: History,
    selection: Selection,
    *,
    compressions: int = 0,
) -> None:
    """Log a context that was built; does nothing if DEBUG is off."""
    with_text = _text.isEnabledFor(logging.DEBUG)
    log = _text if with_text else _log
    if not log.isEnabledFor(logging.DEBUG):
        return
    _memory(log, session, view, material, past, selection, compressions)
    _cache(log, session, material.tool_results, with_text)
    _received(log, session, selection.messages, with_text)


def _memory(
    log: logging.Logger,
    session: str,
    view: str,
    material: Material,
    past: History,
    selection: Selection,
    compressions: int,
) -> None:
    summary = past.summary
    data = {
        "block": "memory",
        "session": session,
        "view": view,
        "turn": material.turn,
        "messages": material.earlier + len(material.messages) + bool(material.passed),
        "hidden": sum(span.last - span.first + 1 for span in material.hidden),
        "summary_bytes": _size(summary.text) if summary else 0,
        "compressions": compressions,
        "budget": selection.budget,
        "tokens": selection.tokens,
    }
    message = (
        "=== MEMORY STATE ===\n"
        "Session: %s | View: %s | Turn: %d | Messages: %d | Hidden: %d"
        " | Summary: %d bytes | LLM compressions: %d | Tokens: %d of %d"
    )
    shown = [data[name] for name in ("session", "view", "turn", "messages", "hidden")]
    shown += [data[name] for name in ("summary_bytes", "compressions", "tokens", "budget")]
    log.debug(message, *shown, extra={"keepthread": data})


def _cache(
    log: logging.Logger, session: str, live: Sequence[CachedResult], with_text: bool
) -> None:
    results = [_result(each, with_text) for each in live]
    lines = [f"Cached functions: {len(results)}"]
    for each in results:
        arguments = each.get("arguments", f"{each['argument_bytes']} bytes")
        left = f"{each['left']}/{each['cache_turns']} turns remaining"
        lines.append(f"  • {each['name']}({arguments}): {left}")
    data = {"block": "cache", "session": session, "results": results}
    log.debug("=== FUNCTION CACHE STATE ===\n%s", "\n".join(lines), extra={"keepthread": data})


def _result(live: CachedResult, with_text: bool) -> dict[str, Any]:
    (call,) = live.call.tool_calls
    data: dict[str, Any] = {
        "name": call.name,
        "left": live.left,
        "cache_turns": live.cache_turns,
        "argument_bytes": _size(call.arguments),
    }
    return {**data, "arguments": _cut(call.arguments)} if with_text else data


def _received(
    log: logging.Logger, session: str, messages: Sequence[Message], with_text: bool
) -> None:
    received = [_message(message, with_text) for message in messages]
    lines: list[str] = []
    for number, each in enumerate(received, 1):
        place = f"seq {each['seq']}, id {each['id']}" if each["seq"] else "not in the log"
        line = f"[{number}] {each['role'].upper()}: {place}"
        line += f", {each['bytes']} bytes, {each['tokens']} tokens"
        lines.append(f"{line}: {each['text']}" if with_text else line)
    data = {"block": "receives", "session": session, "messages": received}
    message = "=== AGENT RECEIVES (%d messages) ===\n%s"
    log.debug(message, len(lines), "\n".join(lines), extra={"keepthread": data})


def _message(message: Message, with_text: bool) -> dict[str, Any]:
    data: dict[str, Any] = {
        "role": message.role,
        "seq": message.seq,
        "id": message.id,
        "bytes": _size(message.content) + sum(_size(c.arguments) for c in message.tool_calls),
        "tokens": message.tokens,
    }
    return {**data, "text": _cut(message.content)} if with_text else data


def _size(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def _cut(text: str) -> str:
    """Return a text on one line, escaped so that it cannot imitate log lines."""
    return repr(text if len(text) <= _MOST else f"{text[:_MOST]}…")
