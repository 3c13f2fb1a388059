"""An owner's facts in the form that contexts need: resolved, sorted and up to date.

An index holds all facts of one owner. Updating a fact costs as much as its slot has facts; a query
costs as much as it finds. The indexes of recently used owners are cached, and the store reports
which records changed.
"""

import threading
from bisect import bisect_left, bisect_right, insort
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import nsmallest
from math import inf, log1p, sqrt
from time import time
from typing import Final, TypeAlias

from keepthread.memory.facts.records import noted_of
from keepthread.memory.facts.resolution import (
    Slot,
    SlotFacts,
    order_of,
    resolve_slot,
    said,
    slot_of,
)
from keepthread.memory.facts.types import OWNER, Fact, Noted
from keepthread.protocols import KnownFact, Store, Updates
from keepthread.recall.query import query_of
from keepthread.recall.words import characters_of, words_of
from keepthread.stores.kinds import FACT
from keepthread.text_caches import register_object
from keepthread.types import Record, Scope

MOST: Final = 12
"""Facts in a profile at most."""
MOST_CHARACTERS: Final = 1200
"""Characters of a profile at most."""
BEARING: Final = 8
"""Other facts related to a question, at most."""
MAX_FACTS: Final = 30_000
"""Facts that a process keeps, of all owners together; each owner counts as ten more."""
_EACH_OWNER: Final = 10
_WEIGHED: Final = 1000
"""Only the newest facts are scored for a question, to limit the cost of a context."""
_CURRENT: Final = ("live", "quarantined")
_BY_HAND: Final = 1.0
_DOUBTED: Final = -0.6
_REPEATED: Final = 0.2
_MOST_REPEATED: Final = 3
_VIEWS: Final = 4
"""Groups of agents whose profiles are kept for one owner."""

Order: TypeAlias = tuple[float, int, str]
"""The sort key of a fact, see `order_of`; it ends with the key of the fact."""
_Weights: TypeAlias = tuple[float, float, float]
"""The parts of a fact's weight that do not depend on its age."""


async def known(
    store: Store, owner: str, query: str, *, now: float | None = None
) -> list[KnownFact]:
    """Return the facts that a context may show: the profile, and those related to a question."""
    found = await store.updates(Scope(owner=owner), FACT)
    return FactIndex(owner, found, time() if now is None else now).known(query)


class _AgentFacts:
    """The facts of one agent, or of the owner, that hold."""

    def __init__(self) -> None:
        self.live: list[Order] = []
        self.own: list[Order] = []
        """Those that a profile may show."""
        self.by_weight: defaultdict[_Weights, list[Order]] = defaultdict(list)
        """The same, apart by what they weigh without their age."""

    def sort(self) -> None:
        """Put all lists in order."""
        for orders in (self.live, self.own, *self.by_weight.values()):
            orders.sort()


class _ProfileView:
    """The profile of a group of agents, and the other facts that a question may find."""

    def __init__(self) -> None:
        self.is_stale = True
        self.profile: Sequence[tuple[Fact, float]] = ()
        self.words = WordIndex()


class FactIndex:
    """The facts of one owner; threads may share it."""

    def __init__(self, owner: str, found: Updates, now: float) -> None:
        """Take all facts of an owner, as the store returned them."""
        self.owner = owner
        self.number = found.number
        self._lock = threading.RLock()
        self._noted: dict[str, Noted] = {}
        self._versions: dict[str, int] = {}
        self._slots: defaultdict[Slot, dict[str, Noted]] = defaultdict(dict)
        self._resolved: dict[Slot, SlotFacts] = {}
        self._timed: dict[Slot, SlotFacts] = {}
        """Slots in which a state changes at a known time."""
        self._since, self._until = -inf, inf
        """Between these times no state changes."""
        self._facts: dict[str, Fact] = {}
        self._all: list[Order] = []
        self._current: list[Order] = []
        self._agents: defaultdict[str, _AgentFacts] = defaultdict(_AgentFacts)
        self._views: dict[tuple[str, ...], _ProfileView] = {}
        self._searched = _ProfileView()
        self._load(found.records, now)

    def __len__(self) -> int:
        """Return the number of facts."""
        return len(self._noted)

    def _load(self, records: Iterable[Record], now: float) -> None:
        for record in records:
            if (fact := noted_of(record)) is not None:
                self._noted[fact.key] = self._slots[slot_of(fact)][fact.key] = fact
                self._versions[fact.key] = record.version
        for slot in self._slots:
            for order, found in self._lists_of(self._resolve(slot, now)):
                found.append(order)
        for found in (self._all, self._current, *self._agents.values()):
            found.sort()

    # --- changes ---

    def apply(self, found: Updates, since: int, now: float) -> bool:
        """Apply what changed after a number; return False if the index is at an earlier one."""
        with self._lock:
            if self.number != since:
                return self.number >= found.number
            touched: set[Slot] = set()
            for record in found.records:
                touched |= self._note(record)
            for key in found.dropped:
                touched |= self._drop(key)
            if touched:
                self._renew([*touched], now)
            self.number = found.number
            return True

    def advance(self, now: float) -> None:
        """Update the states of facts that begin or end at a time."""
        with self._lock:
            if not self._since <= now < self._until:
                late = [slot for slot, each in self._timed.items() if not each.holds_at(now)]
                if late:
                    self._renew(late, now)
                times = self._timed.values()
                self._since = max([each.since for each in times], default=-inf)
                self._until = min([each.until for each in times], default=inf)

    def _note(self, record: Record) -> set[Slot]:
        """Take a record's fact; return the slots that it is in and was in."""
        touched = self._drop(record.key)
        fact = noted_of(record)
        if fact is None:
            return touched
        slot = slot_of(fact)
        self._noted[fact.key] = self._slots[slot][fact.key] = fact
        self._versions[fact.key] = record.version
        return touched | {slot}

    def _drop(self, key: str) -> set[Slot]:
        fact = self._noted.pop(key, None)
        if fact is None:
            return set()
        del self._versions[key]
        slot = slot_of(fact)
        del self._slots[slot][key]
        return {slot}

    def _renew(self, slots: Sequence[Slot], now: float) -> None:
        """Resolve some slots again; a fact may have moved from one to another."""
        for slot in slots:
            before = self._resolved.pop(slot, SlotFacts(()))
            for order, found in self._lists_of(before.facts):
                del found[bisect_left(found, order)]
            for fact in before.facts:
                del self._facts[fact.key]
            self._timed.pop(slot, None)
        for slot in slots:
            if not self._slots[slot]:
                del self._slots[slot]
                continue
            for order, found in self._lists_of(self._resolve(slot, now)):
                insort(found, order)
        for view in (self._searched, *self._views.values()):
            view.is_stale = True

    def _resolve(self, slot: Slot, now: float) -> Sequence[Fact]:
        found = self._resolved[slot] = resolve_slot([*self._slots[slot].values()], now)
        if found.since > -inf or found.until < inf:
            self._timed[slot] = found
            self._since = max(self._since, found.since)
            self._until = min(self._until, found.until)
        self._facts.update((fact.key, fact) for fact in found.facts)
        return found.facts

    def _lists_of(self, facts: Sequence[Fact]) -> Iterator[tuple[Order, list[Order]]]:
        """Yield each fact of a slot with every list that it belongs to."""
        taken = [fact for fact in facts if fact.state != "quarantined"] if len(facts) > 1 else []
        often: Mapping[str, int] = Counter(map(said, taken)) if taken else {}
        for fact in facts:
            order = order_of(fact)
            yield order, self._all
            if fact.state in _CURRENT:
                yield order, self._current
            if fact.state == "live":
                agent = self._agents[fact.agent]
                yield order, agent.live
                if fact.agent or not fact.subject:
                    yield order, agent.own
                    yield order, agent.by_weight[_weights(fact, often)]

    # --- reading ---

    def noted(self) -> list[Noted]:
        """Return all facts as they are stored, by their keys."""
        with self._lock:
            return [self._noted[key] for key in sorted(self._noted)]

    def slot(self, slot: Slot) -> tuple[list[Noted], Sequence[Fact]]:
        """Return the facts of a slot, as they are stored and as they are resolved."""
        with self._lock:
            if slot not in self._slots:
                return [], []
            return [*self._slots[slot].values()], self._resolved[slot].facts

    def stored(self, key: str) -> Noted | None:
        """Return a fact as it is stored."""
        return self._noted.get(key)

    def fact(self, key: str) -> Fact | None:
        """Return one fact with its state."""
        return self._facts.get(key)

    def facts(
        self, *, current: bool = False, after: Order | None = None, limit: int | None = None
    ) -> list[Fact]:
        """Return all facts, or the current ones, in the order in which they became true.

        `after` is the place of the fact before the first.
        """
        with self._lock:
            orders = self._current if current else self._all
            first = 0 if after is None else bisect_right(orders, after)
            last = len(orders) if limit is None else first + limit
            return [self._facts[key] for _, _, key in orders[first:last]]

    def search(self, query: str, limit: int) -> list[Fact]:
        """Return the current facts that share words with a question, the best first."""
        with self._lock:
            view = self._searched
            if view.is_stale:
                view.words.read([self._facts[key] for _, _, key in self._current[-_WEIGHED:]])
                view.is_stale = False
            return [fact for fact, _, _ in view.words.best(query, limit)]

    def known(self, query: str, agents: Sequence[str] = ("",)) -> list[KnownFact]:
        """Return the facts that a context may show; quarantined ones are left out.

        `agents` are those whose own facts are included; the empty name means the owner's facts.
        """
        with self._lock:
            view = self._view(tuple(agents))
            if view.is_stale:
                view.profile = self._profile(agents)
                view.words.read(self._beside(agents, view.profile))
                view.is_stale = False
            return [
                *(self._known(f, True, weight, _reason(f)) for f, weight in view.profile),
                *(
                    self._known(
                        f, False, score, f"a fact that shares {shared} of the question's words"
                    )
                    for f, score, shared in view.words.best(query, BEARING)
                ),
            ]

    def _known(self, fact: Fact, always: bool, score: float, reason: str) -> KnownFact:
        messages = [(each.owner or self.owner, each.session, each.seq) for each in fact.messages]
        version = self._versions[fact.key]
        return KnownFact(fact.key, fact.text, always, score, reason, fact.trust, messages, version)

    def _view(self, agents: tuple[str, ...]) -> _ProfileView:
        view = self._views.pop(agents, None) or _ProfileView()
        self._views[agents] = view
        if len(self._views) > _VIEWS:
            del self._views[next(iter(self._views))]
        return view

    def _profile(self, agents: Sequence[str]) -> list[tuple[Fact, float]]:
        """Return the most important facts about the owner, with their weights, heaviest first.

        An agent's own facts count whatever they are about. Facts that were written or confirmed by
        hand, said again, or are new, weigh more. Of those that weigh the same without their age,
        only the newest can be among the heaviest.
        """
        found = [self._agents[agent] for agent in agents if agent in self._agents]
        total = sum(len(each.own) for each in found)
        weighed: list[tuple[float, Fact]] = []
        for each in found:
            for weights, orders in each.by_weight.items():
                for order in orders[-MOST:]:
                    age = sum(bisect_right(other.own, order) for other in found)
                    by_hand, doubted, repeated = weights
                    weight = age / total + by_hand + doubted + repeated
                    weighed.append((weight, self._facts[order[2]]))
        weighed.sort(key=lambda each: (-each[0], each[1].key))
        chosen: list[tuple[Fact, float]] = []
        room = MOST_CHARACTERS
        for weight, fact in weighed[:MOST]:
            if len(fact.text) <= room:
                room -= len(fact.text)
                chosen.append((fact, round(weight, 3)))
        return chosen

    def _beside(self, agents: Sequence[str], profile: Sequence[tuple[Fact, float]]) -> list[Fact]:
        """Return the newest facts that hold and that the profile does not show."""
        shown = {fact.key for fact, _ in profile}
        found = [self._agents[agent].live for agent in agents if agent in self._agents]
        newest = sorted(order for live in found for order in live[-_WEIGHED - MOST :])
        rest = [order[2] for order in newest if order[2] not in shown]
        return [self._facts[key] for key in rest[-_WEIGHED:]]


def _weights(fact: Fact, often: Mapping[str, int]) -> _Weights:
    again = often[said(fact)] - 1 if often else 0
    return (
        _BY_HAND if fact.by == OWNER or fact.confirmed else 0,
        _DOUBTED if fact.trust == "assistant" else 0,
        _REPEATED * min(again, _MOST_REPEATED),
    )


def _reason(fact: Fact) -> str:
    if fact.by == OWNER and not fact.messages:
        return "the profile: written by its owner"
    return f"the profile: {'confirmed by its owner' if fact.confirmed else fact.trust}"


# --- questions ---


_Place: TypeAlias = tuple[int, str]
"""The number of words in a fact, and its key: of equal facts the first is the best."""


class WordIndex:
    """Some facts by their words, to find those that a question is about."""

    def __init__(self) -> None:
        """Begin without facts."""
        self._facts: dict[str, Fact] = {}
        self._words: dict[str, frozenset[str]] = {}
        self._places: dict[str, _Place] = {}
        self._with: defaultdict[str, set[_Place]] = defaultdict(set)

    def read(self, facts: Sequence[Fact]) -> None:
        """Hold these facts instead of others; those that stay are not read again."""
        new = {fact.key: fact for fact in facts}
        for key, old in self._facts.items():
            if key not in new or _text(new[key]) != _text(old):
                place = self._places.pop(key)
                for word in self._words.pop(key):
                    self._with[word].discard(place)
                    if not self._with[word]:
                        del self._with[word]
        self._facts = new
        for key in new.keys() - self._words.keys():
            text = _text(new[key])
            words = set(words_of(text))
            place = self._places[key] = (len(words), key)
            self._words[key] = frozenset(words.union(characters_of(text)))
            for word in self._words[key]:
                self._with[word].add(place)

    def best(self, query: str, limit: int) -> list[tuple[Fact, float, int]]:
        """Return the facts that share words with a question, with score and number of words."""
        asked = query_of(query)
        wanted = {form: word for word, forms in asked.forms.items() for form in forms}
        wanted |= {word: word for word in asked.words}
        found: defaultdict[str, set[_Place]] = defaultdict(set)
        for form, word in wanted.items():
            if form in self._with:
                found[word] |= self._with[form]
        # Facts that share the same words differ in length alone. Sets are divided at once, so a
        # word that many facts have costs little.
        alike: list[tuple[float, int, set[_Place]]] = [(0.0, 0, set().union(*found.values()))]
        for word, places in found.items():
            worth = asked.faint.get(word, 1.0) * log1p(len(self._facts) / len(places))
            divided = [(total + worth, n + 1, each & places) for total, n, each in alike]
            rest = [(total, n, each - places) for total, n, each in alike]
            alike = [group for group in (*divided, *rest) if group[2]]
        scored = [one for group in alike for one in _best_of(*group, limit)]
        return [(self._facts[key], -score, n) for score, key, n in nsmallest(limit, scored)]


def _best_of(
    total: float, words: int, places: set[_Place], limit: int
) -> Iterator[tuple[float, str, int]]:
    """Yield the best facts of those that share the same words: score, key, number of words."""
    first = nsmallest(limit, places)
    if 0 < len(first) < len(places):
        # Rounded, a longer one may have the same score, and a lower key.
        last = longest = first[-1][0]
        while (score := round(total / sqrt(longest + 1), 3)) and score == round(
            total / sqrt(last), 3
        ):
            longest += 1
        if longest > last:
            first = [place for place in places if place[0] <= longest]
    for length, key in first:
        yield -round(total / sqrt(length), 3), key, words


def _text(fact: Fact) -> str:
    return f"{fact.subject} {fact.attribute} {fact.text}"


# --- owners ---


class FactCache:
    """The indexes of the owners who were asked for last; threads may share it."""

    def __init__(self, max_facts: int = MAX_FACTS) -> None:
        """Start empty."""
        self._lock = threading.Lock()
        self._max = max_facts
        self._kept: dict[tuple[Store, str], FactIndex] = {}
        self._sizes: dict[tuple[Store, str], int] = {}
        self._size = 0
        self._cleared = 0
        register_object(self)

    @property
    def size(self) -> int:
        """Return the number of facts, each owner as ten more."""
        return self._size

    async def load(self, store: Store, owner: str, now: float) -> FactIndex:
        """Return an owner's facts as they are in the store now."""
        place = (store, owner)
        while True:
            index, cleared = self._kept.get(place), self._cleared
            since = 0 if index is None else index.number
            found = await store.updates(Scope(owner=owner), FACT, since=since)
            if index is None or found.whole:
                index = FactIndex(owner, found, now)
            elif not index.apply(found, since, now):
                continue
            index.advance(now)
            self._keep(place, index, cleared)
            return index

    def clear_texts(self) -> None:
        """Discard all facts."""
        with self._lock:
            self._cleared += 1
            self._kept.clear()
            self._sizes.clear()
            self._size = 0

    def _keep(self, place: tuple[Store, str], index: FactIndex, cleared: int) -> None:
        """Keep an owner's facts, unless something was forgotten since they were read."""
        with self._lock:
            self._discard(place)
            if cleared != self._cleared or not index.number:
                return
            self._kept[place] = index
            self._sizes[place] = len(index) + _EACH_OWNER
            self._size += self._sizes[place]
            while self._size > self._max:
                self._discard(next(iter(self._kept)))

    def _discard(self, place: tuple[Store, str]) -> None:
        self._kept.pop(place, None)
        self._size -= self._sizes.pop(place, 0)
