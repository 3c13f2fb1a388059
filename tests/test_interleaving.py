"""What operations begin, they end, whatever runs beside them and wherever they are interrupted.

Before a call of the store by one operation, another runs whole, or the first is canceled, or its
process is killed. `tests/interleaving.py` has the operations and what must hold after each trial.
"""

import random
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from keepthread.protocols import Store
from keepthread.stores.url import store_at
from tests.interleaving import OPERATIONS, Trial, attempt
from tests.seeds import SEED, examples

THEN = (*OPERATIONS, "cancel", "kill")
SAMPLE = {"sqlite": 100, "postgres": 40}


@pytest.fixture(params=["sqlite", "postgres"])
async def tenants(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Any]:
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path / 'memory.db'}"
    else:
        url = request.getfixturevalue("postgres").empty()
    store = await store_at(url)(durability="process")
    yield Tenants(store, request.param)
    await store.close()


class Tenants:
    """Tries each trial in a tenant of its own: opening a store takes longer than a trial."""

    def __init__(self, store: Store, kind: str) -> None:
        self.kind = kind
        self.broken: dict[tuple[str, str, str], list[Trial]] = {}
        self._store = store
        self._numbers = count()

    async def attempt(self, trial: Trial) -> int:
        calls, problems = await attempt(self._store.tenant(f"tenant {next(self._numbers)}"), trial)
        for problem in problems:
            self.broken.setdefault((trial.first, trial.then, problem), []).append(trial)
        return calls

    def report(self) -> str:
        """Return what is wrong, with the first trial that shows it."""
        return "\n".join(
            f"{problem} ({len(trials)} times): {trials[0]}"
            for (_, _, problem), trials in self.broken.items()
        )


def drawn(rng: random.Random, first: str, then: str, at: int) -> Trial:
    return Trial(first, then, at, rng.random() < 0.5, rng.choice([None, "mine"]))


async def test_operations_end_whatever_happens_at_some_of_their_calls(tenants: Tenants) -> None:
    rng = random.Random(SEED)
    calls = dict.fromkeys(OPERATIONS, 10)
    for _ in range(examples(SAMPLE[tenants.kind])):
        first = rng.choice(list(OPERATIONS))
        then = rng.choice([*THEN, "cancel", "kill"])
        trial = drawn(rng, first, then, rng.randint(1, calls[first]))
        calls[first] = max(calls[first], await tenants.attempt(trial))
    assert not tenants.broken, tenants.report()


@pytest.mark.nightly
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("first", OPERATIONS)
async def test_operations_end_whatever_happens_at_any_of_their_calls(
    tenants: Tenants, first: str
) -> None:
    rng = random.Random(SEED)
    for then in THEN:
        at = 1
        while await tenants.attempt(drawn(rng, first, then, at)) >= at:
            at += 1
    assert not tenants.broken, tenants.report()
