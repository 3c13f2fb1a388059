"""The promises on real servers, each at a small size."""

import pytest

from proofs import (
    Proof,
    p01_kill,
    p04_order,
    p05_once,
    p07_alike,
    p11_damage,
    p13_hostile,
    p15_exhaustion,
)
from servers import postgres, redis
from tests.conftest import started
from tests.proving import hold

SIZES = [
    (p01_kill.PROOF, "postgres", 4),
    (p01_kill.PROOF, "redis", 4),
    (p04_order.PROOF, "postgres", 100),
    (p04_order.PROOF, "redis", 100),
    (p05_once.PROOF, "postgres", 100),
    (p05_once.PROOF, "redis", 100),
    (p11_damage.PROOF, "postgres", 20),
    (p11_damage.PROOF, "redis", 20),
    (p13_hostile.PROOF, "postgres", 80),
    (p13_hostile.PROOF, "redis", 80),
    (p13_hostile.PROOF, "cluster", 80),
    (p15_exhaustion.PROOF, "postgres", 1),
    (p15_exhaustion.PROOF, "redis", 1),
]


@pytest.fixture(autouse=True, scope="module")
def _programs() -> None:
    """Skip without the servers' programs, but never in CI."""
    started(postgres.find_programs)
    started(redis.find_program)


@pytest.mark.parametrize(
    ("proof", "where", "size"),
    [
        pytest.param(
            *each,
            id=f"{each[0].name} on {each[1]}",
            marks=[pytest.mark.serial] if each[0] is p15_exhaustion.PROOF else [],
        )
        for each in SIZES
    ],
)
def test_the_promise_holds_on_a_server(proof: Proof, where: str, size: int) -> None:
    hold(proof, proof.on[where], size)


def test_all_backends_behave_alike() -> None:
    proof = p07_alike.PROOF
    hold(proof)
