"""Starting the command: it loads what it needs, and the list says what the commands say."""

import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from keepthread import Message
from keepthread.apps.cli.app import COMMANDS, app
from keepthread.apps.cli.chat import startup
from keepthread.models.tokens import Estimator

CODE = "from keepthread.apps.cli import main; import sys; main(); print(*sys.modules)"


def loaded(*arguments: str, folder: Path) -> set[str]:
    """Return which modules a run of the command has loaded at its end."""
    command = [sys.executable, "-c", CODE, *arguments]
    # Without what measures coverage, which loads much.
    env = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")}
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder, env=env)
    return set(done.stdout.splitlines()[-1].split())


def test_the_help_loads_neither_an_engine_nor_a_command(tmp_path: Path) -> None:
    found = loaded("--help", folder=tmp_path)
    ours = {name for name in found if name.partition(".")[0] == "keepthread"}
    listing = {"keepthread.apps.cli.app", "keepthread.apps.cli.sanitize"}
    packages = {"keepthread", "keepthread.apps", "keepthread.apps.cli"}
    assert ours == {*packages, "keepthread.errors", *listing}
    assert not found & {"asyncio", "sqlite3", "pydantic"}


def test_a_command_is_loaded_alone_and_takes_texts_without_pydantic(tmp_path: Path) -> None:
    found = loaded("--json", "--store", "ram://", "config", folder=tmp_path)
    modules = {f"keepthread.apps.cli.commands.{each.module}" for each in COMMANDS.values()}
    assert found & modules == {"keepthread.apps.cli.commands.config"}
    assert "pydantic" not in found


def test_a_chat_starts_without_what_checks_options_that_are_not_given(tmp_path: Path) -> None:
    found = loaded("chat", "-p", "hi", folder=tmp_path)  # no model is set, so it ends here
    assert "keepthread.apps.cli.chat.one_shot" in found
    assert "pydantic" not in found


def test_a_chat_reads_the_estimator_s_table_when_it_first_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    def estimator(vocabulary: str) -> Estimator:
        read.append(vocabulary)
        return Estimator(vocabulary)

    monkeypatch.setattr(startup, "Estimator", estimator)
    counter = startup.chat_counter({"TIKTOKEN_CACHE_DIR": str(tmp_path)}, "o200k")
    assert read == []
    said = Message(role="user", content="hello")
    assert counter.count(said) == Estimator("o200k").count(said)
    assert (counter.name, read) == ("~o200k", ["o200k"])


def test_the_list_says_what_the_commands_say_of_themselves() -> None:
    program = get_command(app)
    for name, listed in COMMANDS.items():
        command = program.commands[name]  # pyright: ignore[reportAttributeAccessIssue]
        first = inspect.cleandoc(command.help).partition("\n\n")[0]
        assert (command.name, " ".join(first.split())) == (name, listed.about)


def test_the_help_groups_the_commands_and_names_the_common_options_once(tmp_path: Path) -> None:
    def helped(*arguments: str) -> str:
        command = [sys.executable, "-m", "keepthread", *arguments, "--help"]
        return subprocess.run(
            command, capture_output=True, text=True, check=True, cwd=tmp_path
        ).stdout

    lines = helped().splitlines()
    titles = ["Chat:", "Browse:", "Manage:", "Maintain:"]
    assert [line for line in lines if line in titles] == titles
    shown = helped("show")
    assert shown.startswith("Usage: keepthread show [OPTIONS] SESSION\n")
    assert "Options of every command: --store, --tenant, --json" in shown
    assert shown.count("--store") == 1
    assert "<str>" not in shown
