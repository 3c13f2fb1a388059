"""The commands of a chat, without a terminal: a real store, a scripted model, one who notes."""

import asyncio
import io
import json
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any, cast

import pytest
from rich.console import Console

from keepthread import Memory, Message
from keepthread.apps.cli.chat.chat import Chat
from keepthread.apps.cli.chat.commands import COMMANDS, is_command, run, table
from keepthread.apps.cli.chat.commands.facts import show_waiting
from keepthread.apps.cli.chat.offline_files import OfflineFiles
from keepthread.apps.cli.chat.persistence import Persistence
from keepthread.apps.cli.chat.signals import Signals
from keepthread.apps.cli.chat.startup import SessionChoice, begin
from keepthread.apps.cli.chat.talk import Talk
from keepthread.apps.cli.chat.terminal import Terminal
from keepthread.apps.cli.invocation import Call
from keepthread.apps.cli.screen import Screen
from keepthread.apps.cli.settings.load import Config
from keepthread.apps.cli.settings.settings import settings_of
from keepthread.apps.cli.wiring import memory_arguments
from keepthread.errors import (
    InvalidInput,
    KeepthreadError,
    MessageNotFound,
    ModelUnavailable,
    SessionExists,
    SessionNotFound,
    Unavailable,
)
from keepthread.memory.memory import Opening
from keepthread.memory.owner import OwnerMemory
from keepthread.testing.contract import Letters
from keepthread.testing.model import Line, ScriptedModel
from keepthread.testing.server import ScriptedServer
from keepthread.types import JSON, Reply, ToolCall, Usage

OWNER = "ana"
CONTRACT = (
    "/sessions /load /save /history /clear /forget memory:clear memory:status /resume /rename"
    " /rewind /fork /compact /pin /search /remember /facts /context /why /cost /export /import"
    " /model /help"
)
NASTY = "evil \x1b[31mred\x1b]0;owned\x07 \u202e\x9b2J\x7f"


class Noting:
    """A person who notes what is said and drawn, and agrees or does not."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.asked: list[str] = []
        self.will = True
        self.meanwhile: Callable[[], Awaitable[object]] | None = None
        self._paper = io.StringIO()
        self.screen = Screen(Console(file=self._paper, width=100, highlight=False, markup=False))

    def say(self, text: str) -> None:
        self.told.append(text)
        self._paper.write(f"{text}\n")

    async def agrees(self, question: str) -> bool:
        self.asked.append(question)
        if self.meanwhile:
            await self.meanwhile()
        return self.will

    def seen(self) -> str:
        """Return what was shown since it was last looked at."""
        shown = self._paper.getvalue()
        self._paper.seek(0)
        self._paper.truncate()
        return shown


class Desk:
    """A chat and what a test does with it."""

    def __init__(self, folder: Path, script: Sequence[Line], settings: dict[str, Any]) -> None:
        self.store = folder / "chat.db"
        known = {"memory.owner": OWNER, "memory.url": f"sqlite:///{self.store}"}
        values = {**known, "model.name": "scripted", **settings}
        config = Config(settings=settings_of(values), sources={})
        self.model = ScriptedModel(script)
        self.person = Noting()
        given = memory_arguments(config.settings, self.model, {})

        def opened(address: str) -> Opening:
            return Memory.open(address, timeout=0.05, counter=Letters(), **given)

        offline_files = OfflineFiles(folder / "asides", str(self.store), "default")
        enabled = config.settings.memory.enabled
        address = config.settings.address
        self.persistence = Persistence(
            address,
            opened,
            offline_files if enabled else None,
            owner=OWNER,
            notify=self.person.say,
        )
        self.talk = Talk(self.persistence, self.model, id="first")
        self.chat = Chat(
            call=Call(flags={"memory.url": address}),
            config=config,
            talk=self.talk,
            person=self.person,
            environ={},
        )

    def memory_of(self, owner: str) -> OwnerMemory:
        """Return what the chat itself cannot reach: the memory of another owner."""
        return self.persistence._whole.for_owner(owner)

    async def ask(self, *questions: str) -> None:
        for question in questions:
            async for _ in self.talk.ask(question):
                pass

    async def do(self, line: str) -> str:
        """Run a command and return what was shown."""
        self.person.seen()
        await run(self.chat, line)
        return self.person.seen()

    async def shown(self) -> list[str]:
        """Return what a model would be shown of the session."""
        session = await self.chat.session()
        return [message.content for message in (await session.context("chat")).messages]

    async def log(self, id: str = "") -> list[str]:
        """Return all that is stored of a session, where it is kept now."""
        session = await self.persistence.memory.get_session(id or self.talk.id)
        return [message.content for message in await session.messages()]

    @asynccontextmanager
    async def away(self) -> AsyncIterator[None]:
        """Let another program hold the store, and the chat notice it."""
        with closing(sqlite3.connect(self.store, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            await self.ask("Are you there?")
            assert self.persistence.away
            yield
            other.execute("ROLLBACK")


@asynccontextmanager
async def desk(folder: Path, *script: Line, **settings: Any) -> AsyncIterator[Desk]:
    """Give a chat; settings have two underscores for a dot."""
    made = Desk(folder, script, {k.replace("__", "."): v for k, v in settings.items()})
    await made.persistence.begin()
    try:
        yield made
    finally:
        await made.persistence.close()


# --- names ---


def test_every_command_that_was_promised_is_there_with_its_help() -> None:
    assert set(CONTRACT.split()) <= set(COMMANDS)
    listed = [name.split()[0] for names, _ in table() for name in names.split(", ")]
    assert sorted(listed) == sorted(COMMANDS)
    for _, about in table():
        assert about.endswith(".")
        assert len(about) <= 76  # a line of a terminal, beside the name


def test_a_path_is_no_command_and_a_misspelt_one_is() -> None:
    assert [is_command(line) for line in ("/usr/bin is full", "a /why", "", "/")] == [
        False,
        False,
        False,
        True,
    ]
    assert not is_command(" /etc is what?")
    assert is_command("/wyh not")
    assert is_command("memory:claer")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("/sesions", "did you mean /sessions"),
        ("/hist", "did you mean /history"),
        ("memory:stat", "did you mean memory:status"),
        ("/xyzzy", "/help lists them"),
        ("/", "/help lists them"),
        ("/clear all", "write /clear alone"),
        ("/rename", "write /rename TITLE"),
        ("/search", "write /search WORDS"),
        ("/import", "write /import FILE"),
        ("/history -3", "'-3' is not a number of messages"),
        ("/history 0", "'0' is not a number of messages"),
        ("/rewind two", "'two' is not a number of turns"),
        ("/rewind 99999999999999999999", "is not a number of turns"),
        ("/pin x", "'x' is not a position"),
        ("/pin -", "write /pin -N"),
        ("/pin 9", "there is no message at position 9"),
        ("/forget everything", "write /forget, or /forget last"),
        ("/why 2", "2 is not one of them; 1 is the latest"),
        ("/resume 7", "7 is not in the list of 1 session"),
        ("/help sessoins", "did you mean /sessions"),
        ("/import nowhere.md", "nowhere.md: No such file"),
        ("/export nowhere/a.md", "nowhere/a.md: No such file"),
        (f"/export {'x' * 300}", "File name too long"),
        ("/import a\0b", "is not a file name"),
        (f"/rename {'x' * 300}", "at most 200 characters"),
        (f"/fork {'x' * 300}", "1 to 255 printable characters"),
        ("/fork first", "give another id"),
        ("/retry", "the latest question has an answer"),
    ],
)
async def test_what_cannot_be_done_says_what_to_do(tmp_path: Path, line: str, said: str) -> None:
    async with desk(tmp_path, "Sunny.") as it:
        await it.ask("Jakarta?")
        with pytest.raises(KeepthreadError) as failure:
            await it.do(line)
        assert said in str(failure.value)


@pytest.mark.parametrize("line", ["/history", "/context", "/why", "/clear", "/rewind", "/pin"])
async def test_where_nothing_was_said_it_says_so(tmp_path: Path, line: str) -> None:
    async with desk(tmp_path) as it:
        with pytest.raises(InvalidInput, match="ask something first"):
            await it.do(line)
        assert "none yet" in await it.do("/status")
        assert (
            await it.persistence.store.get_session("first", OWNER) is None
        )  # looking makes nothing


async def test_help_lists_all_commands_and_tells_more_of_one(tmp_path: Path) -> None:
    async with desk(tmp_path) as it:
        shown = await it.do("/help")
        assert all(name in shown for name in COMMANDS)
        assert "`/pin -N` unpins it" in await it.do("/help pin")
        assert "Start over" in await it.do("/help memory:clear")


async def test_quit_and_exit_end_the_chat(tmp_path: Path) -> None:
    for line in ("/quit", "/exit"):
        async with desk(tmp_path) as it:
            await it.do(line)
            assert it.chat.over


# --- sessions ---


async def test_sessions_are_listed_and_resumed_by_number_or_id(tmp_path: Path) -> None:
    async with desk(tmp_path, "Sunny.", "Rainy.", "Windy.") as it:
        await it.ask("How is Jakarta?")
        it.talk.move("second")
        await it.ask("How is Tokyo?")
        await it.memory_of("bea").session("secret")
        shown = await it.do("/sessions")
        assert "secret" not in shown
        assert [line.split()[:3] for line in shown.splitlines()[1:]] == [
            ["→", "1", "second"],
            ["2", "first", "How"],
        ]
        assert "second" in await it.do("/sessions 1")
        assert "/resume N" in await it.do("/resume")
        shown = await it.do("/resume 2")
        assert it.talk.id == "first"
        assert "Sunny." in shown
        await it.ask("And now?")
        assert it.model.calls[-1].messages[0].content == "How is Jakarta?"
        await it.do("/load second")
        assert await it.shown() == ["How is Tokyo?", "Rainy."]


async def aged(folder: Path, *ids: str) -> None:
    """Store sessions without activity since 2001."""
    opening = Memory.open(
        f"sqlite:///{folder}/chat.db", counter=Letters(), clock=lambda: 1_000_000_000.0
    )
    async with opening as memory:
        for id in ids:
            session = await memory.session(id, owner=OWNER)
            await session.add_message("user", f"precious words of {id}")


async def test_a_session_that_was_resumed_is_not_pruned(tmp_path: Path) -> None:
    await aged(tmp_path, "old", "older", "oldest")
    it = Desk(tmp_path, [], {})
    it.talk.move("old")
    await begin(it.talk, SessionChoice(resume="old"), it.person.say)
    await it.do("/resume older")
    async with Memory.open(f"sqlite:///{it.store}") as another_program:
        assert await another_program.admin.prune(30) == 1
    assert await it.log("old") == ["precious words of old"]
    assert await it.log("older") == ["precious words of older"]
    await it.persistence.close()


async def test_however_slowly_a_store_opens_a_chat_does_not_prune_its_own_session(
    tmp_path: Path,
) -> None:
    await aged(tmp_path, "first", "idle")
    it = Desk(tmp_path, [], {"memory.auto_prune_days": 30})
    opened = it.persistence._opened
    gate = asyncio.Event()

    class Slowly:
        """Opens a memory once the gate is open."""

        def __init__(self, address: str) -> None:
            self.opening = opened(address)

        def __await__(self) -> Generator[Any, None, Memory]:
            yield from gate.wait().__await__()
            return (yield from self.opening.__await__())

    it.persistence._opened = cast(Any, Slowly)
    terminal = Terminal({"TERM": "dumb"}, Signals())
    wanted = SessionChoice(resume="first")
    terminal._chat = it.chat
    terminal._opening = asyncio.create_task(begin(it.talk, wanted, it.person.say))
    behind = asyncio.create_task(terminal._behind())
    gate.set()
    await behind
    assert await it.log("first") == ["precious words of first"]
    assert [info.id for info in await it.persistence.memory.list_sessions()] == ["first"]
    await it.persistence.close()


async def test_a_session_that_another_program_deleted_begins_again(tmp_path: Path) -> None:
    async with desk(tmp_path, "Sunny.", "Rainy.", "Yes.") as it:
        await it.ask("How is Jakarta?")
        async with Memory.open(f"sqlite:///{it.store}") as another_program:
            await another_program.delete_session("first", owner=OWNER)
        await it.ask("How is Tokyo?")
        assert "another program deleted session first; it starts again empty" in it.person.seen()
        assert await it.log() == ["How is Tokyo?", "Rainy."]
        async with it.away():
            assert "How is Jakarta?" not in await it.log()


async def test_a_session_that_another_program_forgot_begins_again(tmp_path: Path) -> None:
    async with desk(tmp_path, "Sunny.", "Rainy.", "Yes.") as it:
        await it.ask("How is Jakarta?")
        async with Memory.open(f"sqlite:///{it.store}") as another_program:
            await another_program.forget(session="first", owner=OWNER)
        assert "first" not in await it.do("/sessions")
        await it.ask("How is Tokyo?")
        assert "another program deleted session first; it starts again empty" in it.person.seen()
        assert [text for text in await it.log() if text] == ["How is Tokyo?", "Rainy."]


async def test_delete_asks_removes_a_session_and_keeps_facts(tmp_path: Path) -> None:
    async with desk(tmp_path, "Sunny.", "Rainy.") as it:
        await it.ask("How is Jakarta?")
        await it.do("/remember I live in Jakarta")
        it.person.will = False
        assert "Nothing was deleted" in await it.do("/delete")
        assert it.person.asked == ["Delete this session, 2 messages, and keep facts?"]
        it.person.will = True
        shown = await it.do("/delete")
        assert shown == f"Deleted: 2 messages; facts stay\nA new session begins, {it.talk.id}\n"
        assert it.talk.id != "first"
        await it.ask("How is Tokyo?")
        assert "first" not in await it.do("/sessions")
        assert "I live in Jakarta" in await it.do("/facts")
        here = it.talk.id
        await it.do("/fork other")
        assert "Deleted: 2 messages" in await it.do(f"/delete {here}")
        assert it.talk.id == "other"
        assert it.person.asked[-1] == f"Delete session {here}, 2 messages, and keep facts?"
        assert await it.log() == ["How is Tokyo?", "Rainy."]
        with pytest.raises(SessionNotFound):
            await it.do("/delete first")
        assert "/forget" in await it.do("/help /delete")
        assert "/delete" in await it.do("/help /forget")


async def test_an_unknown_id_names_near_ones_of_the_same_owner(tmp_path: Path) -> None:
    async with desk(tmp_path, "Sunny.") as it:
        await it.ask("Jakarta?")
        await it.memory_of("bea").session("firsts")
        for line in ("/resume frist", "/load firsts"):
            with pytest.raises(SessionNotFound, match=r"there is first$"):
                await it.do(line)
        with pytest.raises(SessionNotFound, match="/sessions lists them"):
            await it.do("/resume zzz")
        assert it.talk.id == "first"


async def test_a_session_whose_id_is_a_number_is_meant_by_it(tmp_path: Path) -> None:
    async with desk(tmp_path, "Sunny.") as it:
        await it.ask("Jakarta?")
        await it.persistence.memory.session("2")
        await it.do("/sessions")
        assert it.chat.listed == ["2", "first"]
        await it.do("/resume 2")
        assert it.talk.id == "2"
        await it.do("/resume 1")
        assert it.talk.id == "2"


async def test_a_session_is_named_and_forked(tmp_path: Path) -> None:
    async with desk(tmp_path, "Sunny.", "Rainy.") as it:
        await it.ask("Jakarta?")
        assert "“A trip”" in await it.do("/rename A  trip")
        assert (await it.chat.session()).info.title == "A trip"
        assert "/resume first goes back" in await it.do("/fork copy")
        await it.ask("Tokyo?")
        assert await it.log("copy") == ["Jakarta?", "Sunny.", "Tokyo?", "Rainy."]
        assert await it.log("first") == ["Jakarta?", "Sunny."]
        with pytest.raises(SessionExists, match="give another id"):
            await it.do("/fork first")
        await it.do("/fork")
        assert it.talk.id not in ("first", "copy")
        assert await it.log() == await it.log("copy")


async def test_save_waits_for_what_follows_an_answer_and_says_where_it_is(tmp_path: Path) -> None:
    async with desk(tmp_path, "Sunny.") as it:
        await it.ask("Jakarta?")
        shown = await it.do("/save")
        assert "2 messages of session first" in shown
        assert str(it.store) in shown
        end = asyncio.Event()
        it.persistence._whole._runtime.background.soon("work", end.wait)
        saving = asyncio.ensure_future(it.do("/save"))
        assert not (await asyncio.wait({saving}, timeout=0.2))[0]
        end.set()
        assert "Saved" in await saving


# --- what the model is shown ---


async def test_history_shows_the_conversation_and_tools_if_they_are_wanted(tmp_path: Path) -> None:
    async with desk(tmp_path, "Sunny.") as it:
        await it.ask("Weather?")
        session = await it.chat.session()
        call = ToolCall(id="c", name="weather", arguments='{"city": "Lima"}')
        for _ in range(60):
            await session.append(
                Message(role="assistant", tool_calls=(call,)),
                Message(role="tool", tool_call_id="c", content="rain in Lima"),
            )
        shown = await it.do("/history")
        assert "Sunny." in shown
        assert "rain in Lima" not in shown
        assert "120 messages with tool calls left out: /history --tools shows them" in shown
        shown = await it.do("/history 4 --tools")
        assert shown.count("rain in Lima") == 2
        assert "118 earlier: /history 8 --tools shows more" in shown


async def test_history_shows_the_newest_and_what_is_hidden_as_hidden(tmp_path: Path) -> None:
    async with desk(tmp_path, "Sunny.", "Rainy.", "Windy.") as it:
        await it.ask("Jakarta?", "Tokyo?")
        await it.do("/rewind")
        await it.ask("Oslo?")
        shown = await it.do("/history")
        assert shown.count("rewound") == 2
        assert "Tokyo?" in shown
        assert "Windy." in shown
        assert "5 earlier: /history 2" in await it.do("/history 1")


@pytest.mark.parametrize("line", ["/clear", "memory:clear"])
async def test_clear_shows_nothing_more_and_keeps_the_log(tmp_path: Path, line: str) -> None:
    async with desk(tmp_path, "Sunny.", "Rainy.") as it:
        await it.ask("Jakarta?")
        assert "/history" in await it.do(line)
        await it.ask("Tokyo?")
        assert await it.shown() == ["Tokyo?", "Rainy."]
        assert await it.log() == ["Jakarta?", "Sunny.", "Tokyo?", "Rainy."]
        status = await (await it.chat.session()).status()
        assert (status.messages, status.visible_messages) == (4, 2)
        assert "2 messages, " in await it.do("memory:status")


async def test_rewind_hides_turns_and_offers_the_question_again(tmp_path: Path) -> None:
    async with desk(tmp_path, "1", "2", "3", "4") as it:
        await it.ask("one", "two", "three")
        assert "1 turn, 2 messages, from “three” on" in await it.do("/rewind")
        assert it.chat.offer == "three"
        assert "1 turn, 2 messages, from “two” on" in await it.do("/rewind 1")
        assert await it.shown() == ["one", "1"]
        await it.ask("four")
        assert "2 turns, 4 messages, from “one” on" in await it.do("/rewind 9")
        assert it.chat.offer == "one"
        with pytest.raises(InvalidInput, match="nothing to hide"):
            await it.do("/rewind")
        assert len(await it.log()) == 8


@pytest.mark.parametrize("line", ["/clear", "/rewind 2", "/forget last"])
async def test_what_is_hidden_stays_so_though_the_store_goes_away(
    tmp_path: Path, line: str
) -> None:
    async with desk(tmp_path, "Sunny.", "Rainy.", "Here.") as it:
        await it.ask("How is Jakarta?", "How is Tokyo?")
        await it.do(line)
        async with it.away():
            asked = [message.content for message in it.model.calls[-1].messages]
            assert "How is Tokyo?" not in asked
            assert asked[-1] == "Are you there?"


async def test_a_message_is_pinned_by_its_position_and_unpinned(tmp_path: Path) -> None:
    async with desk(tmp_path, "Sunny.", "Rainy.") as it:
        await it.ask("Jakarta?", "Tokyo?")
        session = await it.chat.session()
        assert "Pinned 4, “Rainy.”; /pin -4 unpins it" in await it.do("/pin")
        assert "Pinned 1, “Jakarta?”" in await it.do("/pin 1")

        async def pins() -> int:
            return (await session.context("chat", budget=60)).why.sections.get("pins", 0)

        assert await pins()
        assert "Unpinned 1" in await it.do("/pin -1")
        assert "Unpinned 4" in await it.do("/pin -4")
        assert "was not pinned" in await it.do("/pin -4")
        assert not await pins()


async def test_there_is_no_answer_to_pin_where_none_came(tmp_path: Path) -> None:
    async with desk(tmp_path, ModelUnavailable("down")) as it:
        await it.ask("Jakarta?")
        with pytest.raises(MessageNotFound, match="no answer to pin"):
            await it.do("/pin")


async def test_compact_compacts_now_and_says_how_much_shorter(tmp_path: Path) -> None:
    answers = [f"It is sunny in town {number}. " * 20 for number in range(16)]
    async with desk(tmp_path, *answers, memory__strategy="window") as it:
        await it.ask(*(f"How is town {number}?" for number in range(4)))
        assert "Nothing to compact" in await it.do("/compact")
        await it.ask(*(f"How is town {number}?" for number in range(4, 16)))
        shown = await it.do("/compact")
        assert "up to position 20" in shown
        assert "% shorter" in shown
        assert (await (await it.chat.session()).status()).summary_bytes
        again = await it.do("/compact")
        assert "Nothing to compact: the newest 10 turns are kept" in again
        assert "position 20" in again


async def test_the_budget_is_drawn_by_section_with_tokens_and_share(tmp_path: Path) -> None:
    async with desk(tmp_path, "Sunny.", memory__max_history_tokens=200) as it:
        await it.ask("Jakarta?")
        shown = await it.do("/context")
        why = (await (await it.chat.session()).context("chat")).why
        for section, tokens in why.sections.items():
            row = next(line for line in shown.splitlines() if f" {section} " in line)
            assert row.split()[-2:] == [f"{tokens:,}", f"{tokens / 200:.1%}"]
        assert f"unused {200 - why.tokens:,}" in " ".join(shown.split())
        assert why.bar(76).strip("[]") in shown


async def test_why_tells_of_the_latest_answer_and_of_earlier_ones(tmp_path: Path) -> None:
    async with desk(tmp_path, "Sunny.", "Rainy.", "Windy.") as it:
        await it.ask("Jakarta?", "Tokyo?")
        assert it.talk.last
        latest = f"{it.talk.last.context.tokens:,} of 4,096"
        shown = await it.do("/why")
        assert latest in shown
        assert "kept 1" not in shown
        await it.do("/context")  # which is no answer
        shown = await it.do("/why 2")
        assert "kept 2" in shown
        assert "turn 1" in shown
        it.talk.move("first")
        shown = await it.do("/why")
        assert "kept 1" in shown
        assert "turn 2" in shown
        assert latest in shown


async def test_without_accounts_why_tells_of_the_next_context(tmp_path: Path) -> None:
    async with desk(tmp_path, "Sunny.", memory__keep_why=0) as it:
        await it.ask("Jakarta?")
        it.talk.move("first")
        shown = await it.do("/why")
        assert "kept" not in shown
        assert "of 4,096 tokens" in shown
        with pytest.raises(InvalidInput, match=r"set memory\.keep_why to 20"):
            await it.do("/why 2")


# --- what is known ---


async def test_search_finds_in_all_sessions_of_the_owner(tmp_path: Path) -> None:
    async with desk(tmp_path, "Sunny in Jakarta.", "Rainy.") as it:
        await it.ask("How is Jakarta?")
        other = await it.memory_of("bea").session("theirs")
        await other.append(Message(role="user", content="Jakarta is mine"))
        it.talk.move("second")
        await it.ask("How is Tokyo?")
        shown = await it.do("/search Jakarta")
        assert "first 1" in shown
        assert "How is Jakarta?" in shown
        assert "mine" not in shown
        assert "Nothing was found" in await it.do("/search xylophone")


async def test_facts_are_noted_listed_and_known_to_other_sessions(tmp_path: Path) -> None:
    async with desk(tmp_path, "Hello.") as it:
        assert "/remember TEXT" in await it.do("/facts")
        assert "Lives in Oslo." in await it.do("/remember Lives in Oslo.")
        (fact,) = await it.persistence.memory.facts.list()
        assert fact.text == "Lives in Oslo."
        shown = await it.do("/facts")
        assert fact.key[-8:] in shown
        assert "manually added" in shown
        assert "quarantine" not in shown
        it.talk.move("second")
        await it.ask("Where do I live?")
        assert any("Oslo" in message.content for message in it.model.calls[0].messages)


async def test_a_fact_that_waits_says_how_to_let_it_out(tmp_path: Path) -> None:
    async with desk(tmp_path, "Sunny.") as it:
        await it.ask("Jakarta?")
        session = await it.chat.session()
        (told,) = await session.append(Message(role="tool", tool_call_id="1", content="A boat."))
        facts = it.persistence.memory.facts
        await facts.remember("Has a boat.", session="first", messages=[told])
        assert "1 waiting for confirmation: /facts confirm N" in await it.do("/facts")
        assert "Confirmed: Has a boat." in await it.do("/facts confirm 1")
        assert [fact.state for fact in await facts.list()] == ["live"]


async def test_a_number_of_a_waiting_fact_never_comes_to_mean_another(tmp_path: Path) -> None:
    async with desk(tmp_path, "Sunny.") as it:
        await it.ask("Jakarta?")
        session = await it.chat.session()
        facts = it.persistence.memory.facts
        news: list[str] = []
        for text in ("Has a boat.", "Has a car."):
            (told,) = await session.append(Message(role="tool", tool_call_id="1", content=text))
            await facts.remember(text, session="first", messages=[told])
            await show_waiting(it.chat, news.append)
        await show_waiting(it.chat, news.append)
        assert [line.partition(": ")[2] for line in news] == [
            "Has a boat. · /facts confirm 1",
            "Has a car. · /facts confirm 2",
        ]
        await facts.forget(next(f.key for f in await facts.list() if "boat" in f.text))
        with pytest.raises(InvalidInput, match="no waiting fact"):
            await it.do("/facts confirm 1")
        with pytest.raises(InvalidInput, match="/facts confirm N"):
            await it.do("/facts forget 1")
        assert "Has a car." in await it.do("/facts confirm 2")


# --- costs ---


async def test_cost_counts_the_answer_the_chat_and_the_session(tmp_path: Path) -> None:
    first = Reply(content="Sunny.", usage=Usage(1000, 100, 0))
    then = Reply(content="Rainy.", usage=Usage(2000, 200, 800))
    price = {"model__price__input": 2.0, "model__price__cached": 0.5, "model__price__output": 8.0}
    async with desk(tmp_path, first, then, **price) as it:
        await it.ask("Jakarta?")
    async with desk(tmp_path, then, **price) as it:
        await it.ask("Tokyo?")
        other = Message(
            role="assistant",
            content="Windy.",
            meta={"model": "other", "usage": {"input": 5000, "output": 1, "cached": 0}},
        )
        wrong: tuple[JSON, ...] = ({"input": "many"}, {"output": -1}, "many", [1, 2, 3], None)
        others = [Message(role="assistant", content="?", meta={"usage": each}) for each in wrong]
        await (await it.chat.session()).append(other, *others)
        shown = await it.do("/cost")
        rows = {tuple(line.split()) for line in shown.splitlines()}
        assert ("latest", "answer", "2,000", "800", "200", "0.0044") in rows
        assert ("since", "the", "start", "2,000", "800", "200", "0.0044") in rows
        assert ("this", "session", "8,000", "800", "301", "0.0072") in rows
        assert "Not counted: 1 answer of models other than scripted" in shown


async def test_without_a_price_cost_says_how_to_set_one(tmp_path: Path) -> None:
    async with desk(tmp_path, "Sunny.") as it:
        assert "latest answer" in await it.do("/cost")
        await it.ask("Jakarta?")
        shown = await it.do("/cost")
        assert "set model.price.input" in shown
        assert "price" not in shown.splitlines()[0]


async def test_cost_tells_what_summaries_took(tmp_path: Path) -> None:
    answers = ["Sunny. " * 200] * 12
    async with desk(tmp_path, *answers, *["In short: sunny."] * 20, summarizer__by="model") as it:
        await it.ask(*(f"How is town {number}?" for number in range(12)))
        await it.persistence.idle()
        assert (await (await it.chat.session()).status()).costs.calls
        rows = (await it.do("/cost")).splitlines()
        assert any(row.split()[:1] == ["summaries"] for row in rows)


# --- files ---


async def test_a_session_is_written_as_markdown_or_lines_and_read_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with desk(tmp_path, "Sunny.") as it:
        await it.ask("Jakarta?")
        assert "Wrote 2 messages to talk.md" in await it.do("/export talk.md")
        assert "Sunny." in Path("talk.md").read_text()
        await it.do("/export 'all of it.jsonl'")
        await it.do("/export")
        (named,) = tmp_path.glob("*jakarta*.md")
        assert named.read_text() == Path("talk.md").read_text()
    other = tmp_path / "other"
    other.mkdir()
    async with desk(other) as it:
        shown = await it.do("/import all of it.jsonl")
        assert "Imported 1 session, 2 messages" in shown
        assert "/sessions lists them" in shown
        assert await it.log("first") == ["Jakarta?", "Sunny."]
        await it.do("/import talk.md")
        assert {s.owner for s in await it.persistence.memory.list_sessions()} == {OWNER}


async def test_conversations_of_other_programs_become_the_owners(tmp_path: Path) -> None:
    said = {
        "uuid": "m",
        "sender": "human",
        "text": "Jakarta?",
        "created_at": "2026-01-01T00:00:00Z",
    }
    file = tmp_path / "conversations.json"
    file.write_text(json.dumps([{"uuid": "c", "name": "Trip", "chat_messages": [said]}]))
    async with desk(tmp_path) as it:
        assert "Imported 1 session, 1 message" in await it.do(f"/import {file}")
        (found,) = await it.persistence.memory.list_sessions()
        assert found.owner == OWNER
        assert await it.log(found.id) == ["Jakarta?"]


async def test_no_file_is_overwritten_unasked(tmp_path: Path) -> None:
    async with desk(tmp_path, "Sunny.") as it:
        await it.ask("Jakarta?")
        file = tmp_path / "talk.md"
        file.write_text("mine")
        it.person.will = False
        assert "Nothing was written" in await it.do(f"/export {file}")
        assert file.read_text() == "mine"
        it.person.will = True
        await it.do(f"/export {file}")
        assert "Sunny." in file.read_text()
        assert len(it.person.asked) == 2


async def test_what_is_no_conversation_is_refused_by_import(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("just notes\n")
    async with desk(tmp_path) as it:
        with pytest.raises(KeepthreadError):
            await it.do(f"/import {tmp_path / 'notes.txt'}")
        with pytest.raises(InvalidInput, match="name another file"):
            await it.do(f"/import {tmp_path}")
        assert not await it.persistence.memory.list_sessions()


# --- asking ---


async def test_another_model_answers_from_now_on(tmp_path: Path) -> None:
    async with desk(tmp_path, model__base_url="http://localhost:1/v1") as it:
        assert "scripted is in use (openai)" in await it.do("/model")
        assert "small is used for the rest of this chat" in await it.do("/model small")
        assert it.talk.model.name == "small"


async def test_a_model_that_the_service_does_not_offer_is_refused(tmp_path: Path) -> None:
    offered = ["scripted", "larger", "claude-opus-9-20270115"]
    with ScriptedServer([], models=offered) as server:
        async with desk(tmp_path, model__base_url=server.openai) as it:
            with pytest.raises(InvalidInput, match="does not offer large; did you mean larger"):
                await it.do("/model large")
            assert it.talk.model is it.model
            for name in ("larger", "claude-opus-9", "claude-opus-9-latest"):
                await it.do(f"/model {name}")
                assert it.talk.model.name == name


async def test_without_a_key_the_model_stays_and_it_says_what_to_do(tmp_path: Path) -> None:
    async with desk(tmp_path) as it:
        with pytest.raises(KeepthreadError, match="export OPENAI_API_KEY"):
            await it.do("/model other")
        assert it.talk.model is it.model


async def test_a_question_to_which_nothing_came_is_asked_again(tmp_path: Path) -> None:
    async with desk(tmp_path, ModelUnavailable("down")) as it:
        await it.ask("Jakarta?")
    async with desk(tmp_path, "Sunny.") as it:  # as after a kill
        it.talk.move("second")
        assert "/retry asks it again" in await it.do("/resume first")
        assert "Asking again: “Jakarta?”" in await it.do("/retry")
        again = it.chat.again
        assert again is not None
        async for _ in it.talk.ask(again.content, again=again):
            pass
        assert await it.log() == ["Jakarta?", "Sunny."]
        with pytest.raises(InvalidInput, match="/rewind"):
            await it.do("/retry")


async def test_the_question_asked_again_is_the_one_of_this_chat(tmp_path: Path) -> None:
    async with desk(tmp_path, ModelUnavailable("down")) as it:
        await it.ask("Jakarta?")
        session = await it.chat.session()
        async with session.turn("Tokyo?") as turn:  # in another chat
            await turn.finish("Rainy.")
        assert "“Jakarta?”" in await it.do("/retry")


# --- forgetting ---


async def test_a_session_is_forgotten_after_asking_and_another_begins(tmp_path: Path) -> None:
    async with desk(tmp_path, "Sunny in Jakarta as ever.", "Rainy.") as it:
        await it.ask("How is the weather in Jakarta?")
        await it.do("/fork copy")
        await it.do("/resume first")
        it.person.will = False
        assert "Nothing was forgotten" in await it.do("/forget")
        assert len(await it.log("first")) == 2
        it.person.will = True
        shown = await it.do("/forget")
        assert "Forgotten: 2 messages, 2 copies in forks" in shown
        assert "A new session begins" in shown
        assert it.talk.id not in ("first", "copy")
        assert await it.log("copy") == ["", ""]
        with pytest.raises(SessionNotFound):
            await it.log("first")
        with pytest.raises(SessionNotFound, match="there is no session 'first'"):
            await it.do("/resume first")
        await it.ask("Tokyo?")
    held = b"".join(path.read_bytes() for path in tmp_path.glob("chat.db*"))
    assert b"weather in Jakarta" not in held
    assert b"Sunny in Jakarta" not in held


async def test_what_another_program_keeps_from_being_erased_is_told(tmp_path: Path) -> None:
    async with desk(tmp_path, "Sunny in Jakarta as ever.") as it:
        await it.ask("How is the weather in Jakarta?")
        with closing(sqlite3.connect(it.store, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT * FROM sqlite_master").fetchall()
            shown = await it.do("/forget")
        assert "may remain in chat.db, chat.db-wal" in shown
        assert "A check just found some of the erased text there" in shown


async def test_what_another_chat_said_in_between_is_not_forgotten_with_it(tmp_path: Path) -> None:
    async with desk(tmp_path) as it:
        session = await it.persistence.memory.session("first")
        async with session.turn("Jakarta?") as theirs, session.turn("Tokyo?") as ours:
            await ours.finish("Rainy.")
            await theirs.finish("Sunny.")
        await it.do("/forget last")
        assert await it.log() == ["Jakarta?", "", "", "Sunny."]


async def test_the_memory_stays_where_it_is_while_a_command_runs(tmp_path: Path) -> None:
    async with desk(tmp_path, "Sunny.") as it:
        await it.ask("Jakarta?")
        waiting: set[asyncio.Future[int]] = set()

        async def come_back() -> None:
            waiting.add(asyncio.ensure_future(it.persistence.come_back()))
            assert not (await asyncio.wait(waiting, timeout=0.1))[0]

        it.person.meanwhile = come_back
        await it.do("/forget")
        (back,) = waiting
        assert await back == 0


async def test_the_latest_turn_is_forgotten_alone(tmp_path: Path) -> None:
    async with desk(tmp_path, "Sunny.", "Rainy.") as it:
        await it.ask("Jakarta?", "Tokyo?")
        assert "Forgotten: 2 messages" in await it.do("/forget last")
        assert "“Tokyo?” and its answer permanently (2 messages)" in it.person.asked[0]
        assert await it.log() == ["Jakarta?", "Sunny.", "", ""]
        it.person.will = False
        assert "Nothing was forgotten" in await it.do("/forget last")
        it.person.will = True
        await it.do("/forget last")
        with pytest.raises(InvalidInput, match="nothing to forget"):
            await it.do("/forget last")


# --- away, and switched off ---


async def test_while_the_store_is_away_what_this_chat_said_is_still_there(tmp_path: Path) -> None:
    async with desk(tmp_path, "Sunny.", "Here.") as it:
        await it.ask("Jakarta?")
        async with it.away():
            shown = await it.do("/history")
            assert "Sunny." in shown
            assert "Here." in shown
            assert "The memory is unavailable" in shown
            for line in ("/context", "/why", "/cost", "/help", "/model"):
                assert await it.do(line)
            shown = await it.do("/status")
            assert "in a file of its own, until the store is back" in shown
            assert "away" in shown
            for line in (
                *("/sessions", "/resume", "/load first", "/clear", "/rewind", "/rename A", "/pin"),
                *("/fork", "/compact", "/search Jakarta", "/remember A.", "/facts", "/forget"),
                *("/forget last", "/export", "/import a.md", "/save"),
            ):
                with pytest.raises(Unavailable, match="away"):
                    await it.do(line)
        shown = await it.do("/save")
        assert "4 messages of session first" in shown
        assert str(it.store) in shown
        assert not it.persistence.away
        assert await it.log() == ["Jakarta?", "Sunny.", "Are you there?", "Here."]


async def test_without_memory_commands_about_this_chat_work(tmp_path: Path) -> None:
    async with desk(tmp_path, "Sunny.", "Rainy.", memory__enabled=False) as it:
        await it.ask("Jakarta?", "Tokyo?")
        assert "only in this process's memory" in await it.do("/status")
        assert "Sunny." in await it.do("/history")
        await it.do("/rewind")
        assert await it.shown() == ["Jakarta?", "Sunny."]
        await it.do("/clear")
        assert await it.shown() == []
        for line in ("/sessions", "/resume", "/save", "/search a", "/remember A.", "/forget"):
            with pytest.raises(InvalidInput, match="memory is disabled"):
                await it.do(line)
    assert not it.store.exists()


# --- what is stored cannot harm ---


async def test_nothing_stored_reaches_the_screen_raw(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with desk(tmp_path, NASTY, NASTY, NASTY, model__base_url="http://localhost:1/v1") as it:
        await it.ask(f"Jakarta {NASTY}", f"Tokyo {NASTY}")
        await it.persistence.memory.facts.remember(f"Has {NASTY}")
        await (await it.chat.session()).update(title=NASTY)
        for line in (
            *("/sessions", "/resume first", f"/rename {NASTY}", "/history", "/search Jakarta"),
            *("/facts", f"/remember b {NASTY}", "/context", "/why", "/why 2", "/status", "/cost"),
            *("/pin", "/pin -4", "/rewind", "/compact", "/export", "/save", "/fork other"),
            *(f"/model {NASTY}", "/forget last", "/forget"),
        ):
            shown = await it.do(line)
            harmful = {c for c in shown if not c.isprintable() and c != "\n"}
            assert not harmful, line
        for question in it.person.asked:
            assert question.isprintable()
