"""Files that only their owner can read, and that appear under their name once they are complete.

Everything that keepthread writes besides a database goes through here: exports, transcripts,
backups and settings. The folder may belong to somebody else, for example a cloned repository, so
the name of the unfinished file can't be guessed, and an existing file or link is never followed.
"""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    # It is slow to import, and every program that opens a store imports this module.
    from pathlib import Path

# Windows has no O_NOFOLLOW; there, O_EXCL refuses links as well.
_NEW: Final = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
BINARY: Final[int] = getattr(os, "O_BINARY", 0)
"""Lets Windows read and write bytes as they are; elsewhere there is nothing to ask for."""
_PRIVATE: Final = 0o600
_LONGEST_NAME: Final = 40  # characters of the final name, so that every file system takes the rest


@contextmanager
def private_file(path: Path, mode: int = _PRIVATE) -> Generator[Callable[[bytes], object]]:
    """Yield a function that writes to a new file; it replaces `path` when the block ends."""
    with _unfinished(path, mode) as (part, descriptor):
        with os.fdopen(descriptor, "wb") as file:
            yield file.write
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)


@contextmanager
def private_copy(path: Path) -> Generator[Path]:
    """Yield the path of a new, empty file for another program to fill.

    When the block ends, the file is renamed to `path`; a file that exists there raises
    `FileExistsError` and stays as it is.
    """
    with _unfinished(path) as (part, descriptor):
        os.close(descriptor)
        yield part
        _rename_to_new(part, path)


@contextmanager
def _unfinished(path: Path, mode: int = _PRIVATE) -> Generator[tuple[Path, int]]:
    """Create a file beside `path`, and remove it if it still exists at the end."""
    part = path.with_name(f"{path.name[:_LONGEST_NAME]}.{os.urandom(8).hex()}.part")
    try:
        descriptor = os.open(part, _NEW | BINARY, mode)
    except OSError as error:  # report the folder: users do not know the temporary file
        raise type(error)(error.errno, error.strerror, str(path.parent)) from None
    try:
        yield part, descriptor
    finally:
        with suppress(FileNotFoundError):
            part.unlink()


def _rename_to_new(part: Path, path: Path) -> None:
    try:
        os.link(part, path)  # unlike a rename, a link never replaces a file created in the meantime
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        if os.path.lexists(path):
            raise FileExistsError(f"{path} exists") from None
        part.rename(path)
