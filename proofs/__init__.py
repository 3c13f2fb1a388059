"""The promises of `docs/why/promises.md`, each proved by trying to break it.

A proof is a module with a `PROOF`; `python -m proofs NAME` runs one at the size that closes work on
it, `--long` at length, and the tests run each at a small size. A failure prints its seed.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

Progress: TypeAlias = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a proof saw: `broken` names every way in which the promise did not hold."""

    figures: Mapping[str, int | float | str]
    broken: tuple[str, ...] = ()

    @property
    def held(self) -> bool:
        """Tell whether the promise held."""
        return not self.broken


Run: TypeAlias = Callable[[int, int, Progress], Outcome]
"""Takes the size, the seed and a callback for progress."""


def nowhere_else() -> Mapping[str, Run]:
    """Say that a proof runs here alone: on files, or without any store."""
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """One promise, the ways to size its test, and the test."""

    name: str
    promise: str
    unit: str
    small: int
    closing: int
    long: int
    run: Run
    on: Mapping[str, Run] = field(default_factory=nowhere_else)
    """The same promise on servers, by the backend's name: `postgres`, `redis`, `cluster`."""
