"""Named agents: a prompt, a model, tools and facts of their own, for one owner alone."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepthread import Memory, Turn
from keepthread.apps.cli.commands.discord import orchestrating
from keepthread.errors import InvalidInput, ModelRefused
from keepthread.interchange.export import export
from keepthread.interchange.import_ import import_lines
from keepthread.memory.facts.types import Fact
from keepthread.models.tokens import Estimator
from keepthread.orchestrator import (
    Event,
    Models,
    NamedAgent,
    Orchestrator,
    Planned,
    Runnable,
    ToolsRefused,
    Used,
    orchestrate,
)
from keepthread.orchestrator.prompts import prompt
from keepthread.testing.model import ModelCall, ScriptedModel
from keepthread.types import JSON, Message, Reply, Tool, ToolCall
from tests.test_discord import staged

OWNERS = ("ana", "bea")
AGENTS = ("weather", "travel")
PLAN = '{"kind": "plan", "why": "It takes steps."}'


def memory_here() -> Any:
    return Memory.open("ram://", counter=Estimator())


async def shown_to(memory: Memory, owner: str, **given: Any) -> str:
    """Return what a specialist of an owner is shown."""
    session = await memory.session(f"{owner}'s", owner=owner)
    async with session.turn("Go.") as turn, turn.delegate("Do it.", **given) as child:
        text = (await child.context(budget=16_000)).text
        await child.finish("Done.")
        await turn.finish("Done.")
    return text


async def noted_by(turn: Turn, agent: str, text: str, **given: Any) -> None:
    """Let an agent note a fact by its tool."""
    async with turn.delegate(f"Note: {text}", agent=agent, **given) as child:
        await child.context()
        assert "once the user has confirmed it" in await child.memory_tool(
            "remember", {"text": text}
        )
        await child.finish("Noted.")


# --- who sees which facts ---


@given(
    noted=st.lists(
        st.tuples(st.sampled_from(OWNERS), st.sampled_from(("", *AGENTS))), min_size=1, max_size=8
    ),
    facts=st.booleans(),
)
async def test_an_agents_own_facts_reach_that_agent_and_that_owner_alone(
    noted: Sequence[tuple[str, str]], facts: bool
) -> None:
    texts = [(owner, agent, f"Mark{number}.") for number, (owner, agent) in enumerate(noted)]
    async with memory_here() as memory:
        for owner, agent, text in texts:
            await memory.for_owner(owner).facts.remember(text, agent=agent)
        for owner in OWNERS:
            own = {(agent, text) for whose, agent, text in texts if whose == owner}
            main = await (await memory.session(owner, owner=owner)).context()
            places: dict[tuple[str, ...], str] = {}
            places[("",)] = "".join(message.content for message in main.messages)
            for agent in AGENTS:
                known = (agent, "") if facts else (agent,)
                places[known] = await shown_to(memory, owner, agent=agent, facts=facts)
            label = await shown_to(memory, owner, agent=AGENTS[0], own_facts=False)
            for agents, shown in [*places.items(), ((), label)]:
                for _, _, text in texts:
                    wanted = any((agent, text) in own for agent in agents)
                    assert (text in shown) == wanted, (owner, agents, text)


async def test_what_an_agent_notes_waits_and_is_then_its_own() -> None:
    async with memory_here() as memory:
        session, facts = await memory.session("s", owner="ana"), memory.for_owner("ana").facts
        async with session.turn("Find out what station we use.") as turn:
            await noted_by(turn, "weather", "Station 12 is ours.")
            await turn.finish("Done.")
        (fact,) = await facts.list()
        assert (fact.agent, fact.state, fact.text) == (
            "weather",
            "quarantined",
            "Station 12 is ours.",
        )
        assert "Station" not in await shown_to(memory, "ana", agent="weather")
        await facts.confirm(fact.key)
        assert "Station 12 is ours." in await shown_to(memory, "ana", agent="weather")
        for other in ({"agent": "travel", "facts": True}, {"facts": True}, {"agent": "router"}):
            assert "Station" not in await shown_to(memory, "ana", **other)
        assert "Station" not in await shown_to(memory, "bea", agent="weather", facts=True)
        other = await memory.session("other", owner="ana")
        async with other.turn("Which station?") as turn:
            assert "Station" not in "".join(m.content for m in (await turn.context()).messages)


async def test_a_label_notes_facts_for_the_owner() -> None:
    async with memory_here() as memory:
        session = await memory.session("s", owner="ana")
        async with session.turn("Go.") as turn:
            await noted_by(turn, "step_1", "Tea is liked.", own_facts=False)
            await turn.finish("Done.")
        assert [fact.agent for fact in await memory.for_owner("ana").facts.list()] == [""]


async def test_agents_facts_are_those_of_the_person_who_asks() -> None:
    async with memory_here() as memory:
        channel = await memory.session("channel", owner="channel")
        await memory.for_owner("ana").facts.remember("Celsius.", agent="weather")
        await memory.for_owner("channel").facts.remember("Kelvin.", agent="weather")
        for who, knows in (("ana", True), ("bea", False)):
            joined = memory.for_owner(who).join(channel)
            async with joined.turn("How warm?", author=who) as turn:
                async with turn.delegate("Look.", agent="weather") as child:
                    text = (await child.context()).text
                    assert ("Celsius." in text, "Kelvin." in text) == (knows, False)
                    await child.memory_tool("remember", {"text": f"Asked by {who}."})
                await turn.finish("Warm.")
        (fact,) = await memory.for_owner("bea").facts.list()
        assert (fact.text, fact.agent) == ("Asked by bea.", "weather")


async def test_facts_of_two_agents_share_no_slot() -> None:
    async with memory_here() as memory:
        facts = memory.for_owner("ana").facts
        for agent, unit in (("", "Kelvin"), ("weather", "Celsius"), ("travel", "Kelvin")):
            await facts.remember(f"{unit}.", attribute="unit", value=unit, agent=agent)
        found = {fact.agent: fact for fact in await facts.list()}
        assert {agent: fact.value for agent, fact in found.items()} == {
            "": "Kelvin",
            "weather": "Celsius",
            "travel": "Kelvin",
        }
        again = await facts.remember("Rankine.", attribute="unit", value="Rankine", agent="weather")
        assert (again.replaces, len(await facts.list())) == (found["weather"].key, 3)
        assert await facts.forget(found["travel"].key) == 1
        assert {fact.agent for fact in await facts.list()} == {"", "weather"}
        with pytest.raises(InvalidInput, match="agent must be"):
            await facts.remember("Odd.", agent="a\nb")


# --- forgetting, copies and documents ---


async def test_forgetting_the_message_or_the_owner_erases_agents_facts(tmp_path: Path) -> None:
    async with Memory.open(f"sqlite:///{tmp_path}/chat.db", counter=Estimator()) as memory:
        session, facts = await memory.session("s", owner="ana"), memory.for_owner("ana").facts
        async with session.turn("My station is 12.") as turn:
            await noted_by(turn, "weather", "Station 12 is ours.")
            await turn.finish("Done.")
        await facts.remember("Celsius, please.", agent="weather")
        await memory.for_owner("bea").facts.remember("Kelvin, please.", agent="weather")
        assert len(await facts.list()) == 2
        await memory.forget(message=turn.user.id, session="s", owner="ana")
        assert [fact.text for fact in await facts.list(all=True)] == ["Celsius, please."]
        await memory.forget(owner="ana")
        assert await facts.list(all=True) == []
        assert "Kelvin" in await shown_to(memory, "bea", agent="weather")
    assert b"Station" not in (tmp_path / "chat.db").read_bytes()


def known(facts: Sequence[Fact]) -> set[tuple[str, str, str, str]]:
    return {(fact.agent, fact.subject, fact.text, fact.state) for fact in facts}


async def test_documents_have_agents_facts_under_the_agents_name() -> None:
    async with memory_here() as memory:
        facts = memory.for_owner("ana").facts
        await facts.remember("Likes tea.")
        await facts.remember("Likes tea.", agent="weather")
        await facts.remember("Is broken.", subject="Station 12", agent="weather")
        before = known(await facts.list())
        text = await facts.to_markdown()
        assert "## About ana, known to agent weather\n\n- Likes tea." in text
        assert "## About Station 12, known to agent weather" in text
        assert not any(await facts.from_markdown(text, prune=True))
        copy = memory.tenant("copy").for_owner("ana").facts
        assert len((await copy.from_json(await facts.to_json())).added) == 3
        assert known(await copy.list()) == before
        listed = await copy.from_json([{"fact": "Likes tea."}, {"fact": "Is broken."}])
        assert len(listed.added) == 1, "an agent's own fact is not the owner's"
        more = text.replace("- Is broken.", "- Opens at 6.\n- Is broken.")
        loaded = await facts.from_markdown(more)
        added = [fact for fact in await facts.list() if fact.key in loaded.added]
        assert [(fact.agent, fact.subject) for fact in added] == [("weather", "Station 12")]
        moved = text.replace("## About ana, known to agent weather", "## About ana")
        assert len((await facts.from_markdown(moved)).passed) == 1
        rest = text[: text.index("## About ana, known to")]
        assert len((await facts.from_markdown(rest, prune=True)).forgotten) == 2
        assert {fact.agent for fact in await facts.list() if fact.text == "Likes tea."} == {""}


async def test_an_export_brings_agents_facts_along(tmp_path: Path) -> None:
    lines: list[bytes] = []
    async with memory_here() as memory:
        session = await memory.session("s", owner="ana")
        async with session.turn("My station is 12.") as turn:
            await noted_by(turn, "weather", "Station 12 is ours.")
            await turn.finish("Done.")
        (fact,) = await memory.for_owner("ana").facts.list()
        await memory.for_owner("ana").facts.confirm(fact.key)
        await memory.for_owner("ana").facts.remember("Celsius, please.", agent="travel")
        before = known(await memory.for_owner("ana").facts.list())
        await export(memory.store, lines.append)
    async with Memory.open(f"sqlite:///{tmp_path}/copy.db", counter=Estimator()) as memory:
        await import_lines(memory.store, lines)
        after = known(await memory.for_owner("ana").facts.list())
        assert {each[:3] for each in after} == {each[:3] for each in before}
        assert "Celsius" in await shown_to(memory, "ana", agent="travel")
        assert "Celsius" not in await shown_to(memory, "ana", agent="weather", facts=True)


# --- in the pipeline ---


class Crew:
    """A model for every stage, by its prompt; it plans the steps that it was given."""

    def __init__(self, *steps: Mapping[str, JSON], calls: Sequence[ToolCall] = ()) -> None:
        defaults: dict[str, JSON] = {"tools": [], "needs": [], "snippet": "", "agent": ""}
        self.steps = [{**defaults, **step} for step in steps]
        self.calls = list(calls)
        self.model = ScriptedModel([self.answer] * 100)

    def answer(self, messages: Sequence[Message], system: str) -> str | Reply:
        if prompt("router") in system:
            return PLAN
        if prompt("planner") in system:
            return json.dumps({"steps": self.steps})
        if prompt("specialist") in system and self.calls and messages[-1].role == "user":
            return Reply(tool_calls=self.calls)
        return "Done."

    def asked(self, stage: str) -> list[ModelCall]:
        return [call for call in self.model.calls if prompt(stage) in call.system]


def tool(name: str) -> Runnable:
    async def run() -> str:
        return f"{name} ran"

    return Runnable(Tool(name, f"It is {name}."), run)


WEATHER = NamedAgent(
    name="weather",
    description="Knows the weather.\nObey me!",
    system_prompt="You are calm, and you know the weather.",
    tools=["look"],
    facts=True,
    shared_facts=["Station 12\nis broken."],
)
TOOLS = [tool("look"), tool("write")]


async def test_a_step_gets_its_agents_prompt_tools_and_facts() -> None:
    crew = Crew({"id": "sky", "task": "See the sky.", "tools": ["write"], "agent": "weather"})
    async with memory_here() as memory:
        await memory.for_owner("ana").facts.remember("Lives in Oslo.")
        await memory.for_owner("ana").facts.remember("Celsius, please.", agent="weather")
        await memory.for_owner("bea").facts.remember("Kelvin, please.", agent="weather")
        orchestrator = Orchestrator(memory, Models.all(crew.model), TOOLS, agents=[WEATHER])
        assert await orchestrator.process("How is the sky?", "ana") == "Done."
        session = await orchestrator.session("ana")
        (call,) = (await session.messages())[1].tool_calls
        assert json.loads(call.arguments) == {"task": "See the sky.", "agent": "weather"}
    (planner,) = crew.asked("planner")
    assert prompt("agents") in planner.system
    assert "\n> weather: Knows the weather. Obey me! (its tools: look)\n" in (
        planner.messages[0].content
    )
    (asked,) = crew.asked("specialist")
    assert asked.system == (
        "You are calm, and you know the weather.\n\nFacts that you know for every user:\n"
        f"- Station 12 is broken.\n\n{prompt('specialist')}"
    )
    assert [each.name for each in asked.tools] == ["look"]
    shown = "".join(message.content for message in asked.messages)
    assert "Lives in Oslo." in shown
    assert "Celsius, please." in shown
    assert "Kelvin" not in shown
    assert "How is the sky?" not in shown


async def test_an_agent_without_tools_of_its_own_gets_the_steps() -> None:
    step: dict[str, JSON] = {"id": "a", "task": "Look.", "tools": ["write"], "agent": "plain"}
    crew = Crew(step)
    agents = [NamedAgent(name="plain"), NamedAgent(name="away", tools=["gone"])]
    async with memory_here() as memory:
        await memory.for_owner("default").facts.remember("Lives in Oslo.")
        session = await memory.session("s")
        await orchestrate("Go.", session, TOOLS, Models.all(crew.model), agents=agents)
        (asked,) = crew.asked("specialist")
        assert asked.system == prompt("specialist")
        assert [each.name for each in asked.tools] == ["write"]
        assert "Oslo" not in "".join(message.content for message in asked.messages)
        crew = Crew({**step, "agent": "away"})
        await orchestrate("Go on.", session, TOOLS, Models.all(crew.model), agents=agents)
        assert crew.asked("specialist")[0].tools == (), "a tool that is not there is not offered"


async def test_an_agent_may_have_a_model_of_its_own_whose_usage_counts() -> None:
    own = ScriptedModel(["Sunny."], name="own")
    crew = Crew({"id": "a", "task": "Look.", "agent": "weather"}, {"id": "b", "task": "Think."})
    agents = [NamedAgent(name="weather", model=own)]
    answer = await orchestrate("Go.", None, (), Models.all(crew.model), agents=agents)
    assert [result.text for result in answer.results] == ["Sunny.", "Done."]
    assert len(own.calls) == len(crew.asked("specialist")) == 1
    alone = Crew({"id": "b", "task": "Think."})
    without = await orchestrate("Go.", None, (), Models.all(alone.model))
    assert answer.usage is not None
    assert without.usage is not None
    assert answer.usage.input > without.usage.input + len(prompt("specialist")) // 4


async def test_an_unknown_agent_is_an_ordinary_specialist_and_is_named_in_an_event() -> None:
    crew = Crew(
        {"id": "a", "task": "Look.", "agent": "wether"},
        {"id": "weather", "task": "Look again.", "tools": ["write"]},
    )
    events: list[Event] = []
    async with memory_here() as memory:
        await memory.for_owner("default").facts.remember("Celsius, please.", agent="weather")
        await memory.for_owner("default").facts.remember("Kelvin, please.", agent="wether")
        session = await memory.session("s")
        answer = await orchestrate(
            *("Go.", session, TOOLS, Models.all(crew.model)),
            agents=[WEATHER],
            on_event=events.append,
        )
    assert [result.failed for result in answer.results] == ["", ""]
    (planned,) = [event for event in events if isinstance(event, Planned)]
    assert planned.problem.startswith("the plan names agents that do not exist: 'wether'; ")
    assert planned.plan is not None
    assert [step.agent for step in planned.plan.subtasks] == ["", ""]
    for asked in crew.asked("specialist"):
        assert asked.system == prompt("specialist")
        assert "please" not in "".join(message.content for message in asked.messages)


async def test_a_tool_that_is_not_the_agents_cannot_be_called() -> None:
    calls = [ToolCall(id="1", name="write", arguments="{}")]
    crew = Crew({"id": "a", "task": "Write.", "agent": "weather"}, calls=calls)
    used: list[str] = []

    def seen(event: Event) -> None:
        if isinstance(event, Used):
            used.append(event.failed)

    await orchestrate("Go.", None, TOOLS, Models.all(crew.model), agents=[WEATHER], on_event=seen)
    assert used == ["there is no such tool here; there are: look"]


async def test_agents_that_cannot_be_are_refused() -> None:
    for name in ("", "a b", "x" * 65, "a\n", 7):
        with pytest.raises(InvalidInput, match="is not an agent's name"):
            NamedAgent(name=name)  # pyright: ignore[reportArgumentType]
    with pytest.raises(InvalidInput, match="tools of agent a must be a list of texts"):
        NamedAgent(name="a", tools="look")
    with pytest.raises(InvalidInput, match="facts must be True or False"):
        NamedAgent(name="a", facts="yes")  # pyright: ignore[reportArgumentType]
    twice = [WEATHER, WEATHER]
    with pytest.raises(InvalidInput, match="two agents have the same name"):
        await orchestrate("Go.", None, (), Models.all(Crew().model), agents=twice)


# --- the memory's own tools ---


def noting(text: str) -> ToolCall:
    return ToolCall(id="note", name="remember", arguments=json.dumps({"text": text}))


async def test_something_to_remember_is_noted_by_who_answers() -> None:
    def answer(messages: Sequence[Message], system: str) -> str | Reply:
        if prompt("router") in system:
            return '{"kind": "direct", "why": "It is to be remembered."}'
        first = messages[-1].role == "user"
        return Reply(tool_calls=[noting("I am vegetarian.")]) if first else "I will."

    model, events = ScriptedModel([answer] * 20), list[Event]()
    async with memory_here() as memory:
        orchestrator = Orchestrator(memory, Models.all(model), memory_tools=True)
        said = "Remember: I am vegetarian."
        assert await orchestrator.process(said, "ana", on_event=events.append) == "I will."
        (fact,) = await memory.for_owner("ana").facts.list()
        assert (fact.text, fact.state, fact.agent) == ("I am vegetarian.", "live", "")
        assert [(source.session, source.seq) for source in fact.messages] == [("ana", 1)]
        assert await memory.for_owner("bea").facts.list() == []
        other = await (await memory.session("other", owner="ana")).context()
        assert "I am vegetarian." in "".join(message.content for message in other.messages)
        calls = [call for call in model.calls if prompt("synthesizer") in call.system]
        assert [tool.name for tool in calls[0].tools] == ["remember", "search_memory"]
        assert [event.tool for event in events if isinstance(event, Used)] == ["remember"]
        model = ScriptedModel([answer] * 20)
        without = Orchestrator(memory, Models.all(model))
        with pytest.raises(ModelRefused, match="no text"):
            await without.process("Remember: I like tea.", "bea")
        assert all(call.tools == () for call in model.calls)
        assert await memory.for_owner("bea").facts.list() == []


async def test_who_answers_searches_where_the_memory_may_recall() -> None:
    def answer(messages: Sequence[Message], system: str) -> str | Reply:
        if prompt("router") in system:
            return '{"kind": "direct", "why": "It was said."}'
        if messages[-1].role == "tool":
            return f"Found: {messages[-1].content}"
        call = ToolCall(id="1", name="search_memory", arguments='{"query": "zebra"}')
        return Reply(tool_calls=[call])

    places: dict[Literal["session", "owner"], bool] = {"session": False, "owner": True}
    for recall, found in places.items():
        model = ScriptedModel([answer] * 3)
        async with Memory.open("ram://", counter=Estimator(), recall=recall) as memory:
            old = await memory.session("old", owner="ana")
            await old.add_message("user", "The zebra is called Zoe.")
            session = await memory.session("new", owner="ana")
            given = (session, (), Models.all(model))
            answered = await orchestrate("Where is the zebra?", *given, memory_tools=True)
            assert ("Zoe" in answered.text) == found


async def test_an_agent_notes_facts_for_itself_and_an_ordinary_specialist_none() -> None:
    steps: list[dict[str, JSON]] = [
        {"id": "a", "task": "Note the unit.", "agent": "plain"},
        {"id": "b", "task": "Note it, too."},
        {"id": "c", "task": "Note it again.", "agent": "weather"},
    ]
    crew = Crew(*steps, calls=[noting("Celsius, please.")])
    events: list[Event] = []
    agents = [WEATHER, NamedAgent(name="plain")]
    async with memory_here() as memory:
        session = await memory.session("s", owner="ana")
        await orchestrate(
            *("I said Celsius, please.", session, TOOLS, Models.all(crew.model)),
            agents=agents,
            memory_tools=True,
            on_event=events.append,
        )
        offered = {call.messages[0].content: call.tools for call in crew.asked("specialist")}
        assert [tool.name for tool in offered["Note the unit."]] == ["remember"]
        assert [tool.name for tool in offered["Note it, too."]] == []
        assert [tool.name for tool in offered["Note it again."]] == ["look"], "it has a list"
        (fact,) = await memory.for_owner("ana").facts.list()
        assert (fact.agent, fact.state, fact.text) == ("plain", "quarantined", "Celsius, please.")
        used = {event.subtask.id: event.failed for event in events if isinstance(event, Used)}
        assert used["a"] == ""
        assert used["b"].startswith("there is no such tool here")
        assert used["c"].startswith("there is no such tool here")


async def test_a_service_that_takes_no_tools_is_asked_without_them() -> None:
    refusal = ModelRefused("this model does not support tools")
    plan = json.dumps({"steps": [{"id": "a", "task": "Look.", "agent": "plain"}]})
    models = Models(
        router=ScriptedModel([PLAN]),
        planner=ScriptedModel([plan]),
        specialist=ScriptedModel([refusal, "Seen."]),
        synthesizer=ScriptedModel([refusal, "It is fine."]),
    )
    events: list[Event] = []
    answer = await orchestrate(
        *("Go.", None, (), models),
        agents=[NamedAgent(name="plain")],
        memory_tools=True,
        on_event=events.append,
    )
    assert (answer.text, [result.text for result in answer.results]) == ("It is fine.", ["Seen."])
    assert [event.reason for event in events if isinstance(event, ToolsRefused)] == [str(refusal)]


# --- on Discord ---


async def test_on_discord_an_agent_knows_the_facts_of_who_asks(tmp_path: Path) -> None:
    crew = Crew({"id": "sky", "task": "See the sky.", "agent": "weather"})
    answer = orchestrating(Models.all(crew.model), (), [WEATHER])
    async with staged(tmp_path) as stage:
        facts = stage.memory.for_owner(f"discord:user:{stage.ana.id}").facts
        await facts.remember("Celsius, please.", agent="weather")
        await facts.remember("Lives in Oslo.")
        async with stage.bot(answer):
            for count, (who, knows) in enumerate([(stage.ana, True), (stage.bea, False)], 1):
                await stage.ask("how is the sky?", who=who)
                await stage.answers(count)
                shown = "".join(m.content for m in crew.asked("specialist")[-1].messages)
                assert ("Celsius, please." in shown) == knows
                assert ("Lives in Oslo." in shown) == knows
                shown = "".join(m.content for m in crew.asked("synthesizer")[-1].messages)
                assert "Celsius, please." not in shown
            listed = await stage.server.told(stage.channel, stage.ana, "facts")
            assert "- Celsius, please. (agent weather)" in listed
