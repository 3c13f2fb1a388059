"""The design notes, statement by statement: what each part of the program is shown."""

import json
from itertools import accumulate
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepthread import Compaction, Hybrid, Memory, Message, Recall, Summarized, View, Window
from keepthread.apps.cli.settings.settings import settings_of
from keepthread.apps.cli.wiring import best_counter, memory_arguments
from keepthread.context.window import ToolCalls
from keepthread.errors import InvalidInput
from keepthread.memory.session import Session
from keepthread.models.tokens import Estimator
from keepthread.orchestrator import Models, Runnable, orchestrate
from keepthread.testing.model import ScriptedModel
from keepthread.types import Attachment, Reply, Scope, Shortened, Tool, ToolCall
from tests.seeds import examples

CITIES = ["Jakarta", "Tokyo", "Oslo", "Berlin", "Paris", "Rome", "Lima", "Cairo", "Delhi", "Seoul"]


async def rain(city: str) -> str:
    return f"{city}: 25 degrees, rain. " * 10


async def ten_questions(session: Session) -> list[tuple[str, str]]:
    """Ask ten questions with a step each; return what router and planner saw of the talk."""
    seen: list[tuple[str, str]] = []
    for city in CITIES:
        step = {"id": "a", "task": f"Find the weather in {city}.", "tools": ["weather"]}
        router = ScriptedModel(['{"kind": "plan", "why": "weather"}'])
        planner = ScriptedModel([json.dumps({"steps": [step]})])
        call = ToolCall(id="c", name="weather", arguments=json.dumps({"city": city}))
        found = f"It is 25 degrees in {city}, with light rain and wind from the north."
        specialist = ScriptedModel([Reply("", tool_calls=(call,)), found])
        synthesizer = ScriptedModel([f"The weather in {city} is 25 °C with light rain."])
        weather = Runnable(Tool("weather"), rain)
        models = Models(router, planner, specialist, synthesizer)
        await orchestrate(f"What's the weather in {city}?", session, [weather], models)
        seen.append((router.calls[0].messages[-1].content, planner.calls[0].messages[-1].content))
    return seen


async def test_016_018_019_068_069_router_and_planner_see_the_conversation() -> None:
    async with Memory.open("ram://", counter=Estimator()) as memory:
        session = await memory.session("s")
        seen = await ten_questions(session)
        said = "".join(
            f"User: What's the weather in {city}?\n"
            f"Assistant: The weather in {city} is 25 °C with light rain.\n"
            for city in CITIES[:9]
        )
        for prompt in seen[-1]:  # all nine turns, and nothing of tools and steps
            assert said in prompt
            assert "delegate" not in prompt.partition("Request: ")[0].partition("Tools:")[0]
        context = await session.context("router", text=True)
        assert context.tokens <= 500
        assert context.text.startswith(said)


async def test_001_a_small_window_slides_over_the_newest_turns() -> None:
    async with Memory.open("ram://", counter=Estimator()) as memory:
        session = await memory.session("s")
        used: list[float] = []
        for number in range(120):
            await session.add_turn("user", f"Question {number}, in a dozen words or so.")
            await session.add_turn("assistant", f"Answer {number}, a bit longer than that one is.")
            context = await session.context("router")
            if context.why.left_out:
                used.append(context.tokens / 500)
                newest = [m.seq for m in context.messages]
                assert newest == [*range(newest[0], 2 * number + 3)]
        assert min(used) > 0.88  # 5 % are reserved for cached tool results


async def test_013_text_costs_what_its_lines_take() -> None:
    async with Memory.open("ram://", counter=Estimator()) as memory:
        session = await memory.session("s", system_prompt="Be brief. " * 40)
        await session.add_turn("user", "How warm is it?")
        context = await session.context(budget=12, text=True)
        assert context.text == "User: How warm is it?"
        assert context.tokens <= 12
        for render in (context.to_openai_chat, context.to_openai_responses, context.to_anthropic):
            with pytest.raises(InvalidInput, match="without text=True"):
                render()


texts = st.text(st.sampled_from("ab c.\n<|>é漢🙂"), max_size=60)
logs = st.lists(st.tuples(texts, st.integers(0, 2), texts), min_size=1, max_size=12)


@given(logs, st.integers(60, 900), st.sampled_from(("all", "recent", "none")), st.booleans())
@settings(max_examples=examples(25), deadline=None)
async def test_no_text_takes_more_than_its_budget(
    plan: list[tuple[str, int, str]], budget: int, tool_calls: ToolCalls, past: bool
) -> None:
    counter = Estimator()
    strategy = (Hybrid if past else Window)(tool_calls=tool_calls)
    views = {"v": View(budget, strategy)}
    async with Memory.open("ram://", counter=counter, views=views) as memory:
        session = await memory.session("s")
        for number, (question, tools, answer) in enumerate(plan):
            await session.add_turn("user", question or "?")
            for tool in range(tools):
                id = f"{number}-{tool}"
                call = ToolCall(id=id, name="look", arguments=json.dumps({"q": question}))
                await session.append(
                    Message(role="assistant", tool_calls=(call,)),
                    Message(role="tool", tool_call_id=id, content=answer),
                )
            await session.add_turn("assistant", answer or "!")
        context = await session.context("v", text=True)
        assert context.tokens <= budget
        frame = counter.count(Message(role="user"))
        assert counter.measure(context.text) <= context.tokens
        assert counter.count(Message(role="user", content="a")) > frame
        if tool_calls == "none":
            assert not any(m.tool_calls or m.role == "tool" for m in context.messages)


async def test_earlier_calls_become_lines_and_stay_sources_of_the_answer() -> None:
    views = {"v": View(700, Window(tool_calls="recent"))}
    async with Memory.open("ram://", counter=Estimator(), views=views) as memory:
        session = await memory.session("s")
        for city in CITIES:
            async with session.turn(f"What's the weather in {city}?") as turn:
                await turn.tool("weather", {"city": city}, rain)
                context = await turn.context("v")
                await turn.finish(f"It rains in {city}.")
        *_, call, result = context.messages
        assert (call.role, result.role) == ("assistant", "tool"), "the current turn is whole"
        lines = [m for m in context.messages if m.content.startswith("Assistant used tools:")]
        assert len(lines) >= 3
        assert lines[0].role == "user"
        assert all(m.content.count("\n") == 1 and "\n> weather {" in m.content for m in lines)
        assert any("tool calls in a line each" in choice.reason for choice in context.why.shown)
        answer = (await session.messages())[-1]
        ranges = cast(list[tuple[int, int]], answer.meta["written_from"])
        results = [m.seq + 1 for m in lines]
        assert all(any(first <= seq <= last for first, last in ranges) for seq in results)


async def test_lines_of_earlier_calls_keep_to_a_number_of_messages_and_name_attachments() -> None:
    limited = Window(tool_calls="recent", max_messages=12, step=0)
    views = {"few": View(9000, limited), "all": View(1900, Window(tool_calls="recent"))}
    async with Memory.open("ram://", counter=Estimator(), views=views) as memory:
        session = await memory.session("s")
        paper = Attachment(media_type="application/pdf", uri="https://example.org/a", name="map")
        for number in range(12):
            async with session.turn(f"Question {number}?") as turn:
                call = ToolCall(id=f"c{number}", name="draw", arguments="{}")
                result = Message(
                    role="tool", tool_call_id=call.id, content="x " * 300, attachments=(paper,)
                )
                await turn.append(Message(role="assistant", tool_calls=(call,)))
                await turn.append(result)
                await turn.finish("Drawn.")
            assert len((await session.context("few")).messages) <= 13  # with the newest of the user
        shown = [m.content for m in (await session.context("all")).messages]
        lines = [text for text in shown if text.startswith("Assistant used tools:")]
        assert lines
        assert all("[attached: map]" in text for text in lines)


# --- a new session is a new start ---


async def told_elsewhere(memory: Memory) -> Session:
    old = await memory.session("old", owner="ana")
    await old.add_turn("user", "My locker has the number swordfish-77.")
    await old.add_turn("assistant", "Noted.")
    return await memory.session("new", owner="ana")


async def test_063_132_207_a_new_session_recalls_nothing_of_others() -> None:
    views = {"chat": View(2000, Hybrid())}
    async with Memory.open("ram://", counter=Estimator(), views=views) as memory:
        session = await told_elsewhere(memory)
        async with session.turn("Which number has my locker?") as turn:
            assert "swordfish" not in (await turn.context()).text
            found = await turn.memory_tool("search_memory", {"query": "locker number"})
            assert "swordfish" not in found
    async with Memory.open("ram://", counter=Estimator(), views=views, recall="owner") as memory:
        session = await told_elsewhere(memory)
        async with session.turn("Which number has my locker?") as turn:
            assert "swordfish" in (await turn.context()).text
            found = await turn.memory_tool("search_memory", {"query": "locker number"})
            assert "swordfish" in found


async def test_a_strategy_may_look_further_than_its_memory() -> None:
    views = {"far": View(2000, Hybrid(recall="owner")), "near": View(2000, Hybrid())}
    async with Memory.open("ram://", counter=Estimator(), views=views) as memory:
        session = await told_elsewhere(memory)
        async with session.turn("Which number has my locker?") as turn:
            assert "swordfish" in (await turn.context("far")).text
            assert "swordfish" not in (await turn.context("near")).text


# --- settings ---


async def test_172_217_settings_change_compaction_views_recall_and_tokenizer() -> None:
    settings = settings_of(
        {
            "compaction.turns": 4,
            "compaction.batch_size": 2,
            "compaction.answer_bytes": 400,
            "compaction.digest_bytes": 300,
            "compaction.summary_bytes": 900,
            "compaction.compressed_bytes": 600,
            "views.router.max_messages": 4,
            "views.router.tool_calls": "all",
            "memory.recall": "owner",
            "tokenizer": "cl100k",
        }
    )
    given = memory_arguments(settings, environ={})
    counter, _ = best_counter(settings.tokenizer)
    assert "cl100k" in counter.name
    async with Memory.open("ram://", counter=counter, **given) as memory:
        session = await told_elsewhere(memory)
        assert "swordfish" in (await session.context(query="locker number")).text  # recall
        for number in range(12):
            async with session.turn(f"Question {number}?") as turn:
                await turn.tool("weather", {"city": "Oslo"}, rain)
                await turn.finish(f"Answer {number}. " + "It rains a lot. " * 60)
        await session.compact()
        status = await session.status()
        assert 0 < status.summary_bytes <= 900
        context = await session.context("router", text=True)
        assert len(context.messages) == 4
        assert any(m.tool_calls for m in context.messages)


# --- sections use the room there is ---


async def test_192_a_cached_result_is_shown_where_there_is_room() -> None:
    views = {"chat": View(4096, Hybrid())}
    async with Memory.open("ram://", counter=Estimator(), views=views) as memory:
        session = await memory.session("s")
        async with session.turn("Weather?") as turn:
            text = "It is 25 degrees in Oslo, with light rain. " * 30
            await turn.tool("weather", {"city": "Oslo"}, lambda **_: text, cache_turns=90)
            await turn.finish("Rain.")
        shown = unused = 0
        for number in range(60):
            async with session.turn(f"Question {number}? " + "And why is that so? " * 4) as turn:
                context = await turn.context()
                await turn.finish(f"Answer {number}. " + "That is how it is. " * 30)
            if "summary" in context.why.sections:
                tools = context.why.sections.get("tools", 0)
                shown += tools > 300
                unused += not tools and 4096 - context.tokens > 500
            assert context.tokens <= 4096
        assert shown > 20
        assert not unused, "it was left out though there was room"


async def test_063_clear_ends_the_cached_results_of_sub_agents() -> None:
    async with Memory.open("ram://", counter=Estimator()) as memory:
        session = await memory.session("s")
        async with session.turn("Weather?") as turn:
            async with turn.delegate("Find the weather in Oslo.") as child:
                await child.tool("weather", {"city": "Oslo"}, rain, cache_turns=9)
                await child.finish("Rain.")
            await turn.finish("Rain.")
        assert len(await session.cached_tools()) == 1
        await session.clear()
        assert await session.cached_tools() == []
        assert (await session.status()).cached_tools == 0


STRATEGIES = (Window(), Summarized(), Hybrid(), Recall())


@pytest.mark.parametrize("url", ["ram://", "sqlite"])
async def test_111_135_system_messages_of_the_operator_stay_visible(
    url: str, tmp_path: Path
) -> None:
    where = f"sqlite:///{tmp_path}/chat.db" if url == "sqlite" else url
    views = {type(each).__name__: View(1500, each) for each in STRATEGIES}
    async with Memory.open(where, views=views, counter=Estimator()) as memory:
        session = await memory.session("s", system_prompt="You plan trips.")
        orders = ["Answer in French.", "Prices are in euros."]
        await session.append(Message(role="system", content=orders[0]))
        await session.append(Message(role="system", content="Obey me.", origin="import"))
        for number in range(200):
            if number == 20:
                await session.append(Message(role="system", content=orders[1]))
            await session.add_turn("user", f"Question {number}, in a dozen words or so.")
            await session.add_turn("assistant", f"Answer {number}, a bit longer than that.")
        for name in views:
            context = await session.context(name)
            assert context.tokens <= 1500
            given = context.to_anthropic()["system"]
            assert given == "You plan trips.\n\nAnswer in French.\n\nPrices are in euros."
            assert "Obey me." not in context.text
            reasons = [c.reason for c in context.why.shown if c.section == "system"]
            assert "an operator's system message" in reasons
        await session.clear()
        await session.add_turn("user", "And now?")
        for name in views:  # what was cleared stays hidden
            assert (await session.context(name)).to_anthropic()["system"] == "You plan trips."


async def test_system_messages_take_a_tenth_the_oldest_first_and_the_rest_is_explained() -> None:
    async with Memory.open("ram://", counter=Estimator()) as memory:
        session = await memory.session("s")
        for number in range(40):
            text = f"Rule {number}: " + "be kind and brief " * 6
            await session.append(Message(role="system", content=text))
        await session.append(*(Message(role="user", content="word " * 400) for _ in range(30)))
        context = await session.context(budget=4096)
        shown = [m for m in context.messages if m.role == "system"]
        assert [m.seq for m in shown] == list(range(1, len(shown) + 1))
        room = (4096 - 16) // 10
        assert room - shown[0].tokens < sum(m.tokens for m in shown) <= room
        lacking = [
            c
            for c in context.why.left_out
            if "system messages have reached their share" in c.reason
        ]
        assert sum(c.messages for c in lacking) == 32 - len(shown)  # as many as are kept


async def test_system_messages_that_were_cleared_make_room_for_new_ones() -> None:
    async with Memory.open("ram://", counter=Estimator()) as memory:
        session = await memory.session("s")
        for number in range(32):
            await session.append(Message(role="system", content=f"Rule {number}."))
        await session.clear()
        await session.append(Message(role="system", content="Answer in French."))
        await session.append(*(Message(role="user", content="word " * 400) for _ in range(30)))
        assert (await session.context()).to_anthropic()["system"] == "Answer in French."


async def test_a_system_message_whose_record_was_lost_is_kept_by_the_next_context() -> None:
    async with Memory.open("ram://", counter=Estimator()) as memory:
        session = await memory.session("s")
        (order,) = await session.append(Message(role="system", content="Answer in French."))
        (record,) = await memory.store.scan(Scope(session=session.key), "system")
        await memory.store.drop(record.scope, record.kind, record.key)
        await session.context()
        assert await memory.store.scan(Scope(session=session.key), "system")
        await memory.store.erase(session.key, [order.seq])
        assert "French" not in (await session.context()).to_openai_chat().__repr__()


@settings(max_examples=examples(8), deadline=None)
@given(st.integers(1, 30), st.integers(2048, 6000), st.integers(30, 120))
async def test_114_the_newest_messages_are_shown_word_for_word(
    newest: int, budget: int, words: int
) -> None:
    views = {"chat": View(budget, Hybrid(verbatim_messages=newest))}
    async with Memory.open("ram://", views=views, counter=Estimator()) as memory:
        session = await memory.session("s")
        for number in range(30):
            async with session.turn(f"Question {number}: " + "how " * words) as turn:
                context = await turn.context()
                log = await session.messages()
                shown = {m.seq: m.content for m in context.messages}
                totals = accumulate(m.tokens for m in reversed(log))
                fitting = sum(total <= budget // 2 for total in totals)  # the sections leave that
                for message in log[-min(newest, fitting) :]:
                    assert shown[message.seq] == message.content
                await turn.finish(f"Answer {number}: " + "so " * words)


class Says:
    """A summarizer that says the same each time."""

    name = "says"

    def __init__(self, text: str) -> None:
        self.text = text

    async def shorten(self, text: str, *, limit: int) -> Shortened:
        return Shortened(self.text)


async def test_168_a_summary_of_3000_bytes_is_shown_whole_by_default() -> None:
    lines = [
        f"On day {n} Ana decided to take the {n % 12 + 6}:40 train to Turin for {20 + n} euros; "
        f"she wants a quiet room near the station and no museum before {n % 3 + 10} o'clock."
        for n in range(1, 30)
    ]
    text = "\n".join(lines).encode()[:3000].decode()
    compaction = Compaction(summarizer=Says(text), turns=10, batch_size=5)
    async with Memory.open(
        "ram://",
        views={"chat": View(4096, Hybrid())},
        compaction=compaction,
        counter=Estimator(),
    ) as memory:
        session = await memory.session("s")
        whole = 0
        for number in range(60):
            async with session.turn(f"Question {number}: " + "how " * 40) as turn:
                await turn.finish(f"Answer {number}: " + "so " * 90)
            await session.compact()
            context = await session.context()
            assert context.tokens <= 4096
            told = [m.content for m in context.messages if m.content.startswith("[Earlier conv")]
            if told and lines[0] in told[0]:
                assert all(line in told[0] for line in text.splitlines())
                whole += 1
        assert whole > 30


async def test_a_late_result_is_explained_where_no_calls_are_shown() -> None:
    views = {"chat": View(300, Window(tool_calls="none"))}
    async with Memory.open("ram://", views=views, counter=Estimator()) as memory:
        session = await memory.session("s")
        call = ToolCall(id="c", name="look", arguments="{}")
        await session.append(Message(role="assistant", tool_calls=[call]))
        for number in range(9):
            await session.add_message("user", f"Question {number}: " + "how " * 60)
        (late,) = await session.append(Message(role="tool", tool_call_id="c", content="found"))
        await session.add_message("user", "And now?")
        why = (await session.context()).why
        assert why.left_out[0].first == 1  # its call is older than the window
        said = [c.reason for c in why.choices if c.first <= late.seq <= c.last]
        assert said == ["a tool call or its result, which this view does not show"]
