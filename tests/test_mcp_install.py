"""`keepthread mcp install`: the entry in each client's own file, and nothing else changed."""

import json
import os
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from keepthread.apps.hooks.client import parsed
from keepthread.apps.mcp import json_edit
from keepthread.apps.mcp.clients import (
    CLIENTS,
    SettingsFile,
    server_address,
    snippet,
    with_entry,
    without_entry,
)
from keepthread.apps.mcp.hook_entries import HOOK_FILES, group_of, with_hooks, without_hooks
from keepthread.errors import InvalidInput
from tests.hostile_pairs import NAMES as NAME_PAIRS
from tests.preloaded import KEEPTHREAD
from tests.seeds import examples
from tests.test_cli import keepthread

ROOT = Path(__file__).parents[1]
RUN = [sys.executable, "-P", "-m", "keepthread"]
"""How a program that was not started by its own name is started again: not from its folder."""
PINS = ["--tenant", "default", "--owner", "default"]
"""What an entry says of whose memory it is, if nothing else is set."""
COMMAND = ["/usr/bin/keepthread", "mcp"]
PROGRAM: dict[str, Any] = {
    "type": "object",
    "properties": {
        "type": {"const": "stdio"},
        "command": {"type": "string", "minLength": 1},
        "args": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["command", "args"],
    "additionalProperties": False,
}
"""What all clients document of a server that they start."""
KEY = "KEEPTHREAD_KEY"
URL = "https://memory.example.com/mcp"
REMOTE: dict[str, dict[str, Any]] = {
    "claude-code": {
        "type": "http",
        "url": URL,
        "headers": {"Authorization": "Bearer ${KEEPTHREAD_KEY}"},
    },
    "codex": {"url": URL, "bearer_token_env_var": KEY},
    "gemini": {"httpUrl": URL, "headers": {"Authorization": "Bearer $KEEPTHREAD_KEY"}},
    "vscode": {
        "type": "http",
        "url": URL,
        "headers": {"Authorization": "Bearer ${env:KEEPTHREAD_KEY}"},
    },
    "cursor": {"url": URL, "headers": {"Authorization": "Bearer ${env:KEEPTHREAD_KEY}"}},
}
"""What each client documents of a server at an address, with the key in a variable."""
HOOKS: dict[str, Any] = {
    "type": "object",
    "propertyNames": {
        "enum": ["SessionStart", "UserPromptSubmit", "Stop", "SubagentStop", "SessionEnd"]
    },
    "additionalProperties": {
        "type": "array",
        "items": {
            "type": "object",
            "properties": {
                "matcher": {"type": "string"},
                "hooks": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "properties": {
                            "type": {"const": "command"},
                            "command": {"type": "string", "minLength": 1},
                            "timeout": {"type": "integer", "minimum": 1},
                        },
                        "required": ["type", "command"],
                        "additionalProperties": False,
                    },
                },
            },
            "required": ["hooks"],
            "additionalProperties": False,
        },
    },
}
"""What Claude Code and Codex document of hooks: events, groups, commands."""
HOOK_PATHS = {"claude-code": ".claude/settings.json", "codex": ".codex/hooks.json"}
DOCUMENTED: dict[str, tuple[str, str, bool]] = {
    "claude-code": (".claude.json", "mcpServers", True),
    "codex": (".codex/config.toml", "mcp_servers", False),
    "gemini": (".gemini/settings.json", "mcpServers", False),
    "vscode": (".config/Code/User/mcp.json", "servers", True),
    "cursor": (".cursor/mcp.json", "mcpServers", True),
}
"""The file in the home folder, the key of its servers, and whether a server has a type."""
OTHERS = {
    "json": '{\n  // mine\n  "theme": "dark", /* dark */\n  "%s": {\n'
    '    "other": {"command": "x"} // keep\n  },\n}\n',
    "toml": 'model = "o5" # mine\n\n[%s.other]\ncommand = "x" # keep\n\n[tui]\nx = 1\n',
}


def read(path: Path, text: str) -> Any:
    return tomllib.loads(text) if path.suffix == ".toml" else json.loads(json_edit.plain(text))


def started(entry: dict[str, Any]) -> list[str]:
    return [entry["command"], *entry["args"]]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for name in ("CLAUDE_CONFIG_DIR", "CODEX_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.mark.parametrize("name", CLIENTS)
def test_a_client_is_connected_and_the_rest_of_its_file_stays(name: str, home: Path) -> None:
    where, container, typed = DOCUMENTED[name]
    path = home / where
    before = OTHERS[path.suffix[1:]] % container
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(before)
    done = keepthread("mcp", "install", name, "--store", "work.db", "--write")
    assert done.returncode == 0, done.stderr
    added = [line for line in done.stderr.splitlines() if line.startswith("  +")]
    assert added
    after = path.read_text()
    assert all(line.strip().lstrip("+") in after for line in added)
    assert after.count("mine") == after.count("keep\n") == 1
    servers = read(path, after)[container]
    Draft202012Validator(PROGRAM).validate(servers["keepthread"])
    assert ("type" in servers["keepthread"]) == typed
    assert servers["other"] == {"command": "x"}
    assert started(servers["keepthread"]) == [
        *(*RUN, "mcp", "--store", str(home / "work.db")),
        *PINS,
    ]
    again = keepthread("mcp", "install", name, "--store", "work.db", "--write")
    assert "already has this entry; it is unchanged" in again.stderr
    gone = keepthread("mcp", "install", name, "--remove")
    assert "keepthread was removed from" in gone.stderr
    assert path.read_text() == before


def test_without_write_the_entry_is_printed_and_nothing_is_written(home: Path) -> None:
    for name, (where, container, _) in DOCUMENTED.items():
        path = home / where
        shown = keepthread("mcp", "install", name)
        assert started(read(path, shown.stdout)[container]["keepthread"]) == [*RUN, "mcp", *PINS]
        assert f"Add this to {path}" in shown.stderr
        assert not path.exists()
        as_json = json.loads(keepthread("mcp", "install", name, "--json").stdout)
        assert (as_json["client"], as_json["file"]) == (name, str(path))
        assert as_json["entry"].strip() == shown.stdout.strip()


def test_the_entry_names_the_program_by_its_full_path(home: Path) -> None:
    shown = subprocess.check_output(
        [KEEPTHREAD, "mcp", "install", "codex"], text=True, stderr=subprocess.DEVNULL
    )
    entry = tomllib.loads(shown)["mcp_servers"]["keepthread"]
    assert started(entry) == [str(KEEPTHREAD), "mcp", *PINS]


def test_another_file_and_a_new_one(home: Path) -> None:
    path = home / "project" / ".mcp.json"
    options = ("--file", str(path), "--allow-forget", "--write")
    assert keepthread("mcp", "install", "claude-code", *options).returncode == 0
    entry = json.loads(path.read_text())["mcpServers"]["keepthread"]
    assert started(entry) == [*RUN, "mcp", *PINS, "--allow-forget"]
    assert path.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("emacs",), "'emacs' is not a known client; choose one of claude-code, codex"),
        (("codex", "--write", "--remove"), "not both"),
        (("codex", "--owner", ""), "owner must be 1 to 255 printable characters"),
        (("codex", "--store", "postgresql://me:secret@db/x"), "contains a password"),
    ],
)
def test_a_mistake_is_explained(arguments: tuple[str, ...], reason: str, home: Path) -> None:
    done = keepthread("mcp", "install", *arguments)
    assert done.returncode == 2
    assert reason in done.stderr
    assert "secret" not in done.stderr


@pytest.mark.parametrize(("one", "other"), NAME_PAIRS)
def test_an_entry_and_its_hooks_name_the_tenant_and_the_owner_of_now(
    one: str, other: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEEPTHREAD_MEMORY_OWNER", one)
    monkeypatch.setenv("KEEPTHREAD_MEMORY_TENANT", other)
    for options, owner, tenant in (
        ((), one, other),
        (("--owner", other, "--tenant", one), other, one),
    ):
        shown = keepthread("mcp", "install", "claude-code", "--hooks", "--json", *options)
        found = json.loads(shown.stdout)
        entry = json.loads(found["entry"])["mcpServers"]["keepthread"]
        pins = ["--tenant", tenant, "--owner", owner]
        assert started(entry) == [*RUN, "mcp", *pins]
        groups = json.loads(found["hooks"]["entry"])["hooks"]["Stop"]
        words = shlex.split(groups[0]["hooks"][0]["command"])
        assert words == [*RUN, "hook", "claude-code", *pins]
        assert parsed(words[len(RUN) + 1 :]) == {
            "agent": "claude-code",
            "tenant": tenant,
            "owner": owner,
        }


BROKEN = ("[1]", '{"mcpServers": []}', "{", '{"mcpServers": {"a": }}', "{} {}")


@pytest.mark.parametrize("text", BROKEN)
def test_a_file_that_cannot_be_read_is_left_alone(text: str, home: Path) -> None:
    path = home / ".cursor" / "mcp.json"
    path.parent.mkdir()
    path.write_text(text)
    for option in ("--write", "--remove"):
        done = keepthread("mcp", "install", "cursor", option)
        assert (done.returncode, path.read_text()) == (2, text)
        assert "by hand" in done.stderr


@pytest.mark.parametrize(
    "text",
    [
        'mcp_servers = {keepthread = {command = "x"}}\n',
        'x = """\n[mcp_servers.keepthread]\n"""\n[mcp_servers]\nkeepthread.command = "x"\n',
    ],
)
def test_a_table_in_another_form_is_left_alone(text: str) -> None:
    client = CLIENTS["codex"]
    for change in (with_entry, without_entry):
        with pytest.raises(InvalidInput, match="by hand"):
            change(client, Path("c.toml"), text, *([COMMAND] if change is with_entry else []))


# --- links and modes ---

ENTRY = '{"mcpServers": {"other": {"command": "x"}}}'


@pytest.mark.parametrize("option", ["--write", "--remove"])
@pytest.mark.parametrize("named", [".mcp.json", "sub/../.mcp.json", "{project}/.mcp.json"])
@pytest.mark.parametrize("there", [True, False])
def test_a_link_in_a_project_is_not_followed(
    there: bool, named: str, option: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, secret = home / "project", home / "secret" / "other.json"
    secret.parent.mkdir()
    (project / "sub").mkdir(parents=True)
    (project / ".git").mkdir()
    if there:
        secret.write_text(ENTRY)
        secret.chmod(0o640)
    (project / ".mcp.json").symlink_to(secret)
    monkeypatch.chdir(project)
    file = named.format(project=project)
    done = keepthread("mcp", "install", "claude-code", option, "--file", file)
    assert done.returncode == 2
    assert f"--file {secret}" in done.stderr
    assert (project / ".mcp.json").is_symlink()
    assert secret.exists() == there
    if there:
        assert (secret.read_text(), secret.stat().st_mode & 0o777) == (ENTRY, 0o640)
    assert (
        keepthread("mcp", "install", "claude-code", "--write", "--file", str(secret)).stdout == ""
    )
    assert "keepthread" in secret.read_text()


def test_a_folder_in_a_project_that_is_a_link_is_not_followed(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, other = home / "project", home / "other"
    (other / ".git").mkdir(parents=True)
    project.mkdir()
    (project / ".cursor").symlink_to(other)
    monkeypatch.chdir(project)
    for file in (".cursor/mcp.json", f"{project}/.cursor/mcp.json", ".cursor/new/mcp.json"):
        done = keepthread("mcp", "install", "cursor", "--write", "--file", file)
        assert done.returncode == 2
        assert f"{project}/.cursor is a link to {other}" in done.stderr
    assert [each.name for each in other.iterdir()] == [".git"]
    # A link that leads to the user's own folder is above the project.
    (home / "elsewhere").mkdir()
    (home / "elsewhere" / "short").symlink_to(project)
    monkeypatch.chdir(home / "elsewhere" / "short")
    assert keepthread("mcp", "install", "cursor", "--write", "--file", "x.json").returncode == 0
    assert (project / "x.json").is_file()


def test_a_pipe_is_not_read(home: Path) -> None:
    os.mkfifo(home / ".mcp.json")
    done = keepthread("mcp", "install", "claude-code", "--write", "--file", ".mcp.json")
    assert (done.returncode, "is not a file" in done.stderr) == (2, True)


def test_a_persons_own_file_may_be_a_link(home: Path) -> None:
    real = home / "dotfiles" / "claude.json"
    real.parent.mkdir()
    real.write_text(ENTRY)
    (home / ".claude.json").symlink_to(real)
    assert keepthread("mcp", "install", "claude-code", "--write").returncode == 0
    assert (home / ".claude.json").is_symlink()
    assert set(json.loads(real.read_text())["mcpServers"]) == {"other", "keepthread"}


@pytest.mark.parametrize("mode", [0o400, 0o440, 0o600, 0o640, 0o664, 0o666])
@pytest.mark.parametrize("file", [(), ("--file", ".mcp.json")])
def test_no_mode_is_widened(file: tuple[str, ...], mode: int, home: Path) -> None:
    path = home / (file[1] if file else ".claude.json")
    path.write_text(ENTRY)
    path.chmod(mode)
    assert keepthread("mcp", "install", "claude-code", "--write", *file).returncode == 0
    assert path.stat().st_mode & 0o777 == mode & 0o600
    assert set(json.loads(path.read_text())["mcpServers"]) == {"other", "keepthread"}


# --- a server at an address ---


@pytest.mark.parametrize("name", CLIENTS)
def test_a_client_of_a_server_is_told_the_name_of_the_variable_with_the_key(
    name: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY, "kt_secret")
    where, container, _ = DOCUMENTED[name]
    done = keepthread("mcp", "install", name, "--url", URL, "--write")
    assert done.returncode == 0, done.stderr
    assert (
        f"Set {KEY} to the server's key in the environment of {CLIENTS[name].title}" in done.stderr
    )
    text = (home / where).read_text()
    assert read(home / where, text)[container]["keepthread"] == REMOTE[name]
    assert "kt_secret" not in text + done.stdout + done.stderr
    assert keepthread("mcp", "install", name, "--remove").returncode == 0
    assert "keepthread" not in (home / where).read_text()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--url", "memory.db"), "--url must be the URL of a server, such as"),
        (("--url", "http://me:secret@x/mcp"), "contains a password or a query"),
        (("--url", "http://x/mcp?key=secret"), "contains a password or a query"),
        (("--url", URL, "--owner", "ana"), "the server's key determines the owner"),
        (("--url", URL, "--hooks"), "hooks use the store on this machine"),
        (("--file", "x.json", "--hooks"), "hooks use the store on this machine"),
    ],
)
def test_a_mistaken_address_is_explained(
    arguments: tuple[str, ...], reason: str, home: Path
) -> None:
    done = keepthread("mcp", "install", "claude-code", *arguments)
    assert done.returncode == 2
    assert reason in done.stderr
    assert "secret" not in done.stderr


def test_an_address_without_a_path_means_its_mcp() -> None:
    assert server_address("http://localhost:8765/") == "http://localhost:8765/mcp"
    assert server_address(URL) == URL


# --- hooks ---

MINE: dict[str, Any] = {
    "model": "opus",
    "hooks": {
        "Stop": [{"hooks": [{"type": "command", "command": "say done"}]}],
        "PreToolUse": [{"matcher": "Bash", "hooks": [{"type": "command", "command": "x"}]}],
    },
}


@pytest.mark.parametrize("name", HOOK_FILES)
def test_hooks_come_and_go_and_other_hooks_stay(name: str, home: Path) -> None:
    path = home / HOOK_PATHS[name]
    path.parent.mkdir()
    before = json.dumps(MINE, indent=2) + "\n"
    path.write_text(before)
    options = ("--hooks", "--all-projects", "--store", "work.db")
    done = keepthread("mcp", "install", name, *options, "--write")
    assert done.returncode == 0, done.stderr
    assert ("open /hooks in Codex" in done.stderr) == (name == "codex")
    after = json.loads(path.read_text())
    events = {k: v for k, v in after["hooks"].items() if k != "PreToolUse"}
    Draft202012Validator(HOOKS).validate(events)
    assert after["hooks"]["PreToolUse"] == MINE["hooks"]["PreToolUse"]
    assert after["hooks"]["Stop"][0] == MINE["hooks"]["Stop"][0]
    line = events["UserPromptSubmit"][0]["hooks"][0]["command"]
    store = str(home / "work.db")
    assert shlex.split(line) == [*RUN, "hook", name, "--store", store, *PINS, "--all-projects"]
    assert all(groups[-1] == events["UserPromptSubmit"][0] for groups in events.values())
    assert set(events) == set(HOOK_FILES[name].events)
    again = keepthread("mcp", "install", name, *options, "--write")
    assert "it is unchanged" in again.stderr
    keepthread("mcp", "install", name, "--hooks", "--write")  # with other options
    stop = json.loads(path.read_text())["hooks"]["Stop"]
    assert len(stop) == 2, "it takes the place of the earlier one"
    assert "--all-projects" not in stop[1]["hooks"][0]["command"]
    assert keepthread("mcp", "install", name, "--remove").returncode == 0
    assert path.read_text() == before


def test_hooks_are_printed_and_nothing_is_written(home: Path) -> None:
    for name, where in HOOK_PATHS.items():
        shown = keepthread("mcp", "install", name, "--hooks")
        assert f"Add this to {home / where}" in shown.stderr
        as_json = json.loads(keepthread("mcp", "install", name, "--hooks", "--json").stdout)
        hooks = json.loads(as_json["hooks"]["entry"])["hooks"]
        Draft202012Validator(HOOKS).validate(hooks)
        assert as_json["hooks"]["file"] == str(home / where)
        assert as_json["hooks"]["entry"].strip() in shown.stdout
    assert [*home.iterdir()] == []
    refused = keepthread("mcp", "install", "cursor", "--hooks")
    assert refused.returncode == 2
    assert "--hooks supports only claude-code and codex" in refused.stderr


@pytest.mark.parametrize("name", HOOK_FILES)
@pytest.mark.parametrize(
    "line",
    [
        "keepthread export > backup.jsonl",
        "cd ~/keepthread && make lint",
        "keepthread hooked {name}",
        "run-hook {name}",
        "/usr/bin/keepthread hook {other}",
    ],
)
def test_a_hook_that_only_mentions_keepthread_is_the_users(line: str, name: str) -> None:
    (other,) = {*HOOK_FILES} - {name}
    mine = {"hooks": [{"type": "command", "command": line.format(name=name, other=other)}]}
    text = json.dumps({"hooks": {"Stop": [mine]}})
    command = ["/usr/bin/keepthread", "hook", name]
    after = with_hooks(name, Path("settings.json"), text, command)
    assert json.loads(after)["hooks"]["Stop"] == [mine, group_of(command)]
    assert json.loads(without_hooks(name, Path("settings.json"), after))["hooks"]["Stop"] == [mine]


@pytest.mark.parametrize(
    "text",
    ["[1]", "{", '{"hooks": []}', '{"hooks": {"Stop": {}}}', '{"hooks": {"Stop": [ // mine\n]}}'],
)
def test_hooks_that_cannot_be_changed_safely_are_left_alone(text: str) -> None:
    with pytest.raises(InvalidInput, match="by hand"):
        with_hooks(
            "claude-code", Path("settings.json"), text, [*COMMAND[:1], "hook", "claude-code"]
        )


# --- laws of the texts ---

NAMES = st.sampled_from(["a", "keepthread2", "\\u00e9", 'q"uote', "{", "//", "/*", "x y"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | NAMES,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner, max_size=2),
    max_leaves=5,
)
GROUPS = st.lists(
    st.fixed_dictionaries(
        {"hooks": st.lists(st.fixed_dictionaries({"command": st.text(max_size=9)}), max_size=2)}
    ),
    max_size=2,
)


@given(
    st.dictionaries(st.sampled_from(["Stop", "UserPromptSubmit", "PreToolUse"]), GROUPS),
    st.dictionaries(st.sampled_from(["model", "env", "a//b"]), VALUES, max_size=2),
    st.sampled_from([None, 2, 4]),
)
@settings(max_examples=examples(30), deadline=None)
def test_hooks_come_and_go_and_every_other_value_stays(
    hooks: dict[str, Any], others: dict[str, Any], indent: int | None
) -> None:
    path, command = Path("settings.json"), ["/usr/bin/keepthread", "hook", "claude-code"]
    before = {**others, "hooks": hooks}
    text = json.dumps(before, indent=indent)
    after = with_hooks("claude-code", path, text, command)
    value = json.loads(after)
    ours = group_of(command)
    assert all(ours in value["hooks"][event] for event in HOOK_FILES["claude-code"].events)
    assert with_hooks("claude-code", path, after, command) == after
    gone = json.loads(without_hooks("claude-code", path, after))
    kept = {event: groups for event, groups in gone["hooks"].items() if groups}
    assert kept == {event: groups for event, groups in hooks.items() if groups}
    assert {k: v for k, v in gone.items() if k != "hooks"} == others


COMMENTS = st.sampled_from(["", " ", "\n", " // a comment {\n", "/* } , */", "\n\n\t"])


@st.composite
def documents(draw: Any) -> str:
    """Return a JSON text with comments, as people write it."""

    def written(value: Any) -> str:
        if not isinstance(value, dict):
            return json.dumps(value)
        blank = [draw(COMMENTS) for _ in range(4)]
        members = [f"{blank[0]}{json.dumps(k)}{blank[1]}:{written(v)}" for k, v in value.items()]
        trailing = "," if members and draw(st.booleans()) else ""
        return "{" + f"{blank[2]},".join(members) + blank[2] + trailing + blank[3] + "}"

    root = draw(st.dictionaries(NAMES, VALUES, max_size=2))
    if draw(st.booleans()):
        root["mcpServers"] = draw(st.dictionaries(NAMES, VALUES, min_size=1, max_size=2))
    return draw(COMMENTS) + written(root) + draw(COMMENTS)


@given(documents())
@settings(max_examples=examples(60), deadline=None)
def test_an_entry_comes_and_goes_and_every_other_value_and_comment_stays(text: str) -> None:
    client, path = CLIENTS["cursor"], Path("mcp.json")
    before = json.loads(json_edit.plain(text))
    after = with_entry(client, path, text, COMMAND)
    value = json.loads(json_edit.plain(after))
    assert value["mcpServers"].pop("keepthread") == client.entry(COMMAND)
    assert value == before | {"mcpServers": before.get("mcpServers", {})}
    assert with_entry(client, path, after, COMMAND) == after
    for comment in ("// a comment {", "/* } , */"):
        assert after.count(comment) == text.count(comment)
    gone = without_entry(client, path, after)
    assert json.loads(json_edit.plain(gone)) == value
    if "mcpServers" in before:
        assert "".join(gone.split()) == "".join(text.split())


@given(
    st.lists(
        st.sampled_from(["a = 1", "# c", "", '[t]\nx = """\n[y]\n"""', "[u.v] # d"]), unique=True
    )
)
def test_a_table_comes_and_goes_and_every_other_line_stays(parts: list[str]) -> None:
    client, path = CLIENTS["codex"], Path("config.toml")
    text = "".join(f"{part}\n" for part in parts)
    after = with_entry(client, path, text, COMMAND)
    assert after.startswith(text)
    assert with_entry(client, path, after + "\n[w]\n", COMMAND) == after + "\n[w]\n"
    assert without_entry(client, path, after) == text


def test_the_guide_shows_the_entries_that_are_written() -> None:
    guide = (ROOT / "docs" / "how-to" / "coding-agents.md").read_text()
    command = ["/home/ana/.local/bin/keepthread", "mcp", *PINS]
    for name in ("claude-code", "codex"):
        where = DOCUMENTED[name][0]
        kind = "toml" if where.endswith("toml") else "json"
        assert f"```{kind}\n{snippet(CLIENTS[name], Path(where), command)}```" in guide
        assert f"```{kind}\n{snippet(CLIENTS[name], Path(where), URL)}```" in guide
    hook = with_hooks("claude-code", Path("x"), "", [command[0], "hook", "claude-code", *PINS])
    assert f"```json\n{hook}```" in guide
    for name, client in CLIENTS.items():
        assert f"| {client.title} |" in guide
        assert f"`{name}`" in guide


def test_every_client_has_a_documented_file() -> None:
    assert set(CLIENTS) == set(DOCUMENTED)
    for name, client in CLIENTS.items():
        assert isinstance(client, SettingsFile)
        where, container, _ = DOCUMENTED[name]
        assert client.container == container
        assert snippet(client, Path(where), COMMAND).endswith("\n")
