"""Checks of a server before it parses a request: its key, its path, its form."""

import gzip
import json
import zlib
from collections.abc import Mapping
from typing import Any, Final, cast

from keepthread.testing.script import Received
from keepthread.testing.wires import (
    Refused,
    anthropic_answer,
    anthropic_request,
    is_object,
    openai_chat_answer,
    openai_chat_request,
    openai_responses_answer,
    openai_responses_request,
)
from keepthread.testing.wires.openai_responses_kept import PATH
from keepthread.types import Wire

try:
    import zstandard as _zstandard
except ImportError:  # only for clients that compress their requests, as Codex does
    _zstandard = None

_zstd: Final = cast("Any", _zstandard)  # its own types are not complete

PATHS: Final[Mapping[str, Wire]] = {
    "/v1/chat/completions": "openai-chat",
    PATH: "openai-responses",
    "/v1/messages": "anthropic",
}
ANSWERS: Final = {
    "openai-chat": openai_chat_answer,
    "openai-responses": openai_responses_answer,
    "anthropic": anthropic_answer,
}
CHECKS: Final = {"openai-chat": openai_chat_request.check, "anthropic": anthropic_request.check}
VERSIONS: Final = ("2023-06-01", "2026-10-21")


def wire_of(path: str, headers: Mapping[str, str]) -> Wire:
    """Return the provider whose API was called."""
    if is_kept(path):
        return "openai-responses"
    spoken = "anthropic" if "anthropic-version" in headers else "openai-chat"
    return PATHS.get(path, spoken)


def is_kept(path: str) -> bool:
    """Return whether a path names a response that the server keeps."""
    return path.startswith(f"{PATH}/")


def check_key(wire: Wire, headers: Mapping[str, str], key: str | None) -> None:
    """Refuse a request without the right key."""
    if key is None:
        return
    given = headers.get("authorization", "").removeprefix("Bearer ")
    if wire == "anthropic":  # newer clients send it as a bearer's, too
        given = headers.get("x-api-key", given)
    if given == key:
        return
    # As the servers put it; the key itself is never repeated.
    if wire == "anthropic":
        raise Refused(401, "invalid x-api-key" if given else "x-api-key header is required")
    raise Refused(401, f"{'Incorrect API key' if given else 'No API key'} provided.")


def check_list(path: str, models: tuple[str, ...]) -> tuple[str, ...]:
    """Return the list of models, if it was requested."""
    if path != "/v1/models":
        raise Refused(404 if path not in PATHS else 405, f"Invalid URL (GET {path})")
    return models or ("scripted",)


def read(path: str, headers: Mapping[str, str], raw: bytes) -> Received:
    """Return the parsed request; refuse an invalid one."""
    wire = wire_of(path, headers)
    if path not in PATHS:
        raise Refused(404, f"Invalid URL (POST {path})")
    if wire == "anthropic" and headers.get("anthropic-version") not in VERSIONS:
        raise Refused(400, "anthropic-version: header is required")
    if headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise Refused(400, "The content type must be application/json")
    try:
        asked = json.loads(_plain(raw, headers.get("content-encoding", "")))
    except (ValueError, RecursionError):
        asked = None
    if not is_object(asked):
        raise Refused(400, "We could not parse the JSON body of your request: no JSON object")
    return Received(wire, path, headers, asked, raw)


def _plain(raw: bytes, encoding: str) -> bytes:
    """Return a body without its content encoding; of one that is not known, nothing is read."""
    try:
        if encoding == "zstd" and _zstd is not None:
            return _zstd.ZstdDecompressor().stream_reader(raw).read()
        return gzip.decompress(raw) if encoding == "gzip" else raw
    except (OSError, EOFError, zlib.error, getattr(_zstd, "ZstdError", OSError)):
        return b""


def check(asked: Received, models: tuple[str, ...]) -> None:
    """Refuse a request that the provider would refuse."""
    model = asked.body.get("model")
    if models and isinstance(model, str) and model not in models:
        # “The model `gpt-9` does not exist or you do not have access to it.”
        raise Refused(404, f"model: {model} does not exist or you do not have access to it.")
    if asked.wire == "openai-responses":
        problems = openai_responses_request.check(dict(asked.body), asked.earlier)
    else:
        problems = CHECKS[asked.wire](dict(asked.body))
    if problems:
        raise Refused(400, "; ".join(problems))
