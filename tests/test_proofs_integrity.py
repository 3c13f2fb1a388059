"""Each promise of order, of storing once, of noticing damage and of hostile input, in small."""

import pytest

from proofs import Proof, p04_order, p05_once, p11_damage, p13_hostile
from tests.proving import hold

PROOFS = [module.PROOF for module in (p04_order, p05_once, p11_damage, p13_hostile)]


@pytest.mark.parametrize("proof", PROOFS, ids=lambda proof: proof.name)
def test_the_promise_holds(proof: Proof) -> None:
    hold(proof)
