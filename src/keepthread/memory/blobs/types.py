"""The description of a blob, and the sizes that decide how it is stored."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, cast

from keepthread.context.full_text import BLOB_URI, is_digest
from keepthread.errors import InvalidInput, NotFound, TooLarge
from keepthread.stores.validation import MAX_BYTES, show
from keepthread.types import JSON, Record

CHUNK: Final = 1 << 19
"""Bytes of a chunk; encoded, it fits into a record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blob:
    """Bytes that are stored beside the log; equal bytes of an owner are stored once."""

    digest: str
    """The SHA-256 of the bytes, as 64 hexadecimal digits."""
    size: int
    """How many bytes there are."""
    media_type: str
    name: str
    created_at: float
    """When it was first stored, in seconds since 1970."""

    @property
    def uri(self) -> str:
        """Return the `uri` for an attachment of a message."""
        return f"{BLOB_URI}{self.digest}"


class BlobSizes(NamedTuple):
    """Sizes in bytes; only tests use others than these."""

    chunk: int = CHUNK
    text: int = MAX_BYTES
    """The longest text that a message holds itself."""
    blob: int | None = None
    """The largest blob; None is the store's limit."""


class Described(NamedTuple):
    """The stored description of a blob, and where its chunks are."""

    blob: Blob
    upload: str
    """The name of its chunks; bytes that are stored again later have another."""
    chunks: int
    """Number of chunks."""
    kept: bool
    """Whether the program put it; else it goes with the last message that refers to it."""
    version: int = 0
    """The version of its record; 0 if it is not stored."""
    pending: bool = False
    """Whether it counts only if the record of its upload says that all bytes are stored."""

    @classmethod
    def of(cls, record: Record) -> "Described":
        """Return the description in a record."""
        value = cast(Mapping[str, Any], record.value)
        blob = Blob(
            digest=record.key,
            size=value["size"],
            media_type=value["media_type"],
            name=value["name"],
            created_at=value["at"],
        )
        pending = value.get("pending", False)
        return cls(blob, value["upload"], value["chunks"], value["kept"], record.version, pending)

    def to_json(self) -> JSON:
        """Return the value of its record."""
        value: dict[str, JSON] = {
            "size": self.blob.size,
            "media_type": self.blob.media_type,
            "name": self.blob.name,
            "at": self.blob.created_at,
            "upload": self.upload,
            "chunks": self.chunks,
            "kept": self.kept,
        }
        return {**value, "pending": True} if self.pending else value


def check_digest(value: object) -> str:
    """Return a digest, or raise `InvalidInput`."""
    if is_digest(value):
        return cast(str, value)
    raise InvalidInput(f"a digest is 64 hexadecimal digits (`blob.digest`), not {show(value)}")


def missing_blob(digest: str) -> NotFound:
    """Return the error for a blob that the owner does not have."""
    return NotFound(f"blob {digest} does not exist; store its bytes first")


def too_large(size: int, limit: int, *, at_least: bool = False) -> TooLarge:
    """Return the error for data beyond the limit."""
    more = "at least " if at_least else ""
    return TooLarge(f"the data has {more}{size:,} bytes; the store's limit is {limit:,}")
