"""Where to measure: folders in memory and on a disk, the processor, and the commit."""

import os
import platform
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_IN_MEMORY = Path("/dev/shm")  # where Linux has one
_ON_DISK = Path(".build/bench")
_MOUNTS = Path("/proc/self/mounts")
_ROOM = 4 << 30  # a million messages of 1,200 bytes, their indexes and a log
_LOG_BYTES = 4 << 20
_COMMIT_BYTES = 3 * 4120  # three pages of SQLite's log, as an append writes them


@contextmanager
def folders(disk: Path | None) -> Iterator[tuple[Path, Path]]:
    """Make an empty folder in memory and one on a disk, and remove both afterwards."""
    disk = disk or _ON_DISK
    disk.mkdir(parents=True, exist_ok=True)
    memory = _IN_MEMORY if _has_room(_IN_MEMORY) else disk
    with (
        tempfile.TemporaryDirectory(prefix="keepthread-bench-", dir=memory) as one,
        tempfile.TemporaryDirectory(prefix="keepthread-bench-", dir=disk) as other,
    ):
        yield Path(one), Path(other).absolute()


def _has_room(folder: Path) -> bool:
    if not os.access(folder, os.W_OK):
        return False
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize >= _ROOM


def file_system(folder: Path) -> str:
    """Name the kind of file system a folder is on."""
    try:
        mounts = [line.split() for line in _MOUNTS.read_text().splitlines()]
    except OSError:
        return "an unknown file system"
    place = folder.resolve()
    kinds = {Path(at): kind for _, at, kind, *_ in mounts}
    return next((kinds[each] for each in (place, *place.parents) if each in kinds), "unknown")


def processor() -> str:
    """Name the machine's processor."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def commit() -> str:
    """Name the commit that is checked out."""
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "unknown"


def sync_times(folder: Path, count: int) -> list[float]:
    """Return the seconds `fdatasync` takes where SQLite's log has wrapped: writing over itself."""
    sync = getattr(os, "fdatasync", os.fsync)
    path = folder / "sync"
    times: list[float] = []
    with path.open("wb", buffering=0) as file:
        file.write(bytes(_LOG_BYTES))
        sync(file.fileno())
        file.seek(0)
        for _ in range(count):
            if file.tell() > _LOG_BYTES - _COMMIT_BYTES:
                file.seek(0)
            file.write(os.urandom(_COMMIT_BYTES))
            start = time.perf_counter()
            sync(file.fileno())
            times.append(time.perf_counter() - start)
    path.unlink()
    return times


def sync_time(folder: Path) -> float:
    """Return the median time of `fdatasync`, in seconds."""
    return statistics.median(sync_times(folder, 64))
