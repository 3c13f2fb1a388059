"""Answers that were cut short or never came, and what a chat says of them afterwards."""

import re
from pathlib import Path

from keepthread.testing.server import Gate, Say, ScriptedServer
from tests.chatting import home


async def test_an_answer_that_was_cut_short_can_be_asked_for_again(tmp_path: Path) -> None:
    script = [Say("Half an", finish="length"), "The whole answer."]
    with ScriptedServer(script) as server, home(tmp_path, server).chat() as chat:
        assert "cut short" in chat.say("Tell me all")
        assert re.search(r"assistant .*cut short", chat.say("/history"))
        assert "The whole answer." in chat.say("/retry")
        assert server.requests[1].text == "Tell me all"
        assert "Half an" not in server.requests[1].context
        assert "has an answer" in chat.say("/retry")


async def test_a_stopped_answer_costs_what_is_estimated(tmp_path: Path) -> None:
    gate = Gate()
    script = [Say("One two three four", hold=gate, hold_after=2)]
    with ScriptedServer(script) as server, home(tmp_path, server).chat() as chat:
        chat.send("Count")
        chat.sees("One two")
        chat.key("ctrl-c")
        chat.sees("cut short: stopped")
        costs = chat.say("/cost")
        latest = re.search(r"latest answer +([\d,]+) +0 +([\d,]+)", costs)
        assert latest is not None, costs
        assert int(latest[1].replace(",", "")) > 0
        assert int(latest[2]) > 0
        assert "Stopped answers report no usage: it is estimated" in costs


async def test_a_first_question_that_fails_gives_the_session_its_title(tmp_path: Path) -> None:
    with ScriptedServer([Say(status=400)]) as server, home(tmp_path, server).chat() as chat:
        assert "error" in chat.say("Why is the sky blue?")
        assert "Why is the sky blue?" in chat.say("/sessions")


async def test_a_forgotten_session_is_not_continued(tmp_path: Path) -> None:
    with ScriptedServer(["First.", "Second."]) as server:
        place = home(tmp_path, server)
        await place.fill("kept", 1)
        await place.fill("gone", 1)
        assert place.run("forget", "--session", "gone", "--yes").returncode == 0
        with place.chat("-c") as chat:
            assert "kept" in chat.say("/status")
