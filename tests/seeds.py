"""The seed of this run of the tests, new each time and printed, and how many examples it tries."""

import os
import secrets

SEED = int(os.environ.setdefault("KEEPTHREAD_SEED", str(secrets.randbits(32))))
"""What proofs and randomized tests draw from. `KEEPTHREAD_SEED=N scripts/test …` repeats a run.

It stands in the environment, so that the processes that tests run in share it.
"""

MORE = int(os.environ.get("KEEPTHREAD_MORE_EXAMPLES") or 1)


def examples(count: int) -> int:
    """Return how many examples Hypothesis tries: so many for a change, and more at night."""
    return count * MORE
