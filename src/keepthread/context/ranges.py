"""Ranges of positions, both ends included: merged, subtracted, counted, written for people."""

from collections.abc import Iterable, Sequence
from typing import TypeAlias

Range: TypeAlias = tuple[int, int]


def merged(ranges: Iterable[Range]) -> list[Range]:
    """Return the same positions in as few ranges as there can be, in order."""
    found: list[Range] = []
    for first, last in sorted(ranges):
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(last, found[-1][1]))
        else:
            found.append((first, last))
    return found


def without(ranges: Iterable[Range], gone: Iterable[Range]) -> list[Range]:
    """Return the positions of `ranges` that are in none of the others."""
    left: list[Range] = []
    cuts, at = merged(gone), 0
    for begin, end in merged(ranges):
        start = begin
        while at < len(cuts) and cuts[at][0] <= end:
            first, last = cuts[at]
            if start < first:
                left.append((start, first - 1))
            start = max(start, last + 1)
            if last > end:  # it may also cut the next range
                break
            at += 1
        if start <= end:
            left.append((start, end))
    return left


def shared(ranges: Iterable[Range], others: Iterable[Range]) -> list[Range]:
    """Return the positions that are in both."""
    return merged(
        (max(start, first), min(end, last))
        for first, last in merged(others)
        for start, end in merged(ranges)
        if start <= last and first <= end
    )


def count(ranges: Iterable[Range]) -> int:
    """Return how many positions there are."""
    return sum(last - first + 1 for first, last in ranges)


def counted(count: int, one: str, many: str = "") -> str:
    """Return a number with its noun: `1 session`, `2 sessions`."""
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"


def written(ranges: Sequence[Range]) -> str:
    """Write ranges for people: `3, 7-12`."""
    return ", ".join(f"{a:,}" if a == b else f"{a:,}-{b:,}" for a, b in ranges)
