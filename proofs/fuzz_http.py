"""Run the fuzzer of the HTTP server at any size, on a store of your choice."""

import argparse
import random
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path

from proofs.http_fuzz import HttpFuzz
from servers.postgres import new_server
from tests.http_world import listening, url_of


@contextmanager
def empty_store(kind: str) -> Iterator[str]:
    """Give the URL of an empty store."""
    if kind == "sqlite":
        with tempfile.TemporaryDirectory() as folder:
            yield url_of(Path(folder))
        return
    server = new_server()
    try:
        yield server.empty()
    finally:
        server.close()


def show(done: int, total: int) -> None:
    """Show how far it is."""
    sys.stderr.write(f"\r{done:,} of {total:,} requests")
    sys.stderr.flush()


def main() -> int:
    """Send the requests, and print what was seen."""
    parser = argparse.ArgumentParser(prog="scripts/fuzz_http", description=__doc__)
    parser.add_argument("--requests", type=int, default=10_000, metavar="N")
    parser.add_argument("--on", choices=["sqlite", "postgres"], default="sqlite")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    given = parser.parse_args()
    with empty_store(given.on) as url, listening(url) as served, redirect_stdout(sys.stderr):
        known = served.furnish("ann")
        fuzz = HttpFuzz(served.address, served.key(None), "ann", known)
        tally = fuzz.run(given.requests, given.seed, show)
    statuses = ", ".join(f"{n:,} × {status}" for status, n in sorted(tally.by_status.items()))
    print(f"\n{tally.requests:,} requests on {given.on}, seed {given.seed}: {statuses}")
    never = sorted(name for name, count in tally.succeeded.items() if not count)
    print(f"Operations that never succeeded: {', '.join(never) or 'none'}")
    for each in tally.broken[:20]:
        print(each)
    print(f"{len(tally.broken)} answers were wrong.")
    return 1 if tally.broken else 0


if __name__ == "__main__":
    sys.exit(main())
