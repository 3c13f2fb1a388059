"""Files that are their owner's alone, and appear once they are whole."""

import os
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def private(path: Path) -> Generator[Callable[[bytes], object]]:
    """Give what writes to a file; it is there, on the disk, when the block has ended well."""
    part = path.with_name(f"{path.name}.part")
    try:
        part.touch(0o600)
        with part.open("wb") as file:
            part.chmod(0o600)  # also one that a broken run left
            yield file.write
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        with suppress(FileNotFoundError):
            part.unlink()
