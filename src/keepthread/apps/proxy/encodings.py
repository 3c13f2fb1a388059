"""Content encodings: bodies that clients and providers compress."""

import zlib
from collections.abc import Callable
from functools import partial
from typing import Any, Final, cast

from keepthread.apps.proxy.errors import ProxyError

try:
    import zstandard as _zstandard
except ImportError:  # it comes with the extra `server`
    _zstandard = None

_zstd: Final = cast("Any", _zstandard)  # its own types are not complete
_MOST: Final = 64 * 2**20
"""Bytes of a body without its encodings."""
_FREE: Final = 8 * 2**20
_MOST_TIMES: Final = 100
"""How many times larger than what was sent a body of more than `_FREE` bytes may be.

Conversations that repeat the same files shrink to a fiftieth, a body made to fill the memory to a
thousandth.
"""
_GZIP: Final = 16 + zlib.MAX_WBITS


def decoded(body: bytes, content_encoding: str, *, limit: int = _MOST) -> bytes | None:
    """Return a body without its content encodings.

    None if one of them is not known here, or the body is damaged. Decoding stops at `limit` bytes,
    or earlier if little was sent; a larger body raises `ProxyError`.
    """
    limit = min(limit, max(_FREE, _MOST_TIMES * len(body)))
    for name in reversed([name.strip().lower() for name in content_encoding.split(",")]):
        if name in ("", "identity"):
            continue
        decode = _DECODERS.get(name)
        found = decode(body, limit) if decode else None
        if found is None:
            return None
        body = found
    return body


def _inflated(bits: int, body: bytes, limit: int) -> bytes | None:
    decoder = zlib.decompressobj(bits)
    try:
        found = decoder.decompress(body, limit + 1)
    except zlib.error:
        return None
    _check_size(found, limit)
    return found if decoder.eof and not decoder.unused_data else None


def _unpacked(body: bytes, limit: int) -> bytes | None:
    if _zstd is None:
        return None
    decoder = _zstd.ZstdDecompressor(max_window_size=_MOST)
    try:
        found = decoder.stream_reader(body, read_across_frames=True).read(limit + 1)
    except _zstd.ZstdError:
        return None
    _check_size(found, limit)
    return found


def _check_size(found: bytes, limit: int) -> None:
    if len(found) > limit:
        raise ProxyError(
            413,
            "too_large",
            f"without its compression the body is larger than {limit} bytes; send less of the"
            " history, or send it uncompressed.",
        )


_DECODERS: Final[dict[str, Callable[[bytes, int], bytes | None]]] = {
    "gzip": partial(_inflated, _GZIP),
    "x-gzip": partial(_inflated, _GZIP),
    "deflate": partial(_inflated, zlib.MAX_WBITS),
    "zstd": _unpacked,
}
