"""Logs of contexts: three blocks for people and the same as data, without text unless asked for."""

import json
import logging
from typing import Any

import pytest

from keepthread import Compaction, Hybrid, Memory, Message, Session, ToolCall, View
from keepthread.testing.contract import Letters

CONTEXT = "keepthread.context"
TEXT = "keepthread.context.text"
SECRET = "swordfish"


async def talked(memory: Memory) -> Session:
    session = await memory.session("s", system_prompt=f"Keep {SECRET} to yourself.")
    async with session.turn(f"Look for {SECRET}\nin the sea") as turn:
        await turn.tool("look", {"for": SECRET}, lambda **_: f"{SECRET} found", cache_turns=3)
        await turn.finish(f"There is a {SECRET} \x1b[31m" + "x" * 300)
    return session


async def logged(caplog: pytest.LogCaptureFixture, logger: str) -> list[logging.LogRecord]:
    """Return what building one context logs."""
    async with Memory.open("ram://", counter=Letters()) as memory:
        session = await talked(memory)
        with caplog.at_level(logging.DEBUG, logger):
            await session.context("chat")
    return caplog.records


def data(record: logging.LogRecord) -> dict[str, Any]:
    found: dict[str, Any] = vars(record)["keepthread"]
    return json.loads(json.dumps(found))


async def test_a_context_logs_the_memory_the_cache_and_what_the_agent_receives(
    caplog: pytest.LogCaptureFixture,
) -> None:
    memory, cache, receives = await logged(caplog, CONTEXT)
    assert {r.levelname for r in (memory, cache, receives)} == {"DEBUG"}
    head, line = memory.getMessage().splitlines()
    assert head == "=== MEMORY STATE ==="
    assert line == (
        "Session: s | View: chat | Turn: 1 | Messages: 4 | Hidden: 0 | Summary: 0 bytes"
        f" | LLM compressions: 0 | Tokens: {data(memory)['tokens']} of 4096"
    )
    assert cache.getMessage().splitlines() == [
        "=== FUNCTION CACHE STATE ===",
        "Cached functions: 1",
        "  • look(19 bytes): 3/3 turns remaining",
    ]
    head, first, *_ = receives.getMessage().splitlines()
    assert head == "=== AGENT RECEIVES (4 messages) ==="
    id = data(receives)["messages"][0]["id"]
    assert first == f"[1] USER: seq 1, id {id}, 29 bytes, 29 tokens"


async def test_the_same_is_there_as_data(caplog: pytest.LogCaptureFixture) -> None:
    memory, cache, receives = map(data, await logged(caplog, CONTEXT))
    assert (memory["block"], memory["session"], memory["view"]) == ("memory", "s", "chat")
    assert (memory["turn"], memory["messages"], memory["summary_bytes"]) == (1, 4, 0)
    assert cache["results"] == [{"name": "look", "left": 3, "cache_turns": 3, "argument_bytes": 19}]
    roles = [(m["role"], m["seq"]) for m in receives["messages"]]
    assert roles == [("user", 1), ("assistant", 2), ("tool", 3), ("assistant", 4)]
    assert set(receives["messages"][0]) == {"role", "seq", "id", "bytes", "tokens"}


async def test_no_text_is_logged_by_whoever_debugs_everything(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Memory.open("ram://", counter=Letters()) as memory:
        with caplog.at_level(logging.DEBUG):  # of all loggers
            session = await talked(memory)
            await session.context()
    assert caplog.records
    for record in caplog.records:
        assert SECRET not in str(vars(record))
        assert record.name != TEXT


async def test_text_is_logged_on_request_cut_and_on_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    _, cache, receives = await logged(caplog, TEXT)
    assert receives.name == TEXT
    assert data(cache)["results"][0]["arguments"] == repr('{"for":"swordfish"}')
    assert """look('{"for":"swordfish"}'): 3/3""" in cache.getMessage()
    lines = receives.getMessage().splitlines()
    assert len(lines) == 5
    assert lines[1].endswith(r"'Look for swordfish\nin the sea'")
    assert "\x1b" not in receives.getMessage()
    assert len(data(receives)["messages"][-1]["text"]) < 220


async def test_nothing_is_logged_where_nobody_listens(caplog: pytest.LogCaptureFixture) -> None:
    assert await logged(caplog, "elsewhere") == []


async def test_a_summary_is_told_by_its_size_and_stand_ins_as_such(
    caplog: pytest.LogCaptureFixture,
) -> None:
    compaction = Compaction(turns=4, batch_size=2)
    views = {"chat": View(2000, Hybrid())}
    async with Memory.open(
        "ram://", counter=Letters(), views=views, compaction=compaction
    ) as memory:
        session = await memory.session("s")
        for n in range(40):
            async with session.turn(f"question {n}") as turn:
                await turn.finish(f"answer {n} " * 8)
        await session.compact()
        with caplog.at_level(logging.DEBUG, CONTEXT):
            await session.context(newest=False)
        status = await session.status()
    state, _, receives = map(data, caplog.records)
    assert 0 < state["summary_bytes"] <= status.summary_bytes
    assert state["messages"] == 80
    assert receives["messages"][0]["seq"] == 0
    assert "[1] USER: not in the log, " in caplog.records[-1].getMessage()


async def test_what_is_hidden_is_counted_apart(caplog: pytest.LogCaptureFixture) -> None:
    async with Memory.open("ram://", counter=Letters()) as memory:
        session = await talked(memory)
        await session.rewind(1)
        call = ToolCall(id="c", name="look", arguments="{}")
        await session.append(Message(role="assistant", tool_calls=[call]))
        with caplog.at_level(logging.DEBUG, CONTEXT):
            await session.context()
    state, cache, _ = map(data, caplog.records)
    assert (state["messages"], state["hidden"]) == (2, 3)
    assert cache["results"] == []
