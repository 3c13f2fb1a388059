"""Resolution: which stored facts are current at a given time, by fixed rules and without a model.

Facts of one agent, subject and attribute share a slot. An attribute that can have several values
has a slot for each value, and a fact without an attribute has one for its text. In a slot:

- A fact holds from its `since` to its `until`. Of several, the most trusted holds, and of those the
  one that took effect last: when it was said, or at its `since` if that is later.
- A fact without an end replaces what it takes over from, for good. One with an end of its own only
  covers the others for that time.
- A fact that has ended ends its own value, said before it, and no other. If its value is the name
  of the attribute ("no car any more"), it ends every value.
- Only equal or higher trust replaces or ends.
- Of what was said at one time of the clock, the order of saying decides.

Nothing of this is stored, so it cannot be out of date: if a fact is forgotten, the one before it
holds again, and a fact that is noted late takes its place in the past.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import Final, NamedTuple, TypeAlias

from keepthread.context.trust import rank
from keepthread.memory.facts.types import Fact, FactState, Noted
from keepthread.memory.facts.validity import NEVER, Moment, Statement, Validity, holder_at, validity
from keepthread.types import Origin

QUARANTINED: Final = frozenset[Origin](("tool", "import", "web"))
"""Origins whose facts are not used until the owner confirms them."""
Slot: TypeAlias = tuple[str, str, str, str]


def same(text: str) -> str:
    """Normalize a text so that equivalent texts compare equal."""
    return " ".join(text.casefold().split())


def slot_of(fact: Noted | Fact) -> Slot:
    """Return the slot of a fact, its agent first: one fact per slot holds at a time."""
    # Names that only look alike are two people, each trusted about themselves only.
    subject, attribute = fact.subject, same(fact.attribute)
    if not attribute:
        return fact.agent, subject, "", same(fact.text)
    return fact.agent, subject, attribute, said(fact) if fact.many else ""


def said(fact: Noted | Fact) -> str:
    """Return the content of a fact; another one with the same in its slot only repeats it."""
    return same(fact.value or fact.text)


def standing(fact: Noted) -> Origin:
    """Return the trust of a fact; a confirmed one counts as the owner's word."""
    if fact.confirmed_at is None:
        return fact.trust
    return max(fact.trust, "user", key=rank)


class SlotFacts(NamedTuple):
    """The facts of a slot with their states, and the times at which they are the same."""

    facts: Sequence[Fact]
    since: float = -inf
    until: float = inf

    def holds_at(self, now: float) -> bool:
        """Return whether the states are the same at another time."""
        return self.since <= now < self.until


def resolve_slot(slot: Sequence[Noted], now: float) -> SlotFacts:
    """Return the facts of one slot with their states now, in any order."""
    if len(slot) == 1 and slot[0].since is None and slot[0].until is None:
        # Most slots hold one fact, which is true since it was said.
        only = slot[0]
        state = "quarantined" if standing(only) in QUARANTINED else "live"
        return SlotFacts([_fact(only, state)])
    taken = _statements([fact for fact in slot if standing(fact) not in QUARANTINED])
    last = max([each.at for each in taken], default=-inf)
    ends = [valid.end.time for valid in validity(taken).values()]
    starts = [each.start.time for each in taken]
    untils = [each.until.time for each in taken if each.until is not None]
    times = [*starts, *ends, *untils]
    asked = max(now, last)
    before = max([time for time in times if time <= asked], default=-inf)
    after = min([time for time in times if time > asked], default=inf)
    # Now is never earlier than the last statement, so a time up to it changes nothing.
    return SlotFacts(_resolved(slot, now, None), before if before > last else -inf, after)


def resolve(noted: Iterable[Noted], now: float, *, asked: float | None = None) -> list[Fact]:
    """Return every fact with its state at a time, in the order in which they became true.

    The time is `asked`, or now. Now is never earlier than a statement, even if a clock went back.
    """
    slots: defaultdict[Slot, list[Noted]] = defaultdict(list)
    for fact in noted:
        slots[slot_of(fact)].append(fact)
    found = [fact for slot in slots.values() for fact in _resolved(slot, now, asked)]
    return sorted(found, key=order_of)


def order_of(fact: Fact) -> tuple[float, int, str]:
    """Return what facts are ordered by: when they became true, and where they were said."""
    return fact.since, fact.messages[-1].seq if fact.messages else 0, fact.key


def in_order(slot: Sequence[Noted]) -> list[Noted]:
    """Return the facts of a slot in the order in which they were said.

    Within a session that is the log's order, across sessions the clock's. Where a clock went back,
    what comes later in a log counts as no earlier than what came before it. Of one message's facts
    those that ended come first: "I moved to Oslo, I don't live in Bergen any more".
    """
    times = _times(slot)

    def place(fact: Noted) -> tuple[float, str, int, bool, int, str]:
        session, seq = fact.place or ("", 0)
        return times[fact.key], session, seq, not _has_ended(fact), fact.offset, fact.key

    return sorted(slot, key=place)


def _times(slot: Sequence[Noted]) -> dict[str, float]:
    """Return when each fact counts as said, by its key."""
    reached: dict[str, float] = {}
    times: dict[str, float] = {}
    for fact in sorted(slot, key=lambda f: (f.place or ("", 0), f.at, f.key)):
        at = fact.at
        if fact.place:
            at = reached[fact.place[0]] = max(at, reached.get(fact.place[0], at))
        times[fact.key] = at
    return times


def _has_ended(fact: Noted) -> bool:
    """Return whether a fact only says that something ended; it never holds itself."""
    began = fact.at if fact.since is None else fact.since
    return fact.until is not None and fact.until <= began


# --- one slot ---


def _resolved(slot: Sequence[Noted], now: float, asked: float | None) -> list[Fact]:
    """Return the facts of one slot with their states at a time."""
    waiting = [_fact(f, "quarantined") for f in slot if standing(f) in QUARANTINED]
    taken = [fact for fact in slot if standing(fact) not in QUARANTINED]
    statements = _statements(taken)
    noted = {fact.key: fact for fact in taken}
    if asked is None:
        asked = max([now, *(each.at for each in statements)])
    time = Moment(asked, inf)  # after everything that was said at that time
    found = validity(statements)
    holder = holder_at(found, time)
    facts: dict[str, Fact] = {}
    for key, valid in found.items():
        state, until, by = _state(valid, holder, time)
        fact = _fact(noted[key], state)._replace(since=valid.statement.start.time)
        ended = None if until >= NEVER else until.time
        facts[key] = fact._replace(until=ended, replaced_by=by)
    return [*waiting, *_linked(facts, found).values()]


def _statements(taken: Sequence[Noted]) -> list[Statement]:
    times = _times(taken)
    found: list[Statement] = []
    for number, fact in enumerate(in_order(taken)):
        at, value = times[fact.key], said(fact)
        moment = Moment(at, number)
        until = None if fact.until is None else Moment(fact.until)
        if fact.since is None and fact.until == fact.at:
            until = moment  # "No longer" counts from when it was said, also where a clock went back
        statement = Statement(
            key=fact.key,
            number=number,
            value=value,
            rank=rank(standing(fact)),
            at=at,
            start=moment if fact.since is None else Moment(fact.since),
            until=until,
            lasts=fact.until is None or fact.end_added,
            everything=bool(fact.attribute) and value == same(fact.attribute),
        )
        found.append(statement)
    return found


def _state(valid: Validity, holder: Validity | None, time: Moment) -> tuple[FactState, Moment, str]:
    """Return a fact's state at a time, when it ceases to hold, and which fact replaces it."""
    start, end = valid.statement.start, max(valid.end, valid.statement.start)
    if valid.statement.is_end:
        until = start if valid.statement.until is None else valid.statement.until
        return ("superseded" if valid.by else "ended"), until, valid.by
    if not valid.holds:
        return "superseded", start, valid.by
    if time < start:
        return "future", end, ""
    if time >= end:
        return ("superseded" if valid.by else "ended"), end, valid.by
    if holder is None or holder is valid:
        return "live", end, ""
    return "superseded", max(start, holder.statement.start), holder.statement.key


def _linked(facts: Mapping[str, Fact], found: Mapping[str, Validity]) -> dict[str, Fact]:
    """Return the facts with what each replaces; one that only repeats holds since the first."""
    linked = dict(facts)
    for key in sorted(facts, key=lambda key: found[key].statement.effect):
        before, valid = linked[key], found[key]
        after = linked.get(before.replaced_by)
        if after is None or not valid.holds or before.replaced_by != valid.by:
            continue
        after = after._replace(replaces=key)
        other = found[after.key].statement
        again = (
            other.start.time == other.at and other.until is None and valid.statement.until is None
        )
        if again and said(before) == said(after):
            after = after._replace(since=before.since)
        linked[after.key] = after
    return linked


def _fact(noted: Noted, state: FactState) -> Fact:
    return Fact(
        key=noted.key,
        text=noted.text,
        subject=noted.subject,
        attribute=noted.attribute,
        value=noted.value,
        many=noted.many,
        messages=noted.messages,
        origin=noted.origin,
        trust=standing(noted),
        state=state,
        since=noted.at if noted.since is None else noted.since,
        until=noted.until,
        replaced_by="",
        replaces="",
        noted_at=noted.noted_at,
        by=noted.by,
        confirmed=noted.confirmed_at is not None,
        agent=noted.agent,
        source=noted.source,
    )
