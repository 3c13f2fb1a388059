"""What operations begin, they end, whatever runs beside them and wherever they are interrupted.

Before a call of the store by one operation, another runs whole, or the first is canceled, or its
process is killed. `tests/interleaving.py` has the operations and what must hold after each trial.
"""

import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from keepthread.protocols import Store
from keepthread.stores.url import store_at
from tests.interleaving import OPERATIONS, Trial, attempt
from tests.seeds import SEED, examples

THEN = (*OPERATIONS, "cancel", "kill")
SAMPLE = {"sqlite": 60, "postgres": 20}


A_FILE = 25
"""Trials in one file: checking a file takes longer with every tenant in it."""


@pytest.fixture(params=["sqlite", "postgres"])
async def tenants(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Any]:
    server = request.getfixturevalue("postgres").empty() if request.param == "postgres" else ""
    tenants = Tenants(request.param, lambda n: server or f"sqlite:///{tmp_path / f'{n}.db'}")
    yield tenants
    await tenants.close()


class Tenants:
    """Tries each trial in a tenant of its own: opening a store takes longer than a trial."""

    def __init__(self, kind: str, url: Callable[[int], str]) -> None:
        self.kind = kind
        self.broken: dict[tuple[str, str, str], list[Trial]] = {}
        self._url = url
        self._store: Store | None = None
        self._trials = 0

    async def close(self) -> None:
        if self._store:
            await self._store.close()

    async def _tenant(self) -> Store:
        """Return an empty tenant, from time to time in another file."""
        number = self._trials
        self._trials += 1
        if self._store is None or (number % A_FILE == 0 and self.kind == "sqlite"):
            await self.close()
            self._store = await store_at(self._url(number))(durability="process")
        return self._store.tenant(f"tenant {number}")

    async def attempt(self, trial: Trial) -> int:
        calls, problems = await attempt(await self._tenant(), trial)
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


async def test_a_message_of_a_session_that_is_deleted_is_forgotten_in_its_fork(
    tenants: Tenants,
) -> None:
    for at in range(1, 16, 1 if tenants.kind == "sqlite" else 3):  # later, the copies are known
        await tenants.attempt(Trial("forget a message", "delete a session", at, True))
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
