"""The server that is measured: `python -m bench.http.ours URL PORT WORKERS`, as `keepthread serve`.

It counts tokens by dividing, as the library beside it does, and does not limit rates.
"""

import sys
from contextlib import AbstractAsyncContextManager
from functools import partial

from bench.furnished import Quarters
from keepthread import Memory
from keepthread.apps.http.serve import Bind, run
from keepthread.apps.http.settings import HttpSettings
from keepthread.apps.http.worker import Work

SETTINGS = HttpSettings(rate=0, concurrency=1024, max_requests=1024, streams=256)


def open_memory(url: str) -> AbstractAsyncContextManager[Memory]:
    """Open the memory of a worker."""
    return Memory.open(url, counter=Quarters())


def main(url: str, port: str, workers: str) -> int:
    """Serve until a signal."""
    work = Work(open_memory=partial(open_memory, url), settings=SETTINGS)
    return run(work, Bind(port=int(port), workers=int(workers)), lambda _: None)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
