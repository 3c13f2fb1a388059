"""Every example runs as a reader would run it, against a server on this machine."""

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import httpx
import pytest

from keepthread import sync
from keepthread.testing.script import Received, Say
from keepthread.testing.server import ScriptedServer
from keepthread.types import ToolCall
from tests.discord_server import TOKEN, DiscordServer
from tests.discord_world import Channel, User
from tests.weather import CITY, results_in

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
KEEPTHREAD = [sys.executable, "-m", "keepthread"]
CHATS = ["plain_sdk", "langgraph_chat", "openai_agents_chat", "agno_chat"]


def mind(asked: Received) -> str | Say:
    """Look up the weather of a city, if it is clear that the weather is meant."""
    if results := results_in(asked):
        return f"I looked it up. {results[-1]}"
    cities = CITY.findall(asked.text)
    if not cities or "weather" not in str(asked.body["messages"]):
        return "About what?"
    id = f"call_{len(asked.body['messages'])}"
    return Say(tool_calls=[ToolCall(id=id, name="weather", arguments=f'{{"city": "{cities[0]}"}}')])


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer(otherwise=mind) as server:
        yield server
        assert server.refused == []


def environment(server: ScriptedServer) -> dict[str, str]:
    own = {"OPENAI_BASE_URL": server.openai, "OPENAI_API_KEY": "k", "PYTHONWARNINGS": "ignore"}
    return {**os.environ, **own}


def run(
    name: str, server: ScriptedServer, folder: Path, *questions: str, url: str | None = None
) -> str:
    """Run an example in a folder of its own, and return what it prints."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / f"{name}.py"), *questions],
        cwd=folder,
        env={**environment(server), "OPENAI_BASE_URL": url or server.openai},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def roles(folder: Path, store: str = "chat.db", session: str = "me") -> list[str]:
    with sync.Memory.open(f"sqlite:///{folder}/{store}") as memory:
        return [message.role for message in memory.session(session).messages()]


@pytest.mark.parametrize("name", CHATS)
def test_a_chat_knows_in_another_process_what_was_meant(
    name: str, server: ScriptedServer, tmp_path: Path
) -> None:
    asked = ["And Oslo?", "What is the weather in Jakarta?", "How about Tokyo?"]
    assert run(name, server, tmp_path, *asked).splitlines() == [
        "About what?",
        "I looked it up. Jakarta: 14 degrees",
        "I looked it up. Tokyo: 29 degrees",
    ]
    assert run(name, server, tmp_path, "And Oslo?") == "I looked it up. Oslo: 26 degrees"
    with_tool = ["user", "assistant", "tool", "assistant"]
    assert roles(tmp_path) == ["user", "assistant", *with_tool * 3]
    assert all("You are brief." in asked.system for asked in server.requests)


@contextmanager
def proxy(server: ScriptedServer, folder: Path) -> Iterator[str]:
    """Run the memory proxy, and yield the base URL that it prints."""
    home = {name: str(folder) for name in ("HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME")}
    command = [*KEEPTHREAD, "proxy", "--port", "0", "--upstream", f"openai={server.openai}"]
    with subprocess.Popen(
        command, cwd=folder, env={**os.environ, **home}, stdout=subprocess.PIPE, text=True
    ) as program:
        try:
            assert program.stdout
            yield program.stdout.readline().strip()
        finally:
            program.terminate()


def test_a_chat_without_memory_remembers_when_only_its_base_url_changes(
    server: ScriptedServer, tmp_path: Path
) -> None:
    jakarta, tokyo = "What is the weather in Jakarta?", "How about Tokyo?"
    told = "I looked it up. Jakarta: 14 degrees"
    without = run("proxy_chat", server, tmp_path, jakarta, tokyo).splitlines()
    assert without == [told, "About what?"]
    with proxy(server, tmp_path) as url:
        named = url.replace("/v1", "/s/weather/v1")
        asked = [run("proxy_chat", server, tmp_path, each, url=named) for each in (jakarta, tokyo)]
    assert asked == [told, "I looked it up. Tokyo: 29 degrees"]
    with sync.Memory.open(f"sqlite:///{next(tmp_path.rglob('*.db'))}") as memory:
        (session,) = [each for each in memory.list_sessions() if each.id.endswith("/weather")]
        said = [message.role for message in memory.session(session.id).messages()]
    assert said == ["user", "assistant", "tool", "assistant"] * 2
    page = (ROOT / "docs" / "how-to" / "proxy.md").read_text()
    assert [line for line in page.splitlines() if line in (*without, *asked)] == [*without, *asked]


def test_a_tool_of_the_plain_loop_is_remembered(server: ScriptedServer, tmp_path: Path) -> None:
    asked = ["What is the weather in Oslo?"] * 2
    assert len(set(run("plain_sdk", server, tmp_path, *asked).splitlines())) == 1
    with sync.Memory.open(f"sqlite:///{tmp_path}/chat.db") as memory:
        (tool,) = memory.session("me").cached_tools()
    assert (tool.name, tool.arguments) == ("weather", {"city": "Oslo"})


def test_a_team_sees_its_tasks_and_the_lead_what_it_brought_back(tmp_path: Path) -> None:
    def lead(asked: Received) -> str:
        if "three good places" in asked.system:
            return "Lisbon, Rome, Oslo."
        if "regret" in asked.system:
            return "Crowds."
        return f"I read {len(results_in(asked))} reports."

    with ScriptedServer(otherwise=lead) as server:
        said = run("sub_agent_team", server, tmp_path, "Where to in May?", "And in June?")
    assert said.splitlines() == ["I read 2 reports."] * 2
    assert server.refused == []
    scouts = [asked for asked in server.requests if "three good places" in asked.system]
    assert "Nothing was said before." in scouts[0].context
    assert "Where to in May?" in scouts[1].context
    assert "You lead a team" not in scouts[1].context
    team = ["user", "assistant", "tool", "assistant", "tool", "assistant"]
    assert roles(tmp_path, "team.db", "trip") == team * 2


def test_a_service_streams_and_keeps_its_users_apart(tmp_path: Path) -> None:
    def known(asked: Received) -> str:
        names = re.findall(r"I am (\w+)", asked.context)
        return f"You are {names[-1]}." if names else "Who are you?"

    with (
        ScriptedServer(otherwise=known) as server,
        subprocess.Popen(
            [sys.executable, str(ROOT / "examples" / "fastapi_chat.py")],
            cwd=tmp_path,
            env={**environment(server), "PORT": "0"},
            stderr=subprocess.PIPE,
            text=True,
        ) as service,
    ):
        try:
            assert service.stderr
            address = next(
                found[0]
                for line in service.stderr
                if (found := re.findall(r"http://[\d.:]+", line))
            )
            with httpx.Client(base_url=address, timeout=30) as client:

                def ask(user: str, text: str, id: str | None = None) -> str:
                    body = {"text": text, "id": id}
                    with client.stream("POST", f"/chat/{user}", json=body) as response:
                        return "".join(response.iter_text())

                assert ask("ana", "I am Ana.") == "You are Ana."
                assert ask("ben", "Who am I?") == "Who are you?"
                assert ask("ana", "Who am I?", "q1") == "You are Ana."
                asked = len(server.requests)
                assert ask("ana", "Who am I?", "q1") == "You are Ana."
                assert len(server.requests) == asked  # it was sent twice, and answered once
        finally:
            service.terminate()
    assert server.refused == []


ELSEWHERE = """
import runpy, sys, discord.gateway, discord.http, yarl
api, gateway, path = sys.argv[1:]
discord.http.Route.BASE = api
discord.gateway.DiscordWebSocket.DEFAULT_GATEWAY = yarl.URL(gateway)
runpy.run_path(path, run_name="__main__")
"""


@asynccontextmanager
async def bot(discord: DiscordServer, server: ScriptedServer, folder: Path) -> AsyncGenerator[None]:
    """Run the bot until the block is left."""
    before = discord.gateway.identified
    path = str(ROOT / "examples" / "discord_bot.py")
    program = await asyncio.create_subprocess_exec(
        *[sys.executable, "-c", ELSEWHERE, discord.url, discord.gateway.url, path],
        cwd=folder,
        env={**environment(server), "DISCORD_TOKEN": TOKEN},
    )
    try:
        await discord.until(lambda: discord.gateway.identified > before)
        yield
    finally:
        program.terminate()
        await program.wait()


async def test_a_bot_knows_its_channel_after_a_restart(tmp_path: Path) -> None:
    def known(asked: Received) -> str:
        colours = re.findall(r"I like (\w+)", asked.context)
        return f"You like {' and '.join(colours) or 'nothing'}."

    async with DiscordServer() as discord:
        guild = discord.world.guild("Harbour")
        channels = [discord.world.channel(guild, name) for name in ("general", "other")]
        ana, bea = discord.world.user("ana", "Ana"), discord.world.user("bea", "Bea")

        async def ask(who: User, text: str, place: Channel = channels[0]) -> str:
            count = len(discord.posted(place))
            await discord.say(place, who, f"{discord.world.me.mention} {text}")
            await discord.until(lambda: len(discord.posted(place)) > count)
            return discord.posted(place)[-1]

        with ScriptedServer(otherwise=known) as server:
            async with bot(discord, server, tmp_path):
                assert await ask(ana, "I like red") == "You like red."
                assert await ask(bea, "I like blue") == "You like red and blue."
            async with bot(discord, server, tmp_path):
                assert await ask(ana, "What do we like?") == "You like red and blue."
                assert await ask(ana, "What do we like?", channels[1]) == "You like nothing."
    assert server.refused == []
    assert "bea" in server.requests[2].context  # people are told apart


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_can_be_read_at_one_sitting(path: Path) -> None:
    lines = path.read_text().splitlines()
    assert len(lines) < 80, len(lines)
    assert "pip install" in lines[2], "it says what it needs"
    assert (ROOT / "examples" / "README.md").read_text().count(f"({path.name})") == 1
