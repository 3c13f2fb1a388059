"""A plain model of which facts hold, written from the rules in `docs/how-to/facts.md` alone.

It shares no code with `keepthread.memory.facts`: it looks at every pair of statements, for one
moment.
"""

from dataclasses import dataclass, field
from math import inf
from typing import Final, TypeAlias

RANKS: Final = {"operator": 5, "user": 4, "assistant": 3, "tool": 2, "import": 1, "web": 0}
TAKEN: Final = 3
"""The rank below which a word is quarantined."""
Moment: TypeAlias = tuple[float, tuple[float, ...]]
"""A time, and the order of the statement that was made then; a time that was named has none."""
NEVER: Final[Moment] = (inf, ())


@dataclass
class Statement:
    """Something that was stated, by whom, and the time it speaks of."""

    key: str
    attribute: str
    value: str
    trust: str
    order: tuple[float, int, int]
    """What was said before has a lower one."""
    at: float
    since: float | None = None
    until: float | None = None
    many: bool = False
    confirmed: bool = False
    end_added: bool = False
    source: tuple[str, str] | None = None
    """The session and the message that state it."""
    earlier: list[str] = field(default_factory=list)

    @property
    def slot(self) -> tuple[str, str]:
        return self.attribute, self.value if self.many else ""

    @property
    def rank(self) -> int:
        return max(RANKS[self.trust], RANKS["user"] if self.confirmed else 0)

    @property
    def begins(self) -> Moment:
        return (self.at, self.order) if self.since is None else (self.since, ())

    @property
    def over(self) -> Moment:
        """Return when it is over by its own words; "no longer" counts from when it was said."""
        if self.since is None and self.until == self.at:
            return self.at, self.order
        return NEVER if self.until is None else (self.until, ())

    @property
    def closing(self) -> bool:
        """Tell whether it says no more than that something is over."""
        return self.over <= self.begins

    @property
    def effect(self) -> tuple[float, tuple[float, int, int]]:
        return max(self.at, min(self.begins, self.over)[0]), self.order

    def about(self, other: "Statement") -> bool:
        return self.value == other.value or (self.closing and self.value == self.attribute)


class Slot:
    """The statements of one slot that are not quarantined."""

    def __init__(self, statements: list[Statement]) -> None:
        self.all = sorted(statements, key=lambda s: s.order)
        self.claims = [s for s in self.all if not s.closing]
        self.closings = [s for s in self.all if s.closing]

    def said_end(self, claim: Statement) -> tuple[Moment, str]:
        """Return when a claim is over by its own words or by later ones about its value."""
        ends = [(claim.over, 0, "")]
        for other in self.all:
            if other.order <= claim.order or other.rank < claim.rank or not other.about(claim):
                continue
            if other.closing:
                ends.append((other.over, 1, other.key))
            elif other.until and claim.begins < other.over and claim.over > other.begins:
                ends.append((other.over, 2, ""))
        time, _, key = min(ends, key=lambda end: end[:2])
        return time, key

    def refused_by(self, claim: Statement) -> str | None:
        """Return what keeps a claim from ever being taken; None if it is."""
        for other in self.closings:
            if other.order < claim.order and other.rank > claim.rank and other.about(claim):
                return other.key
        time, key = self.said_end(claim)
        if time <= claim.begins:
            return key
        rivals = [o for o in self.claims if o.rank > claim.rank and o.effect < claim.effect]
        for other in sorted(rivals, key=lambda o: o.effect, reverse=True):
            end = self.end(other)[0]
            meets = other.begins < time and end > claim.begins
            if meets and end > other.begins and self.refused_by(other) is None:
                return other.key
        return None

    def end(self, claim: Statement) -> tuple[Moment, str]:
        """Return when a claim ceases to hold, and what ends it; nothing if its own words do."""
        time, key = self.said_end(claim)
        for other in sorted(self.claims, key=lambda o: o.effect):
            if other.until is not None and not other.end_added:
                continue
            later = other.effect > claim.effect and other.rank >= claim.rank
            if later and other.begins < time and self.refused_by(other) is None:
                time, key = other.begins, other.key
        return time, key

    def holder(self, time: float) -> Statement | None:
        asked = (time, (inf,))
        holding = [
            claim
            for claim in self.claims
            if claim.begins <= asked < self.end(claim)[0] and self.refused_by(claim) is None
        ]
        return max(holding, key=lambda s: (s.rank, s.effect), default=None)

    def state(self, statement: Statement, time: float) -> str:
        if statement.closing:
            return "superseded" if self._outdated(statement) else "ended"
        end, key = self.end(statement)
        if self.refused_by(statement) is not None or end <= statement.begins:
            return "superseded"
        asked = (time, (inf,))
        if asked < statement.begins:
            return "future"
        if asked >= end:
            return "superseded" if key else "ended"
        return "live" if self.holder(time) is statement else "superseded"

    def _outdated(self, closing: Statement) -> bool:
        """Tell whether something more trusted denies an end, or its value is stated again."""
        for other in self.closings:
            later = other.effect > closing.effect and other.rank >= closing.rank
            if later and other.about(closing):
                return True
        for claim in self.claims:
            if not closing.about(claim) or self.refused_by(claim) is not None:
                continue
            end = self.end(claim)[0]
            if end <= claim.begins:
                continue
            if claim.rank >= closing.rank and claim.effect > closing.effect:
                return True
            before = claim.order < closing.order and claim.rank > closing.rank
            if before and end > closing.over:
                return True
        return False


class Shelf:
    """All statements of one owner."""

    def __init__(self) -> None:
        self.statements: dict[str, Statement] = {}

    def slot(self, slot: tuple[str, str]) -> Slot:
        found = [s for s in self.statements.values() if s.slot == slot and s.rank >= TAKEN]
        return Slot(found)

    def present(self, slot: tuple[str, str], now: float) -> float:
        """Return now; nothing that was said is of the future."""
        return max([now, *(s.at for s in self.slot(slot).all)])

    def states(self, now: float, asked: float | None = None) -> dict[str, str]:
        """Return the state of each statement at a time, by its key."""
        states: dict[str, str] = {}
        for slot in {s.slot for s in self.statements.values()}:
            time = self.present(slot, now) if asked is None else asked
            taken = self.slot(slot)
            states |= {s.key: taken.state(s, time) for s in taken.all}
        waiting = (s.key for s in self.statements.values() if s.rank < TAKEN)
        return states | dict.fromkeys(waiting, "quarantined")
