"""The feed of changes: what was written comes at least once, in order, to its owner alone."""

import asyncio
import random
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from keepthread import Memory, Message
from keepthread.errors import CursorExpired, InvalidInput
from keepthread.protocols import Store
from keepthread.stores import PostgresStore, RedisStore
from keepthread.stores.changes import READINGS, count_expired
from keepthread.stores.cursors import decode_cursor, encode_cursor
from keepthread.stores.kinds import FACT, PIN, WHY
from keepthread.stores.postgres.engine import PgLink
from keepthread.stores.postgres.schema import SQL
from keepthread.stores.redis import changes as redis_changes
from keepthread.stores.redis.changes import Announcer
from keepthread.stores.redis.keys import index_of
from keepthread.stores.sqlite import SQLiteStore
from keepthread.types import JSON, Change, Page, Scope, SessionInfo
from servers.postgres import PostgresServer
from servers.redis import RedisServer
from tests.every_store import store
from tests.seeds import SEED

__all__ = ["store"]


async def after_its_end(store: Store, cursor: str | None, owner: str | None) -> Page[Change]:
    """Return the changes after a cursor; a store may show them once their second is over."""
    page = await store.changes(owner=owner, after=cursor)
    return page or await wait_for(store, page.next, owner)


async def wait_for(store: Store, cursor: str | None, owner: str | None) -> Page[Change]:
    ends = time.monotonic() + 5
    while True:
        page = await store.changes(owner=owner, after=cursor)
        if page or time.monotonic() > ends:
            return page
        await asyncio.sleep(0.05)


async def everything(
    store: Store, cursor: str | None = None, owner: str | None = None, limit: int = 100
) -> tuple[list[Change], str | None]:
    """Return all changes after a cursor, once what was written before the call is shown."""
    mark = await store.put_session(SessionInfo(id=f"mark-{time.time_ns()}", owner=owner or "mark"))
    found: list[Change] = []
    ends = time.monotonic() + 10
    while time.monotonic() < ends:
        page = await store.changes(owner=owner, after=cursor, limit=limit)
        found += page
        cursor = page.next
        if any(change.key == mark.key for change in found):
            return [change for change in found if change.key != mark.key], cursor
        await asyncio.sleep(0 if page else 0.05)
    raise AssertionError("the last change was not shown within 10 seconds")


def message(text: str, id: str = "") -> Message:
    return Message(role="user", content=text, id=id)


async def test_each_kind_of_write_is_announced(store: Store) -> None:
    session = await store.put_session(SessionInfo(id="one", owner="ana"))
    first, second = await store.append(session.key, [message("a"), message("b", "own id")])
    await store.append(session.key, [message("a", first.id)])  # known: nothing is written
    await store.append(session.key, [message("a", first.id), message("c", "c")])
    described = await store.describe(session.key)
    await store.put_session(SessionInfo(id="one", owner="ana", key=session.key, title="T"))
    await store.put(Scope(session=session.key), PIN, "p", 1)
    await store.put(Scope(session=session.key), WHY, "w", 1)  # no change that anybody sees
    await store.put(Scope(owner="ana"), FACT, "likes tea", {"text": "tea"})
    assert await store.drop(Scope(owner="ana"), FACT, "likes tea")
    assert not await store.drop(Scope(owner="ana"), FACT, "likes tea")
    await store.erase(session.key, [2])
    await store.erase(session.key, [2])  # erased already
    await store.delete_session(session.key)
    found, _ = await everything(store, owner="ana")
    expected = [
        ("session_created", "one", ()),
        ("messages_added", "one", (first.id, second.id)),
        ("messages_added", "one", ("c",)),
        ("session_updated", "one", ()),
        ("session_updated", "one", ()),
        ("messages_erased", "one", (second.id,)),
        ("session_deleted", "one", ()),
    ]
    of_session = [(c.kind, c.session, c.ids) for c in found if c.session]
    one_by_one = [("messages_added", "one", (id,)) for id in (first.id, second.id)]
    if of_session[1:3] == one_by_one:  # a server may announce one message at a time
        expected[1:2] = one_by_one
    assert of_session == expected
    assert [(c.kind, c.ids) for c in found if not c.session] == [
        ("fact_changed", ("likes tea",))
    ] * 2
    assert {c.owner for c in found} == {"ana"}
    assert {c.key for c in found} == {described.key, ""}
    assert all(abs(c.at - time.time()) < 60 for c in found)


async def test_an_owner_sees_only_their_own_changes(store: Store) -> None:
    for owner in ("ana", "bo", "ana", "bo", "cy"):
        made = await store.put_session(SessionInfo(id=f"{time.time_ns()}", owner=owner))
        await store.append(made.key, [message(f"of {owner}")])
        await store.put(Scope(owner=owner), FACT, f"of {owner}", 1)
    for owner in ("ana", "bo", "cy"):
        found, _ = await everything(store, owner=owner)
        assert {change.owner for change in found} == {owner}
        assert len(found) == (3 if owner == "cy" else 6)
    all_of_them, _ = await everything(store)
    assert len([c for c in all_of_them if not c.session.startswith("mark")]) == 15


async def test_pages_of_any_size_give_the_same_changes(store: Store) -> None:
    rng = random.Random(SEED)
    keys = [(await store.put_session(SessionInfo(id=f"s{n}", owner="ana"))).key for n in range(3)]
    for number in range(40):
        await store.append(rng.choice(keys), [message(f"m{number}", f"m{number}")])
    whole, _ = await everything(store, owner="ana")
    for limit in (1, 2, 7):
        cursor: str | None = None
        found: list[Change] = []
        while True:
            page = await store.changes(owner="ana", after=cursor, limit=limit)
            assert len(page) <= limit
            found += page
            cursor = page.next
            if not page:
                break
        assert [c for c in found if not c.session.startswith("mark")] == whole, SEED


async def test_the_present_is_after_all_that_was_written(store: Store) -> None:
    made = await store.put_session(SessionInfo(id="s", owner="ana"))
    await everything(store, owner="ana")
    now = await store.changes(owner="ana", limit=0)
    assert now == []
    assert not await store.changes(owner="ana", after=now.next)
    await store.append(made.key, [message("later", "later")])
    found = await after_its_end(store, now.next, "ana")
    assert [change.ids for change in found] == [("later",)]


async def test_an_empty_feed_can_be_continued(store: Store) -> None:
    page = await store.changes(owner="nobody")
    assert page == []
    again = await store.changes(owner="nobody", after=page.next)
    assert (again, again.next) == ([], page.next)
    present = await store.changes(owner="nobody", limit=0)
    await store.put_session(SessionInfo(id="s", owner="nobody"))
    for cursor in (page.next, present.next):
        assert [c.kind for c in await after_its_end(store, cursor, "nobody")] == ["session_created"]


async def test_a_cursor_of_another_feed_is_refused(store: Store) -> None:
    await store.put_session(SessionInfo(id="s", owner="ana"))
    _, cursor = await everything(store, owner="ana")
    for owner in ("bo", None):
        with pytest.raises(InvalidInput, match="this is not a cursor of this list"):
            await store.changes(owner=owner, after=cursor)


@pytest.fixture
async def memory(store: Store) -> Memory:
    return Memory(store)


async def test_a_reader_waits_for_a_change(memory: Memory) -> None:
    ana = memory.for_owner("ana")
    present = await ana.changes(limit=0)
    began = time.monotonic()
    assert await ana.changes(after=present.next, wait=0.3) == []
    assert time.monotonic() - began >= 0.3
    waiting = asyncio.create_task(ana.changes(after=present.next, wait=20))
    await asyncio.sleep(0.1)
    session = await ana.create_session("s")
    (change,) = await waiting
    assert (change.kind, change.session, change.key) == ("session_created", "s", session.info.key)
    assert "s" in {c.session for c in await memory.admin.changes(wait=5)}


async def test_a_completed_erasure_is_announced(memory: Memory) -> None:
    ana = memory.for_owner("ana")
    session = await ana.create_session("s")
    await session.append(message("a", "a"))
    await ana.forget(session="s", message="a")
    (receipt,) = await ana.receipts()
    found, _ = await everything(memory.store, owner="ana")
    kinds = [(change.kind, change.ids) for change in found]
    assert ("messages_erased", ("a",)) in kinds
    assert ("forgotten", (receipt.id,)) in kinds


@pytest.mark.parametrize("wait", [-1, True, "1", 1e9, float("nan")])
async def test_a_wait_that_makes_no_sense_is_refused(wait: float) -> None:
    async with Memory.open("ram://") as memory:
        with pytest.raises(InvalidInput, match="wait must be"):
            await memory.for_owner("ana").changes(wait=wait)


# --- old changes ---


async def test_a_cursor_after_which_changes_were_deleted_is_refused(
    store: Store, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Changes are deleted when they are seven days old; nobody is told less without an error."""
    kind = request.node.callspec.params["store"]
    if kind == "redis":
        monkeypatch.setattr(redis_changes, "KEPT", 1)
    elif kind != "postgres":
        step_clock(monkeypatch, -8 * DAY)
    idle = await store.put_session(SessionInfo(id="idle", owner="idle"))
    key = (await store.put_session(SessionInfo(id="s", owner="ana"))).key
    await store.append(key, [message("a")])
    cursors = {}
    for owner in ("ana", "idle", None):
        first = await after_its_end(store, None, owner)
        page = await store.changes(owner=owner, limit=1)
        assert page == first[:1]
        cursors[owner] = page.next
    if kind == "redis":
        await asyncio.sleep(2.1)
    elif kind == "postgres":
        server = request.getfixturevalue("postgres")
        server.execute("UPDATE keepthread.changes SET at = at - 8 * 86400")
    else:
        monkeypatch.undo()
    for _ in range(2 if kind == "redis" else 2 * READINGS):
        await store.append(key, [message("new")])
    for owner in ("ana", None):
        with pytest.raises(CursorExpired, match="7 days"):
            await store.changes(owner=owner, after=cursors[owner])
    # Nothing of this owner was deleted after the cursor.
    assert not await store.changes(owner="idle", after=cursors["idle"])
    left, _ = await everything(store, owner="ana")
    assert {change.kind for change in left} == {"messages_added"}
    assert all(change.at > time.time() - 60 for change in left)
    await store.delete_session(idle.key)
    shown = await after_its_end(store, cursors["idle"], "idle")
    assert [change.kind for change in shown] == ["session_deleted"]


DAY = 86_400.0
CLOCK = time.time


def step_clock(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Set the clock of this process ahead or back."""
    monkeypatch.setattr(time, "time", lambda: CLOCK() + seconds)


# --- wrong clocks ---

YEARS = 4 * 365 * DAY


@pytest.fixture
def kind(request: pytest.FixtureRequest) -> str:
    """Return the kind of store, if a test can make its changes have wrong times."""
    kind: str = request.node.callspec.params["store"]
    if kind == "redis":
        pytest.skip("its changes are ordered by the clock of its server")
    return kind


async def test_a_wrong_clock_changes_the_times_of_its_own_changes_alone(
    store: Store, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "postgres":
        pytest.skip("its times are those of its server")
    key = (await store.put_session(SessionInfo(id="s", owner="ana"))).key
    steps = [0.0, YEARS, 0.0, -YEARS, 0.0, YEARS, -YEARS, 0.0]
    began = time.time()
    for number, step in enumerate(steps):
        with monkeypatch.context() as patch:
            step_clock(patch, step)
            await store.append(key, [message("x", f"m{number}")])
    added = (await everything(store, owner="ana"))[0][1:]
    assert [change.ids for change in added] == [(f"m{number}",) for number in range(len(steps))]
    for change, step in zip(added, steps, strict=True):
        assert abs(change.at - began - step) < 60


async def test_a_clock_that_is_ahead_for_a_few_changes_deletes_none(
    store: Store, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "postgres":
        pytest.skip("its times are those of its server")
    key = (await store.put_session(SessionInfo(id="s", owner="ana"))).key
    count = 3 * READINGS
    for number in range(count):
        with monkeypatch.context() as patch:
            step_clock(patch, YEARS if number % 3 else 0.0)
            await store.append(key, [message("x", f"m{number}")])
    assert len((await everything(store, owner="ana"))[0]) == 1 + count


@pytest.mark.parametrize("ahead", [1, 300])
async def test_changes_are_deleted_though_the_clock_was_ahead_for_some(
    store: Store, kind: str, ahead: int, request: pytest.FixtureRequest
) -> None:
    with pytest.MonkeyPatch.context() as clock:
        step_clock(clock, -10 * DAY)
        key = (await store.put_session(SessionInfo(id="s", owner="ana"))).key
        first = await store.changes(owner="ana", limit=0)
        for step, count in ((YEARS, ahead), (-10 * DAY, 50)):
            step_clock(clock, step)
            for number in range(count):
                await store.put(Scope(session=key), PIN, "p", number)
    if kind == "postgres":
        server = request.getfixturevalue("postgres")
        step = f"CASE WHEN row_number() OVER (ORDER BY number) BETWEEN 2 AND {1 + ahead}"
        server.execute(
            f"UPDATE keepthread.changes c SET at = at + t.step FROM"
            f" (SELECT number, {step} THEN {YEARS} ELSE {-10 * DAY} END AS step"
            "  FROM keepthread.changes) t WHERE t.number = c.number"
        )
    assert len((await everything(store, owner="ana"))[0]) >= ahead + 50
    new = 6 * READINGS
    for number in range(new):
        await store.append(key, [message("new", f"n{number}")])
    left, _ = await everything(store, owner="ana")
    assert [change.ids for change in left if change.session == "s"] == [
        (f"n{number}",) for number in range(new)
    ]
    with pytest.raises(CursorExpired):
        await store.changes(owner="ana", after=first.next)


def test_the_oldest_changes_expire_in_their_order() -> None:
    now, old, ahead = 100 * DAY, 90 * DAY, 200 * DAY
    assert count_expired([], now) == 0
    assert count_expired([old, old, now, old], now) == 2
    assert count_expired([old, ahead, ahead, old, ahead, now], now) == 4
    assert count_expired([ahead, ahead, now], now) == 0
    assert count_expired([now - 7 * DAY, old], now) == 0


# --- cursors ---


async def test_a_cursor_of_what_an_older_copy_of_a_file_lacks_is_refused(tmp_path: Path) -> None:
    async with await SQLiteStore.open(tmp_path / "chat.db") as store:
        key = (await store.put_session(SessionInfo(id="s", owner="ana"))).key
        shared = (await store.changes(owner="ana")).next
        await store.backup(tmp_path / "copy.db")
        await store.append(key, [message("lost")])
        lost = (await store.changes(owner="ana")).next
    async with await SQLiteStore.open(tmp_path / "copy.db") as store:
        for number in range(3):  # the numbers of changes pass that of the lost one
            with pytest.raises(CursorExpired):
                await store.changes(owner="ana", after=lost)
            await store.append(key, [message("x", f"m{number}")])
        found = await store.changes(owner="ana", after=shared)
        assert [change.ids for change in found] == [("m0",), ("m1",), ("m2",)]


async def test_a_cursor_of_a_deleted_tenant_is_refused_by_one_of_the_same_name(
    tmp_path: Path,
) -> None:
    async with await SQLiteStore.open(tmp_path / "chat.db") as store:
        tenant = store.tenant("acme")
        await tenant.put_session(SessionInfo(id="s", owner="ana"))
        cursor = (await tenant.changes()).next
        await store.drop_tenant("acme")
        for number in range(3):
            with pytest.raises(CursorExpired):
                await tenant.changes(after=cursor)
            await tenant.put_session(SessionInfo(id=f"s{number}", owner="ana"))


async def test_a_cursor_that_no_page_had_is_refused(store: Store) -> None:
    await store.put_session(SessionInfo(id="s", owner="ana"))
    of = ("changes", "default", "ana")
    wrong: list[list[JSON]] = [[], [-1], ["x"], [1, 2], [True], [1 << 60], [None, 1, 1]]
    wrong += [["x", 1, -1], ["", 1 << 60, 1], ["x", 0], ["0000000001session", 0], [":", 1]]
    for position in wrong:
        with pytest.raises(InvalidInput, match="this cursor is invalid"):
            await store.changes(owner="ana", after=encode_cursor(of, position))


async def test_a_forged_cursor_reaches_nothing_of_another_owner(store: Store) -> None:
    """The position in a cursor is not secret; whoever changes it still reads their own feed."""
    theirs = await store.put_session(SessionInfo(id="secret", owner="bo"))
    await store.append(theirs.key, [message("x", "secret id")])
    await store.put_session(SessionInfo(id="mine", owner="ana"))
    await everything(store, owner="bo")
    page = await store.changes(owner="bo", limit=1)
    assert page.next
    position = decode_cursor(("changes", "default", "bo"), page.next)
    forged = encode_cursor(("changes", "default", "ana"), position)
    with suppress(CursorExpired, InvalidInput):
        assert {c.owner for c in await store.changes(owner="ana", after=forged)} <= {"ana"}


async def test_what_is_no_change_costs_redis_no_announcement(
    redis_server: RedisServer,
) -> None:
    redis_server.ask("FLUSHALL")
    store = await RedisStore.open(redis_server.url)
    key = (await store.put_session(SessionInfo(id="s", owner="ana"))).key
    feed = index_of("default").feed
    await asyncio.sleep(1.05)  # a new period, in which nothing is announced yet
    before = redis_server.ask("ZCARD", feed)
    await store.put(Scope(session=key), WHY, "w", 1)
    await store.drop(Scope(session=key), WHY, "w")
    assert redis_server.ask("ZCARD", feed) == before
    await store.append(key, [message("a")])
    assert redis_server.ask("ZCARD", feed) == before + 1
    await store.close()


async def test_a_script_that_comes_late_is_announced_again(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The period ends between the announcement and the write, as it may at any time."""
    redis_server.ask("FLUSHALL")
    store = await RedisStore.open(redis_server.url)
    key = (await store.put_session(SessionInfo(id="s", owner="ana"))).key
    await store.append(key, [message("first", "first")])  # its id gets an entry before it is stored
    period = redis_changes.Announcer.period
    asked: list[int] = []

    async def late(self: Announcer, tenant: str, place: Any, owner: str, earliest: int) -> int:
        found = await period(self, tenant, place, owner, earliest)
        asked.append(earliest)
        return found if earliest else found - 5

    monkeypatch.setattr(redis_changes.Announcer, "period", late)
    await store.append(key, [message("a", "a")])
    assert len(asked) == 2
    assert asked[1] > 0
    found, _ = await everything(store, owner="ana")
    assert [change.ids for change in found if change.kind == "messages_added"] == [
        ("first",),
        ("a",),
    ]
    await store.close()


# --- PostgreSQL ---


async def test_a_change_that_is_committed_late_is_not_passed_over(
    postgres: PostgresServer,
) -> None:
    store = await PostgresStore.open(postgres.empty())
    slow = (await store.put_session(SessionInfo(id="slow", owner="ana"))).key
    fast = (await store.put_session(SessionInfo(id="fast", owner="ana"))).key
    _, cursor = await everything(store, owner="ana")
    began, go_on = asyncio.Event(), asyncio.Event()

    async def hold(link: PgLink) -> None:
        await link.run(SQL["name_tenant"], (str(await store.backend.number("default")),))
        number = await store.backend.number("default")
        await link.run(SQL["lock_session"], (number, int(slow)))
        await link.run(SQL["note_change"], (number, 3, int(slow), [b"late"]))
        began.set()
        await go_on.wait()

    task = asyncio.create_task(store.backend.engine.transact(hold))
    await began.wait()
    await store.append(fast, [message("x", "fast")])
    while_held = await store.changes(owner="ana", after=cursor)
    go_on.set()
    await task
    page = await store.changes(owner="ana", after=while_held.next)
    assert {id for change in [*while_held, *page] for id in change.ids} == {"late", "fast"}
    await store.close()


async def test_a_transaction_that_began_early_and_changes_late_is_late_in_the_feed(
    postgres: PostgresServer,
) -> None:
    """It has its number from the beginning, and locks the session after another append."""
    store = await PostgresStore.open(postgres.empty())
    key = (await store.put_session(SessionInfo(id="s", owner="ana"))).key
    number = await store.backend.number("default")

    async def work(link: PgLink) -> None:
        await link.run(b"SELECT pg_current_xact_id()::text")
        await store.append(key, [message("x", "first")])  # by another connection
        await link.run(SQL["lock_session"], (number, int(key)))
        await link.run(SQL["note_change"], (number, 3, int(key), [b"second"]))

    await store.backend.engine.transact(work)
    found, _ = await everything(store, owner="ana")
    assert [c.ids for c in found if c.ids] == [("first",), ("second",)]
    await store.close()


async def test_a_cursor_of_another_server_is_refused(postgres: PostgresServer) -> None:
    """Places in the feed are numbers of transactions, which another server gives anew."""
    store = await PostgresStore.open(postgres.empty())
    await store.put_session(SessionInfo(id="s", owner="ana"))
    _, cursor = await everything(store, owner="ana")
    of = ("changes", "default", "ana")
    history, *place = decode_cursor(of, cursor or "")
    assert "/" in history
    with pytest.raises(CursorExpired):
        await store.changes(owner="ana", after=encode_cursor(of, ["1/00000001", *place]))
    await store.close()
