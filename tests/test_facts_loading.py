"""Loading an edited document: what it costs, and that it is what its lines say one by one."""

import asyncio
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from keepthread import Memory, Message
from keepthread.errors import InvalidInput
from keepthread.memory.facts.facts import Facts
from keepthread.memory.facts.loading import MOST_CHANGES
from keepthread.memory.options import Options
from keepthread.models.tokens import Estimator
from keepthread.protocols import Updates
from keepthread.stores.ram import RamStore
from keepthread.testing import ManualClock

OWNER = "ana"
CURRENT = ("live", "quarantined")


async def facts_of(memory: Memory, clock: ManualClock, told: Sequence[Mapping[str, Any]]) -> Facts:
    """Return facts that a message states, or the owner, and that begin and end at a time."""
    session = await memory.session("s", owner=OWNER)
    await session.append(
        Message(id="operator", role="system", content="x", origin="operator"),
        Message(id="user", role="user", content="x"),
        Message(id="assistant", role="assistant", content="x", meta={"lowest_origin": "user"}),
        Message(id="web", role="user", content="x", origin="web"),
    )
    facts = memory.for_owner(OWNER).facts
    for each in told:
        clock.advance(1)
        times = {name: clock.now + each[name] for name in ("since", "until") if name in each}
        place = {"session": "s"} if "messages" in each else {}
        await facts.remember(**{**each, **times, **place}, value=each["text"])
    return facts


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


# --- costs ---


def calls_of(lines: Sequence[str]) -> int:
    """Return how many functions are called to load the lines, which no clock changes."""
    number = 0

    def count(_frame: object, event: str, _arg: object) -> None:
        nonlocal number
        number += event == "call"

    async def load() -> None:
        async with Memory.open("ram://", counter=Estimator(), clock=ManualClock()) as memory:
            facts = await facts_of(memory, ManualClock(), [{"text": "Milk", "attribute": "drink"}])
            sys.setprofile(count)
            try:
                assert (await facts.from_markdown("\n".join(lines))).added
            finally:
                sys.setprofile(None)

    asyncio.run(load())
    return number


@pytest.mark.parametrize("different", [1000, 2], ids=["different", "in turn"])
def test_many_lines_of_one_attribute_cost_no_more_each_than_few(different: int) -> None:
    few, many = (
        calls_of([f"- **drink:** tea {n % different}" for n in range(number)])
        for number in (100, 400)
    )
    assert many < 5 * few


async def test_a_document_reads_the_facts_once(clock: ManualClock) -> None:
    class Counting(RamStore):
        reads = 0

        async def updates(self, *args: Any, **given: Any) -> Updates:
            self.reads += 1
            return await super().updates(*args, **given)

    store = Counting(clock=clock)
    async with Memory(store, Options(counter=Estimator(), clock=clock)) as memory:
        facts = await facts_of(memory, clock, [{"text": "Milk", "attribute": "drink"}])
        (milk,) = await facts.list()
        store.reads = 0
        lines = [f"- **drink:** tea {n}" for n in range(20)]
        await facts.from_markdown("\n".join([f"- **drink:** Oat <!-- {milk.key} -->", *lines]))
        assert store.reads == 1


async def test_a_document_that_changes_one_fact_too_often_is_refused_whole(
    clock: ManualClock,
) -> None:
    async with Memory.open("ram://", counter=Estimator(), clock=clock) as memory:
        facts = await facts_of(memory, clock, [{"text": "Milk", "attribute": "drink"}])
        before = await facts.list()
        lines = [f"- **drink:** tea {n} <!-- {before[0].key} -->" for n in range(MOST_CHANGES + 1)]
        with pytest.raises(InvalidInput, match="more than 100 lines"):
            await facts.from_markdown("\n".join(["- Has a dog.", *lines]))
        assert await facts.list() == before
        await facts.from_markdown("\n".join(lines[1:]))
        assert [fact.text for fact in await facts.list()] == [f"tea {MOST_CHANGES}"]


async def test_many_facts_of_one_attribute_that_a_document_does_not_change_stay(
    clock: ManualClock,
) -> None:
    async with Memory.open("ram://", counter=Estimator(), clock=clock) as memory:
        told = [
            {"text": f"tea {n}", "attribute": "drink", "messages": ["web"]}
            for n in range(MOST_CHANGES + 1)
        ]
        facts = await facts_of(memory, clock, told)
        document = await facts.to_markdown()
        assert not any(await facts.from_markdown(document))
        head = "\n".join(document.splitlines()[:3])
        clock.advance(1)
        assert len((await facts.from_markdown(head, prune=True)).forgotten) == len(told)
        assert await facts.list() == []


# --- results ---

TEXTS = st.sampled_from(["Oslo", "Rome", "city"])
TIMES = st.none() | st.integers(-5, 5)
SAID = st.sampled_from([None, ["operator"], ["user"], ["assistant"], ["web"]])
TOLD = st.tuples(TEXTS, TIMES, TIMES, SAID).map(
    lambda each: {
        "attribute": "city",
        **{
            name: value
            for name, value in zip(("text", "since", "until", "messages"), each, strict=True)
            if value is not None
        },
    }
)
LINES = st.tuples(st.none() | st.integers(0, 4), TEXTS, st.sampled_from(["city", "home", ""]))
"""A line: the fact that it changes, if any, its text and attribute."""


@example(  # an operator ended one value, and another holds
    told=[
        {"text": "Rome", "attribute": "city"},
        {"text": "Oslo", "attribute": "city", "until": -5, "messages": ["operator"]},
    ],
    lines=[(None, "Oslo", "city"), (None, "Rome", "city")],
)
@example(  # an answer said it, and now its owner says it
    told=[{"text": "Rome", "attribute": "city", "messages": ["assistant"]}],
    lines=[(None, "Rome", "city"), (None, "Rome", "city")],
)
@given(st.lists(TOLD, max_size=5), st.lists(LINES, max_size=8))
def test_a_document_says_what_its_lines_say_one_by_one(
    told: Sequence[Mapping[str, Any]], lines: Sequence[tuple[int | None, str, str]]
) -> None:
    async def one_by_one(facts: Facts) -> None:
        known = await facts.list(all=True)
        for number, text, attribute in lines:
            if number is None or not known:
                value = text if attribute else ""
                await facts.remember(text, attribute=attribute, value=value)
                continue
            fact = known[number % len(known)]
            if fact.state in CURRENT and (fact.text, fact.attribute) != (text, attribute):
                new: dict[str, Any] = {"text": text, "attribute": attribute}
                changed = {name: v for name, v in new.items() if v != getattr(fact, name)}
                await facts.edit(fact.key, **changed)

    async def at_once(facts: Facts) -> None:
        known = await facts.list(all=True)
        document: list[str] = ["## About ana"]
        for number, text, attribute in lines:
            label = f"**{attribute}:** " if attribute else ""
            key = (
                f" <!-- {known[number % len(known)].key} -->"
                if number is not None and known
                else ""
            )
            document.append(f"- {label}{text}{key}")
        if lines:
            await facts.from_markdown("\n".join(document))

    async def law() -> None:
        found: list[object] = []
        for load in (one_by_one, at_once):
            clock = ManualClock()
            async with Memory.open("ram://", counter=Estimator(), clock=clock) as memory:
                facts = await facts_of(memory, clock, told)
                with suppress(InvalidInput):  # a line changes a fact that one before it replaced
                    await load(facts)
                found.append(await facts.list(all=True))
        assert found[0] == found[1]

    asyncio.run(law())
