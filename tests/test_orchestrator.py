"""The pipeline from end to end: a real SDK, a server on this machine, and a file."""

import random
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from keepthread import Memory, Message, Session
from keepthread.errors import ModelUnavailable
from keepthread.models import AnthropicModel, OpenAIModel
from keepthread.models.tokens import Tiktoken
from keepthread.orchestrator import (
    Answer,
    AnswerPiece,
    Began,
    Ended,
    Event,
    Limits,
    Models,
    Orchestrator,
    Planned,
    Routed,
    Runnable,
    Used,
    orchestrate,
)
from keepthread.protocols import ChatModel
from keepthread.testing.script import Received, Say
from keepthread.testing.server import ScriptedServer
from tests.weather import TOOL, Weather, mind, remembered, stage_of

SEED = 20_261_115


def model_of(wire: str, server: ScriptedServer) -> ChatModel:
    if wire == "anthropic":
        return AnthropicModel("claude", key="k", base_url=server.anthropic, retries=0)
    return OpenAIModel("gpt", key="k", base_url=server.openai, retries=0)


class House:
    """A memory in a file, a server with a mind, and a tool."""

    def __init__(self, memory: Memory, server: ScriptedServer, model: ChatModel) -> None:
        self.memory = memory
        self.server = server
        self.models = Models.all(model)
        self.weather = Weather()

    async def ask(self, request: str, session: Session | None, **options: Any) -> Answer:
        tools = options.pop("tools", [self.weather.tool()])
        return await orchestrate(request, session, tools, self.models, **options)

    def asked(self, stage: str) -> list[Received]:
        """Return the requests that the server got for a stage."""
        return [each for each in self.server.requests if stage_of(each) == stage]


@pytest.fixture(params=["openai", "anthropic"])
async def house(
    request: pytest.FixtureRequest, tmp_path: Path, vocabularies: Path
) -> AsyncIterator[House]:
    with ScriptedServer(otherwise=mind) as server:
        model = model_of(request.param, server)
        async with Memory.open(f"sqlite:///{tmp_path}/chat.db") as memory:
            yield House(memory, server, model)
        await model.close()  # pyright: ignore[reportAttributeAccessIssue]
        assert server.refused == []


# --- the checklist of the design note ---


async def test_a_follow_up_is_understood_from_the_conversation(house: House) -> None:
    session = await house.memory.session("trip")
    first = await house.ask("What is the weather in Jakarta?", session)
    assert first.text == "It is 32 °C in Jakarta."
    second = await house.ask("How about Tokyo?", session)
    assert second.text == "It is 18 °C in Tokyo."
    assert house.weather.asked == ["Jakarta", "Tokyo"]
    router, planner = house.asked("router")[1], house.asked("planner")[1]
    assert router.text.startswith("Previous conversation:\n")
    assert planner.text.startswith("Conversation context:\n")
    for asked in (router, planner):
        assert "What is the weather in Jakarta?" in remembered(asked)
        assert "It is 32 °C in Jakarta." in remembered(asked)
        assert asked.text.endswith("\n\nRequest: How about Tokyo?")


async def test_what_was_cleared_is_not_understood_any_more(house: House) -> None:
    session = await house.memory.session("trip")
    await house.ask("What is the weather in Jakarta?", session)
    await session.clear()
    answer = await house.ask("How about Tokyo?", session)
    assert (answer.text, answer.plan) == ("About what?", None)
    assert house.asked("router")[1].text == "Request: How about Tokyo?"


async def test_an_orchestrator_answers_each_user_with_the_same_rules(house: House) -> None:
    tools = [house.weather.tool()]
    orchestrator = Orchestrator(house.memory, house.models, tools, system_prompt="Be kind.")
    events: list[Event] = []
    for _ in range(2):  # a message that is delivered twice is answered once
        said = await orchestrator.process(
            "What is the weather in Jakarta?", "ana", id="m1", on_event=events.append
        )
        assert said == "It is 32 °C in Jakarta."
    assert house.weather.asked == ["Jakarta"]
    assert isinstance(events[0], Routed)
    session = await orchestrator.session("ana")
    assert (session.owner, session.info.system_prompt) == ("ana", "Be kind.")
    theirs = await house.memory.session("bea", owner="somebody else")
    assert (await orchestrator.session("bea")).key != theirs.key
    assert await theirs.messages() == []
    strict = Orchestrator(house.memory, house.models, tools, limits=Limits(stage_seconds=1e-9))
    with pytest.raises(ModelUnavailable, match="the router took longer"):
        await strict.process("How about Tokyo?", "ana")


async def test_a_tool_may_be_a_plain_function(house: House) -> None:
    def weather(city: str) -> dict[str, Any]:
        if city == "Tokyo":
            raise RuntimeError("the station is closed")
        return {"city": city, "degrees": 32}

    tools = [Runnable(TOOL, weather)]
    session = await house.memory.session("trip")
    first = await house.ask("What is the weather in Jakarta?", session, tools=tools)
    assert first.text == "It is 32 °C in Jakarta."
    second = await house.ask("How about Tokyo?", session, tools=tools)
    assert second.results[0].text == "Tokyo: unknown"


async def test_status_counts_the_conversation_and_not_the_work_on_it(house: House) -> None:
    session = await house.memory.session("trip")
    await house.ask("What is the weather in Jakarta?", session, tools=[house.weather.tool(3)])
    log = await session.messages()
    status = await session.status()
    assert (status.messages, status.turns) == (4, 1)
    assert [m.role for m in log] == ["user", "assistant", "tool", "assistant"]
    assert status.tokens == status.visible_tokens == sum(m.tokens for m in log)
    assert status.cached_tools == 1
    await session.clear()
    after = await session.status()
    assert (after.messages, after.visible_messages, after.visible_tokens) == (4, 0, 0)


async def test_router_and_planner_are_shown_no_more_than_their_views_allow(house: House) -> None:
    """Counted by tiktoken in what the server received, between the two marks."""
    rng = random.Random(SEED)
    words = ["weather", "Straße", "東京は雨", "🌧️🌦️", "def f(x): return x", "\n\n", '{"a": [1]}']
    for number in range(8):
        session = await house.memory.session(f"long {number}")
        for _ in range(60):
            text = " ".join(rng.choices(words, k=rng.randrange(1, 60)))
            await session.append(
                Message(role="user", content=text), Message(role="assistant", content=text)
            )
        await house.ask("How about the weather in Oslo?", session)
    exact = Tiktoken()
    assert exact.name == "o200k"
    for stage, limit in (("router", 500), ("planner", 1000)):
        found = [remembered(asked) for asked in house.asked(stage)]
        costs = [exact.measure(text) for text in found]
        assert len(costs) == 8, SEED
        assert max(costs) <= limit, (SEED, stage, costs)
        assert max(costs) > limit / 2, (SEED, stage, costs)  # it is not kept by showing nothing


async def test_an_empty_context_leaves_the_request_alone(house: House) -> None:
    answer = await house.ask("How is the weather in Oslo?", await house.memory.session("new"))
    assert answer.text == "It is 4 °C in Oslo."
    assert house.asked("router")[0].text == "Request: How is the weather in Oslo?"
    for stage in ("router", "planner"):
        (asked,) = house.asked(stage)
        assert asked.text.endswith("Request: How is the weather in Oslo?")
        assert "onversation" not in asked.text


async def test_without_a_session_the_same_pipeline_runs(house: House) -> None:
    told: list[list[Event]] = [[], []]
    request = "How is the weather in Oslo and in Tokyo?"
    session = await house.memory.session("one")
    for session_or_none, events in zip((session, None), told, strict=True):
        single = Limits(at_once=1)
        answer = await house.ask(request, session_or_none, limits=single, on_event=events.append)
        assert answer.text == "It is 4 °C in Oslo. It is 18 °C in Tokyo."
    half = len(house.server.requests) // 2
    with_memory, without = house.server.requests[:half], house.server.requests[half:]
    assert [asked.context for asked in with_memory] == [asked.context for asked in without]
    assert told[0] == told[1]
    assert len(await session.messages()) == 6


# --- what is kept ---


async def test_request_steps_and_answer_are_in_the_log_and_nothing_else(house: House) -> None:
    session = await house.memory.session("trip", system_prompt="Be brief.")
    await house.ask("The weather in Oslo and Tokyo?", session)
    user, *steps, answer = await session.messages()
    assert (user.content, answer.content) == (
        "The weather in Oslo and Tokyo?",
        "It is 4 °C in Oslo. It is 18 °C in Tokyo.",
    )
    assert [m.role for m in steps] == ["assistant", "tool"] * 2
    assert {m.content for m in steps[1::2]} == {"Oslo: 4 °C", "Tokyo: 18 °C"}
    children = [each for each in await house.memory.store.scan_sessions() if each.parent]
    assert sorted(each.title for each in children) == ["oslo", "planner", "router", "tokyo"]
    assert all(each.kind == "delegate" for each in children)
    await house.ask("Thanks!", session)
    shown = house.asked("router")[1].context + house.asked("synthesizer")[1].context
    assert "as I see it" not in shown
    assert '"steps"' not in shown
    assert "Be brief." in house.asked("synthesizer")[1].system


async def test_a_step_sees_its_task_and_nothing_of_the_conversation(house: House) -> None:
    session = await house.memory.session("trip", system_prompt="The codeword is MARKER-1.")
    await house.memory.for_owner(session.info.owner).facts.remember(
        "The user's home is MARKER-4, Oslo."
    )
    await house.ask("My name is MARKER-2.", session)
    await house.ask("How is the weather in Oslo, MARKER-3?", session)
    assert house.asked("specialist")
    assert "MARKER-4" in str(house.asked("synthesizer")[-1].body)
    for asked in house.asked("specialist"):
        assert "MARKER" not in str(asked.body)


async def test_it_tells_what_it_does_while_it_does_it(house: House) -> None:
    told: list[Event] = []
    session = await house.memory.session("trip")
    answer = await house.ask("The weather in Oslo?", session, on_event=told.append)
    kinds = [type(event) for event in told]
    assert kinds[:5] == [Routed, Planned, Began, Used, Ended]
    assert set(kinds[5:]) == {AnswerPiece}
    assert "".join(event.text for event in told if isinstance(event, AnswerPiece)) == answer.text
    (used,) = (event for event in told if isinstance(event, Used))
    assert (used.tool, used.arguments, used.remembered) == ("weather", {"city": "Oslo"}, False)
    assert answer.message == (await session.messages())[-1]


async def test_a_tool_is_remembered_by_the_session_and_for_its_author(house: House) -> None:
    session, tools = await house.memory.session("trip"), [house.weather.tool(3)]
    told: list[Event] = []
    for author in ("ana", "ana", "ben", "ana"):
        await house.ask(
            "The weather in Oslo?", session, tools=tools, author=author, on_event=told.append
        )
    assert house.weather.asked == ["Oslo", "Oslo"]
    used = [event.remembered for event in told if isinstance(event, Used)]
    assert used == [False, True, False, True]


# --- once ---


async def test_a_request_that_is_delivered_twice_is_answered_once(house: House) -> None:
    session = await house.memory.session("trip")
    first = await house.ask("The weather in Oslo?", session, id="request-1")
    asked = len(house.server.requests)
    again = await house.ask("The weather in Oslo?", session, id="request-1")
    assert (again.text, again.message) == (first.text, first.message)
    assert again.route is None
    assert len(house.server.requests) == asked
    assert len(await session.messages()) == 4


async def test_a_request_is_taken_up_where_its_process_was_killed(
    tmp_path: Path, vocabularies: Path
) -> None:
    """The file is copied whenever the model is asked: that is what a kill at this moment leaves."""
    live, tool, request = tmp_path / "live", Weather(), "The weather in Oslo and Tokyo?"
    moments: list[list[str]] = []

    def photographed(asked: Received) -> str | Say:
        shutil.copytree(live, tmp_path / str(len(moments)))
        moments.append(list(tool.asked))
        return mind(asked)

    live.mkdir()
    whole, count = await _answered(live, request, tool, photographed)
    assert count == len(moments) == 7
    for number, ran in enumerate(moments):
        again = Weather()
        log, count = await _answered(tmp_path / str(number), request, again, mind)
        assert [(m.role, m.content) for m in log] == [(m.role, m.content) for m in whole]
        assert [m.id for m in log] == [m.id for m in whole]
        assert count == len(moments) - number  # nobody is asked what was answered before
        assert ran + again.asked == tool.asked


async def _answered(
    folder: Path, request: str, tool: Weather, line: Callable[[Received], str | Say]
) -> tuple[list[Message], int]:
    """Deliver a request under its id; return the log, and how often the model was asked."""
    with ScriptedServer(otherwise=line) as server:
        model = OpenAIModel("gpt", key="k", base_url=server.openai, retries=0)
        async with Memory.open(f"sqlite:///{folder}/chat.db") as memory:
            session = await memory.session("trip")
            tools: list[Runnable] = [tool.tool()]
            single = Limits(at_once=1)
            await orchestrate(
                request, session, tools, Models.all(model), id="request-1", limits=single
            )
            log = await session.messages()
        await model.close()
    assert server.refused == []
    return log, len(server.requests)
