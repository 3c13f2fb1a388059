"""How OpenAI answers chat completions: whole, in a stream, and with an error."""

from collections.abc import Mapping
from typing import Any, Final

from keepthread.testing.script import Received, Say, arguments_in_pieces, in_pieces
from keepthread.testing.wires import Stream, as_json
from keepthread.types import ToolCall, Usage

_KINDS: Final = {429: "rate_limit_exceeded", 503: "service_unavailable_error"}
_CODES: Final = {401: "invalid_api_key", 404: "model_not_found", 429: "rate_limit_exceeded"}


def whole(say: Say, asked: Received, number: int) -> Mapping[str, Any]:
    """Return an answer in one piece."""
    message: dict[str, Any] = {
        "role": "assistant",
        "content": say.text or (None if say.tool_calls else ""),
        "refusal": None,
        "annotations": [],
    }
    if say.tool_calls:
        message["tool_calls"] = [_call(call) for call in say.tool_calls]
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": say.finish}
    head = _head("chat.completion", asked, number)
    return {**head, "choices": [choice], "usage": _usage(say.usage or Usage())}


def stream(say: Say, asked: Received, number: int) -> Stream:
    """Return an answer in chunks: the role, what is said, why it ends, and what it cost."""
    head = _head("chat.completion.chunk", asked, number)
    options: Mapping[str, Any] = asked.body.get("stream_options") or {}
    with_usage = options.get("include_usage") is True
    if with_usage:
        head["usage"] = None

    def chunk(delta: Mapping[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return _event({**head, "choices": [choice]})

    opening = chunk({"role": "assistant", "content": "", "refusal": None})
    pieces = [chunk({"content": piece}) for piece in in_pieces(say.text, say.pieces)]
    for index, call in enumerate(say.tool_calls):
        begun = {**_call(call), "function": {"name": call.name, "arguments": ""}}
        pieces.append(chunk({"tool_calls": [{"index": index, **begun}]}))
        for piece in arguments_in_pieces(call):
            part = {"index": index, "function": {"arguments": piece}}
            pieces.append(chunk({"tool_calls": [part]}))
    closing = chunk({}, say.finish)
    if with_usage:
        closing += _event({**head, "choices": [], "usage": _usage(say.usage or Usage())})
    return Stream(opening, pieces, closing + b"data: [DONE]\n\n")


def error(status: int, message: str) -> Mapping[str, Any]:
    """Return what an error looks like."""
    kind = _KINDS.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": None, "code": _CODES.get(status)}}


def error_event(status: int, message: str, _number: int = 0) -> bytes:
    """Return what an error in the middle of a stream looks like."""
    return _event(error(status, message))


def models(names: tuple[str, ...]) -> Mapping[str, Any]:
    """Return the list of models."""
    rows = [{"id": n, "object": "model", "created": 0, "owned_by": "keepthread"} for n in names]
    return {"object": "list", "data": rows}


def _head(kind: str, asked: Received, number: int) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{number}",
        "object": kind,
        "created": 1_800_000_000 + number,
        "model": asked.body["model"],
        "service_tier": "default",
        "system_fingerprint": None,
    }


def _call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def _usage(usage: Usage) -> Mapping[str, Any]:
    return {
        "prompt_tokens": usage.input,
        "completion_tokens": usage.output,
        "total_tokens": usage.input + usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.cached, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0, "audio_tokens": 0},
    }


def _event(data: Mapping[str, Any]) -> bytes:
    return b"data: %s\n\n" % as_json(data)
