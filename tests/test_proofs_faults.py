"""The proofs of crashes and faults, each at its small size; and P1 notices planted bugs."""

import asyncio
import os
import random
from pathlib import Path

import pytest

from proofs import p01_kill, p02_power, p15_exhaustion, p16_cold_open
from proofs.forker import MODES
from proofs.p01_kill import PATIENCE
from proofs.writer import CHECKPOINTING
from tests.proving import hold
from tests.seeds import SEED


def test_an_acknowledged_append_survives_the_death_of_the_process() -> None:
    hold(p01_kill.PROOF)


def test_the_small_proof_notices_an_acknowledgement_before_the_commit() -> None:
    tally = p01_kill.Tally()
    p01_kill.live_once(1, tally, random.Random(SEED), flaw="early")
    assert tally.lost


def test_the_proof_notices_that_others_can_commit_during_a_checkpoint(tmp_path: Path) -> None:
    tally = p01_kill.Tally()
    life = p01_kill.Life(tmp_path, tally, random.Random(SEED), flaw="unguarded")
    life.kill_writer("foreign", CHECKPOINTING)
    assert any("another program could commit" in broken for broken in tally.broken)


def test_the_proof_notices_a_fork_with_open_connections(tmp_path: Path) -> None:
    tally = p01_kill.Tally()
    life = p01_kill.Life(tmp_path, tally, random.Random(SEED), flaw="forked")
    while not tally.broken and tally.kills < 4:
        life.kill_family("os.fork", patience=PATIENCE)
        asyncio.run(life.check())
    assert tally.broken


def test_the_proof_forks_in_every_way() -> None:
    assert set(MODES) == {"os.fork", "multiprocessing", "gunicorn"} or not os.environ.get("CI")


def test_an_acknowledged_write_survives_loss_of_power() -> None:
    hold(p02_power.PROOF)


@pytest.mark.serial
def test_resources_run_out_politely() -> None:
    hold(p15_exhaustion.PROOF)


@pytest.mark.serial
def test_no_process_is_turned_away_from_a_cold_database() -> None:
    hold(p16_cold_open.PROOF)
