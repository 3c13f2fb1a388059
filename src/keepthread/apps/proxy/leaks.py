"""Credentials of keepthread never go to a provider: a request that has one elsewhere is refused.

A program with two settings for a key is easily given the wrong one: as the provider's key, as a
second part of its base URL, in the query. The provider would then hold access to a memory.
"""

import base64
import binascii
import re
from collections.abc import Iterable, Iterator
from typing import Final
from urllib.parse import unquote

from keepthread.apps.http.keys import holds_key
from keepthread.apps.proxy.errors import ProxyError

_KEY_HEADER: Final = b"keepthread-key"
"""The header that a key belongs in; it stays here."""
_ENCODED: Final = re.compile(r"[A-Za-z0-9+/_=-]{70,}")
"""A word that may hold a key in base64, as the scheme `Basic` of `Authorization` does."""
_MOST_UNQUOTED: Final = 3


def check_for_keys(
    request_line: Iterable[str], headers: Iterable[tuple[bytes, bytes]], secret: str
) -> None:
    """Refuse a request that would carry a credential of keepthread to a provider.

    `secret` is the credential that the request came with. A header that repeats exactly that one is
    left out when the request is relayed, so it is not refused.
    """
    hidden = secret.encode()
    texts = [*request_line]
    for name, value in headers:
        if name != _KEY_HEADER:
            texts.append(name.decode("latin-1"))
            texts.append((value.replace(hidden, b"") if hidden else value).decode("latin-1"))
    line = "\n".join(request_line)
    if (secret and secret in line) or any(holds_key(each) for t in texts for each in _forms(t)):
        raise ProxyError(
            400,
            "key_in_request",
            "this request has a keepthread key in a place that is sent to the provider, so it was"
            " not sent. Use the key only after /k/ in the base URL or in the header Keepthread-Key,"
            " and the provider's own key as the API key.",
        )


def _forms(text: str) -> Iterator[str]:
    """Yield a text as it is, without percent-encoding, and its words without base64."""
    for _ in range(_MOST_UNQUOTED):
        yield text
        for word in _ENCODED.findall(text):
            padded = word.rstrip("=").translate(_STANDARD)
            try:
                decoded = base64.b64decode(padded + "=" * (-len(padded) % 4))
            except (binascii.Error, ValueError):
                continue
            yield decoded.decode("latin-1")
        if (plain := unquote(text)) == text:
            return
        text = plain
    yield text


_STANDARD: Final = str.maketrans("-_", "+/")
