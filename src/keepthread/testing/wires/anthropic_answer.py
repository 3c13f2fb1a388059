"""How Anthropic answers messages: whole, in a stream, and with an error."""

from collections.abc import Mapping
from typing import Any, Final

from keepthread.testing.script import Received, Say, arguments_in_pieces, in_pieces, input_of
from keepthread.testing.wires import Stream, as_json
from keepthread.types import Usage

_FINISH: Final = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "content_filter": "refusal",
}
_ERRORS: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}
_SIGNATURE: Final = "EqQBCgIYAhIM"


def whole(say: Say, asked: Received, number: int) -> Mapping[str, Any]:
    """Return an answer in one piece."""
    content: list[Mapping[str, Any]] = []
    if say.thinking:
        content.append({"type": "thinking", "thinking": say.thinking, "signature": _SIGNATURE})
    if say.text:
        content.append({"type": "text", "text": say.text})
    for call in say.tool_calls:
        block = {"type": "tool_use", "id": call.id, "name": call.name, "input": input_of(call)}
        content.append(block)
    usage = say.usage or Usage()
    return _message(asked, number, content, _finish(say), {**_input(usage), **_output(usage)})


def stream(say: Say, asked: Received, number: int) -> Stream:
    """Return an answer in events: the message begins, its blocks come one by one, it ends."""
    usage = say.usage or Usage()
    begun = _message(asked, number, [], None, {**_input(usage), "output_tokens": 1})
    opening = _event("message_start", message=begun)
    pieces: list[bytes] = []
    for index, (block, deltas) in enumerate(_blocks(say)):
        start = _event("content_block_start", index=index, content_block=block)
        if index == 0:
            start += _event("ping")
        for delta in deltas:
            pieces.append(start + _event("content_block_delta", index=index, delta=delta))
            start = b""
        pieces[-1] += _event("content_block_stop", index=index)
    delta = {"stop_reason": _finish(say), "stop_sequence": None}
    closing = _event("message_delta", delta=delta, usage={**_input(usage), **_output(usage)})
    return Stream(opening, pieces, closing + _event("message_stop"))


def error(status: int, message: str) -> Mapping[str, Any]:
    """Return what an error looks like."""
    kind = _ERRORS.get(status, "api_error" if status >= 500 else "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": message}}


def error_event(status: int, message: str, _number: int = 0) -> bytes:
    """Return what an error in the middle of a stream looks like."""
    return _event("error", error=error(status, message)["error"])


def models(names: tuple[str, ...]) -> Mapping[str, Any]:
    """Return the list of models."""
    since = "2027-01-15T00:00:00Z"
    always = {"type": "model", "created_at": since, "lifecycle": "active"}
    rows = [{**always, "id": name, "display_name": name} for name in names]
    return {"data": rows, "has_more": False, "first_id": names[0], "last_id": names[-1]}


def _blocks(say: Say) -> list[tuple[Mapping[str, Any], list[Mapping[str, Any]]]]:
    """Return each block as it begins, and what is added to it."""
    blocks: list[tuple[Mapping[str, Any], list[Mapping[str, Any]]]] = []
    if say.thinking:
        thoughts: list[Mapping[str, Any]] = [
            {"type": "thinking_delta", "thinking": piece}
            for piece in in_pieces(say.thinking, say.pieces)
        ]
        thoughts.append({"type": "signature_delta", "signature": _SIGNATURE})
        blocks.append(({"type": "thinking", "thinking": "", "signature": ""}, thoughts))
    if say.text:
        words = in_pieces(say.text, say.pieces)
        texts: list[Mapping[str, Any]] = [{"type": "text_delta", "text": word} for word in words]
        blocks.append(({"type": "text", "text": ""}, texts))
    for call in say.tool_calls:
        begun: Mapping[str, Any] = {
            "type": "tool_use",
            "id": call.id,
            "name": call.name,
            "input": {},
        }
        parts = ["", *arguments_in_pieces(call)]
        blocks.append((begun, [{"type": "input_json_delta", "partial_json": p} for p in parts]))
    return blocks


def _message(
    asked: Received,
    number: int,
    content: list[Mapping[str, Any]],
    finish: str | None,
    usage: Mapping[str, Any],
) -> Mapping[str, Any]:
    return {
        "id": f"msg_{number:024}",
        "type": "message",
        "role": "assistant",
        "model": asked.body["model"],
        "content": content,
        "stop_reason": finish,
        "stop_sequence": None,
        "usage": usage,
    }


def _finish(say: Say) -> str:
    return _FINISH.get(say.finish or "", say.finish or "end_turn")


def _input(usage: Usage) -> Mapping[str, int]:
    return {
        "input_tokens": usage.input - usage.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached,
    }


def _output(usage: Usage) -> Mapping[str, int]:
    return {"output_tokens": usage.output}


def _event(kind: str, **data: Any) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), as_json({"type": kind, **data}))
