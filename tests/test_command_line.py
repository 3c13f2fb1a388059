"""The command line as hands expect it: short ways, sessions, settings, secrets, a pager."""

import asyncio
import json
import re
import subprocess
import sys
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from keepthread import Memory
from keepthread.apps.cli import main
from keepthread.apps.cli.chat.startup import latest_session
from keepthread.apps.cli.report_types import counted, size_of
from keepthread.apps.cli.settings.load import with_values
from keepthread.interchange.copy import Copying
from keepthread.memory.owner import OwnerMemory
from keepthread.testing.server import ScriptedServer
from keepthread.types import Page, SessionInfo
from tests.chatting import home
from tests.preloaded import KEEPTHREAD
from tests.terminal import Terminal
from tests.test_cli import ask, keepthread

SECRET = "sk-a-key-that-nobody-may-see"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with a store that has sessions of two days."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("KEEPTHREAD_CONFIG", str(tmp_path / "config.yaml"))
    (tmp_path / "config.yaml").write_text("# mine\nmemory:\n  owner: ana # me\n")
    return tmp_path


def fill(store: str, **titles: str) -> None:
    """Let a store have sessions of three messages each, by id and title."""
    asyncio.run(_fill(store, titles))


async def _fill(store: str, titles: Mapping[str, str]) -> None:
    async with Memory.open(f"sqlite:///{store}") as memory:
        for id, title in titles.items():
            session = await memory.for_owner("ana").session(id, title=title)
            for number in range(3):
                await session.add_message("user", f"Message {number} of {id}")


# --- short ways ---


def test_a_question_is_an_argument_and_the_session_of_one_is_not_a_chat(
    tmp_path: Path,
) -> None:
    with ScriptedServer(["Sunny.", "Rainy.", "Yes.", "Again."]) as server:
        here = home(tmp_path, server)
        done = here.run("chat", "What is the weather?", "-m", "other", "-s", "Be brief.", "--json")
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout)
        assert (told["answer"], told["model"]) == ("Sunny.", "other")
        assert "Be brief." in json.dumps(server.requests[0].body)
        more = json.loads(here.run("chat", "-c", "And Tokyo?", "--json").stdout)
        assert more["session"] == told["session"]  # a question continues a question
        with here.chat("-c") as chat:  # a chat does not
            chat.sees("there are only one-question sessions")
            assert told["session"] not in chat.say("/status")
            chat.leave()
        with here.chat("-r", told["session"]) as chat:
            assert "Yes." in chat.say("Is it sunny?")
            chat.leave()
        assert here.run("chat", "--session", "nightly", "-p", "Again?").returncode == 0
        with here.chat("-c") as chat:  # once a person continued it, it is a chat
            assert told["session"] in chat.say("/status")
            chat.leave()
        two = here.run("chat", "one", "-p", "two")
        assert (two.returncode, b"two questions" in two.stderr) == (2, True)


class Pages:
    """An owner's memory that notes how many sessions were asked for at a time."""

    def __init__(self, memory: OwnerMemory) -> None:
        self._memory = memory
        self.sizes: list[int] = []

    async def list_sessions(self, *, limit: int, cursor: str | None) -> Page[SessionInfo]:
        self.sizes.append(limit)
        return await self._memory.list_sessions(limit=limit, cursor=cursor)


async def test_few_reads_pass_over_many_sessions_of_single_questions() -> None:
    async with Memory.open("ram://") as memory:
        owner = memory.for_owner("ana")
        pages: Any = Pages(owner)
        assert await latest_session(pages, one_shots=False) is None
        await (await owner.session("chat")).add_message("user", "Hello.")
        for number in range(700):
            await owner.session(f"q{number}", tags=["one-shot"])
        pages.sizes.clear()
        assert await latest_session(pages, one_shots=False) == "chat"
        assert pages.sizes == [20, 100, 500, 2_000]
        assert await latest_session(pages, one_shots=True) == "q699"
        await owner.delete_session("chat")
        assert not await latest_session(pages, one_shots=False)


def test_the_module_runs_the_command_and_a_path_is_a_store(place: Path) -> None:
    command = [sys.executable, "-m", "keepthread", "-V"]
    assert subprocess.check_output(command, text=True).startswith("keepthread ")
    missing = keepthread("sessions", "--store", "nope.db")
    assert "there is no store at nope.db yet" in missing.stderr


def test_sessions_are_searched_renamed_shown_pruned_and_forgotten_by_name(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEEPTHREAD_STORE", "notes.db")
    fill("notes.db", trip="Jakarta in May", soup="Miso")
    assert [s["id"] for s in ask("sessions", "--search", "JAKARTA")] == ["trip"]
    assert [s["id"] for s in ask("sessions", "--search", "sou")] == ["soup"]
    none = keepthread("sessions", "--search", "no such")
    assert "`keepthread search 'no such'` searches the messages" in none.stderr
    assert [m["content"] for m in ask("show", "trip", "--last", "2")] == [
        "Message 1 of trip",
        "Message 2 of trip",
    ]
    assert "exclude each other" in keepthread("show", "trip", "--last", "2", "--after", "1").stderr
    renamed = keepthread("rename", "soup", "Miso soup")
    assert renamed.stderr == "Session soup is now called Miso soup\n"
    (planned,) = ask("prune", "--days", "0", "--dry-run")
    assert (planned["would_prune"], planned["left"]) == (2, 0)
    assert {s["id"] for s in planned["sessions"]} == {"trip", "soup"}
    assert "Would delete 2 of 2 sessions" in keepthread("prune", "--days", "0", "--dry-run").stderr
    assert "two sessions are named" in keepthread("forget", "trip", "--session", "soup").stderr
    assert keepthread("forget", "trip", "--yes").returncode == 0
    assert [s["title"] for s in ask("sessions")] == ["Miso soup"]
    deleted = keepthread("delete", "soup", "--yes")
    assert deleted.stderr == "Deleted session soup, 3 messages; facts stay\n"


def test_numbers_have_their_nouns_and_sizes_their_units() -> None:
    assert [counted(n, "session") for n in (0, 1, 2_000)] == [
        "0 sessions",
        "1 session",
        "2,000 sessions",
    ]
    sizes = (0, 1, 999, 1_000, 999_949, 999_950, 1_500_000, 2_000_000_000)
    assert [size_of(size) for size in sizes] == [
        *("0 bytes", "1 byte", "999 bytes", "1.0 kB", "999.9 kB", "1.0 MB", "1.5 MB", "2.0 GB"),
    ]


# --- settings ---

HAND_WRITTEN = """\
# my settings
memory:
  owner: ana   # me

  # how long
  auto_prune_days: 30
model: {name: old}  # in braces
agents:
  scout:
    description: Looks around.
    tools:
      - weather
      # a comment below
"""


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("memory.owner", "bea"),
        ("memory.strategy", "recall"),
        ("model.name", None),
        ("model.price.input", 1.5),
        ("tokenizer", "cl100k"),
        ("chat.markdown", False),
        ("agents.scout.tools", ["a", "b"]),
        ("agents.scout.facts", True),
        ("views.small.tokens", 500),
    ],
)
def test_a_setting_is_written_and_all_other_text_stays(key: str, value: Any) -> None:
    text = with_values(HAND_WRITTEN.encode(), {key: value}, Path("config.yaml"))
    for comment in re.findall("#.*", HAND_WRITTEN):
        assert comment in text
    found: Any = yaml.safe_load(text)
    for part in key.split("."):
        found = found[part]
    assert found == value
    kept = [line for line in HAND_WRITTEN.splitlines() if line in text.splitlines()]
    assert len(kept) >= len(HAND_WRITTEN.splitlines()) - 1


def test_settings_are_set_checked_and_found(place: Path) -> None:
    file = place / "config.yaml"
    assert keepthread("config", "path").stdout == f"{file}\n"
    done = keepthread("config", "set", "memory.auto_prune_days", "90")
    assert done.stderr == "memory.auto_prune_days is 90 in ~/config.yaml\n"
    assert file.read_text() == "# mine\nmemory:\n  owner: ana # me\n  auto_prune_days: 90\n"
    assert file.stat().st_mode & 0o777 == 0o600
    before = file.read_text()
    for wrong, reason in (
        (("memory.auto_prune_days", "soon"), "is 'soon'; it must be a whole number from 1"),
        (("memory.auto_prune_dais", "3"), "did you mean memory.auto_prune_days?"),
        (("model.key", SECRET), "keys come from the environment"),
        (("views.chat.tokens", "3"), "memory.max_history_tokens"),
        (("agents.new.facts", "yes"), "agents.new.description is missing"),
    ):
        failed = keepthread("config", "set", *wrong)
        assert failed.returncode == 2
        assert reason in failed.stderr
        assert SECRET not in failed.stderr
    assert file.read_text() == before
    assert "config set model.name x" in keepthread("config", "model.name", "x").stderr
    (place / "keepthread.yaml").write_text("memory: {strategy: recall}")
    wins = keepthread("config", "set", "memory.strategy", "window").stderr
    assert f"{place / 'keepthread.yaml'} also sets it and takes precedence here" in wins


def test_the_editor_opens_the_settings_and_mistakes_are_named(place: Path) -> None:
    editor = place / "editor.sh"
    editor.write_text(
        "#!/bin/sh\n"
        'if grep -q tries "$1"; then echo "memory: {owner: bea}" > "$1";\n'
        'else echo "memory: {tries: 1}" > "$1"; fi\n'
    )
    editor.chmod(0o755)
    env = {"EDITOR": str(editor), "VISUAL": None}
    with Terminal([KEEPTHREAD, "config", "edit"], cwd=place, env=env) as terminal:
        terminal.wait_for("Edit it again? [Y/n]:")
        shown = "".join(terminal.transcript.split())  # a long path may break the line anywhere
        assert "triesisnotasetting" in shown
        terminal.key("enter")
        assert terminal.exit_code(60) == 0, terminal.transcript
    assert (place / "config.yaml").read_text() == "memory: {owner: bea}\n"
    assert "edit needs a terminal" in keepthread("config", "edit").stderr


# --- the service ---


def test_models_and_the_doctor_ask_the_service(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEEPTHREAD_STORE", "none-yet.db")
    monkeypatch.setenv("KEEPTHREAD_MODEL_NAME", "small")
    monkeypatch.setenv("KEEPTHREAD_MODEL_KEY_ENV", "MODEL_API_KEY")
    with ScriptedServer(["Hi"], key=SECRET, models=["small", "large"]) as server:
        monkeypatch.setenv("KEEPTHREAD_MODEL_BASE_URL", server.openai)
        denied = keepthread("models")
        assert "requires a key, and none is set (401)" in denied.stderr
        found = findings()
        assert found["key"]["advice"] == "the service requires a key: export MODEL_API_KEY=…"
        assert "`keepthread chat` or `keepthread import` creates it" in found["file"]["advice"]
        refused = "it answers, but requires a valid key"
        assert found["service"]["advice"] == refused
        monkeypatch.setenv("MODEL_API_KEY", "sk-of-somebody-else")
        found = findings()
        assert found["key"]["advice"].startswith("the service rejects the key")
        assert found["service"]["found"].endswith("rejects the key (401)")
        assert found["service"]["advice"] == refused
        monkeypatch.setenv("MODEL_API_KEY", SECRET)
        listed = keepthread("models")
        assert listed.stdout == "→ small\n  large\n"
        assert ask("models") == [
            {"service": server.openai, "models": ["small", "large"], "set": "small"}
        ]
        with monkeypatch.context() as other:
            other.setenv("KEEPTHREAD_MODEL_PROVIDER", "anthropic")
            other.setenv("KEEPTHREAD_MODEL_BASE_URL", server.anthropic)
            assert ask("models")[0]["models"] == ["small", "large"]
        found = findings("--ask")
        assert all(found[what]["ok"] for what in ("model", "key", "service", "answer"))
        assert found["service"]["found"] == f"{server.openai} offers 2 models"
        assert server.requests[-1].body["max_tokens"] == 1
        monkeypatch.setenv("KEEPTHREAD_MODEL_NAME", "smal")
        assert "did you mean small?" in findings()["model"]["advice"]
        assert "smal is set but not offered" in keepthread("models").stderr
        assert SECRET not in keepthread("doctor").stdout
    gone = findings()
    assert f"nothing answers at {server.openai}" in gone["service"]["found"]
    said = keepthread("init", "--service", server.openai, "--model", "m", "--yes").stderr
    assert f"Nothing answers at {server.openai}: Connection refused. Start it before" in said


def findings(*options: str) -> dict[str, Any]:
    (told,) = ask("doctor", *options)
    return {each["what"]: each for each in told["findings"]}


def test_no_line_of_a_table_ends_in_blanks_in_a_pipe(place: Path) -> None:
    fill("chat.db", one="A title", two="A longer title of a session")
    for command in ("sessions", "why two", "config memory", "doctor", "help", "help durability"):
        said = keepthread(*command.split(), "--store", "chat.db").stdout
        assert len(said.splitlines()) > 2, command
        assert [line for line in said.splitlines() if line != line.rstrip()] == [], command
        assert said.endswith("\n"), command


def test_a_missing_key_is_said_to_be_missing(tmp_path: Path) -> None:
    with ScriptedServer(["Never."], key=SECRET) as server:
        here = home(tmp_path, server, KEEPTHREAD_MODEL_KEY_ENV="MODEL_API_KEY")
        done = here.run("chat", "Hello?")
    assert done.returncode == 2
    said = done.stderr.decode()
    assert " requires a key, but none was sent (401)" in said
    assert "export MODEL_API_KEY=… with your key" in said


# --- secrets ---


@pytest.fixture
def keyring(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, str], str]:
    """Stand in for the package `keyring`, and return its entries."""
    kept: dict[tuple[str, str], str] = {}
    package, errors = types.ModuleType("keyring"), types.ModuleType("keyring.errors")

    class KeyringError(Exception): ...

    class Backend:
        name = "Vault"

    backend = Backend()

    def drop(service: str, name: str) -> None:
        del kept[service, name]

    given: dict[str, Callable[..., Any]] = {
        "get_password": lambda service, name: kept.get((service, name)),
        "set_password": lambda service, name, text: kept.update({(service, name): text}),
        "delete_password": drop,
        "get_keyring": lambda: backend,
    }
    for name, function in given.items():
        setattr(package, name, function)
    errors.KeyringError = KeyringError  # pyright: ignore[reportAttributeAccessIssue]
    package.errors = errors  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setitem(sys.modules, "keyring", package)
    monkeypatch.setitem(sys.modules, "keyring.errors", errors)
    return kept


def test_a_key_is_kept_by_the_keyring_and_used(
    place: Path,
    keyring: dict[tuple[str, str], str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("KEEPTHREAD_MODEL_KEY_ENV", "MODEL_API_KEY")
    with ScriptedServer([], key=SECRET, models=["m"]) as server:
        monkeypatch.setenv("KEEPTHREAD_MODEL_BASE_URL", server.openai)
        (place / "typed").write_text(f"{SECRET}\n")
        assert ask("secrets") == [{"secrets": [{"name": "MODEL_API_KEY", "from": None}]}]
        set_up(place / "typed", "secrets", "set", "MODEL_API_KEY")
        assert capsys.readouterr().err == "MODEL_API_KEY is stored in the Vault\n"
        assert keyring["keepthread", "MODEL_API_KEY"] == SECRET
        assert ask("models")[0]["models"] == ["m"]
        listed = keepthread("secrets", "list").stdout
        assert re.search(r"MODEL_API_KEY +keyring", listed)
        shown = keepthread("config", "model").stdout
        assert re.search(r"model\.key +set +the keyring", shown)
        assert SECRET not in listed + shown
        assert "was deleted" in keepthread("secrets", "delete", "MODEL_API_KEY").stderr
        assert "has no MODEL_API_KEY" in keepthread("secrets", "delete", "MODEL_API_KEY").stderr
        assert ("keepthread", "MODEL_API_KEY") not in keyring
    plain = type("PlaintextKeyring", (), {"__module__": "keyrings.alt.file"})
    monkeypatch.setattr(sys.modules["keyring"], "get_keyring", plain)
    set_up(place / "typed", "secrets", "set", "MODEL_API_KEY", status=2)
    assert (
        "is a plaintext file (PlaintextKeyring), which is not safe for secrets"
        in capsys.readouterr().err
    )
    assert SECRET not in keyring.values()
    wrong = keepthread("secrets", "set", SECRET)
    assert (wrong.returncode, SECRET in wrong.stderr) == (2, False)


VAULT = """
import json, pathlib
FILE = pathlib.Path(__file__).with_name("kept.json")
KEPT = json.loads(FILE.read_text()) if FILE.exists() else {}

class Vault:
    name = "Vault"

get_keyring = Vault

def get_password(service, name):
    return KEPT.get(name)

def set_password(service, name, text):
    KEPT[name] = text
    FILE.write_text(json.dumps(KEPT))
"""


def test_a_secret_is_typed_at_the_terminal_and_not_shown(place: Path) -> None:
    package = place / "keyring"
    package.mkdir()
    (package / "__init__.py").write_text(VAULT)
    (package / "errors.py").write_text("class KeyringError(Exception): ...\n")
    program = [KEEPTHREAD, "secrets", "set", "MODEL_API_KEY"]
    with Terminal(program, cwd=place, env={"PYTHONPATH": str(place)}) as terminal:
        terminal.wait_for("MODEL_API_KEY:", 60)  # from then on nothing is shown
        terminal.type(SECRET)
        terminal.enter()
        assert terminal.exit_code(60) == 0
        assert terminal.transcript == "MODEL_API_KEY:\nMODEL_API_KEY is stored in the Vault"
        assert SECRET.encode() not in terminal.raw
    assert json.loads((package / "kept.json").read_text())["MODEL_API_KEY"] == SECRET


def set_up(said: Path, *arguments: str, status: int = 0) -> None:
    """Run the command with a file as its input."""
    with pytest.MonkeyPatch.context() as patch, said.open() as given:
        patch.setattr(sys, "argv", ["keepthread", *arguments])
        patch.setattr(sys, "stdin", given)
        assert main() == status


def test_a_command_gives_the_key_if_the_own_settings_name_it(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "keyring", None)
    missing = keepthread("secrets", "set", "MODEL_API_KEY").stderr
    assert "pip install 'keepthread[keyring]'" in missing
    vault = place / "vault.sh"
    vault.write_text(f"#!/bin/sh\n[ $1 = ok ] && echo {SECRET}\n")
    vault.chmod(0o755)
    monkeypatch.setenv("KEEPTHREAD_MODEL_KEY_ENV", "MODEL_API_KEY")
    with ScriptedServer([], key=SECRET, models=["m"]) as server:
        monkeypatch.setenv("KEEPTHREAD_MODEL_BASE_URL", server.openai)
        keepthread("config", "set", "model.key_command", f"{vault} ok")
        assert ask("models")[0]["models"] == ["m"]
        assert findings()["key"]["found"] == "MODEL_API_KEY, from the command"
        keepthread("config", "set", "model.key_command", f"{vault} no")
        failed = keepthread("models").stderr
        assert "model.key_command ended with status 1; run it yourself" in failed
        assert "ended with status 1" in findings()["key"]["advice"]
    monkeypatch.setenv("KEEPTHREAD_MODEL_KEY_COMMAND", f"{vault} ok")
    assert "only your own config.yaml may set" in keepthread("models").stderr
    monkeypatch.delenv("KEEPTHREAD_MODEL_KEY_COMMAND")
    (place / "keepthread.yaml").write_text(f"model: {{key_command: {vault} ok}}")
    refused = keepthread("models").stderr
    assert "a project may not set model.key_command: put it in your own config.yaml" in refused


# --- the terminal ---


def test_long_output_goes_through_the_pager(place: Path) -> None:
    fill("notes.db", **{f"s{n}": f"Title {n}" for n in range(40)})
    pager = place / "pager.sh"
    pager.write_text("#!/bin/sh\necho PAGED\nhead -n 2\n")
    pager.chmod(0o755)

    def shown(*arguments: str) -> str:
        program = [KEEPTHREAD, "sessions", "--store", "notes.db", "--limit", "40", *arguments]
        with Terminal(program, cwd=place, env={"PAGER": str(pager)}, rows=20) as terminal:
            assert terminal.exit_code(60) == 0
            return terminal.transcript

    paged = shown()
    assert "PAGED" in paged
    assert paged.count("Title") == 1
    assert "PAGED" not in (whole := shown("--no-pager"))
    assert whole.count("Title") == 40
    assert "PAGED" not in shown("--search", "Title 3")  # it fits on the screen
    piped = keepthread("sessions", "--store", "notes.db", "--limit", "40").stdout
    assert piped.count("Title") == 40


COMPLETE = """
source script.sh
COMP_WORDS=(keepthread {words}) COMP_CWORD={at}
_keepthread
echo "${{COMPREPLY[*]}}"
"""


def test_bash_completes_commands_options_and_settings(place: Path) -> None:
    (place / "script.sh").write_text(keepthread("completion", "bash").stdout)

    def completed(*words: str) -> list[str]:
        code = COMPLETE.format(words=" ".join(f"'{word}'" for word in words), at=len(words))
        return subprocess.check_output(["bash", "-c", code], text=True, cwd=place).split()

    assert completed("se") == ["secrets", "serve", "sessions", "search"]
    assert completed("--json", "--store", "x.db", "show", "--la") == ["--last"]
    assert completed("config", "set", "memory.auto") == ["memory.auto_prune_days"]
    assert completed("facts", "hi") == ["history"]
    assert completed("tools", "te") == ["test"]
    assert completed("export", "--output", "s") == []  # a file's name
    fish = keepthread("completion", "fish").stdout
    assert "-l last -r -d 'Only the last N messages.'" in fish
    assert "-n __keepthread_needs_command -f -a doctor" in fish
    assert keepthread("completion", "zsh").stdout.startswith("autoload")
    assert "choose bash, zsh or fish" in keepthread("completion", "tcsh").stderr


# --- long work ---


def test_copy_and_forget_show_numbers_and_say_whether_they_continue(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill("notes.db", **{f"s{n}": f"Title {n}" for n in range(40)})
    program = [KEEPTHREAD, "copy", "notes.db", "other.db"]
    with Terminal(program, cwd=place) as terminal:
        assert terminal.exit_code(60) == 0
        drawn = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.raw.decode())
        assert re.search("Preparing [━╺╸]+ 100% 40 of 40 sessions", drawn)
    program = [KEEPTHREAD, "forget", "--store", "notes.db", "--author", "no one"]
    with Terminal(program, cwd=place) as terminal:
        assert terminal.exit_code(60) == 0
        drawn = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.raw.decode())
        assert re.search("Looking [━╺╸]+ 100% 120 of 120 messages", drawn)

    async def stopped(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Copying, "run", stopped)
    result = keepthread("copy", "notes.db", "third.db")
    assert result.returncode == 130
    assert result.stderr == (
        "error: stopped: completed work is kept; run the same command to continue\n"
    )


def test_an_import_names_its_owner_and_the_next_step(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEEPTHREAD_STORE", "notes.db")
    chats = Path(__file__).parent / "chats" / "claude.json"
    done = keepthread("import", str(chats))
    assert "Their owner is ana\n" in done.stderr
    assert (
        "Next: `keepthread sessions` lists them, `keepthread chat -r ID` continues" in done.stderr
    )
    assert {session["owner"] for session in ask("sessions")} == {"ana"}
    other = keepthread("import", str(chats), "--owner", "bea").stderr
    assert "`keepthread sessions --owner bea` lists them" in other
    assert "`KEEPTHREAD_MEMORY_OWNER=bea keepthread chat -r ID` continues one" in other
    again = keepthread("import", str(chats)).stderr
    assert "Nothing new" in again
    assert "Next:" not in again
