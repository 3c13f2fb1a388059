"""The promise that forgotten means gone, in small, and that its proof is not blind."""

import random
from pathlib import Path

import pytest

from proofs.marked import MARKERS, Marker, in_files, new_markers
from proofs.p09_forget import PROOF
from servers import postgres, redis
from tests.conftest import started

SEED = 20_261_115


@pytest.fixture(autouse=True, scope="module")
def _programs() -> None:
    """Skip without the servers' programs, but never in CI."""
    started(postgres.find_programs)
    started(redis.find_program)


@pytest.mark.parametrize("where", PROOF.on)
def test_forgotten_means_gone(where: str) -> None:
    outcome = PROOF.on[where](PROOF.small, SEED, lambda done, of: None)
    print(dict(outcome.figures))
    assert outcome.held, f"P9 on {where} with seed {SEED}: {outcome.broken[:10]}"


def test_the_proof_sees_a_marker_as_bytes_and_as_a_stem(tmp_path: Path) -> None:
    markers = new_markers(random.Random(SEED))
    assert len({marker.text for marker in markers}) == MARKERS
    assert any(len(marker.text.encode()) < 16 for marker in markers)
    assert any("\u9000" < marker.text < "\ua000" for marker in markers)
    (tmp_path / "folder").mkdir()
    file = tmp_path / "folder" / "any"
    assert in_files([tmp_path], markers) == {}
    for marker in markers:
        file.write_bytes(b"\0\1" + marker.text.encode() + b"\2")
        assert in_files([tmp_path], markers) == {marker: ["folder/any"]}
    file.write_text(Marker("The zqwandering of 17").stems[0])
    assert in_files([tmp_path], [Marker("The zqwandering of 17")])
