"""`keep_log.py LOG COMMAND…`: run a command, and write what it prints to the screen and to a file.

`tee` would wait until every process that the command left behind has ended too. This ends with the
command, and names those processes.
"""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO

_PATIENCE = 5.0
"""Seconds in which what was printed last arrives."""


def copy(source: IO[bytes], log: IO[bytes]) -> None:
    """Write what is printed to both places, at once."""
    while data := os.read(source.fileno(), 1 << 16):
        for place in (sys.stdout.buffer, log):
            place.write(data)
            place.flush()


def holders(source: IO[bytes]) -> Iterator[str]:
    """Yield the command lines of the other processes that can still write, where /proc tells."""
    pipe = Path(f"/proc/self/fd/{source.fileno()}").readlink()
    for process in Path("/proc").glob("[0-9]*"):
        if int(process.name) == os.getpid():
            continue
        try:
            if any(fd.readlink() == pipe for fd in (process / "fd").iterdir()):
                words = (process / "cmdline").read_bytes().split(b"\0")
                yield f"{process.name}: {b' '.join(words).decode(errors='replace')}"
        except OSError:  # it has ended, or is another user's
            continue


def main(log: Path, command: list[str]) -> int:
    """Run it; return its status."""
    signal.signal(signal.SIGINT, lambda *_: None)  # it reaches the command as well, which ends
    with (
        log.open("wb") as file,
        subprocess.Popen(  # noqa: S603 - it is what was asked for
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        ) as process,
    ):
        assert process.stdout
        copying = threading.Thread(target=copy, args=(process.stdout, file), daemon=True)
        copying.start()
        status = process.wait()
        copying.join(_PATIENCE)
        if not copying.is_alive():
            return status if status >= 0 else 128 - status
        print("These processes were left behind:", file=sys.stderr)
        for line in holders(process.stdout) if Path("/proc/self/fd").exists() else ():
            print(f"  {line}", file=sys.stderr)
        sys.stderr.flush()
        os._exit(status if status >= 0 else 128 - status)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
