"""The design notes, statement by statement: one test for each that was once missing.

A test has the number of its statement and goes through the public API or the real command.
"""

import json
import sqlite3
import subprocess
import threading
import time
from collections.abc import Mapping
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import psycopg
import pytest

from keepthread import Memory, Message, ProactiveTool, ProvidedNote, ToolCall, sync
from keepthread.apps.cli.commands.discord import chatting
from keepthread.apps.cli.settings.settings import DiscordSettings
from keepthread.apps.discord.types import DiscordUser, Rules
from keepthread.errors import SessionExists, SessionNotFound
from keepthread.interchange.transcripts import save_transcript
from keepthread.models import OpenAIModel
from keepthread.models.tokens import Estimator
from keepthread.orchestrator import Models, Orchestrator, Runnable
from keepthread.testing.server import ScriptedServer
from keepthread.types import JSON
from servers.postgres import PostgresServer
from tests import preloaded
from tests import test_harombe as harombe
from tests.test_cli import keepthread
from tests.test_discord import parrot, staged
from tests.test_harombe import written
from tests.weather import DEGREES, TOOL, Weather, mind

# --- the notes' own shapes ---

SESSION_COLUMNS = ["id", "created_at", "updated_at", "metadata", "system_prompt"]
MESSAGE_COLUMNS = [
    *("id", "session_id", "role", "content"),
    *("tool_calls", "tool_call_id", "name", "created_at"),
]


async def talk(memory: Memory) -> None:
    """Store a conversation with a tool call, one that is forgotten, and one of another tenant."""
    meta = {"user": "ana", "tags": ["work"]}
    session = await memory.session("s", system_prompt="Be brief.", meta=meta)
    call = ToolCall(id="call_1", name="weather", arguments='{"city":"Oslo"}')
    await session.append(
        Message(role="user", content="Weather in Oslo?", id="m1"),
        Message(role="assistant", tool_calls=[call], id="m2"),
        Message(role="tool", content="3 °C", tool_call_id="call_1", name="weather", id="m3"),
        Message(role="assistant", content="Cold \ud800.\0", id="m4"),
    )
    await (await memory.session("gone")).add_message("user", "secret")
    await memory.forget(session="gone")
    await (await memory.tenant("other").session("theirs")).add_message("user", "theirs")


TOLD = [
    ("m1", "s", "user", "Weather in Oslo?", None, None),
    ("m2", "s", "assistant", "", None, None),
    ("m3", "s", "tool", "3 °C", "call_1", "weather"),
]


async def test_090_and_094_the_tables_of_the_note_are_views_on_sqlite(tmp_path: Path) -> None:
    async with Memory.open(f"sqlite:///{tmp_path}/chat.db", counter=Estimator()) as memory:
        await talk(memory)
    with closing(sqlite3.connect(tmp_path / "chat.db")) as db:
        db.text_factory = lambda data: data.decode("utf-8", "replace")
        sessions = db.execute("SELECT * FROM v_sessions WHERE tenant = 'default'")
        assert [name for name, *_ in sessions.description][:5] == SESSION_COLUMNS
        ((id, created_at, updated_at, metadata, prompt, *_),) = sessions
        assert (id, prompt, json.loads(metadata)["tags"]) == ("s", "Be brief.", ["work"])
        for moment in (created_at, updated_at):
            assert abs(datetime.fromisoformat(f"{moment}Z").timestamp() - time.time()) < 60
        query = "SELECT * FROM v_messages WHERE tenant = 'default' ORDER BY session_id, seq"
        messages = db.execute(query)
        assert [name for name, *_ in messages.description][:8] == MESSAGE_COLUMNS
        *rows, last = messages
        assert [(*row[:4], *row[5:7]) for row in rows] == TOLD
        assert json.loads(rows[1][4])[0]["name"] == "weather"
        assert last[3].startswith("Cold ")
        with pytest.raises(sqlite3.OperationalError, match="cannot modify v_messages"):
            db.execute("DELETE FROM v_messages")


async def test_090_and_094_the_tables_of_the_note_are_views_on_postgres(
    postgres: PostgresServer,
) -> None:
    url = postgres.empty()
    async with Memory.open(url, counter=Estimator()) as memory:
        await talk(memory)
    with psycopg.connect(url, autocommit=True) as db:
        assert db.execute("SELECT * FROM keepthread.v_sessions").fetchall() == []
        number = "keepthread.tenant_number('default', false)::text"
        db.execute(f"SELECT set_config('keepthread.tenant', {number}, false)".encode())
        sessions = db.execute("SELECT * FROM keepthread.v_sessions")
        assert [column.name for column in sessions.description or ()][:5] == SESSION_COLUMNS
        ((id, created_at, updated_at, metadata, prompt, *_),) = sessions.fetchall()
        assert (id, prompt, metadata["tags"]) == ("s", "Be brief.", ["work"])
        for moment in (created_at, updated_at):
            assert abs(moment.timestamp() - time.time()) < 60
        messages = db.execute("SELECT * FROM keepthread.v_messages ORDER BY session_id, seq")
        assert [column.name for column in messages.description or ()][:8] == MESSAGE_COLUMNS
        *rows, last = messages.fetchall()
        assert [(*row[:4], *row[5:7]) for row in rows] == TOLD
        assert rows[1][4][0]["name"] == "weather"
        assert last[3] == "Cold \ufffd.\ufffd"


async def test_098_a_session_is_created_without_an_id() -> None:
    async with Memory.open("ram://", counter=Estimator()) as memory:
        first = await memory.create_session(system_prompt="Be brief.", meta={"user": "ana"})
        second = await memory.create_session()
        assert first.id
        assert first.id != second.id
        again = await memory.get_session(first.id)
        assert (again.info.system_prompt, again.info.meta) == ("Be brief.", {"user": "ana"})
        with pytest.raises(SessionExists):
            await memory.create_session(first.id)
    with sync.Memory.open("ram://", counter=Estimator()) as blocking:
        assert blocking.create_session().id


async def test_099_all_messages_of_a_session_are_loaded(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/chat.db"
    async with Memory.open(url, counter=Estimator()) as memory:
        session = await memory.create_session("s")
        told = [Message(role="user", content=str(number)) for number in range(450)]
        await session.append(*told)
        assert [int(message.content) async for message in session.messages()] == [*range(450)]
        assert len(await session.messages()) == 450
        assert [m.content for m in await session.messages(limit=2)] == ["0", "1"]
    with sync.Memory.open(url, counter=Estimator()) as blocking:
        assert [int(m.content) for m in blocking.get_session("s").messages()] == [*range(450)]


async def test_175_the_list_of_cached_tools_has_their_results() -> None:
    async with Memory.open("ram://", counter=Estimator()) as memory:
        session = await memory.session("s")
        async with session.turn("Weather?") as turn:
            await session.cache_tool("weather", {"city": "Lima"}, {"sky": "clear"}, 3)
            await turn.finish("Clear.")
        async with session.turn("Thanks.") as turn:
            await turn.finish("Welcome.")
        for _ in range(2):  # to look at a result does not prolong its life
            (tool,) = await session.cached_tools()
            assert (tool.result, tool.left, tool.cache_turns) == ('{"sky":"clear"}', 1, 3)


async def test_221_a_transcript_has_the_newest_messages(tmp_path: Path) -> None:
    async with Memory.open("ram://", counter=Estimator()) as memory:
        session = await memory.session("lobby", title="Weather")
        async with session.turn("Weather in Jakarta?") as turn:
            await turn.finish("Sunny.")
        path = await save_transcript(memory.store, session.info, tmp_path)
        assert path.name.startswith("session-memory-weather-lobby-")
        assert "Weather in Jakarta?" in path.read_text()
        assert "Sunny." in path.read_text()


def test_228_facts_of_the_notes_json_are_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "user-42.json"
    file.write_text(
        """[{ "fact": "User prefers brief answers", "updated": "2026-02-03T10:00:00Z" },
            { "fact": "Project X is in Python", "updated": "2026-02-04" }]"""
    )
    sync.Memory.open("sqlite:///chat.db", counter=Estimator()).close()
    load = ("facts", "import", "user-42.json", "--owner", "42", "--store", "sqlite:///chat.db")
    assert keepthread(*load).stderr.strip() == "2 added"
    assert keepthread(*load).stderr.strip().startswith("Nothing was changed: every fact in the")
    with sync.Memory.open("sqlite:///chat.db", counter=Estimator()) as memory:
        facts = memory.for_owner("42").facts.list()
    assert [(fact.text, fact.origin, fact.state) for fact in facts] == [
        ("User prefers brief answers", "user", "live"),
        ("Project X is in Python", "user", "live"),
    ]
    assert [datetime.fromtimestamp(fact.since, UTC).isoformat() for fact in facts] == [
        "2026-02-03T10:00:00+00:00",
        "2026-02-04T00:00:00+00:00",
    ]


def test_158_old_sessions_of_harombe_are_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KEEPTHREAD_STORE", "sqlite:///chat.db")
    written(tmp_path / "memory.db", [harombe.SESSION], harombe.MESSAGES)
    assert keepthread("import", "memory.db", "--owner", "ana").returncode == 0
    with sync.Memory.open("sqlite:///chat.db", counter=Estimator()) as memory:
        (info,) = memory.list_sessions(owner="ana")
        log = memory.get_session(info.id, owner=info.owner).messages()
    assert (info.system_prompt, info.meta["user"]) == ("Be brief.", "ana")
    assert [message.role for message in log] == ["user", "assistant", "tool", "assistant"]
    assert log[1].tool_calls[0].name == "weather"


# --- forgotten, deleted ---


def command(*arguments: str, store: Path) -> subprocess.CompletedProcess[str]:
    """Run the real command without a terminal."""
    return preloaded.command(*arguments, "--store", f"sqlite:///{store}")


async def test_126_forget_deletes_the_session(tmp_path: Path) -> None:
    store = tmp_path / "chat.db"
    async with Memory.open(f"sqlite:///{store}", counter=Estimator()) as memory:
        for id in ("mine", "kept"):
            session = await memory.session(id)
            async with session.turn(f"I like {id} apples") as turn:
                await turn.finish("Noted")
        await memory.forget(session="mine")
        assert [info.id for info in await memory.list_sessions()] == ["kept"]
        assert [hit.session for hit in await memory.search("apples")] == ["kept"]
        with pytest.raises(SessionNotFound):
            await memory.get_session("mine")
    assert "mine" not in command("sessions", store=store).stdout
    assert "mine" not in command("export", store=store).stdout
    assert "mine" not in command("search", "apples", store=store).stdout
    for gone in ("show mine", "why mine", "export mine", "delete mine --yes"):
        found = command(*gone.split(), store=store)
        assert (found.returncode, found.stdout) == (2, "")
        assert "there is no session 'mine'" in found.stderr
    assert command("verify", store=store).returncode == 0


async def test_031_103_a_command_deletes_a_session_and_keeps_facts(tmp_path: Path) -> None:
    store = tmp_path / "chat.db"
    async with Memory.open(f"sqlite:///{store}", counter=Estimator()) as memory:
        session = await memory.session("mine")
        (said,) = await session.append(Message(role="user", content="I like apples"))
        await memory.facts.remember("Likes apples", session="mine", messages=[said.id])
    asked = command("delete", "mine", store=store)
    assert asked.returncode == 2
    assert "this would delete session 'mine' with 1 message; --yes confirms" in asked.stderr
    assert "keepthread forget" in command("delete", "--help", store=store).stdout
    assert "keepthread delete" in command("forget", "--help", store=store).stdout
    async with Memory.open(f"sqlite:///{store}", counter=Estimator()) as memory:
        await memory.session("other")
    other = command("delete", "other", "--yes", "--json", store=store)
    assert json.loads(other.stdout) == {"deleted": "other", "messages": 0}
    done = command("delete", "mine", "--yes", store=store)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == "Deleted session mine, 1 message; facts stay\n"
    assert "mine" not in command("sessions", store=store).stdout
    assert "Likes apples" in command("facts", store=store).stdout


async def test_033_and_034_an_orchestrator_holds_the_parts_and_processes(tmp_path: Path) -> None:
    weather = Weather()
    with ScriptedServer(otherwise=mind) as server:
        model = OpenAIModel("gpt", key="k", base_url=server.openai, retries=0)
        url = f"sqlite:///{tmp_path}/chat.db"
        async with Memory.open(url, counter=Estimator()) as memory:
            orchestrator = Orchestrator(memory, Models.all(model), [weather.tool()])
            said = await orchestrator.process("What is the weather in Jakarta?")
            assert said == "It is 32 °C in Jakarta."
            assert await orchestrator.process("How about Tokyo?") == "It is 18 °C in Tokyo."
            other = await orchestrator.process("How about Oslo?", user_id="ana")
            assert other == "About what?", "another user has another conversation"
            assert {info.id: info.owner for info in await memory.admin.list_sessions()} == {
                "default": "default",
                "ana": "ana",
            }
            await (await orchestrator.session()).clear()
            assert await orchestrator.process("How about Oslo?") == "About what?"
        await model.close()


def test_034_the_orchestrator_also_blocks(tmp_path: Path) -> None:
    threads: list[threading.Thread] = []
    events: list[str] = []

    def weather(city: str) -> dict[str, JSON]:
        threads.append(threading.current_thread())
        return {"city": city, "degrees": DEGREES[city]}

    with ScriptedServer(otherwise=mind) as server:
        model = OpenAIModel("gpt", key="k", base_url=server.openai, retries=0)
        url = f"sqlite:///{tmp_path}/chat.db"
        with sync.Memory.open(url, counter=Estimator()) as memory:
            tools = [Runnable(TOOL, weather), Runnable(TOOL._replace(name="other"), Weather())]
            orchestrator = sync.Orchestrator(memory, Models.all(model), tools)
            said = orchestrator.process(
                "What is the weather in Jakarta?",
                on_event=lambda event: events.append(type(event).__name__),
            )
            assert said == "It is 32 °C in Jakarta."
            assert orchestrator.process("How about Tokyo?", "ana") == "About what?"
            assert orchestrator.session("ana").status().turns == 1
    assert threads == [threading.current_thread()]
    assert events[0] == "Routed"


async def test_184_proactive_tools_are_fetched_by_providers() -> None:
    fetched: list[JSON] = []

    async def screen(data: Mapping[str, JSON]) -> ProvidedNote | None:
        if data["screen"] != "champion":
            return None
        fetched.append(data["name"])
        details = {"name": data["name"], "power": 9}
        tool = ProactiveTool("champion_details", details, {"name": data["name"]}, cache_turns=3)
        return ProvidedNote(f"The user looks at champion {data['name']}.", [tool])

    def never(**_: JSON) -> str:
        raise AssertionError("the result is known")

    counter, providers = Estimator(), {"screen": screen}
    async with Memory.open("ram://", counter=counter, providers=providers) as memory:
        session = await memory.session("s")
        assert await session.provide({"screen": "menu"}) == []
        data: dict[str, JSON] = {"screen": "champion", "name": "droideka"}
        assert await session.provide(data) == ["screen"]
        assert await session.provide(data) == [], "once for a session"
        assert fetched == ["droideka"]
        async with session.turn("How strong is it?") as turn:
            text = (await turn.context()).text
            assert "Note screen: > The user looks at champion droideka." in text
            args: dict[str, JSON] = {"name": "droideka"}
            assert '"power":9' in await turn.tool("champion_details", args, never, cache_turns=3)
            await turn.finish("9.")
        await session.clear()
        assert await session.provide(data) == ["screen"]


# --- Discord people ---


async def test_225_facts_belong_to_a_person_on_discord(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        other = stage.server.world.channel(stage.guild, "other")
        model = parrot()
        async with stage.bot(chatting(model)):
            told = await stage.server.told(stage.channel, stage.ana, "remember", fact="I like tea")
            assert told.startswith("Stored.")
            for who, knows in ((stage.ana, True), (stage.bea, False)):
                await stage.ask("what do I like?", who=who, place=other)
                await stage.answers(1 if who is stage.ana else 2, other)
                shown = [message.content for message in model.calls[-1].messages]
                assert any("I like tea" in text for text in shown) == knows
            assert "- I like tea" in await stage.server.told(other, stage.ana, "facts")
            assert "nothing about you" in await stage.server.told(other, stage.bea, "facts")
            done = await stage.server.told(other, stage.ana, "forget me")
            assert done.startswith("Done: erased 1 message and 1 fact of yours.")
            assert "nothing about you" in await stage.server.told(other, stage.ana, "facts")


def test_225_direct_messages_are_off_and_facts_have_their_own_owner() -> None:
    assert not Rules().direct
    assert not DiscordSettings().direct
    assert DiscordUser(42, "Ana").owner == "discord:user:42"


async def test_225_a_session_that_people_share_shows_the_facts_of_who_asks() -> None:
    async with Memory.open("ram://", counter=Estimator()) as memory:
        channel = await memory.session("channel", owner="channel")
        await memory.for_owner("ana").facts.remember("Likes tea")
        await memory.for_owner("bea").facts.remember("Likes coffee")
        for who, own, strange in (("ana", "tea", "coffee"), ("bea", "coffee", "tea")):
            async with (
                memory.for_owner(who).join(channel).turn("What do I like?", author=who) as turn
            ):
                shown = "".join(m.content for m in (await turn.context()).messages)
                await turn.finish("I know.")
            assert own in shown
            assert strange not in shown
        assert "Likes" not in "".join(m.content for m in (await channel.context()).messages)
    with sync.Memory.open("ram://", counter=Estimator()) as blocking:
        blocking.for_owner("ana").facts.remember("Likes tea")
        session = blocking.for_owner("ana").join(blocking.session("channel"))
        session.add_message("user", "What do I like?")
        assert "Likes tea" in "".join(m.content for m in session.context().messages)
