"""Which upstream and which API a path means, and the address it has there.

The address is a configured base URL and a path below it. A path that another program could
interpret differently (`..`, an encoded slash, an absolute URL) is refused.
"""

import re
from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import unquote_to_bytes, urlsplit

from keepthread.apps.proxy.errors import ProxyError
from keepthread.apps.proxy.settings import Provider, ProxySettings
from keepthread.apps.proxy.types import WireName

_VERSION: Final = "/v1"
_PATH: Final = re.compile(r"/(?:[A-Za-z0-9._~!$&'(),;=:@*+/-]|%[0-9A-Fa-f]{2})*")
_QUERY: Final = re.compile(r"[\x21\x23-\x7e]*")
_HIDDEN: Final = re.compile(rb"[\x00-\x20/\\\x7f]")
_WIRES: Final[Mapping[str, WireName]] = {
    "/chat/completions": "openai-chat",
    "/responses": "openai-responses",
    "/messages": "anthropic",
    "/messages/count_tokens": "anthropic",
}
"""The paths whose requests get memory, below the version."""
_COUNTS: Final = "/messages/count_tokens"
_ANTHROPIC_PATHS: Final = ("/messages", "/complete")
_OPENAI_PATHS: Final = ("/chat", "/responses", "/completions", "/embeddings", "/conversations")
_ANTHROPIC_HEADERS: Final = ("anthropic-version", "anthropic-beta", "x-api-key")


class Destination(NamedTuple):
    """Where a request goes."""

    provider: Provider
    url: str
    """The address without a query; its scheme, host and first part are the configured ones."""
    wire: WireName | None = None
    """The API whose request gets memory; None if the request is relayed as it is."""
    records: bool = True
    """Whether the request is part of a conversation; one that only counts tokens is not."""


def provider_of(path: str, headers: Mapping[str, str]) -> Provider:
    """Return the provider that a request is meant for, by its path, else by its headers."""
    rest = _rest(path)
    if _is_below(rest, _ANTHROPIC_PATHS):
        return "anthropic"
    if _is_below(rest, _OPENAI_PATHS):
        return "openai"
    return "anthropic" if any(name in headers for name in _ANTHROPIC_HEADERS) else "openai"


def destination(
    method: str, path: str, headers: Mapping[str, str], settings: ProxySettings
) -> Destination:
    """Return where a request goes; refuse a path that is not plainly below a base URL."""
    check_path(path)
    provider, rest = provider_of(path, headers), _rest(path)
    base = settings.base_of(provider)
    if provider == "openai":
        url = base + rest
    else:
        has_version = rest != path or _is_below(rest, _ANTHROPIC_PATHS)
        url = f"{base}{_VERSION}{rest}" if has_version else base + path
    wire = _WIRES.get(rest) if method == "POST" else None
    return Destination(provider, url, wire, records=rest != _COUNTS)


def check_path(path: str) -> None:
    """Refuse a path that other programs may interpret differently."""
    segments = [unquote_to_bytes(each) for each in path.split("/")[1:]]
    inner = segments[:-1]
    is_plain = (
        _PATH.fullmatch(path)
        and all(inner)
        and not any(each in (b".", b"..") or _HIDDEN.search(each) for each in segments)
    )
    if not is_plain:
        raise ProxyError(400, "invalid_path", "this path cannot be relayed; check the base URL.")


def check_query(query: str) -> None:
    """Refuse a query with characters that no URL has."""
    if not _QUERY.fullmatch(query):
        raise ProxyError(400, "invalid_query", "the query has characters that no URL has.")


def host_of(url: str) -> str:
    """Return the header `Host` for an address."""
    return urlsplit(url).netloc


def _rest(path: str) -> str:
    """Return a path without the version, which some clients add to a base URL that has it."""
    for _ in range(2):
        if path == _VERSION or path.startswith(f"{_VERSION}/"):
            path = path.removeprefix(_VERSION)
    return path


def _is_below(path: str, starts: tuple[str, ...]) -> bool:
    return any(path == each or path.startswith(f"{each}/") for each in starts)
