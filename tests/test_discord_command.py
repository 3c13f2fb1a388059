"""`keepthread discord` as an operator meets it: the real program between two servers."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from keepthread.apps.cli.settings.fields import numbers_of
from keepthread.apps.cli.settings.load import read_config
from keepthread.errors import InvalidInput
from keepthread.testing.server import ScriptedServer
from tests.discord_server import TOKEN, DiscordServer
from tests.preloaded import KEEPTHREAD
from tests.test_brief_chat import planning
from tests.weather import stage_of


def environment(folder: Path, settings: str = "", **more: str) -> dict[str, str]:
    own = folder / "config.yaml"
    own.write_text(settings or "model:\n  name: parrot\n")
    return {**os.environ, "KEEPTHREAD_CONFIG": str(own), **more}


def outcome(env: Mapping[str, str], *command: str) -> tuple[int, str]:
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.stdout == ""
    return done.returncode, done.stderr


def test_what_is_missing_is_told_with_what_to_do(tmp_path: Path) -> None:
    env = environment(tmp_path, OPENAI_API_KEY="key", KEEPTHREAD_STORE=f"sqlite:///{tmp_path}/m.db")
    code, said = outcome(env, str(KEEPTHREAD), "discord")
    assert code == 2
    assert said.startswith("error: there is no token: export DISCORD_TOKEN=… with the token")
    without = "import sys; sys.modules['discord'] = None; sys.argv = ['keepthread', 'discord']\n"
    without += "from keepthread.apps.cli import main; sys.exit(main())"
    code, said = outcome({**env, "DISCORD_TOKEN": TOKEN}, sys.executable, "-c", without)
    assert code == 2
    assert "needs discord: pip install 'keepthread[discord]'" in said


def test_a_token_in_a_file_is_refused_with_the_way_to_give_it(tmp_path: Path) -> None:
    env = environment(tmp_path, f"discord:\n  token: {TOKEN}\n")
    code, said = outcome(env, str(KEEPTHREAD), "discord")
    assert code == 2
    assert "export DISCORD_TOKEN=…" in said
    assert TOKEN not in said


@pytest.mark.parametrize("guilds", ["812345678901234567", "'12, 34 56'"])
def test_guilds_are_numbers(tmp_path: Path, guilds: str) -> None:
    env = environment(tmp_path, f"discord:\n  guilds: {guilds}\n")
    settings = read_config(env, tmp_path).settings.discord
    assert numbers_of(settings.guilds) in ([812345678901234567], [12, 34, 56])


@pytest.mark.parametrize("guilds", ["nobody", "0", "-5", "''", "'12, x'", "1.5", "true", "[1, 2]"])
def test_what_is_no_number_is_no_guild(tmp_path: Path, guilds: str) -> None:
    env = environment(tmp_path, f"discord:\n  guilds: {guilds}\n")
    with pytest.raises(InvalidInput, match=r"discord\.guilds"):
        read_config(env, tmp_path)


@asynccontextmanager
async def running(
    env: Mapping[str, str], server: DiscordServer, *options: str
) -> AsyncGenerator[list[str]]:
    """Run the program until the block is left, and read what it says."""
    before = server.gateway.identified
    program = await asyncio.create_subprocess_exec(
        KEEPTHREAD, "discord", *options, env=env, stderr=subprocess.PIPE
    )
    assert program.stderr is not None
    said: list[str] = []
    try:
        await server.until(lambda: server.gateway.identified > before)
        while not said or "silent" not in said[-1]:
            said.append((await program.stderr.readline()).decode().rstrip())
        yield said
        program.send_signal(signal.SIGTERM)
        rest = (await program.stderr.read()).decode()
        assert rest == ""
        assert await program.wait() == 128 + signal.SIGTERM
    finally:
        if program.returncode is None:
            program.kill()
            await program.wait()


async def test_it_says_who_it_is_and_after_a_restart_it_knows_what_was_said(
    tmp_path: Path, vocabularies: Path
) -> None:
    def told(asked: Any) -> str:
        return f"answer to {asked.text.partition(': ')[2]}"

    with ScriptedServer(otherwise=told) as model:
        async with DiscordServer() as server:
            world = server.world
            guild, other = world.guild("Harbour"), world.guild("Elsewhere")
            channel = world.channel(guild, "general")
            people = [world.user("ana", "Ana"), world.user("bea", "Bea")]
            env = environment(
                tmp_path,
                DISCORD_TOKEN=TOKEN,
                KEEPTHREAD_DISCORD_BASE_URL=server.url,
                KEEPTHREAD_DISCORD_GUILDS=str(guild),
                KEEPTHREAD_MODEL_BASE_URL=model.openai,
                KEEPTHREAD_STORE=f"sqlite:///{tmp_path}/memory.db",
            )
            async with running(env, server) as said:
                for number in range(10):
                    who = people[number % 2]
                    await server.say(channel, who, f"{world.me.mention} question {number}")
                await server.until(lambda: len(server.posted(channel)) == 10)
            assert said == [
                f"model: parrot; messages are stored in {tmp_path}/memory.db",
                f"logged in as keepthread ({world.me.id})",
                f"answers in Harbour ({guild})",
                f"is silent in Elsewhere ({other}): to allow it, add {other} to discord.guilds",
            ]
            async with running(env, server):
                await server.say(channel, people[0], f"{world.me.mention} question 10")
                await server.until(lambda: len(server.posted(channel)) == 11)
            assert server.posted(channel) == [f"answer to question {n}" for n in range(11)]
    *before, newest = (message["content"] for message in model.requests[-1].body["messages"][1:])
    talk = [
        said
        for n in range(10)
        for said in (
            f"{'AnaBea'[n % 2 * 3 :][:3]} ({people[n % 2].id}): question {n}",
            f"answer to question {n}",
        )
    ]
    assert before == talk
    assert newest == f"Ana ({people[0].id}): question 10"
    assert "channel on Discord" in model.requests[-1].system


async def test_orchestrated_it_gives_steps_to_the_agents_of_the_settings(tmp_path: Path) -> None:
    agent = "agents: {sky: {description: Clouds, system: You are the sky., model: small-sky}}\n"
    with ScriptedServer(otherwise=planning("sky")) as model:
        async with DiscordServer() as server:
            world = server.world
            guild, _ = world.guild("Harbour"), world.guild("Elsewhere")
            channel, ana = world.channel(guild, "general"), world.user("ana", "Ana")
            env = environment(
                tmp_path,
                f"{agent}model: {{name: parrot}}\n",
                DISCORD_TOKEN=TOKEN,
                KEEPTHREAD_DISCORD_BASE_URL=server.url,
                KEEPTHREAD_DISCORD_GUILDS=str(guild),
                KEEPTHREAD_MODEL_BASE_URL=model.openai,
                KEEPTHREAD_STORE=f"sqlite:///{tmp_path}/memory.db",
            )
            async with running(env, server, "--orchestrate"):
                await server.say(channel, ana, f"{world.me.mention} the weather in Tokyo?")
                await server.until(lambda: len(server.posted(channel)) == 1)
        asked = next(each for each in model.requests if stage_of(each) == "specialist")
        assert asked.system.startswith("You are the sky.\n\n")
        assert asked.body["model"] == "small-sky"
        assert [tool["function"]["name"] for tool in asked.body["tools"]] == ["remember"]
        last = model.requests[-1]
        assert (stage_of(last), len(last.body["tools"])) == ("synthesizer", 2)
