"""The promise that chats lose nothing and always start, in small, and that its proof can see."""

import sqlite3
from pathlib import Path

import pytest

from proofs.chat_ledger import Ledger, Row, rows_of
from proofs.p32_soak import PROOF
from tests.proving import hold

MARK = "m0123456789"
USER, ASSISTANT, TOOL = 1, 2, 3
MAIN, DELEGATE = 0, 2


@pytest.mark.timeout(300)
def test_chats_lose_nothing_and_always_start() -> None:
    outcome = hold(PROOF)
    assert outcome.figures["chats that showed their first prompt"] == outcome.figures["chats"]


def stored(session: str = "s") -> list[Row]:
    """Return all that a plan leaves behind."""
    return [
        Row(session, MAIN, USER, f"plan {MARK}", calls=False),
        Row(session, MAIN, ASSISTANT, "", calls=True),
        Row(session, MAIN, TOOL, f"The step {MARK} is done.", calls=False),
        Row(session, MAIN, ASSISTANT, f"Answer {MARK} END", calls=False),
        Row("child", DELEGATE, USER, f"Look for {MARK}", calls=False),
        Row("child", DELEGATE, TOOL, f"look found {MARK} xxx", calls=False),
    ]


def ledger() -> Ledger:
    """Return what was acknowledged of that plan."""
    made = Ledger(answered={MARK}, planned={MARK})
    made.mind.asked.add(MARK)
    made.mind.results.add(MARK)
    return made


@pytest.mark.parametrize(
    ("missing", "what"), [(0, "question"), (2, "step"), (3, "answer"), (5, "result")]
)
def test_the_proof_sees_what_is_lost(missing: int, what: str) -> None:
    rows = stored()
    assert ledger().lost(rows) == ledger().wrong(rows) == []
    del rows[missing]
    assert ledger().lost(rows) == [f"{what} {MARK}"]
    assert ledger().wrong(rows) == [f"{what} {MARK} is lost"]


@pytest.mark.parametrize("twice", [0, 2, 3, 5])
def test_the_proof_sees_what_is_stored_twice(twice: int) -> None:
    rows = stored()
    rows.append(rows[twice]._replace(session="another"))
    assert len(ledger().wrong(rows)) == 1
    assert "2 times" in ledger().wrong(rows)[0]


def test_the_proof_reads_files_without_changing_them(tmp_path: Path) -> None:
    path = tmp_path / "file.db"
    path.write_bytes(b"not a database" * 100)
    assert rows_of(path) == []
    path.unlink()
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE sessions (sid, id, kind)")
        db.execute("CREATE TABLE messages (sid, seq, role, content, extra)")
        db.execute("INSERT INTO sessions VALUES (1, 's', 0)")
        db.execute("INSERT INTO messages VALUES (1, 1, 1, ?, NULL)", (b"hello",))
        db.execute("INSERT INTO messages VALUES (1, 2, 1, NULL, NULL)")
    before = path.read_bytes()
    assert rows_of(path) == [Row("s", MAIN, USER, "hello", calls=False)]
    assert path.read_bytes() == before
