"""How OpenAI answers a request for a response: whole, in a stream, and with an error."""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any, Final

from keepthread.testing.script import Received, Say, arguments_in_pieces, in_pieces
from keepthread.testing.wires import Stream, as_json, openai_chat_answer
from keepthread.types import ToolCall, Usage

error: Final = openai_chat_answer.error
models: Final = openai_chat_answer.models

_INCOMPLETE: Final = {"length": "max_output_tokens", "content_filter": "content_filter"}
_CODES: Final = {429: "rate_limit_exceeded"}
_SEAL: Final = "gAAAAABk"
"""How the encrypted content of this server begins."""
_ECHOED: Final[Mapping[str, Any]] = {
    "background": False,
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "prompt_cache_key": None,
    "reasoning": {"effort": None, "summary": None},
    "safety_identifier": None,
    "store": True,
    "temperature": 1.0,
    "text": {"format": {"type": "text"}, "verbosity": "medium"},
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "top_p": 1.0,
    "truncation": "disabled",
    "user": None,
}
"""Fields of a request that the response repeats, with their defaults."""
_CALLS: Final = {
    "function_call": ("fc", "arguments", "function_call_arguments"),
    "custom_tool_call": ("ctc", "input", "custom_tool_call_input"),
}
"""For each kind of call: the prefix of its id, its field, and the name of its events."""


def whole(say: Say, asked: Received, number: int) -> Mapping[str, Any]:
    """Return an answer in one piece; one that runs in the background has only begun."""
    answer = finished(say, asked, number)
    if asked.body.get("background"):
        return {**answer, "status": "queued", "output": [], "completed_at": None, "usage": None}
    return answer


def finished(say: Say, asked: Received, number: int) -> Mapping[str, Any]:
    """Return the whole response, as it is kept."""
    usage, status = say.usage or Usage(), _status(say)
    details: dict[str, Any] = {}
    if status == "completed":
        details["completed_at"] = 1_800_000_001 + number
    elif status == "incomplete":
        details["incomplete_details"] = {"reason": _INCOMPLETE[say.finish or ""]}
    else:
        details["error"] = {"code": "server_error", "message": say.message or "the script failed"}
    return {
        **_begun(asked, number),
        "status": status,
        "output": _items(say, asked, number),
        "usage": {
            "input_tokens": usage.input,
            "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": 0},
            "output_tokens": usage.output,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage.input + usage.output,
        },
        **details,
    }


def stream(say: Say, asked: Received, number: int) -> Stream:
    """Return an answer in events: the response begins, its items come one by one, it ends."""
    options: Mapping[str, Any] = asked.body.get("stream_options") or {}
    event = _Events(options.get("include_obfuscation") is not False)
    begun = _begun(asked, number)
    opening = event("response.created", response=begun)
    opening += event("response.in_progress", response=begun)
    end = finished(say, asked, number)
    pieces: list[bytes] = []
    for at, item in enumerate(end["output"]):
        pieces += _item_events(event, at, item, say)
    return Stream(opening, pieces, event(f"response.{end['status']}", response=end))


def error_event(status: int, message: str, number: int = 0) -> bytes:
    """Return what an error in the middle of a stream looks like, after some events."""
    code = _CODES.get(status, "server_error")
    return _event("error", code=code, message=message, param=None, sequence_number=number)


def seal(text: str) -> str:
    """Return thoughts in a form that only this server reads, and that shows any change."""
    plain = text.encode(errors="surrogatepass")
    return _SEAL + base64.urlsafe_b64encode(_checksum(plain) + plain).decode()


def is_sealed(content: Any) -> bool:
    """Return whether encrypted content is unchanged; that of other servers cannot be checked."""
    if not isinstance(content, str) or not content.startswith(_SEAL):
        return isinstance(content, str)
    try:
        found = base64.urlsafe_b64decode(content.removeprefix(_SEAL))
    except ValueError:
        return False
    return found[:6] == _checksum(found[6:])


def _checksum(plain: bytes) -> bytes:
    return hashlib.sha256(plain).digest()[:6]


def _status(say: Say) -> str:
    if say.finish == "failed":
        return "failed"
    return "incomplete" if say.finish in _INCOMPLETE else "completed"


def _begun(asked: Received, number: int) -> Mapping[str, Any]:
    given = {name: asked.body[name] for name in _ECHOED if asked.body.get(name) is not None}
    return {
        "id": f"resp_{number:048x}",
        "object": "response",
        "created_at": 1_800_000_000 + number,
        "status": "in_progress",
        "completed_at": None,
        "error": None,
        "incomplete_details": None,
        "model": asked.body["model"],
        "output": [],
        "service_tier": "default",
        "usage": None,
        **_ECHOED,
        **given,
    }


def _items(say: Say, asked: Received, number: int) -> list[Mapping[str, Any]]:
    items: list[Mapping[str, Any]] = []
    if say.thinking:
        asks: Mapping[str, Any] = asked.body.get("reasoning") or {}
        summary = [{"type": "summary_text", "text": say.thinking}] if asks.get("summary") else []
        sealed = {"summary": summary, "encrypted_content": seal(say.thinking)}
        items.append({"id": f"rs_{number:048x}", "type": "reasoning", **sealed})
    if say.text:
        part: Mapping[str, Any] = {
            "type": "output_text",
            "text": say.text,
            "annotations": [],
            "logprobs": [],
        }
        items.append(
            {
                "id": f"msg_{number:048x}",
                "type": "message",
                "role": "assistant",
                "status": "incomplete" if _status(say) == "incomplete" else "completed",
                "content": [part],
            }
        )
    tools: Sequence[Mapping[str, Any]] = asked.body.get("tools") or ()
    free = {tool.get("name") for tool in tools if tool["type"] == "custom"}
    for at, call in enumerate(say.tool_calls):
        kind = "custom_tool_call" if call.name in free else "function_call"
        items.append(_call(kind, call, f"{number:046x}{at:02x}"))
    return items


def _call(kind: str, call: ToolCall, id: str) -> Mapping[str, Any]:
    prefix, field, _ = _CALLS[kind]
    return {
        "id": f"{prefix}_{id}",
        "type": kind,
        "status": "completed",
        "call_id": call.id,
        "name": call.name,
        field: call.arguments,
    }


class _Events:
    """Numbers the events of a stream."""

    def __init__(self, obfuscated: bool) -> None:
        """Take whether deltas are padded, as they are unless the client says otherwise."""
        self._numbers = count()
        self._obfuscated = obfuscated

    def __call__(self, kind: str, **data: Any) -> bytes:
        """Return the next event."""
        if self._obfuscated and "delta" in data:
            data["obfuscation"] = "x" * (-len(data["delta"]) % 16)
        return _event(kind, sequence_number=next(self._numbers), **data)


def _item_events(event: _Events, at: int, item: Mapping[str, Any], say: Say) -> list[bytes]:
    """Return the events of one item in pieces: one for each delta."""
    where = {"output_index": at, "item_id": item["id"]}
    empty: Mapping[str, Any]
    if item["type"] == "message":
        empty = {"status": "in_progress", "content": []}
        name = "response.output_text"
        part, field, deltas = item["content"][0], "text", in_pieces(say.text, say.pieces)
        around, place = "response.content_part", {**where, "content_index": 0}
    elif item["type"] == "reasoning":
        empty = {"summary": []}
        name = "response.reasoning_summary_text"
        part, field = next(iter(item["summary"]), None), "text"
        deltas = in_pieces(say.thinking, say.pieces) if part else []
        around, place = "response.reasoning_summary_part", {**where, "summary_index": 0}
    else:
        _, field, named = _CALLS[item["type"]]
        empty, name = {"status": "in_progress", field: ""}, f"response.{named}"
        part, deltas = None, arguments_in_pieces(ToolCall(id="-", name="-", arguments=item[field]))
        around, place = "", where
    also: Mapping[str, Any] = {"logprobs": []} if item["type"] == "message" else {}
    begun = event("response.output_item.added", output_index=at, item={**item, **empty})
    if part:
        begun += event(f"{around}.added", **place, part={**part, "text": ""})
    pieces: list[bytes] = []
    for delta in deltas:
        pieces.append(begun + event(f"{name}.delta", **place, delta=delta, **also))
        begun = b""
    pieces = pieces or [begun]
    if part or field != "text":
        full = part["text"] if part else item[field]
        pieces[-1] += event(f"{name}.done", **place, **{field: full}, **also)
    if part:
        pieces[-1] += event(f"{around}.done", **place, part=part)
    pieces[-1] += event("response.output_item.done", output_index=at, item=item)
    return pieces


def _event(kind: str, **data: Any) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), as_json({"type": kind, **data}))
