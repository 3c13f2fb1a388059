"""The proofs of crashes and faults, each at its small size."""

from proofs import Proof, p01_kill, p02_power, p15_exhaustion, p16_cold_open

SEED = 20_250_101


def hold(proof: Proof) -> None:
    """Run a proof at its small size and require that the promise held."""
    outcome = proof.run(proof.small, SEED, lambda done, of: None)
    assert outcome.held, f"{proof.name} with seed {SEED}: {outcome.broken[:10]}"


def test_an_acknowledged_append_survives_the_death_of_the_process() -> None:
    hold(p01_kill.PROOF)


def test_an_acknowledged_write_survives_loss_of_power() -> None:
    hold(p02_power.PROOF)


def test_resources_run_out_politely() -> None:
    hold(p15_exhaustion.PROOF)


def test_no_process_is_turned_away_from_a_cold_database() -> None:
    hold(p16_cold_open.PROOF)
