"""Proofs in the tests: at their small size, once, or again with other seeds for some time."""

import os
import time

from proofs import Outcome, Proof, Run
from tests.seeds import SEED

SECONDS = float(os.environ.get("KEEPTHREAD_PROOF_SECONDS") or 0)
"""How long a quick proof goes on with other seeds; `scripts/nightly` lets it."""


def hold(proof: Proof, run: Run | None = None, size: int | None = None) -> Outcome:
    """Try a proof and require that the promise held each time; return what was seen first."""
    first: Outcome | None = None
    seed, end = SEED, time.monotonic() + SECONDS
    while first is None or time.monotonic() < end:
        outcome = (run or proof.run)(size or proof.small, seed, lambda done, of: None)
        print(f"{proof.name} with seed {seed}: {dict(outcome.figures)}")
        assert outcome.held, f"{proof.name} with seed {seed}: {outcome.broken[:10]}"
        first, seed = first or outcome, seed + 1
    return first
