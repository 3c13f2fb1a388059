"""A user's own strategy gets the same material as a built-in one, and so the same contexts."""

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from keepthread import (
    Compaction,
    Context,
    Hybrid,
    Memory,
    Message,
    Recall,
    Section,
    Session,
    Summarized,
    View,
    Window,
    WindowPlan,
    WindowRules,
    fit,
)
from keepthread.context import strategies
from keepthread.errors import InvalidInput
from keepthread.models.tokens import Estimator
from keepthread.protocols import (
    ContextPlan,
    History,
    Material,
    Need,
    PlannedStrategy,
    Recalled,
    RecallRequest,
    Strategy,
    WindowStart,
)
from keepthread.types import Selection

OWNER = "ana"
BUDGETS = (300, 600, 1000, 2500, 20_000)
LONG = "The ferry leaves at nine, and the harbour is a short walk from the station. " * 12
QUESTION = "Which sourdough starter did my grandmother in Bergen bake with?"


class OwnHybrid:
    """A copy of `Hybrid` as a user would write it: it inherits from nothing."""

    needs: frozenset[Need] = frozenset({"facts", "summaries", "recall"})
    rules = WindowRules(
        sections=(
            Section(name="system", min_share=0.05, max_share=0.1, cap=4096),
            Section(name="pins", min_share=0.05, max_share=0.25, cap=4096),
            Section(name="notes", min_share=0.02, max_share=0.05, cap=512),
            Section(name="facts", min_share=0.02, max_share=0.06, floor=120, cap=512),
            Section(
                name="summary", min_share=0.05, max_share=0.12, floor=160, cap=2048, unclaimed=0.27
            ),
            Section(name="important", max_share=0.03, floor=80, cap=1024),
            Section(name="tools", max_share=0.05, cap=1024, unused=0.25),
            Section(name="recalled", max_share=0.02, floor=80, cap=2048, unused=0.2),
        ),
        max_step=0.62,
        brief_turns=20,
        undigested=20,
    )

    def plan(self, material: Material, budget: int) -> WindowPlan:
        return WindowPlan(self.rules, material, budget)

    def select(self, material: Material, budget: int) -> Selection:
        return self.plan(material, budget).finish(material.past, material.recalled)


class Forwarded:
    """A user's plan that is of another class than ours, with only what the protocol names."""

    def __init__(self, plan: ContextPlan) -> None:
        self.missing: int = plan.missing
        self.window_start: WindowStart | None = plan.window_start
        self.recall: RecallRequest | None = plan.recall
        self._finish = plan.finish

    def finish(self, past: History, recalled: Recalled | None = None) -> Selection:
        return self._finish(past, recalled)


class ForwardedHybrid(OwnHybrid):
    """A user's strategy whose plans are the user's own, too."""

    def plan(self, material: Material, budget: int) -> Any:
        return Forwarded(super().plan(material, budget))


@pytest.fixture(scope="module")
def copied() -> Iterator[ModuleType]:
    """Copy the module of strategies: the same source, and none of the same classes."""
    assert strategies.__file__ is not None
    spec = importlib.util.spec_from_file_location("copied_strategies", strategies.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.fixture(params=["ram", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "ram://" if request.param == "ram" else f"sqlite:///{tmp_path}/chat.db"


async def furnished(memory: Memory) -> Session:
    """Return a session with all that a context can have, and another one to recall from."""
    await memory.for_owner(OWNER).facts.remember(
        text="Ana lives in Oslo.", attribute="city", value="Oslo"
    )
    await memory.for_owner(OWNER).facts.remember(text="Ana's grandmother came from Bergen.")
    kitchen = await memory.session("kitchen", owner=OWNER)
    async with kitchen.turn("My grandmother in Bergen bakes with a rye sourdough starter.") as turn:
        await turn.finish("A rye sourdough starter keeps for weeks.")
    session = await memory.session("trip", owner=OWNER, system_prompt="You plan trips.")
    async with session.turn("We decided: never fly, always take the train.") as turn:
        await turn.tool(
            "weather", {"city": "Lyon"}, lambda city: f"19 °C in {city}", cache_turns=90
        )
        answer = await turn.finish("Understood: trains only.")
    await session.pin(answer.id)
    await session.add_note("screen", "The map of Lyon is open.", turns=90)
    for day in range(1, 41):
        async with session.turn(f"What shall we see on day {day}?") as turn:
            await turn.finish(f"On day {day}: the old town. {LONG if day % 3 == 0 else ''}")
    await session.compact()
    return session


def same(first: Context, second: Context) -> None:
    assert first.selection == second.selection
    assert first.why.to_json() == second.why.to_json()
    assert str(first.why) == str(second.why)
    assert first.text == second.text


async def test_a_users_copy_of_hybrid_makes_the_same_contexts(url: str, copied: ModuleType) -> None:
    users: dict[str, Strategy] = {
        "own": OwnHybrid(),
        "forwarded": ForwardedHybrid(),
        "copied": copied.Hybrid(),
    }
    assert not any(isinstance(each, Window) for each in users.values())
    views = {name: View(1, each) for name, each in [("ours", Hybrid()), *users.items()]}
    seen: set[str] = set()
    compaction = Compaction(turns=4, batch_size=2)
    async with Memory.open(
        url, counter=Estimator(), views=views, compaction=compaction, recall="owner"
    ) as memory:
        session = await furnished(memory)
        async with session.turn(QUESTION) as turn:
            for budget in BUDGETS:
                ours = await turn.context("ours", budget=budget)
                seen |= {*ours.why.sections}
                for name in users:
                    same(ours, await turn.context(name, budget=budget))
                    before = await turn.context("ours", budget=budget, newest=False)
                    same(before, await turn.context(name, budget=budget, newest=False))
            await turn.finish("A rye sourdough starter.")
        for name in users:
            queried = await session.context("ours", budget=800, query="rye sourdough")
            same(queried, await session.context(name, budget=800, query="rye sourdough"))
    assert seen >= {"pins", "notes", "facts", "summary", "important", "tools", "recalled", "window"}


@pytest.mark.parametrize("name", ["Window", "Summarized", "Recall"])
async def test_copies_of_the_other_strategies_make_the_same_contexts(
    copied: ModuleType, name: str
) -> None:
    ours = {"Window": Window, "Summarized": Summarized, "Recall": Recall}[name]
    views = {"ours": View(1, ours()), "copied": View(1, getattr(copied, name)())}
    async with Memory.open("ram://", counter=Estimator(), views=views) as memory:
        session = await furnished(memory)
        async with session.turn(QUESTION) as turn:
            for budget in BUDGETS:
                first = await turn.context("ours", budget=budget)
                same(first, await turn.context("copied", budget=budget))
            await turn.finish("A rye sourdough starter.")


async def test_old_turns_are_compacted_for_a_users_strategy(url: str) -> None:
    views = {"chat": View(600, OwnHybrid())}
    compaction = Compaction(turns=4, batch_size=2)
    async with Memory.open(
        url, counter=Estimator(), views=views, compaction=compaction, recall="owner"
    ) as memory:
        session = await memory.session("trip", owner=OWNER)
        for day in range(1, 31):
            async with session.turn(f"What shall we see on day {day}?") as turn:
                await turn.finish(f"On day {day}: the old town, then the harbour.")
        await memory._runtime.background.settle()
        reasons = [choice.reason for choice in (await session.context()).why.shown]
    assert any(reason.startswith("a summary of everything up to") for reason in reasons), reasons


def test_a_list_that_nobody_stores_is_fitted_the_same() -> None:
    log = [
        Message(role=role, content=f"{role} {n}: {LONG[: n * 7]}")
        for n in range(60)
        for role in ("user", "assistant")
    ]
    for budget in BUDGETS:
        ours = fit(log, budget, strategy=Hybrid(), counter=Estimator())
        same(ours, fit(log, budget, strategy=OwnHybrid(), counter=Estimator()))


class Selecting:
    """The least that a strategy can be; it remembers what it was given."""

    def __init__(self) -> None:
        self.given: list[Material] = []

    def select(self, material: Material, budget: int) -> Selection:
        self.given.append(material)
        newest = [material.newest_user] if material.newest_user else []
        return Selection(budget, 16 + material.system_tokens, material.system_prompt, newest, ())


class Needing(Selecting):
    """A strategy that only selects, and says what it needs."""

    def __init__(self, *needs: Need) -> None:
        super().__init__()
        self.needs = frozenset(needs)


async def test_a_strategy_that_only_selects_is_given_what_it_needs(url: str) -> None:
    all_needs: tuple[Need, ...] = ("facts", "summaries", "recall")
    plain, needing = Selecting(), Needing(*all_needs)
    each = {need: Needing(need) for need in all_needs}
    views = {"plain": plain, "needing": needing, **each}
    async with Memory.open(
        url,
        counter=Estimator(),
        views={name: View(400, strategy) for name, strategy in views.items()},
        compaction=Compaction(turns=4, batch_size=2),
        recall="owner",
    ) as memory:
        session = await furnished(memory)
        async with session.turn(QUESTION) as turn:
            for name in views:
                await turn.context(name)
            await turn.finish("A rye sourdough starter.")

    def given(strategy: Selecting) -> set[str]:
        (material,) = strategy.given
        assert material.messages
        assert material.pins
        assert material.notes
        assert material.tool_results
        found = {
            "facts": bool(material.facts),
            "summaries": material.past != History(),
            "recall": material.recalled != Recalled(),
        }
        return {name for name, is_given in found.items() if is_given}

    assert given(plain) == set()
    assert given(needing) == {*all_needs}
    assert {need: given(strategy) for need, strategy in each.items()} == {n: {n} for n in all_needs}
    material = needing.given[0]
    assert material.past.summary is not None
    assert material.past.summary.last < material.messages[0].seq
    assert {hit.id for hit in material.recalled.hits} >= {"kitchen"}


async def test_a_plan_cannot_read_what_its_strategy_does_not_name() -> None:
    class Greedy(OwnHybrid):
        needs: frozenset[Need] = frozenset()

    class Plain(OwnHybrid):
        """Asks for recall whatever the material says."""

        def plan(self, material: Material, budget: int) -> Any:
            plan = Forwarded(super().plan(material, budget))
            plan.recall = RecallRequest(200, everywhere=True)
            return plan

    views = {"greedy": View(600, Greedy()), "plain": View(600, Plain())}
    compaction = Compaction(turns=4, batch_size=2)
    async with Memory.open("ram://", views=views, compaction=compaction) as memory:
        session = await furnished(memory)
        async with session.turn(QUESTION) as turn:
            greedy = await turn.context("greedy")
            assert not {"facts", "summary", "important", "recalled"} & {*greedy.why.sections}
            assert "recalled" in (await turn.context("plain")).why.sections
            async with turn.delegate(QUESTION) as child:  # isolated: it sees its task alone
                context = await child.context("plain")
                await child.finish("I cannot know.")
            await turn.finish("A rye sourdough starter.")
    assert [message.content for message in context.messages] == [QUESTION]


@pytest.mark.parametrize("needs", ["facts", {"facts"}, frozenset({"facts", "telepathy"}), None])
def test_needs_that_nobody_can_meet_are_refused(needs: Any) -> None:
    strategy = Needing()
    strategy.needs = needs
    with pytest.raises(InvalidInput, match="must be a frozenset of names among facts, summaries"):
        View(100, strategy)


def test_the_types_of_strategies_agree() -> None:
    planned: list[PlannedStrategy] = [Window(), Summarized(), Hybrid(), Recall(), OwnHybrid()]
    chosen: list[Strategy] = [*planned, Selecting(), Needing("facts")]
    assert len(chosen) == 7
    assert Window().needs == {"facts"}
    assert Summarized().needs == {"facts", "summaries"}
    assert Hybrid().needs == OwnHybrid.needs
    assert Recall().needs == {"facts", "recall"}
