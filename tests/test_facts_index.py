"""Kept facts are those of the store: the index against a plain model that reads everything."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from math import log1p, sqrt
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepthread import Memory
from keepthread.errors import InvalidInput
from keepthread.memory.facts.profile import (
    BEARING,
    MOST,
    MOST_CHARACTERS,
    FactCache,
    FactIndex,
    WordIndex,
)
from keepthread.memory.facts.records import noted_of, value_of
from keepthread.memory.facts.resolution import order_of, resolve, said, slot_of
from keepthread.memory.facts.types import OWNER as BY_HAND
from keepthread.memory.facts.types import Fact, Noted
from keepthread.memory.options import Options
from keepthread.protocols import KnownFact, Updates
from keepthread.recall.query import query_of
from keepthread.recall.words import characters_of, words_of
from keepthread.stores.kinds import FACT
from keepthread.stores.ram import RamStore
from keepthread.testing import ManualClock
from keepthread.text_caches import clear_text_caches
from keepthread.types import Record, Scope
from tests.seeds import examples
from tests.test_facts import OWNER, noted

NEWEST = 1000


# --- the plain model: read, resolve and weigh every fact each time ---


def plain_known(
    records: Sequence[Record], query: str, now: float, agents: Collection[str] = ("",)
) -> list[KnownFact]:
    """Return what a context may show."""
    versions = {record.key: record.version for record in records}
    facts = plain_facts([f for f in noted_in(records) if f.agent in agents], now)
    live = [fact for fact in facts if fact.state == "live"]
    chosen = plain_profile(live, facts)
    shown = {fact.key for fact, _, _ in chosen}
    rest = [fact for fact in live if fact.key not in shown]
    related = [
        (fact, score, f"a fact that shares {shared} of the question's words")
        for fact, score, shared in plain_bearing(rest, query)[:BEARING]
    ]
    return [
        KnownFact(
            key=fact.key,
            text=fact.text,
            always=fact.key in shown,
            score=score,
            reason=reason,
            trust=fact.trust,
            messages=[(each.owner or OWNER, each.session, each.seq) for each in fact.messages],
            version=versions[fact.key],
        )
        for fact, score, reason in [*chosen, *related]
    ]


def noted_in(records: Sequence[Record]) -> list[Noted]:
    return [fact for record in records if (fact := noted_of(record)) is not None]


def plain_facts(facts: Sequence[Noted], now: float) -> list[Fact]:
    return resolve(facts, now)


def plain_profile(live: Sequence[Fact], facts: Sequence[Fact]) -> list[tuple[Fact, float, str]]:
    times = Counter((slot_of(f), said(f)) for f in facts if f.state != "quarantined")
    own = [fact for fact in live if fact.agent or not fact.subject]
    weighed: list[tuple[float, Fact]] = []
    for age, fact in enumerate(own, start=1):
        weight = age / len(own)
        weight += 1.0 if fact.by == BY_HAND or fact.confirmed else 0
        weight += -0.6 if fact.trust == "assistant" else 0
        weighed.append((weight + 0.2 * min(times[slot_of(fact), said(fact)] - 1, 3), fact))
    weighed.sort(key=lambda each: (-each[0], each[1].key))
    chosen: list[tuple[Fact, float, str]] = []
    room = MOST_CHARACTERS
    for weight, fact in weighed[:MOST]:
        if len(fact.text) <= room:
            room -= len(fact.text)
            who = "confirmed by its owner" if fact.confirmed else fact.trust
            if fact.by == BY_HAND and not fact.messages:
                who = "written by its owner"
            chosen.append((fact, round(weight, 3), f"the profile: {who}"))
    return chosen


def plain_bearing(facts: Sequence[Fact], query: str) -> list[tuple[Fact, float, int]]:
    asked = query_of(query)
    wanted = {form: word for word, forms in asked.forms.items() for form in forms}
    wanted |= {word: word for word in asked.words}
    newest = facts[-NEWEST:]
    texts = [f"{fact.subject} {fact.attribute} {fact.text}" for fact in newest]
    words = [set(words_of(text)) for text in texts]
    shared = [
        {wanted[word] for word in (*each, *characters_of(text)) if word in wanted}
        for each, text in zip(words, texts, strict=True)
    ]
    often = Counter(word for each in shared for word in each)
    found = [
        (
            fact,
            round(
                sum(asked.faint.get(w, 1.0) * log1p(len(newest) / often[w]) for w in same)
                / sqrt(len(each)),
                3,
            ),
            len(same),
        )
        for fact, each, same in zip(newest, words, shared, strict=True)
        if same
    ]
    return sorted(found, key=lambda each: (-each[1], each[0].key))


def check(index: FactIndex, records: Sequence[Record], now: float, query: str) -> None:
    """Compare an index with the model."""
    facts = plain_facts(noted_in(records), now)
    current = [fact for fact in facts if fact.state in ("live", "quarantined")]
    assert index.noted() == noted_in(sorted(records, key=lambda record: record.key))
    assert index.facts() == facts
    assert index.facts(current=True) == current
    for place, fact in enumerate(current):
        page = index.facts(current=True, after=order_of(fact), limit=2)
        assert page == current[place + 1 : place + 3]
    for fact in facts:
        assert index.fact(fact.key) == fact
        stored, resolved = index.slot(slot_of(fact))
        assert {f.key for f in stored} == {f.key for f in resolved}
        assert fact in resolved
    assert index.search(query, 3) == [fact for fact, _, _ in plain_bearing(current, query)][:3]
    for agents in ([""], ["", "cook"], ["cook"]):
        assert index.known(query, agents) == plain_known(records, query, now, agents)


# --- laws ---


@st.composite
def facts(draw: st.DrawFn, key: str) -> Noted:
    """Draw a fact of the owner, of another person, or of an agent."""
    fact = draw(noted(key))
    return fact._replace(
        subject=draw(st.sampled_from(["", "", "Ben"])),
        agent=draw(st.sampled_from(["", "", "cook"])),
        by=draw(st.sampled_from([BY_HAND, "model:m"])),
        text=draw(st.sampled_from([fact.text, "Trinkt gern Tee.", "喜欢喝茶", "Tea in Oslo."])),
    )


KEYS = [f"{n:032x}" for n in range(8)]


@settings(max_examples=examples(60))
@given(st.data())
def test_an_index_is_what_the_plain_model_says_after_any_changes(data: st.DataObject) -> None:
    records: dict[str, Record] = {}
    number = version = 1

    def put(key: str, value: Any) -> None:
        nonlocal version
        version += 1
        records[key] = Record(
            scope=Scope(owner=OWNER), kind=FACT, key=key, value=value, version=version
        )

    for key in data.draw(st.lists(st.sampled_from(KEYS), unique=True)):
        put(key, value_of(data.draw(facts(key))))
    now = float(data.draw(st.integers(-5, 35)))
    query = data.draw(st.sampled_from(["", "Where is Oslo?", "der Tee", "茶", "tea tea city Ben"]))
    index = FactIndex(OWNER, Updates(number, True, [*records.values()]), now)
    check(index, [*records.values()], now, query)
    for _ in range(data.draw(st.integers(1, 3))):
        changed = data.draw(st.lists(st.sampled_from(KEYS), unique=True, max_size=3))
        for key in changed:
            action = data.draw(st.sampled_from(["put", "put", "drop", "forget"]))
            if action == "drop":
                records.pop(key, None)
            else:
                put(key, value_of(data.draw(facts(key))) if action == "put" else {"gone": 1.0})
        now = float(data.draw(st.integers(-5, 35)))  # clocks go back, too
        found = [records[key] for key in changed if key in records]
        dropped = [key for key in changed if key not in records]
        assert index.apply(Updates(number + 1, False, found, dropped), number, now)
        number += 1
        index.advance(now)
        check(index, [*records.values()], now, query)
    assert index.apply(Updates(number - 1, False, [], KEYS), number - 1, now), "it is newer"
    assert not index.apply(Updates(number + 2, False, []), number + 1, now), "it is older"
    check(index, [*records.values()], now, query)


def test_a_kept_fact_begins_and_ends_when_its_time_has_come() -> None:
    fact = Noted("1", "Is in Oslo.", 1.0, since=10.0, until=20.0)
    record = Record(scope=Scope(owner=OWNER), kind=FACT, key="1", value=value_of(fact), version=1)
    index = FactIndex(OWNER, Updates(1, True, [record]), 5.0)
    states: list[str] = []
    for now in (5.0, 10.0, 19.9, 20.0, 30.0, 15.0):  # the last one after a clock went back
        index.advance(now)
        states += [each.state for each in index.facts()]
    assert states == ["future", "live", "live", "ended", "ended", "live"]


@settings(max_examples=examples(20), deadline=None)
@given(st.data())
def test_two_processes_know_the_same_facts(data: st.DataObject) -> None:
    async def run() -> None:
        clock = ManualClock()
        store = RamStore(clock=clock)
        memories = [Memory(store, Options(clock=clock)) for _ in range(2)]
        values = st.sampled_from(["Oslo", "Rome", "tea"])
        for _ in range(data.draw(st.integers(1, 12))):
            clock.advance(data.draw(st.integers(0, 3)))
            mine = data.draw(st.sampled_from(memories)).for_owner(OWNER).facts
            known = [fact.key for fact in await mine.list(all=True)]
            action = data.draw(st.sampled_from(["remember", "edit", "forget", "confirm"]))
            until = data.draw(st.none() | st.integers(1, 6))
            value = data.draw(values)
            try:
                if action == "remember" or not known:
                    await mine.remember(
                        f"It is {value}.",
                        attribute=data.draw(st.sampled_from(["", "city", "likes"])),
                        value=value,
                        until=None if until is None else clock() + until,
                        by=data.draw(st.sampled_from(["owner", "model"])),
                    )
                elif action == "edit":
                    await mine.edit(data.draw(st.sampled_from(known)), text=f"Now {value}.")
                elif action == "forget":
                    assert await mine.forget(data.draw(st.sampled_from(known)))
                else:
                    await mine.confirm(data.draw(st.sampled_from(known)))
            except InvalidInput:
                assert action == "edit"  # a fact that was replaced
            records = await store.scan(Scope(owner=OWNER), FACT)
            for memory in data.draw(st.sampled_from([memories, memories[:1], memories[1:]])):
                cache = memory._runtime.fact_cache
                check(await cache.load(store, OWNER, clock()), records, clock(), "Oslo tea")
                assert await memory.for_owner(OWNER).facts.list(all=True) == plain_facts(
                    noted_in(records), clock()
                )

    asyncio.run(run())


# --- costs ---


class Counting(RamStore):
    """A store that counts its calls, and the records it returns."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()
        self.records = 0

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name in ("updates", "scan", "get", "put", "gather", "find", "tail", "read", "describe"):
            return self.counted(name, found)
        return found

    def counted(
        self, name: str, method: Callable[..., Awaitable[Any]]
    ) -> Callable[..., Awaitable[Any]]:
        async def call(*args: Any, **kwargs: Any) -> Any:
            self.calls[name] += 1
            found = await method(*args, **kwargs)
            self.records += len(getattr(found, "records", found if isinstance(found, list) else ()))
            return found

        return call

    def spent(self) -> tuple[dict[str, int], int]:
        found = dict(self.calls), self.records
        self.calls.clear()
        self.records = 0
        return found


async def costs(number: int) -> list[tuple[dict[str, int], int]]:
    """Return what a context, remembering and listing cost with a number of facts."""
    store = Counting()
    memory = Memory(store)
    mine = memory.for_owner(OWNER).facts
    for n in range(number):
        await mine.remember(f"Likes tea number {n}.", attribute=f"tea {n}", value=f"{n}")
    session = await memory.session("s", owner=OWNER)
    await session.add_message("user", "Which tea do I like?")
    await session.context()
    found: list[tuple[dict[str, int], int]] = []

    async def exchange() -> None:
        async with session.turn("And milk?") as turn:
            await turn.context()
            await turn.finish("Yes.")

    store.spent()
    for work in (
        session.context,
        lambda: mine.remember("Likes milk.", attribute="milk", value="yes"),
        session.context,
        lambda: mine.search("milk"),
        lambda: mine.list(limit=3),
        lambda: mine.remember("Likes milk.", attribute="milk", value="yes"),
        lambda: session.rewind(1),
        exchange,
    ):
        await work()
        await memory.idle()
        found.append(store.spent())
    await memory.close()
    return found


async def test_what_facts_cost_does_not_grow_with_their_number() -> None:
    few, many = await costs(20), await costs(300)
    assert few == many
    assert all(records <= 2 for _, records in many[:-1]), "more was read than changed"


async def test_facts_that_did_not_change_are_not_read_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, cache = RamStore(), FactCache()
    read: list[int] = []
    monkeypatch.setattr(WordIndex, "read", lambda _, facts: read.append(len(facts)))
    for n in range(20):
        await store.put(Scope(owner="a"), FACT, f"{n}", value_of(Noted(f"{n}", "tea", float(n))))
    for number in (1, 1, 2):
        for _ in range(number):
            index = await cache.load(store, "a", 100.0)
            index.known("tea")
            index.search("tea", 1)
        assert len(read) == 2, "once for contexts, once for searches"
    await store.put(Scope(owner="a"), FACT, "20", value_of(Noted("20", "milk", 20.0)))
    (await cache.load(store, "a", 100.0)).known("tea")
    assert len(read) == 3


async def test_the_cache_holds_a_number_of_facts_and_no_text_that_was_forgotten() -> None:
    store = RamStore()
    cache = FactCache(max_facts=100)
    for owner in ("a", "b", "c"):
        for n in range(30):
            value = value_of(Noted(f"{n}", f"fact {n} of {owner}", float(n)))
            await store.put(Scope(owner=owner), FACT, f"{n}", value)
        assert len(await cache.load(store, owner, 0)) == 30
        assert cache.size <= 100
    assert cache.size == 80  # two owners, each as ten more
    for n in range(100):
        value = value_of(Noted(f"{n}", "fact", float(n)))
        await store.put(Scope(owner="large"), FACT, f"{n}", value)
    assert len(await cache.load(store, "large", 0)) == 100
    assert cache.size <= 100
    assert len(await cache.load(store, "nobody", 0)) == 0
    await cache.load(store, "a", 0)
    assert cache.size
    clear_text_caches()
    assert cache.size == 0
    assert len(await cache.load(store, "a", 0)) == 30


async def test_facts_that_are_read_while_something_is_forgotten_are_not_kept() -> None:
    cache = FactCache()

    class Forgetting(RamStore):
        async def updates(self, scope: Scope, kind: str, *, since: int = 0) -> Updates:
            found = await super().updates(scope, kind, since=since)
            clear_text_caches()
            return found

    store = Forgetting()
    await store.put(Scope(owner="a"), FACT, "1", value_of(Noted("1", "fact", 1.0)))
    assert len(await cache.load(store, "a", 0)) == 1
    assert cache.size == 0


@pytest.mark.parametrize("damaged", ["recent", "guard"])
async def test_a_damaged_list_of_changes_costs_a_whole_reading(tmp_path: Any, damaged: str) -> None:
    from keepthread.stores.sqlite import SQLiteStore

    store = await SQLiteStore.open(tmp_path / "a.db")
    scope = Scope(owner="a")
    await store.put(scope, FACT, "1", 1)
    before = await store.updates(scope, FACT)
    await store.put(scope, FACT, "2", 2)
    change = "replace(recent, '2', '3')" if damaged == "recent" else "guard + 1"
    await store.backend.engine.write(
        lambda db: db.execute(f"UPDATE record_changes SET {damaged} = {change}").rowcount
    )
    found = await store.updates(scope, FACT, since=before.number)
    assert (found.whole, found.number) == (True, 0)
    assert [record.value for record in found.records] == [1, 2]
    await store.put(scope, FACT, "3", 3)
    again = await store.updates(scope, FACT)
    assert again.number > before.number
    await store.close()
