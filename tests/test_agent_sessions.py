"""Session files of Claude Code and Codex: imported twice is imported once, and grown files grow.

The samples in `tests/chats` are made by hand after the format of the real files.
"""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepthread import Memory, Message, RamStore
from keepthread.errors import WrongFormat
from keepthread.interchange.agents import (
    MAX_TOOL_TEXT,
    import_agents,
    read_agent_file,
    session_files,
)
from keepthread.interchange.conversations import Arrived
from keepthread.interchange.files import AGENTS, format_of
from tests.seeds import examples
from tests.test_cli import keepthread

CHATS = Path(__file__).with_name("chats")
CLAUDE_CODE, CODEX = (CHATS / f"{name}.jsonl" for name in AGENTS)
CLAUDE_ID = "claude-code:0b3c6a4e-1d1f-4c1b-9a55-3f8f1f1f0001"
CODEX_ID = "codex:01a1ed0c-e28a-7d2b-8c3f-526f73111b2a"


async def imported(memory: Memory, *data: bytes) -> Arrived:
    return await import_agents(memory.store, map(io.BytesIO, data), owner="ana")


async def messages_of(memory: Memory, id: str) -> list[Message]:
    return await (await memory.for_owner("ana").get_session(id)).messages()


async def test_a_session_of_claude_code_is_imported_without_what_people_did_not_see() -> None:
    async with Memory(RamStore()) as memory:
        done = await imported(memory, CLAUDE_CODE.read_bytes())
        messages = await messages_of(memory, CLAUDE_ID)
        session = await memory.for_owner("ana").get_session(CLAUDE_ID)
        child = await messages_of(memory, f"{CLAUDE_ID}/a1")
    assert (done.sessions, done.refused, done.left_out) == (2, 0, 0)
    assert [(m.role, m.content[:30]) for m in messages] == [
        ("user", "Why are the prices wrong? We u"),
        ("assistant", "I will read the file."),
        ("assistant", ""),
        ("assistant", ""),
        ("tool", ("x = 1\n" * 9)[:30]),
        ("tool", "written"),
        ("assistant", "The prices were rounded twice;"),
    ]
    assert {m.origin for m in messages} == {"import"}
    assert messages[4].tool_call_id == messages[2].tool_calls[0].id
    assert len(messages[4].content) < MAX_TOOL_TEXT + 100
    assert "more characters]" in messages[4].content
    assert len(json.loads(messages[3].tool_calls[0].arguments)["shortened"]) < MAX_TOOL_TEXT + 100
    assert session.info.title == "Why are the prices wrong? We use cents."
    assert session.info.meta["project"] == "/home/ana/shop"
    assert [m.content for m in child] == ["The sub-agent looked at the tests."]


async def test_a_session_of_codex_is_imported_without_what_people_did_not_see() -> None:
    async with Memory(RamStore()) as memory:
        done = await imported(memory, CODEX.read_bytes())
        messages = await messages_of(memory, CODEX_ID)
    assert (done.sessions, done.refused) == (1, 0)
    assert [(m.role, m.content) for m in messages] == [
        ("user", "Add a test for cents."),
        ("assistant", ""),
        ("tool", "prices.py\n"),
        ("assistant", "The test is in test_prices.py."),
    ]


@pytest.mark.parametrize("path", [CLAUDE_CODE, CODEX], ids=AGENTS)
async def test_a_file_that_grows_is_continued_and_the_same_file_changes_nothing(path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    async with Memory(RamStore()) as grown, Memory(RamStore()) as whole:
        for count in range(1, len(lines) + 1):
            done = await imported(grown, b"".join(lines[:count]) + b'{"half a li')
            assert (done.refused, done.left_out) == (0, 1)
        await imported(whole, path.read_bytes())
        before = [line async for line in grown.for_owner("ana").export()]
        again = await imported(grown, path.read_bytes())
        assert (again.known, again.grown) == (again.sessions, 0)
        assert [line async for line in grown.for_owner("ana").export()] == before
        ids = [each.id for each in await grown.for_owner("ana").list_sessions()]
        for id in ids:
            both = [
                [(m.id, m.role, m.content, m.created_at) for m in await messages_of(each, id)]
                for each in (grown, whole)
            ]
            assert both[0] == both[1]


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=5,
)
KEYS = st.sampled_from(
    ["message", "content", "uuid", "type", "timestamp", "isSidechain", "cwd", "payload"]
)


@pytest.mark.parametrize(("path", "id"), [(CLAUDE_CODE, CLAUDE_ID), (CODEX, CODEX_ID)])
async def test_the_title_of_an_imported_session_goes_with_its_first_question(
    path: Path, id: str
) -> None:
    async with Memory(RamStore()) as memory:
        await imported(memory, path.read_bytes())
        session = await memory.for_owner("ana").get_session(id)
        question = next(m for m in await session.messages() if m.role == "user")
        assert session.info.title
        assert question.content.startswith(session.info.title[:20])
        await memory.for_owner("ana").forget(session=id, message=question.id)
        assert (await memory.for_owner("ana").get_session(id)).info.title == ""


@given(
    st.sampled_from([CLAUDE_CODE, CODEX]),
    st.lists(st.tuples(st.integers(0, 14), KEYS, JSON_VALUES), max_size=4),
)
@settings(max_examples=examples(40), deadline=None)
def test_no_value_in_a_file_breaks_its_reading(
    path: Path, changes: list[tuple[int, str, Any]]
) -> None:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for at, key, value in changes:
        target = lines[at % len(lines)]
        if key == "content" and isinstance(target.get("message"), dict):
            target = target["message"]
        target[key] = value
    data = "".join(json.dumps(each) + "\n" for each in lines).encode()
    try:
        found = read_agent_file(io.BytesIO(data))
    except WrongFormat:
        return
    for each in found.conversations:
        ids = [m.id for m in each.messages]
        assert len(ids) == len(set(ids))


# --- the command ---


def test_the_command_knows_the_files_and_takes_a_folder_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "projects" / "-home-ana-shop"
    folder.mkdir(parents=True)
    for path in (CLAUDE_CODE, CODEX):
        (folder / path.name).write_bytes(path.read_bytes())
    (folder / "other.jsonl").write_text('{"format": "keepthread", "version": 2}\n')
    (folder / "empty.jsonl").write_text("")
    assert [path.name for path in session_files(tmp_path)] == ["claude-code.jsonl", "codex.jsonl"]
    store = ("--store", "notes.db")
    one = keepthread("import", str(CLAUDE_CODE), *store)
    assert "Imported 2 sessions, 8 messages into notes.db" in one.stderr
    both = keepthread("import", "projects", *store)
    assert both.returncode == 0, both.stderr
    assert "Imported 3 sessions, 12 messages into notes.db" in both.stderr
    assert "2 sessions existed already and are the same" in both.stderr
    again = keepthread("import", "projects", *store)
    assert "Nothing new: 3 sessions already existed" in again.stderr
    found = keepthread("search", "prices rounded", *store, "--json").stdout
    assert "rounded twice" in found
    refused = keepthread("import", "projects", "--branches", *store)
    assert "has no branches: leave out --branches" in refused.stderr


def test_formats_are_told_apart_by_their_first_bytes() -> None:
    assert format_of(CLAUDE_CODE.read_bytes()[:8192]) == "claude-code"
    assert format_of(CODEX.read_bytes()[:8192]) == "codex"
    assert format_of((CHATS / "claude.json").read_bytes()[:8192]) == "chats"
    assert format_of((CHATS / "chatgpt.json").read_bytes()[:8192]) == "chats"
    single = {"mapping": {}, "title": 'about "sessionId": "x", "type": "y"'}
    assert format_of(json.dumps(single).encode()) == "chats"


async def test_a_file_of_something_else_is_named_in_the_report() -> None:
    async with Memory(RamStore()) as memory:
        done = await imported(memory, b'{"a": 1}\n', CODEX.read_bytes())
    assert (done.sessions, done.refused) == (1, 1)
    assert done.problems[0].what == "the file contains no session of Claude Code or Codex"
