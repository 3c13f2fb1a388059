"""A turn that one program begins and another continues: its calls, its sources, its one answer."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from keepthread import Memory, Message, Scope, Session, ToolCall, sync
from keepthread.errors import InvalidInput, MessageNotFound
from keepthread.models.tokens import Estimator
from keepthread.stores.kinds import SHOWN

if TYPE_CHECKING:
    from servers.postgres import PostgresServer
    from servers.redis import RedisServer

CALLS = Message(
    role="assistant",
    tool_calls=[ToolCall(id="c1", name="weather"), ToolCall(id="c2", name="weather")],
)
Again = Callable[[], Awaitable[Session]]


@pytest.fixture(params=["ram", "sqlite", "postgres", "redis"])
async def again(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[Callable[[], Awaitable[Session]]]:
    """Give a function that opens the same session in another memory, as another program would."""
    opened: list[Memory] = []
    url = f"sqlite:///{tmp_path}/chat.db"
    if request.param == "postgres":
        postgres: PostgresServer = request.getfixturevalue("postgres")
        url = postgres.empty()
    elif request.param == "redis":
        server: RedisServer = request.getfixturevalue("redis_server")
        server.ask("FLUSHALL")
        url = f"redis://127.0.0.1:{server.port}"
    store = (await Memory.open("ram://")).store if request.param == "ram" else None

    async def session() -> Session:
        if store is not None:
            return await Memory(store).session("s", system_prompt="Be brief.")
        opened.append(await Memory.open(url, counter=Estimator()))
        return await opened[-1].session("s", system_prompt="Be brief.")

    yield session
    for memory in opened:
        await memory.close()


async def begun(session: Session, *, looks: bool = True) -> None:
    """Say something, begin a turn with two calls, and leave it."""
    async with session.turn("Hello", id="m0") as turn:
        await turn.finish("Hi.")
    async with session.turn("Oslo and Rome?", id="m1") as turn:
        await turn.append(CALLS)
        if looks:
            await turn.context(budget=1000)
        await turn.suspend()


async def test_another_program_answers_the_calls_and_finishes_the_turn(again: Again) -> None:
    await begun(await again())
    session = await again()
    async with session.resume_turn("m1") as turn:
        assert (turn.user.content, turn.number, turn.answer) == ("Oslo and Rome?", 2, None)
        assert await turn.tool("weather", {}, lambda: "9 °C", call_id="c1") == "9 °C"
        await turn.append(Message(role="tool", tool_call_id="c2", content="18 °C"))
        await turn.finish("9 and 18 °C.")
    log = await session.messages()
    assert [(m.role, m.turn) for m in log[2:]] == [
        *[("user", 2), ("assistant", 2), ("tool", 2), ("tool", 2), ("assistant", 2)],
    ]
    shown = (await session.context(budget=1000)).messages
    assert [m.content for m in shown[-3:]] == ["9 °C", "18 °C", "9 and 18 °C."]


async def test_the_answer_says_what_the_context_of_the_first_program_showed(again: Again) -> None:
    await begun(await again())
    session = await again()
    async with session.resume_turn("m1") as turn:
        answer = await turn.finish("I do not know.")
    assert answer.meta["written_from"] == [[1, 3]]
    found = await session._store.scan(Scope(session=session.key), SHOWN)
    assert found == []


async def test_a_result_that_came_before_lowers_the_trust_of_the_answer(again: Again) -> None:
    for id in ("m1", "m2"):
        async with (await again()).turn("Oslo?", id=id) as turn:
            await turn.context(budget=1000)
            await turn.suspend()
    killed = (await again()).resume_turn("m1")
    await killed.__aenter__()
    await killed.tool("weather", {}, lambda: "9 °C")
    answers: list[Message] = []
    for id in ("m1", "m2"):
        async with (await again()).resume_turn(id) as turn:
            answers.append(await turn.finish("9 °C."))
    assert [answer.meta["lowest_origin"] for answer in answers] == ["tool", "assistant"]


async def test_what_is_stored_of_a_suspended_turn_has_no_text(again: Again) -> None:
    session = await again()
    await begun(session)
    (record,) = await session._store.scan(Scope(session=session.key), SHOWN)
    said = json.dumps(record.value)
    assert not any(word in said for word in ("Oslo", "Hello", "Hi", "brief"))


async def test_a_turn_that_was_not_suspended_can_be_finished_too(again: Again) -> None:
    session = await again()
    async with session.turn("Oslo?", id="m1") as turn:
        await turn.context(budget=1000)
    assert await session._store.scan(Scope(session=session.key), SHOWN) == []
    async with session.resume_turn("m1") as turn:
        assert "written_from" not in (await turn.finish("I do not know.")).meta


async def test_a_turn_without_a_context_leaves_nothing_and_can_be_finished(again: Again) -> None:
    session = await again()
    await begun(session, looks=False)
    assert await session._store.scan(Scope(session=session.key), SHOWN) == []
    async with session.resume_turn("m1") as turn:
        assert "written_from" not in (await turn.finish("I do not know.")).meta


async def test_of_two_that_resume_one_answers(again: Again) -> None:
    await begun(await again())

    async def finish(text: str) -> Message:
        async with (await again()).resume_turn("m1") as turn:
            return await turn.finish(text)

    one, two = await asyncio.gather(finish("One."), finish("Two."))
    assert one == two
    async with (await again()).resume_turn("m1") as turn:
        assert turn.answer == one
        assert await turn.finish("Three.") == one


async def test_a_turn_that_is_left_by_an_error_can_be_resumed(again: Again) -> None:
    session = await again()

    async def fail() -> None:
        async with session.turn("Oslo?", id="m1") as turn:
            await turn.context(budget=1000)
            await turn.suspend()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    async with (await again()).resume_turn("m1") as turn:
        assert (await turn.finish("9 °C.")).meta["written_from"] == [[1, 1]]


async def test_only_a_user_message_that_is_there_can_be_resumed(again: Again) -> None:
    session = await again()
    (said,) = await session.append(Message(role="assistant", content="Hi.", id="a"))
    for id in ("missing", said.id):
        with pytest.raises(MessageNotFound, match=f"session 's' has no user message '{id}'"):
            async with session.resume_turn(id):
                pass


async def test_a_message_that_was_erased_cannot_be_resumed() -> None:
    async with Memory.open("ram://") as memory:
        session = await memory.session("s")
        await begun(session)
        await memory.forget(session="s", message="m1")
        assert await session._store.scan(Scope(session=session.key), SHOWN) == []
        with pytest.raises(MessageNotFound):
            async with session.resume_turn("m1"):
                pass


async def test_a_delegated_task_is_resumed_by_its_parent() -> None:
    async with Memory.open("ram://") as memory:
        session = await memory.session("s")
        async with session.turn("Oslo?") as turn, turn.delegate("Look it up.") as child:
            inner = await memory.get_session(child._conversation.id)
            with pytest.raises(InvalidInput, match="delegate it again"):
                inner.resume_turn(child.user.id)
            with pytest.raises(InvalidInput, match="cannot be suspended"):
                await child.suspend()


def test_it_works_without_async(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/chat.db"
    with sync.Memory.open(url) as memory, memory.session("s").turn("Oslo?", id="m1") as turn:
        turn.append(CALLS)
        turn.suspend()
    with sync.Memory.open(url) as memory, memory.session("s").resume_turn("m1") as turn:
        assert turn.tool("weather", {}, lambda: "9 °C", call_id="c1") == "9 °C"
        turn.finish("9 °C.")
        assert turn.answer is not None
