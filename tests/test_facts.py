"""Facts: what holds, who says so, what is quarantined, how people correct them."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepthread import Memory, Message, Scope, Session, Span
from keepthread.context.trust import rank
from keepthread.errors import (
    InvalidInput,
    MessageNotFound,
    SessionNotFound,
    Stale,
    Unsupported,
)
from keepthread.memory.facts.facts import Facts
from keepthread.memory.facts.markdown import read, write
from keepthread.memory.facts.profile import MOST, MOST_CHARACTERS, FactIndex, known
from keepthread.memory.facts.records import MOST_FACTS
from keepthread.memory.facts.resolution import QUARANTINED, in_order, resolve, slot_of, standing
from keepthread.memory.facts.types import Fact, Noted
from keepthread.models.tokens import Estimator
from keepthread.protocols import Updates
from keepthread.stores.kinds import FACT
from keepthread.testing import ManualClock
from keepthread.types import JSON, Origin
from proofs.fact_model import Shelf, Statement
from servers.postgres import PostgresServer
from servers.redis import RedisServer
from tests import hostile_pairs

OWNER = "ana"


# --- what holds: laws of `resolve` ---

ORIGINS: Sequence[Origin] = ("operator", "user", "assistant", "tool", "web")


@st.composite
def noted(draw: st.DrawFn, key: str) -> Noted:
    """Draw a fact of one of a few slots, said in one of two sessions or written by hand."""
    session = draw(st.sampled_from(["", "a", "b"]))
    seq = draw(st.integers(1, 9))
    at = float(draw(st.integers(0, 20)))
    if session:  # the clock of one stands still from some message on
        at = seq + 0.5 if session == "b" else float(min(seq, 4))
    attribute: str = draw(st.sampled_from(["", "city", "likes"]))
    value: str = draw(
        st.sampled_from(["Oslo", "Rome", "oslo ", *([attribute] if attribute else [])])
    )
    times = st.sampled_from([None, None, None, at, at - 5, at + 5]) | st.integers(0, 30)
    return Noted(
        key=key,
        text=f"It is {value}.",
        at=at,
        attribute=attribute,
        value=value,
        many=bool(attribute) and draw(st.booleans()),
        place=(session, seq) if session else None,
        trust=draw(st.sampled_from(ORIGINS)),
        confirmed_at=draw(st.sampled_from([None, None, 1.0])),
        since=draw(times),
        until=draw(times),
        offset=draw(st.integers(0, 2)),
        end_added=draw(st.booleans()),
    )


@st.composite
def shelves(draw: st.DrawFn) -> list[Noted]:
    count = draw(st.integers(0, 12))
    return [draw(noted(f"{n:032x}")) for n in range(count)]


def by_key(facts: Sequence[Fact]) -> dict[str, Fact]:
    return {fact.key: fact for fact in facts}


def plain_states(facts: Sequence[Noted], now: float, asked: float | None) -> dict[str, str]:
    """Return the states of facts by the plain model of P20."""
    shelf = Shelf()
    for slot in {slot_of(fact) for fact in facts}:
        mine = [fact for fact in facts if slot_of(fact) == slot]
        for number, fact in enumerate(in_order(mine)):
            shelf.statements[fact.key] = Statement(
                key=fact.key,
                attribute=repr(slot) if not fact.attribute else fact.attribute,
                value=" ".join(fact.value.casefold().split()),
                trust=fact.trust,
                order=(number, 0, 0),
                at=fact.at,
                since=fact.since,
                until=fact.until,
                many=fact.many,
                confirmed=fact.confirmed_at is not None,
                end_added=fact.end_added,
            )
    return shelf.states(now, asked)


@given(shelves(), st.randoms(use_true_random=False))
def test_what_holds_does_not_depend_on_the_order_of_arrival(facts: list[Noted], rng: Any) -> None:
    shuffled = facts.copy()
    rng.shuffle(shuffled)
    assert resolve(shuffled, 30) == resolve(facts, 30)


@given(shelves(), st.none() | st.integers(-5, 35))
def test_at_any_time_the_facts_hold_that_the_plain_model_says(
    facts: list[Noted], asked: float | None
) -> None:
    found = resolve(facts, 12, asked=asked)
    assert {fact.key: fact.state for fact in found} == plain_states(facts, 12, asked)
    live = [slot_of(fact) for fact in found if fact.state == "live"]
    assert len(live) == len(set(live)), "two facts hold in one slot"
    for fact in found:
        assert (fact.state == "quarantined") == (fact.trust in QUARANTINED)


@given(shelves(), st.none() | st.integers(-5, 35))
def test_every_replaced_fact_names_what_stands_in_its_place(
    facts: list[Noted], asked: float | None
) -> None:
    found = by_key(resolve(facts, 12, asked=asked))
    for fact in found.values():
        assert bool(fact.replaced_by) == (fact.state == "superseded")
        steps, end = 0, fact
        while end.replaced_by:
            after = found[end.replaced_by]
            assert rank(after.trust) >= rank(end.trust)
            assert slot_of(after) == slot_of(fact)
            steps, end = steps + 1, after
            assert steps <= len(found), "the replaced replace each other"
        if fact.state == "superseded":
            assert end.state in ("live", "ended", "future")
            assert fact.until is not None
        if fact.replaces:
            assert found[fact.replaces].replaced_by == fact.key


@given(shelves(), st.data())
def test_without_one_fact_the_rest_holds_as_if_it_had_never_been(
    facts: list[Noted], data: st.DataObject
) -> None:
    if facts:
        gone = data.draw(st.sampled_from(facts))
        left = [fact for fact in facts if fact is not gone]
        found = {fact.key: fact.state for fact in resolve(left, 30)}
        assert found == plain_states(left, 30, None)
        others = {f.key: f.state for f in resolve(facts, 30) if slot_of(f) != slot_of(gone)}
        assert found.items() >= others.items(), "a fact changed what another slot holds"


@given(shelves())
def test_what_waits_to_be_confirmed_changes_nothing(facts: list[Noted]) -> None:
    taken = [fact for fact in facts if standing(fact) not in QUARANTINED]
    assert [f for f in resolve(facts, 30) if f.state != "quarantined"] == resolve(taken, 30)


def test_the_log_orders_what_one_session_says_whatever_its_clock() -> None:
    def fact(key: str, at: float, session: str, seq: int) -> Noted:
        return Noted(key=key, text=key, at=at, attribute="city", place=(session, seq))

    back = [fact("a1", 10, "a", 1), fact("a2", 5, "a", 2), fact("b1", 7, "b", 1)]
    assert [f.key for f in in_order(back)] == ["b1", "a1", "a2"]


def test_a_less_trusted_word_is_refused_if_the_better_one_ends_later_at_the_same_time() -> None:
    def fact(seq: int, value: str, trust: Origin, until: float | None = None) -> Noted:
        place = ("a", seq)
        about: dict[str, Any] = {"text": value, "attribute": "car", "value": value}
        return Noted(key=str(seq), at=5, place=place, trust=trust, until=until, **about)

    said = [fact(1, "Saab", "operator"), fact(2, "Volvo", "user"), fact(3, "Saab", "operator", 5)]
    found = by_key(resolve(said, 5))
    assert {key: each.state for key, each in found.items()} == {
        "1": "superseded",
        "2": "superseded",
        "3": "ended",
    }
    assert found["2"].replaced_by == "1"


def test_a_plan_that_is_called_off_replaces_nothing() -> None:
    def fact(key: str, at: float, **more: Any) -> Noted:
        return Noted(key=key, text=key, at=at, attribute="city", **more)

    home, plan = fact("home", 1, value="Oslo"), fact("plan", 2, value="Rome", since=9)
    off = fact("off", 3, value="Rome", since=9, until=9)
    states = {each.key: each.state for each in resolve([home, plan, off], 20)}
    assert states["home"] == "live"


# --- remembering ---


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def memory(tmp_path: Path, clock: ManualClock) -> AsyncIterator[Memory]:
    url = f"sqlite:///{tmp_path}/chat.db"
    async with Memory.open(url, counter=Estimator(), clock=clock, durability="process") as opened:
        yield opened


def texts(facts: Sequence[Fact]) -> list[str]:
    return [fact.text for fact in facts]


async def live(facts: Facts) -> list[str]:
    return [fact.text for fact in await facts.list() if fact.state == "live"]


async def say(session: Session, clock: ManualClock, *said: Message | str) -> list[Message]:
    clock.advance(60)
    return await session.append(
        *(Message(role="user", content=m) if isinstance(m, str) else m for m in said)
    )


async def test_the_facts_of_a_memory_are_those_of_the_default_owner(memory: Memory) -> None:
    await memory.facts.remember("Likes tea.")
    await memory.for_owner("bea").facts.remember("Likes coffee.")
    for facts in (memory.facts, memory.for_owner("default").facts):
        assert [fact.text for fact in await facts.list()] == ["Likes tea."]


async def test_a_fact_is_kept_with_its_messages_and_who_said_it(
    memory: Memory, clock: ManualClock
) -> None:
    session = await memory.session("trip", owner=OWNER)
    (message,) = await say(session, clock, "I live in Oslo.")
    facts = memory.for_owner(OWNER).facts
    fact = await facts.remember(
        "Lives in Oslo.", attribute="city", value="Oslo", session="trip", messages=[message]
    )
    assert [tuple(source) for source in fact.messages] == [("trip", 1, message.id, "")]
    assert (fact.origin, fact.trust, fact.state) == ("user", "user", "live")
    assert fact.since == message.created_at
    (record,) = await memory.store.scan(Scope(owner=OWNER), FACT)
    assert record.made_of == (Span(session.key, 1, 1),)


async def test_the_same_from_the_same_message_is_one_fact_in_forks_too(
    memory: Memory, clock: ManualClock
) -> None:
    session = await memory.session("trip", owner=OWNER)
    (message,) = await say(session, clock, "I live in Oslo.")
    await session.fork(id="other")
    facts = memory.for_owner(OWNER).facts
    city = {"attribute": "city", "value": "Oslo", "messages": [message]}
    first = await facts.remember("Lives in Oslo.", session="trip", **city)
    again = await facts.remember("Her home is Oslo.", session="trip", **city)
    copied = await facts.remember("Lives in Oslo.", session="other", **city)
    assert first == again == copied
    assert len(await facts.list(all=True)) == 1
    await memory.delete_session("trip", owner=OWNER)
    await memory.forget(session="other", owner=OWNER, message=message.id)
    assert await facts.list(all=True) == [], "it hangs on the copy as well"


async def test_what_a_model_notes_without_messages_waits_for_the_owner(memory: Memory) -> None:
    facts = memory.for_owner(OWNER).facts
    fact = await facts.remember("Likes tea.", by="model", source="mcp:desk")
    assert (fact.state, fact.by, fact.source) == ("quarantined", "model", "mcp:desk")
    assert await facts.remember("Likes tea.", by="model", source="mcp:phone") == fact
    own = await facts.remember("Likes tea.")  # the owner says the same
    assert (own.state, own.by, own.source) == ("live", "owner", "")
    other = await facts.remember("Has a cat.", by="model", source="mcp:desk")
    assert (await facts.confirm(other.key)).state == "live"


async def test_a_model_cannot_raise_the_trust_of_a_message(memory: Memory) -> None:
    session = await memory.session("s", owner=OWNER)
    (said,) = await session.append(Message(role="user", content="I like tea."))
    facts = memory.for_owner(OWNER).facts
    fact = await facts.remember("Likes tea.", session="s", messages=[said], by="model")
    assert (fact.trust, fact.state) == ("tool", "quarantined")
    with pytest.raises(InvalidInput, match="by must be 'owner' or 'model', not 'me'"):
        await facts.remember("Likes tea.", by="me")  # pyright: ignore[reportArgumentType]


async def test_facts_are_forgotten_by_where_they_came_from(memory: Memory) -> None:
    for owner in (OWNER, "bea"):
        facts = memory.for_owner(owner).facts
        await facts.remember("Likes tea.", by="model", source="mcp:desk")
        await facts.remember("Has a cat.", by="model", source="mcp:phone")
        await facts.remember("Lives in Oslo.")
    planned = await memory.forget(source="mcp:desk", owner=OWNER, dry_run=True)
    assert planned.records == {"fact": 1}
    assert len(await memory.for_owner(OWNER).facts.list()) == 3
    assert (await memory.forget(source="mcp:desk", owner=OWNER)).records == {"fact": 1}
    left = {
        owner: {f.text for f in await memory.for_owner(owner).facts.list()}
        for owner in (OWNER, "bea")
    }
    assert left == {
        OWNER: {"Has a cat.", "Lives in Oslo."},
        "bea": {"Likes tea.", "Has a cat.", "Lives in Oslo."},
    }
    assert not (await memory.forget(source="mcp:desk")).any, "it is another owner's"
    assert (await memory.admin.forget(source="mcp:desk", until=1.0)).records == {}
    assert (await memory.admin.forget(source="mcp:desk")).records == {"fact": 1}
    assert not (await memory.admin.forget(source="mcp:desk")).any


async def test_the_owners_word_needs_no_message_and_is_not_noted_twice(memory: Memory) -> None:
    facts = memory.for_owner(OWNER).facts
    first = await facts.remember("Is allergic to nuts.")
    assert await facts.remember(" Is allergic\nto nuts. ") == first
    assert (first.messages, first.trust, first.by) == ([], "user", "owner")
    assert await memory.for_owner("bob").facts.list() == []


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"text": " "}, "empty"),
        ({"text": "x" * 1001}, "limit is 1000"),
        ({"text": "x\0y"}, "NUL"),
        ({"text": "x\ud800"}, "a lone surrogate"),
        ({"text": "x", "subject": "s" * 121}, "limit is 120"),
        ({"text": "x", "many": True}, "give both attribute and value"),
        ({"text": "x", "since": float("nan")}, "since"),
        ({"text": "x", "messages": ["m"]}, "name the session that the messages are in"),
        ({"text": "x", "session": "trip"}, "give the messages"),
    ],
)
async def test_what_is_no_fact_is_refused(
    memory: Memory, given: dict[str, Any], error: str
) -> None:
    await memory.session("trip", owner=OWNER)
    with pytest.raises(InvalidInput, match=error):
        await memory.for_owner(OWNER).facts.remember(**given)


async def test_a_fact_comes_from_messages_of_its_owner_that_are_there(
    memory: Memory, clock: ManualClock
) -> None:
    theirs = await memory.session("theirs", owner="bob")
    (message,) = await say(theirs, clock, "I live in Oslo.")
    facts = memory.for_owner(OWNER).facts
    with pytest.raises(SessionNotFound):
        await facts.remember("x", session="theirs", messages=[message])
    await memory.session("mine", owner=OWNER)
    with pytest.raises(MessageNotFound):
        await facts.remember("x", session="mine", messages=["nothing"])
    await memory.store.erase(theirs.key, [1])
    with pytest.raises(MessageNotFound):
        await memory.for_owner("bob").facts.remember("x", session="theirs", messages=[message])


async def test_redis_is_refused_in_words(redis_server: RedisServer) -> None:
    redis_server.ask("FLUSHALL")
    async with Memory.open(redis_server.url, counter=Estimator()) as memory:
        with pytest.raises(Unsupported, match="use SQLite or PostgreSQL"):
            await memory.for_owner(OWNER).facts.remember("Lives in Oslo.")
        with pytest.raises(Unsupported):
            await memory.for_owner(OWNER).facts.list()


async def test_postgresql_knows_facts_as_well(postgres: PostgresServer, clock: ManualClock) -> None:
    async with Memory.open(postgres.empty(), counter=Estimator(), clock=clock) as memory:
        session = await memory.session("trip", owner=OWNER)
        facts = memory.for_owner(OWNER).facts
        for city in ("Oslo", "Rome"):
            (message,) = await say(session, clock, f"I live in {city}.")
            given = {"attribute": "city", "value": city, "session": "trip", "messages": [message]}
            await facts.remember(f"Lives in {city}.", **given)
        assert await live(facts) == ["Lives in Rome."]
        assert "Lives in Rome." in (await session.context()).text
        await memory.forget(session="trip", owner=OWNER, message=message.id)
        assert await live(facts) == ["Lives in Oslo."]


# --- superseding ---


async def test_a_correction_replaces_and_the_history_shows_both(
    memory: Memory, clock: ManualClock
) -> None:
    session = await memory.session("trip", owner=OWNER)
    facts = memory.for_owner(OWNER).facts
    cities = []
    for city in ("Oslo", "Rome"):
        (message,) = await say(session, clock, f"I live in {city}.")
        given = {"attribute": "city", "value": city, "session": "trip", "messages": [message]}
        cities.append(await facts.remember(f"Lives in {city}.", **given))
    old, new = await facts.history(cities[0].key)
    assert texts([old, new]) == ["Lives in Oslo.", "Lives in Rome."]
    assert (old.state, old.replaced_by, old.until) == ("superseded", new.key, new.since)
    assert (new.state, new.replaces, new.until) == ("live", old.key, None)
    assert await live(facts) == ["Lives in Rome."]
    assert await facts.forget(new.key) == 1
    assert await live(facts) == ["Lives in Oslo."]


async def test_a_late_word_takes_its_place_in_the_past(memory: Memory, clock: ManualClock) -> None:
    session = await memory.session("trip", owner=OWNER)
    older, newer = await say(session, clock, "I live in Oslo.", "I live in Rome.")
    facts = memory.for_owner(OWNER).facts
    for city, message in (("Rome", newer), ("Oslo", older)):
        await facts.remember(
            f"Lives in {city}.", attribute="city", value=city, session="trip", messages=[message]
        )
    assert await live(facts) == ["Lives in Rome."]


async def test_said_again_it_holds_since_the_first_time(memory: Memory, clock: ManualClock) -> None:
    session = await memory.session("trip", owner=OWNER)
    facts = memory.for_owner(OWNER).facts
    first = None
    for _ in range(3):
        (message,) = await say(session, clock, "I live in Oslo.")
        given = {"attribute": "city", "value": "Oslo", "session": "trip", "messages": [message]}
        fact = await facts.remember("Lives in Oslo.", **given)
        first = first or fact
    assert first is not None
    assert fact.since == first.since
    assert await live(facts) == ["Lives in Oslo."]
    assert await facts.forget(fact.key) == 3, "forgetting what was said again leaves no echo"
    assert await facts.list(all=True) == []


async def test_what_an_attribute_has_many_of_stands_side_by_side(
    memory: Memory, clock: ManualClock
) -> None:
    facts = memory.for_owner(OWNER).facts
    for tea in ("Assam", "Sencha", "assam"):
        clock.advance(1)
        await facts.remember(f"Likes {tea}.", attribute="likes", value=tea, many=True)
    assert await live(facts) == ["Likes assam.", "Likes Sencha."], "oldest first"


async def test_what_has_ended_holds_no_longer(memory: Memory, clock: ManualClock) -> None:
    facts = memory.for_owner(OWNER).facts
    fact = await facts.remember("Is in Rome this week.", until=clock.now + 100)
    assert await live(facts) == ["Is in Rome this week."]
    clock.advance(100)
    ended = await facts.get(fact.key)
    assert ended is not None
    assert ended.state == "ended"
    assert await facts.list() == []


async def test_an_ended_or_past_fact_ends_its_own_value_only(
    memory: Memory, clock: ManualClock
) -> None:
    facts = memory.for_owner(OWNER).facts
    await facts.remember("Lives in Oslo.", attribute="city", value="Oslo")
    clock.advance(10)
    await facts.remember("Left Bergen.", attribute="city", value="Bergen", until=clock.now)
    await facts.remember("Studied in Paris.", attribute="city", value="Paris", since=10, until=20)
    assert await live(facts) == ["Lives in Oslo."]
    clock.advance(10)
    await facts.remember("Left Oslo.", attribute="city", value="Oslo", until=clock.now)
    assert await live(facts) == []


async def test_a_fact_of_the_future_holds_from_its_since_on(
    memory: Memory, clock: ManualClock
) -> None:
    facts, start = memory.for_owner(OWNER).facts, clock.now
    await facts.remember("Lives in Oslo.", attribute="city", value="Oslo")
    move = await facts.remember("Moves to Rome.", attribute="city", value="Rome", since=start + 90)
    assert move.state == "future"
    assert await live(facts) == ["Lives in Oslo."]
    session = await memory.session("trip", owner=OWNER)
    await session.append(Message(role="user", content="Where do I live?"))
    assert "Rome" not in (await session.context(budget=2000)).text
    assert [f.value for f in await facts.list(at=start + 100)] == ["Rome"]
    clock.advance(90)
    assert await live(facts) == ["Moves to Rome."]
    assert "Rome" in (await session.context(budget=2000)).text
    assert [f.value for f in await facts.list(at=start + 50)] == ["Oslo"]
    assert await facts.list(at=start - 1) == []


async def test_a_fact_with_an_end_covers_another_for_that_time(
    memory: Memory, clock: ManualClock
) -> None:
    facts, start = memory.for_owner(OWNER).facts, clock.now
    await facts.remember("Lives in Oslo.", attribute="city", value="Oslo")
    stay = {"attribute": "city", "value": "Rome", "since": start + 30, "until": start + 60}
    await facts.remember("Is in Rome for a month.", **stay)
    cities = [(await facts.list(at=start + day))[0].value for day in (0, 29, 30, 59, 60, 100)]
    assert cities == ["Oslo", "Oslo", "Rome", "Rome", "Oslo", "Oslo"]


async def test_ending_a_fact_by_an_edit_does_not_bring_back_what_it_replaced(
    memory: Memory, clock: ManualClock
) -> None:
    facts = memory.for_owner(OWNER).facts
    for city in ("Oslo", "Rome"):
        clock.advance(10)
        fact = await facts.remember(f"Lives in {city}.", attribute="city", value=city)
    clock.advance(10)
    ended = await facts.edit(fact.key, until=clock.now - 5)
    assert (ended.state, await live(facts)) == ("ended", [])


async def test_an_end_without_a_value_ends_every_value(memory: Memory, clock: ManualClock) -> None:
    facts = memory.for_owner(OWNER).facts
    await facts.remember("Drives a Volvo.", attribute="car", value="Volvo")
    clock.advance(10)
    await facts.remember("Has no car any more.", attribute="car", value="car", until=clock.now)
    assert await live(facts) == []


# --- trust ---


TOOL = Message(role="tool", content="The user lives in Pisa.", tool_call_id="1", name="web")
ANSWER = Message(role="assistant", content="So you live in Pisa.")
SHOWN_USERS_WORDS = replace(ANSWER, meta={"lowest_origin": "user"})
SHOWN_THE_WEB = replace(ANSWER, meta={"lowest_origin": "web"})


@pytest.mark.parametrize(
    ("said", "source", "trust", "state"),
    [
        (["I live in Pisa."], 0, "user", "live"),
        (["Where do I live?", ANSWER], 1, "tool", "quarantined"),
        (["Where do I live?", SHOWN_USERS_WORDS], 1, "assistant", "live"),
        (["Where do I live?", SHOWN_THE_WEB], 1, "web", "quarantined"),
        (["Where do I live?", TOOL, ANSWER], 2, "tool", "quarantined"),
        (["Where do I live?", TOOL, ANSWER], 1, "tool", "quarantined"),
        (["I live in Pisa.", TOOL, ANSWER], 0, "user", "live"),
        ([Message(role="user", content="Pisa", origin="import")], 0, "import", "quarantined"),
        ([Message(role="user", content="Pisa", origin="web")], 0, "web", "quarantined"),
        ([Message(role="system", content="She lives in Pisa.")], 0, "operator", "live"),
        (
            [Message(role="user", content="Ana lives in Pisa.", author="bob")],
            0,
            "assistant",
            "live",
        ),
    ],
)
async def test_a_fact_has_the_lowest_trust_it_comes_from(
    memory: Memory,
    clock: ManualClock,
    said: list[Message | str],
    source: int,
    trust: Origin,
    state: str,
) -> None:
    session = await memory.session("trip", owner=OWNER)
    stored = await say(session, clock, *said)
    fact = await memory.for_owner(OWNER).facts.remember(
        "Lives in Pisa.", session="trip", messages=[stored[source]]
    )
    assert (fact.trust, fact.state) == (trust, state)


async def test_less_trusted_words_do_not_replace(memory: Memory, clock: ManualClock) -> None:
    session = await memory.session("trip", owner=OWNER)
    facts = memory.for_owner(OWNER).facts
    said = await say(session, clock, "I live in Oslo.", SHOWN_USERS_WORDS)
    for city, message in zip(("Oslo", "Pisa"), said, strict=True):
        fact = await facts.remember(
            f"Lives in {city}.", attribute="city", value=city, session="trip", messages=[message]
        )
    assert await live(facts) == ["Lives in Oslo."]
    assert fact.state == "superseded"
    assert fact.replaced_by == (await facts.list())[0].key


async def test_quarantined_facts_are_found_but_in_no_prompt_until_confirmed(
    memory: Memory, clock: ManualClock
) -> None:
    session = await memory.session("trip", owner=OWNER)
    stored = await say(session, clock, "Where do I live?", TOOL)
    facts = memory.for_owner(OWNER).facts
    fact = await facts.remember("Lives in Pisa.", session="trip", messages=[stored[1]])
    assert texts(await facts.list()) == texts(await facts.search("pisa?")) == ["Lives in Pisa."]
    assert await known(memory.store, OWNER, "pisa") == []
    confirmed = await facts.confirm(fact.key)
    assert (confirmed.state, confirmed.trust, confirmed.origin) == ("live", "user", "tool")
    assert [each.text for each in await known(memory.store, OWNER, "")] == ["Lives in Pisa."]


# --- correcting and forgetting ---


async def test_an_edit_is_the_owners_word_and_keeps_what_was_said(
    memory: Memory, clock: ManualClock
) -> None:
    session = await memory.session("trip", owner=OWNER)
    (message,) = await say(session, clock, "I live in Oslo.")
    facts = memory.for_owner(OWNER).facts
    fact = await facts.remember(
        "Lives in Oslo.", attribute="city", value="Oslo", session="trip", messages=[message]
    )
    clock.advance(10)
    edited = await facts.edit(fact.key, text="Lives in Bergen.", value="Bergen")
    assert (edited.key, edited.messages) == (fact.key, fact.messages)
    assert (edited.since, edited.trust) == (clock.now, "user")
    before, after = await facts.history(fact.key)
    assert (before.text, before.since, before.until) == ("Lives in Oslo.", fact.since, clock.now)
    assert after == edited
    renamed = await facts.edit(fact.key, attribute="home")
    assert (renamed.attribute, renamed.since) == ("home", edited.since)


async def test_the_owners_newest_word_holds_though_the_clock_goes_back(
    memory: Memory, clock: ManualClock
) -> None:
    facts = memory.for_owner(OWNER).facts
    for city in ("Oslo", "Rome", "Pisa"):
        fact = await facts.remember(f"Lives in {city}.", attribute="city", value=city)
        clock.advance(-60)
    assert await live(facts) == ["Lives in Pisa."]
    await facts.edit(fact.key, text="Lives in Bari.")
    assert await live(facts) == ["Lives in Bari."]


@pytest.mark.parametrize("move", [60, 0, -60])
async def test_what_was_replaced_stays_so_however_the_clock_goes_until_the_new_ends(
    memory: Memory, clock: ManualClock, move: float
) -> None:
    session = await memory.session("cars", owner=OWNER)
    facts = memory.for_owner(OWNER).facts
    for text, value in (("Has a Volvo.", "Volvo"), ("Has a Saab.", "Saab"), ("Sold it.", "Saab")):
        (message,) = await session.append(Message(role="user", content=text))
        until = message.created_at if text == "Sold it." else None
        given: dict[str, Any] = {"attribute": "car", "value": value, "until": until}
        await facts.remember(text, session="cars", messages=[message], **given)
        clock.advance(move)
    states = {fact.text: fact.state for fact in await facts.list(all=True)}
    assert states == {
        "Has a Volvo.": "superseded",
        "Has a Saab.": "superseded",
        "Sold it.": "ended",
    }
    assert await live(facts) == []


async def test_a_replaced_fact_is_not_edited_and_an_unknown_one_not_found(memory: Memory) -> None:
    facts = memory.for_owner(OWNER).facts
    old = await facts.remember("Lives in Oslo.", attribute="city")
    await facts.remember("Lives in Rome.", attribute="city")
    with pytest.raises(InvalidInput, match="was superseded"):
        await facts.edit(old.key, text="Lives in Bergen.")
    for call in (facts.edit, facts.confirm):
        with pytest.raises(InvalidInput, match="there is no fact"):
            await call("0" * 32)
    assert await facts.forget("0" * 32) == 0
    assert await facts.get("0" * 32) is None
    assert await facts.history("0" * 32) == []


async def test_a_forgotten_fact_is_not_noted_again_from_the_same_message(
    memory: Memory, clock: ManualClock
) -> None:
    session = await memory.session("trip", owner=OWNER)
    (message,) = await say(session, clock, "I live in Oslo.")
    facts = memory.for_owner(OWNER).facts
    given = {"attribute": "city", "value": "Oslo", "session": "trip", "messages": [message]}
    fact = await facts.remember("Lives in Oslo.", **given)
    await facts.forget(fact.key)
    assert await facts.list(all=True) == []
    (record,) = await memory.store.scan(Scope(owner=OWNER), FACT)
    assert "Oslo" not in json.dumps(record.value)
    assert record.made_of, "to erase the message takes it away"
    with pytest.raises(InvalidInput, match="was forgotten"):
        await facts.remember("Lives in Oslo.", **given)
    assert (await facts.remember("Lives in Oslo.", attribute="city")).state == "live"


async def test_changing_a_fact_does_not_bring_it_back_once_it_is_gone(memory: Memory) -> None:
    facts = memory.for_owner(OWNER).facts
    fact = await facts.remember("Lives in Oslo.")
    store: Any = memory.store
    put = store.put

    async def dropped_first(*args: Any, **kwargs: Any) -> int:
        store.put = put
        await store.drop(Scope(owner=OWNER), FACT, fact.key)
        return await put(*args, **kwargs)

    store.put = dropped_first
    with pytest.raises(InvalidInput, match="there is no fact"):
        await facts.edit(fact.key, text="Lives in Bergen.")
    assert await facts.list(all=True) == []


async def test_facts_that_others_wrote_wrongly_are_passed_over(memory: Memory) -> None:
    values: list[JSON] = [None, [], {}, {"text": 1}, {"gone": 1}, {"text": "x", "at": "now"}]
    for n, value in enumerate(values):
        await memory.store.put(Scope(owner=OWNER), FACT, f"{n}", value)
    await memory.for_owner(OWNER).facts.remember("Lives in Oslo.")
    assert texts(await memory.for_owner(OWNER).facts.list(all=True)) == ["Lives in Oslo."]


# --- the profile ---


async def test_the_profile_is_small_and_the_rest_comes_when_it_bears(
    memory: Memory, clock: ManualClock
) -> None:
    facts = memory.for_owner(OWNER).facts
    for n in range(40):
        clock.advance(1)
        await facts.remember(f"Owns book {n} of the shelf.")
    await facts.remember("Plays the cello in Bergen.", subject="Mia")
    await facts.remember("Is afraid of dogs.", subject="Tom")
    found = await known(memory.store, OWNER, "Where does Mia play the cello?")
    profile = [each for each in found if each.always]
    rest = [each for each in found if not each.always]
    assert len(profile) == MOST
    assert sum(len(each.text) for each in profile) <= MOST_CHARACTERS
    assert "Owns book 39 of the shelf." in {each.text for each in profile}
    assert [each.text for each in rest] == ["Plays the cello in Bergen."]
    assert all(each.score > 0 for each in found)


def test_no_record_is_no_knowledge() -> None:
    assert FactIndex(OWNER, Updates(0, True, []), 0).known("anything") == []


# --- documents ---


async def test_a_document_comes_back_as_it_was(memory: Memory, clock: ManualClock) -> None:
    facts = memory.for_owner(OWNER).facts
    await facts.remember("Lives in Oslo.", attribute="city", value="Oslo")
    await facts.remember("Plays the **cello** <!-- loud --> &lt;3", subject="Mia & Tom")
    before = await memory.store.scan(Scope(owner=OWNER))
    document = await facts.to_markdown()
    clock.advance(10)
    assert not any(await facts.from_markdown(document, prune=True))
    assert await memory.store.scan(Scope(owner=OWNER)) == before


async def test_a_person_edits_the_document(memory: Memory, clock: ManualClock) -> None:
    session = await memory.session("trip", owner=OWNER)
    stored = await say(session, clock, "Where do I live?", TOOL)
    facts = memory.for_owner(OWNER).facts
    city = await facts.remember("Lives in Oslo.", attribute="city", value="Oslo")
    old = await facts.remember("Has a cat.")
    waits = await facts.remember("Has a boat.", session="trip", messages=[stored[1]])
    clock.advance(1)
    document = await facts.to_markdown()
    clock.advance(1)
    newer = await facts.remember("Has a horse.")
    document = document.replace("Lives in Oslo.", "Lives in Rome.").replace("[ ]", "[x]")
    document = "\n".join(line for line in document.splitlines() if "cat" not in line)
    document += "\n## Mia\n\n* **plays:** The cello.\n- \nJust a remark.\n"
    kept = await facts.from_markdown(document)
    assert (kept.edited, kept.confirmed, kept.forgotten) == ([city.key], [waits.key], [])
    assert len(kept.added) == 1
    again = await facts.from_markdown(document, prune=True)
    assert again.forgotten == [old.key]
    assert (again.added, again.edited, again.confirmed) == ([], [], [])
    found = {(f.subject, f.attribute, f.text, f.state) for f in await facts.list()}
    assert found == {
        ("", "city", "Lives in Rome.", "live"),
        ("", "", "Has a boat.", "live"),
        ("", "", newer.text, "live"),
        ("Mia", "plays", "The cello.", "live"),
    }


SIGNS = st.sampled_from(
    [
        *"[]xX \\*:-#>`&<!|_",
        "[x] ",
        "[ ] ",
        "**",
        ":** ",
        "<!-- ",
        " -->",
        "&lt;",
        "&amp;",
        "About ",
    ]
)
MARKDOWN = st.lists(SIGNS | st.characters(codec="utf-8"), min_size=1, max_size=12).map("".join)
NAMES = st.just("") | st.sampled_from(["Bob", "bob", "# Bob", "Waiting to be confirmed"]) | MARKDOWN


@given(
    st.sampled_from(["ann", "# ann", "About x", " ann"]),
    st.lists(st.tuples(MARKDOWN, NAMES, NAMES, st.booleans()), min_size=1, max_size=4),
)
def test_an_unchanged_document_changes_nothing(
    owner: str, given_facts: list[tuple[str, str, str, bool]]
) -> None:
    async def law() -> None:
        async with Memory.open("ram://", counter=Estimator()) as memory:
            facts = memory.for_owner(owner).facts
            session = await memory.session("s", owner=owner)
            (page,) = await session.append(Message(role="user", content="x", origin="web"))
            for text, attribute, subject, doubted in given_facts:
                told = {"session": "s", "messages": [page]} if doubted else {}
                with suppress(InvalidInput):
                    await facts.remember(text, attribute=attribute, subject=subject, **told)
            before = await facts.list(all=True)
            for prune in (False, True):
                loaded = await facts.from_markdown(await facts.to_markdown(), prune=prune)
                assert not any(loaded), loaded
            assert await facts.list(all=True) == before

    asyncio.run(law())


async def test_a_box_at_the_start_of_a_fact_is_text_and_the_one_before_it_confirms(
    memory: Memory,
) -> None:
    session = await memory.session("s", owner=OWNER)
    (page,) = await session.append(Message(role="user", content="x", origin="web"))
    facts = memory.for_owner(OWNER).facts
    await facts.remember("[x] Book the venue", session="s", messages=[page])
    written = await facts.to_markdown()
    loaded = await facts.from_markdown(written.replace("- [ ] ", "- [x] "))
    assert len(loaded.confirmed) == 1
    (fact,) = await facts.list()
    assert (fact.text, fact.state) == ("[x] Book the venue", "live")
    changed = (await facts.to_markdown()).replace("venue", "hall")
    await facts.from_markdown(changed)
    assert await live(facts) == ["[x] Book the hall"]


async def test_a_document_does_not_forget_what_began_to_hold_after_it_was_written(
    memory: Memory, clock: ManualClock
) -> None:
    facts = memory.for_owner(OWNER).facts
    await facts.remember("Lives in Oslo.", attribute="city", value="Oslo")
    await facts.remember("Moves to Rome.", attribute="city", value="Rome", since=clock.now + 50)
    written = await facts.to_markdown()
    clock.advance(100)
    loaded = await facts.from_markdown(written, prune=True)
    assert not any(loaded)
    assert await live(facts) == ["Moves to Rome."]


async def test_an_old_document_brings_back_nothing_that_was_forgotten(memory: Memory) -> None:
    facts = memory.for_owner(OWNER).facts
    fact = await facts.remember("Has a cat.")
    markdown, value = await facts.to_markdown(), await facts.to_json()
    await facts.forget(fact.key)
    assert (await facts.from_markdown(markdown)).passed == [fact.key]
    assert await facts.list() == []
    with pytest.raises(InvalidInput, match="has no timestamp"):
        await facts.from_markdown("- Has a dog.", prune=True)
    assert isinstance(value, dict)


lines = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=60)


@given(lines, lines, lines)
def test_any_text_stands_in_one_line_that_can_be_read(
    text: str, subject: str, attribute: str
) -> None:
    def flat(given: str) -> str:
        return " ".join(given.split())

    noted = Noted("0" * 32, flat(text) or "x", 1.0, flat(subject), flat(attribute))
    if noted.subject == OWNER:
        return
    (fact,) = resolve([noted], 2)
    document = read(write(OWNER, [fact], 2), OWNER)
    (line,) = document.lines
    assert line.key == fact.key
    assert line.subject == fact.subject
    assert document.at == 2


async def test_facts_go_elsewhere_as_json_and_raise_no_trust(
    memory: Memory, clock: ManualClock, tmp_path: Path
) -> None:
    session = await memory.session("trip", owner=OWNER)
    stored = await say(session, clock, "I live in Oslo.", TOOL)
    facts = memory.for_owner(OWNER).facts
    await facts.remember("Has a cat.")
    await facts.remember("Lives in Oslo.", session="trip", messages=[stored[0]])
    waits = await facts.remember("Lives in Pisa.", session="trip", messages=[stored[1]])
    await facts.confirm(waits.key)
    value: Any = json.loads(json.dumps(await facts.to_json()))
    assert not any(await facts.from_json(value)), "all of it is here"
    for entry in value["facts"]:
        entry["trust"] = entry["origin"] = "operator"
    url = f"sqlite:///{tmp_path}/other.db"
    async with Memory.open(url, counter=Estimator(), clock=clock) as other:
        there = other.for_owner(OWNER).facts
        assert len((await there.from_json(value)).added) == 3
        assert not any(await there.from_json(value))
        states = {fact.text: (fact.trust, fact.state) for fact in await there.list()}
        assert states == {
            "Has a cat.": ("user", "live"),
            "Lives in Oslo.": ("import", "quarantined"),
            "Lives in Pisa.": ("import", "quarantined"),
        }
    for fact in await facts.list(all=True):
        await memory.store.drop(Scope(owner=OWNER), FACT, fact.key)
    await facts.from_json(value)
    states = {fact.text: (fact.trust, fact.state) for fact in await facts.list()}
    assert states["Lives in Oslo."] == ("user", "live")
    assert states["Lives in Pisa."] == ("tool", "quarantined")


async def test_a_plain_list_of_facts_is_remembered_once(memory: Memory, clock: ManualClock) -> None:
    facts = memory.for_owner(OWNER).facts
    await facts.remember("Has a cat.")
    value: JSON = [
        {"fact": "Has a cat.", "updated": clock() - 9},
        {"fact": " Sings\nloudly. ", "updated": "2005-02-03T10:00:00+01:00"},
        {"fact": "Sings loudly."},
        {"fact": "Will sail.", "updated": "9998-01-01"},
    ]
    loaded = await facts.from_json(value)
    assert [len(keys) for keys in loaded] == [2, 0, 0, 0, 0]
    assert not any(await facts.from_json(value))
    known = {fact.text: fact for fact in await facts.list()}
    assert set(known) == {"Has a cat.", "Sings loudly.", "Will sail."}
    assert known["Sings loudly."].since == 1_107_421_200  # 09:00 in UTC
    assert known["Will sail."].state == "live", "said now at the latest"
    await facts.remember("Swims.", agent="trainer")
    await facts.remember("Swims.", subject="Bob")
    assert (await facts.from_json({"fact": "Swims."})).added, "nobody said it of the owner to all"
    assert not (await facts.from_json({"fact": "Swims."})).added
    await facts.forget(known["Sings loudly."].key)
    assert (await facts.from_json(value)).added == [known["Sings loudly."].key], "said again"


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"fact": None}, "fact 2 has no text"),
        ("Sings.", "fact 2 has no text"),
        ({"fact": " "}, "text is empty"),
        ({"fact": "Sings.", "updated": "soon"}, "fact 2 has an invalid time 'soon'"),
        ({"fact": "Sings.", "updated": 1_731_749_400_000_000}, "has an invalid time"),
        ({"fact": "Sings.", "updated": "0001-01-01"}, "has an invalid time"),
        ({"fact": "Sings.", "updated": True}, "has an invalid time"),
    ],
)
async def test_a_wrong_entry_of_a_list_is_named(memory: Memory, entry: JSON, message: str) -> None:
    facts = memory.for_owner(OWNER).facts
    with pytest.raises(InvalidInput, match=message):
        await facts.from_json([{"fact": "Has a cat."}, entry])
    assert await facts.list() == []


@pytest.mark.parametrize("value", [None, [], {}, {"format": "keepthread-facts", "version": 2}])
async def test_what_is_no_document_of_facts_is_refused(memory: Memory, value: JSON) -> None:
    with pytest.raises(InvalidInput, match="not a document of facts"):
        await memory.for_owner(OWNER).facts.from_json(value)


async def test_a_wrong_fact_in_a_document_is_named_and_nothing_loaded(memory: Memory) -> None:
    facts = memory.for_owner(OWNER).facts
    await facts.remember("Has a cat.")
    value: Any = await facts.to_json()
    value["facts"].append({"key": "k", "text": 1})
    with pytest.raises(InvalidInput, match="fact 2 is not a valid fact object; nothing was loaded"):
        await memory.for_owner("bob").facts.from_json(value)
    assert await memory.for_owner("bob").facts.list() == []


@pytest.mark.parametrize(
    ("line", "text", "key", "ticked"),
    [
        ("- Likes tea.", "Likes tea.", "", False),
        (f" *  [X]  Likes tea.\t<!--{'a' * 32}-->  ", "Likes tea.", "a" * 32, True),
        (f"- Likes <!-- {'b' * 32} --> tea <!-- {'a' * 32} -->", None, "a" * 32, False),
        (f"- Likes tea <!-- {'a' * 31} -->", None, "", False),
        (f"- Likes tea <!-- {'a' * 32} --> now", None, "", False),
        ("- [x]", "[x]", "", False),
        ("- [y] Likes tea.", "[y] Likes tea.", "", False),
        ("- a" + " " * 8000 + "x", "a" + " " * 8000 + "x", "", False),
    ],
)
def test_a_line_has_a_box_a_text_and_a_key(
    line: str, text: str | None, key: str, ticked: bool
) -> None:
    (found,) = read(line, OWNER).lines
    if text is None:
        text = line.removeprefix("- ").removesuffix(f" <!-- {key} -->")
    assert (found.text, found.key, found.ticked) == (text, key, ticked)


async def test_a_document_with_too_many_facts_is_refused_before_one_is_stored(
    memory: Memory,
) -> None:
    facts = memory.for_owner(OWNER).facts
    number = MOST_FACTS + 1
    many: list[JSON] = [{"fact": f"Fact {n}."} for n in range(number)]
    document: JSON = {"format": "keepthread-facts", "version": 1, "facts": many}
    for load in (
        facts.from_markdown("- A fact.\n" * number),
        facts.from_json(many),
        facts.from_json(document),
    ):
        with pytest.raises(InvalidInput, match="more than 20,000 facts"):
            await load
    assert await facts.list() == []
    assert len(read("- A fact.\n" * MOST_FACTS, OWNER).lines) == MOST_FACTS


@pytest.mark.parametrize("change", [{"subject": "Bob"}, {"attribute": "drink"}, {"until": 3e9}])
async def test_any_edit_that_is_based_on_an_older_version_is_refused(
    memory: Memory, change: dict[str, Any]
) -> None:
    facts = memory.for_owner(OWNER).facts
    fact = await facts.remember("Likes tea.")
    newer = await facts.edit(fact.key, text="Likes green tea.")
    with pytest.raises(Stale):
        await facts.edit(fact.key, **change, version=fact.version)
    assert await facts.get(fact.key) == newer
    await facts.edit(fact.key, **change, version=newer.version)


@pytest.mark.parametrize(("one", "two"), hostile_pairs.NAMES)
async def test_each_agent_has_a_fact_of_its_own_from_the_same_message(
    memory: Memory, one: str, two: str
) -> None:
    facts = memory.for_owner(OWNER).facts
    session = await memory.session("s", owner=OWNER)
    said = await session.append(Message(role="user", content="Ships sail on Monday."))
    noted = [
        await facts.remember("Ships sail on Monday.", agent=agent, session="s", messages=said)
        for agent in (one, two)
    ]
    assert [fact.agent for fact in noted] == [one, two]
    assert len({fact.key for fact in noted}) == 2
    assert {fact.agent for fact in await facts.list()} == {one, two}
