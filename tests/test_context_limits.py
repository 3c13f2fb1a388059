"""A context reads no more pins, notes and cached results than it may show, and says so."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepthread import Memory
from keepthread.context.hidden import CLEARED, REWOUND, HiddenRanges
from keepthread.context.sections import MAX_FOLLOWED
from keepthread.context.sources import sources
from keepthread.context.why import WhyBuilder
from keepthread.memory.material import gather, marks_of
from keepthread.memory.tool_cache import drop_ended
from keepthread.stores.kinds import MARKS, NOTE, PIN
from keepthread.stores.ram import RamStore
from keepthread.text_caches import LeastRecent
from keepthread.types import Choice, Hidden, Message, Record, Scope, Selection, SessionKey, Span

MORE = MAX_FOLLOWED + 30
OWNER = "ana"


async def fill(memory: Memory, kind: str, number: int) -> str:
    """Give a session a number of pins, notes or cached results; return its key."""
    session = await memory.session("s", owner=OWNER)
    store, key = memory.store, session.key
    log = [Message(role="user", content=f"message {n}", id=f"m{n}") for n in range(1, MORE + 1)]
    await session.append(*log)
    await session.append(*[Message(role="assistant", content="word " * 50)] * 20)
    await session.add_message("user", "And now?")
    for n in range(1, number + 1):
        span = [Span(key, n, n)]
        if kind == "pins":
            await store.put(Scope(session=key), PIN, f"m{n}", None, made_of=span)
        elif kind == "notes":
            await store.put(Scope(session=key), NOTE, f"n{n}", {"id": f"m{n}"}, made_of=span)
        else:
            value = {
                "name": "look",
                "arguments": "{}",
                "author": OWNER,
                "call": f"c{n}",
                "result": f"m{n}",
                "last": 9999,
                "cache_turns": 3,
                "at": 1.0,
                "log_end": 0,
                "visible_end": 0,
            }
            await store.put(Scope(session=key), "tool", f"{n:064}", value, made_of=span)
    return key


@pytest.mark.parametrize("kind", ["pins", "notes", "tools"])
async def test_a_context_looks_at_the_latest_and_says_that_there_are_more(kind: str) -> None:
    memory = Memory(RamStore())
    key = SessionKey(await fill(memory, kind, MORE))
    session = await memory.session("s", owner=OWNER)
    material = await gather(memory.store, key, memory.counter, tokens=1000, owner=OWNER)
    found = {"pins": material.pins, "notes": material.notes, "tools": material.tool_results}[kind]
    assert len(found) == MAX_FOLLOWED
    assert list(material.beyond) == [kind]
    context = await session.context(budget=2000)
    assert context.tokens <= 2000
    only = {
        "pins": f"pins: only the newest {MAX_FOLLOWED} are considered",
        "notes": f"notes: only the newest {MAX_FOLLOWED} are considered",
        "tools": f"cached results: only the {MAX_FOLLOWED} used last are considered",
    }[kind]
    told = [c for c in context.why.left_out if only in c.reason]
    assert len(told) == 1
    assert str(told[0].reason) in str(context.why)


@pytest.mark.parametrize("kind", ["pins", "notes", "tools"])
async def test_as_many_as_are_looked_at_are_not_too_many(kind: str) -> None:
    memory = Memory(RamStore())
    key = SessionKey(await fill(memory, kind, MAX_FOLLOWED))
    material = await gather(memory.store, key, memory.counter, tokens=1000, owner=OWNER)
    assert not material.beyond
    context = await (await memory.session("s", owner=OWNER)).context(budget=2000)
    assert "only the" not in str(context.why)


async def test_what_was_pinned_last_is_shown_however_old_it_is() -> None:
    memory = Memory(RamStore())
    await fill(memory, "pins", MORE)
    session = await memory.session("s", owner=OWNER)
    await session.pin("m1")
    shown = [m.id for m in (await session.context(budget=100_000)).messages]
    assert shown[0] == "m1"
    assert len(await session.pins()) == MORE


async def test_cached_results_that_ended_are_dropped_some_at_a_time() -> None:
    store = RamStore()
    memory = Memory(store)
    key = SessionKey(await fill(memory, "tools", MORE))
    first = await drop_ended(store, key, 10_000)
    assert (first.left, first.before) == (0, f"{MORE - MAX_FOLLOWED + 1:064}")
    second = await drop_ended(store, key, 10_000, first.before)
    assert second == (0, None)
    assert not await store.scan(Scope(session=key), "tool")


async def test_after_turns_all_results_that_ended_are_gone() -> None:
    store = RamStore()
    memory = Memory(store)
    session = await memory.session("s", owner=OWNER)
    async with session.turn("Hello") as turn:
        await turn.finish("Hi")
    await fill(memory, "tools", MORE)
    key, upkeep = session.key, memory._services.maintenance
    left: list[int] = []
    for _ in range(4):
        upkeep.after(key, 10_000)
        await memory.idle()
        left.append(len(await store.scan(Scope(session=key), "tool")))
    assert left[0] in (MORE - MAX_FOLLOWED, MAX_FOLLOWED)  # an earlier turn looked at some
    assert left[1:] == [0, 0, 0]
    assert key in upkeep.without_tools
    await memory.close()


# --- hidden ranges ---


@st.composite
def ranges(draw: st.DrawFn) -> tuple[Hidden, ...]:
    found: list[Hidden] = []
    last = 0
    for _ in range(draw(st.integers(0, 30))):
        first = last + draw(st.integers(1, 3))
        last = first + draw(st.integers(0, 3))
        reason = draw(st.sampled_from([CLEARED, REWOUND]))
        found.append(Hidden(first, last, draw(st.integers(0, 9)), reason))
    return tuple(found)


@given(ranges(), st.integers(0, 80), st.integers(0, 80))
def test_running_sums_are_what_all_ranges_add_up_to(
    hidden: tuple[Hidden, ...], one: int, other: int
) -> None:
    first, last = min(one, other), max(one, other)
    for marks in (HiddenRanges(hidden), HiddenRanges.of(hidden), HiddenRanges.of(hidden)):
        before = [span for span in hidden if span.first <= one]
        count = sum(span.last - span.first + 1 for span in before)
        assert marks.hidden_before(one) == (count, sum(span.tokens for span in before))
        assert marks.hides(one) == any(s.first <= one <= s.last for s in hidden)
        within = [s for s in hidden if s.first <= last and first <= s.last]
        assert list(marks.within(first, last)) == within


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), max_size=12), st.integers(0, 90))
def test_ranges_of_an_earlier_log_are_those_that_no_other_covers(
    steps: Sequence[tuple[int, int]], end: int
) -> None:
    marks, head = HiddenRanges(), 0
    for added, first in steps:
        head += added
        marks = marks.hide(min(first, head), head, 0, REWOUND)
    spans = [s for s in (*marks.hidden, *marks.inner) if s.last <= end]
    outer = [
        s
        for s in spans
        if not any(o.first <= s.first and s.last <= o.last for o in spans if o is not s)
    ]
    found = marks.until(end)
    assert list(found.hidden) == sorted(outer)
    assert sorted(found.inner) == sorted(s for s in spans if s not in outer)


def many(number: int) -> tuple[Hidden, ...]:
    return tuple(Hidden(3 * n, 3 * n + 1, n, REWOUND) for n in range(1, number + 1))


def test_many_hidden_ranges_take_a_hundred_lines_and_one() -> None:
    account = WhyBuilder()
    account.add_hidden(many(100))
    assert len(account.choices) == 100
    account = WhyBuilder()
    account.add_hidden(hidden := many(250))
    assert len(account.choices) == 101
    reason = "cleared or rewound (150 ranges)"
    assert account.choices[0] == Choice(3, 451, 300, sum(range(151)), "", reason)
    assert account.choices[1:] == [Choice(s.first, s.last, 2, s[2], "", s[3]) for s in hidden[150:]]


def test_an_answer_is_not_written_from_hidden_messages_however_many_there_are() -> None:
    covered = Choice(1, 1000, 0, 0, "", "covered by the summary")
    selection = Selection(9, 9, "", (), [covered], hidden=many(250))
    hidden = {seq for span in many(250) for seq in range(span.first, span.last + 1)}
    found = {seq for first, last in sources(selection) for seq in range(first, last + 1)}
    assert found == set(range(1, 1001)) - hidden


def test_long_ranges_are_decoded_once_and_never_mixed_up() -> None:
    scope = Scope(session=SessionKey("1"))
    values = [HiddenRanges(many(n)).to_json() for n in (20, 30)]
    for _ in range(2):
        for value, number in zip(values, (20, 30), strict=True):
            record = Record(scope=scope, kind=MARKS, key=MARKS, value=value, version=1)
            assert marks_of([record]).hidden == many(number)
            assert marks_of([record]) is marks_of([record])


def test_the_least_recent_goes_first() -> None:
    kept: LeastRecent[str, int] = LeastRecent(2)
    for key, value in (("a", 1), ("b", 2)):
        kept.put(key, value)
    assert kept.get("a") == 1
    kept.put("c", 3)
    assert [kept.get(key) for key in "abc"] == [1, None, 3]
    kept.discard("a")
    kept.put("c", 4)
    assert (len(kept), kept.get("a"), kept.get("c")) == (1, None, 4)
