"""Loading a Markdown document that a person edited: new lines, changed ones, ticked boxes.

To resolve a slot costs as much as it has facts. So the facts are read once, and a line that adds a
fact does not resolve its slot: a fact without times that is said last holds, unless a more trusted
one contradicts it. Lines that change a fact resolve its slot, and may be few of one slot.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from math import inf
from typing import Any, Final, Literal, TypeAlias

from keepthread.context.trust import rank
from keepthread.errors import InvalidInput
from keepthread.memory.facts import markdown
from keepthread.memory.facts.documents import Changes
from keepthread.memory.facts.edits import Edit, moment_after
from keepthread.memory.facts.profile import FactIndex
from keepthread.memory.facts.records import checked
from keepthread.memory.facts.repository import FactRepository
from keepthread.memory.facts.resolution import (
    Slot,
    resolve_slot,
    said,
    slot_of,
    standing,
)
from keepthread.memory.facts.types import Fact, Loaded, Noted
from keepthread.stores.validation import check_text, check_time

MOST_CHANGES: Final = 100
"""Changed lines of one slot in a document: each costs as much as the slot has facts."""
_CURRENT: Final = ("live", "quarantined")
_NO_LINES: Final = (
    "the document has no facts: in Markdown, each fact is a line that begins with a dash and a"
    " space; a JSON document begins with a bracket"
)
_NO_TIME: Final = (
    "the document has no timestamp, so newer facts could be forgotten by mistake; keep the comment "
    "under its title"
)
_NO_FACT: Final = "there is no fact {!r}; list them to see their keys"
_Change: TypeAlias = Edit | Literal["confirm", "pass"] | None
"""The change that a line with a key asks for."""


async def load_markdown(repository: FactRepository, text: str, *, prune: bool) -> Loaded:
    """Apply the changes that a person made in a document; `prune` forgets what it lacks."""
    document = markdown.read(check_text(text, "a document"), repository.owner)
    if document.at is None and not document.lines:
        raise InvalidInput(_NO_LINES)
    if prune and document.at is None:
        raise InvalidInput(_NO_TIME)
    index = await repository.index()
    known = {fact.key: fact for fact in index.facts()}
    wanted = await _changes_of(document.lines, index, known)
    changes, slots = Changes(), _Slots(repository, index)
    for line, change in zip(document.lines, wanted, strict=True):
        await asyncio.sleep(0)  # an unchanged line waits for nothing, and there may be many
        if not line.key:
            key = await slots.add(line)
            if key and key not in known:
                changes.added.append(key)
        elif line.key not in known or change == "pass":
            changes.passed.append(line.key)
        elif isinstance(change, Edit):
            await slots.edit(line.key, change)
            changes.edited.append(line.key)
        elif change == "confirm":
            await slots.confirm(line.key)
            changes.confirmed.append(line.key)
    if prune and document.at is not None:
        # A fact that became true after the document was written cannot be missing from it.
        at = check_time(document.at, "at")
        then = {fact.key for fact in await repository.facts(at) if fact.state in _CURRENT}
        kept = {line.key for line in document.lines}
        lacking = [
            key
            for key, fact in known.items()
            if fact.state in _CURRENT
            and key not in kept
            and key in then
            and fact.noted_at <= document.at
        ]
        changes.forgotten += await _forget(repository, lacking)
    return changes.loaded()


async def _changes_of(
    lines: Sequence[markdown.Line], index: FactIndex, known: Mapping[str, Fact]
) -> Sequence[_Change]:
    """Return what each line changes; refuse a document that changes many facts of one slot."""
    wanted: list[_Change] = []
    often: Counter[Slot] = Counter()
    for line in lines:
        fact = known.get(line.key)
        if fact is None:
            wanted.append(None)
            continue
        await asyncio.sleep(0)
        change = _change_of(line, fact, index.owner)
        wanted.append(change)
        if change is None or change == "pass":
            continue
        noted = index.stored(line.key)
        if noted is not None:
            new = noted if change == "confirm" else change.apply(noted, fact, noted.at)
            often.update({slot_of(noted), slot_of(new)})
    if any(number > MOST_CHANGES for number in often.values()):
        raise InvalidInput(
            f"the document changes one fact, or facts of one subject and attribute, in more than "
            f"{MOST_CHANGES} lines, the limit for one document; load it in parts, without prune"
        )
    return wanted


def _change_of(line: markdown.Line, fact: Fact, owner: str) -> _Change:
    given: dict[str, Any] = {}
    if markdown.without_box(line.raw) != markdown.line_of(fact):
        given["text"] = line.text
        given["attribute"] = line.attribute
    heading = markdown.heading_of(fact.subject, owner, fact.agent)
    if fact.state == "live" and line.heading != heading:
        if line.agent != fact.agent:  # an agent's own fact stays the agent's
            return "pass"
        given["subject"] = line.subject
    given = {name: text for name, text in given.items() if text != getattr(fact, name)}
    if given:
        return Edit(**given) if fact.state in _CURRENT else "pass"
    return "confirm" if line.ticked and fact.state == "quarantined" else None


class _Slot:
    """The facts of a slot while a document is loaded."""

    def __init__(self, noted: Sequence[Noted]) -> None:
        self._noted = {fact.key: fact for fact in noted}
        self.last = max([fact.at for fact in noted], default=-inf)
        """When its last fact was said."""
        self._live: Fact | None = None
        self._above: list[Noted] | None = None
        """The facts that are more trusted than their owner; None if these two are out of date."""

    def facts(self, now: float) -> Sequence[Fact]:
        """Return all facts with their states."""
        return resolve_slot([*self._noted.values()], now).facts

    def fact(self, key: str, now: float) -> Fact:
        """Return one fact with its state."""
        for fact in self.facts(now):
            if fact.key == key:
                return fact
        raise InvalidInput(_NO_FACT.format(key))

    def live(self, now: float) -> Fact | None:
        """Return the fact that holds."""
        if self._above is None:
            self._live = next((fact for fact in self.facts(now) if fact.state == "live"), None)
            self._above = [f for f in self._noted.values() if rank(standing(f)) > rank("user")]
        return self._live

    def append(self, fact: Noted, now: float) -> None:
        """Take a fact without times that its owner said after all others."""
        self._noted[fact.key] = fact
        self.last = fact.at
        if self._above is not None:
            # It ends nothing, and of equal trust the last holds: only these can be against it.
            facts = resolve_slot([*self._above, fact], now).facts
            holds = [each for each in facts if each.key == fact.key and each.state == "live"]
            self._live = holds[0] if holds else self._live

    def put(self, fact: Noted) -> None:
        """Take a fact in its new form."""
        self._noted[fact.key] = fact
        self.last = max(self.last, fact.at)
        self._above = None

    def drop(self, key: str) -> None:
        """Let a fact go, into another slot."""
        del self._noted[key]
        self.last = max([fact.at for fact in self._noted.values()], default=-inf)
        self._above = None


class _Slots:
    """The slots that a document changes."""

    def __init__(self, repository: FactRepository, index: FactIndex) -> None:
        self._repository = repository
        self._index = index
        self._slots: dict[Slot, _Slot] = {}
        self._places: dict[str, Slot] = {}
        """The slots of facts that an edit moved."""

    def _slot(self, slot: Slot) -> _Slot:
        if slot not in self._slots:
            self._slots[slot] = _Slot(self._index.slot(slot)[0])
        return self._slots[slot]

    def _slot_with(self, key: str) -> _Slot:
        noted = self._index.stored(key)
        place = self._places.get(key) or (slot_of(noted) if noted else None)
        if place is None:
            raise InvalidInput(_NO_FACT.format(key))
        return self._slot(place)

    async def add(self, line: markdown.Line) -> str:
        """Remember the fact of a line on its owner's word, unless it holds; return its key."""
        now = self._repository.clock()
        fact = Noted(
            key="",
            text=line.text,
            at=now,
            subject=line.subject,
            attribute=line.attribute,
            value=line.text if line.attribute else "",
            agent=line.agent,
        )
        fact = checked(fact, self._repository.owner)
        slot = self._slot(slot_of(fact))
        live = slot.live(now)
        alike = live is not None and (live.text, live.value) == (fact.text, fact.value)
        if live is not None and alike and live.trust != "assistant":
            return live.key
        fact = fact._replace(at=moment_after(slot.last, now))
        key, new = await self._repository.add(fact)
        if new:
            slot.append(fact._replace(key=key), now)
        return key

    async def edit(self, key: str, edit: Edit) -> None:
        """Edit a fact."""
        now = self._repository.clock()
        before = self._slot_with(key)
        known = before.fact(key, now)
        edit.check(known)

        def change(fact: Noted) -> Noted:
            new = edit.apply(fact, known, now)
            return new._replace(at=moment_after(self._slot(slot_of(new)).last, now))

        stored = await self._repository.change(key, change)
        before.drop(key)
        self._places[key] = slot_of(stored)
        self._slot_with(key).put(stored)

    async def confirm(self, key: str) -> None:
        """Release a fact from quarantine, if it still is in it."""
        now = self._repository.clock()
        slot = self._slot_with(key)
        if slot.fact(key, now).state == "quarantined":
            slot.put(
                await self._repository.change(key, lambda fact: fact._replace(confirmed_at=now))
            )


async def _forget(repository: FactRepository, keys: Sequence[str]) -> list[str]:
    """Forget facts with all their sources; return the keys of those that existed."""
    index = await repository.index()
    alike: dict[tuple[Slot, str], list[str]] = {}
    read: set[Slot] = set()
    forgotten: list[str] = []
    for key in keys:
        mine = index.stored(key)
        if mine is None:
            continue
        slot = slot_of(mine)
        if slot not in read:
            read.add(slot)
            for fact in index.slot(slot)[0]:
                alike.setdefault((slot, said(fact)), []).append(fact.key)
        sources = alike.pop((slot, said(mine)), [])
        if any([await repository.forget(each) for each in sources]):
            forgotten.append(key)
    return forgotten
