"""Memory, Session and Turn as programs use them, in memory and in a SQLite file."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepthread import Attachment, Memory, Message, Options, Scope, Session, ToolCall, View, Window
from keepthread.context.hidden import HiddenRanges
from keepthread.context.ids import derived_id
from keepthread.errors import (
    Conflict,
    InvalidInput,
    MessageNotFound,
    SessionExists,
    SessionGone,
    SessionNotFound,
    Stale,
    StoreClosed,
    Unavailable,
)
from keepthread.memory.tool_calls import INTERRUPTED
from keepthread.memory.turn import Turn
from keepthread.models import tokens
from keepthread.models.tokens import Estimator
from keepthread.protocols import Store
from keepthread.stores.kinds import FINISHED
from keepthread.stores.ram import RamStore
from keepthread.testing import ManualClock
from keepthread.types import SessionKey

DAY = 86_400.0


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=["ram", "sqlite"])
async def memory(
    request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock
) -> AsyncIterator[Memory]:
    url = "ram://" if request.param == "ram" else f"sqlite:///{tmp_path}/chat.db"
    async with Memory.open(url, counter=Estimator(), clock=clock) as opened:
        yield opened


@pytest.fixture
async def session(memory: Memory) -> Session:
    return await memory.session("s")


def user(text: str, **fields: Any) -> Message:
    return Message(role="user", content=text, **fields)


def said(text: str, **fields: Any) -> Message:
    return Message(role="assistant", content=text, **fields)


def calling(*ids: str, **fields: Any) -> Message:
    calls = [ToolCall(id=id, name="look", arguments="{}") for id in ids]
    return Message(role="assistant", tool_calls=calls, **fields)


def result(id: str, text: str = "found") -> Message:
    return Message(role="tool", tool_call_id=id, content=text)


async def texts(session: Session) -> list[str]:
    return [message.content for message in await session.messages(limit=1000)]


async def break_off(session: Session, *steps: Sequence[Message], id: str | None = None) -> None:
    """Take a turn in which something fails after some messages."""
    async with session.turn("look", id=id) as turn:
        for messages in steps:
            await turn.append(*messages)
        raise ZeroDivisionError


async def note_of(memory: Memory, session: Session, turn: Turn) -> dict[str, Any]:
    """Return what is kept beside a turn's answer."""
    key = derived_id("finished", turn.user.id)
    note = await memory.store.get(Scope(session=session.key), FINISHED, key)
    assert note
    return cast(dict[str, Any], note.value)


# --- opening ---


@pytest.mark.parametrize(
    "url",
    ["", "chat.db", "sqlite:", "sqlite://", "sqlite:///", "sqlite://chat.db", "ram:///x", "ram:"],
)
async def test_what_is_no_address_is_refused_with_those_there_are(url: str) -> None:
    with pytest.raises(InvalidInput, match=r"is not a store URL.*; use sqlite:///"):
        Memory.open(url)


@pytest.mark.parametrize("url", ["chat.db", "sqlite://chat.db", "/data/chat.db"])
async def test_a_path_in_place_of_a_url_names_the_url(url: str) -> None:
    path = url.removeprefix("sqlite://")
    with pytest.raises(InvalidInput, match=f"did you mean 'sqlite:///{path}'"):
        Memory.open(url)


async def test_an_address_may_be_relative_or_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with Memory.open("sqlite:///chat.db", counter=Estimator()) as memory:
        await memory.session("s")
    async with Memory.open(f"sqlite:///{tmp_path}/chat.db", counter=Estimator()) as memory:
        assert [info.id for info in await memory.list_sessions()] == ["s"]


async def test_a_memory_can_be_awaited_and_closed_by_hand() -> None:
    memory = await Memory.open("ram://", counter=Estimator())
    async with memory as same:
        assert same is memory
        session = await memory.session("s")
    await memory.close()
    with pytest.raises(StoreClosed):
        await session.messages()


async def test_the_counter_is_the_best_there_is(vocabularies: Path) -> None:
    tokens.counter.cache_clear()
    async with Memory.open("ram://") as memory:
        assert memory.counter is tokens.counter()
        session = await memory.session("s")
        stored = await session.add_message("user", "hello")
        assert (stored.tokens, stored.counter) == (
            memory.counter.count(user("hello")),
            memory.counter.name,
        )


async def test_a_count_that_the_caller_gives_is_kept(session: Session) -> None:
    (stored,) = await session.append(user("hello", tokens=77, counter="mine"))
    assert (stored.tokens, stored.counter) == (77, "mine")


async def test_a_large_message_is_counted_as_a_small_one_is(session: Session) -> None:
    text = "many words and more of them " * 2000
    stored = await session.add_message("user", text)
    assert stored.tokens == Estimator().count(user(text))


async def test_tenants_see_nothing_of_each_other(memory: Memory) -> None:
    mine = await memory.session("s", owner="ana")
    await mine.add_message("user", "mine")
    other = memory.tenant("other")
    assert await other.admin.list_sessions() == []
    with pytest.raises(SessionNotFound):
        await other.get_session("s", owner="ana")
    theirs = await other.session("s", owner="bob")
    assert await theirs.messages() == []
    assert (await memory.get_session("s", owner="ana")).key == mine.key
    await other.close()
    assert await texts(mine) == ["mine"]


# --- getting and making sessions ---


async def test_a_session_is_made_once_and_found_afterwards(memory: Memory) -> None:
    made = await memory.session(
        "s", owner="ana", system_prompt="Be brief.", title="Trip", tags=["a"], meta={"n": 1}
    )
    found = await memory.session(
        "s", owner="ana", system_prompt="Be long.", title="Other", tags=["b"], meta={"n": 2}
    )
    assert found.key == made.key
    info = found.info
    assert (info.system_prompt, info.title, list(info.tags), info.meta) == (
        "Be brief.",
        "Trip",
        ["a"],
        {"n": 1},
    )


async def test_without_an_owner_only_the_default_owners_sessions_are_found(memory: Memory) -> None:
    assert (await memory.session("new")).owner == "default"
    anas = await memory.session("s", owner="ana")
    with pytest.raises(SessionNotFound):
        await memory.get_session("s")
    own = await memory.session("s")
    assert own.owner == "default"
    assert own.key != anas.key
    assert (await memory.get_session("s")).key == own.key
    assert (await memory.get_session("s", owner="ana")).key == anas.key


async def test_anothers_session_is_not_found(memory: Memory) -> None:
    anas = await memory.session("s", owner="ana")
    attempts: list[Callable[..., Awaitable[object]]] = [memory.get_session, memory.delete_session]
    for attempt in attempts:
        with pytest.raises(SessionNotFound, match="there is no session 's'"):
            await attempt("s", owner="bob")
    assert (await memory.session("s", owner="bob")).key != anas.key
    assert (await memory.get_session("s", owner="ana")).key == anas.key


async def test_making_a_session_that_is_there_fails(memory: Memory) -> None:
    await memory.create_session("s")
    with pytest.raises(SessionExists):
        await memory.create_session("s")
    other = await memory.create_session("s", owner="other")
    assert (other.id, other.owner) == ("s", "other")
    with pytest.raises(SessionExists):
        await memory.create_session("s", owner="other")


async def test_getting_a_session_that_is_not_there_fails(memory: Memory) -> None:
    with pytest.raises(SessionNotFound, match="there is no session 's'"):
        await memory.get_session("s")


async def test_tasks_that_ask_for_a_new_session_at_once_get_the_same(memory: Memory) -> None:
    found = await asyncio.gather(*(memory.session("s") for _ in range(10)))
    assert len({session.key for session in found}) == 1


async def test_sessions_are_listed_by_latest_activity(memory: Memory, clock: ManualClock) -> None:
    for id, owner in [("a", "ana"), ("b", "bob"), ("c", "ana")]:
        await memory.session(id, owner=owner)
        clock.advance(10)
    await (await memory.session("a", owner="ana")).add_message("user", "hello")
    assert [info.id for info in await memory.admin.list_sessions()] == ["a", "c", "b"]
    assert [info.id for info in await memory.list_sessions(owner="ana")] == ["a", "c"]
    assert [info.id for info in await memory.admin.list_sessions(limit=1)] == ["a"]
    assert await memory.list_sessions() == []


async def test_a_deleted_session_is_gone_and_its_id_free(memory: Memory, session: Session) -> None:
    await session.add_message("user", "hello")
    await memory.delete_session("s")
    with pytest.raises(SessionGone):
        await session.add_message("user", "again")
    new = await memory.session("s")
    assert new.key != session.key
    assert await new.messages() == []
    with pytest.raises(SessionNotFound):
        await memory.delete_session("nobody")


async def test_pruning_deletes_what_was_idle_for_so_many_days(
    memory: Memory, clock: ManualClock
) -> None:
    await memory.session("old")
    busy = await memory.session("busy")
    clock.advance(20 * DAY)
    await busy.add_message("user", "still here")
    clock.advance(11 * DAY)
    await memory.session("new")
    assert await memory.admin.prune() == 1
    assert [info.id for info in await memory.list_sessions()] == ["new", "busy"]
    assert await memory.admin.prune(days=11) == 0
    assert await memory.admin.prune(days=5) == 1
    with pytest.raises(InvalidInput, match="days"):
        await memory.admin.prune(days=-1)


class Returning(RamStore):
    """Has a user come back to the last session while the first one is deleted."""

    async def delete_session(self, session: SessionKey, **conditions: Any) -> None:
        (last,) = [info for info in await self.scan_sessions() if info.id == "c"]
        if last.messages == 1:
            await self.append(last.key, [user("I am back!")])
        await super().delete_session(session, **conditions)


async def test_pruning_spares_a_session_that_is_used_while_it_runs(clock: ManualClock) -> None:
    memory = Memory(Returning(clock=clock), Options(counter=Estimator(), clock=clock))
    for id in ("a", "b", "c"):
        await (await memory.session(id)).append(user("hello"))
    clock.advance(40 * DAY)
    assert await memory.admin.prune(30) == 2
    assert [info.id for info in await memory.list_sessions()] == ["c"]
    kept = await (await memory.get_session("c")).messages()
    assert [message.content for message in kept] == ["hello", "I am back!"]


async def test_updates_of_two_programs_at_once_keep_each_other(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/chat.db"
    opened = [Memory.open(url, counter=Estimator()) for _ in range(2)]
    async with opened[0] as one, opened[1] as two:
        mine, theirs = await one.session("s"), await two.session("s")
        for n in range(20):
            await asyncio.gather(mine.update(title=str(n)), theirs.update(tags=[str(n)]))
            info = await mine.refresh()
            assert (info.title, info.tags) == (str(n), (str(n),))
        await asyncio.gather(mine.update(title="mine"), theirs.update(title="theirs"))
        assert (await mine.refresh()).title in ("mine", "theirs")


async def test_an_update_changes_what_is_given(memory: Memory, session: Session) -> None:
    await session.update(title="Trip", tags=["a", "b"], system_prompt="Be brief.", meta={"n": 1})
    info = await session.update(title="Journey")
    assert (info.title, list(info.tags), info.system_prompt, info.meta) == (
        "Journey",
        ["a", "b"],
        "Be brief.",
        {"n": 1},
    )
    assert session.info == info == (await memory.get_session("s")).info == await session.refresh()


async def test_everything_is_verified(memory: Memory, session: Session) -> None:
    await session.append(user("a"), user("b"))
    found = await memory.admin.verify()
    assert (found.sound, found.sessions, found.messages) == (True, 1, 2)


# --- the log ---


async def test_messages_are_stored_all_or_none(session: Session) -> None:
    await session.append(user("a", id="1"), said("b", id="2"))
    with pytest.raises(Conflict):
        await session.append(said("c"), user("another", id="1"))
    assert await texts(session) == ["a", "b"]


async def test_a_message_can_be_added_by_role_and_text(session: Session) -> None:
    stored = await session.add_message("assistant", "hello", id="1")
    assert (stored.role, stored.content, stored.id, stored.seq) == ("assistant", "hello", "1", 1)
    assert await session.add_message("assistant", "hello", id="1") == stored


async def test_messages_are_appended_only_where_the_caller_expects(session: Session) -> None:
    (first,) = await session.append(user("a", id="1"), expect=0)
    with pytest.raises(Stale, match="ends at 1, not at 0"):
        await session.append(said("b"), expect=0)
    assert await session.append(user("a", id="1"), expect=0) == [first]
    await session.append(said("b"), expect=1)


async def test_messages_are_read_in_pages(session: Session) -> None:
    stored = [*await session.append(*(user(str(n)) for n in range(250)))]
    stored += await session.append(*(user(str(n)) for n in range(250, 450)))
    assert await session.messages() == stored
    assert await session.messages(after=100) == stored[100:]
    assert await session.messages(limit=100) == stored[:100]
    assert await session.messages(limit=2, after=3) == stored[3:5]
    assert await session.messages(limit=0) == []
    for after, limit in ((0, None), (3, 2), (40, 400), (449, None), (450, None), (7, 0), (0, 900)):
        seen = [message async for message in session.messages(after, limit)]
        assert seen == await session.messages(after, limit)
    for wrong in (-1, "2"):
        with pytest.raises(InvalidInput):
            await session.messages(limit=wrong)  # pyright: ignore[reportArgumentType]
        with pytest.raises(InvalidInput):
            [message async for message in session.messages(limit=wrong)]  # pyright: ignore[reportArgumentType]


async def test_a_loop_over_messages_that_appends_ends(session: Session) -> None:
    stored = await session.append(user("a"), said("b"))
    seen: list[Message] = []
    messages = session.messages()
    async for message in messages:
        seen.append(message)
        await session.append(user("again"))
    assert seen == stored
    assert len([message async for message in messages]) == 4  # reads again


async def test_the_status_tells_the_log_from_what_is_seen(session: Session) -> None:
    stored = await session.append(user("a"), said("b"), user("c"), said("d"))
    await session.rewind(2)
    status = await session.status()
    assert (status.messages, status.turns) == (4, 2)
    assert status.tokens == stored[-1].total
    assert (status.visible_messages, status.visible_tokens) == (2, stored[1].total)


# --- contexts ---


async def test_no_view_is_the_chat_view(session: Session) -> None:
    await session.add_message("user", "hello")
    assert (await session.context()).selection.budget == 4096
    assert (await session.context("router")).selection.budget == 500
    assert (await session.context("planner")).selection.budget == 1000


async def test_an_unknown_view_lists_the_known(session: Session) -> None:
    with pytest.raises(InvalidInput, match="no view 'rooter'; there are chat, planner, router"):
        await session.context("rooter")


async def test_a_budget_beside_a_view_overrides_its_own(session: Session) -> None:
    await session.append(*(user(f"number {n}") for n in range(100)))
    assert (await session.context("router", budget=100)).selection.budget == 100
    assert (await session.context("router", budget=100)).tokens <= 100
    with pytest.raises(InvalidInput, match="budget"):
        await session.context(budget=-1)


async def test_views_given_at_opening_join_the_default_ones() -> None:
    views = {"tiny": View(60, Window(max_messages=2, step=0)), "chat": View(100)}
    async with Memory.open("ram://", views=views, counter=Estimator()) as memory:
        session = await memory.session("s")
        await session.append(*(user(str(n)) for n in range(10)))
        assert [m.content for m in (await session.context("tiny")).messages] == ["8", "9"]
        assert (await session.context()).selection.budget == 100
        assert (await session.context("router")).selection.budget == 500
        assert memory.tenant("other").views == memory.views


async def test_the_newest_user_message_can_be_left_out(session: Session) -> None:
    await session.append(user("a"), said("b"), user("c"))
    context = await session.context(newest=False)
    assert [m.content for m in context.messages] == ["a", "b"]


async def test_a_turn_sees_its_own_user_message_though_others_came_since(session: Session) -> None:
    async with session.turn("mine") as turn:
        await session.append(*(user(f"another {n} " * 20) for n in range(50)))
        context = await turn.context(budget=300)
    assert "mine" in [m.content for m in context.messages]


# --- pins, clear, rewind ---


async def test_a_pinned_message_is_in_every_context_until_it_is_unpinned(session: Session) -> None:
    (pinned, *_) = await session.append(user("remember: no nuts"), user("go on"))
    await session.append(*(said(f"words {n} " * 20) for n in range(50)))
    assert "no nuts" not in (await session.context(budget=400)).text
    await session.pin(pinned.id)
    assert "no nuts" in (await session.context(budget=400)).text
    assert await session.unpin(pinned.id)
    assert not await session.unpin(pinned.id)
    assert "no nuts" not in (await session.context(budget=400)).text


async def test_pins_are_listed_in_the_order_of_the_log(session: Session) -> None:
    assert await session.pins() == []
    one, two, three = await session.append(user("one"), user("two"), user("three"))
    for each in (three, one, two):
        await session.pin(each.id)
    await session.unpin(two.id)
    assert [message.content for message in await session.pins()] == ["one", "three"]


async def test_hidden_ranges_are_listed_with_their_reasons(session: Session) -> None:
    assert await session.hidden() == []
    stored = await session.append(*(user(str(n)) for n in range(5)))
    await session.rewind(3)
    await session.append(user("on"), user("and on"))
    await session.rewind(6)
    ranges = [(each.first, each.last, each.reason) for each in await session.hidden()]
    assert ranges == [(4, 5, "rewound"), (7, 7, "rewound")]
    assert (await session.hidden())[0].tokens == sum(m.tokens for m in stored[3:])
    await session.clear()
    (whole,) = await session.hidden()
    assert (whole.first, whole.last, whole.reason) == (1, 7, "cleared")


async def test_only_a_message_that_is_there_can_be_pinned(session: Session) -> None:
    with pytest.raises(MessageNotFound, match="no message 'x' to pin"):
        await session.pin("x")


async def test_clearing_starts_afresh_and_keeps_the_log(session: Session) -> None:
    await session.append(user("a"), said("b"))
    await session.clear()
    assert not (await session.context()).messages
    assert await texts(session) == ["a", "b"]
    await session.add_message("user", "c")
    assert [m.content for m in (await session.context()).messages] == ["c"]


async def test_rewinding_hides_what_came_after(session: Session) -> None:
    await session.append(user("a"), said("b"), user("c"), said("d"))
    await session.rewind(2)
    await session.add_message("user", "e")
    assert [m.content for m in (await session.context()).messages] == ["a", "b", "e"]
    await session.rewind(0)
    assert not (await session.context()).messages
    with pytest.raises(MessageNotFound, match="position 99"):
        await session.rewind(99)


async def test_clearing_and_rewinding_at_once_lose_nothing(session: Session) -> None:
    await session.append(*(user(str(n)) for n in range(6)))
    await asyncio.gather(session.rewind(5), session.rewind(4), session.rewind(3))
    assert [m.content for m in (await session.context()).messages] == ["0", "1", "2"]


# --- turns ---


async def test_the_user_message_is_stored_before_the_turn_begins(session: Session) -> None:
    photo = Attachment(media_type="image/png", uri="https://example.org/a.png")
    async with session.turn("look", id="q1", author="bob", attachments=[photo]) as turn:
        (stored,) = await session.messages()
        assert stored == turn.user
        assert (stored.id, stored.author, list(stored.attachments)) == ("q1", "bob", [photo])
        assert turn.number == stored.turn == 1


async def test_what_a_turn_writes_carries_its_number(session: Session) -> None:
    async with session.turn("one") as first, session.turn("two") as second:
        await second.append(calling("c", id="call 2"))
        await first.append(calling("c", id="call 1"))
        await second.append(result("c", "for two"))
        await first.append(result("c", "for one"))
        await second.finish("answer two")
        await first.finish("answer one")
    log = await session.messages()
    assert [m.content for m in log if m.turn == 1] == ["one", "", "for one", "answer one"]
    assert [m.content for m in log if m.turn == 2] == ["two", "", "for two", "answer two"]
    assert (await session.status()).turns == 2


async def test_finishing_twice_returns_the_first_answer(session: Session) -> None:
    async with session.turn("hello") as turn:
        first = await turn.finish("one")
        assert turn.answer == first
        assert await turn.finish("two") == first
        assert await turn.finish("three", id="x", usage={"n": 1}) == first
    assert await texts(session) == ["hello", "one"]


async def test_an_answer_may_be_a_message(session: Session) -> None:
    async with session.turn("hello") as turn:
        answer = await turn.finish(said("hi", meta={"model": "m"}, id="a1"))
    assert (answer.id, answer.content, answer.meta) == ("a1", "hi", {"model": "m"})


@pytest.mark.parametrize("answer", [user("no"), calling("c"), result("c"), None])
async def test_what_is_no_answer_is_refused(session: Session, answer: Any) -> None:
    async with session.turn("hello") as turn:
        with pytest.raises(InvalidInput, match="an answer"):
            await turn.finish(answer)
        assert turn.answer is None
        await turn.finish("fine")
    assert await texts(session) == ["hello", "fine"]


async def test_usage_and_cut_are_kept_beside_the_answer(memory: Memory, session: Session) -> None:
    async with session.turn("hello") as turn:
        answer = await turn.finish("hi", usage={"input": 3, "output": 1}, truncated=True)
    assert not answer.meta
    note = await note_of(memory, session, turn)
    assert note == {"id": answer.id, "usage": {"input": 3, "output": 1}, "truncated": True}


async def test_a_retry_with_other_usage_is_no_conflict(memory: Memory, session: Session) -> None:
    for usage in ({"input": 3}, {"input": 4}):
        async with session.turn("hello", id="q") as turn:
            answer = await turn.finish("hi", id="a", usage=usage)
            assert answer.id == "a"
    assert await texts(session) == ["hello", "hi"]
    assert (await note_of(memory, session, turn))["usage"] == {"input": 3}


async def test_a_second_finisher_does_not_change_what_is_kept_beside_the_answer(
    memory: Memory, session: Session
) -> None:
    """Both deliveries of a request are answered at once; the second to finish has other usage."""
    async with session.turn("hello", id="q") as one, session.turn("hello", id="q") as two:
        answer = await one.finish("hi", usage={"input": 3})
        assert await two.finish("hey", usage={"input": 4}, truncated=True) == answer
    note = await note_of(memory, session, one)
    assert note == {"id": answer.id, "usage": {"input": 3}, "truncated": False}


async def test_an_answer_under_anothers_id_is_a_conflict_and_can_be_mended(
    session: Session,
) -> None:
    async with session.turn("one") as turn:
        await turn.finish("first", id="a")
    async with session.turn("two", id="q") as turn:
        for id in ("a", "q"):
            with pytest.raises(Conflict):
                await turn.finish("second", id=id)
        assert (await turn.finish("second", id="b")).content == "second"
    assert await texts(session) == ["one", "first", "two", "second"]


# --- a request delivered twice ---


async def test_a_request_delivered_twice_goes_on_under_its_number(session: Session) -> None:
    async with session.turn("hello", id="q") as lost:
        assert lost.answer is None
    async with session.turn("something else") as other:
        await other.finish("fine")
    async with session.turn("hello", id="q") as turn:
        assert turn.user == lost.user
        assert turn.number == 1
        assert turn.answer is None
        answer = await turn.finish("hi")
    assert answer.turn == 1
    async with session.turn("hello", id="q") as again:
        assert again.answer == answer
    assert await texts(session) == ["hello", "something else", "fine", "hi"]


@pytest.mark.parametrize("details", [{}, {"id": "a"}, {"usage": {"n": 1}}, {"truncated": True}])
async def test_a_finished_request_returns_the_stored_answer(
    session: Session, details: dict[str, Any]
) -> None:
    async with session.turn("hello", id="q") as turn:
        answer = await turn.finish("hi", **details)
    async with session.turn("hello", id="q") as again:
        assert again.answer == answer
        assert await again.finish("other", id="b", usage={"n": 2}) == answer
    assert await texts(session) == ["hello", "hi"]


async def test_a_turn_without_an_id_can_be_gone_on_with_by_its_message(session: Session) -> None:
    async with session.turn("hello") as turn:
        answer = await turn.finish("hi")
    async with session.turn("hello", id=turn.user.id) as again:
        assert again.answer == answer


async def test_another_text_under_a_known_id_is_a_conflict(session: Session) -> None:
    async with session.turn("hello", id="q"):
        pass
    with pytest.raises(Conflict):
        async with session.turn("goodbye", id="q"):
            pass


@pytest.mark.parametrize("own_ids", [False, True])
async def test_deliveries_at_once_agree_on_one_answer(session: Session, own_ids: bool) -> None:
    async def deliver(n: int) -> Message:
        async with session.turn("hello", id="q") as turn:
            id = f"answer {n}" if own_ids and n % 2 else None
            return await turn.finish(f"answer {n}", id=id, usage={"n": n} if n % 3 else None)

    answers = await asyncio.gather(*(deliver(n) for n in range(10)))
    assert len({answer.id for answer in answers}) == 1
    assert await texts(session) == ["hello", answers[0].content]


async def test_a_death_between_note_and_answer_leaves_the_turn_open(
    memory: Memory, session: Session
) -> None:
    async with session.turn("hello", id="q") as lost:
        key = derived_id("finished", lost.user.id)
        note = {"id": "a", "usage": {"n": 1}, "truncated": True}
        await memory.store.put(Scope(session=session.key), FINISHED, key, note)
    async with session.turn("hello", id="q") as turn:
        assert turn.answer is None
        answer = await turn.finish("hi", usage={"n": 2})
    assert answer.id == "a"
    assert await note_of(memory, session, turn) == {
        "id": "a",
        "usage": {"n": 2},
        "truncated": False,
    }


# --- tools ---


async def test_a_results_id_comes_from_its_call(session: Session) -> None:
    async with session.turn("look") as turn:
        (call,) = await turn.append(calling("c1"))
        (found,) = await turn.append(result("c1"))
        assert found.id == derived_id("result", call.id, "c1")
        (later,) = await turn.append(calling("c1"))
        (again,) = await turn.append(result("c1", "found more"))
        assert again.id == derived_id("result", later.id, "c1")


async def test_a_call_and_its_results_can_be_appended_together(session: Session) -> None:
    with pytest.raises(ZeroDivisionError):
        await break_off(session, [calling("a", "b"), result("a"), result("b", "2")])
    _, call, found, _ = log = await session.messages()
    assert [m.content for m in log] == ["look", "", "found", "2"]
    assert found.id == derived_id("result", call.id, "a")


async def test_the_first_result_wins_without_conflict(session: Session) -> None:
    async with session.turn("look") as turn:
        await turn.append(calling("a", "b"))
        (first,) = await turn.append(result("a", "one"))
        assert await turn.append(result("a", "two")) == [first]
        kept, other = await turn.append(result("a", "three"), result("b", "new"))
        assert (kept, other.content) == (first, "new")
    assert await texts(session) == ["look", "", "one", "new"]


async def test_calls_that_share_an_id_have_results_of_their_own(session: Session) -> None:
    async with session.turn("look") as turn:
        await turn.append(calling("", ""))
        await turn.append(result("", "one"), result("", "two"))
        context = await turn.context()
    assert [m.content for m in context.messages] == ["look", "", "one", "two"]


async def test_another_body_under_a_given_id_stays_a_conflict(session: Session) -> None:
    async with session.turn("look") as turn:
        await turn.append(said("thinking", id="t"), calling("c"), result("c", "one"))
        with pytest.raises(Conflict):
            await turn.append(result("c", "two"), said("other", id="t"))
        with pytest.raises(Conflict):
            await turn.append(said("new"), said("other", id="t"))
    assert await texts(session) == ["look", "thinking", "", "one"]


async def test_an_exception_closes_open_calls(session: Session) -> None:
    mine = replace(result("c", "mine"), id="r")
    with pytest.raises(ZeroDivisionError):
        await break_off(session, [calling("a", "b", "c")], [result("b"), mine])
    log = await session.messages()
    assert [m.content for m in log] == ["look", "", "found", "mine", INTERRUPTED]
    assert (log[-1].tool_call_id, log[-1].name, log[-1].turn) == ("a", "look", 1)
    async with session.turn("and now?") as turn:
        shown = [m.content for m in (await turn.context()).messages]
        assert shown == ["look", "", INTERRUPTED, "found", "mine", "and now?"]


async def test_the_marker_of_an_interrupted_call_is_its_first_result(session: Session) -> None:
    with pytest.raises(ZeroDivisionError):
        await break_off(session, [calling("a", id="call")], id="q")
    async with session.turn("look", id="q") as turn:
        await turn.append(calling("a", id="call"))
        (marker,) = await turn.append(result("a", "too late"))
    assert marker.content == INTERRUPTED
    assert await texts(session) == ["look", "", INTERRUPTED]


async def test_a_turn_that_ends_well_is_given_no_marker(session: Session) -> None:
    async with session.turn("look") as turn:
        await turn.append(calling("a"))
        await turn.finish("never mind")
    assert await texts(session) == ["look", "", "never mind"]
    assert [m.content for m in (await session.context()).messages] == ["look", "never mind"]


async def test_a_cancelled_task_closes_its_calls(session: Session) -> None:
    waiting = asyncio.Event()

    async def take_turn() -> None:
        async with session.turn("look") as turn:
            await turn.append(calling("a"))
            waiting.set()
            await asyncio.get_running_loop().create_future()

    task = asyncio.create_task(take_turn())
    await waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await texts(session) == ["look", "", INTERRUPTED]


async def test_a_task_cancelled_anywhere_leaves_a_valid_context(memory: Memory) -> None:
    async def take_turn(session: Session) -> None:
        async with session.turn("look") as turn:
            await turn.append(calling("a", "b"))
            await turn.append(result("a"))
            await turn.append(result("b"))
            await turn.finish("done")

    for steps in range(25):
        session = await memory.session(f"s{steps}")
        task = asyncio.create_task(take_turn(session))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        async with session.turn("and now?") as turn:
            chat = (await turn.context()).to_openai_chat()["messages"]
        asked = [call["id"] for m in chat for call in m.get("tool_calls", ())]
        assert asked == [m["tool_call_id"] for m in chat if m["role"] == "tool"]


# --- a store that fails now and then ---


class Failing:
    """A store whose methods fail when they are told to."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.left: dict[str, int] = {}
        self.heals = False

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.store, name)
        if name not in self.left:
            return method

        async def counted(*args: Any, **kwargs: Any) -> Any:
            if self.left[name] == 0:
                self.left[name] -= self.heals
                raise Unavailable(f"{name} fails")
            self.left[name] -= 1
            return await method(*args, **kwargs)

        return counted


async def failing(memory: Memory) -> tuple[Failing, Memory]:
    store = Failing(memory.store)
    return store, Memory(cast(Store, store), Options(counter=memory.counter))


async def test_what_ended_a_turn_is_raised_though_its_calls_cannot_be_closed(
    memory: Memory, session: Session
) -> None:
    store, unsteady = await failing(memory)
    store.left["append"] = 2
    with pytest.raises(ZeroDivisionError) as caught:
        await break_off(await unsteady.session("s"), [calling("a")])
    assert caught.value.__notes__ == ["open tool calls could not be closed: append fails"]
    async with session.turn("and now?") as turn:
        assert [m.content for m in (await turn.context()).messages] == ["look", "and now?"]


async def test_a_result_that_was_not_stored_leaves_its_call_open(
    memory: Memory, session: Session
) -> None:
    store, unsteady = await failing(memory)
    store.left["append"], store.heals = 2, True
    with pytest.raises(Unavailable):
        await break_off(await unsteady.session("s"), [calling("a")], [result("a")])
    assert await texts(session) == ["look", "", INTERRUPTED]


class Held:
    """A store that holds an append back, before or after the store does it, until it may go on."""

    def __init__(self, store: Store, *, number: int, stores_first: bool = False) -> None:
        self.store = store
        self.number = number
        self.stores_first = stores_first
        self.reached, self.may_go_on, self.done = (asyncio.Event() for _ in range(3))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    async def append(self, *args: Any, **kwargs: Any) -> list[Message]:
        self.number -= 1
        if self.number:
            return await self.store.append(*args, **kwargs)
        try:
            stored = await self.store.append(*args, **kwargs) if self.stores_first else None
            self.reached.set()
            await self.may_go_on.wait()
            return stored or await self.store.append(*args, **kwargs)
        finally:
            self.done.set()


async def hold_a_turn(memory: Memory, held: Held) -> tuple[asyncio.Task[None], asyncio.Event]:
    """Return a task that takes a turn with an open call, and what is set once that is stored."""
    session = await Memory(cast(Store, held), Options(counter=memory.counter)).session("s")
    waiting = asyncio.Event()

    async def take_turn() -> None:
        async with session.turn("look") as turn:
            await turn.append(calling("a"))
            waiting.set()
            await asyncio.get_running_loop().create_future()

    return asyncio.create_task(take_turn()), waiting


async def test_a_task_cancelled_twice_closes_its_calls(memory: Memory, session: Session) -> None:
    held = Held(memory.store, number=3)
    task, waiting = await hold_a_turn(memory, held)
    await asyncio.wait_for(waiting.wait(), 30)
    task.cancel()
    await asyncio.wait_for(held.reached.wait(), 30)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    held.may_go_on.set()
    await asyncio.wait_for(held.done.wait(), 30)
    assert await texts(session) == ["look", "", INTERRUPTED]


@pytest.mark.parametrize("stores_first", [True, False])
async def test_a_call_whose_append_was_cancelled_is_closed(
    memory: Memory, session: Session, stores_first: bool
) -> None:
    held = Held(memory.store, number=2, stores_first=stores_first)
    task, _ = await hold_a_turn(memory, held)
    await asyncio.wait_for(held.reached.wait(), 30)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await texts(session) == ["look", "", INTERRUPTED]
    async with session.turn("and now?") as turn:
        shown = [m.content for m in (await turn.context()).messages]
    assert shown == ["look", "", INTERRUPTED, "and now?"]


# --- forks ---


async def talk(session: Session, turns: int) -> Sequence[Message]:
    for n in range(turns):
        async with session.turn(f"question {n}", id=f"q{n}") as turn:
            await turn.append(calling("c"), result("c"))
            await turn.finish(f"answer {n}", usage={"n": n})
    return await session.messages(limit=10_000)


def copied(messages: Sequence[Message]) -> list[Any]:
    return [(m.id, m.seq, m.turn, m.tokens, m.total, m.digest, m.created_at) for m in messages]


async def test_a_fork_is_a_copy_up_to_a_position(memory: Memory, session: Session) -> None:
    log = await talk(session, 3)
    await session.update(title="Trip", system_prompt="Be brief.")
    fork = await session.fork(6, id="f")
    assert copied(await fork.messages()) == copied(log[:6])
    info = fork.info
    assert (info.kind, info.title, info.system_prompt) == ("fork", "Trip", "Be brief.")
    assert info.forked_from
    assert (info.forked_from.session, info.forked_from.seq) == ("s", 6)
    await fork.add_message("user", "elsewhere")
    assert len(await session.messages()) == 12
    assert {i.id for i in await memory.list_sessions()} == {"s", "f"}


async def test_a_fork_without_a_position_has_all_and_a_new_id(session: Session) -> None:
    log = await talk(session, 2)
    fork = await session.fork()
    assert fork.id not in ("", "s")
    assert copied(await fork.messages()) == copied(log)


async def test_a_fork_of_a_fork_is_a_copy_too(memory: Memory, session: Session) -> None:
    log = await talk(session, 3)
    grandchild = await (await session.fork(8, id="f")).fork(4, id="g")
    assert copied(await grandchild.messages()) == copied(log[:4])
    await memory.delete_session("s")
    await memory.delete_session("f")
    assert len(await grandchild.messages()) == 4


async def test_a_fork_has_the_pins_marks_and_answers_made_before_it(session: Session) -> None:
    log = await talk(session, 3)
    await session.pin(log[0].id)
    await session.pin(log[8].id)
    await session.rewind(4)
    fork = await session.fork(8, id="f")
    assert [m.seq for m in (await fork.context()).messages] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert not await fork.unpin(log[8].id)
    assert await fork.unpin(log[0].id)
    async with fork.turn("question 1", id="q1") as turn:
        assert turn.answer
        assert turn.answer.content == "answer 1"
    async with fork.turn("question 2", id="q2") as turn:
        assert turn.answer is None
        assert (await turn.finish("another answer")).seq == 10


async def test_a_fork_from_before_a_clear_does_not_show_what_was_rewound(session: Session) -> None:
    await talk(session, 2)
    await session.rewind(4)
    await session.append(Message(role="user", content="again"))
    before = await session.fork(9, id="before")
    await session.append(Message(role="assistant", content="an answer"))
    await session.clear()
    await session.append(Message(role="user", content="anew"))
    await session.clear()
    await session.clear()
    after = await session.fork(9, id="after")
    for fork in (before, after, await after.fork(9, id="of the fork")):
        assert [m.seq for m in (await fork.context()).messages] == [1, 2, 3, 4, 9]
        assert (await fork.status()).visible_tokens == (await before.status()).visible_tokens
    assert [m.seq for m in (await (await session.fork(8, id="x")).context()).messages] == [
        1,
        2,
        3,
        4,
    ]


@given(
    st.lists(st.tuples(st.sampled_from(["say", "say", "rewind", "clear"]), st.integers(0, 30))),
    st.integers(0, 30),
)
def test_marks_up_to_a_position_are_those_that_a_log_had_when_it_ended_there(
    steps: list[tuple[str, int]], end: int
) -> None:
    marks, then, head = HiddenRanges(), HiddenRanges(), 0
    for kind, number in steps:
        if kind == "say":
            head += 1
            continue
        first = 1 if kind == "clear" else marks.next_visible(min(number, head) + 1)
        if first <= head:
            marks = HiddenRanges.from_json(marks.hide(first, head, 0, kind).to_json())
            then = marks if head <= end else then
    found = HiddenRanges.from_json(marks.until(end).to_json())
    assert [found.hides(n) for n in range(1, end + 1)] == [then.hides(n) for n in range(1, end + 1)]


async def test_a_fork_behind_the_end_or_under_a_taken_id_fails(
    memory: Memory, session: Session
) -> None:
    await talk(session, 1)
    with pytest.raises(MessageNotFound, match="position 5; the log ends at 4"):
        await session.fork(5)
    await memory.session("taken")
    with pytest.raises(SessionExists):
        await session.fork(id="taken")
    await session.fork(2, id="f")
    with pytest.raises(SessionExists):
        await session.fork(2, id="f")


@pytest.mark.parametrize("fault", ["load", "scan", "put", "put_session"])
async def test_a_fork_is_not_seen_before_it_is_whole_and_is_taken_up_again(
    memory: Memory, session: Session, fault: str
) -> None:
    await session.append(*(user(str(n)) for n in range(1100)))
    await talk(session, 2)
    log = await session.messages(limit=10_000)
    store, unsteady = await failing(memory)
    store.left = {fault: 0 if fault == "scan" else 1}
    with pytest.raises(Unavailable):
        await (await unsteady.session("s")).fork(id="f")
    with pytest.raises(SessionNotFound):
        await memory.get_session("f")
    assert [info.id for info in await memory.list_sessions()] == ["s"]
    with pytest.raises(SessionExists):
        await session.fork(3, id="f")
    await session.add_message("user", "came since")
    fork = await session.fork(id="f")
    assert copied(await fork.messages(limit=10_000)) == copied(log)
    assert len(await memory.store.scan(Scope(session=fork.key))) == 2
    assert (await memory.get_session("f")).key == fork.key


async def test_processes_that_fork_into_one_id_at_once_get_one_fork(session: Session) -> None:
    await session.append(*(user(str(n)) for n in range(1100)))
    forks = await asyncio.gather(
        *(session.fork(1000, id="f") for _ in range(3)), return_exceptions=True
    )
    made = [fork for fork in forks if isinstance(fork, Session)]
    assert made
    assert len({fork.key for fork in made}) == 1
    assert all(isinstance(f, Session | SessionExists) for f in forks)
    assert len(await made[0].messages(limit=2000)) == 1000


async def test_what_cannot_be_counted_is_refused_by_its_name(session: Session) -> None:
    for wrong in (
        Message(role="user", content=cast(Any, None)),
        Message(role="assistant", tool_calls=cast(Any, ["call"])),
        Message(role="assistant", native=cast(Any, {"wire": "anthropic"})),
        Message(role="user", attachments=cast(Any, [1])),
        cast(Any, "hello"),
    ):
        with pytest.raises(InvalidInput):
            await session.append(wrong)
    assert await session.messages() == []
