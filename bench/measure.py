"""Measuring: CPU of the whole process in short slices, taken in turn, and medians of rounds."""

import gc
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeAlias

Work: TypeAlias = Callable[[int], object]
"""Does the same thing so many times."""

MICRO = 1e6


@contextmanager
def no_collection() -> Iterator[None]:
    """Keep the garbage collector from falling into somebody's slice."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def cpu_in_turn(work: Mapping[str, Work], *, slices: int, count: int) -> dict[str, float]:
    """Return the CPU seconds that each kind of work takes once, all its threads included.

    Each is run `slices` times `count`, in turn and from another start each time, so that what
    the machine does beside falls on all alike.
    """
    spent = dict.fromkeys(work, 0.0)
    names = list(work)
    with no_collection():
        for turn in range(slices):
            first = turn % len(names)
            for name in names[first:] + names[:first]:
                start = time.process_time()
                work[name](count)
                spent[name] += time.process_time() - start
    return {name: seconds / (slices * count) for name, seconds in spent.items()}


def median(values: Sequence[float]) -> float:
    """Return the middle value."""
    return statistics.median(values)


def middle_half(values: Sequence[float]) -> tuple[float, float]:
    """Return the first and the third quartile."""
    if len(values) < 2:
        return values[0], values[0]
    first, _, third = statistics.quantiles(values, n=4, method="inclusive")
    return first, third


def ratios(rounds: Sequence[Mapping[str, float]], name: str, base: str) -> list[float]:
    """Return one ratio a round, both sides of it measured in that round."""
    return [figures[name] / figures[base] for figures in rounds]
