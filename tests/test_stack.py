"""`scripts/stack`: the services of the compose file run as plain processes, and all of them end."""

import json
import os
import re
import shlex
import signal
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx2
import pytest

from servers.stack import Stack

ROOT = Path(__file__).parents[1]
SECONDS = 240.0


@contextmanager
def started(folder: Path, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
    """Start the script; its temporary files are in a folder."""
    with subprocess.Popen(
        [ROOT / "scripts" / "stack", *arguments],
        env={**os.environ, "TMPDIR": str(folder), "KEEPTHREAD_VENV": sys.prefix},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.terminate()


def read_until(process: "subprocess.Popen[str]", pattern: str) -> list[str]:
    """Return the lines up to one that matches."""
    assert process.stdout
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line)
        if re.search(pattern, line):
            return lines
    raise AssertionError(f"it ended before {pattern!r}: {lines}")


def left_by(folder: Path) -> list[str]:
    """Return the files in a folder, and the processes that work in it."""
    found = [str(path) for path in folder.iterdir()]
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (process / "cwd").readlink().is_relative_to(folder):
                found.append((process / "cmdline").read_text())
    return found


@pytest.fixture
def folder() -> Iterator[Path]:
    """Return a folder that other users may enter: PostgreSQL and HAProxy do not run as root."""
    with TemporaryDirectory(prefix="keepthread-test-") as name:
        Path(name).chmod(0o711)
        yield Path(name)


def test_a_chat_runs_through_all_services_and_ctrl_c_stops_them(folder: Path) -> None:
    with started(folder, "--stay") as process:
        lines = read_until(process, r"^curl ")
        text = "".join(lines)
        for step in (
            "without a key is refused: 401 unauthenticated",
            "by another name is refused: 421 wrong_host",
            "The model is shown 1 message, and answers: I will remember it.",
            "An event arrives while its stream is open: `messages_added`",
            "is stopped as an upgrade does: exit status 0",
            "it was done once",
            "The model is shown 3 messages, and answers: No, it has hazelnuts.",
            "continues at the other worker: `messages_added`",
            "The log of `trip` has 4 messages",
        ):
            assert step in text
        assert "kt_" not in text
        words = shlex.split(lines[-1])
        certificate, url = words[words.index("--cacert") + 1 :][:2]
        (key,) = folder.glob("keepthread-stack-*/key")
        headers = {"Host": "memory.example.com", "Authorization": f"Bearer {key.read_text()}"}
        trusted = ssl.create_default_context(cafile=certificate)
        answer = httpx2.get(url, headers=headers, verify=trusted, timeout=SECONDS)
        assert {each["title"] for each in answer.json()["items"]} == {"A trip", "Notes"}
        log = (key.parent / "proxy.log").read_text()
        logged = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
        assert {"worker1", "worker2"} <= {each["worker"] for each in logged}
        assert "trip" not in log
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=SECONDS)
    assert re.search(r"^Everything is stopped, after [\d.]+ s\.\n$", output)
    assert process.returncode == 0
    assert left_by(folder) == []


class _Interrupted(subprocess.Popen[str]):
    """A process that is started in the moment of a Ctrl-C."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


def test_ctrl_c_while_a_service_starts_leaves_it_not_running(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second step runs `keepthread migrate`, which a real Ctrl-C rarely meets as it starts."""
    stack = Stack(folder, {}, {"migrate": {}})
    monkeypatch.setattr(subprocess, "Popen", _Interrupted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            stack.keepthread("migrate", "migrate")
    finally:
        signal.signal(signal.SIGINT, before)
        stack.close()
    assert left_by(folder) == []


@pytest.mark.nightly
@pytest.mark.parametrize("step", [1, 3, 5, 9, 12])
def test_ctrl_c_at_any_step_leaves_nothing_running(step: int, folder: Path) -> None:
    with started(folder) as process:
        read_until(process, rf"^ ?{step}\. ")
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=SECONDS)
    assert "Everything is stopped" in output
    assert process.returncode == 130
    assert left_by(folder) == []


def test_a_wrong_argument_is_explained(folder: Path) -> None:
    with started(folder, "--keep") as process:
        assert process.wait(timeout=SECONDS) == 2
