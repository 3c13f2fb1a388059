"""A person's `mcp.json`: what it may say, who may say it, and that nothing secret is repeated."""

import json
from pathlib import Path
from typing import Any

import pytest

from keepthread.apps.cli.settings.mcp import McpFile, read_servers
from keepthread.errors import InvalidInput
from keepthread.orchestrator.mcp import Rule

SECRET = "sk-very-secret"


class Home:
    """A person's config folder, and a project."""

    def __init__(self, root: Path) -> None:
        self.own = root / "config" / "mcp.json"
        self.project = root / "project"
        self.own.parent.mkdir()
        self.project.mkdir()
        self.environ = {"KEEPTHREAD_CONFIG": str(self.own.with_name("config.yaml"))}

    def read(self, text: str | None = None, **environ: str) -> McpFile:
        if text is not None:
            self.own.write_text(text)
        return read_servers({**self.environ, **environ}, self.project)

    def read_one(self, **server: Any) -> McpFile:
        return self.read(json.dumps({"mcpServers": {"one": server}}), KEY=SECRET)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def test_servers_are_read_as_other_programs_write_them(home: Home) -> None:
    found = home.read(
        """{"mcpServers": {
            "weather": {
                "command": "weather-mcp", "args": ["--metric"], "cwd": "/srv",
                "env": {"KEY": "${WEATHER_KEY}", "LEVEL": "low"},
                "allow": ["forecast", "alert"], "timeout": 20,
                "tools": {"forecast": {"cache_turns": 3}, "alert": {"side_effects": true}}
            },
            "files": {
                "type": "http", "url": "https://files.example/mcp",
                "headers": {"Authorization": "Bearer ${FILES_KEY}"}
            },
            "off": {"command": "x", "env": {"KEY": "${NOT_SET}"}, "disabled": true}
        }}""",
        WEATHER_KEY=SECRET,
        FILES_KEY="abc",
    )
    weather, files = found.servers
    assert found.notes == []
    assert (weather.name, weather.command, weather.cwd) == ("weather", "weather-mcp", "/srv")
    assert weather.args == ["--metric"]
    assert weather.env == {"KEY": SECRET, "LEVEL": "low"}
    assert weather.allow == ["forecast", "alert"]
    assert weather.rules == {"forecast": Rule(cache_turns=3), "alert": Rule(side_effects=True)}
    assert weather.timeout == 20
    assert (files.url, files.headers) == (
        "https://files.example/mcp",
        {"Authorization": "Bearer abc"},
    )
    assert SECRET not in repr(found)


def test_without_a_file_there_are_no_servers(home: Home) -> None:
    assert not any(home.read())
    assert not any(home.read("{}"))


def test_a_project_can_name_no_servers(home: Home) -> None:
    theirs = home.project / "mcp.json"
    theirs.write_text('{"mcpServers": {"evil": {"command": "rm"}}}')
    (home.project / "keepthread.yaml").write_text("memory:\n  owner: ann\n")
    below = home.project / "src"
    below.mkdir()
    for folder in (home.project, below):
        found = read_servers(home.environ, folder)
        assert not found.servers
        (note,) = found.notes
        assert note.startswith(f"{theirs} is not used: projects may not define servers")
        assert note.endswith(f"copy the ones you trust into {home.own}")
    home.own.write_text("{}")
    assert read_servers(home.environ, home.own.parent).notes == []  # it is the person's own


def test_a_server_whose_variable_is_not_set_is_left_out(home: Home) -> None:
    found = home.read(
        '{"mcpServers": {"a": {"command": "x", "env": {"K": "${NOT_SET}"}}, "b": {"command": "y"}}}'
    )
    assert [server.name for server in found.servers] == ["b"]
    assert found.notes == [
        f"{home.own}: a is left out: NOT_SET is not set; export NOT_SET=…",
    ]


@pytest.mark.parametrize(
    ("server", "why"),
    [
        ({}, "one: it needs either a command or a url"),
        ({"command": "x", "url": "http://y"}, "one: it needs either a command or a url"),
        ({"command": SECRET, "headers": {}}, "one: headers does not go with command"),
        ({"command": "x", "type": "http"}, "one: type does not go with command"),
        ({"url": "http://y", "type": "sse"}, "one: type must be one of stdio, http"),
        ({"command": ["x"]}, "one: command must be a text"),
        ({"command": "x", "args": SECRET}, "one: args must be a list of texts"),
        ({"command": "x", "env": {"KEY": 7}}, "one: env must be names with texts"),
        ({"url": "http://y", "header": {"A": SECRET}}, "did you mean headers?"),
        ({"command": "x", "timeout": 0}, "one: timeout must be a number greater than 0"),
        ({"command": "x", "disabled": "no"}, "one: disabled must be true or false"),
        ({"command": "x", "args": ["${KEY}"]}, "variables are put into env and headers alone"),
        ({"url": f"ftp://{SECRET}"}, "one: url must be an address such as"),
        ({"url": "http://y", "headers": {"A": f"{SECRET}\nB: c"}}, "one: headers must be names"),
        (
            {"command": "x", "tools": {"t": {"cache_turns": -1}}},
            "cache_turns must be a whole number",
        ),
        ({"command": "x", "tools": {"t": {"cache_turn": 1}}}, "did you mean cache_turns?"),
        ({"command": "x", "tools": {"t": {"cache_turns": 1, "side_effects": True}}}, "set either"),
        ({"command": "x", "tools": [SECRET]}, "one: tools must be an object"),
    ],
)
def test_what_is_wrong_is_said_and_nothing_secret(
    home: Home, server: dict[str, Any], why: str
) -> None:
    with pytest.raises(InvalidInput) as raised:
        home.read_one(**server)
    assert why in str(raised.value)
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"servers": {}}', "mcp.json: 'servers' is not known; did you mean mcpServers?"),
        ('{"mcpServers": {"a": {"command": "x",}}}', "mcp.json, line 1: invalid JSON"),
        ("[]", "it must be an object"),
        ('{"mcpServers": {"a": 1}}', "a must be an object"),
        ('{"mcpServers": {"a": {"command": "x", "command": "y"}}}', "'command' appears twice"),
        ('{"mcpServers": ' + "[" * 100_000, "it is nested too deeply"),
        (" " * (1 << 20) + "{}", "is larger than 1 MB"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused(home: Home, text: str, why: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        home.read(text)
    assert why in str(raised.value)


def test_a_file_that_everybody_may_write_is_refused(home: Home) -> None:
    home.own.write_text("{}")
    home.own.chmod(0o666)
    with pytest.raises(InvalidInput, match="it is world-writable"):
        home.read()


def test_a_file_in_another_encoding_is_refused(home: Home) -> None:
    home.own.write_bytes(b'{"mcpServers": {"\xe4": {}}}')
    with pytest.raises(InvalidInput, match="it is not UTF-8 text"):
        home.read()
