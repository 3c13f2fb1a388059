"""An agent: the loop of tools around a model, with memory, limits, events and streaming."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest

from keepthread import Memory
from keepthread.errors import InvalidInput, ModelCut, ModelRefused
from keepthread.memory.session import Session
from keepthread.models.tokens import Estimator
from keepthread.orchestrator import Agent, AnswerPiece, Event, Limits, Runnable, Used
from keepthread.testing.model import Line, ScriptedModel
from keepthread.types import Message, Native, Reply, Tool, ToolCall, Usage


def calling(name: str, *, id: str = "c1", said: str = "", **arguments: Any) -> Reply:
    call = ToolCall(id=id, name=name, arguments=json.dumps(arguments))
    return Reply(said, tool_calls=(call,), usage=Usage(input=10, output=5))


class Weather:
    """A tool that notes for which cities it was run."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, city: str) -> str:
        self.asked.append(city)
        return f"{city}: 25 degrees"


async def agent(session: Session, *lines: Line, **options: Any) -> tuple[Agent, list[Event]]:
    events: list[Event] = []
    tools = [Runnable(Tool("weather"), options.pop("tool", Weather()), cache_turns=3)]
    return Agent(ScriptedModel(lines), tools, session, on_event=events.append, **options), events


async def session_in(memory: Memory) -> Session:
    return await memory.session("s", owner="ana", system_prompt="Be brief.")


async def test_115_119_an_agent_uses_tools_and_remembers() -> None:
    async with Memory.open("ram://", counter=Estimator()) as memory:
        session, weather = await session_in(memory), Weather()
        it, events = await agent(
            session,
            calling("weather", city="Oslo"),
            Reply("It is 25 degrees in Oslo.", usage=Usage(input=20, output=7)),
            "As in Rome.",
            tool=weather,
        )
        answer = await it.run("How is Oslo?")
        assert answer.text == "It is 25 degrees in Oslo."
        assert answer.usage == Usage(input=30, output=12)
        assert weather.asked == ["Oslo"]
        assert [m.role for m in await session.messages()] == [
            *("user", "assistant", "tool", "assistant")
        ]
        assert list(dict.fromkeys(type(event) for event in events)) == [Used, AnswerPiece]
        assert (await it.run("And there?")).text == "As in Rome."
        model = it.model
        assert isinstance(model, ScriptedModel)
        first, _, third = model.calls
        assert first.system == "Be brief."
        assert [tool.name for tool in first.tools] == ["weather", "remember", "search_memory"]
        assert "How is Oslo?" in [m.content for m in third.messages]
        assert (await session.messages())[-1].meta["written_from"]


async def test_an_answer_is_given_again_for_the_same_message() -> None:
    async with Memory.open("ram://", counter=Estimator()) as memory:
        it, _ = await agent(await session_in(memory), "Once.")
        assert (await it.run("Hello", id="m1")).text == "Once."
        again = await it.run("Hello", id="m1")
        assert (again.text, again.usage) == ("Once.", None)


async def test_an_agent_streams_what_it_says() -> None:
    async with Memory.open("ram://", counter=Estimator()) as memory:
        it, events = await agent(
            await session_in(memory), calling("weather", city="Rome", said="Let me see."), "Warm."
        )
        assert "".join([piece async for piece in it.stream("How is Rome?")]) == "Let me see.Warm."
        assert [each.tool for each in events if isinstance(each, Used)] == ["weather"]


async def test_232_an_agent_remembers_by_being_asked() -> None:
    async with Memory.open("ram://", counter=Estimator()) as memory:
        session = await session_in(memory)
        it, events = await agent(
            session, calling("remember", text="The user is vegetarian.", value="vegetarian"), "Yes."
        )
        await it.run("Remember that I'm vegetarian.")
        assert [event.failed for event in events if isinstance(event, Used)] == [""]
        (fact,) = await memory.for_owner("ana").facts.list()
        assert "vegetarian" in fact.text
        other = await memory.session("next", owner="ana")
        async with other.turn("What can I eat?") as turn:
            assert "vegetarian" in (await turn.context()).text
        plain, _ = await agent(session, "Hello.", memory_tools=False)
        await plain.run("Hello")
        assert isinstance(plain.model, ScriptedModel)
        assert [tool.name for tool in plain.model.calls[0].tools] == ["weather"]


async def test_rounds_end_and_then_the_model_must_answer() -> None:
    async with Memory.open("ram://", counter=Estimator()) as memory:
        session, limits = await session_in(memory), Limits(rounds=2)
        calls = [calling("weather", id=f"c{n}", city=f"city {n}") for n in range(2)]
        it, _ = await agent(session, *calls, "Enough.", limits=limits)
        assert (await it.run("Go")).text == "Enough."
        assert isinstance(it.model, ScriptedModel)
        assert [len(call.tools) for call in it.model.calls] == [3, 3, 0]
        stubborn, _ = await agent(session, *calls, calling("weather", city="x"), limits=limits)
        with pytest.raises(ModelRefused, match="no text"):
            await stubborn.run("Go on")


async def test_calls_after_the_last_round_are_in_no_later_prompt() -> None:
    async with Memory.open("ram://", counter=Estimator()) as memory:
        session = await session_in(memory)
        native = Native("openai-responses", ({"type": "function_call", "call_id": "c9"},))
        last = calling("weather", id="c9", said="Rain, I think.", city="x")._replace(native=native)
        it, _ = await agent(session, last, limits=Limits(rounds=0))
        assert (await it.run("Go")).text == "Rain, I think."
        stored = (await session.messages())[-1]
        assert (stored.tool_calls, stored.native) == ((), None)


async def test_memory_tools_with_wrong_arguments_are_answered_once() -> None:
    async with Memory.open("ram://", counter=Estimator()) as memory:
        session = await session_in(memory)
        wrong = ({"text": 5}, {"text": "x" * 30_000}, {}, {"text": "ok", "more": [1]})
        calls = [calling("remember", id=f"c{n}", said="", **each) for n, each in enumerate(wrong)]
        it, events = await agent(session, *calls, "Sorry.", limits=Limits(rounds=9))
        assert (await it.run("Remember this.")).text == "Sorry."
        results = [m.tool_call_id for m in await session.messages() if m.role == "tool"]
        assert results == [f"c{n}" for n in range(len(wrong))]
        assert [e.remembered for e in events if isinstance(e, Used)] == [False] * len(wrong)


async def test_a_stream_that_is_left_ends_its_turn_first() -> None:
    class Slow(ScriptedModel):
        async def stream(self, *_: Any, **__: Any) -> AsyncIterator[str | Reply]:
            yield "It is "
            await asyncio.sleep(60)

    async with Memory.open("ram://", counter=Estimator()) as memory:
        session = await session_in(memory)
        before = asyncio.all_tasks()
        async with aclosing(Agent(Slow(), [], session).stream("How is it?")) as pieces:
            assert await anext(pieces) == "It is "
        assert asyncio.all_tasks() == before
        assert [m.content for m in await session.messages()] == ["How is it?"]


async def test_a_tool_that_fails_or_is_unknown_is_told_to_the_model() -> None:
    def broken(city: str) -> str:
        raise ValueError(f"no station in {city}")

    async with Memory.open("ram://", counter=Estimator()) as memory:
        it, events = await agent(
            await session_in(memory),
            calling("weather", city="Oslo"),
            calling("fly", id="c2"),
            "It failed.",
            tool=broken,
        )
        assert (await it.run("Go")).text == "It failed."
        assert [bool(event.failed) for event in events if isinstance(event, Used)] == [True, True]
        assert isinstance(it.model, ScriptedModel)
        results = [m.content for m in it.model.calls[-1].messages if m.role == "tool"]
        assert "no station in Oslo" in results[0]
        assert "there is no such tool here" in results[1]


async def test_what_broke_off_is_kept_as_far_as_it_came() -> None:
    class Breaking(ScriptedModel):
        async def stream(self, *_: Any, **__: Any) -> AsyncIterator[str | Reply]:
            yield "It is "
            raise ModelCut("the connection is gone")

    async with Memory.open("ram://", counter=Estimator()) as memory:
        session = await session_in(memory)
        answer = await Agent(Breaking(), [], session).run("How is it?")
        assert (answer.text, answer.truncated) == ("It is ", True)
        last: Message = (await session.messages())[-1]
        assert last.content == "It is "


async def test_two_tools_of_one_name_are_refused() -> None:
    async with Memory.open("ram://", counter=Estimator()) as memory:
        session = await session_in(memory)
        with pytest.raises(InvalidInput, match="the same name"):
            Agent(ScriptedModel(), [Runnable(Tool("remember"), Weather())], session)
