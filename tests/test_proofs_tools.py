"""The promise that a remembered result is given while it lives, and a tool runs once, in small."""

from pathlib import Path

import pytest

from proofs import p17_tools
from proofs.p17_tools import Kept, Model, Tally
from tests.proving import hold
from tests.seeds import SEED


def test_a_remembered_result_is_given_while_it_lives_and_a_tool_runs_once() -> None:
    outcome = hold(p17_tools.PROOF)
    assert outcome.figures["hits"]


class Longer(Model):
    """Believes that a result serves one turn more."""

    def serves(self, kept: Kept, turn: int) -> bool:
        return turn <= kept.last + 1 and kept.seq not in self.hidden


class Blind(Model):
    """Believes that what is hidden still serves."""

    def hide(self, after: int) -> None:
        pass


class Unused(Model):
    """Believes that a use changes nothing."""

    def use(self, key: tuple[str, str, str], turn: int) -> None:
        pass


@pytest.mark.parametrize("model", [Longer, Blind, Unused])
async def test_the_proof_sees_other_rules(tmp_path: Path, model: type[Model]) -> None:
    tally = Tally()
    await p17_tools.drive_all(tmp_path, 300, SEED, tally, lambda done, of: None, model)
    assert tally.broken
