"""The design notes, statement by statement: what a person at the command sees."""

import json
import stat
import time
from collections.abc import Callable
from pathlib import Path

from keepthread import Memory
from keepthread.memory.admin import DAY
from keepthread.orchestrator.prompts import prompt
from keepthread.testing.script import Received, Say
from keepthread.testing.server import ScriptedServer
from tests.chatting import Home, home
from tests.test_chat_orchestrated import with_weather
from tests.weather import mind, stage_of


async def idle_session(place: Home, id: str) -> None:
    """Leave a session that nobody used for 40 days."""
    place.store.parent.mkdir(parents=True, exist_ok=True)
    before = time.time() - 40 * DAY
    async with Memory.open(f"sqlite:///{place.store}", clock=lambda: before) as memory:
        await (await memory.session(id)).add_turn("user", "Hello?")


async def sessions(place: Home) -> set[str]:
    async with Memory.open(f"sqlite:///{place.store}") as memory:
        return {info.id for info in await memory.list_sessions()}


async def test_131_one_question_prunes_idle_sessions_once_a_day(tmp_path: Path) -> None:
    with ScriptedServer(["Yes."] * 3) as server:
        place = home(tmp_path, server)
        await idle_session(place, "old")
        assert place.run("chat", "-p", "Sunny?").returncode == 0
        assert "old" in await sessions(place), "never, unless the settings say so"
        days = {"KEEPTHREAD_MEMORY_AUTO_PRUNE_DAYS": "30"}
        done = place.run("chat", "-p", "Sunny?", **days)
        assert b"deleted 1 session without activity for 30 days" in done.stderr
        assert "old" not in await sessions(place)
        await idle_session(place, "older")
        assert place.run("chat", said="Sunny?", **days).returncode == 0
        assert "older" in await sessions(place), "it was done today"


async def test_131_pruning_is_due_once_a_day() -> None:
    now = [100 * DAY]
    async with Memory.open("ram://", clock=lambda: now[0]) as memory:
        for day in range(4):
            await (await memory.session(f"s{day}")).add_turn("user", "Hello.")
            now[0] += DAY
        assert await memory.admin.prune(2, daily=True) == 2
        now[0] += DAY / 2
        assert await memory.admin.prune(2, daily=True) == 0
        now[0] += DAY
        assert await memory.admin.prune(2, daily=True) == 2


def test_199_202_a_chat_logs_its_contexts(tmp_path: Path) -> None:
    with ScriptedServer(["Sun.", "Rain."]) as server:
        place = home(tmp_path, server)
        log = tmp_path / "contexts.log"
        done = place.run("chat", "-p", "How is Oslo?", "--log", str(log))
        assert done.returncode == 0
        assert b"===" not in done.stderr
        written = log.read_text()
        for block in ("MEMORY STATE", "FUNCTION CACHE STATE", "AGENT RECEIVES (1 messages)"):
            assert f"=== {block} ===" in written
        assert "Summary: 0 bytes | LLM compressions: 0 | Tokens: " in written
        assert "Oslo" not in written, "ids and sizes, no text"
        assert stat.S_IMODE(log.stat().st_mode) == 0o600
        done = place.run("chat", "-p", "How is Rome?", "--debug")
        assert b"How is Rome?" in done.stderr
        refused = place.run("chat", "-p", "How is Rome?", "--log", str(tmp_path))
        assert refused.returncode == 2
        assert b"the file cannot be written" in refused.stderr


# --- named agents ---

AGENTS = """
agents:
  sky:
    description: Knows the weather.
    system_file: sky.md
    model: small-sky
    tools: [weather, storms]
    shared_facts:
      - The station in Tokyo is new.
  clerk:
    description: Writes letters.
    facts: true
"""


def with_agents(folder: Path) -> None:
    """Name two agents in the settings of a home, one with its prompt in a file."""
    config = folder / "config" / "keepthread"
    config.mkdir(parents=True, exist_ok=True)
    (config / "config.yaml").write_text(AGENTS)
    (config / "sky.md").write_text("You are calm. You love clouds. You know the weather.\n")


def planning(agent: str) -> Callable[[Received], str | Say]:
    """Return a mind that gives its one step to an agent."""

    def crew(asked: Received) -> str | Say:
        if stage_of(asked) != "planner":
            return mind(asked)
        step = {"id": "tokyo", "task": "Tell how warm it is in Tokyo.", "agent": agent}
        return json.dumps({"steps": [{"tools": [], "needs": [], "snippet": "", **step}]})

    return crew


def asked_of(server: ScriptedServer, stage: str) -> list[Received]:
    return [asked for asked in server.requests if stage_of(asked) == stage]


def test_209_an_agent_has_its_own_prompt_model_and_tools(tmp_path: Path) -> None:
    with_weather(tmp_path)
    with_agents(tmp_path)
    with ScriptedServer(otherwise=planning("sky")) as server:
        with home(tmp_path, server).chat("--orchestrate") as chat:
            shown = chat.say("How is the weather in Tokyo?")
            assert "└ ✓ tokyo by sky: Tell how warm it is in Tokyo." in shown
            assert 'weather {"city": "Tokyo"}' in shown
            chat.leave()
        (planner,) = asked_of(server, "planner")
        assert "> sky: Knows the weather. (its tools: weather, storms)\n> clerk: " in planner.text
        for asked in asked_of(server, "specialist"):
            assert asked.system == (
                "You are calm. You love clouds. You know the weather.\n\n"
                "Facts that you know for every user:\n- The station in Tokyo is new.\n\n"
                + prompt("specialist")
            )
            assert asked.body["model"] == "small-sky"
            assert [tool["function"]["name"] for tool in asked.body["tools"]] == ["weather"]
        assert {asked.body["model"] for asked in asked_of(server, "synthesizer")} == {"scripted"}
    assert server.refused == []


def test_209_an_agent_that_does_not_exist_is_an_ordinary_specialist(tmp_path: Path) -> None:
    with_agents(tmp_path)
    with ScriptedServer(otherwise=planning("moon")) as server:
        with home(tmp_path, server).chat("--orchestrate") as chat:
            shown = chat.say("How is the weather in Tokyo?")
            assert "the plan names agents that do not exist: 'moon'" in shown
            chat.leave()
        assert {each.system for each in asked_of(server, "specialist")} == {prompt("specialist")}
    (tmp_path / "config" / "keepthread" / "sky.md").unlink()
    failed = home(tmp_path, server).run("chat", "--orchestrate", "-p", "Hello?")
    assert failed.returncode == 2
    assert b"agents.sky.system_file is " in failed.stderr
    assert b"which cannot be read: No such file" in failed.stderr


def test_226_an_agent_has_facts_of_its_own_for_each_owner(tmp_path: Path) -> None:
    with_weather(tmp_path)
    with_agents(tmp_path)
    with ScriptedServer(otherwise=planning("sky")) as server:
        place = home(tmp_path, server)
        assert place.run("chat", "--orchestrate", "-p", "Hello!").returncode == 0
        for arguments in (("Celsius, please.", "--agent", "sky"), ("Likes tea.",)):
            assert place.run("facts", "add", *arguments).returncode == 0
        for owner, knows in (("default", True), ("bea", False)):
            before = len(server.requests)
            with place.chat("--orchestrate", KEEPTHREAD_MEMORY_OWNER=owner) as chat:
                chat.say("How is the weather in Tokyo?")
                listed = chat.say("/facts")
                assert ("Celsius, please." in listed, "agent sky" in listed) == (knows, knows)
                chat.leave()
            for asked in server.requests[before:]:
                sees = knows and stage_of(asked) == "specialist"
                assert ("Celsius, please." in asked.context) == sees, stage_of(asked)
                sees = knows and stage_of(asked) != "specialist"  # sky is not shown the owner's
                assert ("Likes tea." in asked.context) == sees, stage_of(asked)
        assert b"agent sky" in place.run("facts", "list", "--agent", "sky").stdout
        assert b"Celsius" not in place.run("facts", "list", "--agent", "clerk").stdout
        assert b"known to agent sky" in place.run("facts", "export").stdout
        shown = json.loads(place.run("config", "agents", "--json").stdout)
        assert shown["agents.clerk.facts"]["value"] is True
        assert shown["agents.sky.tools"]["value"] == ["weather", "storms"]
