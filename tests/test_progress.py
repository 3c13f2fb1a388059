"""Long work shows on a terminal how far it is; in a pipe, and to programs, it shows nothing."""

import asyncio
import json
import os
import re
import shutil
import subprocess
import threading
from pathlib import Path
from typing import NamedTuple

import pytest

import keepthread
from keepthread import Options, SQLiteStore
from keepthread.sync import Memory
from keepthread.testing import ManualClock
from keepthread.testing.contract import Letters
from keepthread.testing.embeddings import EmbeddingsServer, Fault
from keepthread.testing.server import Gate, Say, ScriptedServer
from tests import preloaded
from tests.preloaded import KEEPTHREAD
from tests.terminal import Terminal

CHATS = Path(__file__).parent / "chats"
LONG = 60
"""Turns of the session that is compacted; the others have one each."""
SESSIONS = 121
EXCHANGES = LONG + SESSIONS - 1
MESSAGES = 2 * EXCHANGES
BAR = "[━╺╸]+"


class Work(NamedTuple):
    """A command, its bar, and what stands behind the bar in the end."""

    command: str
    label: str
    told: str


EVERY = f"100% {MESSAGES} of {MESSAGES} messages"
THE_LONG = f"100% {2 * LONG} of {2 * LONG} messages"
BYTES = r"100% [\d.]+ kB of [\d.]+ kB"
WORK = {
    "import": Work("import all.jsonl --as new:", "Importing", BYTES),
    "import of ChatGPT": Work("import chatgpt.json", "Importing", BYTES),
    "import of a transcript": Work("import long.md --as new:", "Importing", THE_LONG),
    "copy": Work("copy sqlite:///chat.db sqlite:///other.db", "Copying", EVERY),
    "prune": Work("prune --days 30 --yes", "Deleting", f"100% {SESSIONS} of {SESSIONS} sessions"),
    "compact": Work("compact long", "Compaction", "100% 50 of 50 turns"),
    "compact of all": Work("compact --all", "Compaction", f"100% {EXCHANGES} of {EXCHANGES} turns"),
    "index": Work("index", "Reading", EVERY),
    "search": Work("search harbour", "Reading", EVERY),
    "export": Work("export -o out.jsonl", "Exporting", EVERY),
    "transcripts": Work("export --to out", "Exporting", EVERY),
    "backup": Work("backup copy.db", "Copying", r"100% ([\d,]+) of \1 pages"),
    "verify": Work("verify", "Verifying", EVERY),
    "recount": Work("recount", "Counting", EVERY),
    "forget": Work("forget --session long --yes", "Forgetting", THE_LONG),
}


async def fill(path: Path) -> None:
    """Fill a store that nobody used for a long time."""
    clock = ManualClock(1_700_000_000.0)
    async with await SQLiteStore.open(path, durability="process", clock=clock) as store:
        memory = keepthread.Memory(store, Options(counter=Letters(), clock=clock))
        for name, turns in [("long", LONG), *((f"s{n}", 1) for n in range(1, SESSIONS))]:
            session = await memory.session(name)
            for day in range(turns):
                async with session.turn(f"What shall we see on day {day}?") as turn:
                    await turn.finish("The old town, then the harbour. " * 40)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a store, and with files to import."""
    folder = tmp_path_factory.mktemp("filled")
    asyncio.run(fill(folder / "chat.db"))
    shutil.copy(CHATS / "chatgpt.json", folder)
    piped(folder, "export -o all.jsonl")
    piped(folder, "export long --format markdown -o long.md")
    return folder


@pytest.fixture
def folder(filled: Path, tmp_path: Path, vocabularies: Path) -> Path:
    """Return a folder of a test's own."""
    return Path(shutil.copytree(filled, tmp_path / "work"))


def environment(**more: str) -> dict[str, str]:
    return {"KEEPTHREAD_STORE": "sqlite:///chat.db", **more}


def piped(folder: Path, command: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the command with nobody looking."""
    program = [str(KEEPTHREAD), *command.split()]
    done = preloaded.run(program, {**os.environ, **environment(**env)}, folder, b"", 120)
    done.check_returncode()
    return subprocess.CompletedProcess(program, 0, done.stdout.decode(), done.stderr.decode())


def in_terminal(folder: Path, command: str, **env: str) -> Terminal:
    return Terminal([KEEPTHREAD, *command.split()], cwd=folder, env=environment(**env))


def shown(terminal: Terminal) -> str:
    """Return all that was drawn, and let nothing of a bar be left of it."""
    assert terminal.exit_code(60) == 0, terminal.transcript
    assert "━" not in terminal.transcript
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.raw.decode())


@pytest.mark.parametrize("name", WORK)
def test_long_work_shows_how_far_it_is_on_a_terminal_and_nothing_in_a_pipe(
    folder: Path, name: str
) -> None:
    work = WORK[name]
    twin = shutil.copytree(folder, folder.with_name("twin"))
    with in_terminal(folder, work.command) as terminal:
        assert re.search(f"{work.label} {BAR} +{work.told}", shown(terminal))
    done = piped(twin, work.command)
    assert not re.search(r"[━╺╸]|\x1b|%", done.stderr)
    assert not re.search(r"[━╺╸]|\x1b", done.stdout)


def test_programs_see_no_bar_on_a_terminal_either(folder: Path) -> None:
    with in_terminal(folder, "verify --json") as terminal:
        assert shown(terminal).startswith('{"sound": true')
        assert b"\x1b" not in terminal.raw


def test_what_goes_to_the_screen_has_no_bar_across_it(folder: Path) -> None:
    with in_terminal(folder, "export s1") as terminal:
        assert "━" not in shown(terminal)


def embedder(server: EmbeddingsServer) -> dict[str, str]:
    return {"KEEPTHREAD_EMBEDDER_URL": server.url, "KEEPTHREAD_EMBEDDER_NAME": server.model}


def test_another_model_embeds_everything_anew_and_shows_how_far_it_is(folder: Path) -> None:
    with EmbeddingsServer(model="one") as one:
        first = json.loads(piped(folder, "index --json", **embedder(one)).stdout)
        assert first == {"read": MESSAGES, "embedder": "one", "embedded": MESSAGES}
    with (
        EmbeddingsServer(model="two", script=[*[None] * 4, Fault(wait=1)]) as two,
        in_terminal(folder, "index", **embedder(two)) as terminal,
    ):
        drawn = shown(terminal)
        assert re.search(rf"Embedding {BAR} +\d\d?% \d+ of {MESSAGES} messages", drawn)
        assert re.search(f"Embedding {BAR} {EVERY}", drawn)
        assert f"Embedded {MESSAGES} messages with two" in terminal.transcript
        assert sum(len(each["input"]) for each in two.requests) >= MESSAGES


def test_a_compact_by_a_model_shows_how_far_it_is_and_how_often_the_model_failed(
    folder: Path,
) -> None:
    gate = Gate()
    script = ["In short."] * 7 + [Say("Then the harbour.", hold=gate), Say(status=400)]
    settings = {"KEEPTHREAD_SUMMARIZER_BY": "model", "KEEPTHREAD_MODEL_NAME": "scripted"}
    with (
        ScriptedServer(script, otherwise="The harbour.") as server,
        in_terminal(
            folder, "compact long", KEEPTHREAD_MODEL_BASE_URL=server.openai, **settings
        ) as terminal,
    ):
        terminal.wait_for("10% 5 of 50 turns")
        gate.open()
        shown(terminal)
    assert "Made 10 compactions in 1 session" in terminal.transcript
    assert "warning: 1 time the model failed" in terminal.transcript


def test_long_work_that_is_stopped_leaves_the_terminal_as_it_was(folder: Path) -> None:
    with (
        EmbeddingsServer(script=[*[None] * 4, Fault(wait=60)]) as server,
        in_terminal(folder, "index", **embedder(server)) as terminal,
    ):
        terminal.wait_for(re.compile(rf"Embedding {BAR} +\d\d?% "))
        terminal.key("ctrl-c")
        assert terminal.exit_code() == 130
        assert [line for line in terminal.screen if line] == [
            "error: stopped: completed work is kept; run the same command to continue"
        ]
        assert terminal.raw.rindex(b"\x1b[?25h") > terminal.raw.rindex(b"\x1b[?25l")
    assert "Indexed 0 messages" in piped(folder, "index").stderr  # what was done before is kept


def test_the_library_tells_of_what_is_pruned_and_compacted_in_the_callers_thread(
    folder: Path,
) -> None:
    told: list[tuple[int, int]] = []
    threads: set[int] = set()

    def tell(done: int, total: int) -> None:
        told.append((done, total))
        threads.add(threading.get_ident())

    with Memory.open(f"sqlite:///{folder / 'chat.db'}") as memory:
        session = memory.get_session("long")
        assert session.compact(progress=tell) == 10
        assert told == [(done, 50) for done in range(0, 51, 5)]
        told.clear()
        assert session.compact(progress=tell) == 0
        assert told == []
        assert memory.admin.prune(30, progress=tell) == SESSIONS
        assert told == [(done, SESSIONS) for done in range(1, SESSIONS + 1)]
    assert threads == {threading.get_ident()}
