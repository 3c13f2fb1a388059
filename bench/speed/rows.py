"""Rows made from rounds."""

from collections.abc import Mapping, Sequence

from bench import Bar, Row
from bench.measure import MICRO, median, middle_half, ratios


def named(what: str, size: int) -> str:
    """Name a row and the size of its messages."""
    return f"{what}, {size:,} bytes"


def microseconds(group: str, name: str, seconds: Sequence[float]) -> Row:
    """Return a row of time."""
    micro = [each * MICRO for each in seconds]
    return Row(group=group, name=name, value=median(micro), unit="µs", spread=middle_half(micro))


def times(
    group: str,
    name: str,
    rounds: Sequence[Mapping[str, float]],
    contender: str,
    base: str,
    *,
    unit: str = "× bare",
    bar: Bar | None = None,
) -> Row:
    """Return a row that says how many times the base a contender takes."""
    found = ratios(rounds, contender, base)
    return Row(
        group=group, name=name, value=median(found), unit=unit, spread=middle_half(found), bar=bar
    )
