"""Pages: cursors over sessions that change while they are read, history backwards, versions."""

import random
from pathlib import Path

import pytest

from keepthread import Memory, Message
from keepthread.errors import InvalidInput, Stale
from keepthread.protocols import Store
from keepthread.stores.cursors import encode_cursor
from keepthread.testing import ManualClock
from keepthread.types import SessionInfo, SessionKey
from tests.every_store import store
from tests.seeds import SEED

__all__ = ["store"]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


async def test_no_session_is_missed_whatever_others_do_while_pages_are_read(
    store: Store, clock: ManualClock
) -> None:
    """Against a plain model: what existed throughout is read; what nobody touched, exactly once."""
    rng = random.Random(SEED)
    for number in range(6):
        owner = f"owner {number}"
        there: set[SessionKey] = set()

        async def create(owner: str = owner, there: set[SessionKey] = there) -> None:
            made = await store.put_session(SessionInfo(id=f"s{rng.random()}", owner=owner))
            there.add(made.key)

        for _ in range(rng.randint(1, 25)):
            await create()
            clock.advance(rng.choice([0, 0, 1, 60]))
        from_the_start = set(there)
        touched: set[SessionKey] = set()
        found: list[SessionKey] = []
        cursor, pages = None, 0
        while cursor or not pages:
            page = await store.list_sessions(owner=owner, limit=rng.randint(1, 6), cursor=cursor)
            assert {info.owner for info in page} <= {owner}
            found += [info.key for info in page]
            cursor, pages = page.next, pages + 1
            for _ in range(rng.randint(0, 3) if pages < 40 else 0):
                clock.advance(2)
                action = rng.choice(["append", "append", "delete", "create"])
                if action == "create" or not there:
                    await create()
                    continue
                key = rng.choice(sorted(there))
                if action == "append":
                    await store.append(key, [Message(role="user", content="hi")])
                    touched.add(key)
                else:
                    await store.delete_session(key)
                    there.discard(key)
        assert from_the_start & there <= set(found), SEED
        for key in (from_the_start & there) - touched:
            assert found.count(key) == 1, SEED


async def test_a_filter_reads_a_limited_part_of_a_long_list(store: Store) -> None:
    for number in range(1_100):
        tags = ["rare"] if number == 0 else []
        await store.put_session(SessionInfo(id=f"s{number}", tags=tags))
    whole = await store.list_sessions(limit=5_000)  # only a filter makes a page short
    assert (len(whole), whole.next) == (1_100, None)
    page = await store.list_sessions(tag="rare")
    assert page == []
    assert page.next
    rest = await store.list_sessions(tag="rare", cursor=page.next)
    assert ([info.id for info in rest], rest.next) == (["s0"], None)


async def test_history_is_read_backwards_page_by_page(tmp_path: Path) -> None:
    async with Memory.open(f"sqlite:///{tmp_path}/m.db") as memory:
        session = await memory.session("s")
        await session.append(*(Message(role="user", content=str(n)) for n in range(1, 8)))
        read: list[str] = []
        before = 9_999  # beyond the end
        while page := await session.messages(before=before, limit=3):
            read = [m.content for m in page] + read
            before = page[0].seq
        assert read == list("1234567")
        assert [m.seq for m in await session.messages(before=4)] == [1, 2, 3]
        assert [m.seq async for m in session.messages(before=6, limit=2)] == [4, 5]
        assert [m.seq for m in await session.messages(after=3, before=6, limit=9)] == [4, 5]
        with pytest.raises(InvalidInput):
            session.messages(before=-1)


async def test_a_change_that_names_an_old_version_is_refused(store: Store) -> None:
    memory = Memory(store)
    session = await memory.session("s", title="One")
    version = session.info.version
    await session.add_message("user", "hi")
    assert (await session.refresh()).version == version  # messages are no change of the session
    other = await memory.get_session("s")
    changed = await other.update(tags=["x"])
    assert changed.version != version
    with pytest.raises(Stale):
        await session.update(title="Two", version=version)
    assert (await session.update(title="Two", version=changed.version)).title == "Two"
    assert (await session.update(title="Three")).title == "Three"  # the later call wins


async def test_hits_of_a_search_come_in_pages(tmp_path: Path) -> None:
    async with Memory.open(f"sqlite:///{tmp_path}/m.db") as memory:
        ana = memory.for_owner("ana")
        session = await ana.session("s")
        for number in range(25):
            sails = "sails " * (number % 4)
            await session.add_message("user", f"The ferry {sails}on day {number}.")
        await session.fork(id="copy")  # copies count as one hit
        whole = await ana.search("ferry sails", limit=100)
        assert (len(whole), whole.next) == (25, None)
        page = await ana.search("ferry sails", limit=4)
        found = [hit.message.id for hit in page]
        while page.next:
            page = await ana.search("ferry sails", limit=4, cursor=page.next)
            found += [hit.message.id for hit in page]
        assert found == [hit.message.id for hit in whole]
        first = await ana.search("ferry sails", limit=4)
        await memory.for_owner("ana").forget(session="s", message=first[-1].message.id)
        rest = await ana.search("ferry sails", limit=100, cursor=first.next)
        assert {hit.message.id for hit in rest} == set(found[4:])
        for wrong in (
            memory.for_owner("bob").search("ferry sails", cursor=first.next),
            ana.search("ferry", cursor=first.next),
            ana.search("ferry sails", cursor=first.next, roles=["user"]),
            ana.search("ferry sails", cursor=first.next, since=1.0),
        ):
            with pytest.raises(InvalidInput, match="this is not a cursor of this list"):
                await wrong


async def test_facts_come_in_pages(tmp_path: Path) -> None:
    async with Memory.open(f"sqlite:///{tmp_path}/m.db") as memory:
        facts = memory.for_owner("ana").facts
        for number in range(7):
            await facts.remember(f"Fact number {number}.")
        page = await facts.list(limit=3)
        found = [fact.text for fact in page]
        await facts.forget(page[-1].key)
        while page.next:
            page = await facts.list(limit=3, cursor=page.next)
            found += [fact.text for fact in page]
        assert found == [f"Fact number {number}." for number in range(7)]
        assert (await facts.list()).next is None


async def test_a_cursor_that_no_page_had_is_refused_by_every_list(store: Store) -> None:
    memory = Memory(store)
    ana = memory.for_owner("ana")
    for position in ([], [1], ["a", "b"], [None], ["\n"]):
        for call in (
            ana.receipts(cursor=encode_cursor(("receipts", "ana"), position)),
            ana.blobs.list(cursor=encode_cursor(("blobs", "ana"), position)),
            memory.admin.list_tenants(cursor=encode_cursor(("tenants",), position)),
        ):
            with pytest.raises(InvalidInput, match="cursor"):
                await call


async def test_pages_of_the_facts_at_a_time_show_each_once() -> None:
    async with Memory.open("ram://") as memory:
        facts = memory.for_owner("ana").facts
        texts = [f"Fact number {number}." for number in range(5)]
        for text in texts:
            await facts.remember(text)
        for limit in (1, 2, 5):
            page = await facts.list(at=4e9, limit=limit)
            seen = [fact.text for fact in page]
            while page.next and len(seen) <= len(texts):
                page = await facts.list(at=4e9, limit=limit, cursor=page.next)
                seen += [fact.text for fact in page]
            assert seen == texts
