"""Messages whose text is too long for the log: their first part, and where all of it is stored."""

from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from typing import Any, Final, NamedTuple, cast

from keepthread.types import Attachment, Message

FULL_TEXT: Final = "full_text"
"""The key in a message's meta that names the blob with all of its text."""
BLOB_URI: Final = "blob:"
"""How the `uri` of an attachment begins whose bytes are a blob; the digest follows."""
_DIGITS: Final = 64


class FullText(NamedTuple):
    """The blob that holds all of a message's text, and its size in bytes."""

    digest: str
    size: int


def is_digest(value: object) -> bool:
    """Return whether a value is a SHA-256 as 64 lower-case hexadecimal digits."""
    return type(value) is str and len(value) == _DIGITS and not value.strip("0123456789abcdef")


def full_text_of(message: Message) -> FullText | None:
    """Return where all of a message's text is; None if the message holds it itself."""
    given = cast(Mapping[str, Any], message.meta).get(FULL_TEXT)
    if not isinstance(given, Mapping):
        return None
    named = cast(Mapping[str, Any], given)
    digest, size = named.get("blob"), named.get("bytes")
    if not is_digest(digest) or type(size) is not int:
        return None
    return FullText(cast(str, digest), size)


def has_text(message: Message, text: str) -> bool:
    """Return whether this is the whole text of a message, wherever that is stored."""
    whole = full_text_of(message)
    if whole is None:
        return text == message.content
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest() == whole.digest


def blobs_of(message: Message) -> list[str]:
    """Return the digests of the blobs that a message refers to, each once."""
    uris = [a.uri for a in message.attachments if isinstance(a, Attachment)]  # pyright: ignore[reportUnnecessaryIsInstance] - it may not be checked yet
    found = [uri.removeprefix(BLOB_URI) for uri in uris if _is_blob(uri)]
    if whole := full_text_of(message):
        found.append(whole.digest)
    return list(dict.fromkeys(found))


def _is_blob(uri: object) -> bool:
    return type(uri) is str and uri.startswith(BLOB_URI) and is_digest(uri[len(BLOB_URI) :])


def with_full_text(message: Message, data: bytes) -> Message:
    """Return a message that names the blob of its text, which is `data`; its text stays."""
    whole = FullText(sha256(data).hexdigest(), len(data))
    return replace(
        message, meta={**message.meta, FULL_TEXT: {"blob": whole.digest, "bytes": whole.size}}
    )


def first_part(message: Message, data: bytes, room: int) -> Message:
    """Return a message with the first part of its text, and a note that says so."""
    note = f"\n[… the first part of {len(data):,} bytes; `session.full_text` returns all …]"
    end = max(0, room - len(note.encode()))
    while is_inside(data, end):
        end -= 1
    return replace(message, content=data[:end].decode("utf-8", "surrogatepass") + note)


def head_and_tail(message: Message, data: bytes, room: int, *, kept: bool = True) -> Message:
    """Return a message with the head and the tail of its text; `kept` if all of it is a blob."""
    rest = "left out; `session.full_text` returns all" if kept else "not kept"
    mark = f"\n[… of {len(data):,} bytes, the middle was {rest} …]\n"
    half = max(0, room - len(mark.encode())) // 2
    end, start = half, len(data) - half
    while is_inside(data, end):
        end -= 1
    while is_inside(data, start):
        start += 1
    head, tail = data[:end], data[start:]
    text = head.decode("utf-8", "surrogatepass") + mark + tail.decode("utf-8", "surrogatepass")
    return replace(message, content=text)


def is_inside(data: bytes, place: int) -> bool:
    """Return whether the byte at a place continues a character that began before it."""
    return place < len(data) and data[place] & 0xC0 == 0x80
