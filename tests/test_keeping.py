"""Where a chat is kept: nothing is lost and nothing is twice, wherever the store goes meanwhile."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepthread import Memory, Message
from keepthread.cli.chat.asides import Asides
from keepthread.cli.chat.keeping import Keeping
from keepthread.cli.chat.talk import Talk, new_session_id
from keepthread.errors import ModelCut, ModelUnavailable, StorageFull, Unavailable
from keepthread.memory import Opening
from keepthread.testing.model import ScriptedModel
from keepthread.types import Reply, Usage


class Outage:
    """Opens memories, unless they are to be away; counts what was opened."""

    def __init__(self) -> None:
        self.away: set[str] = set()
        self.opened: list[str] = []

    def __call__(self, address: str) -> Opening:
        self.opened.append(address)
        if any(address.startswith(each) for each in self.away):
            raise Unavailable("told to be away")
        return Memory.open(address, patience=0.2)


class Place:
    """A store in a file, the folder beside it, and what opens both."""

    def __init__(self, folder: Path) -> None:
        self.address = f"sqlite:///{folder}/chat.db"
        self.path = folder / "chat.db"
        self.asides = Asides(folder / "asides", self.address, "default")
        self.open = Outage()
        self.told: list[str] = []

    def keeping(self, *, kept: bool = True) -> Keeping:
        asides = self.asides if kept else None
        return Keeping(self.address, self.open, asides, tell=self.told.append)

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
    keeping = place.keeping()
    await keeping.begin()
    usage = Usage(input=40, output=4, cached=32)
    talk = Talk(keeping, ScriptedModel([Reply(content="32 °C and sunny.", usage=usage)]))
    assert await say(talk, "What is the weather in Jakarta?") == "32 °C and sunny."
    assert talk.last is not None
    assert talk.last.answer is not None
    assert talk.last.answer.meta["usage"] == {"input": 40, "output": 4, "cached": 32}
    assert (await talk.session()).info.title == "What is the weather in Jakarta?"
    await keeping.close()
    said = [("user", "What is the weather in Jakarta?"), ("assistant", "32 °C and sunny.")]
    assert await place.contents(talk.id) == said
    assert place.told == []


async def test_a_follow_up_is_asked_with_what_was_said_before(place: Place) -> None:
    keeping = place.keeping()
    await keeping.begin()
    model = ScriptedModel(["Sunny.", "Cloudy."])
    talk = Talk(keeping, model, system="You know the weather.")
    await say(talk, "What is the weather in Jakarta?")
    await say(talk, "How about Tokyo?")
    seen = [message.content for message in model.calls[1].messages]
    assert seen == ["What is the weather in Jakarta?", "Sunny.", "How about Tokyo?"]
    assert model.calls[1].system == "You know the weather."
    await keeping.close()


class Held(ScriptedModel):
    """Says two words, and then nothing more until it is stopped."""

    async def stream(self, messages, **_) -> AsyncIterator[str | Reply]:
        yield "Well, "
        yield "let me see"
        await asyncio.Event().wait()


async def test_what_arrived_before_a_stop_is_kept_as_cut_short(place: Place) -> None:
    keeping = place.keeping()
    await keeping.begin()
    talk = Talk(keeping, Held())
    arrived = ""
    async for piece in talk.ask("Why?"):
        arrived += piece
        if arrived.endswith("see"):
            talk.stop()
    assert talk.last is not None
    assert talk.last.cut
    assert talk.last.answer is not None
    assert talk.last.answer.meta["cut"] is True
    await keeping.close()
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
    keeping = place.keeping()
    await keeping.begin()
    model = Failing()
    talk = Talk(keeping, model)
    assert await say(talk, "Are you there?") == ""
    assert talk.last is not None
    assert isinstance(talk.last.failure, ModelUnavailable)
    question = talk.unanswered
    assert question is not None
    model.works = True
    again = talk.ask(question.content, again=question)
    assert "".join([piece async for piece in again]) == "It works now."
    assert talk.unanswered is None
    await keeping.close()
    expected = [("user", "Are you there?"), ("assistant", "It works now.")]
    assert await place.contents(talk.id) == expected


async def test_an_answer_that_breaks_off_is_kept_as_far_as_it_came(place: Place) -> None:
    keeping = place.keeping()
    await keeping.begin()
    talk = Talk(keeping, Failing("Half an ", "answer"))
    assert await say(talk, "Go on") == "Half an answer"
    assert talk.last is not None
    assert talk.last.cut
    assert talk.unanswered is None
    await keeping.close()
    assert await place.contents(talk.id) == [("user", "Go on"), ("assistant", "Half an answer")]


# --- the store is away ---


async def test_a_store_that_is_away_at_the_start_gets_everything_later(place: Place) -> None:
    place.open.away.add(place.address)
    keeping = place.keeping()
    await keeping.begin()
    assert keeping.away
    assert keeping.kept
    model = ScriptedModel(["One.", "Two.", "Three."])
    talk = Talk(keeping, model)
    await say(talk, "first")
    await say(talk, "second")
    assert [m.content for m in model.calls[1].messages] == ["first", "One.", "second"]
    place.open.away.clear()
    assert await keeping.come_back() == 4
    assert not keeping.away
    await say(talk, "third")
    assert len(model.calls[2].messages) == 5
    await keeping.close()
    words = [content for _, content in await place.contents(talk.id)]
    assert words == ["first", "One.", "second", "Two.", "third", "Three."]
    assert place.files() == []
    assert place.told[0].startswith("memory is away: told to be away")
    assert place.told[1] == "memory is back: 4 messages were brought home"


async def test_what_a_chat_could_not_deliver_the_next_one_does(place: Place) -> None:
    place.open.away.add(place.address)
    keeping = place.keeping()
    await keeping.begin()
    talk = Talk(keeping, ScriptedModel(["Noted."]))
    await say(talk, "Remember me")
    await keeping.close()
    assert place.files()
    place.open.away.clear()
    other = place.keeping()
    await other.begin()
    await other.close()
    assert await place.contents(talk.id) == [("user", "Remember me"), ("assistant", "Noted.")]
    assert place.files() == []


async def test_a_file_that_another_chat_still_writes_is_left_alone(place: Place) -> None:
    place.open.away.add(place.address)
    first = place.keeping()
    await first.begin()
    talk = Talk(first, ScriptedModel(["Still here."]))
    await say(talk, "Hello")
    place.open.away.clear()
    second = place.keeping()
    await second.begin()
    assert await second.memory.list_sessions() == []
    await second.close()
    await first.close()
    assert [content for _, content in await place.contents(talk.id)] == ["Hello", "Still here."]


async def test_a_locked_store_is_left_in_mid_conversation_and_nothing_is_twice(
    place: Place,
) -> None:
    keeping = place.keeping()
    await keeping.begin()
    model = ScriptedModel(["One.", "Two.", "Three."])
    talk = Talk(keeping, model)
    await say(talk, "first")
    with closing(sqlite3.connect(place.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        await say(talk, "second")
        other.execute("ROLLBACK")
    assert keeping.away
    assert [m.content for m in model.calls[1].messages] == ["first", "One.", "second"]
    await keeping.come_back()
    await say(talk, "third")
    await keeping.close()
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
    keeping = place.keeping()
    await keeping.begin()
    model = Locking(place.path)
    talk = Talk(keeping, model)
    assert await say(talk, "Quick!") == "Answered."
    assert keeping.away
    model.other.close()
    await keeping.close()
    assert await place.contents(talk.id) == [("user", "Quick!"), ("assistant", "Answered.")]


async def test_a_broken_file_is_named_and_the_chat_goes_on_beside_it(place: Place) -> None:
    keeping = place.keeping()
    await keeping.begin()
    await say(Talk(keeping, ScriptedModel(["Fine."]), id="old"), "How are you?")
    await keeping.close()
    whole = break_it(place.path)
    broken = place.path.read_bytes()
    keeping = place.keeping()
    await keeping.begin()
    assert "chat.db" in keeping.away
    talk = Talk(keeping, ScriptedModel(["Yes."]))
    assert await say(talk, "Do you still work?") == "Yes."
    await keeping.close()
    assert place.path.read_bytes() == broken, "what is broken must not be touched"
    place.path.write_bytes(whole)
    keeping = place.keeping()
    await keeping.begin()
    await keeping.close()
    assert [c for _, c in await place.contents(talk.id)] == ["Do you still work?", "Yes."]
    assert [c for _, c in await place.contents("old")] == ["How are you?", "Fine."]


async def test_without_any_disk_a_chat_goes_on_and_says_that_nothing_is_kept(place: Place) -> None:
    place.open.away |= {place.address, "sqlite"}
    keeping = place.keeping()
    await keeping.begin()
    assert not keeping.kept
    assert "nowhere but in this program" in place.told[0]
    model = ScriptedModel(["One.", "Two."])
    talk = Talk(keeping, model)
    await say(talk, "first")
    await say(talk, "second")
    assert [m.content for m in model.calls[1].messages] == ["first", "One.", "second"]
    place.open.away.clear()
    await keeping.close()
    assert [c for _, c in await place.contents(talk.id)] == ["first", "One.", "second", "Two."]


async def test_without_memory_nothing_is_written_anywhere(place: Place) -> None:
    keeping = place.keeping(kept=False)
    await keeping.begin()
    model = ScriptedModel(["One.", "Two."])
    talk = Talk(keeping, model)
    await say(talk, "first")
    await say(talk, "second")
    assert len(model.calls[1].messages) == 3
    await keeping.close()
    assert not place.path.exists()
    assert place.files() == []


async def test_two_chats_on_one_session_keep_question_and_answer_together(place: Place) -> None:
    one, two = place.keeping(), place.keeping()
    await one.begin()
    await two.begin()
    ana = Talk(one, ScriptedModel([f"to ana {n}" for n in range(10)]), id="shared")
    bob = Talk(two, ScriptedModel([f"to bob {n}" for n in range(10)]), id="shared")
    for n in range(10):
        await asyncio.gather(say(ana, f"ana asks {n}"), say(bob, f"bob asks {n}"))
    async with Memory.open(place.address) as memory:
        messages = await (await memory.get_session("shared")).messages()
    by_exchange: dict[int, list[Message]] = {}
    for message in messages:
        by_exchange.setdefault(message.exchange, []).append(message)
    assert len(by_exchange) == 20
    for question, answer in by_exchange.values():
        name, _, number = question.content.partition(" asks ")
        assert answer.content == f"to {name} {number}"
    await one.close()
    await two.close()


# --- as a law ---


async def all_home(place: Place, keeping: Keeping) -> None:
    """End a chat, and begin and end two more while everything is there."""
    place.open.away.clear()
    await keeping.close()
    for _ in range(2):
        last = place.keeping()
        await last.begin()
        await last.close()


STEPS = st.lists(
    st.sampled_from(["say", "say", "away", "file away", "all back", "come back", "restart"]),
    max_size=14,
)


@given(steps=STEPS)
@settings(max_examples=30, deadline=None)
async def test_whatever_goes_and_comes_back_all_is_there_once_and_in_order(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str]
) -> None:
    place = Place(tmp_path_factory.mktemp("law"))
    script = ScriptedModel([f"answer {n}" for n in range(len(steps))])
    keeping = place.keeping()
    await keeping.begin()
    talk = Talk(keeping, script, id="law")
    said: list[str] = []
    lost_at_restart: list[str] = []
    for number, step in enumerate(steps):
        if step == "say":
            answer = await say(talk, f"question {number}")
            said += [f"question {number}", answer]
        elif step == "away":
            place.open.away.add(place.address)
            if not keeping.away:
                await talk._leave(StorageFull("told to be full"))
        elif step == "file away":
            place.open.away.add("sqlite")
        elif step == "all back":
            place.open.away.clear()
        elif step == "come back" and not place.open.away:
            await keeping.come_back()
        elif step == "restart":
            await keeping.close()
            if keeping.away and not keeping.kept:
                lost_at_restart = list(said)
            keeping = place.keeping()
            await keeping.begin()
            talk = Talk(keeping, script, id="law")
    await all_home(place, keeping)
    kept = [each for each in said if each not in lost_at_restart]
    found = [content for _, content in await place.contents("law")] if kept else []
    assert [each for each in found if each in kept] == kept
    assert len(found) == len(set(found))
    assert place.files() == []


def test_session_ids_can_be_typed_and_do_not_meet() -> None:
    ids = {new_session_id() for _ in range(200)}
    assert len(ids) > 195
    assert all(len(id) == 15 for id in ids)
