"""Truth: which of all the facts that were noted hold, by a rule of ours and no model's.

Facts of one subject and attribute share a slot. In it the newest holds, among those of the highest
trust: only equal or higher trust replaces. What an attribute can have several of has a slot for
each value, and a fact without an attribute has one for its text. Nothing of this is stored, so it
cannot be out of date: where a fact is gone, the one before it holds again, and one that arrives
late takes its place in the past.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

from keepthread.context.trust import rank
from keepthread.facts.nouns import Fact, FactState, Noted
from keepthread.types import Origin

QUARANTINED: Final = frozenset[Origin](("tool", "import", "web"))
"""Whose word is not taken until the owner confirms it."""
Slot: TypeAlias = tuple[str, str, str]


def same(text: str) -> str:
    """Return a text such that those that say the same are equal."""
    return " ".join(text.casefold().split())


def slot_of(fact: Noted | Fact) -> Slot:
    """Return what a fact competes for: one fact of a slot holds at a time."""
    subject, attribute = same(fact.subject), same(fact.attribute)
    if not attribute:
        return subject, "", same(fact.text)
    return subject, attribute, said(fact) if fact.many else ""


def said(fact: Noted | Fact) -> str:
    """Return what a fact says, such that another with the same in its slot only repeats it."""
    return same(fact.value or fact.text)


def standing(fact: Noted) -> Origin:
    """Return how much a fact counts; what its owner confirmed counts as the owner's word."""
    if fact.confirmed_at is None:
        return fact.trust
    return max(fact.trust, "user", key=rank)


def resolve(noted: Iterable[Noted], now: float) -> list[Fact]:
    """Return every fact with what holds of it, in the order in which they were said."""
    slots: defaultdict[Slot, list[Noted]] = defaultdict(list)
    for fact in noted:
        slots[slot_of(fact)].append(fact)
    found = [fact for slot in slots.values() for fact in _resolved(in_order(slot), now)]
    return sorted(found, key=lambda f: (f.since, f.messages[-1].seq if f.messages else 0, f.key))


def in_order(slot: Sequence[Noted]) -> list[Noted]:
    """Return the facts of a slot in the order in which they were said.

    Within a session that is the log's order, across sessions the clock's. Where a clock went back,
    what comes later in a log counts as no earlier than what came before it.
    """
    if len(slot) < 2:  # as most are
        return list(slot)
    reached: dict[str, float] = {}
    times: dict[str, tuple[float, str, int]] = {}
    for fact in sorted(slot, key=lambda f: (f.place or ("", 0), f.at, f.key)):
        session, seq = fact.place or ("", 0)
        at = fact.at
        if session:
            at = reached[session] = max(at, reached.get(session, at))
        times[fact.key] = (at, session, seq)
    return sorted(slot, key=lambda fact: (times[fact.key], fact.key))


def _resolved(slot: Sequence[Noted], now: float) -> list[Fact]:
    """Return the facts of one slot; of those that are taken, each reigns until another does."""
    facts: list[Fact] = []
    reigns: list[int] = []
    for fact in slot:
        trust = standing(fact)
        if trust in QUARANTINED:
            facts.append(_fact(fact, "quarantined"))
            continue
        before = facts[reigns[-1]] if reigns else None
        if before is not None and rank(trust) < rank(before.trust):
            beaten = _fact(fact, "superseded")
            facts.append(beaten._replace(until=beaten.since, replaced_by=before.key))
            continue
        new = _fact(fact, "live")
        if before is not None:
            start = new.since
            if fact.since is None and before.until is None and said(before) == said(new):
                new = new._replace(since=before.since)  # it was only said again
            facts[reigns[-1]] = before._replace(
                state="superseded",
                until=start if before.until is None else before.until,
                replaced_by=new.key,
            )
            new = new._replace(replaces=before.key)
        reigns.append(len(facts))
        facts.append(new)
    if reigns and (last := facts[reigns[-1]]).until is not None and last.until <= now:
        facts[reigns[-1]] = last._replace(state="ended")
    return facts


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
    )
