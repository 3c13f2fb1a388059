"""What cannot be shown takes no room in the window, and a budget that is full is used."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from keepthread import Memory, Message, Options, Session, Summarized, ToolCall, View, Window, fit
from keepthread.context.rendering import count_message
from keepthread.stores import RamStore
from keepthread.stores.codec import new_id
from keepthread.types import Gathered


class Words:
    """Counts words, each as several if that is asked for."""

    def __init__(self, times: int = 1) -> None:
        self.name = f"words times {times}"
        self.times = times

    def count(self, message: Message) -> int:
        return self.times * count_message(message, lambda text: len(text.split()))

    def measure(self, text: str) -> int:
        return self.times * len(text.split())


def words(count: int, tag: str = "w") -> str:
    return " ".join([tag] * count)


async def talk(session: Session, turns: int, size: int = 4) -> list[Message]:
    """Append questions and answers of so many words."""
    roles: tuple[Any, Any] = ("user", "assistant")
    return await session.append(
        *(Message(role=role, content=words(size, f"{n}")) for n in range(turns) for role in roles)
    )


@pytest.fixture(params=["ram", "sqlite", "postgres", "redis"])
async def memory(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Memory]:
    if request.param == "postgres":
        url = request.getfixturevalue("postgres").url()
    elif request.param == "redis":
        url = request.getfixturevalue("redis_server").url
    else:
        url = {"ram": "ram://", "sqlite": f"sqlite:///{tmp_path}/m.db"}[request.param]
    views = {"sliding": View(1000, Window(step=0))}
    tenant = f"room {new_id()}"
    async with Memory.open(url, tenant=tenant, counter=Words(), views=views) as memory:
        yield memory


# --- what cannot be shown ---


async def test_notes_that_ended_take_no_room(memory: Memory) -> None:
    session = await memory.session("s")
    for n in range(60):
        await session.add_note("screen", words(300, f"screen-{n}"), once=False, turns=1)
        async with session.turn(f"question {n}") as turn:
            context = await turn.context("sliding")
            await turn.finish(f"answer {n}")
    asked = [m.seq for m in context.messages if m.role == "user"]
    notes = [m.content.split()[0] for m in context.messages if m.role == "system"]
    assert (len(asked), notes) == (35, ["screen-59"])  # all that 1,000 tokens have room for
    assert context.tokens > 850


async def test_an_erased_message_takes_no_room(memory: Memory) -> None:
    session = await memory.session("s")
    await talk(session, 20)
    (secret,) = await session.append(Message(role="user", content=words(5000)))
    await memory.forget(session="s", message=secret.id)
    await session.append(Message(role="user", content="And now?"))
    context = await session.context(budget=1000)
    assert [m.seq for m in context.messages] == [*range(1, 41), 42]


async def test_a_call_without_a_result_takes_no_room(memory: Memory) -> None:
    wish = ToolCall(id="c", name="write", arguments=f'{{"text": "{words(5000)}"}}')
    session = await memory.session("s")
    await talk(session, 20)
    await session.append(Message(role="assistant", tool_calls=[wish]))
    await talk(session, 10)
    context = await session.context(budget=1000)
    assert [m.seq for m in context.messages] == [*range(1, 41), *range(42, 62)]


def test_the_last_message_that_can_be_shown_is_cut_though_a_call_is_open_behind_it() -> None:
    wish = ToolCall(id="a", name="look", arguments="{}")
    log = [
        Message(role="user", content="Look."),
        Message(role="assistant", tool_calls=[wish]),
        Message(role="tool", tool_call_id="a", content=words(5000)),
        Message(role="assistant", tool_calls=[replace(wish, id="b")]),
    ]
    context = fit(log, 400, counter=Words())
    assert [m.seq for m in context.messages] == [1, 2, 3]
    assert "characters left out" in context.messages[-1].content
    assert [(c.first, c.reason) for c in context.why.left_out] == [(4, "a call without a result")]


async def test_why_charges_no_more_than_there_is(memory: Memory) -> None:
    session = await memory.session("s")
    await talk(session, 20)
    (secret,) = await session.append(Message(role="user", content=words(5000)))
    await talk(session, 20)
    await memory.forget(session="s", message=secret.id)
    for budget in (600, 1000):
        why = (await session.context("sliding", budget=budget)).why
        assert sum(c.tokens for c in why.choices) == 80 * 10, budget


# --- what is read ---


class Reading(RamStore):
    """Counts the messages that it gives."""

    given = 0

    async def tail(self, *args: Any, **kwargs: Any) -> list[Message]:
        found = await super().tail(*args, **kwargs)
        self.given += len(found)
        return found

    async def gather(self, *args: Any, **kwargs: Any) -> Gathered:
        found = await super().gather(*args, **kwargs)
        self.given += len(found.messages)
        return found


async def test_a_context_over_what_cannot_be_shown_costs_the_same_however_long_the_log_is() -> None:
    store = Reading()
    memory = Memory(store, Options(counter=Words()))
    session = await memory.session("s")
    costs: list[int] = []
    for n in range(900):
        await session.add_note("screen", words(100, f"screen-{n}"), once=False, turns=1)
        async with session.turn(f"question {n}") as turn:
            if n in (150, 300, 899):
                store.given = 0
                await turn.context(budget=1000)
                costs.append(store.given)
            await turn.finish(f"answer {n}")
    assert max(costs) - min(costs) < 20
    assert max(costs) < 300


async def test_what_can_be_shown_behind_a_note_that_is_larger_than_the_rest_is_read(
    memory: Memory,
) -> None:
    session = await memory.session("s")
    await talk(session, 30)
    await session.add_note("screen", words(5000), turns=1)
    await talk(session, 30)
    context = await session.context("sliding")
    assert context.tokens > 900
    assert context.messages[0].seq < 60


# --- a counter that counted otherwise ---


@pytest.mark.parametrize(("before", "after"), [(4, 1), (1, 4)])
async def test_after_another_counter_the_whole_budget_is_used(
    tmp_path: Path, before: int, after: int
) -> None:
    url = f"sqlite:///{tmp_path}/m.db"
    async with Memory.open(url, counter=Words(before)) as memory:
        await talk(await memory.session("s"), 300)
    async with Memory.open(url, counter=Words(after)) as memory:
        session = await memory.session("s")
        used = [(await session.context(budget=2000)).tokens]
        for _ in range(40):
            await talk(session, 4)
            used.append((await session.context(budget=2000)).tokens)
        assert max(used) <= 2000
        assert used[0] >= 1850
        assert min(used) >= 2000 * 0.55  # a step takes 38 % of the window


async def test_a_question_far_behind_is_counted_by_the_counter_of_today(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/m.db"
    async with Memory.open(url, counter=Words(1)) as memory:
        session = await memory.session("s")
        await session.append(Message(role="user", content=words(40, "question")))
    counter = Words(4)
    async with Memory.open(url, counter=counter) as memory:
        session = await memory.session("s")
        answers = [Message(role="assistant", content=words(8, f"{n}")) for n in range(200)]
        await session.append(*answers)
        context = await session.context(budget=1000)
        assert context.messages[0].seq == 1
        assert sum(map(counter.count, context.messages)) <= context.tokens <= 1000


async def test_a_window_by_count_starts_at_the_same_message_however_much_was_read() -> None:
    strategy, counter = Window(max_messages=20, step=120), Words()
    memory = Memory(RamStore(), Options(counter=counter, views={"v": View(400, strategy)}))
    session = await memory.session("s")
    steps_of_tokens_are_further = 0
    for n in range(120):
        await session.append(Message(role="user", content=words(1 + n * n % 23)))
        log = await session.messages(limit=200)
        for budget in (250, 300, 350, 400):
            read = [m.seq for m in (await session.context("v", budget=budget)).messages]
            held = [m.seq for m in fit(log, budget, strategy=strategy, counter=counter).messages]
            assert read == held, (n, budget)
            by_tokens = fit(log, budget, strategy=Window(step=120), counter=counter).messages
            steps_of_tokens_are_further += len(held) < 20 and by_tokens[0].seq > held[0]
    assert steps_of_tokens_are_further


# --- a question that was hidden while it is answered ---


async def test_a_turn_whose_question_was_cleared_is_shown_it(memory: Memory) -> None:
    session = await memory.session("s")
    await talk(session, 5)
    async with session.turn("second") as turn:
        await turn.append(Message(role="assistant", content="Let me see."))
        await session.clear()
        context = await turn.context(budget=500)
        assert [m.content for m in context.messages] == ["second"]
        hidden = [(c.first, c.last, c.tokens) for c in context.why.left_out]
        assert hidden == [(1, 10, 100), (12, 12, 9)]
        await turn.append(Message(role="assistant", content="Found."))
        context = await turn.context(budget=500)
        assert [m.content for m in context.messages] == ["second", "Found."]
    assert [m.content for m in (await session.context(budget=500)).messages] == ["Found."]


async def test_a_turn_whose_question_was_rewound_is_shown_it_in_its_place(memory: Memory) -> None:
    session = await memory.session("s")
    await talk(session, 2)
    async with session.turn("second") as turn:
        await turn.append(Message(role="assistant", content="Let me see."))
        await session.rewind(3)
        await turn.append(Message(role="assistant", content="Found."))
        for budget in (60, 500):
            context = await turn.context(budget=budget)
            shown = [m.content for m in context.messages]
            assert shown[-2:] == ["second", "Found."]
            assert "Let me see." not in shown
        assert [m.seq for m in context.messages] == [1, 2, 3, 5, 7]
        without = await turn.context(budget=500, newest=False)
        assert [m.seq for m in without.messages] == [1, 2, 3, 7]


async def test_a_question_that_was_erased_is_not_shown_though_it_is_being_answered(
    memory: Memory,
) -> None:
    session = await memory.session("s")
    async with session.turn("secret") as turn:
        await session.clear()
        await memory.forget(session="s", message=turn.user.id)
        assert not (await turn.context(budget=500)).messages


# --- use ---


@pytest.mark.parametrize("strategy", [Window(), Summarized()], ids=lambda each: type(each).__name__)
async def test_a_budget_that_is_full_is_used_to_more_than_half(strategy: Window) -> None:
    views = {"chat": View(8192, strategy)}
    memory = Memory(RamStore(), Options(counter=Words(), views=views))
    session = await memory.session("s")
    used: list[int] = []
    for n in range(90):
        await session.add_note("screen", words(200, f"{n}"), once=False, turns=1)
        async with session.turn(words(90, f"{n}")) as turn:
            context = await turn.context()
            await turn.finish(words(150, f"{n}"))
        if any(c.reason.startswith("older") for c in context.why.left_out):
            used.append(context.tokens)
    assert used
    assert min(used) > 0.6 * 8192
