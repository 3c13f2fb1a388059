"""The benchmarks: `python -m bench NAME` measures one subject and judges its bars.

A benchmark is a module with a `BENCHMARK`, listed in `bench.__main__`. It takes a `Run` and
returns a `Report` of rows; the frame prints them, for people or as JSON, and sets the status.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ENOUGH_ROUNDS = 9
"""Fewer rounds show figures, but judge nothing."""


@dataclass(frozen=True, slots=True)
class Bar:
    """What a value must reach: at most the limit, or at least."""

    limit: float
    at_least: bool = False

    def holds(self, value: float) -> bool:
        """Tell whether a value keeps to the bar."""
        return (operator.ge if self.at_least else operator.le)(value, self.limit)

    def __str__(self) -> str:
        return f"{'>=' if self.at_least else '<='} {self.limit:g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure, how far it moved between the rounds, and the bar it must keep to, if any."""

    group: str
    name: str
    value: float
    unit: str
    spread: tuple[float, float] | None = None
    bar: Bar | None = None
    counted: bool = False
    """Whether it is a count, which is the same on any machine: a quick run judges it too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a benchmark found; the setting says where and with what it was measured."""

    setting: Sequence[str]
    rows: Sequence[Row]
    notes: Sequence[str] = ()
    figures: Mapping[str, object] | None = None
    """All that was measured, for `--json`, where that is more than the rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """How to measure: how long, where, and whom to tell how far it is."""

    quick: bool
    rounds: int
    memory: Path
    """A folder in memory, if the system has one; empty, and removed afterwards."""
    disk: Path
    """A folder on a disk; empty, and removed afterwards."""
    progress: Callable[[str], None]
    data: Path | None = None
    """A folder with what is measured, where that is no part of the project."""
    model: Path | None = None
    """A folder with a model that embeds."""
    store: str | None = None
    """The URL of a store to measure, where a benchmark can do with any."""
    only: str | None = None
    """Which rows to measure, where a benchmark can measure some alone."""
    half: str = "both"
    """Which half of the data to measure, where a benchmark has two."""

    @property
    def judged(self) -> bool:
        """Tell whether there are enough rounds to judge a bar."""
        return self.rounds >= ENOUGH_ROUNDS and not self.quick


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """One subject under a name."""

    name: str
    about: str
    measure: Callable[[Run], Report]
