"""P14 at a small size, on each backend that can be away."""

import pytest

from proofs import p14_outages
from tests.conftest import started
from tests.seeds import SEED


@pytest.mark.parametrize("backend", sorted(p14_outages.PROOF.on))
def test_an_outage_is_visible_and_costs_no_message(backend: str) -> None:
    proof = p14_outages.PROOF
    outcome = started(lambda: proof.on[backend](proof.small, SEED, lambda done, of: None))
    print(dict(outcome.figures))
    assert outcome.held, f"{proof.name} with seed {SEED}: {outcome.broken[:10]}"
