"""The proof that damage is noticed is not blind: it notices bugs that are planted here."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from keepthread.errors import Damaged
from keepthread.stores.codec import decode
from keepthread.stores.sqlite import log, sessions, verify
from keepthread.stores.sqlite import records as shelf
from keepthread.types import Message, Verification
from proofs.blob_damage import damage_blobs
from proofs.busy import verify_beside_writers
from proofs.p11_damage import COLUMNS, Finding, flip_here
from proofs.places import file_url
from tests.seeds import SEED

# Each column has its turn twice: it is changed by SQL, then in the file.
MESSAGES = range(10)
SESSIONS = range(2 * len(COLUMNS["messages"]), 2 * len(COLUMNS["messages"]) + 6)
RECORDS = range(SESSIONS.start + 2 * len(COLUMNS["sessions"]), SESSIONS.start + 28)


def unchecked(sid: int, row: tuple[Any, ...]) -> Message:
    """Decode a row as if nothing had been damaged."""
    message = decode(sid, row)
    return replace(message, state="live") if message.state == "damaged" else message


def strict(sid: int, row: tuple[Any, ...]) -> Message:
    """Decode a row; one that is damaged costs the whole reading."""
    message = decode(sid, row)
    if message.state == "damaged":
        raise Damaged("a message is damaged")
    return message


async def wrong(folder: Path, part: str, numbers: range) -> list[Finding]:
    found = await flip_here(folder, part, numbers, SEED)
    assert len(found) == len(numbers)
    return [finding for finding in found if finding.wrong]


@pytest.mark.parametrize("numbers", [MESSAGES, SESSIONS, RECORDS], ids=str)
async def test_without_a_bug_nothing_is_missed(tmp_path: Path, numbers: range) -> None:
    assert await wrong(tmp_path, "values", numbers) == []


@pytest.mark.parametrize(
    ("module", "name", "bug", "numbers"),
    [
        (verify, "decode", unchecked, MESSAGES),
        (log, "decode", unchecked, MESSAGES),
        (log, "decode", strict, MESSAGES),
        (sessions, "intact", lambda row: True, SESSIONS),
        (shelf, "intact", lambda row: True, RECORDS),
    ],
    ids=[
        "verify checks no message",
        "a read checks no message",
        "one message costs the reading",
        "sessions are not checked",
        "records are not checked",
    ],
)
async def test_the_proof_notices_damage_that_is_missed_or_spreads(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    module: Any,
    name: str,
    bug: Any,
    numbers: range,
) -> None:
    monkeypatch.setattr(module, name, bug)
    assert await wrong(tmp_path, "values", numbers)


async def test_the_proof_notices_a_file_that_is_not_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unread(self: verify.SQLiteInspection) -> Verification:
        return Verification(sessions=0, messages=0, records=0, damages=())

    monkeypatch.setattr(verify.SQLiteInspection, "run", unread)
    monkeypatch.setattr(log, "decode", unchecked)
    assert await wrong(tmp_path, "anywhere", range(40))


# --- beside writers ---


@pytest.fixture
def many_moments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `verify` read messages later than sessions, when a writer has added both."""

    def run(self: verify.SQLiteInspection) -> Verification:
        self._sessions()
        added = "SELECT 1 FROM messages WHERE sid > ?"
        deadline = time.monotonic() + 4
        while not self.db.execute(added, (max(self.logs, default=0),)).fetchone():
            if time.monotonic() > deadline:  # the writers have ended
                break
            time.sleep(0.001)
        self._messages()
        return Verification(sessions=0, messages=1, records=0, damages=tuple(self.damages))

    monkeypatch.setattr(verify.SQLiteInspection, "run", run)


@pytest.mark.usefixtures("many_moments")
async def test_the_proof_notices_a_verification_of_many_moments(tmp_path: Path) -> None:
    url = file_url(tmp_path / "busy.db")
    figures, broken = await verify_beside_writers(url, 3, SEED, lambda done, of: None)
    assert figures["beside writers: false damage"]
    assert any("beside writers" in what for what in broken)


async def sound(*_: object) -> bool:
    """Say that a blob is sound without reading it."""
    return True


async def test_the_proof_notices_damage_that_is_not_repaired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, broken = await damage_blobs(file_url(tmp_path / "sound.db"), 6, SEED)
    assert broken == []
    monkeypatch.setattr("keepthread.memory.blobs.chunks.Chunks.are_sound", sound)
    _, broken = await damage_blobs(file_url(tmp_path / "planted.db"), 6, SEED)
    assert any("did not repair it" in what for what in broken)
