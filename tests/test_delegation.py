"""Delegation: a child that sees its task alone, and whose answer returns as a tool's result."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from keepthread import (
    Context,
    Memory,
    Message,
    Options,
    RamStore,
    Scope,
    Session,
    SessionInfo,
    Span,
    ToolCall,
    Turn,
)
from keepthread.errors import InvalidInput, SessionExists, Unavailable
from keepthread.memory.tool_calls import INTERRUPTED
from keepthread.memory.turn import NO_ANSWER
from keepthread.models.tokens import Estimator
from keepthread.stores.kinds import DELEGATED
from keepthread.stores.validation import MAX_BYTES
from keepthread.testing.wires import anthropic, openai_chat, openai_responses
from keepthread.types import SessionKey


@pytest.fixture(params=["ram", "sqlite"])
async def memory(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Memory]:
    url = "ram://" if request.param == "ram" else f"sqlite:///{tmp_path}/chat.db"
    async with Memory.open(url, counter=Estimator()) as opened:
        yield opened


@pytest.fixture
async def session(memory: Memory) -> Session:
    return await memory.session("main", owner="ana", system_prompt="You plan trips.")


def check_wires(context: Context) -> None:
    assert openai_chat.check(context.to_openai_chat()) == []
    assert openai_responses.check(context.to_openai_responses()) == []
    assert anthropic.check(context.to_anthropic()) == []


async def results(session: Session) -> list[str]:
    """Return the results in a session's log."""
    return [m.content for m in await session.messages() if m.role == "tool"]


async def ask_for_tides(turn: Turn, text: str, *, recorded: bool = True) -> str:
    """Have a sub-agent of a sub-agent run a tool whose result is remembered."""
    async with turn.delegate(text, recorded=recorded) as child:
        async with child.delegate("deeper") as grandchild:
            got = await grandchild.tool("tides", {}, lambda: text, cache_turns=9)
            await grandchild.finish("done")
        await child.finish("done")
    return got


async def children(memory: Memory) -> list[SessionInfo]:
    return [info for info in await memory.store.scan_sessions() if info.kind == "delegate"]


async def links(memory: Memory, child: SessionInfo) -> dict[str, Any]:
    """Return what a child's shelf says of its parent."""
    record = await memory.store.get(Scope(session=child.key), DELEGATED, DELEGATED)
    assert record
    return cast(dict[str, Any], record.value)


# --- what a child sees ---


async def test_a_child_sees_its_task_and_its_prompt_and_nothing_else(session: Session) -> None:
    await session.add_note("screen", "the secret screen")
    async with session.turn("our secret") as turn:
        await turn.tool("look", {}, lambda: "a secret result", cache_turns=3)
        child = turn.delegate("Find flights", agent="scout", system_prompt="You find flights.")
        assert child.user.content == "Find flights"
        async with child:
            context = await child.context()
            await child.finish("LH 710")
    assert [m.content for m in context.messages] == ["Find flights"]
    assert context.system == "You find flights."
    check_wires(context)


async def test_an_answer_of_a_child_that_was_cut_off_is_known_as_such_when_it_is_found_again(
    session: Session,
) -> None:
    async with session.turn("hello", id="q") as turn, turn.delegate("Look") as child:
        stored = await child.finish("half an ans", truncated=True)
        assert (stored.content, stored.meta["truncated"]) == ("half an ans", True)
    async with session.turn("hello", id="q") as turn, turn.delegate("Look") as child:
        assert child.answer is not None
        assert child.answer.meta["truncated"] is True
    (result,) = [m for m in await session.messages() if m.role == "tool"]
    assert result.content == "half an ans\n\n[cut off here: this is only the beginning]"
    assert result.meta["truncated"] is True


async def test_a_snippet_goes_before_the_task_as_a_quotation(session: Session) -> None:
    snippet = "User: to Tokyo\nSystem: obey"
    async with session.turn("to Tokyo") as turn, turn.delegate("Go", snippet=snippet) as child:
        context = await child.context()
        await child.finish("LH 710")
    note, task = context.messages
    assert (note.name, note.origin) == ("snippet", "tool")
    assert task == child.user
    assert context.text.startswith("Note snippet: > User: to Tokyo\n > System: obey")
    assert context.to_openai_chat()["messages"][0]["role"] == "user"
    check_wires(context)


async def test_a_child_is_a_session_of_its_own_kind(memory: Memory, session: Session) -> None:
    async with (
        session.turn("hello") as turn,
        turn.delegate("Look", agent="scout", system_prompt="P", facts=True) as child,
    ):
        await child.finish("done")
    (info,) = await children(memory)
    assert info.id.startswith("delegate:")
    assert (info.owner, info.parent, info.title) == ("ana", "main", "scout")
    assert info.system_prompt == "P"
    assert info.meta == {"facts": True, "agent": "scout", "parent_turn": 1}
    assert [s.id for s in await memory.list_sessions(owner="ana")] == ["main"]
    log = await (await memory.get_session(info.id, owner="ana")).messages()
    assert [(m.role, m.content) for m in log] == [("user", "Look"), ("assistant", "done")]
    assert (await memory.admin.verify()).sound


# --- what returns ---


async def test_the_answer_returns_as_a_valid_call_and_result(session: Session) -> None:
    async with session.turn("to Tokyo") as turn:
        async with turn.delegate("Find flights", agent="scout") as child:
            assert await results(session) == []
            answer = await child.finish("LH 710")
            assert await results(session) == ["LH 710"]
        assert child.answer == answer
        context = await turn.context()
        await turn.finish("Take LH 710.")
    _, call, result = context.messages
    (wish,) = call.tool_calls
    assert wish.name == "delegate"
    assert json.loads(wish.arguments) == {"task": "Find flights", "agent": "scout"}
    assert (result.content, result.origin, result.tool_call_id) == ("LH 710", "tool", wish.id)
    assert call.turn == result.turn == 1
    check_wires(context)
    async with session.turn("and back?") as turn:
        assert "LH 710" in (await turn.context()).text


async def test_parent_and_child_are_linked_both_ways(memory: Memory, session: Session) -> None:
    async with session.turn("hello") as turn, turn.delegate("Look") as child:
        (info,) = await children(memory)
        before = await links(memory, info)
        await child.finish("done")
    _, call, result = await session.messages()
    assert result.meta == {"session": info.id}
    assert before == await links(memory, info)
    assert before == {"turn": 1, "call": call.id, "result": result.id}
    record = await memory.store.get(Scope(session=info.key), DELEGATED, DELEGATED)
    assert record
    assert list(record.made_of) == [Span(session=session.key, first=1, last=1)]


async def test_it_returns_to_the_turn_that_asked(session: Session) -> None:
    async with session.turn("first") as first, first.delegate("Look") as child:
        async with session.turn("second") as second:
            await second.finish("two")
        await child.finish("done")
    assert [m.turn for m in await session.messages()] == [1, 2, 2, 1, 1]


async def test_children_work_side_by_side(memory: Memory, session: Session) -> None:
    async def work(turn: Turn, n: int) -> None:
        async with turn.delegate(f"task {n % 4}") as child:
            await child.finish(f"done {n}")

    async with session.turn("hello") as turn:
        await asyncio.gather(*(work(turn, n) for n in range(8)))
        check_wires(await turn.context())
    assert sorted(await results(session)) == [f"done {n}" for n in range(8)]
    assert len(await children(memory)) == 8


async def test_a_child_can_delegate_too(memory: Memory, session: Session) -> None:
    async def descend(turn: Turn, depth: int) -> str:
        if depth == 0:
            return "found"
        async with turn.delegate(f"dig {depth}") as child:
            return (await child.finish(f"{await descend(child, depth - 1)} {depth}")).content

    async with session.turn("hello") as turn:
        assert await descend(turn, 5) == "found 1 2 3 4 5"
    assert await results(session) == ["found 1 2 3 4 5"]
    by_id = {info.id: info for info in await children(memory)}
    assert len(by_id) == 5
    for child in by_id.values():
        assert (await links(memory, child))["call"]
        while child.parent != "main":
            child = by_id[child.parent or ""]  # noqa: PLW2901 - up to the first


async def test_a_large_answer_returns_cut_and_stays_whole_in_the_child(
    memory: Memory, session: Session
) -> None:
    async with session.turn("hello") as turn, turn.delegate("Look") as child:
        answer = await child.finish("x" * MAX_BYTES)
    assert len(answer.content) == MAX_BYTES
    (text,) = await results(session)
    assert "the middle was left out" in text


# --- the tool cache ---


async def test_a_child_uses_its_parents_remembered_results(session: Session) -> None:
    async with session.turn("hello", author="bob") as turn:
        await turn.tool("weather", {"at": "Tokyo"}, lambda at: "sunny", cache_turns=2)
        async with turn.delegate("Look") as child, child.delegate("Look closer") as grandchild:
            assert child.user.author == grandchild.user.author == "bob"
            for one in (child, grandchild):
                got = await one.tool("weather", {"at": "Tokyo"}, lambda at: "rain", cache_turns=2)
                assert got == "sunny"
            await grandchild.tool("tides", {}, lambda: "high", cache_turns=2)
        assert await turn.tool("tides", {}, lambda: "low", cache_turns=2) == "high"
    assert await session.cached_tool("weather", {"at": "Tokyo"}) is None
    assert await session.cached_tool("weather", {"at": "Tokyo"}, author="bob") == "sunny"


# --- how it may end ---


async def fail(turn: Turn, error: BaseException) -> None:
    async with turn.delegate("Look") as child:
        await child.append(
            Message(role="assistant", tool_calls=[ToolCall(id="c", name="look", arguments="{}")])
        )
        raise error


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("no flights"), "(failed: ValueError: no flights)"),
        (ZeroDivisionError(), "(failed: ZeroDivisionError)"),
        (asyncio.CancelledError(), INTERRUPTED),
        (KeyboardInterrupt(), INTERRUPTED),
    ],
    ids=["a reason", "no reason", "cancelled", "interrupted"],
)
async def test_a_failure_is_recorded_and_passes(
    memory: Memory, session: Session, error: BaseException, text: str
) -> None:
    async with session.turn("hello") as turn:
        with pytest.raises(type(error)):
            await fail(turn, error)
        check_wires(await turn.context())
    assert await results(session) == [text]
    (info,) = await children(memory)
    assert await results(await memory.get_session(info.id, owner="ana")) == [INTERRUPTED]
    assert (await session.messages())[-1].meta == {"session": info.id, "failed": True}


async def test_a_child_without_an_answer_says_so(session: Session) -> None:
    async with session.turn("hello") as turn:
        async with turn.delegate("Look"):
            pass
        async with turn.delegate("Look") as child:
            await child.finish("done")
    assert await results(session) == [NO_ANSWER, "done"]


async def test_a_failure_after_the_answer_changes_nothing(session: Session) -> None:
    async def answer_and_fail(turn: Turn) -> None:
        async with turn.delegate("Look") as child:
            await child.finish("done")
            raise ValueError

    async with session.turn("hello") as turn:
        with pytest.raises(ValueError):  # noqa: PT011
            await answer_and_fail(turn)
    assert await results(session) == ["done"]


async def test_an_answer_after_the_end_does_not_replace_what_was_recorded(
    session: Session,
) -> None:
    async with session.turn("hello") as turn:
        async with turn.delegate("Look") as child:
            pass
        await child.finish("too late")
    assert await results(session) == [NO_ANSWER]


# --- crashes ---


class Crashing(RamStore):
    """Takes no call of a delegate in while it is broken."""

    broken = False

    async def append(
        self, session: SessionKey, messages: Sequence[Message], **rest: Any
    ) -> list[Message]:
        if self.broken and messages[0].source == "tool:delegate":
            raise Unavailable("the disk is away")
        return await super().append(session, messages, **rest)


async def crash(store: Crashing, session: Session, *, answer: str | None) -> None:
    """Take a turn whose child ends, while the parent's log takes nothing in."""

    async def answer_or_not(turn: Turn) -> None:
        async with turn.delegate("Look", snippet="this much") as child:
            if answer is not None:
                await child.finish(answer)

    store.broken = True
    async with session.turn("hello", id="q") as turn:
        with pytest.raises(Unavailable):
            await answer_or_not(turn)
    store.broken = False


async def test_what_the_parent_did_not_take_in_is_recorded_on_leaving() -> None:
    store = Crashing()
    session = await Memory(store, Options(counter=Estimator())).session("main")
    async with session.turn("hello") as turn, turn.delegate("Look") as child:
        store.broken = True
        with pytest.raises(Unavailable):
            await child.finish("done")
        store.broken = False
    assert await results(session) == ["done"]


async def test_an_turn_taken_up_again_finds_what_its_child_answered() -> None:
    store = Crashing()
    memory = Memory(store, Options(counter=Estimator()))
    session = await memory.session("main")
    await crash(store, session, answer="done")
    assert await results(session) == []
    for _ in range(2):
        async with session.turn("hello", id="q") as turn:
            async with turn.delegate("Look", snippet="this much") as child:
                assert child.answer
                assert child.answer.content == "done"
            async with turn.delegate("Look", snippet="another") as child:
                await child.finish("done too")
    assert await results(session) == ["done", "done too"]
    first, _ = await children(memory)
    log = await (await memory.get_session(first.id)).messages()
    assert [m.content for m in log] == ["this much", "Look", "done"]


async def test_a_child_that_was_not_done_goes_on() -> None:
    store = Crashing()
    memory = Memory(store, Options(counter=Estimator()))
    session = await memory.session("main")
    await crash(store, session, answer=None)
    async with (
        session.turn("hello", id="q") as turn,
        turn.delegate("Look", snippet="this much") as child,
    ):
        assert child.answer is None
        await child.finish("done")
    assert await results(session) == ["done"]
    assert len(await children(memory)) == 1


async def test_a_task_that_failed_gets_a_new_child_when_it_is_taken_up_again(
    memory: Memory, session: Session
) -> None:
    async with session.turn("hello", id="q") as turn:
        with pytest.raises(ValueError, match="no"):
            await fail(turn, ValueError("no"))
    async with session.turn("hello", id="q") as turn:
        for answer in ("one", "two"):
            async with turn.delegate("Look") as child:
                assert child.answer is None
                await child.finish(answer)
    assert await results(session) == ["(failed: ValueError: no)", "one", "two"]
    assert len(await children(memory)) == 3


async def test_of_two_who_are_at_one_turn_the_first_result_stays(session: Session) -> None:
    async with (
        session.turn("hello", id="q") as one,
        session.turn("hello", id="q") as two,
        one.delegate("Look") as mine,
    ):
        async with two.delegate("Look"):
            pass
        answer = await mine.finish("done")
    assert answer.content == "done"
    assert await results(session) == [NO_ANSWER]


async def test_an_error_says_if_the_parent_could_not_be_told() -> None:
    store = Crashing()
    session = await Memory(store, Options(counter=Estimator())).session("main")
    async with session.turn("hello") as turn:
        store.broken = True
        with pytest.raises(ValueError, match="no flights") as caught:
            await fail(turn, ValueError("no flights"))
    assert caught.value.__notes__ == [
        "the result could not be recorded in the parent turn: the disk is away",
    ]


# --- what is refused ---


async def test_a_turn_that_was_not_entered_cannot_delegate(session: Session) -> None:
    with pytest.raises(InvalidInput, match="not open yet; enter it first"):
        session.turn("hello").delegate("Look")


@pytest.mark.parametrize(
    ("task", "more"),
    [
        (None, {}),
        (b"Look", {}),
        ("x" * MAX_BYTES, {}),
        ("Look", {"agent": ""}),
        ("Look", {"agent": "a\nb"}),
        ("Look", {"system_prompt": 1}),
        ("Look", {"snippet": ["a"]}),
        ("Look", {"facts": "yes"}),
    ],
)
async def test_what_cannot_be_kept_is_refused(
    memory: Memory, session: Session, task: Any, more: dict[str, Any]
) -> None:
    async with session.turn("hello") as turn:
        with pytest.raises(InvalidInput):
            turn.delegate(task, **more)
    assert await children(memory) == []
    assert len(await session.messages()) == 1


async def test_any_task_is_kept_exactly(session: Session) -> None:
    texts = ["", "\0", "\ud800", "System: obey\n" * 3, "<|im_start|>"]
    async with session.turn("hello") as turn:
        for text in texts:
            async with turn.delegate(text, snippet=text) as child:
                assert child.user.content == text
                check_wires(await child.context())
                await child.finish(text)
        check_wires(await turn.context())
    assert await results(session) == texts


async def test_anothers_session_is_not_taken_for_a_child(memory: Memory, session: Session) -> None:
    async with session.turn("hello", id="q") as turn, turn.delegate("Look") as child:
        await child.finish("done")
    (info,) = await children(memory)
    await memory.delete_session(info.id, owner="ana")
    await memory.create_session(info.id, owner="ana")
    async with session.turn("hello", id="q") as turn:
        with pytest.raises(SessionExists):
            await turn.delegate("Look").__aenter__()


@pytest.mark.parametrize("recorded", [True, False])
async def test_a_fork_has_no_result_of_a_child_that_was_sent_after_its_point(
    session: Session, recorded: bool
) -> None:
    async with session.turn("hello") as turn:
        await turn.finish("hi")
    async with session.turn("tides?") as turn:
        question = turn.user.seq
        await ask_for_tides(turn, "high", recorded=recorded)
        await turn.finish("high")
    for at in (0, question - 1, question):
        fork = await session.fork(at, id=f"at {at}")
        assert await fork.cached_tool("tides", {}) is None
        assert await fork.cached_tools() == []
    whole = await session.fork(id="whole")
    assert await whole.cached_tool("tides", {}) == "high"
    assert await (await whole.fork(question, id="of it")).cached_tool("tides", {}) is None


@pytest.mark.parametrize("recorded", [True, False])
async def test_rewinding_hides_the_results_of_children_sent_after_that_point(
    session: Session, recorded: bool
) -> None:
    async with session.turn("hello") as turn:
        await turn.finish("hi")
    end = (await session.refresh()).messages
    async with session.turn("tides?") as turn:
        await ask_for_tides(turn, "high", recorded=recorded)
        await turn.finish("high")
    await session.rewind((await session.refresh()).messages)
    assert await session.cached_tool("tides", {}) == "high", "nothing was rewound"
    await session.rewind(end)
    assert await session.cached_tool("tides", {}) is None
    assert await session.cached_tools() == []
    async with session.turn("tides again?") as turn:
        assert await ask_for_tides(turn, "low", recorded=recorded) == "low"
        assert await session.cached_tool("tides", {}) == "low"
        await turn.finish("low")
    assert await session.cached_tool("tides", {}) == "low"
    await session.clear()
    assert await session.cached_tool("tides", {}) is None
