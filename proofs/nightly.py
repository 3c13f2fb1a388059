"""`python -m proofs.nightly [NAMES] [--long] [--size N]`: try every proof, on every backend.

Each runs in a process of its own, at the size that closes work on it, with a new seed that it
prints. The end is a list of what held and what broke.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial

from proofs import Proof, Run
from proofs.__main__ import all_proofs


def places(proof: Proof) -> Iterator[str]:
    """Give where a proof runs: each backend by name, and "" where the default is none of them."""
    if not any(_same(proof.run, run) for run in proof.on.values()):
        yield ""
    yield from proof.on


def _same(one: Run, other: Run) -> bool:
    if isinstance(one, partial) and isinstance(other, partial):
        return (one.func, one.args, one.keywords) == (other.func, other.args, other.keywords)
    return one == other


def main() -> int:
    """Run them one after another; fail if one broke."""
    parser = argparse.ArgumentParser(prog="python -m proofs.nightly", description=__doc__)
    parser.add_argument("names", nargs="*", help="P1, P2, …; none runs all")
    parser.add_argument("--long", action="store_true", help="run at length")
    parser.add_argument("--size", type=int, help="run at any size")
    options = parser.parse_args()
    known = all_proofs()
    chosen = [name.upper() for name in options.names] or sorted(known, key=lambda n: int(n[1:]))
    if unknown := sorted(set(chosen) - set(known)):
        parser.error(f"there is no proof {', '.join(unknown)}; there are {', '.join(known)}")
    more = ["--long"] if options.long else ["--size", str(options.size)] if options.size else []
    ran: list[tuple[str, int, float]] = []
    for name in chosen:
        for where in places(known[name]):
            on = ["--on", where] if where else []
            start = time.monotonic()
            command = [sys.executable, "-m", "proofs", name, *on, *more]
            code = subprocess.run(command, check=False).returncode
            ran.append((" on ".join(filter(None, [name, where])), code, time.monotonic() - start))
            print(flush=True)
    for what, code, seconds in ran:
        print(f"{what:16} {'held' if code == 0 else 'BROKEN':6} {seconds:8.0f} s")
    broken = sum(code != 0 for _, code, _ in ran)
    print(f"{len(ran) - broken} of {len(ran)} held")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
