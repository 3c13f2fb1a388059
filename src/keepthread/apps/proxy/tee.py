"""Reads a copy of an answer while its bytes are relayed; a failure here never stops the relay."""

import logging
import zlib
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Protocol

from keepthread.apps.proxy.types import AnswerReader, ProviderAnswer

if TYPE_CHECKING:
    from collections.abc import Callable

LOG: Final = logging.getLogger("keepthread.proxy")
_GZIP: Final = 16 + zlib.MAX_WBITS


class _Decoder(Protocol):
    def decompress(self, data: bytes, /) -> bytes: ...


class AnswerTee:
    """Gives the bytes of a response to a reader, after content encodings are removed."""

    def __init__(self, reader: AnswerReader | None, encoding: str) -> None:
        """Take what reads the answer; None reads nothing."""
        self._reader = reader
        self._decode: Callable[[bytes], bytes] | None = None
        if reader is not None and encoding not in ("", "identity"):
            try:
                self._decode = _decoder(encoding).decompress
            except (ImportError, KeyError):
                self._stop(f"its encoding cannot be read here ({_name(encoding)})")

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the body as they were sent."""
        if self._reader is None:
            return
        try:
            self._reader.feed(self._decode(data) if self._decode else data)
        except Exception as error:  # noqa: BLE001 - the relay must not notice
            self._stop(type(error).__name__)

    def finish(self) -> ProviderAnswer | None:
        """Return the answer as far as it was read."""
        if self._reader is None:
            return None
        try:
            return self._reader.finish()
        except Exception as error:  # noqa: BLE001 - the relay must not notice
            self._stop(type(error).__name__)
            return None

    def _stop(self, reason: str) -> None:
        self._reader = None
        LOG.warning("an answer is not recorded: %s", reason)


def _decoder(encoding: str) -> _Decoder:
    """Return what removes an encoding; raise ImportError or KeyError if nothing can."""
    name = encoding.strip().lower()
    if name in ("gzip", "x-gzip"):
        return zlib.decompressobj(_GZIP)
    if name == "deflate":
        return zlib.decompressobj()
    if name == "zstd":
        zstandard: Any = import_module("zstandard")
        return zstandard.ZstdDecompressor().decompressobj()
    if name == "br":
        return _Brotli(import_module("brotli").Decompressor())
    raise KeyError(name)


class _Brotli:
    def __init__(self, decompressor: Any) -> None:
        self._decompressor = decompressor

    def decompress(self, data: bytes, /) -> bytes:
        return self._decompressor.process(data)


def _name(encoding: str) -> str:
    return encoding[:20] if encoding.isascii() and encoding.isprintable() else "?"
