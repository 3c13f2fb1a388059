"""P30 at a small size, and that its laws notice what they are for."""

import asyncio
from collections import Counter

import pytest

from keepthread import Message, Window
from keepthread.context.hidden import HiddenRanges
from keepthread.context.strategies import WindowPlan
from keepthread.memory.conversation import Conversation
from keepthread.protocols import Material
from proofs.p30_laws import PROOF, play
from proofs.playing import Broken
from tests.proving import hold


def test_a_context_shows_what_the_laws_say() -> None:
    hold(PROOF)


def played(size: int, *steps: tuple[str, int]) -> None:
    asyncio.run(play(size, list(steps), Counter(), []))


def test_the_laws_see_a_question_that_is_hidden_from_its_own_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = [("look", n) for n in range(8)]
    played(10, ("ask", 1), ("clear", 1), *looks)

    def hidden(marks: HiddenRanges, message: Message, before: int) -> HiddenRanges:
        return marks

    monkeypatch.setattr(HiddenRanges, "showing", hidden)
    with pytest.raises(Broken, match="is shown, not"):
        played(10, ("ask", 1), ("clear", 1), *looks)


def test_the_laws_see_a_budget_that_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = [(name, n) for n in range(30) for name in ("note", "ask")]
    steps = [*turns, *[("look", n) for n in range(8)]]
    played(90, *steps)

    async def once(
        self: Conversation, strategy: Window, material: Material, budget: int
    ) -> tuple[WindowPlan, Material]:
        return strategy.plan(material, budget), material

    monkeypatch.setattr(Conversation, "_planned", once)
    with pytest.raises(Broken):
        played(90, *steps)
