"""CPU compared with CPU in the same run: the speed of a machine and its load cancel out."""

import os
import resource
import subprocess
import sys
from collections.abc import Callable, Sequence

_FEWEST, _MOST = 5, 40
ENGINES = "import asyncio, sqlite3"
"""What every program that keeps conversations in a file imports: the measure for our own."""


def least_ratio(ours: Callable[[], float], base: Callable[[], float], bar: float) -> float:
    """Return how many times the CPU of `base` is taken by `ours`, the least of each.

    Both are measured in turn. Other work only adds to a figure, so the least of more rounds is
    nearer to the truth: they go on while the ratio is above the bar, up to a limit.
    """
    pairs = [(ours(), base()) for _ in range(_FEWEST)]
    while (ratio := _ratio(pairs)) > bar and len(pairs) < _MOST:
        pairs.append((ours(), base()))
    return ratio


def _ratio(pairs: Sequence[tuple[float, float]]) -> float:
    ours, base = map(min, zip(*pairs, strict=True))
    return ours / base


def cpu_of_program(code: str) -> float:
    """Return the CPU that a program takes from its start to its end.

    Without site: what is installed here may hook into every start, as coverage does.
    """
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def untraced() -> dict[str, str]:
    """Return the environment without what measures coverage: tracing would be most of the time."""
    return {name: text for name, text in os.environ.items() if not name.startswith("COVERAGE")}
