"""First use, as a newcomer has it: an empty environment, a shell, and what is typed into it."""

import json
import os
import re
import subprocess
import sys
import time
import venv
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from keepthread.testing.server import Received, ScriptedServer
from tests.chatting import Chat, home
from tests.terminal import Terminal
from tests.weather import mind

ROOT: Final = Path(__file__).parents[1]
JAKARTA: Final = "What is the weather in Jakarta?"
TOKYO: Final = "How about Tokyo?"
COOLER: Final = "18 °C and cloudy, 14 degrees cooler than Jakarta."
_PIP: Final = (".config/pip", ".pip", "Library/Application Support/pip")
_PROMPT: Final = re.compile(r"^\$", re.MULTILINE)
_INSTALLING: Final = re.compile(r"(\$ pip install .*\n)(?:(?!\$).*\n)+")
ANSWERED: Final = 300.0  # a real model takes its time on a busy machine
_SERVED: Final = "http://localhost:8080/v1"


class FirstChat(NamedTuple):
    """What a newcomer typed and saw, and how long it took from the first command."""

    transcript: str
    commands: list[str]
    seconds: float
    each: list[float]
    """The seconds of each command, those of the person included."""
    manual: str
    """The guide about forgetting, as the installed program shows it."""


def call(*command: str | Path, cwd: Path) -> str:
    """Run a command that must succeed, and return what it said."""
    done = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def built_wheel(folder: Path) -> Path:
    """Build the wheel into a folder."""
    call(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, cwd=ROOT)
    (wheel,) = folder.glob("keepthread-*.whl")
    return wheel


def empty_environment(folder: Path) -> Path:
    """Make an environment with a `pip` and nothing else; return the folder of its programs.

    That `pip` is ours and installs there: to install another into each environment takes longer
    than what tests do with it.
    """
    venv.create(folder, with_pip=False)
    programs = folder / "bin"
    pip = programs / "pip"
    pip.write_text(f'#!/bin/sh\nexec {sys.executable} -m pip --python {programs}/python "$@"\n')
    pip.chmod(0o755)
    return programs


def weather(asked: Received) -> str:
    """Answer as a model can that was shown so much: of Tokyo, only if it knows what is asked."""
    if JAKARTA in asked.text:
        return "It is **32 °C** and sunny in Jakarta."
    if TOKYO in asked.text and JAKARTA in asked.context and "32 °C" in asked.context:
        return COOLER
    return "What would you like to know?"


def first_chat(folder: Path) -> FirstChat:
    """Install the wheel, answer five questions, ask one, and ask on in another program."""
    with ScriptedServer(otherwise=weather, models=["qwen3:8b"]) as server:
        return typed(folder, server.openai)


def typed(folder: Path, address: str) -> FirstChat:
    """Do so with the service at an address."""
    wheel, home = built_wheel(folder), _home(folder)
    programs = empty_environment(folder / "env")
    env = {
        **dict.fromkeys(("ENV", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME")),
        "HOME": str(home),
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PIP_NO_COMPILE": "no",  # which means yes: what is imported is compiled then
        "PIP_FIND_LINKS": f"{os.environ.get('PIP_FIND_LINKS', '')} {wheel.parent}".strip(),
        "PS1": "$ ",
    }
    with Terminal(["/bin/sh", "-i"], env=env, cwd=home, columns=90, rows=60) as terminal:
        shell = _Shell(terminal)
        shell.install()
        shell.configure(address)
        shell.ask("keepthread chat", JAKARTA)
        shell.ask("keepthread chat --continue", TOKYO)
        seen = terminal.transcript.removesuffix("\n$").replace(address, _SERVED)
        seen = _INSTALLING.sub(r"\1…\n", seen)
    manual = call(programs / "keepthread", "help", "forget", cwd=home)
    return FirstChat(seen, shell.commands, shell.seconds, shell.each, manual)


PLANNED: Final = (
    "What's the weather in Jakarta?",
    "How about Tokyo?",
    "memory:status",
    "memory:clear",
    "How about Oslo?",
)


def planned_chat(folder: Path) -> str:
    """Ask for the weather in two cities, look at the memory, clear it, and ask on."""
    server = {
        "command": sys.executable,
        "args": ["-m", "tests.mcp_servers.sky", str(folder / "journal")],
        "env": {"PYTHONPATH": str(ROOT)},
        "allow": ["weather"],
        "tools": {"weather": {"side_effects": False}},
    }
    config = folder / "config" / "keepthread"
    config.mkdir(parents=True)
    (config / "mcp.json").write_text(json.dumps({"mcpServers": {"sky": server}}))
    with (
        ScriptedServer(otherwise=mind, models=["qwen3:8b"]) as service,
        home(folder, service, KEEPTHREAD_MODEL_NAME="qwen3:8b").chat(
            "--orchestrate", columns=200
        ) as chat,
    ):
        for words in PLANNED:
            chat.say(words)
        chat.leave()
        return f"$ keepthread chat --orchestrate\n{chat.seen}".replace(str(folder), "~").rstrip()


def _home(folder: Path) -> Path:
    """Return a new home, in which only pip knows what it knows here: where packages are."""
    home = folder / "home"
    for name in _PIP:
        if (Path.home() / name).is_dir():
            (home / name).parent.mkdir(parents=True, exist_ok=True)
            (home / name).symlink_to(Path.home() / name)
    home.mkdir(exist_ok=True)
    return home


class _Shell:
    """Somebody who types commands."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self.commands: list[str] = []
        self.each: list[float] = []
        self._back()
        self._began = time.monotonic()
        self.seconds = 0.0

    def install(self) -> None:
        """Install the program."""
        self._type("pip install 'keepthread[chat]'")
        self._back(300)
        self._terminal.wait_for("Successfully installed")

    def configure(self, address: str) -> None:
        """Say who answers, and take what is proposed for the rest."""
        self._type("keepthread init")
        for question, answer in (
            ("Service [", address),
            ("Model [", ""),
            ("Keep conversations in [", ""),
            ("Delete them automatically", ""),
            ("Let new chats recall", ""),
        ):
            self._terminal.wait_until(partial(self._is_asked, question), what=question)
            self._terminal.type(answer)
            self._terminal.enter()
        self._back()

    def ask(self, command: str, question: str) -> None:
        """Start a chat, ask one thing, and leave."""
        self._type(command)
        chat = Chat(self._terminal)
        chat.asked()
        chat.say(question, seconds=ANSWERED)
        self.seconds = time.monotonic() - self._began
        self._terminal.key("ctrl-d")
        self._back()

    def _is_asked(self, question: str, screen: list[str]) -> bool:
        """Tell whether the cursor stands behind a question, and the blank that ends it."""
        column, row = self._terminal.cursor
        return screen[row].startswith(question) and column == len(screen[row]) + 1

    def _type(self, command: str) -> None:
        self._typed_at = time.monotonic()
        self.commands.append(command)
        self._terminal.type(command)
        self._terminal.enter()

    def _back(self, seconds: float = 30) -> None:
        """Wait for the shell to ask for the next command."""
        self._terminal.wait_for(_PROMPT, seconds, times=len(self.commands) + 1)
        if self.commands:
            self.each.append(time.monotonic() - self._typed_at)
