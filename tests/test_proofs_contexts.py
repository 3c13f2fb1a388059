"""The promise that a provider never rejects a context, in small."""

import asyncio
from pathlib import Path

from proofs import p12_contexts
from proofs.p12_contexts import PROOF

SEED = 20_261_114


def test_a_provider_never_rejects_the_context(vocabularies: Path) -> None:
    outcome = PROOF.run(PROOF.small, SEED, lambda done, of: None)
    assert outcome.held, f"seed {SEED}: {outcome.broken[:10]}"
    assert outcome.figures["counters"] == "o200k and ~o200k"


def test_a_dropped_block_with_results_out_of_order_is_accounted_for(vocabularies: Path) -> None:
    """Replay the batch of 500,000 contexts in which one was not."""
    tally = asyncio.run(p12_contexts._batch(20261115, 627, p12_contexts.PER_BATCH, None))
    assert not tally.broken, tally.broken
