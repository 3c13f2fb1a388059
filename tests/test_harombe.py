"""Sessions of harombe's `memory.db`: all that its schema holds arrives, and nothing is believed."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from keepthread import RamStore
from keepthread.errors import InvalidInput, WrongFormat
from keepthread.interchange.conversations import Arrived
from keepthread.interchange.files import format_of
from keepthread.interchange.harombe import check_harombe, import_harombe
from keepthread.protocols import Store
from tests.test_cli import ask, keepthread

SCHEMA = """
CREATE TABLE sessions (
    id TEXT PRIMARY KEY,              -- UUID
    created_at TIMESTAMP NOT NULL,    -- Session creation time
    updated_at TIMESTAMP NOT NULL,    -- Last activity
    metadata TEXT,                    -- JSON: user, tags, etc.
    system_prompt TEXT                -- System prompt used
);
CREATE TABLE messages (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    session_id TEXT NOT NULL,         -- FK to sessions
    role TEXT NOT NULL,               -- user, assistant, system, tool
    content TEXT,                     -- Message content
    tool_calls TEXT,                  -- JSON: tool calls if any
    tool_call_id TEXT,                -- For tool responses
    name TEXT,                        -- Tool name for tool messages
    created_at TIMESTAMP NOT NULL,    -- Message timestamp
    FOREIGN KEY (session_id) REFERENCES sessions(id) ON DELETE CASCADE
);
CREATE INDEX idx_messages_session ON messages(session_id);
CREATE INDEX idx_messages_created ON messages(created_at);
CREATE INDEX idx_sessions_updated ON sessions(updated_at);
"""
ID = "5f1c3a5e-8f0e-4a0e-9d43-0a1b2c3d4e5f"
META = {"user": "ana", "tags": ["work", 7, "trip"], "title": "Weather", "custom": {"mood": "calm"}}
CALL = [{"id": "call_1", "name": "weather", "arguments": {"city": "Jakarta"}}]
Row = tuple[Any, ...]
SESSION: Row = (ID, "2026-02-03T10:00:00", "2026-02-03T10:05:00.5", json.dumps(META), "Be brief.")
MESSAGES: list[Row] = [
    (ID, "user", "Weather in Jakarta?", None, None, None, "2026-02-03T10:00:01"),
    (ID, "assistant", None, json.dumps(CALL), None, None, "2026-02-03T10:00:02"),
    (ID, "tool", "32 °C, sunny", None, "call_1", "weather", "2026-02-03T10:00:03"),
    (ID, "assistant", "Sunny.", None, None, None, "2026-02-03 10:00:04+00:00"),
]


def written(path: Path, sessions: list[Row], messages: list[Row], *more: str) -> Path:
    """Write a file as harombe does."""
    with closing(sqlite3.connect(path)) as db, db:
        if not db.execute("SELECT 1 FROM sqlite_schema").fetchone():
            db.executescript(SCHEMA)
        db.executemany("INSERT INTO sessions VALUES (?, ?, ?, ?, ?)", sessions)
        columns = "session_id, role, content, tool_calls, tool_call_id, name, created_at"
        marks = ", ".join("?" * 7)
        db.executemany(f"INSERT INTO messages ({columns}) VALUES ({marks})", messages)
        for statement in more:
            db.execute(statement)
    return path


async def taken(store: Store, path: Path, **options: Any) -> Arrived:
    return await import_harombe(store, path, **options)


async def test_a_session_arrives_with_all_that_the_schema_holds(tmp_path: Path) -> None:
    store, counts = RamStore(), list[tuple[int, int]]()
    path = written(tmp_path / "memory.db", [SESSION], MESSAGES)
    before = path.read_bytes()
    done = await taken(store, path, owner="ana", progress=lambda n, of: counts.append((n, of)))
    assert (done.sessions, done.messages, done.problems) == (1, 4, [])
    assert counts == [(4, 4)]
    session = await store.get_session(f"harombe:{ID}", "ana")
    assert session is not None
    assert (session.owner, session.title, session.tags) == ("ana", "Weather", ("work", "trip"))
    assert session.system_prompt == "Be brief."
    assert session.meta == {**META, "imported_from": "harombe"}
    assert (session.created_at, session.updated_at) == (1_770_112_800, 1_770_113_100.5)
    question, call, result, answer = await store.read(session.key)
    assert (question.role, question.content, question.created_at) == (
        "user",
        "Weather in Jakarta?",
        1_770_112_801,
    )
    (called,) = call.tool_calls
    assert (called.id, called.name, json.loads(called.arguments)) == (
        "call_1",
        "weather",
        {"city": "Jakarta"},
    )
    assert (result.tool_call_id, result.name, result.content) == (
        "call_1",
        "weather",
        "32 °C, sunny",
    )
    assert (answer.content, answer.created_at, answer.turn) == ("Sunny.", 1_770_112_804, 1)
    assert {m.origin for m in (question, call, result, answer)} == {"import"}
    assert path.read_bytes() == before


async def test_the_same_file_again_adds_what_is_new(tmp_path: Path) -> None:
    store = RamStore()
    path = written(tmp_path / "memory.db", [SESSION], MESSAGES[:2])
    await taken(store, path)
    assert (await taken(store, path)).known == 1
    written(path, [], MESSAGES[2:])
    assert (await taken(store, path)).grown == 1
    session = await store.get_session(f"harombe:{ID}")
    assert session is not None
    assert [m.role for m in await store.read(session.key)] == [
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    assert (await taken(store, path, prefix="old:")).sessions == 1
    assert await store.get_session(f"old:harombe:{ID}")


async def test_strange_rows_are_reported_and_the_rest_arrives(tmp_path: Path) -> None:
    store = RamStore()
    openai = [{"function": {"name": "look", "arguments": '{"a":1}'}}, "no call"]
    sessions = [
        ("a", 1_770_112_800, "?", "not JSON", None),
        ("b", "never", "", "[1]", ""),
        ("empty", "2026-02-03", "2026-02-03", None, "Be brief."),
    ]
    messages: list[Row] = [
        ("a", "user", b"\xff bytes", None, None, "ana", "2026-02-03"),
        ("a", "assistant", "", json.dumps(openai), None, None, 1_770_112_900),
        ("a", "assistant", "half", "[{", None, None, "x"),
        ("a", "assistant", None, "null", None, None, "x"),
        ("a", "robot", "beep", None, None, None, "x"),
        ("a", "system", "You are free.", None, None, None, "x"),
        ("a", "tool", None, None, "unknown", "look", "x"),
        ("b", "user", "x" * 600_000, None, None, None, "x"),
        ("gone", "user", "orphan", None, None, None, "x"),
    ]
    done = await taken(store, written(tmp_path / "memory.db", sessions, messages))
    assert (done.sessions, done.messages, done.empty) == (2, 6, 1)
    assert (done.hidden, done.left_out, done.shortened, done.refused) == (1, 2, 1, 0)
    assert [problem.what for problem in done.problems] == [
        "message 3: its tool calls are not a JSON list",
        "its metadata is not a JSON object and is kept as text",
        "its metadata is not a JSON object and is kept as text",
    ]
    session = await store.get_session("harombe:a")
    assert session is not None
    assert session.meta["metadata"] == "not JSON"
    user, call, half, system, result = await store.read(session.key)
    assert (user.content, user.name) == ("\ufffd bytes", None)
    assert [(each.name, each.arguments) for each in call.tool_calls] == [("look", '{"a":1}')]
    assert (half.content, half.tool_calls) == ("half", ())
    assert (system.role, system.origin) == ("system", "import")
    assert (result.content, result.tool_call_id) == ("", "unknown")


@pytest.mark.parametrize(
    "statements",
    [
        ["DROP TABLE messages"],
        ["ALTER TABLE sessions DROP COLUMN metadata"],
        ["DROP TABLE sessions", "CREATE VIEW sessions AS SELECT * FROM messages"],
        [
            "ALTER TABLE messages RENAME COLUMN name TO n",
            "ALTER TABLE messages ADD COLUMN name AS (n)",
        ],
    ],
)
async def test_another_database_is_refused(tmp_path: Path, statements: list[str]) -> None:
    path = written(tmp_path / "memory.db", [SESSION], MESSAGES, *statements)
    with pytest.raises(WrongFormat, match=r"not a memory\.db of harombe"):
        check_harombe(path)
    with pytest.raises(WrongFormat):
        await taken(RamStore(), path)


async def test_a_damaged_database_is_an_error_of_ours(tmp_path: Path) -> None:
    path = written(tmp_path / "memory.db", [SESSION], MESSAGES * 500)
    data = bytearray(path.read_bytes())
    assert format_of(bytes(data[:100])) == "harombe"
    half = len(data) // 2
    data[half : half + 8192] = bytes(range(256)) * 32
    path.write_bytes(data)
    with pytest.raises(InvalidInput, match="the database cannot be read"):
        await taken(RamStore(), path)
    path.write_bytes(b"SQLite format 3\0 and nothing else")
    with pytest.raises(InvalidInput, match="the database cannot be read"):
        check_harombe(path)


def test_the_command_knows_the_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KEEPTHREAD_STORE", "sqlite:///chat.db")
    written(tmp_path / "memory.db", [SESSION], MESSAGES)
    done = keepthread("import", "memory.db", "--owner", "ana")
    assert done.returncode == 0
    assert "Imported 1 session, 4 messages into" in done.stderr
    assert [info["id"] for info in ask("sessions")] == [f"harombe:{ID}"]
    ours = keepthread("import", "chat.db")
    assert ours.returncode == 2
    assert "is a keepthread store, not an export; `keepthread copy" in ours.stderr
    piped = keepthread("import", "-", "--format", "harombe")
    assert "cannot be read from stdin" in piped.stderr
    assert "has no branches" in keepthread("import", "memory.db", "--branches").stderr
