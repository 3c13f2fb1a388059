"""The seed of this run of the tests: new each time, printed, and set to replay a failure."""

import os
import secrets

SEED = int(os.environ.setdefault("KEEPTHREAD_SEED", str(secrets.randbits(32))))
"""What proofs and randomized tests draw from. `KEEPTHREAD_SEED=N scripts/test …` repeats a run.

It stands in the environment, so that the processes that tests run in share it.
"""
