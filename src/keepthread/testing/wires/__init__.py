"""Checks of requests as providers make them: one module per API, whose `check` names the faults.

The rules come from the providers' references and from the errors their servers are known to answer
with; each problem is worded as the server words it, as far as that is known. Where servers differ,
the strictest counts.
"""

import base64
import binascii
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeGuard
from urllib.parse import urlsplit

NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
PLAIN_ID: Final = re.compile(r"[a-zA-Z0-9_-]+")
IMAGES: Final = ("image/png", "image/jpeg", "image/gif", "image/webp")
MOST_DEPTH: Final = 100
"""Parsers in front of the models give up on deeper JSON ("recursion limit exceeded" at 128)."""


class Refused(Exception):
    """A provider's answer to an invalid request."""

    def __init__(
        self, status: int, message: str, fields: Mapping[str, str | None] | None = None
    ) -> None:
        """Take the status, the message, and fields of the error that differ from the usual."""
        super().__init__(message)
        self.status = status
        self.message = message
        self.fields = fields or {}


class Stream(NamedTuple):
    """An answer as an API sends it."""

    opening: bytes
    """Events before the text."""
    pieces: Sequence[bytes]
    closing: bytes
    """Events that mark the complete end."""


def as_json(value: Any) -> bytes:
    """Return JSON as servers send it: in UTF-8, with lone surrogates as escapes."""
    try:
        return json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return json.dumps(value).encode()


def is_list(value: Any) -> TypeGuard[list[Any]]:
    """Return whether a value is a JSON array."""
    return isinstance(value, list)


def is_object(value: Any) -> TypeGuard[dict[str, Any]]:
    """Return whether a value is a JSON object."""
    return isinstance(value, dict)


def unsendable(request: Any) -> list[str]:
    """Return why a request cannot be a JSON body at all."""
    try:
        # Lone surrogates: "The request body is not valid JSON: no low surrogate in string".
        json.dumps(request, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        return [f"The request body is not valid JSON: {error}"]
    return []


def too_deep(value: Any, left: int = MOST_DEPTH) -> bool:
    """Return whether JSON is nested deeper than servers parse."""
    if not is_list(value) and not is_object(value):
        return False
    inner = value.values() if is_object(value) else value
    return left == 0 or any(too_deep(item, left - 1) for item in inner)


def is_base64(text: Any) -> bool:
    """Return whether a text is base64 of something."""
    try:
        return bool(text) and bool(base64.b64decode(text, validate=True))
    except (TypeError, ValueError, binascii.Error):
        return False


def is_web_address(text: Any) -> bool:
    """Return whether a text is an https address with a host."""
    if not isinstance(text, str):
        return False
    try:
        parts = urlsplit(text)
        return parts.scheme == "https" and bool(parts.hostname)
    except ValueError:
        return False
