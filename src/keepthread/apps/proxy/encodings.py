"""Content encodings: bodies that clients and providers compress."""

import zlib
from collections.abc import Callable
from functools import partial
from typing import Any, Final, cast

try:
    import zstandard as _zstandard
except ImportError:  # it comes with the extra `server`
    _zstandard = None

_zstd: Final = cast("Any", _zstandard)  # its own types are not complete
_MOST: Final = 64 * 2**20
"""Bytes of a body; a small body may unpack to a large one."""
_GZIP: Final = 16 + zlib.MAX_WBITS


def decoded(body: bytes, content_encoding: str, *, limit: int = _MOST) -> bytes | None:
    """Return a body without its content encodings.

    None if one of them is not known here, or the body is damaged or too large.
    """
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
        found = decoder.decompress(body, limit)
    except zlib.error:
        return None
    return found if decoder.eof and not decoder.unused_data else None


def _unpacked(body: bytes, limit: int) -> bytes | None:
    if _zstd is None:
        return None
    decoder = _zstd.ZstdDecompressor(max_window_size=_MOST)
    try:
        found = decoder.stream_reader(body, read_across_frames=True).read(limit + 1)
    except _zstd.ZstdError:
        return None
    return found if len(found) <= limit else None


_DECODERS: Final[dict[str, Callable[[bytes, int], bytes | None]]] = {
    "gzip": partial(_inflated, _GZIP),
    "x-gzip": partial(_inflated, _GZIP),
    "deflate": partial(_inflated, zlib.MAX_WBITS),
    "zstd": _unpacked,
}
