"""The promise that forgotten means gone, in small, and that its proof is not blind."""

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from proofs import beside
from proofs.grounds import GROUNDS
from proofs.marked import MARKERS, Marker, in_files, new_markers
from proofs.p09_forget import PROOF, Tally, everything
from servers import postgres, redis
from tests.conftest import started
from tests.proving import hold
from tests.seeds import SEED


@pytest.fixture(autouse=True, scope="module")
def _programs() -> None:
    """Skip without the servers' programs, but never in CI."""
    started(postgres.find_programs)
    started(redis.find_program)


@pytest.mark.parametrize("where", PROOF.on)
def test_forgotten_means_gone(where: str) -> None:
    hold(PROOF, PROOF.on[where])


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


async def nothing(*_: object, **__: object) -> None:
    """Do nothing."""


@pytest.mark.parametrize(
    ("part", "planted", "bug"),
    [
        (everything, "keepthread.memory.forgetting.execute.Erasure._blank", nothing),
        (
            beside.asides,
            "keepthread.apps.cli.chat.offline_files.OfflineFile.requests",
            lambda _: (),
        ),
        (beside.process, "keepthread.memory.forgetting.forget.clear_text_caches", lambda: None),
    ],
    ids=["titles stay", "a running chat is not asked", "caches stay"],
)
def test_the_proof_notices_what_is_left_beside_the_log(
    part: Any, planted: str, bug: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planted, bug)
    tally = Tally()
    with GROUNDS["sqlite"]() as ground:
        asyncio.run(part(ground, tally, random.Random(SEED)))
    assert tally.broken
