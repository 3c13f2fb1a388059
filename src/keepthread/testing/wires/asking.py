"""Checks of a server before it parses a request: its key, its path, its form."""

import json
from collections.abc import Mapping
from typing import Final

from keepthread.testing.script import Received
from keepthread.testing.wires import (
    anthropic_answer,
    anthropic_request,
    is_object,
    openai_chat_answer,
    openai_chat_request,
)
from keepthread.types import Wire

PATHS: Final[Mapping[str, Wire]] = {
    "/v1/chat/completions": "openai-chat",
    "/v1/messages": "anthropic",
}
ANSWERS: Final = {"openai-chat": openai_chat_answer, "anthropic": anthropic_answer}
CHECKS: Final = {"openai-chat": openai_chat_request.check, "anthropic": anthropic_request.check}
VERSIONS: Final = ("2023-06-01", "2026-10-21")


class Refused(Exception):
    """A provider's answer to an invalid request."""

    def __init__(self, status: int, message: str) -> None:
        """Take the status, and the message."""
        super().__init__(message)
        self.status = status
        self.message = message


def wire_of(path: str, headers: Mapping[str, str]) -> Wire:
    """Return the provider whose API was called."""
    spoken = "anthropic" if "anthropic-version" in headers else "openai-chat"
    return PATHS.get(path, spoken)


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


def read(path: str, headers: Mapping[str, str], body: bytes) -> Received:
    """Return the parsed request; refuse an invalid one."""
    wire = wire_of(path, headers)
    if path not in PATHS:
        raise Refused(404, f"Invalid URL (POST {path})")
    if wire == "anthropic" and headers.get("anthropic-version") not in VERSIONS:
        raise Refused(400, "anthropic-version: header is required")
    if headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise Refused(400, "The content type must be application/json")
    try:
        asked = json.loads(body)
    except (ValueError, RecursionError):
        asked = None
    if not is_object(asked):
        raise Refused(400, "We could not parse the JSON body of your request: no JSON object")
    return Received(wire, path, headers, asked)


def check(asked: Received, models: tuple[str, ...]) -> None:
    """Refuse a request that the provider would refuse."""
    model = asked.body.get("model")
    if models and isinstance(model, str) and model not in models:
        # “The model `gpt-9` does not exist or you do not have access to it.”
        raise Refused(404, f"model: {model} does not exist or you do not have access to it.")
    if problems := CHECKS[asked.wire](dict(asked.body)):
        raise Refused(400, "; ".join(problems))
