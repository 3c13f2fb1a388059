"""`keepthread chat --orchestrate`: the plan as a tree, tools run once and remembered."""

import json
import sys
from pathlib import Path

from keepthread.apps.cli.chat.steps import Steps
from keepthread.orchestrator import (
    AnswerPiece,
    Began,
    Ended,
    Plan,
    Planned,
    Result,
    Route,
    Routed,
    Subtask,
    Used,
)
from keepthread.testing.script import Received, Say
from keepthread.testing.server import ScriptedServer
from keepthread.types import ToolCall
from tests.chatting import home
from tests.test_docs import ROOT
from tests.weather import mind, results_in, stage_of


def with_weather(folder: Path) -> Path:
    """Name a server of tools in the settings of a home; return where it notes what it is asked."""
    journal = folder / "journal"
    server = {
        "command": sys.executable,
        "args": ["-m", "tests.mcp_servers.weather", str(journal)],
        "env": {"PYTHONPATH": str(ROOT)},
        "allow": ["weather"],
        "tools": {"weather": {"cache_turns": 3}},
    }
    config = folder / "config" / "keepthread"
    config.mkdir(parents=True, exist_ok=True)
    (config / "mcp.json").write_text(json.dumps({"mcpServers": {"sky": server}}))
    return journal


def test_a_plan_is_shown_as_a_tree_and_a_result_is_taken_from_memory(tmp_path: Path) -> None:
    journal = with_weather(tmp_path)
    with (
        ScriptedServer(otherwise=mind) as server,
        home(tmp_path, server).chat("--orchestrate") as chat,
    ):
        shown = chat.say("How is the weather in Tokyo?")
        assert "answered with a plan" in shown
        assert "└ ✓" in shown
        assert '{"city": "Tokyo"}' in shown
        assert "cached" not in shown
        shown = chat.say("How is the weather in Tokyo now?")
        assert "cached, 3 of 3 turns left" in shown
        assert "answered directly" in chat.say("Thank you!")
        assert "answered directly" in chat.say("/plan")
        assert "cached for 3 turns" in chat.say("/tools")
        status = chat.say("memory:status")
        assert "1 cached" in status
        chat.leave()
    assert server.refused == []
    assert journal.read_text().count("weather Tokyo") == 1


def test_a_server_that_does_not_start_is_told_and_the_chat_goes_on(tmp_path: Path) -> None:
    config = tmp_path / "config" / "keepthread"
    config.mkdir(parents=True)
    broken = {"command": sys.executable, "args": ["-c", "raise SystemExit('no weather today')"]}
    (config / "mcp.json").write_text(json.dumps({"mcpServers": {"sky": broken}}))
    with (
        ScriptedServer(otherwise=mind) as server,
        home(tmp_path, server).chat("--orchestrate") as chat,
    ):
        assert "planning failed" in chat.say("How is the weather in Oslo?")
        chat.sees("sky does not start")
        assert "no weather today" in chat.say("/tools")
        chat.leave()


def test_without_orchestration_there_is_no_plan(tmp_path: Path) -> None:
    with ScriptedServer() as server, home(tmp_path, server).chat() as chat:
        assert "keepthread chat --orchestrate" in chat.say("/plan")
        chat.leave()


def test_steps_are_drawn_with_their_state_and_nothing_in_them_moves_the_cursor() -> None:
    first = Subtask("look", "Look \x1b[2J around", ["eyes"])
    second = Subtask("tell", "Tell of it", needs=["look"])
    steps = Steps()
    assert steps.lines() == []
    steps.take(Routed(Route(direct=False, why="it must be seen")))
    assert steps.lines() == ["answered with a plan: it must be seen"]
    steps.take(Planned(Plan([first, second])))
    steps.take(Began(first))
    steps.take(Used(first, "eyes", {"far": True}, failed="too dark"))
    assert steps.lines()[1:] == [
        r"├ … look: Look \x1b[2J around",
        '│     eyes {"far": true}  failed: too dark',
        "└ · tell: Tell of it (needs look)",
    ]
    steps.take(Ended(Result(first, "nothing")))
    steps.take(Ended(Result(second, failed="it needs look")))
    steps.take(AnswerPiece("Well"))
    assert [line[:3] for line in steps.lines()[1:]] == ["├ ✓", "│  ", "└ ✗", "   "]


def test_a_step_that_was_cut_off_is_not_drawn_as_done() -> None:
    look = Subtask("look", "Look around")
    steps = Steps()
    steps.take(Routed(Route(direct=False)))
    steps.take(Planned(Plan([look])))
    steps.take(Ended(Result(look, "half an ans", truncated=True)))
    assert steps.lines()[1:] == [
        "└ ✗ look: Look around",
        "      its result was truncated: only the beginning arrived",
    ]


def test_a_plan_that_could_not_be_made_is_told() -> None:
    steps = Steps()
    steps.take(Routed(Route(direct=False)))
    steps.take(Planned(None, "twice wrote nonsense"))
    told = ["answered with a plan", "planning failed: twice wrote nonsense"]
    assert steps.lines() == told


def remembering(asked: Received) -> str | Say:
    """Note what is to be remembered, after a word about it."""
    if stage_of(asked) == "router":
        return '{"kind": "direct", "why": "It is to be remembered."}'
    if "Remember" not in asked.text or results_in(asked):
        return "Noted, as you said."
    arguments = json.dumps({"text": "I'm vegetarian."})
    call = ToolCall(id="1", name="remember", arguments=arguments)
    return Say("One moment.", tool_calls=[call])


async def test_something_to_remember_is_known_in_the_next_session(tmp_path: Path) -> None:
    with ScriptedServer(otherwise=remembering) as server:
        place = home(tmp_path, server)
        with place.chat("--orchestrate") as chat:
            shown = chat.say("Remember that I'm vegetarian.")
            assert shown.index("One moment.") < shown.index("· remember") < shown.index("Noted,")
            assert "I'm vegetarian." in chat.say("/facts")
            chat.leave()
        said = await place.said()
        assert said[-1] == "Noted, as you said."
        assert "One moment." in said
        synthesizer = [each for each in server.requests if stage_of(each) == "synthesizer"]
        assert [tool["function"]["name"] for tool in synthesizer[0].body["tools"]] == [
            "remember",
            "search_memory",
        ]
        done = place.run("chat", "--orchestrate", "-p", "What do I eat?")
        assert done.stdout == b"Noted, as you said.\n"
        assert "I'm vegetarian." in server.requests[-1].context
        off = {"KEEPTHREAD_MEMORY_TOOLS": "false"}
        assert place.run("chat", "--orchestrate", "-p", "What?", **off).returncode == 0
        assert "tools" not in server.requests[-1].body
    assert server.refused == []
