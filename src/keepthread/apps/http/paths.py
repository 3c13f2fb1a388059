"""Ids in paths: any id of the library can be sent, also one with a slash.

Servers decode a path before it is matched, so `a%2Fb` would be two segments. Here a slash and a
percent sign inside a segment stay encoded until the segment is taken as a parameter.
"""

import re
from typing import Final
from urllib.parse import quote, unquote_to_bytes

from starlette.convertors import Convertor, register_url_convertor
from starlette.types import ASGIApp, Receive, Scope, Send

_KEPT: Final = re.compile(rb"(%2[Ff]|%25)")


class EncodedSlashes:
    """An ASGI layer that decodes paths, except for slashes and percent signs in a segment."""

    def __init__(self, app: ASGIApp) -> None:
        """Take the application that matches paths."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand the request on, with its path decoded."""
        raw = scope.get("raw_path") if scope["type"] == "http" else None
        if not raw:
            await self._app(scope, receive, send)
            return
        inner = {**scope, "path": decoded(raw.partition(b"?")[0])}
        try:
            await self._app(inner, receive, send)
        finally:
            if "route" in inner:  # outer layers log and count it
                scope["route"] = inner["route"]


def decoded(raw: bytes) -> str:
    """Return a path with everything decoded but `%2F` and `%25`."""
    parts = _KEPT.split(raw)
    whole = b"".join(p.upper() if i % 2 else unquote_to_bytes(p) for i, p in enumerate(parts))
    return whole.decode("utf-8", "replace")


def segment(name: str) -> str:
    """Return an id as one segment of a path."""
    return quote(name, safe="")


class _Id(Convertor[str]):
    """A segment that is an id."""

    regex = "[^/]+"

    def convert(self, value: str) -> str:
        return value.replace("%2F", "/").replace("%25", "%")

    def to_string(self, value: str) -> str:
        return segment(value)


register_url_convertor("id", _Id())
