"""The promise that forgotten means gone, in small, and that its proof is not blind."""

import asyncio
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from keepthread.memory.blobs.chunks import Upload, UploadLost
from proofs import beside, blob_writers
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


async def commit_whatever(upload: Upload) -> None:
    """Say that all bytes are stored, also if another process removed some of them."""
    with suppress(UploadLost):
        await commit(upload)


commit = Upload.commit


def test_the_proof_notices_a_blob_whose_bytes_were_removed_while_it_was_stored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Upload, "commit", commit_whatever)
    tally = Tally()
    with GROUNDS["sqlite"]() as ground:
        for number in range(20):
            part = blob_writers.beside_forgets(ground, tally, random.Random(SEED + number), number)
            asyncio.run(part)
            if tally.broken:
                return
    raise AssertionError("the proof is blind")
