"""Tool results that live for turns: when a tool runs, what is recorded, what is remembered."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepthread import Memory, Message, Options, Scope, Session, ToolCall
from keepthread.context.tool_results import TOOL, CacheEntry, cached_results
from keepthread.errors import InvalidInput, SessionGone, Unavailable
from keepthread.memory.blobs.large_texts import LargeTexts
from keepthread.memory.blobs.repository import BlobRepository
from keepthread.memory.blobs.types import BlobSizes
from keepthread.memory.history import current_turn
from keepthread.memory.runtime import Runtime
from keepthread.memory.tool_cache import drop_ended
from keepthread.memory.tool_calls import INTERRUPTED, result_of, text_of, tool_request
from keepthread.models.tokens import Estimator
from keepthread.protocols import CachedResult, Store
from keepthread.stores import RamStore
from keepthread.stores.codec import encode
from keepthread.stores.kinds import LEASE
from keepthread.stores.validation import MAX_BYTES
from keepthread.testing import ManualClock
from keepthread.types import SessionKey

LIMA = {"city": "Lima"}


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
    return await memory.session("s", owner="ana")


class Weather:
    """A tool that counts how often it ran, and tells each time something else."""

    def __init__(self) -> None:
        self.runs = 0

    async def __call__(self, city: str) -> str:
        self.runs += 1
        told = f"{city}: {self.runs} °C"
        await asyncio.sleep(0)
        return told

    def fail(self, city: str) -> str:
        self.runs += 1
        raise ValueError("no such city")


@pytest.fixture
def weather() -> Weather:
    return Weather()


def calling(*ids: str, **fields: Any) -> Message:
    calls = [ToolCall(id=id, name="weather", arguments='{"city":"Lima"}') for id in ids]
    return Message(role="assistant", tool_calls=calls, **fields)


async def shown(session: Session) -> list[str]:
    """Return the log: texts, and for calls their tool."""
    log = await session.messages(limit=1000)
    return [m.tool_calls[0].name if m.tool_calls else m.content for m in log]


async def chat(session: Session, turns: int = 1) -> None:
    for _ in range(turns):
        async with session.turn("go on") as turn:
            await turn.finish("fine")


async def ask_weather(
    session: Session, weather: Weather, *, cache_turns: int = 2, **rest: Any
) -> str:
    """Take a turn in which the weather is asked."""
    author = rest.pop("author", None)
    async with session.turn("How is the weather?", author=author) as turn:
        told = await turn.tool("weather", LIMA, weather, cache_turns=cache_turns, **rest)
        await turn.finish(told)
    return told


async def records(memory: Memory, session: Session, kind: str = TOOL) -> list[Any]:
    return await memory.store.scan(Scope(session=session.key), kind)


# --- running and recording ---


async def test_a_call_and_its_result_are_recorded_together(
    session: Session, weather: Weather
) -> None:
    async with session.turn("How is the weather?") as turn:
        assert await turn.tool("weather", LIMA, weather) == "Lima: 1 °C"
        _, call, result = await session.messages()
        assert (call.role, call.source, call.turn) == ("assistant", "tool:weather", 1)
        assert [(c.name, c.arguments) for c in call.tool_calls] == [("weather", '{"city":"Lima"}')]
        assert (result.role, result.name, result.content) == ("tool", "weather", "Lima: 1 °C")
        assert result.tool_call_id == call.tool_calls[0].id
        messages = (await turn.context()).messages
        assert [m.content for m in messages] == ["How is the weather?", "", "Lima: 1 °C"]


async def test_without_cache_turns_each_call_runs(session: Session, weather: Weather) -> None:
    async with session.turn("How is the weather?") as turn:
        assert await turn.tool("weather", LIMA, weather) == "Lima: 1 °C"
        assert await turn.tool("weather", LIMA, weather) == "Lima: 2 °C"
    assert await session.cached_tools() == []


async def test_a_plain_function_will_do(session: Session) -> None:
    async with session.turn("add") as turn:
        assert await turn.tool("add", {"a": 1, "b": 2}, lambda a, b: a + b) == "3"
        assert await turn.tool("none", {}, lambda: None) == "null"
        assert await turn.tool("list", {}, lambda: ["é", {"b": 1, "a": 0.5}]) == (
            '["é",{"b":1,"a":0.5}]'
        )


async def test_a_result_answers_a_call_that_the_model_made(
    session: Session, weather: Weather
) -> None:
    async with session.turn("How is the weather?") as turn:
        await turn.append(calling("a", "b"))
        assert await turn.tool("weather", LIMA, weather, call_id="b") == "Lima: 1 °C"
        assert await turn.tool("weather", LIMA, weather, call_id="a") == "Lima: 2 °C"
        context = await turn.context()
    assert [m.content for m in context.messages[2:]] == ["Lima: 2 °C", "Lima: 1 °C"]


async def test_a_call_that_the_turn_does_not_have_is_refused_before_anything_runs(
    session: Session, weather: Weather
) -> None:
    async with session.turn("How is the weather?") as turn:
        with pytest.raises(InvalidInput, match="this turn has no call 'x'; append it first"):
            await turn.tool("weather", LIMA, weather, call_id="x")
    assert weather.runs == 0


async def test_the_first_result_of_a_call_stays_and_is_returned(
    session: Session, weather: Weather
) -> None:
    async with session.turn("How is the weather?") as turn:
        await turn.append(calling("c"))
        assert await turn.tool("weather", LIMA, weather, call_id="c", cache_turns=2) == "Lima: 1 °C"
        other = {"city": "Quito"}
        assert (
            await turn.tool("weather", other, weather, call_id="c", cache_turns=2) == "Lima: 1 °C"
        )
        assert [tool.arguments for tool in await session.cached_tools()] == [LIMA]
    assert await shown(session) == ["How is the weather?", "weather", "Lima: 1 °C"]


async def test_calls_that_share_an_id_are_answered_one_by_one_though_at_once(
    session: Session, weather: Weather
) -> None:
    async with session.turn("How is the weather?") as turn:
        await turn.append(calling("", ""))
        told = await asyncio.gather(
            turn.tool("weather", LIMA, weather, call_id=""),
            turn.tool("weather", {"city": "Quito"}, weather, call_id=""),
        )
        assert sorted(told) == ["Lima: 1 °C", "Quito: 2 °C"]
        assert len((await turn.context()).messages) == 4


async def test_a_failure_is_recorded_and_raised_and_never_remembered(
    session: Session, weather: Weather
) -> None:
    async with session.turn("How is the weather?") as turn:
        with pytest.raises(ValueError, match="no such city"):
            await turn.tool("weather", LIMA, weather.fail, cache_turns=3)
        await turn.append(calling("c"))
        with pytest.raises(ValueError, match="no such city"):
            await turn.tool("weather", LIMA, weather.fail, cache_turns=3, call_id="c")
        assert weather.runs == 2
        assert await session.cached_tools() == []
        failed = "(failed: ValueError: no such city)"
        assert await shown(session) == [turn.user.content, "weather", failed, "weather", failed]
        told = await turn.tool("weather", LIMA, weather, cache_turns=3, call_id="c")
        assert told == failed
        assert await session.cached_tools() == []


async def test_what_is_no_json_is_a_failure(session: Session) -> None:
    async with session.turn("go") as turn:
        for value in (object(), {1: 2}, float("nan"), (1, 2), b"x"):
            with pytest.raises(InvalidInput):
                await turn.tool("odd", {}, lambda value=value: value, cache_turns=2)
    assert all(text.startswith("(failed: InvalidInput: ") for text in (await shown(session))[2::2])


async def test_an_error_that_cannot_say_what_it_is_is_recorded_by_its_name(
    session: Session,
) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    def fail(error: Exception) -> None:
        raise error

    async with session.turn("go") as turn:
        for error in (Mute(), ValueError()):
            with pytest.raises(type(error)):
                await turn.tool("odd", {}, lambda error=error: fail(error))
    assert (await shown(session))[2::2] == ["(failed: Mute)", "(failed: ValueError)"]


async def test_a_failure_that_cannot_be_recorded_is_raised_all_the_same(
    memory: Memory, session: Session, weather: Weather
) -> None:
    class Full:
        full = False

        def __getattr__(self, name: str) -> Any:
            if self.full and name == "append":
                raise Unavailable("the disk is full")
            return getattr(memory.store, name)

    store = Full()
    full = await Memory(cast(Store, store), Options(counter=memory.counter)).session(
        "s", owner="ana"
    )
    async with full.turn("How is the weather?") as turn:
        store.full = True
        with pytest.raises(ValueError, match="no such city") as caught:
            await turn.tool("weather", LIMA, weather.fail)
    assert caught.value.__notes__ == ["the failure could not be recorded: the disk is full"]


async def test_a_cancelled_tool_leaves_its_call_to_the_end_of_the_turn(session: Session) -> None:
    begun = asyncio.Event()

    async def forever() -> None:
        begun.set()
        await asyncio.get_running_loop().create_future()

    async def take_turn() -> None:
        async with session.turn("wait") as turn:
            await turn.append(calling("c"))
            await turn.tool("forever", {}, forever, call_id="c", cache_turns=2)

    task = asyncio.create_task(take_turn())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await shown(session) == ["wait", "weather", INTERRUPTED]
    async with session.turn("again") as turn:
        assert await turn.tool("forever", {}, lambda: "at once", cache_turns=2) == "at once"


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 256, None, 7])
async def test_a_name_that_is_none_is_refused(session: Session, name: Any) -> None:
    async with session.turn("go") as turn:
        with pytest.raises(InvalidInput, match="a tool's name"):
            await turn.tool(name, {}, str)
    for method in (session.cached_tool(name, {}), session.cache_tool(name, {}, "x", 1)):
        with pytest.raises(InvalidInput, match="a tool's name"):
            await method


@pytest.mark.parametrize(
    "args", [None, [], "x", {1: 2}, {"a": object()}, {"a": float("inf")}, {"a": "x" * 300_000}]
)
async def test_arguments_that_are_no_plain_json_are_refused(session: Session, args: Any) -> None:
    async with session.turn("go") as turn:
        with pytest.raises(InvalidInput, match="a tool's arguments"):
            await turn.tool("t", args, str)
    for method in (session.cached_tool("t", args), session.cache_tool("t", args, "x", 1)):
        with pytest.raises(InvalidInput, match="a tool's arguments"):
            await method
    assert await shown(session) == ["go"]


async def test_what_is_no_cache_turns_or_author_is_refused_before_anything_is_recorded(
    session: Session, weather: Weather
) -> None:
    async with session.turn("go") as turn:
        with pytest.raises(InvalidInput, match="cache_turns"):
            await turn.tool("weather", LIMA, weather, cache_turns=-1)
    with pytest.raises(InvalidInput, match="cache_turns"):
        await session.cache_tool("weather", LIMA, "x", cast(int, True))
    for author in ("", 7):
        with pytest.raises(InvalidInput, match="author"):
            await session.cache_tool("weather", LIMA, "x", 1, author=cast(str, author))
        with pytest.raises(InvalidInput, match="author"):
            await session.cached_tool("weather", LIMA, author=cast(str, author))
    assert weather.runs == 0
    assert await shown(session) == ["go"]


# --- large results ---


@pytest.mark.parametrize("letter", ["a", "é", "中", "😀", "\ud800", '"', "\0"])
async def test_a_result_over_a_mebibyte_is_shown_as_head_and_tail(
    session: Session, letter: str
) -> None:
    text = "head" + letter * MAX_BYTES + "tail"
    async with session.turn("go") as turn:
        told = await turn.tool("large", {}, lambda: text, cache_turns=2)
        assert await turn.tool("large", {}, lambda: "another", cache_turns=2) == told
        await turn.append(calling("c" * 1000))
        again = await turn.tool("large", {}, lambda: text, cache_turns=2, call_id="c" * 1000)
        await turn.finish("done")
    assert told.startswith(f"head{letter}")
    assert told.endswith(f"{letter}tail")
    assert "bytes, the middle was left out; `session.full_text` returns all …]" in told
    (first, *_) = [m for m in await session.messages() if m.role == "tool"]
    assert await session.full_text(first) == text
    assert MAX_BYTES * 0.99 < len(told.encode("utf-8", "surrogatepass")) <= MAX_BYTES
    assert again.endswith(f"{letter}tail")


@given(text=st.text(), times=st.integers(0, 40_000), call_id=st.text(max_size=50))
def test_a_cut_result_can_always_be_stored(text: str, times: int, call_id: str) -> None:
    message = as_stored(text * times, call_id)
    body = encode(message, "id")
    assert len(body.content or b"") + len(body.extra or b"") <= MAX_BYTES
    if len(text.encode("utf-8", "surrogatepass")) * times < MAX_BYTES // 2:
        assert message.content == text * times


def test_a_result_of_exactly_what_fits_stays_whole() -> None:
    beside = len(encode(as_stored("", "c"), "").extra or b"")
    whole = "x" * (MAX_BYTES - beside)
    assert as_stored(whole, "c").content == whole
    assert "left out" in as_stored(whole + "x", "c").content


def as_stored(text: str, call_id: str) -> Message:
    store, sizes = RamStore(), BlobSizes()
    blobs = BlobRepository(store, "ann", sizes=sizes, clock=time.time)
    kept = LargeTexts(store, SessionKey("1"), blobs, lambda: "id")
    return kept.shortened(result_of(tool_request("t", {}), text, call_id))


# --- what is remembered, and for how long ---


async def test_a_remembered_result_is_not_recorded_again(
    session: Session, weather: Weather
) -> None:
    async with session.turn("How is the weather?") as turn:
        assert await turn.tool("weather", LIMA, weather, cache_turns=1) == "Lima: 1 °C"
        assert await turn.tool("weather", LIMA, weather, cache_turns=1) == "Lima: 1 °C"
    assert await shown(session) == ["How is the weather?", "weather", "Lima: 1 °C"]
    assert weather.runs == 1


@pytest.mark.parametrize("cache_turns", [1, 2, 3])
async def test_a_result_serves_for_so_many_turns(
    session: Session, weather: Weather, cache_turns: int
) -> None:
    await ask_weather(session, weather, cache_turns=cache_turns)
    await chat(session, cache_turns - 1)
    await ask_weather(session, weather, cache_turns=cache_turns)
    assert weather.runs == 2


async def test_each_use_lets_a_result_live_anew(session: Session, weather: Weather) -> None:
    for _ in range(5):
        await ask_weather(session, weather, cache_turns=2)
    assert weather.runs == 1
    await chat(session)
    await ask_weather(session, weather, cache_turns=2)
    assert weather.runs == 2


async def test_the_cache_turns_is_that_of_the_result_and_not_of_who_asks(
    session: Session, weather: Weather
) -> None:
    await ask_weather(session, weather, cache_turns=1)
    async with session.turn("Again?") as turn:
        await turn.tool("weather", LIMA, weather, cache_turns=2)
        await turn.tool("weather", LIMA, weather, cache_turns=9)
        (tool,) = await session.cached_tools()
    assert (weather.runs, tool.left, tool.cache_turns) == (2, 2, 2)


async def test_a_turn_that_is_late_shortens_no_life(session: Session, weather: Weather) -> None:
    async with session.turn("slow") as slow:
        await chat(session, 3)
        await ask_weather(session, weather, cache_turns=3)
        await slow.tool("weather", LIMA, weather, cache_turns=3)
    assert [tool.left for tool in await session.cached_tools()] == [2]
    assert weather.runs == 1


async def test_tools_and_arguments_are_told_apart(session: Session) -> None:
    runs = 0

    def run(**args: Any) -> int:
        nonlocal runs
        runs += 1
        return runs

    kinds: list[tuple[str, dict[str, Any]]] = [
        ("t", {}),
        ("u", {}),
        ("t", {"a": 1}),
        ("t", {"a": 1.0}),
        ("t", {"a": True}),
        ("t", {"a": "1"}),
        ("t", {"a": [1]}),
        ("t", {"a": None}),
        ("t", {"a": "\ud83d\ude00"}),
        ("t", {"a": "😀"}),
    ]
    async with session.turn("go") as turn:
        for n, (name, args) in enumerate(kinds, 1):
            assert await turn.tool(name, args, run, cache_turns=1) == str(n)
        await turn.tool("t", {"b": 1, "a": {"d": 1, "c": 2}}, run, cache_turns=1)
        before = runs
        await turn.tool("t", {"a": {"c": 2, "d": 1}, "b": 1}, run, cache_turns=1)
    assert runs == before == len(kinds) + 1


async def test_two_people_never_share_a_result(
    memory: Memory, session: Session, weather: Weather
) -> None:
    assert await ask_weather(session, weather, cache_turns=9) == "Lima: 1 °C"
    assert await ask_weather(session, weather, cache_turns=9, author="bob") == "Lima: 2 °C"
    assert (
        await ask_weather(session, weather, cache_turns=9, author="ana") == "Lima: 1 °C"
    )  # who owns it
    assert await ask_weather(session, weather, cache_turns=9, author="bob") == "Lima: 2 °C"
    assert [tool.author for tool in await session.cached_tools()] == ["ana", "bob"]
    assert await session.cached_tool("weather", LIMA, author="cleo") is None
    other = await memory.session("other", owner="ana")
    assert await ask_weather(other, weather, cache_turns=9) == "Lima: 3 °C"
    elsewhere = await memory.tenant("other").session("s", owner="ana")
    assert await ask_weather(elsewhere, weather) == "Lima: 4 °C"


async def test_a_tool_with_effects_always_runs(session: Session, weather: Weather) -> None:
    async with session.turn("go") as turn:
        await turn.tool("weather", LIMA, weather, cache_turns=2)
        assert (
            await turn.tool("weather", LIMA, weather, cache_turns=2, side_effects=True)
            == "Lima: 2 °C"
        )
        assert await turn.tool("weather", LIMA, weather, cache_turns=2) == "Lima: 1 °C"


async def test_a_remembered_result_answers_a_call_and_then_stands_for_itself(
    memory: Memory, session: Session, weather: Weather
) -> None:
    await ask_weather(session, weather)
    async with session.turn("And now?") as turn:
        await turn.append(calling("c"))
        told = await turn.tool("weather", LIMA, weather, cache_turns=2, call_id="c")
        assert told == "Lima: 1 °C"
        await turn.finish("the same")
    log = await session.messages()
    assert (log[6].content, log[6].tool_call_id) == ("Lima: 1 °C", "c")
    (tool,) = await session.cached_tools()
    assert (tool.call_id, tool.left, tool.result) == ("c", 1, "Lima: 1 °C")
    (record,) = await records(memory, session)
    assert [span.first for span in record.made_of] == [2, 3, 6, 7]
    async with session.turn("Once more?") as turn:
        await turn.append(calling("d"))
        await turn.tool("weather", LIMA, weather, cache_turns=2, call_id="d")
    (record,) = await records(memory, session)
    assert [span.first for span in record.made_of] == [2, 3, 10, 11]


@pytest.mark.parametrize("source", [2, 3, 6, 7])
async def test_a_result_does_not_serve_once_anything_it_is_made_of_is_erased(
    memory: Memory, session: Session, weather: Weather, source: int
) -> None:
    await ask_weather(session, weather)
    async with session.turn("And now?") as turn:
        await turn.append(calling("c"))
        await turn.tool("weather", LIMA, weather, cache_turns=2, call_id="c")
        await memory.store.erase(session.key, [source])
        assert await session.cached_tools() == []
        assert await session.cached_tool("weather", LIMA) is None
        assert await turn.tool("weather", LIMA, weather, cache_turns=2) == "Lima: 2 °C"


async def test_what_is_erased_while_it_is_being_remembered_leaves_nothing_on_the_shelf(
    memory: Memory, session: Session, weather: Weather
) -> None:
    class Quick:
        """Erases a result as soon as it is stored."""

        def __getattr__(self, name: str) -> Any:
            return getattr(memory.store, name)

        async def append(self, key: SessionKey, messages: Any, **rest: Any) -> list[Message]:
            stored = await memory.store.append(key, messages, **rest)
            await memory.store.erase(key, [m.seq for m in stored if m.role == "tool"])
            return stored

    quick = await Memory(cast(Store, Quick()), Options(counter=memory.counter)).session(
        "s", owner="ana"
    )
    async with quick.turn("go") as turn:
        assert await turn.tool("weather", LIMA, weather, cache_turns=2) == "Lima: 1 °C"
    assert await records(memory, session) == []


async def test_what_is_erased_right_before_it_is_put_leaves_nothing_on_the_shelf(
    memory: Memory, session: Session, weather: Weather
) -> None:
    class Late:
        """Erases a result after it was looked at, when its entry is about to be put."""

        def __getattr__(self, name: str) -> Any:
            return getattr(memory.store, name)

        async def put(self, scope: Scope, kind: str, *rest: Any, **options: Any) -> int:
            if kind == TOOL:
                log = await memory.store.read(session.key)
                live = [m.seq for m in log if m.role == "tool" and m.state == "live"]
                await memory.store.erase(session.key, live)
            return await memory.store.put(scope, kind, *rest, **options)

    late = await Memory(cast(Store, Late()), Options(counter=memory.counter)).session(
        "s", owner="ana"
    )
    async with late.turn("go") as turn:
        assert await turn.tool("weather", LIMA, weather, cache_turns=2) == "Lima: 1 °C"
    assert await records(memory, session) == []


@pytest.mark.parametrize("hiding", ["clear", "rewind"])
async def test_a_hidden_result_does_not_serve(
    session: Session, weather: Weather, hiding: str
) -> None:
    await chat(session)
    await ask_weather(session, weather, cache_turns=5)
    await (session.clear() if hiding == "clear" else session.rewind(2))
    assert await session.cached_tools() == []
    assert await session.cached_tool("weather", LIMA) is None
    assert await ask_weather(session, weather, cache_turns=5) == "Lima: 2 °C"
    assert await ask_weather(session, weather, cache_turns=5) == "Lima: 2 °C"


async def test_a_session_deleted_meanwhile_says_so(
    memory: Memory, session: Session, weather: Weather
) -> None:
    async with session.turn("go") as turn:
        await memory.delete_session("s", owner="ana")
        with pytest.raises(SessionGone):
            await turn.tool("weather", LIMA, weather, cache_turns=2)
    assert weather.runs == 0


async def test_ended_results_are_dropped(memory: Memory, session: Session) -> None:
    await session.cache_tool("long", {}, "x", 4)
    await session.cache_tool("short", {}, "y", 1)
    for turn, left in [(0, 2), (1, 1), (3, 1), (4, 0)]:
        assert (await drop_ended(memory.store, session.key, turn)).left == left
        assert len(await records(memory, session)) == left


async def test_a_result_used_while_ended_ones_are_dropped_stays(
    memory: Memory, session: Session
) -> None:
    class Late:
        """Lets a result be used between the look at the shelf and the drop."""

        def __getattr__(self, name: str) -> Any:
            return getattr(memory.store, name)

        async def scan(self, scope: Scope, kind: str, **keys: Any) -> Any:
            found = await memory.store.scan(scope, kind, **keys)
            assert await session.cached_tool("t", {}) == "x"
            return found

    await session.cache_tool("t", {}, "x", 2)
    await chat(session)
    assert (await drop_ended(cast(Store, Late()), session.key, 2)).left == 1
    assert [tool.left for tool in await session.cached_tools()] == [2]


# --- programs that run tools themselves ---


async def test_a_result_can_be_brought_and_looked_up(session: Session, clock: ManualClock) -> None:
    async with session.turn("go") as turn:
        clock.advance(5)
        await session.cache_tool("screen", {"id": 7}, {"title": "Main"}, 2)
        assert await session.cached_tool("screen", {"id": 7}) == '{"title":"Main"}'
        assert await session.cached_tool("screen", {"id": 8}) is None
        assert await turn.tool("screen", {"id": 7}, str, cache_turns=1) == '{"title":"Main"}'
        (tool,) = await session.cached_tools()
        assert (tool.name, tool.arguments, tool.left, tool.cache_turns) == (
            "screen",
            {"id": 7},
            2,
            2,
        )
        assert (tool.at, tool.author) == (clock.now, "ana")
        assert tool.call_id == (await session.messages())[1].tool_calls[0].id
    assert await shown(session) == ["go", "screen", '{"title":"Main"}']


async def test_looking_up_lets_a_result_live_anew(session: Session) -> None:
    await session.cache_tool("t", {}, "x", 2)
    await chat(session, 1)
    assert [tool.left for tool in await session.cached_tools()] == [1]
    assert await session.cached_tool("t", {}) == "x"
    assert [tool.left for tool in await session.cached_tools()] == [2]
    await chat(session, 2)
    assert await session.cached_tools() == []
    assert await session.cached_tool("t", {}) is None


async def test_a_result_brought_without_cache_turns_is_only_recorded(session: Session) -> None:
    await session.cache_tool("t", {}, "x", 0)
    assert await session.cached_tool("t", {}) is None
    assert await shown(session) == ["t", "x"]


async def test_a_result_brought_again_takes_the_place_of_the_other(session: Session) -> None:
    await session.cache_tool("t", {}, "old", 2)
    await session.cache_tool("u", {}, "other", 1)
    await session.cache_tool("t", {}, "new", 1)
    assert await session.cached_tool("t", {}) == "new"
    assert [(t.name, t.cache_turns) for t in await session.cached_tools()] == [("u", 1), ("t", 1)]


# --- which turn it is ---


async def test_an_turn_is_current_until_it_is_answered(memory: Memory, session: Session) -> None:
    async def now() -> int:
        return await current_turn(memory.store, session.key)

    assert await now() == 1
    await session.cache_tool("t", {}, "before all", 1)
    await session.add_message("system", "a note")
    assert await now() == 1
    async with session.turn("one") as turn:
        assert await now() == 1
        await turn.append(Message(role="assistant", content="let me see"), calling("c"))
        assert await now() == 1
        await turn.tool("weather", LIMA, lambda city: city, call_id="c")
        assert await now() == 1
        await turn.finish("done")
    assert await now() == 2
    for n in range(30):
        await session.cache_tool("t", {"n": n}, "between", 1)
        await session.add_message("system", "a note")
    assert await now() == 2
    async with session.turn("two") as two, session.turn("three") as three:
        await two.finish("done")
        assert await now() == 3
        await three.finish("done")
    assert await now() == 4
    answer = (await session.messages(limit=1000))[-1]
    await memory.store.erase(session.key, [answer.seq])
    assert await now() == 4


async def test_between_two_turns_what_ended_with_the_first_is_dead(session: Session) -> None:
    await session.cache_tool("t", {}, "x", 1)
    await chat(session)
    await session.cache_tool("u", {}, "y", 1)
    assert [tool.name for tool in await session.cached_tools()] == ["u"]
    assert await session.cached_tool("t", {}) is None


# --- at once ---


async def test_tasks_at_once_run_a_tool_once(
    memory: Memory, session: Session, weather: Weather
) -> None:
    async with session.turn("go") as turn:
        calls = (turn.tool("weather", LIMA, weather, cache_turns=1) for _ in range(16))
        assert set(await asyncio.gather(*calls)) == {"Lima: 1 °C"}
    assert weather.runs == 1
    assert await records(memory, session, LEASE) == []


async def test_turns_at_once_run_a_tool_once(session: Session, weather: Weather) -> None:
    told = await asyncio.gather(*(ask_weather(session, weather, cache_turns=20) for _ in range(16)))
    assert set(told) == {"Lima: 1 °C"}


async def test_who_looks_up_a_result_at_once_finds_it(session: Session) -> None:
    await session.cache_tool("t", {}, "x", 2)
    await chat(session)
    told = await asyncio.gather(*(session.cached_tool("t", {}) for _ in range(8)))
    assert told == ["x"] * 8
    assert [tool.left for tool in await session.cached_tools()] == [2]


async def test_when_the_one_who_runs_it_fails_the_next_runs_it(session: Session) -> None:
    runs = 0

    async def run() -> str:
        nonlocal runs
        runs += 1
        await asyncio.sleep(0)
        if runs < 3:
            raise ValueError(runs)
        return "found"

    async with session.turn("go") as turn:
        calls = (turn.tool("t", {}, run, cache_turns=1) for _ in range(6))
        told = await asyncio.gather(*calls, return_exceptions=True)
    assert [str(each) for each in told] == ["1", "2", "found", "found", "found", "found"]
    assert runs == 3


async def other_process(memory: Memory, sleep: Any = asyncio.sleep, **time: Any) -> Session:
    """Return the session as another process has it: with locks and time of its own."""
    session = await memory.session("s", owner="ana")
    thread = session._conversation
    runtime = Runtime(sleep=sleep, **time)
    return Session(thread._replace(runtime=runtime), session.info)


async def test_another_process_waits_and_takes_the_remembered_result(
    memory: Memory, session: Session, weather: Weather
) -> None:
    begun, go_on, waits = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def slow(city: str) -> str:
        begun.set()
        await go_on.wait()
        return await weather(city)

    async def sleep(seconds: float) -> None:
        waits.set()
        await asyncio.sleep(0 if seconds < 1 else seconds)

    other = await other_process(memory, sleep)
    async with session.turn("one") as one, other.turn("two") as two:
        first = asyncio.create_task(one.tool("weather", LIMA, slow, cache_turns=5))
        await begun.wait()
        second = asyncio.create_task(two.tool("weather", LIMA, weather, cache_turns=5))
        await waits.wait()
        assert not second.done()
        go_on.set()
        assert await first == await second == "Lima: 1 °C"


async def test_what_a_dead_process_was_running_is_run_by_another(
    memory: Memory, session: Session, weather: Weather
) -> None:
    now = 0.0

    async def sleep(seconds: float) -> None:
        nonlocal now
        if seconds > 1:  # until the lease is to be renewed
            await asyncio.get_running_loop().create_future()
        now += seconds
        await asyncio.sleep(0)

    key = f"{TOOL} {session._conversation.cache.key(tool_request('weather', LIMA), None)}"
    await session._conversation.cache.leases.put(Scope(session=session.key), key, 0)
    other = await other_process(memory, sleep, monotonic=lambda: now)
    assert await ask_weather(other, weather) == "Lima: 1 °C"
    assert 30 <= now < 31
    assert await records(memory, session, LEASE) == []


# --- forks and delegates ---


async def test_a_fork_goes_on_with_copies_of_its_own(session: Session, weather: Weather) -> None:
    await ask_weather(session, weather, cache_turns=3)
    fork = await session.fork(id="f")
    assert await ask_weather(fork, weather, cache_turns=3) == "Lima: 1 °C"
    assert [tool.left for tool in await fork.cached_tools()] == [2]
    assert [tool.left for tool in await session.cached_tools()] == [2]
    await chat(session, 3)
    assert await ask_weather(session, weather, cache_turns=3) == "Lima: 2 °C"
    assert await ask_weather(fork, weather, cache_turns=3) == "Lima: 1 °C"


async def test_a_fork_of_the_past_has_no_result_of_later_and_none_that_lives_too_long(
    memory: Memory, session: Session, weather: Weather
) -> None:
    await ask_weather(session, weather, cache_turns=2)  # 1 to 4
    await session.cache_tool("later", {}, "x", 9)
    for _ in range(6):
        await ask_weather(session, weather, cache_turns=2)
    scope = Scope(session=session.key)
    await memory.store.put(scope, LEASE, "somebody", {"until": 0.0})
    fork = await session.fork(4, id="f")
    assert [(tool.name, tool.left) for tool in await fork.cached_tools()] == [("weather", 2)]
    assert await records(memory, fork, LEASE) == []


async def test_a_delegate_uses_the_results_of_its_parent(
    memory: Memory, session: Session, weather: Weather
) -> None:
    await chat(session, 4)
    child = await memory.session("child", owner="ana")
    child._conversation = child._conversation._replace(tools=session.key)
    async with session.turn("go") as turn:
        await turn.tool("weather", LIMA, weather, cache_turns=2)
        assert await ask_weather(child, weather) == "Lima: 1 °C"
        other = {"city": "Quito"}
        async with child.turn("and Quito?") as task:
            assert await task.tool("weather", other, weather, cache_turns=2) == "Quito: 2 °C"
        assert await turn.tool("weather", other, weather, cache_turns=2) == "Quito: 2 °C"
        both = await session.cached_tools()
        assert [(tool.arguments, tool.left) for tool in both] == [(LIMA, 2), (other, 2)]
        assert await child.cached_tools() == both
        await child.rewind(0)
        assert await child.cached_tools() == both[:1]
        assert await turn.tool("weather", other, weather, cache_turns=2) == "Quito: 3 °C"
    await memory.delete_session("child", owner="ana")
    assert len(await session.cached_tools()) == 2


async def test_a_result_in_the_log_of_a_deleted_delegate_does_not_serve(
    memory: Memory, session: Session, weather: Weather
) -> None:
    child = await memory.session("child", owner="ana")
    child._conversation = child._conversation._replace(tools=session.key)
    await ask_weather(child, weather, cache_turns=5)
    assert len(await session.cached_tools()) == 1
    await memory.delete_session("child", owner="ana")
    assert await session.cached_tools() == []
    assert await ask_weather(session, weather) == "Lima: 2 °C"


@pytest.mark.parametrize("erased", ["the call", "the result"])
async def test_a_result_does_not_serve_once_its_call_or_itself_is_erased_in_a_childs_log(
    memory: Memory, session: Session, weather: Weather, erased: str
) -> None:
    child = await memory.session("child", owner="ana")
    child._conversation = child._conversation._replace(tools=session.key)
    await ask_weather(child, weather, cache_turns=5)
    (record,) = await records(memory, session)
    (call, result) = (span.first for span in record.made_of)
    await memory.store.erase(child.key, [call if erased == "the call" else result])
    await memory.store.put(record.scope, TOOL, record.key, record.value, made_of=record.made_of)
    assert await session.cached_tools() == []
    assert await session.cached_tool("weather", LIMA) is None
    assert await ask_weather(session, weather) == "Lima: 2 °C"


# --- how live results are shown ---


async def live(memory: Memory, session: Session, turn: int) -> list[CachedResult]:
    sources = await session.messages(limit=1000)
    return cached_results(await records(memory, session), sources, turn, "ana", Estimator())


async def test_a_live_result_is_shown_as_a_call_and_what_came_of_it(
    memory: Memory, session: Session, weather: Weather
) -> None:
    await session.cache_tool("screen", {"id": 7, "a": "é"}, "Main", 3)
    await ask_weather(session, weather, cache_turns=2)
    first, second = await live(memory, session, 2)
    assert (first.left, first.cache_turns) == (2, 3)
    assert (second.left, second.cache_turns) == (1, 2)
    (call,) = first.call.tool_calls
    assert (call.name, call.arguments) == ("screen", '{"a":"é","id":7}')
    assert (first.call.role, first.call.seq, first.call.origin) == ("assistant", 0, "assistant")
    assert (first.result.content, first.result.seq) == ("Main", 2)
    assert first.result.tool_call_id == call.id
    counter = Estimator()
    for message in (first.call, first.result):
        assert (message.tokens, message.counter) == (counter.count(message), counter.name)
    assert await live(memory, session, 2) == [first, second]
    assert [each.result.content for each in await live(memory, session, 3)] == ["Main"]
    assert await live(memory, session, 4) == []


async def test_a_live_result_is_counted_by_the_counter_that_is_asked(
    memory: Memory, session: Session
) -> None:
    class Dear:
        name = "dear"

        def count(self, message: Message) -> int:
            return 1000

    await session.cache_tool("t", {}, "x", 3)
    log = await session.messages()
    (shown,) = cached_results(await records(memory, session), log, 1, "ana", Dear())
    counts = [(m.tokens, m.counter) for m in (shown.call, shown.result)]
    assert counts == [(1000, "dear"), (1000, "dear")]


async def test_what_cannot_be_seen_is_not_shown(
    memory: Memory, session: Session, weather: Weather
) -> None:
    await ask_weather(session, weather, cache_turns=9)
    shelf, log = await records(memory, session), await session.messages()
    counter = Estimator()
    assert len(cached_results(shelf, log, 1, "ana", counter)) == 1
    assert cached_results(shelf, log[:2], 1, "ana", counter) == []
    erased = [replace(m, state="erased", content="") if m.role == "tool" else m for m in log]
    assert cached_results(shelf, erased, 1, "ana", counter) == []
    others = [replace(m, id="another") for m in log]
    assert cached_results(shelf, others, 1, "ana", counter) == []
    foreign = [replace(record, scope=Scope(session=SessionKey("9"))) for record in shelf]
    assert cached_results(foreign, log, 1, "ana", counter) == []
    assert cached_results(shelf, log, 1, "ben", counter) == []
    assert (
        cached_results([replace(record, kind="pin") for record in shelf], log, 1, "ana", counter)
        == []
    )


@pytest.mark.parametrize("value", [None, [], {}, {"name": 1}, "x"])
async def test_a_record_that_is_no_entry_is_passed_over(
    memory: Memory, session: Session, weather: Weather, value: Any
) -> None:
    scope = Scope(session=session.key)
    key = session._conversation.cache.key(tool_request("weather", LIMA), None)
    await memory.store.put(scope, TOOL, key, value)
    await memory.store.put(scope, TOOL, "another", value)
    assert await session.cached_tools() == []
    assert await live(memory, session, 1) == []
    assert await ask_weather(session, weather) == "Lima: 1 °C"
    assert await ask_weather(session, weather) == "Lima: 1 °C"
    assert (await drop_ended(memory.store, session.key, 1)).left == 1


@pytest.mark.parametrize("arguments", ["", "[1]", "[" * 100_000])
async def test_arguments_that_an_import_brought_need_not_be_any(
    memory: Memory, session: Session, weather: Weather, arguments: str
) -> None:
    await ask_weather(session, weather)
    (record,) = await records(memory, session)
    strange = cast(CacheEntry, CacheEntry.of(record))._replace(arguments=arguments)
    await memory.store.put(record.scope, TOOL, "strange", strange.to_json(), made_of=record.made_of)
    assert [tool.arguments for tool in await session.cached_tools()] == [LIMA, {}]


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists))
def test_a_value_comes_back_from_its_text(value: Any) -> None:
    text = text_of(value)
    assert text == value if isinstance(value, str) else json.loads(text) == value
