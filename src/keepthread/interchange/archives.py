"""The archive that an export comes in: only its conversations are read, and nothing is unpacked."""

import os
import re
import zlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, BinaryIO, Final, NamedTuple, Protocol, TypeVar

from keepthread.errors import InvalidInput, WrongFormat
from keepthread.interchange.formats import ARCHIVE

if TYPE_CHECKING:
    from zipfile import ZipFile, ZipInfo

MAX_PART: Final = 8 << 30
"""Bytes of a part once it is read."""

_NAME: Final = r"(?:.*/)?conversations(?:-[0-9]{1,4})?\.json"  # large exports come in parts
_MOST_PACKED: Final = 200  # text is seldom packed to a tenth of its size
_SMALL: Final = 1 << 20

T = TypeVar("T")


class Readable(Protocol):
    """A file, as far as it is read from its beginning to its end."""

    def read(self, size: int, /) -> bytes:
        """Return so many bytes, fewer at the end of the file."""
        ...


class Part(NamedTuple):
    """A file of conversations, and its bytes if they are known."""

    file: Readable
    size: int


def parts_of(file: BinaryIO, size: int) -> Iterator[Part]:
    """Yield the file itself, or the files of conversations if it is an archive."""
    if not file.seekable():  # an archive is read from its end
        yield Part(file, size)
        return
    start = file.tell()
    head = file.read(len(ARCHIVE))
    file.seek(start)
    if head != ARCHIVE:
        yield Part(file, size)
        return
    yield from _members(file)


def _members(file: BinaryIO) -> Iterator[Part]:
    from zipfile import ZipFile  # noqa: PLC0415 - loaded where there is an archive

    archive = _read(lambda: ZipFile(file))
    found = [info for info in archive.infolist() if re.fullmatch(_NAME, info.filename)]
    if not found:
        raise WrongFormat("the archive holds no conversations.json")
    total = sum(info.file_size for info in found)
    # Parts that share their bytes would each look harmless.
    if _unpacks_too_far(total, file.seek(0, os.SEEK_END)):
        raise InvalidInput(f"the conversations in the archive would have {total} bytes")
    for info in sorted(found, key=lambda info: info.filename):
        yield Part(_Member(archive, _checked(info)), total)


class _Member:
    """A file in an archive."""

    def __init__(self, archive: "ZipFile", info: "ZipInfo") -> None:
        self._file = _read(lambda: archive.open(info))

    def read(self, size: int, /) -> bytes:
        return _read(lambda: self._file.read(size))


def _read(what: Callable[[], T]) -> T:
    """Return what an archive gives; what is broken or locked in it raises an error of ours."""
    from zipfile import BadZipFile  # noqa: PLC0415 - loaded where there is an archive

    try:
        return what()
    # An unknown packing, a password that is not known, and a file that is no archive after all.
    except (BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError, ValueError) as why:
        raise InvalidInput(f"the archive cannot be read: {why}") from None


def _checked(info: "ZipInfo") -> "ZipInfo":
    """Refuse what would never end."""
    if info.file_size > MAX_PART or _unpacks_too_far(info.file_size, info.compress_size):
        raise InvalidInput(f"{info.filename!r} in the archive would have {info.file_size} bytes")
    return info


def _unpacks_too_far(size: int, packed: int) -> bool:
    return size > _SMALL and size > _MOST_PACKED * packed
