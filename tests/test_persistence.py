"""Where a chat is kept: nothing is lost and nothing is twice, wherever the store goes meanwhile."""

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, closing
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepthread import Memory, Message
from keepthread.apps.cli.chat.offline_files import OfflineFiles
from keepthread.apps.cli.chat.orchestrator import ChatOrchestrator
from keepthread.apps.cli.chat.persistence import Persistence
from keepthread.apps.cli.chat.talk import Answering, Talk, new_session_id
from keepthread.apps.cli.chat.tool_calls import ToolGate
from keepthread.context.context import Context
from keepthread.errors import ModelCut, ModelUnavailable, StorageFull, Unavailable
from keepthread.memory.memory import Opening
from keepthread.memory.turn import Turn
from keepthread.orchestrator import Runnable
from keepthread.testing.model import ScriptedModel
from keepthread.types import Reply, SessionInfo, Tool, ToolCall, Usage
from tests import preloaded
from tests.seeds import examples

SECRET = "the number is 555-0199, and nobody else has it"


class Outage:
    """Opens memories, unless they are to be away; counts what was opened."""

    def __init__(self) -> None:
        self.away: set[str] = set()
        self.opened: list[str] = []

    def __call__(self, address: str) -> Opening:
        self.opened.append(address)
        if any(address.startswith(each) for each in self.away):
            raise Unavailable("told to be away")
        return Memory.open(address, timeout=0.2)


class Place:
    """A store in a file, the folder beside it, and what opens both."""

    def __init__(self, folder: Path) -> None:
        self.address = f"sqlite:///{folder}/chat.db"
        self.path = folder / "chat.db"
        self.state = folder
        self.offline_files = OfflineFiles(folder / "asides", self.address, "default")
        self.open = Outage()
        self.told: list[str] = []

    def persistence(self, *, kept: bool = True) -> Persistence:
        offline_files = self.offline_files if kept else None
        return Persistence(self.address, self.open, offline_files, notify=self.told.append)

    def holds(self, text: str) -> bool:
        files = [path for path in self.path.parent.rglob("*") if path.is_file()]
        return any(text.encode() in path.read_bytes() for path in files)

    def files(self) -> list[str]:
        folder = self.path.parent / "asides"
        return [path.name for path in folder.rglob("*") if path.is_file()]

    async def contents(self, id: str) -> list[tuple[str, str]]:
        async with Memory.open(self.address) as memory:
            session = await memory.get_session(id)
            return [(m.role, m.content) for m in await session.messages()]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


async def say(talk: Talk, text: str) -> str:
    return "".join([piece async for piece in talk.ask(text)])


def break_it(path: Path) -> bytes:
    """Make a file that is no database of it, and return what it was."""
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    before = path.read_bytes()
    path.write_bytes(b"this is no database, and it never was one; " * 100)
    return before


async def test_a_question_and_its_answer_are_in_the_store(place: Place) -> None:
    persistence = place.persistence()
    await persistence.begin()
    usage = Usage(input=40, output=4, cached=32)
    talk = Talk(persistence, ScriptedModel([Reply(content="32 °C and sunny.", usage=usage)]))
    assert await say(talk, "What is the weather in Jakarta?") == "32 °C and sunny."
    assert talk.last is not None
    assert talk.last.answer is not None
    assert talk.last.answer.meta["usage"] == {"input": 40, "output": 4, "cached": 32}
    assert (await talk.session()).info.title == "What is the weather in Jakarta?"
    await persistence.close()
    said = [("user", "What is the weather in Jakarta?"), ("assistant", "32 °C and sunny.")]
    assert await place.contents(talk.id) == said
    assert place.told == []


async def test_a_follow_up_is_asked_with_what_was_said_before(place: Place) -> None:
    persistence = place.persistence()
    await persistence.begin()
    model = ScriptedModel(["Sunny.", "Cloudy."])
    talk = Talk(persistence, model, system="You know the weather.")
    await say(talk, "What is the weather in Jakarta?")
    await say(talk, "How about Tokyo?")
    seen = [message.content for message in model.calls[1].messages]
    assert seen == ["What is the weather in Jakarta?", "Sunny.", "How about Tokyo?"]
    assert model.calls[1].system == "You know the weather."
    await persistence.close()


class Held(ScriptedModel):
    """Says two words, and then nothing more until it is stopped."""

    async def stream(self, messages, **_) -> AsyncIterator[str | Reply]:
        yield "Well, "
        yield "let me see"
        await asyncio.Event().wait()


async def test_what_arrived_before_a_stop_is_kept_as_cut_short(place: Place) -> None:
    persistence = place.persistence()
    await persistence.begin()
    talk = Talk(persistence, Held())
    arrived = ""
    async for piece in talk.ask("Why?"):
        arrived += piece
        if arrived.endswith("see"):
            talk.stop()
    assert talk.last is not None
    assert talk.last.truncated
    assert talk.last.answer is not None
    assert talk.last.answer.meta["truncated"] is True
    await persistence.close()
    assert await place.contents(talk.id) == [("user", "Why?"), ("assistant", "Well, let me see")]


@pytest.mark.parametrize("times", [1, 2])
async def test_what_arrived_before_a_cancel_is_kept_as_cut_short(place: Place, times: int) -> None:
    persistence = place.persistence()
    await persistence.begin()
    talk = Talk(persistence, Held())
    both = asyncio.Event()

    async def asking() -> None:
        async with aclosing(talk.ask("Why?")) as pieces:
            async for piece in pieces:
                if piece.endswith("see"):
                    both.set()

    task = asyncio.create_task(asking())
    await both.wait()
    await asyncio.sleep(0)  # so that it waits for the next piece
    for _ in range(times):
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert talk.last is not None
    assert talk.last.truncated
    assert talk.last.answer is not None
    assert talk.last.answer.meta["truncated"] is True
    await persistence.close()
    assert await place.contents(talk.id) == [("user", "Why?"), ("assistant", "Well, let me see")]


class Failing(ScriptedModel):
    """Fails, perhaps after some words."""

    def __init__(self, *said: str) -> None:
        super().__init__(["It works now."])
        self.said = said
        self.works = False

    async def stream(self, messages, **settings) -> AsyncIterator[str | Reply]:
        if self.works:
            async for piece in super().stream(messages, **settings):
                yield piece
            return
        for word in self.said:
            yield word
        if self.said:
            raise ModelCut("the line went dead", "".join(self.said))
        raise ModelUnavailable("nobody is there")


async def test_a_model_that_is_down_costs_the_answer_alone_and_can_be_asked_again(
    place: Place,
) -> None:
    persistence = place.persistence()
    await persistence.begin()
    model = Failing()
    talk = Talk(persistence, model)
    assert await say(talk, "Are you there?") == ""
    assert talk.last is not None
    assert isinstance(talk.last.failure, ModelUnavailable)
    question = talk.unanswered
    assert question is not None
    model.works = True
    again = talk.ask(question.content, again=question)
    assert "".join([piece async for piece in again]) == "It works now."
    assert talk.unanswered is None
    await persistence.close()
    expected = [("user", "Are you there?"), ("assistant", "It works now.")]
    assert await place.contents(talk.id) == expected


async def test_an_answer_that_breaks_off_is_kept_as_far_as_it_came(place: Place) -> None:
    persistence = place.persistence()
    await persistence.begin()
    talk = Talk(persistence, Failing("Half an ", "answer"))
    assert await say(talk, "Go on") == "Half an answer"
    assert talk.last is not None
    assert talk.last.truncated
    assert talk.unanswered is None
    await persistence.close()
    assert await place.contents(talk.id) == [("user", "Go on"), ("assistant", "Half an answer")]


# --- the store is away ---


async def test_a_store_that_is_away_at_the_start_gets_everything_later(place: Place) -> None:
    place.open.away.add(place.address)
    persistence = place.persistence()
    await persistence.begin()
    assert persistence.away
    assert persistence.kept
    model = ScriptedModel(["One.", "Two.", "Three."])
    talk = Talk(persistence, model)
    await say(talk, "first")
    await say(talk, "second")
    assert [m.content for m in model.calls[1].messages] == ["first", "One.", "second"]
    place.open.away.clear()
    assert await persistence.come_back() == 4
    assert not persistence.away
    await say(talk, "third")
    assert len(model.calls[2].messages) == 5
    await persistence.close()
    words = [content for _, content in await place.contents(talk.id)]
    assert words == ["first", "One.", "second", "Two.", "third", "Three."]
    assert place.files() == []
    assert place.told[0].startswith("the memory is unavailable: told to be away")
    assert place.told[1] == "the memory is available again: 4 messages were delivered"


async def test_what_a_chat_could_not_deliver_the_next_one_does(place: Place) -> None:
    place.open.away.add(place.address)
    persistence = place.persistence()
    await persistence.begin()
    talk = Talk(persistence, ScriptedModel(["Noted."]))
    await say(talk, "Remember me")
    await persistence.close()
    assert place.files()
    place.open.away.clear()
    other = place.persistence()
    await other.begin()
    await other.close()
    assert await place.contents(talk.id) == [("user", "Remember me"), ("assistant", "Noted.")]
    assert place.files() == []


async def test_a_file_that_another_chat_still_writes_is_left_alone(place: Place) -> None:
    place.open.away.add(place.address)
    first = place.persistence()
    await first.begin()
    talk = Talk(first, ScriptedModel(["Still here."]))
    await say(talk, "Hello")
    place.open.away.clear()
    second = place.persistence()
    await second.begin()
    assert await second.memory.list_sessions() == []
    await second.close()
    await first.close()
    assert [content for _, content in await place.contents(talk.id)] == ["Hello", "Still here."]


async def test_a_locked_store_is_left_in_mid_conversation_and_nothing_is_twice(
    place: Place,
) -> None:
    persistence = place.persistence()
    await persistence.begin()
    model = ScriptedModel(["One.", "Two.", "Three."])
    talk = Talk(persistence, model)
    await say(talk, "first")
    with closing(sqlite3.connect(place.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        await say(talk, "second")
        other.execute("ROLLBACK")
    assert persistence.away
    assert [m.content for m in model.calls[1].messages] == ["first", "One.", "second"]
    await persistence.come_back()
    await say(talk, "third")
    await persistence.close()
    words = [content for _, content in await place.contents(talk.id)]
    assert words == ["first", "One.", "second", "Two.", "third", "Three."]


class Locking(ScriptedModel):
    """Locks the store while it answers."""

    def __init__(self, path: Path) -> None:
        super().__init__(["Answered."])
        self.other = sqlite3.connect(path, isolation_level=None)

    async def stream(self, messages, **settings) -> AsyncIterator[str | Reply]:
        self.other.execute("BEGIN IMMEDIATE")
        async for piece in super().stream(messages, **settings):
            yield piece


async def test_a_store_that_goes_between_question_and_answer_gets_the_answer_later(
    place: Place,
) -> None:
    persistence = place.persistence()
    await persistence.begin()
    model = Locking(place.path)
    talk = Talk(persistence, model)
    assert await say(talk, "Quick!") == "Answered."
    assert persistence.away
    model.other.close()
    await persistence.close()
    assert await place.contents(talk.id) == [("user", "Quick!"), ("assistant", "Answered.")]


async def test_a_broken_file_is_named_and_the_chat_goes_on_beside_it(place: Place) -> None:
    persistence = place.persistence()
    await persistence.begin()
    await say(Talk(persistence, ScriptedModel(["Fine."]), id="old"), "How are you?")
    await persistence.close()
    whole = break_it(place.path)
    broken = place.path.read_bytes()
    persistence = place.persistence()
    await persistence.begin()
    assert "chat.db" in persistence.away
    talk = Talk(persistence, ScriptedModel(["Yes."]))
    assert await say(talk, "Do you still work?") == "Yes."
    await persistence.close()
    assert place.path.read_bytes() == broken, "what is broken must not be touched"
    place.path.write_bytes(whole)
    persistence = place.persistence()
    await persistence.begin()
    await persistence.close()
    assert [c for _, c in await place.contents(talk.id)] == ["Do you still work?", "Yes."]
    assert [c for _, c in await place.contents("old")] == ["How are you?", "Fine."]


async def test_without_any_disk_a_chat_goes_on_and_says_that_nothing_is_kept(place: Place) -> None:
    place.open.away |= {place.address, "sqlite"}
    persistence = place.persistence()
    await persistence.begin()
    assert not persistence.kept
    assert "only in this process's memory" in place.told[0]
    model = ScriptedModel(["One.", "Two."])
    talk = Talk(persistence, model)
    await say(talk, "first")
    await say(talk, "second")
    assert [m.content for m in model.calls[1].messages] == ["first", "One.", "second"]
    place.open.away.clear()
    await persistence.close()
    assert [c for _, c in await place.contents(talk.id)] == ["first", "One.", "second", "Two."]


async def test_without_memory_nothing_is_written_anywhere(place: Place) -> None:
    persistence = place.persistence(kept=False)
    await persistence.begin()
    model = ScriptedModel(["One.", "Two."])
    talk = Talk(persistence, model)
    await say(talk, "first")
    await say(talk, "second")
    assert len(model.calls[1].messages) == 3
    await persistence.close()
    assert not place.path.exists()
    assert place.files() == []


async def test_two_chats_on_one_session_keep_question_and_answer_together(place: Place) -> None:
    one, two = place.persistence(), place.persistence()
    await one.begin()
    await two.begin()
    ana = Talk(one, ScriptedModel([f"to ana {n}" for n in range(10)]), id="shared")
    bob = Talk(two, ScriptedModel([f"to bob {n}" for n in range(10)]), id="shared")
    for n in range(10):
        await asyncio.gather(say(ana, f"ana asks {n}"), say(bob, f"bob asks {n}"))
    async with Memory.open(place.address) as memory:
        messages = await (await memory.get_session("shared")).messages()
    by_turn: dict[int, list[Message]] = {}
    for message in messages:
        by_turn.setdefault(message.turn, []).append(message)
    assert len(by_turn) == 20
    for question, answer in by_turn.values():
        name, _, number = question.content.partition(" asks ")
        assert answer.content == f"to {name} {number}"
    await one.close()
    await two.close()


# --- what cannot be delivered ---


class Planning(ScriptedModel):
    """Routes to a plan of one step, whose specialist calls a tool."""

    async def complete(self, messages, *, schema=None, tools=(), **_) -> Reply:
        if schema and "kind" in schema["properties"]:
            return Reply(content=json.dumps({"kind": "plan", "why": "it needs work"}))
        if schema:
            step = {"id": "s1", "task": "Look it up", "tools": ["look"], "needs": [], "snippet": ""}
            return Reply(content=json.dumps({"steps": [step]}))
        if not tools:
            return await super().complete(messages)
        if messages[-1].role == "tool":
            return Reply(content=f"the step found {messages[-1].content}")
        call = ToolCall(id="c1", name="look", arguments="{}")
        return Reply(content="", tool_calls=[call])


class Looking:
    """The tools of a chat: one that finds 42."""

    started = True

    def __init__(self) -> None:
        self.gate = ToolGate((), setting="chat.allowed_tools", notify=print)

    async def ready(self) -> list[Runnable]:
        async def look() -> str:
            return "42"

        return [Runnable(Tool("look", "Looks it up.", {"type": "object"}), look)]


async def test_a_plan_made_while_the_store_was_away_comes_home_with_all_of_its_steps(
    place: Place,
) -> None:
    place.open.away.add(place.address)
    persistence = place.persistence()
    await persistence.begin()
    talk = Talk(persistence, Planning(["It is 42."]), id="planned")
    ChatOrchestrator(talk, cast(Any, Looking()))
    assert await say(talk, "What is it?") == "It is 42."
    await persistence.close()
    place.open.away.clear()
    for _ in range(2):  # the second chat finds nothing more to deliver
        persistence = place.persistence()
        await persistence.begin()
        await persistence.close()
    assert place.files() == []
    async with Memory.open(place.address) as memory:
        session = await memory.get_session("planned")
        question, call, result, answer = await session.messages()
        assert (question.content, answer.content) == ("What is it?", "It is 42.")
        assert call.tool_calls[0].id == result.tool_call_id
        assert "the step found 42" in result.content
        assert {m.turn for m in (question, call, result, answer)} == {1}
        child = await memory.get_session(cast(str, result.meta["session"]))
        assert (child.info.kind, child.info.parent) == ("delegate", "planned")
        assert "42" in [message.content for message in await child.messages()]
        receipt = await memory.forget(session="planned", message=question.id, answers=True)
        assert receipt.found == 0
        assert {message.state for message in await child.messages()} == {"erased"}


async def is_still_being_filled(place: Place, _: Path) -> None:
    async with Memory.open(place.address) as memory:
        await memory.store.put_session(SessionInfo(id="bad", ready=False))


async def is_no_database(_: Place, path: Path) -> None:
    break_it(path)


async def has_a_damaged_message(_: Place, path: Path) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        assert db.execute("UPDATE messages SET content = 'changed' WHERE seq = 1").rowcount == 1


async def has_an_unreadable_request(_: Place, path: Path) -> None:
    path.with_name(f"{path.name}-forget-{'0' * 32}").write_text("{")


async def has_a_request_of_a_later_version(_: Place, path: Path) -> None:
    request = json.dumps({"session": "bad", "color": "blue"})
    path.with_name(f"{path.name}-forget-{'0' * 32}").write_text(request)


@pytest.mark.parametrize(
    "spoil",
    [
        is_still_being_filled,
        is_no_database,
        has_a_damaged_message,
        has_an_unreadable_request,
        has_a_request_of_a_later_version,
    ],
)
async def test_a_file_that_cannot_be_delivered_is_reported_kept_and_passed_over(
    place: Place, spoil: Callable[[Place, Path], Awaitable[None]]
) -> None:
    await (await left_aside(place, "the first", id="bad")).close()
    (bad,) = place.offline_files.left()
    await (await left_aside(place, "the second", id="good")).close()
    place.open.away.clear()
    await spoil(place, bad)
    for start in range(2):
        place.told.clear()
        persistence = place.persistence()
        await persistence.begin()
        assert not persistence.away
        talk = Talk(persistence, ScriptedModel(["Yes."]), id=f"later {start}")
        assert await say(talk, "Does it start?") == "Yes."
        await persistence.close()
        (reported,) = [told for told in place.told if "cannot be delivered" in told]
        assert str(bad) in reported
        assert place.offline_files.left() == [bad]
    assert [content for _, content in await place.contents("good")] == ["the second", "I see."]


async def test_a_session_of_a_kept_file_is_delivered_once_and_can_then_be_deleted(
    place: Place,
) -> None:
    persistence = await left_aside(place, "the first", id="bad")
    await say(Talk(persistence, ScriptedModel(["I see."]), id="good"), "the second")
    await persistence.close()
    place.open.away.clear()
    await is_still_being_filled(place, Path())
    for _ in range(2):
        persistence = place.persistence()
        await persistence.begin()
        found = {info.id for info in await persistence.memory.list_sessions()}
        if "good" in found:
            await persistence.memory.delete_session("good")
        await persistence.close()
    assert found == set()
    assert len(place.offline_files.left()) == 1
    assert place.holds("the first")
    assert not place.holds("the second")


async def test_another_owners_session_of_the_same_id_does_not_stand_in_the_way(
    place: Place,
) -> None:
    await (await left_aside(place, "the first", id="s")).close()
    place.open.away.clear()
    async with Memory.open(place.address) as memory:
        theirs = await memory.for_owner("bea").session("s")
        await theirs.append(Message(role="user", content="of bea"))
    persistence = place.persistence()
    await persistence.begin()
    await persistence.close()
    assert place.offline_files.left() == []
    assert [content for _, content in await place.contents("s")] == ["the first", "I see."]
    async with Memory.open(place.address) as memory:
        theirs = await memory.for_owner("bea").get_session("s")
        assert [message.content for message in await theirs.messages()] == ["of bea"]


async def test_a_request_to_forget_is_about_one_owner(place: Place) -> None:
    running = await left_aside(place, SECRET, id="s")
    here = Persistence(place.address, Outage(), place.offline_files, owner="bea")
    await here.begin()
    await here.memory.session("s")
    await here.before_forget(session="s")
    await here.memory.forget(session="s")
    await here.close()
    place.open.away.clear()
    await running.close()
    assert [content for _, content in await place.contents("s")] == [SECRET, "I see."]


async def test_the_steps_of_a_plan_stay_in_the_file_with_the_session_they_belong_to(
    place: Place,
) -> None:
    place.open.away.add(place.address)
    persistence = place.persistence()
    await persistence.begin()
    talk = Talk(persistence, Planning(["It is 42."]), id="bad")
    ChatOrchestrator(talk, cast(Any, Looking()))
    await say(talk, "What is it?")
    await persistence.close()
    place.open.away.clear()
    await is_still_being_filled(place, Path())
    persistence = place.persistence()
    await persistence.begin()
    assert {info.id for info in await persistence.store.scan_sessions()} == {"bad"}
    await persistence.close()
    (path,) = place.offline_files.left()
    async with Memory.open(f"sqlite:///{path}") as memory:
        result = (await (await memory.get_session("bad")).messages())[2]
        child = await memory.get_session(cast(str, result.meta["session"]))
        assert "42" in [message.content for message in await child.messages()]


async def test_a_chat_that_its_store_refuses_goes_on_in_its_file(place: Place) -> None:
    persistence = await left_aside(place, "the first", id="bad")
    place.open.away.clear()
    await is_still_being_filled(place, Path())
    place.told.clear()
    await persistence.come_back()
    await persistence.come_back()
    (told,) = place.told
    assert told.startswith("the memory is available again but refuses this chat")
    assert (bool(persistence.away), persistence.kept) == (True, True)
    await say(Talk(persistence, ScriptedModel(["Yes."]), id="bad"), "Does it go on?")
    await persistence.close()
    (path,) = place.offline_files.left()
    assert str(path) in told
    async with Memory.open(f"sqlite:///{path}") as memory:
        messages = await (await memory.get_session("bad")).messages()
    assert [m.content for m in messages] == ["the first", "I see.", "Does it go on?", "Yes."]


async def test_a_file_that_fails_in_mid_chat_is_delivered_with_what_came_after(
    place: Place,
) -> None:
    persistence = await left_aside(place, "the first", id="before")
    talk = Talk(persistence, ScriptedModel(["One.", "Two."]), id="after")
    await say(talk, "the second")
    await talk._leave(StorageFull("the disk of the file is full"))
    await say(talk, "the third")
    assert not persistence.kept
    place.open.away.clear()
    assert await persistence.come_back() == 6
    await persistence.close()
    assert [c for _, c in await place.contents("before")] == ["the first", "I see."]
    said = ["the second", "One.", "the third", "Two."]
    assert [c for _, c in await place.contents("after")] == said
    assert place.files() == []


# --- as a law ---


async def all_home(place: Place, persistence: Persistence) -> None:
    """End a chat, and begin and end two more while everything is there."""
    place.open.away.clear()
    await persistence.close()
    for _ in range(2):
        last = place.persistence()
        await last.begin()
        await last.close()


def using_a_tool(talk: Talk, result: str) -> Answering:
    """Return what answers a question after a tool was called."""

    async def answering(turn: Turn, context: Context) -> AsyncIterator[str | Reply]:
        await turn.tool("look", {}, lambda: result)
        async for piece in talk.model.stream(context.messages):
            yield piece

    return answering


async def spoken(talk: Talk, number: int, *, plan: bool) -> list[str]:
    """Ask a question, perhaps one that needs a tool, and return what must be stored."""
    alone, result = talk.answering, f"result {number}"
    if plan:
        talk.answering = using_a_tool(talk, result)
    answer = await say(talk, f"question {number}")
    talk.answering = alone
    return [f"question {number}", *[result] * plan, answer]


async def go_away(step: str, place: Place, persistence: Persistence, talk: Talk) -> None:
    """Let the store go away, or the disk of the file that takes its place be full."""
    if step == "away":
        place.open.away.add(place.address)
    if persistence.kept and bool(persistence.away) == (step == "file full"):
        await talk._leave(StorageFull("told to be full"))


KINDS = ["say", "plan", "away", "file away", "file full", "all back", "come back", "restart"]
STEPS = st.lists(st.sampled_from(KINDS), max_size=14)


@given(steps=STEPS)
@settings(max_examples=examples(15), deadline=None)
async def test_whatever_goes_and_comes_back_all_is_there_once_and_in_order(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str]
) -> None:
    place = Place(tmp_path_factory.mktemp("law"))
    script = ScriptedModel([f"answer {n}" for n in range(len(steps))])
    persistence = place.persistence()
    await persistence.begin()
    talk = Talk(persistence, script, id="law")
    said: list[str] = []
    lost_at_restart: list[str] = []
    for number, step in enumerate(steps):
        if step in ("say", "plan"):
            said += await spoken(talk, number, plan=step == "plan")
        elif step in ("away", "file full"):
            await go_away(step, place, persistence, talk)
        elif step == "file away":
            place.open.away.add("sqlite")
        elif step == "all back":
            place.open.away.clear()
        elif step == "come back" and not place.open.away:
            await persistence.come_back()
        elif step == "restart":
            await persistence.close()
            if persistence.away and not persistence.kept:
                lost_at_restart = list(said)
            persistence = place.persistence()
            await persistence.begin()
            talk = Talk(persistence, script, id="law")
    await all_home(place, persistence)
    kept = [each for each in said if each not in lost_at_restart]
    contents = await place.contents("law") if kept else []
    found = [content for _, content in contents if content]  # a call has no text
    assert [each for each in found if each in kept] == kept
    assert len(found) == len(set(found))
    assert place.files() == []


def test_session_ids_can_be_typed_and_do_not_meet() -> None:
    ids = {new_session_id() for _ in range(200)}
    assert len(ids) > 195
    assert all(len(id) == 15 for id in ids)


# --- titles ---


async def test_a_chat_names_the_message_that_its_title_is_made_from(place: Place) -> None:
    persistence = place.persistence()
    await persistence.begin()
    talk = Talk(persistence, ScriptedModel(["I see.", "Sure."]))
    await say(talk, SECRET)
    assert (await talk.session()).info.title == SECRET
    question = (await (await talk.session()).messages())[0]
    told = await persistence.memory.forget(session=talk.id, message=question.id, answers=True)
    assert (told.titles, told.found, told.repeated) == (1, 0, [])
    assert (await (await talk.session()).refresh()).title == ""
    await say(talk, "Something else")
    assert (await (await talk.session()).refresh()).title == "Something else"
    await persistence.close()
    assert not place.holds(SECRET)


async def test_a_title_given_by_hand_in_the_meantime_stays(place: Place) -> None:
    persistence = place.persistence()
    await persistence.begin()
    talk = Talk(persistence, ScriptedModel(["I see."]), id="s")
    await talk.session()
    await (await persistence.memory.get_session("s")).update(title="By hand")
    await say(talk, "A question")
    assert (await (await talk.session()).refresh()).title == "By hand"
    await persistence.close()


@pytest.mark.parametrize("begun", ["at home", "away"])
async def test_a_title_comes_home_as_one_that_is_made_from_a_message(
    place: Place, begun: str
) -> None:
    if begun == "away":
        place.open.away.add(place.address)
    persistence = place.persistence()
    await persistence.begin()
    talk = Talk(persistence, ScriptedModel(["I see.", "Yes."]))
    if begun == "at home":
        await say(talk, SECRET)
        place.open.away.add(place.address)
        await persistence.leave(Unavailable("gone"), (await talk.session()).info, talk._said)
        assert (await talk.session()).info.title == SECRET
        assert (await talk.session()).info.title_seq == 1
    else:
        await say(talk, SECRET)
    place.open.away.clear()
    await persistence.come_back()
    info = await (await talk.session()).refresh()
    assert (info.title, info.title_seq) == (SECRET, 1)
    await persistence.close()


# --- forgetting what is offline_file ---


async def left_aside(place: Place, *questions: str, id: str = "s") -> Persistence:
    """Have a chat say something while the store is away; the chat still runs."""
    place.open.away.add(place.address)
    persistence = place.persistence()
    await persistence.begin()
    talk = Talk(persistence, ScriptedModel(["I see."] * len(questions)), id=id)
    for question in questions:
        await say(talk, question)
    return persistence


@pytest.mark.parametrize(
    "wish", [["--owner", "default"], ["--session", "s"], ["--since", "2020-01-01"]]
)
async def test_forget_reaches_what_a_chat_that_ended_kept_aside(
    place: Place, wish: list[str]
) -> None:
    await (await left_aside(place, SECRET)).close()
    assert place.holds(SECRET)
    place.open.away.clear()
    async with Memory.open(place.address) as memory:
        await (await memory.session("other")).append(Message(role="user", content="plain"))
    code, told = await forget(place, *wish)
    assert (code, told["found"], told["residues"][1:]) == (0, 0, [])
    assert place.files() == []
    assert not place.holds(SECRET)
    persistence = place.persistence()
    await persistence.begin()
    store = persistence.store
    kept = await store.get_session("s")
    assert kept is not None
    assert kept.forgotten == (wish[0] != "--since")  # then no call but the store's finds it
    assert {message.state for message in await store.read(kept.key)} == {"erased"}
    await persistence.close()
    assert not place.holds(SECRET)


async def test_a_running_chat_forgets_what_it_kept_aside_once_it_is_home(
    place: Place,
) -> None:
    running = await left_aside(place, SECRET)  # the store stays away, for this chat
    async with Memory.open(place.address) as memory:
        await (await memory.session("other")).append(Message(role="user", content="plain"))
    code, told = await forget(place, "--owner", "default")
    assert code == 0
    assert any("asides" in residue["where"] for residue in told["residues"])
    later = Talk(running, ScriptedModel(["Yes."]), id="s")
    await say(later, "and this was said later")
    place.open.away.clear()
    await running.come_back()
    await running.close()
    words = [content for _, content in await place.contents("s")]
    assert words == ["", "", "and this was said later", "Yes."]
    assert place.files() == []
    assert not place.holds(SECRET)


async def test_forget_in_a_chat_reaches_what_another_chat_kept_aside(place: Place) -> None:
    running = await left_aside(place, SECRET)  # the store stays away, for this chat
    here = Persistence(place.address, Outage(), place.offline_files)
    await here.begin()
    await here.memory.session("s")
    await here.before_forget(session="s")
    await here.memory.forget(session="s")
    await here.close()
    place.open.away.clear()
    await running.close()
    async with Memory.open(place.address) as memory:
        kept = await memory.store.get_session("s")
        assert kept is not None
        assert kept.forgotten
        assert [m.state for m in await memory.store.read(kept.key)] == ["erased", "erased"]
    assert not place.holds(SECRET)


async def forget(place: Place, *wish: str) -> tuple[int, dict[str, Any]]:
    """Run the command as a process, and return its exit code and its receipt."""
    env = {"KEEPTHREAD_STORE": place.address, "KEEPTHREAD_STATE": str(place.state)}
    done = await asyncio.to_thread(preloaded.command, "--json", "forget", *wish, "--yes", env=env)
    return done.returncode, json.loads(done.stdout)
