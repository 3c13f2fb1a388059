"""Every example in README and docs runs, and prints what the page says it prints."""

import ast
import asyncio
import contextlib
import inspect
import io
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from keepthread.apps.cli.app import app
from keepthread.apps.cli.chat.commands import COMMANDS
from keepthread.testing.script import Received
from keepthread.testing.server import ScriptedServer
from scripts import plain_english

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(python|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

FENCED = re.compile(r"^ *```(?:console)?\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
CALLED = re.compile(r"^ *(?:\$ )?(?:.*\| *)?(?:[A-Z_]+=\S+ )*keepthread ([a-z-].*)$", re.MULTILINE)
NAMED = re.compile(r"`keepthread ([^`]+)`")
SLASHED = re.compile(r"`((?:/|memory:)[a-z]+)[ `]")


def postgres_url(request: pytest.FixtureRequest) -> str:
    return request.getfixturevalue("postgres").empty()


def redis_url(request: pytest.FixtureRequest) -> str:
    server = request.getfixturevalue("redis_server")
    server.ask("FLUSHALL")
    return server.url


def model_folder(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue("test_data") / "models" / "all-MiniLM-L6-v2-int8")


def model_key(request: pytest.FixtureRequest) -> str:
    monkeypatch = request.getfixturevalue("monkeypatch")
    monkeypatch.setenv("OPENAI_BASE_URL", request.getfixturevalue("model_server").openai)
    return "k"


def memory_server(request: pytest.FixtureRequest) -> str:
    return request.getfixturevalue("served_memory").address


def memory_key(request: pytest.FixtureRequest) -> str:
    return request.getfixturevalue("served_memory").key("ana")


SERVERS = {
    "KEEPTHREAD_SERVER": memory_server,
    "KEEPTHREAD_KEY": memory_key,
    "DATABASE_URL": postgres_url,
    "REDIS_URL": redis_url,
    "MODEL_FOLDER": model_folder,
    "OPENAI_API_KEY": model_key,
}
"""What a page reads from its environment: a real, empty server, a real model, or a scripted one."""

SAYS = (
    ("I am allergic", "", "I will remember it."),
    ("May I eat", "allergic to hazelnuts", "No: you are allergic to them."),
    ("weather in Jakarta", "", "32 °C and sunny in Jakarta."),
    ("How about Tokyo", "weather in Jakarta", "18 °C and cloudy in Tokyo."),
    ("I am Ana", "", "Hello, Ana."),
    ("Who am I", "I am Ana", "You are Ana."),
    ("Who am I", "", "I do not know your name."),
)
"""The model of the pages: what is asked, what it must know from its prompt, and what it answers."""


def set_servers(text: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Start the servers whose variables a text names, and set these."""
    for name, url_of in SERVERS.items():
        if name in text:
            monkeypatch.setenv(name, url_of(request))


def says(asked: Received) -> str:
    return next(
        (answer for words, known, answer in SAYS if words in asked.text and known in asked.context),
        "I do not know.",
    )


@pytest.fixture
def model_server() -> Iterator[ScriptedServer]:
    with ScriptedServer(otherwise=says) as server:
        yield server
        assert server.refused == []


def blocks(page: Path) -> list[tuple[str, str]]:
    return BLOCK.findall(page.read_text())


def run(source: str, names: dict[str, Any], where: Path) -> str:
    """Run a block, which may await at its top level, and return what it printed."""
    printed = io.StringIO()
    code = compile(source, str(where), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    with contextlib.redirect_stdout(printed):
        result = eval(code, names)
        if inspect.iscoroutine(result):
            asyncio.run(result)
    return printed.getvalue()


@pytest.mark.parametrize(
    "page",
    [p for p in PAGES if any(kind == "python" for kind, _ in blocks(p))],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_the_examples_of_a_page_run(
    page: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    vocabularies: Path,
    request: pytest.FixtureRequest,
) -> None:
    monkeypatch.chdir(tmp_path)
    set_servers(page.read_text(), monkeypatch, request)
    names: dict[str, Any] = {"__name__": "__main__"}
    printed = ""
    for kind, source in blocks(page):
        if kind == "python":
            printed = run(source, names, page)
        elif printed:
            assert printed.strip() == source.strip()
            printed = ""


def test_the_readme_has_at_most_700_words() -> None:
    words = len((ROOT / "README.md").read_text().split())
    assert 350 <= words <= 700, words


def test_the_readme_is_written_in_short_sentences_and_plain_english() -> None:
    text = (ROOT / "README.md").read_text()
    assert plain_english.find("README.md", text, plain_english.PATTERNS) == []
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    prose = re.sub(r"^(?:\||#|<|!).*$", "", prose, flags=re.MULTILINE)
    prose = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", prose)
    blocks = re.split(r"\n\s*\n|^- ", prose, flags=re.MULTILINE)
    sentences = [each.split() for block in blocks for each in re.split(r"[.?!](?=\s|$)", block)]
    lengths = [len(words) for words in sentences if words]
    assert len(lengths) > 20
    assert sum(lengths) / len(lengths) <= 20


def calls(page: Path) -> Iterator[list[str]]:
    """Yield the arguments of each call of the command on a page."""
    text = page.read_text()
    found = [line for block in FENCED.findall(text) for line in CALLED.findall(block)]
    for line in (*found, *NAMED.findall(text)):
        words = shlex.split(line, comments=True)
        ends = [at for at, word in enumerate(words) if word in ("|", "||", "&&", ">")]
        yield words[: min(ends, default=None)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_and_option_on_a_page_is_one_of_the_program(page: Path) -> None:
    program: Any = get_command(app)
    common = {name for each in program.params for name in each.opts} | {"--help", "-h"}
    for words in calls(page):
        name, options = words[0], [word for word in words if re.match("--?[a-z]", word)]
        known = set(common)
        if not name.startswith("-"):
            assert name in program.commands, words
            command = program.commands[name]
            if actions := getattr(command, "commands", {}):
                named = words[1] if words[1:] and words[1].isalpha() else next(iter(actions))
                assert named in actions or named == "ACTION", words
                command = actions.get(named, command)
            for each in command.params:
                known |= {*each.opts, *each.secondary_opts}
        assert {word.partition("=")[0] for word in options} <= known, words


@pytest.mark.parametrize("page", ["start/chat.md", "how-to/chat.md", "reference/chat.md"])
def test_every_command_of_the_chat_on_a_page_is_one(page: str) -> None:
    found = set(SLASHED.findall((ROOT / "docs" / page).read_text()))
    assert found
    assert found - {"/etc"} <= COMMANDS.keys()
