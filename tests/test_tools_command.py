"""`keepthread tools`: servers are added, listed and tried, and a tool with side effects asks."""

import json
import sys
from pathlib import Path

from keepthread.testing.server import ScriptedServer
from tests.chatting import home
from tests.preloaded import KEEPTHREAD
from tests.terminal import Terminal

RUN = """
from mcp.server import MCPServer

server = MCPServer("sky")


@server.tool()
def weather(city: str) -> str:
    "Tell how warm it is."
    return f"19 °C in {city}"


server.run()
"""
SKY = [sys.executable, "-c", RUN]
CALL = ["tools", "test", "sky", "weather", '{"city": "Tokyo"}']


async def test_a_server_is_added_listed_and_tried(tmp_path: Path) -> None:
    with ScriptedServer([]) as server:
        place = home(tmp_path, server, SKY_KEY="sk-very-secret")
        assert b"There are no servers" in place.run("tools").stderr
        added = place.run("tools", "add", "sky", "--env", "SKY_KEY", "--", *SKY)
        assert added.returncode == 0, added.stderr
        file = tmp_path / "config" / "keepthread" / "mcp.json"
        assert b"tools test sky` tests it" in added.stderr
        assert file.stat().st_mode & 0o777 == 0o600
        entry = json.loads(file.read_text())["mcpServers"]["sky"]
        assert entry == {"command": SKY[0], "args": SKY[1:], "env": {"SKY_KEY": "${SKY_KEY}"}}
        again = place.run("tools", "add", "sky", "--url", "https://sky.example/mcp")
        assert again.returncode == 2
        assert b"already has a server sky; use --replace" in again.stderr
        secret = place.run("tools", "add", "two", "--env", "SKY_KEY=sk-very-secret", "--", "x")
        assert b"--env takes the name of a variable" in secret.stderr
        assert b"sk-very-secret" not in secret.stderr
        listed = place.run("tools", "list", "--json").stdout
        assert json.loads(listed) == {"name": "sky", "reached": SKY[0], "disabled": False}
        tried = place.run("tools", "test", "sky", "--json")
        assert "weather" in json.loads(tried.stdout)["tools"], tried.stderr
        refused = place.run(*CALL)
        assert b"weather may have side effects, and there is no terminal to ask" in refused.stderr
        called = place.run(*CALL, "--yes")
        assert b"Tokyo" in called.stdout, called.stderr
        env = {name: value for name, value in place.env.items() if value is not None}
        with Terminal([KEEPTHREAD, *CALL], env=env, cwd=tmp_path) as terminal:
            terminal.wait_for("may have side effects. Call it with", 60)
            terminal.type("n\r")
            assert terminal.exit_code(60) == 1
            assert "Nothing was called" in terminal.transcript


async def test_a_server_that_does_not_start_is_named(tmp_path: Path) -> None:
    with ScriptedServer([]) as server:
        place = home(tmp_path, server)
        place.run("tools", "add", "gone", "--", "/no/such/program")
        tried = place.run("tools", "test")
        assert tried.returncode == 1
        assert b"gone" in tried.stderr
        assert b"Traceback" not in tried.stderr
