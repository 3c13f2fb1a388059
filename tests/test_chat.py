"""`keepthread chat` as people meet it: the real program in a real terminal, and in pipes."""

import json
import os
import pty
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepthread import Memory, Message
from keepthread.apps.cli.chat.blocks import blocks_of
from keepthread.models.tokens import Estimator
from keepthread.testing.server import Gate, Say, ScriptedServer
from tests import preloaded
from tests.preloaded import KEEPTHREAD
from tests.terminal import SHELL, Terminal

READY = re.compile(r"^>$", re.MULTILINE)
MARKDOWN = """\
# Weather

It is **sunny** in `Tokyo`, and the <div> tag is no tag.
A second line, long enough that a narrow terminal has to wrap it more than once.

1. first
2. second, with a nested list

   - one
   - two

| City | Temp |
|------|-----:|
| Tokyo | 21 |

```python
def weather(city: str) -> str:

    return "sunny"
```

> Quoted.

Done.
"""


class Place(NamedTuple):
    """Where a chat is kept, and what its programs are told."""

    folder: Path
    env: dict[str, str]

    @property
    def store(self) -> Path:
        return self.folder / "data" / "memory.db"

    def terminal(self, *options: str, size: tuple[int, int] = (80, 24), **env: str) -> Terminal:
        """Start a chat in a terminal."""
        columns, rows = size
        return Terminal(
            [KEEPTHREAD, "chat", *options],
            env={**self.env, **env},
            cwd=self.folder,
            columns=columns,
            rows=rows,
        )

    def pipe(
        self, *options: str, said: str | bytes = b"", **env: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a chat without a terminal."""
        program = [str(KEEPTHREAD), "chat", *options]
        given = said if isinstance(said, bytes) else said.encode()
        done = preloaded.run(program, {**os.environ, **self.env, **env}, self.folder, given, 60)
        out, errors = done.stdout.decode(), done.stderr.decode()
        return subprocess.CompletedProcess(program, done.returncode, out, errors)

    def closed_when(self, seen: str) -> int:
        """Ask something in a terminal that is closed when a text is seen; return the status."""
        master, slave = pty.openpty()
        program = subprocess.Popen(
            [*SHELL, os.ttyname(slave), KEEPTHREAD, "chat"],
            env={**os.environ, **self.env, "TERM": "xterm-256color"},
            cwd=self.folder,
            start_new_session=True,
        )
        shown, asked = b"", False
        while seen.encode() not in shown:
            shown += os.read(master, 65_536)
            if not asked and b"> " in shown:
                asked = bool(os.write(master, b"Count\r"))
        os.close(slave)
        os.close(master)
        return program.wait(20)

    def stopped_by(self, number: signal.Signals, gate: Gate) -> int:
        """Ask one question, and send a signal once some of the answer is there."""
        program = subprocess.Popen(
            [KEEPTHREAD, "chat", "-p", "Count"],
            env={**os.environ, **self.env},
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert program.stdout is not None
        with program:
            assert gate.reached.wait(20)
            assert os.read(program.stdout.fileno(), 7)
            program.send_signal(number)
            _, errors = program.communicate(timeout=20)
        assert b"Traceback" not in errors
        return program.returncode

    async def messages(self, session: str = "") -> list[Message]:
        """Return what is stored of a session, or of the latest."""
        async with Memory.open(f"sqlite:///{self.store}", counter=Estimator()) as memory:
            if not session:
                (latest,) = await memory.list_sessions(limit=1)
                session = latest.id
            return await (await memory.get_session(session)).messages()


@pytest.fixture
def place(tmp_path: Path) -> Callable[[ScriptedServer], Place]:
    """Return what makes a place for chats with a server."""

    def made(server: ScriptedServer) -> Place:
        env = {
            "KEEPTHREAD_MODEL_NAME": "scripted",
            "KEEPTHREAD_MODEL_BASE_URL": server.openai,
            "KEEPTHREAD_MODEL_RETRIES": "0",
            "KEEPTHREAD_MEMORY_STORAGE_PATH": str(tmp_path / "data" / "memory.db"),
            "KEEPTHREAD_STATE": str(tmp_path / "state"),
        }
        return Place(tmp_path, env)

    return made


Places = Callable[[ScriptedServer], Place]


def ask(terminal: Terminal, question: str, answer: str | re.Pattern[str]) -> None:
    """Type a question, and wait for what comes of it and for the next line."""
    terminal.type(question)
    terminal.enter()
    terminal.wait_for(answer)
    terminal.wait_until(lambda screen: ">" in screen[-12:] or ">" in screen, what="a line to type")


# ---------------------------------------------------------------- at a terminal


async def test_a_follow_up_question_is_remembered(place: Places) -> None:
    with ScriptedServer(["Rain in **Jakarta**.", "Sun in Tokyo."]) as server:
        here = place(server)
        with here.terminal() as terminal:
            terminal.wait_for(READY)
            terminal.wait_for(re.compile(r"keepthread \S+ · scripted · a new session · /help"))
            ask(terminal, "Weather in Jakarta?", "Rain in Jakarta.")
            terminal.wait_for(re.compile(r"Weather in Jakarta\? · scripted · \d+ of 4,096 tokens"))
            ask(terminal, "How about Tokyo?", "Sun in Tokyo.")
            terminal.key("ctrl-d")
            assert terminal.exit_code() == 0
        assert "Rain in **Jakarta**." in server.requests[1].context
        said = await here.messages()
        assert [(m.role, m.content) for m in said] == [
            ("user", "Weather in Jakarta?"),
            ("assistant", "Rain in **Jakarta**."),
            ("user", "How about Tokyo?"),
            ("assistant", "Sun in Tokyo."),
        ]
        assert (here.store.parent.stat().st_mode & 0o777) == 0o700


async def test_ctrl_c_stops_an_answer_and_keeps_what_arrived(place: Places) -> None:
    gate = Gate()
    with ScriptedServer([Say("One two three four", hold=gate, hold_after=2), "Yes."]) as server:
        here = place(server)
        with here.terminal() as terminal:
            terminal.wait_for(READY)
            terminal.type("Count")
            terminal.enter()
            terminal.wait_for("One two")
            terminal.key("ctrl-c")
            terminal.wait_for("cut short: stopped")
            server.wait_for(dropped=1)
            ask(terminal, "Go on?", "Yes.")
            terminal.key("ctrl-c")
            terminal.wait_for("Ctrl-D quits")
            terminal.type("never sent")
            terminal.key("ctrl-c")
            terminal.key("ctrl-d")
            assert terminal.exit_code() == 0
            assert "Traceback" not in terminal.transcript
        _, cut, *rest = await here.messages()
        assert cut.content.strip() == "One two"
        assert cut.meta["truncated"] is True
        assert [m.content for m in rest] == ["Go on?", "Yes."]


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
async def test_a_signal_in_the_middle_of_an_answer_keeps_it(
    place: Places, number: signal.Signals, status: int
) -> None:
    gate = Gate()
    with ScriptedServer([Say("One two three four", hold=gate, hold_after=2)]) as server:
        here = place(server)
        with here.terminal() as terminal:
            terminal.wait_for(READY)
            terminal.type("Count")
            terminal.enter()
            terminal.wait_for("One two")
            terminal.signal(number)
            assert terminal.exit_code() == status
            assert "Traceback" not in terminal.transcript
        question, answer = await here.messages()
        assert question.content == "Count"
        assert answer.content.strip() == "One two"
        assert answer.meta["truncated"] is True


async def test_a_terminal_that_is_closed_in_the_middle_of_an_answer_loses_nothing(
    place: Places,
) -> None:
    gate = Gate()
    with ScriptedServer([Say("One two three four", hold=gate, hold_after=2)]) as server:
        here = place(server)
        assert here.closed_when("One two") == 129
        question, answer = await here.messages()
        assert question.content == "Count"
        assert answer.content.strip() == "One two"


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_ends_a_chat_that_waits_for_a_line(
    place: Places, number: signal.Signals, status: int
) -> None:
    with ScriptedServer() as server, place(server).terminal() as terminal:
        terminal.wait_for(READY)
        terminal.type("never sent")
        terminal.wait_for("never sent")
        terminal.signal(number)
        assert terminal.exit_code() == status
        assert "Traceback" not in terminal.transcript


def test_lines_that_belong_together_are_sent_together(place: Places) -> None:
    with ScriptedServer(otherwise="Noted.") as server, place(server).terminal() as terminal:
        terminal.wait_for(READY)
        terminal.paste("pasted one\npasted two")
        ask(terminal, "", "Noted.")
        assert server.requests[0].text == "pasted one\npasted two"
        terminal.type("first")
        terminal.key("ctrl-j")
        terminal.type("second")
        terminal.key("alt-enter")
        terminal.type("third")
        terminal.enter()
        server.wait_for(2)
        assert server.requests[1].text == "first\nsecond\nthird"


def test_what_is_typed_during_an_answer_waits_for_the_next_line(place: Places) -> None:
    gate = Gate()
    with (
        ScriptedServer([Say("One two", hold=gate), "Noted."]) as server,
        place(server).terminal() as terminal,
    ):
        terminal.wait_for(READY)
        terminal.type("Count")
        terminal.enter()
        assert gate.reached.wait(20)
        terminal.type("typed ahead")
        terminal.enter()
        gate.open()
        server.wait_for(2)
        assert server.requests[1].text == "typed ahead"
        terminal.wait_for("Noted.")
        assert "typed ahead" not in terminal.transcript.partition("One two")[0]


def test_keys_bring_back_what_was_said_before(place: Places) -> None:
    with ScriptedServer(otherwise="Noted.") as server:
        here = place(server)
        for question in ("the first thing", "the second thing"):
            assert here.pipe("-p", question).returncode == 0
        with here.terminal() as terminal:
            terminal.wait_for(READY)
            terminal.settle()
            terminal.key("up")
            terminal.wait_for("> the second thing")
            terminal.key("up")
            terminal.wait_for("> the first thing")
            terminal.key("ctrl-c")
            terminal.key("ctrl-r")
            terminal.type("econd")
            terminal.wait_for(re.compile(r"I-search backward: econd"))
            terminal.wait_for("> the second thing")
            terminal.enter()
            terminal.enter()
            server.wait_for(3)
            assert server.requests[2].text == "the second thing"
        files = {path.name for path in here.folder.rglob("*") if path.is_file()}
        assert all(name.startswith("memory.db") for name in files), files


def test_tab_completes_commands_and_sessions(place: Places) -> None:
    with ScriptedServer(otherwise="Noted.") as server:
        here = place(server)
        assert here.pipe("--session", "rainy-days", "-p", "Is it raining?").returncode == 0
        with here.terminal() as terminal:
            terminal.wait_for(READY)
            terminal.type("/loa")
            terminal.key("tab")
            terminal.wait_for("> /load")
            terminal.type(" rain")
            terminal.key("tab")
            terminal.wait_for("> /load rainy-days")
            terminal.enter()
            terminal.wait_for(re.compile(r"^Is it raining\? · scripted", re.MULTILINE))
            terminal.type("/lod x")
            terminal.enter()
            terminal.wait_for("unknown command /lod; did you mean /load?")


def test_a_session_is_continued_resumed_or_made(place: Places) -> None:
    with ScriptedServer(otherwise="Noted.") as server:
        here = place(server)
        with here.terminal("-c") as terminal:
            terminal.wait_for("there is no earlier session; this is a new one")
        with here.terminal("--session", "alpha") as terminal:
            terminal.wait_for(READY)
            ask(terminal, "first in alpha", "Noted.")
        assert here.pipe("--session", "beta", "-p", "first in beta").returncode == 0
        assert here.pipe("-r", "alpha", "-p", "second", "--system", "Be brief.").returncode == 0
        assert "first in alpha" in server.requests[-1].context
        assert server.requests[-1].system.startswith("Be brief.")
        with here.terminal("-c") as terminal:
            terminal.wait_for("first in alpha, 4 messages")
            terminal.wait_for(READY)
            ask(terminal, "third", re.compile(r"Noted\..*Noted\.", re.DOTALL))
        assert "second" in server.requests[-1].context
        with here.terminal("-r", "alhpa") as terminal:
            terminal.wait_for("error: there is no session 'alhpa'; there is alpha")
            assert terminal.exit_code() == 2
        both = here.pipe("-c", "-r", "alpha", "-p", "never asked")
        assert both.returncode == 2
        assert "exclude each other" in both.stderr
        assert len(server.requests) == 4


def test_a_model_that_fails_is_told_and_asked_again(place: Places) -> None:
    with ScriptedServer([Say(status=500, message="overloaded"), "Better now."]) as server:
        here = place(server)
        with here.terminal() as terminal:
            terminal.wait_for(READY)
            ask(terminal, "Are you there?", "/retry asks again")
            terminal.wait_for("error: ")
            ask(terminal, "/retry", "Better now.")
        assert server.requests[1].text == "Are you there?"


def test_a_missing_key_is_told_before_anything_is_asked(place: Places) -> None:
    with ScriptedServer() as server:
        here = place(server)
        with here.terminal(KEEPTHREAD_MODEL_BASE_URL="") as terminal:
            terminal.wait_for("error: no API key is set: export OPENAI_API_KEY=…")
            assert terminal.exit_code() == 2


def test_a_store_that_cannot_be_used_keeps_nobody_from_talking(place: Places) -> None:
    with ScriptedServer(otherwise="Noted.") as server:
        here = place(server)
        here.store.parent.mkdir()
        here.store.write_bytes(b"this is no database " * 1000)
        with here.terminal() as terminal:
            terminal.wait_for("the memory is unavailable:")
            terminal.wait_for(re.compile(r"memory unavailable$", re.MULTILINE))
            terminal.type("half a ques")
            here.store.unlink()
            terminal.wait_for("the memory is available again")
            ask(terminal, "tion", "Noted.")
            assert server.requests[0].text == "half a question"
            terminal.key("ctrl-d")
            assert terminal.exit_code() == 0


async def test_two_chats_on_one_session_see_each_other(place: Places) -> None:
    with ScriptedServer(otherwise=lambda asked: f"Heard {asked.text}.") as server:
        here = place(server)
        with (
            here.terminal("--session", "ours") as one,
            here.terminal("--session", "ours") as two,
        ):
            one.wait_for(READY)
            two.wait_for(READY)
            ask(one, "apples", "Heard apples.")
            ask(two, "pears", "Heard pears.")
            ask(one, "plums", "Heard plums.")
        assert "Heard pears." in server.requests[2].context
        said = [m.content for m in await here.messages("ours")]
        assert said[::2] == ["apples", "pears", "plums"]


async def test_without_memory_nothing_is_kept(place: Places) -> None:
    with ScriptedServer(otherwise="Noted.") as server:
        here = place(server)
        with here.terminal("--no-memory") as terminal:
            terminal.wait_for(re.compile(r"not kept$", re.MULTILINE))
            ask(terminal, "first", "Noted.")
            ask(terminal, "second", re.compile("Noted.*Noted", re.DOTALL))
            assert "first" in server.requests[1].context
            terminal.key("ctrl-d")
            assert terminal.exit_code() == 0
        assert list(here.folder.iterdir()) == []


async def test_old_sessions_are_pruned_behind_the_first_line(place: Places) -> None:
    with ScriptedServer() as server:
        here = place(server)
        here.store.parent.mkdir()
        opening = Memory.open(
            f"sqlite:///{here.store}", counter=Estimator(), clock=lambda: 1_000_000_000.0
        )
        async with opening as memory:
            await (await memory.session("long-ago")).add_message("user", "old")
        with here.terminal(KEEPTHREAD_MEMORY_AUTO_PRUNE_DAYS="30") as terminal:
            terminal.wait_for("deleted 1 session without activity for 30 days")


# --------------------------------------------------------------- what it draws


LINES = (
    *("", "", "word", "- item", "  - nested", "  more", "    deep", "1. one", "2. two", "1", "-"),
    *("```", "```python", "~~~", "| a | b |", "|---|---|", "> quote", "# head", "---", "===", "#"),
    *("<div>", "* star", "\t tab", "[a]: http://x", "   ", "***", "10) ten", "日本語", "a | b"),
)


@given(st.lists(st.sampled_from(LINES), max_size=14).map("\n".join), st.data())
def test_blocks_are_the_same_however_a_text_arrives(text: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    whole, rest = list[str](), ""
    for at, to in zip([0, *cuts], [*cuts, len(text)], strict=True):
        *complete, rest = blocks_of(rest + text[at:to])
        whole += complete
    assert [*whole, rest] == blocks_of(text)
    assert "".join([*whole, rest]) == text


STREAMED = """
import asyncio, os, random, sys
from keepthread.apps.cli.chat.streaming import Drawn
text, seed = sys.argv[1], int(sys.argv[2])
async def main():
    chance = random.Random(seed)
    async with Drawn(os.environ, every=0) as drawing:
        while text:
            size = chance.randint(1, 40) if seed else len(text)
            drawing.add(text[:size])
            text, _ = text[size:], await asyncio.sleep(0.002 * chance.random())
asyncio.run(main())
"""


@pytest.mark.parametrize(("columns", "rows"), [(100, 40), (34, 9)])
def test_an_answer_looks_the_same_however_it_arrives(columns: int, rows: int) -> None:
    drawn = set[str]()
    code = STREAMED.replace("async def main():", "async def main():\n    global text")
    for seed in (0, 1, 2):
        program = [sys.executable, "-c", code, MARKDOWN, str(seed)]
        with Terminal(program, columns=columns, rows=rows) as terminal:
            assert terminal.exit_code() == 0, terminal.transcript
            drawn.add(terminal.transcript)
    (transcript,) = drawn
    assert "sunny in Tokyo, and the <div> tag" in " ".join(transcript.split())
    assert "**" not in transcript


def test_a_terminal_resized_in_the_middle_of_an_answer_loses_nothing(place: Places) -> None:
    gate = Gate()
    words = " ".join(f"w{n}" for n in range(150))
    script = [Say(f"First block.\n\n{words}", hold=gate, hold_after=100)]
    with ScriptedServer(script) as server, place(server).terminal(size=(80, 12)) as terminal:
        terminal.wait_for(READY)
        terminal.type("Say many words")
        terminal.enter()
        terminal.wait_for("w97")
        terminal.resize(40, 12)
        terminal.wait_until(lambda screen: screen[-1].startswith("w") and len(screen[-1]) < 40)
        gate.open()
        terminal.wait_for("w149")
        terminal.wait_for(re.compile(r"^>$", re.MULTILINE))
        shown = terminal.transcript.partition("First block.")[2].split()
        kept = [word for word in shown if re.fullmatch(r"w\d+", word)]
        assert list(dict.fromkeys(kept)) == words.split()


@pytest.mark.parametrize("plain", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_a_plain_terminal_gets_plain_text(place: Places, plain: dict[str, str]) -> None:
    with (
        ScriptedServer(["It is **sunny**\x1b]0;owned\x07 here.\r\nYes."]) as server,
        place(server).terminal(size=(80, 24), **plain) as terminal,
    ):
        terminal.wait_for(re.compile("^>", re.MULTILINE))
        terminal.type("Weather?")
        terminal.enter()
        terminal.wait_for(r"It is **sunny**\x1b]0;owned\x07 here.")
        terminal.wait_for(re.compile("^Yes.$", re.MULTILINE))
        terminal.wait_for(re.compile("^>", re.MULTILINE), times=2)
        terminal.key("ctrl-c")
        terminal.wait_for("Ctrl-D quits")
        terminal.key("ctrl-d")
        assert terminal.exit_code() == 0
        assert b"\x1b]0;owned" not in terminal.raw


# -------------------------------------------------------------------- in pipes


async def test_a_question_is_answered_in_a_pipe(place: Places) -> None:
    with ScriptedServer(otherwise="**Noted**.\nYes.") as server:
        here = place(server)
        asked = here.pipe("-p", "What is this?", said="some text\nin lines\n")
        assert (asked.returncode, asked.stdout, asked.stderr) == (0, "**Noted**.\nYes.\n", "")
        assert server.requests[0].text == "What is this?\n\nsome text\nin lines"
        assert here.pipe(said="only this\n").stdout == "**Noted**.\nYes.\n"
        assert server.requests[1].text == "only this"
        nothing = here.pipe()
        assert nothing.returncode == 2
        assert "-p 'How is the weather?'" in nothing.stderr


async def test_one_answer_in_json_says_what_it_took(place: Places) -> None:
    with ScriptedServer(["Sunny."]) as server:
        here = place(server)
        asked = here.pipe("--session", "s", "--json", "-p", "Weather?")
        assert (asked.returncode, asked.stderr) == (0, "")
        told = json.loads(asked.stdout)
        assert set(told) == {
            *(
                "session",
                "answer",
                "model",
                "truncated",
                "usage",
                "context",
                "kept",
                "seconds",
                "first",
            )
        }
        assert (told["session"], told["answer"], told["truncated"]) == ("s", "Sunny.", False)
        (question, _) = await here.messages("s")
        assert told["context"]["budget"] == 4096 + question.tokens
        assert sum(told["context"]["sections"].values()) == told["context"]["tokens"]
        assert told["kept"] is True
        assert 0 < told["first"] <= told["seconds"]
        alone = here.pipe("--json")
        assert alone.returncode == 2
        assert "question" in json.loads(alone.stderr)["message"]


async def test_an_answer_that_breaks_off_in_a_pipe_is_kept_and_marked(place: Places) -> None:
    script = [Say("One two three", cut_after=2), Say("All of it", finish="length")]
    with ScriptedServer(script, otherwise=Say(status=500)) as server:
        here = place(server)
        cut = here.pipe("--session", "s", "-p", "Count")
        assert (cut.returncode, cut.stdout.strip()) == (1, "One two")
        assert "cut short" in cut.stderr
        assert here.pipe("--session", "s", "-p", "More").returncode == 1
        failed = here.pipe("--session", "s", "-p", "Again")
        assert (failed.returncode, failed.stdout) == (2, "")
        assert failed.stderr.startswith("error: ")
        assert "Traceback" not in failed.stderr
        said = await here.messages("s")
        assert [m.content.strip() for m in said] == [
            "Count",
            "One two",
            "More",
            "All of it",
            "Again",
        ]
        assert [bool(m.meta.get("truncated")) for m in said] == [False, True, False, True, False]


async def test_an_empty_answer_in_a_pipe_is_reported_and_fails(place: Places) -> None:
    with ScriptedServer([Say(""), Say("\n"), Say("")]) as server:
        here = place(server)
        for asked in ("First", "Second"):
            silent = here.pipe("--session", "s", "-p", asked)
            assert (silent.returncode, silent.stdout.strip()) == (1, "")
            assert "the model returned an empty answer" in silent.stderr
        silent = here.pipe("--json", "--session", "s", "-p", "Third")
        assert (silent.returncode, json.loads(silent.stdout)["answer"]) == (1, "")
        said = [message.content.strip() for message in await here.messages("s")]
        assert [text for text in said if text] == ["First", "Second", "Third"]


NO_HANDLERS = """
import asyncio

def add_signal_handler(*_):
    raise NotImplementedError

asyncio.SelectorEventLoop.add_signal_handler = add_signal_handler
"""


@pytest.mark.parametrize("handlers", [True, False])
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
async def test_a_signal_ends_one_answer_and_keeps_it(
    place: Places, number: signal.Signals, status: int, *, handlers: bool
) -> None:
    gate = Gate()
    with ScriptedServer([Say("One two three", hold=gate, hold_after=2)]) as server:
        here = place(server)
        if not handlers:  # as on Windows
            site = here.folder / "site"
            site.mkdir()
            (site / "sitecustomize.py").write_text(NO_HANDLERS)
            here = here._replace(env={**here.env, "PYTHONPATH": str(site)})
        assert here.stopped_by(number, gate) == status
        question, answer = await here.messages()
        assert question.content == "Count"
        assert answer.content.startswith("One")
        assert answer.meta["truncated"] is True


def test_a_locked_store_holds_up_nobody(place: Places) -> None:
    with ScriptedServer(otherwise="Noted.") as server:
        here = place(server)
        assert here.pipe("--session", "s", "-p", "first").returncode == 0
        lock = sqlite3.connect(here.store, isolation_level=None)
        lock.execute("BEGIN IMMEDIATE")
        asked = here.pipe("--session", "s", "-p", "second")
        assert (asked.returncode, asked.stdout) == (0, "Noted.\n")
        assert "the memory is unavailable" in asked.stderr
        lock.execute("ROLLBACK")
        lock.close()
        asked = here.pipe("--session", "s", "-p", "third")
        assert "messages of an earlier chat were delivered" in asked.stderr
        assert "second" in server.requests[2].context
