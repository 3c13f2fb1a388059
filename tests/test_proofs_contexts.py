"""The promise that a provider never rejects a context, in small."""

from pathlib import Path

from proofs.p12_contexts import PROOF

SEED = 20_261_114


def test_a_provider_never_rejects_the_context(vocabularies: Path) -> None:
    outcome = PROOF.run(PROOF.small, SEED, lambda done, of: None)
    assert outcome.held, f"seed {SEED}: {outcome.broken[:10]}"
    assert outcome.figures["counters"] == "o200k and ~o200k"
