"""Forgetting, exporting, pruning, erasing and forking cost nothing for data they leave alone."""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from keepthread import ForkPoint, Memory, Message, Options, Scope, SessionInfo, Span
from keepthread.interchange.export import export
from keepthread.memory.admin import DAY
from keepthread.memory.forgetting import answers as written
from keepthread.memory.forgetting.follow import all_sessions
from keepthread.memory.forgetting.plan import ErasurePlan
from keepthread.protocols import Store
from keepthread.stores import SQLiteStore
from keepthread.stores.links import node_of, nodes_above
from keepthread.stores.ram import RamStore
from keepthread.testing.contract import Letters
from keepthread.types import Record, SessionKey
from tests.every_store import store as store
from tests.seeds import examples

OPTIONS = Options(counter=Letters(), extraction=None)
MOST_CALLS = 40


def counted(store: Store) -> Counter[str]:
    """Count the calls of a store from now on, by method."""
    calls: Counter[str] = Counter()
    for name in [name for name in dir(Store) if not name.startswith("_")]:
        method = getattr(store, name)
        if asyncio.iscoroutinefunction(method):
            setattr(store, name, _counting(name, method, calls))
    return calls


def _counting(name: str, method: Callable[..., Any], calls: Counter[str]) -> Callable[..., Any]:
    @wraps(method)
    async def call(*args: Any, **kwargs: Any) -> Any:
        calls[name] += 1
        return await method(*args, **kwargs)

    return call


async def add_owners(store: Store, numbers: range) -> None:
    """Give owners a session each, and a fact that was made from it."""
    for number in numbers:
        owner = f"owner {number}"
        info = await store.put_session(SessionInfo(id="chat", owner=owner))
        said = [Message(role="user", content=f"I like {n} of {number}") for n in range(2)]
        await store.append(info.key, said)
        span = Span(session=info.key, first=1, last=1)
        await store.put(Scope(owner=owner), "fact", "likes", {"likes": number}, made_of=[span])


async def life_of_ana(store: Store, number: int) -> SessionKey:
    """Give one owner a session with a fork, a task, a fact and an answer from elsewhere."""
    id = f"s{number}"
    key = (await store.put_session(SessionInfo(id=id, owner="ana"))).key
    said = [Message(role="user", content="a secret of ana's", id="it")]
    said += [Message(role="assistant", content="noted", id="answer")]
    stored = await store.append(key, said)
    point = ForkPoint(session=id, seq=2)
    fork = SessionInfo(id=f"{id} forked", owner="ana", kind="fork", forked_from=point)
    await store.load((await store.put_session(fork)).key, stored)
    span = Span(session=key, first=1, last=1)
    await store.put(Scope(session=key), "pin", "1", 1, made_of=[span])
    await store.put(Scope(owner="ana"), "fact", f"of {id}", "secret", made_of=[span])
    recalled = {"recalled_from": {id: [[1, 1]]}}
    other = (await store.put_session(SessionInfo(id=f"{id} recalled", owner="ana"))).key
    await store.append(other, [Message(role="assistant", content="so", meta=recalled)])
    return key


async def test_forgetting_one_message_costs_the_same_beside_any_number_of_owners(
    store: Store,
) -> None:
    calls: list[int] = []
    memory = Memory(store, OPTIONS)
    await memory.admin.receipts()  # the first call looks for interrupted erasures
    counts = counted(store)
    for number, owners in enumerate((range(10), range(10, 300))):
        await add_owners(store, owners)
        await life_of_ana(store, number)
        counts.clear()
        told = await memory.forget(session=f"s{number}", owner="ana", message="it")
        assert (told.messages, told.copies) == (1, 1)
        assert told.records == {"fact": 1, "pin": 1}
        assert {answer.session for answer in told.answers} == {
            *(f"s{number}", f"s{number} forked", f"s{number} recalled")
        }
        assert not counts["owners"] + counts["scan_sessions"] + counts["list_sessions"]
        calls.append(counts.total())
    assert calls[0] == calls[1]


async def test_a_message_that_nothing_was_made_of_takes_few_calls(store: Store) -> None:
    memory = Memory(store, OPTIONS)
    await add_owners(store, range(20))
    counts = counted(store)
    told = await memory.forget(
        session="chat", owner="owner 7", message=(await _first(store, "owner 7")).id
    )
    assert (told.messages, told.records) == (1, {"fact": 1})
    assert counts.total() <= MOST_CALLS, counts
    assert not counts["owners"] + counts["scan_sessions"] + counts["list_sessions"]


async def _first(store: Store, owner: str) -> Message:
    info = await store.get_session("chat", owner)
    assert info is not None
    return (await store.find(info.key, seqs=[1]))[0]


async def test_forgetting_is_linear_in_forks_and_in_calls_of_tools() -> None:
    read: list[float] = []
    for forks, turns in ((4, 4), (16, 4), (4, 16)):
        store = RamStore()
        memory = Memory(store, OPTIONS)
        session = await memory.create_session("chat")
        for number in range(turns):
            async with session.turn(f"question {number}") as turn:
                await turn.tool("look", {"at": number}, lambda at: f"seen {at}")
                await turn.finish("so")
        for number in range(forks):
            await session.fork(id=f"fork {number}")
        seen = _messages_found(store)
        told = await memory.forget(since=0, dry_run=True)
        assert told.messages == 4 * turns * (forks + 1)
        read.append(seen.total() / told.messages)
    assert max(read) < 1.5 * min(read), read


def _messages_found(store: Store) -> Counter[str]:
    """Count the messages that a store is asked for by their positions from now on."""
    find, found = store.find, Counter[str]()

    async def finding(session: SessionKey, **given: Any) -> list[Message]:
        messages = await find(session, **given)
        found["messages"] += len(messages)
        return messages

    cast(Any, store).find = finding
    return found


async def test_forgetting_an_owner_reads_that_owner_alone(store: Store) -> None:
    memory = Memory(store, OPTIONS)
    await memory.admin.receipts()  # the first call looks for interrupted erasures
    counts = counted(store)
    calls: list[int] = []
    for owners in (range(10), range(10, 150)):
        await add_owners(store, owners)
        counts.clear()
        told = await memory.forget(owner=f"owner {owners[0]}")
        assert (told.sessions, told.messages, told.records) == (1, 2, {"fact": 1})
        assert not counts["owners"]
        calls.append(counts.total())
    assert calls[0] == calls[1]


@pytest.mark.parametrize("reader", [None, "ana"])
async def test_a_text_that_everybody_wrote_is_looked_for_until_it_is_found(
    tmp_path: Path, reader: str | None
) -> None:
    greeting = "Good morning to all of you, dear colleagues of mine"
    calls: list[int] = []
    for others in (30, 120):
        async with await SQLiteStore.open(tmp_path / f"{others}.db") as store:
            memory = Memory(store, OPTIONS)
            for owner in ("ana", *(f"owner {n}" for n in range(others))):
                session = await memory.session("chat", owner=owner)
                await session.append(Message(role="user", content=greeting))
            await memory.admin.receipts()
            counts = counted(store)
            if reader is None:
                told = await memory.forget(owner="ana", session="chat")
            else:
                told = await memory.for_owner(reader).forget(session="chat")
            assert (told.messages, told.found) == (1, 0)
            # An operator is shown why the file still has the text; an owner sees nothing of others.
            assert len(told.repeated) == (1 if reader is None else 0)
            calls.append(counts.total())
    assert calls[0] == calls[1]


async def test_a_text_that_only_the_last_owner_wrote_too_is_found(tmp_path: Path) -> None:
    async with await SQLiteStore.open(tmp_path / "a.db") as store:
        memory = Memory(store, OPTIONS)
        for owner in ("ana", *(f"owner {n}" for n in range(20)), "zoe"):
            same = owner in ("ana", "zoe")
            text = "the long and winding road to Kyoto" if same else f"other words of {owner}"
            session = await memory.session("chat", owner=owner)
            await session.append(Message(role="user", content=text))
        told = await memory.forget(owner="ana", session="chat")
    assert (told.found, told.excluded) == (0, 1)
    assert list(told.repeated) == ["session 'chat' at 1"]


async def test_a_text_that_one_owner_wrote_often_is_looked_for_until_enough_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("keepthread.memory.forgetting.repeats.MAX_PLACES", 5)
    text = "the long and winding road to Kyoto"
    async with await SQLiteStore.open(tmp_path / "a.db") as store:
        memory = Memory(store, OPTIONS)
        for number in range(20):
            session = await memory.session(f"chat {number:02}", owner="ana")
            await session.append(Message(role="user", content=text))
        counts = counted(store)
        told = await memory.forget(owner="ana", session="chat 00")
    assert (told.found, told.excluded) == (0, 1)
    places = [f"session 'chat {number:02}' at 1" for number in range(1, 6)]
    assert list(told.repeated)[1:] == places
    assert told.repeated[0].startswith("the list may be incomplete")
    assert told.repeated[0] in str(told)
    assert counts["read"] <= 15, counts  # of the 40 that all sessions would take


async def test_a_text_that_a_long_session_repeats_is_looked_for_until_enough_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("keepthread.memory.forgetting.repeats.MAX_PLACES", 5)
    monkeypatch.setattr("keepthread.memory.forgetting.repeats._PAGE", 10)
    text = "the long and winding road to Kyoto"
    async with await SQLiteStore.open(tmp_path / "a.db") as store:
        memory = Memory(store, OPTIONS)
        for name, messages in (("chat", 1), ("long", 200)):
            session = await memory.session(name, owner="ana")
            await session.append(*(Message(role="user", content=text) for _ in range(messages)))
        counts = counted(store)
        told = await memory.forget(owner="ana", session="chat")
    assert (told.found, told.excluded) == (0, 1)
    assert told.repeated[0].startswith("the list may be incomplete")
    assert list(told.repeated)[1:] == sorted(f"session 'long' at {seq}" for seq in range(1, 11))
    assert counts["read"] <= 5, counts  # of the 20 that the long session would take


async def test_a_text_that_another_owner_repeats_often_is_looked_for_until_it_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("keepthread.memory.forgetting.repeats._PAGE", 10)
    text = "the long and winding road to Kyoto"
    async with await SQLiteStore.open(tmp_path / "a.db") as store:
        memory = Memory(store, OPTIONS)
        for owner, messages in (("ana", 1), ("zoe", 200)):
            session = await memory.session("chat", owner=owner)
            await session.append(*(Message(role="user", content=text) for _ in range(messages)))
        session = await memory.session("chat", owner="ana")
        await session.append(Message(role="user", content="a road that nobody else has taken"))
        counts = counted(store)
        told = await memory.forget(owner="ana")
    # The other text is gone from the file, so nobody's messages are read for it.
    assert (told.found, told.excluded, told.probes) == (0, 1, 1)
    assert counts["read"] <= 5, counts  # of the 20 that the long session would take


async def test_an_export_of_one_session_reads_no_other(store: Store) -> None:
    await add_owners(store, range(30))
    key = await life_of_ana(store, 0)
    elsewhere = await store.get_session("chat", "owner 3")
    assert elsewhere is not None
    spans = [Span(session=elsewhere.key, first=1, last=1), Span(session=key, first=2, last=2)]
    await store.put(Scope(session=key), "made", "of both", 1, made_of=spans)
    counts = counted(store)
    lines: list[bytes] = []
    await export(store, lines.append, sessions=["s0"], owner="ana")
    assert not counts["scan_sessions"] + counts["list_sessions"] + counts["owners"]
    assert counts.total() <= 10, counts
    (made,) = [line for line in lines if b"of both" in line]
    assert b'"owner 3"' in made
    assert b'"ana"' in made


async def test_pruning_reads_only_what_is_due(store: Store) -> None:
    memory = Memory(store, OPTIONS)
    for number in range(60):
        await store.put_session(SessionInfo(id="new", owner=f"owner {number}"))
    old: Any = {"created_at": 5.0, "updated_at": 5.0}
    await store.put_session(SessionInfo(id="old", **old))
    await store.put_session(SessionInfo(id="task", kind="delegate", **old))
    await store.put_session(SessionInfo(id="half", kind="fork", ready=False, **old))
    counts = counted(store)
    assert await memory.admin.prune(30) == 3
    assert counts.total() <= 3 * 4 + 2, counts
    counts.clear()
    assert await memory.admin.prune(30) == 0
    assert counts.total() <= 2, counts
    assert await memory.admin.prune(0) == 60
    assert DAY == 86_400


# --- laws ---


@given(
    spans=st.lists(st.tuples(st.integers(0, 300), st.integers(0, 300))),
    seqs=st.lists(st.integers(0, 300), max_size=3),
)
def test_a_span_is_at_a_node_above_each_of_its_positions(
    spans: list[tuple[int, int]], seqs: list[int]
) -> None:
    above = nodes_above(seqs)
    assert above is not None
    for first, last in spans:
        node = node_of(Span(session=SessionKey("s"), first=first, last=last))
        assert (node is None) == (first > last)
        if any(first <= seq <= last for seq in seqs):
            assert node in above


class Planned:
    """What a plan of an erasure holds, as the old search through everything found it."""

    def __init__(self, erased: Mapping[SessionKey, Sequence[int]]) -> None:
        self.erased = {key: set(seqs) for key, seqs in erased.items()}

    def takes(self, record: Record) -> bool:
        return any(
            seq in self.erased.get(span.session, ())
            for span in record.made_of
            for seq in range(span.first, min(span.last, 10) + 1)
        )


async def all_records(store: Store) -> list[Record]:
    sessions = await all_sessions(store)
    scopes = [Scope(), *(Scope(owner=owner) for owner in await store.owners())]
    scopes += [Scope(session=key) for key in sessions]
    return [record for scope in scopes for record in await store.scan(scope)]


SESSIONS = 5
COPIED = 3
records = st.lists(
    st.tuples(
        st.integers(0, SESSIONS + 2),  # a session, two owners, or the tenant
        st.lists(st.tuples(st.integers(0, SESSIONS - 1), st.integers(1, 5), st.integers(0, 3))),
    ),
    max_size=12,
)
answers = st.lists(
    st.tuples(st.integers(0, SESSIONS - 1), st.integers(0, SESSIONS - 1), st.integers(1, 5)),
    max_size=6,
)


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(records=records, answers=answers, chosen=st.integers(0, SESSIONS - 1), at=st.integers(1, 4))
def test_the_index_finds_what_a_search_through_everything_finds(
    records: list[tuple[int, list[tuple[int, int, int]]]],
    answers: list[tuple[int, int, int]],
    chosen: int,
    at: int,
) -> None:
    asyncio.run(_law(records, answers, chosen, at))


async def _law(
    records: list[tuple[int, list[tuple[int, int, int]]]],
    answers: list[tuple[int, int, int]],
    chosen: int,
    at: int,
) -> None:
    store = RamStore()
    owners = ["ana", "ana", "ana", "bea", "bea"]
    keys: list[SessionKey] = []
    for number, owner in enumerate(owners):
        keys.append((await store.put_session(SessionInfo(id=f"s{number}", owner=owner))).key)
    said = [Message(role="user", content="x", id=f"m{n}") for n in range(4)]
    stored = await store.append(keys[0], said)
    await store.load(keys[1], stored[:COPIED])  # a copy, and another owner's, which is none
    await store.load(keys[3], stored)
    for key in (keys[2], keys[4]):
        await store.append(key, [Message(role="user", content="y", id=f"y{n}") for n in range(4)])
    for session, named, seq in answers:
        meta: Any = {"recalled_from": {f"s{named}": [[seq, seq]]}}
        await store.append(keys[session], [Message(role="assistant", content="so", meta=meta)])
    for number, (scope, spans) in enumerate(records):
        places = [*(Scope(session=key) for key in keys), Scope(owner="ana"), Scope(owner="bea")]
        made_of = [Span(session=keys[s], first=first, last=first + n) for s, first, n in spans]
        await store.put([*places, Scope()][scope], "made", str(number), number, made_of=made_of)

    message = (await store.find(keys[chosen], seqs=[at]) or [None])[0]
    if message is None:
        return
    memory = Memory(store, OPTIONS)
    before = await all_records(store)
    told = await memory.forget(session=f"s{chosen}", owner=owners[chosen], message=message.id)
    erased = {key: [m.seq for m in await store.read(key) if m.state == "erased"] for key in keys}
    twins = {0, 1} if chosen in (0, 1) and at <= COPIED else {chosen}
    expected = {keys[n]: [at] if n in twins else [] for n in range(SESSIONS)}
    assert erased == expected
    plan = Planned(erased)
    left = {(r.scope, r.kind, r.key) for r in await all_records(store) if r.kind == "made"}
    assert left == {(r.scope, r.kind, r.key) for r in before if not plan.takes(r)}
    shown = {
        (f"s{n}", m.seq)
        for n, key in enumerate(keys)
        for m in await store.read(key)
        if m.state == "live" and m.role == "assistant" and _is_from(m, owners, n, plan, keys)
    }
    in_turn = {
        (f"s{n}", m.seq)
        for n, key in enumerate(keys)
        for m in await store.read(key)
        if m.role == "assistant" and m.state == "live" and await _follows(store, key, m, erased)
    }
    assert {(answer.session, answer.seq) for answer in told.answers} == shown | in_turn


async def _follows(
    store: Store, key: SessionKey, answer: Message, erased: Mapping[SessionKey, Sequence[int]]
) -> bool:
    """Return whether an answer comes after an erased message of its turn."""
    gone = await store.find(key, seqs=erased[key])
    return any(m.turn == answer.turn and m.seq < answer.seq for m in gone)


def _is_from(
    answer: Message, owners: list[str], mine: int, plan: Planned, keys: list[SessionKey]
) -> bool:
    recalled = cast(Mapping[str, Any], answer.meta.get("recalled_from", {}))
    for id, ranges in recalled.items():
        named = int(id[1:])
        same = owners[named] == owners[mine]
        if same and any(seq in plan.erased.get(keys[named], ()) for seq, _ in ranges):
            return True
    return False


@pytest.mark.parametrize("kinds", [("main", "main"), ("delegate", "main")])
async def test_relatives_of_other_owners_are_none(kinds: tuple[Any, Any]) -> None:
    store = RamStore()
    one = (await store.put_session(SessionInfo(id="s", owner="ana", kind=kinds[0]))).key
    two = (await store.put_session(SessionInfo(id="t", owner="bea", kind=kinds[1], parent="s"))).key
    said = await store.append(one, [Message(role="user", content="x")])
    await store.load(two, said)
    assert await store.relatives(one) == ([], [])


async def test_forgetting_a_new_message_does_not_read_the_log_before_it(store: Store) -> None:
    memory = Memory(store, OPTIONS)
    session = await memory.create_session("chat")
    read: list[int] = []
    for number in (60, 1500):
        for start in range(0, number, 30):
            await session.append(
                *(Message(role="user", content=f"{start} and {n}") for n in range(30))
            )
        (asked,) = await session.append(Message(role="user", content=f"a secret at {number}"))
        counts = counted(store)
        told = await memory.forget(session="chat", message=asked.id)
        assert told.messages == 1
        read.append(counts.total())
    assert read[1] <= read[0] + 1


STEP = st.tuples(st.sampled_from("qqaatrc"), st.integers(0, 30))


@settings(max_examples=examples(150), deadline=None)
@given(steps=st.lists(STEP, min_size=2, max_size=30), gone=st.sets(st.integers(0, 40), max_size=3))
@example(
    steps=[("q", 0), ("q", 0), ("r", 1), ("a", 0), ("q", 0), ("r", 3), ("a", 0)], gone={2}
)  # both answers were given again to the first question
def test_answers_are_found_from_the_first_forgotten_message_on(
    steps: Sequence[tuple[str, int]], gone: set[int]
) -> None:
    asyncio.run(_compare_answers(steps, gone))


async def _compare_answers(steps: Sequence[tuple[str, int]], gone: set[int]) -> None:
    """Questions, answers that may name what they were written from, rewinds and clears."""
    store = RamStore()
    session = await Memory(store, OPTIONS).create_session("chat")
    for kind, number in steps:
        head = (await session.refresh()).messages
        if kind == "r":
            await session.rewind(min(number, head))
        elif kind == "c" and number < 5:
            await session.clear()
        elif kind in "at":
            first = min(number, head)
            meta = {"written_from": [[max(1, first), head]]} if kind == "t" and first else {}
            await session.append(Message(role="assistant", content="so", meta=cast(Any, meta)))
        else:
            await session.append(Message(role="user", content="what?"))
    head = (await session.refresh()).messages
    plan = ErasurePlan()
    plan.add(session.key, {seq % head + 1 for seq in gone} if head else set(), "chosen")
    reader = written._Session(store, plan, {"chat": session.key}, session.key)
    found = await reader.answers()
    reader._names = {"chat": session.key, "another": SessionKey("0")}  # so that it reads all
    assert found == await reader.answers()
