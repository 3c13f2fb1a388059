"""It works where Unix is not: on Windows, and with output that is not UTF-8."""

import ast
import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from keepthread.apps.cli.chat.lines import LineInput
from keepthread.apps.cli.chat.plain import draws, is_dumb
from keepthread.testing.server import ScriptedServer
from tests.chatting import home
from tests.windows_like import MODULES, OS_NAMES, SIGNAL_NAMES

ROOT = Path(__file__).parents[1]
PUBLISHED = "tests/test_stores.py tests/test_session.py tests/test_context.py tests/test_codec.py"
"""Tests of the core that need nothing of Unix; the published workflow runs them all."""
CORE = (
    "tests/test_stores.py::TestSQLiteStore",
    "tests/test_forgetting.py::test_a_forgotten_session_exists_for_no_call",
)
"""Those that reach every line which asks whether it is on Windows."""
GUARDED = {
    "stores/sqlite/file.py": {"fcntl", "register_at_fork"},
    "stores/sqlite/maintenance.py": {"pread"},
    "stores/sqlite/uses.py": {"register_at_fork"},
    "stores/sqlite/worker.py": {"set_blocking"},
    "apps/cli/chat/prompt.py": {"termios"},
    "apps/cli/settings/load.py": {"geteuid"},
    "apps/hooks/client.py": {"geteuid", "ITIMER_REAL", "setitimer", "SIGALRM", "sysconf"},
    "apps/hooks/events.py": {"geteuid"},
    "apps/hooks/helper.py": {"fcntl"},
    "apps/proxy/local.py": {"geteuid"},
}
"""Where the library uses such a name, after it looked whether there is one."""


def test_the_core_passes_without_what_windows_lacks(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.windows_like", *CORE]
    options = ["-p", "no:cacheprovider", "--basetemp", str(tmp_path / "t")]
    options += ["-o", "timeout_method=thread"]
    done = subprocess.run(
        [*command, *options], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


def test_the_published_workflow_runs_the_same_tests() -> None:
    workflow = (ROOT / ".github/workflows/portable.yml").read_text("utf-8")
    assert PUBLISHED in workflow
    assert "windows-latest" in workflow
    assert "macos-latest" in workflow


def test_names_that_only_unix_has_are_used_where_that_was_looked_at() -> None:
    found: dict[str, set[str]] = {}
    package = ROOT / "src" / "keepthread"
    for path in package.rglob("*.py"):
        names = _unix_names(ast.parse(path.read_text("utf-8")))
        if names:
            found[path.relative_to(package).as_posix()] = names
    assert found == GUARDED


def _unix_names(tree: ast.AST) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            named = {"os": OS_NAMES, "signal": SIGNAL_NAMES}.get(node.value.id, frozenset())
            found |= {node.attr} & named
        elif isinstance(node, ast.Import):
            found |= {each.name for each in node.names} & set(MODULES)
        elif isinstance(node, ast.ImportFrom):
            found |= {node.module or ""} & set(MODULES)
            if node.module in ("os", "signal"):
                found |= {each.name for each in node.names} & (OS_NAMES | SIGNAL_NAMES)
    return found


@pytest.mark.parametrize(
    ("encoding", "look", "seen"),
    [("cp1252", "why", "newest user message"), ("ascii", "show", "\\u6771\\u4eac")],
)
def test_commands_write_to_output_that_is_not_utf_8(
    tmp_path: Path, encoding: str, look: str, seen: str
) -> None:
    with ScriptedServer(["Jakarta → 32 °C, 晴れ ✓"]) as server:
        place = home(tmp_path, server, PYTHONIOENCODING=encoding, PYTHONUTF8="0")
        asked = ["chat", "--session", "s", "-p", "Wie warm ist es in 東京?"]
        shown = {}
        for command in (asked, [look, "s"]):
            done = place.run(*command)
            errors = done.stderr.decode(encoding)
            assert "Traceback" not in errors, errors[-2000:]
            assert done.returncode == 0, errors
            shown[command[0]] = done.stdout.decode(encoding)
    assert "Jakarta -> 32" in shown["chat"]
    assert "\\u6674\\u308c ok" in shown["chat"]
    assert seen in shown[look]


def test_the_command_runs_without_what_windows_lacks(tmp_path: Path) -> None:
    with ScriptedServer(["It is sunny."]) as server:
        env = {**os.environ, **home(tmp_path, server).env}
        program = [sys.executable, "-m", "tests.windows_like"]
        for command in (
            ["chat", "--session", "s", "-p", "How is it?", "--log", str(tmp_path / "log")],
            ["show", "s"],
        ):
            done = subprocess.run(
                [*program, *command],
                env=env,
                cwd=ROOT,
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, done.stderr[-3000:]
            assert "It is sunny." in done.stdout


async def test_lines_are_read_where_a_loop_cannot_watch_the_input(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def cannot(*_: object) -> None:
        raise NotImplementedError

    reading, writing = os.pipe()
    with os.fdopen(reading) as stdin, monkeypatch.context() as patch:
        patch.setattr(sys, "stdin", stdin)
        patch.setattr(asyncio.get_running_loop(), "add_reader", cannot)
        lines = LineInput()
        os.write(writing, b"one\ntwo\nth")
        assert await lines.ask() == "one"
        assert await lines.ask() == "two"
        os.write(writing, b"ree\n")
        assert await lines.ask() == "three"
        os.close(writing)
        with pytest.raises(EOFError):
            await lines.ask()


def test_a_console_of_windows_is_not_taken_for_a_dumb_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert is_dumb({})
    monkeypatch.setattr(sys, "platform", "win32")
    assert not is_dumb({})
    assert is_dumb({"TERM": "dumb"})
    assert draws({"WT_SESSION": "1"}, markdown=True)
    assert not draws({}, markdown=True)  # the old console would show escape sequences
