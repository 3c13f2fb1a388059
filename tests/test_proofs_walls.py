"""The proofs of failovers and of walls, each at its small size, on every server it is for."""

import pytest

from proofs import Proof, p03_failover, p08_walls
from servers.postgres import find_programs
from servers.redis import find_program
from tests.conftest import started
from tests.proving import hold

PROOFS = [
    pytest.param(proof, where, id=f"{proof.name} on {where}")
    for proof in (p03_failover.PROOF, p08_walls.PROOF)
    for where in proof.on
]


@pytest.mark.parametrize(("proof", "where"), PROOFS)
def test_the_promise_holds(proof: Proof, where: str) -> None:
    started(find_program if where == "redis" else find_programs)
    hold(proof, proof.on[where])
