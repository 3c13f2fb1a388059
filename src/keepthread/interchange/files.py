"""Read the file of an export, which may be an archive; nothing is unpacked to disk."""

import json
import os
import re
import zlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NamedTuple, Protocol, TypeVar

from keepthread.errors import InvalidInput, WrongFormat

if TYPE_CHECKING:
    from zipfile import ZipFile, ZipInfo

JSONL: Final = "jsonl"
MARKDOWN: Final = "markdown"
CHATGPT: Final = "chatgpt"
CLAUDE: Final = "claude"
HAROMBE: Final = "harombe"
CLAUDE_CODE: Final = "claude-code"
CODEX: Final = "codex"
AGENTS: Final = (CLAUDE_CODE, CODEX)
FORMATS: Final = (JSONL, MARKDOWN, CHATGPT, CLAUDE, HAROMBE, *AGENTS)
CHATS: Final = "chats"
"""A file of ChatGPT or Claude: the conversations in it say which."""

ARCHIVE: Final = b"PK\x03\x04"
"""The first bytes of an archive."""
DATABASE: Final = b"SQLite format 3\0"
"""The first bytes of a SQLite file, such as harombe's."""
TRANSCRIPT: Final = "<!-- keepthread transcript"
"""The first characters of a transcript."""


def format_of(head: bytes) -> str:
    """Return the format of a file by its first bytes; by default, an export of keepthread."""
    if head.startswith(DATABASE):
        return HAROMBE
    head = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if head.startswith(TRANSCRIPT.encode()):
        return MARKDOWN
    if head.startswith((ARCHIVE, b"[")):
        return CHATS
    ours = not head.startswith(b"{") or re.match(rb'\{\s*"format"', head)
    return JSONL if ours else agent_of(head) or CHATS


def agent_of(head: bytes) -> str | None:
    """Return the coding agent that wrote a session file, by its first bytes; None if none did."""
    if re.match(rb'\{[^{}]{0,200}"type"\s*:\s*"session_meta"', head):
        return CODEX
    lines = re.search(rb'"sessionId"\s*:\s*"', head) and re.search(rb'"type"\s*:\s*"', head)
    export = re.search(rb'"(?:mapping|chat_messages)"\s*:', head)
    return CLAUDE_CODE if head.startswith(b"{") and lines and not export else None


MAX_PART: Final = 8 << 30
"""Bytes of a file in an archive at most, unpacked."""

_NAME: Final = r"(?:.*/)?conversations(?:-[0-9]{1,4})?\.json"  # large exports come in parts
_MOST_PACKED: Final = 200  # text seldom shrinks to less than a tenth of its size
_SMALL: Final = 1 << 20

T = TypeVar("T")


class Readable(Protocol):
    """A file that is read from beginning to end."""

    def read(self, size: int, /) -> bytes:
        """Return up to `size` bytes; fewer only at the end of the file."""
        ...


class ChatFile(NamedTuple):
    """A file of conversations, and its size in bytes if known."""

    file: Readable
    size: int


def parts_of(file: BinaryIO, size: int) -> Iterator[ChatFile]:
    """Yield the file itself, or the files of conversations if it is an archive."""
    if not file.seekable():  # an archive is read from its end
        yield ChatFile(file, size)
        return
    start = file.tell()
    head = file.read(len(ARCHIVE))
    file.seek(start)
    if head != ARCHIVE:
        yield ChatFile(file, size)
        return
    yield from _members(file)


def _members(file: BinaryIO) -> Iterator[ChatFile]:
    from zipfile import ZipFile  # noqa: PLC0415 - loaded where there is an archive

    archive = _read(lambda: ZipFile(file))
    found = [info for info in archive.infolist() if re.fullmatch(_NAME, info.filename)]
    if not found:
        raise WrongFormat("the archive contains no conversations.json")
    total = sum(info.file_size for info in found)
    # Files that overlap in the archive would each look harmless, so their sum is checked.
    if _unpacks_too_far(total, file.seek(0, os.SEEK_END)):
        raise InvalidInput(f"the conversations in the archive would have {total} bytes")
    for info in sorted(found, key=lambda info: info.filename):
        yield ChatFile(_Member(archive, _checked(info)), total)


class _Member:
    """A file in an archive."""

    def __init__(self, archive: "ZipFile", info: "ZipInfo") -> None:
        self._file = _read(lambda: archive.open(info))

    def read(self, size: int, /) -> bytes:
        return _read(lambda: self._file.read(size))


def _read(what: Callable[[], T]) -> T:
    """Read from an archive; raise an error of ours if it is damaged or encrypted."""
    from zipfile import BadZipFile  # noqa: PLC0415 - loaded where there is an archive

    try:
        return what()
    # An unknown compression, a missing password, or a file that is not an archive.
    except (BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError, ValueError) as why:
        raise InvalidInput(f"the archive cannot be read: {why}") from None


def _checked(info: "ZipInfo") -> "ZipInfo":
    """Refuse a file that would be too large when unpacked."""
    if info.file_size > MAX_PART or _unpacks_too_far(info.file_size, info.compress_size):
        raise InvalidInput(f"{info.filename!r} in the archive would have {info.file_size} bytes")
    return info


def _unpacks_too_far(size: int, packed: int) -> bool:
    return size > _SMALL and size > _MOST_PACKED * packed


MAX_ITEM: Final = 64 << 20
"""Bytes of an item at most; longer ones are skipped."""
MAX_DEPTH: Final = 200
"""Depth of an item at most; chat programs nest less than 20 levels."""

_CHUNK: Final = 1 << 18
_BOM: Final = b"\xef\xbb\xbf"
# Compiled at first use: other commands start faster without it.
_BLANK: Final = rb"[ \t\r\n]*+"
# Everything except brackets, whole strings included; between items a comma ends it as well.
# Groups are repeated a limited number of times, which limits what may be taken back; possessive
# groups would do so without a limit, but Python before 3.11.5 matches those wrongly.
_WHOLE: Final = rb'"[^"\\]*+(?:\\.[^"\\]*+){0,1000}"'
_INSIDE: Final = rb'(?s)(?:[^\[\]{}"]++|' + _WHOLE + rb"){0,1000}"
_BETWEEN: Final = rb'(?s)(?:[^\[\]{}",]++|' + _WHOLE + rb"){0,1000}"
_STRING: Final = rb'(?s)(?:[^"\\]++|\\.){0,1000}'


class Item(NamedTuple):
    """An item of the array, or the reason why it cannot be read."""

    number: int
    """Its position in the array, from 1."""
    end: int
    """The bytes of the file up to its end."""
    size: int = 0
    value: Any = None
    fault: str = ""


def items_of(file: Readable, *, limit: int = MAX_ITEM) -> Iterator[Item]:
    """Yield the items of a JSON array; a single object is read as an array of one."""
    reader = _ItemReader(file, limit)
    sign = reader.sign()
    if sign not in (b"[", b"{"):
        raise WrongFormat("the file is not a JSON array: it does not begin with [")
    if sign == b"{":
        yield reader.item(1)
        return
    reader.at += 1
    number = 0
    while (sign := reader.sign()) != b"]":
        if sign == b",":
            reader.at += 1
            continue
        number += 1
        yield (item := reader.item(number))
        if reader.ended:
            return
        if not item.value and reader.sign() == b"}":  # a bracket that closes nothing
            reader.at += 1


class _ItemReader:
    """A file, and the part of it that was read and is still needed."""

    def __init__(self, file: Readable, limit: int) -> None:
        self.file = file
        self.limit = limit
        self.data = b""
        self.at = 0
        self.before = 0  # bytes of the file before `data`
        self.ended = False

    def sign(self) -> bytes:
        """Return the next byte that is not white space; empty at the end of the file."""
        while True:
            if not self.before and self.data.startswith(_BOM):
                self.at = max(self.at, len(_BOM))
            self.at = _end(_BLANK, self.data, self.at)
            if self.at < len(self.data):
                return self.data[self.at : self.at + 1]
            if not self._more(self.at):
                return b""

    def item(self, number: int) -> Item:
        """Return the item that begins here."""
        scan, start, at = _Scan(), self.at, self.at
        too_large = False
        while not scan.done:
            at = scan.go_on(self.data, at)
            if not scan.done:
                too_large = too_large or len(self.data) - start > self.limit
                dropped = at if too_large else start
                if not self._more(dropped):
                    self.ended = True
                    fault = "the file is truncated: it ends in the middle of an item"
                    return Item(number, self.before + len(self.data), fault=fault)
                start, at = max(0, start - dropped), at - dropped
        self.at = at
        end = self.before + at
        if too_large or at - start > self.limit:
            return Item(number, end, fault=f"it has more than {self.limit} bytes")
        if scan.deepest > MAX_DEPTH:
            return Item(number, end, fault=f"it is nested more than {MAX_DEPTH} deep")
        try:
            value = json.loads(self.data[start:at].decode(), parse_constant=_nothing)
        except ValueError as error:
            return Item(number, end, fault=f"it is not valid JSON: {error}")
        return Item(number, end, at - start, value)

    def _more(self, dropped: int) -> bool:
        """Drop bytes that were used and read more; twice as much each time one item needs more."""
        self.data = self.data[dropped:]
        self.before += dropped
        self.at -= dropped
        chunk = self.file.read(max(_CHUNK, len(self.data)))
        self.data += chunk
        return bool(chunk)


class _Scan:
    """Finds the end of an item, across pieces of the file."""

    def __init__(self) -> None:
        self.depth = 0
        self.deepest = 0
        self.quoted = False
        self.done = False

    def go_on(self, data: bytes, at: int) -> int:
        """Return how far the data was scanned; the item ends there if `done`."""
        while True:
            if self.quoted:
                at = _end(_STRING, data, at)
                if data[at : at + 1] != b'"':  # the string or an escape continues in the next piece
                    return at
                self.quoted = False
                at += 1
            at = _end(_INSIDE if self.depth else _BETWEEN, data, at)
            sign = data[at : at + 1]
            if not sign:
                return at
            if sign == b'"':
                self.quoted = True
            elif sign in (b"{", b"["):
                self.depth += 1
                self.deepest = max(self.deepest, self.depth)
            elif not self.depth:  # a comma, or the closing bracket of the array
                self.done = True
                return at
            else:
                self.depth -= 1
                self.done = not self.depth
            at += 1
            if self.done:
                return at


def _end(pattern: bytes, data: bytes, at: int) -> int:
    """Return where a pattern ends that is matched again and again."""
    compiled = re.compile(pattern)
    while (found := compiled.match(data, at)) and found.end() > at:
        at = found.end()
    return at


def _nothing(_: str) -> None:
    """Read NaN and the like, which JSON does not have, as null."""
