"""Validity: from when to when each fact of one slot holds, given the other facts in it."""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import Final, NamedTuple


class Moment(NamedTuple):
    """A point in time; statements made at the same clock time are ordered by their number.

    Clocks can stop and go back. A fact that is stated and ended at the same clock time held in
    between, and replaced the fact before it.
    """

    time: float
    number: float = -1
    """The position of the statement made then; -1 for a time that a caller named."""


NEVER: Final = Moment(inf)


class Statement(NamedTuple):
    """A fact of a slot that counts, and the time it is about."""

    key: str
    number: int
    """Its position in the order in which the slot's facts were said."""
    value: str
    rank: int
    """Its trust as a number."""
    at: float
    """When it was said."""
    start: Moment
    until: Moment | None
    lasts: bool
    """Whether it replaces others permanently: it has no end, or an edit added its end."""
    everything: bool
    """Whether it names no value, only the attribute: its end is the end of every value."""

    @property
    def is_end(self) -> bool:
        """Return whether it only says that its value ended, and never holds itself."""
        return self.until is not None and self.until <= self.start

    @property
    def effect(self) -> tuple[float, int]:
        """Return when it takes effect: when it was said, or later if it is about the future."""
        start = self.start if self.until is None else min(self.start, self.until)
        return max(self.at, start.time), self.number

    def concerns(self, other: "Statement") -> bool:
        """Return whether it is about the value of another statement."""
        return self.value == other.value or (self.is_end and self.everything)


class Validity(NamedTuple):
    """When a statement holds: from its start up to `end`."""

    statement: Statement
    end: Moment
    by: str = ""
    """The key of the fact that ends or replaces it; empty if there is none."""
    holds: bool = True
    """Whether it holds at any time."""


def validity(statements: Sequence[Statement]) -> dict[str, Validity]:
    """Return when each statement of a slot holds, by its key; they must be in the order said."""
    claims = [each for each in statements if not each.is_end]
    ends = [each for each in statements if each.is_end]
    periods = [each for each in claims if each.until is not None]
    found = {each.key: _ended(each, ends, periods) for each in claims}
    for rank in sorted({each.rank for each in claims}, reverse=True):
        higher = sorted(_holding(found, above=rank), key=lambda v: v.statement.effect)
        for each in claims:
            valid = found[each.key]
            if each.rank == rank and valid.holds and (by := _contradicts(valid, higher)):
                found[each.key] = valid._replace(by=by, holds=False)
        found |= _replaced(found, rank)
    return found | {each.key: _end(each, found.values(), ends) for each in ends}


def holder_at(found: Mapping[str, Validity], time: Moment) -> Validity | None:
    """Return the statement that holds at a time: the most trusted; of equals, the latest."""
    valid = (v for v in found.values() if v.holds and v.statement.start <= time < v.end)
    return max(valid, key=lambda v: (v.statement.rank, v.statement.effect), default=None)


def _holding(found: Mapping[str, Validity], *, above: int) -> list[Validity]:
    return [v for v in found.values() if v.holds and v.statement.rank > above]


def _ended(claim: Statement, ends: Sequence[Statement], periods: Sequence[Statement]) -> Validity:
    """Return when a claim holds by its own words and by statements about its value."""
    own = NEVER if claim.until is None else claim.until
    valid = Validity(claim, own)
    for end in ends:
        if end.until is None or not end.concerns(claim):
            continue
        if end.number < claim.number:
            if end.rank > claim.rank:  # a more trusted statement denied it
                return Validity(claim, claim.start, end.key, holds=False)
        elif end.rank >= claim.rank and end.until < valid.end:
            valid = Validity(claim, end.until, end.key, holds=end.until > claim.start)
    for period in periods:
        if period.until is None or period.number <= claim.number or period.value != claim.value:
            continue
        meets = claim.start < period.until and own > period.start
        if meets and period.rank >= claim.rank and period.until < valid.end:
            valid = Validity(claim, period.until)
    return valid


def _contradicts(valid: Validity, higher: Sequence[Validity]) -> str:
    """Return the key of a more trusted claim that took effect before and holds at the same time."""
    before = bisect_left(higher, valid.statement.effect, key=lambda v: v.statement.effect)
    for other in reversed(higher[:before]):
        if other.statement.start < valid.end and other.end > valid.statement.start:
            return other.statement.key
    return ""


def _replaced(found: Mapping[str, Validity], rank: int) -> dict[str, Validity]:
    """Return the claims of one rank, each cut where a later one that lasts takes over."""
    claims = sorted(_holding(found, above=rank - 1), key=lambda v: v.statement.effect)
    cut: dict[str, Validity] = {}
    start, by = NEVER, ""
    for valid in reversed(claims):
        own = valid.statement
        if own.rank == rank and start < valid.end:
            cut[own.key] = valid._replace(end=start, by=by, holds=start > own.start)
        if own.lasts and own.start <= start:
            start, by = own.start, own.key
    return cut


def _end(end: Statement, claims: Iterable[Validity], ends: Sequence[Statement]) -> Validity:
    """Return an end, superseded if a more trusted one denies it or its value is stated again."""
    denied = ""
    again: list[Statement] = [e for e in ends if e.concerns(end) and e.rank >= end.rank]
    for valid in claims:
        claim = valid.statement
        if not valid.holds or not end.concerns(claim):
            continue
        before = claim.number < end.number
        if before and claim.rank > end.rank and end.until is not None and valid.end > end.until:
            denied = claim.key
        if claim.rank >= end.rank:
            again.append(claim)
    later = [each for each in again if each.effect > end.effect]
    first = min(later, key=lambda each: each.effect, default=None)
    return Validity(end, end.start, denied or (first.key if first else ""), holds=False)
