"""PostgreSQL: the contract, and what only this store promises, on a real server."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from keepthread import Scope, SessionInfo, SessionKey, Span
from keepthread.errors import Conflict, Damaged
from keepthread.protocols import Store
from keepthread.stores.postgres import PostgresStore
from keepthread.testing.contract import StoreContract, said, user
from servers.postgres import PostgresServer


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    """Return how to reach a database that has nothing in it."""
    return postgres.empty()


class TestPostgresStore(StoreContract):
    @pytest.fixture(autouse=True)
    def _server(self, url: str) -> None:
        self.url = url

    async def open_store(self, folder: Path, *, clock: Callable[[], float]) -> Store:
        return await PostgresStore.open(self.url, clock=clock)


# --- damage ---


@pytest.fixture
async def store(url: str) -> AsyncIterator[PostgresStore]:
    async with await PostgresStore.open(url) as opened:
        yield opened


@pytest.fixture
def damage(postgres: PostgresServer) -> Callable[..., None]:
    """Return what changes rows behind the store's back."""

    def change(statement: str, *values: Any, rows: int = 1) -> None:
        with psycopg.connect(postgres.url(), autocommit=True) as db:
            assert db.execute(statement.encode(), values).rowcount == rows

    return change


async def session_of(store: PostgresStore, id: str = "s") -> SessionKey:
    return (await store.put_session(SessionInfo(id=id))).key


async def test_a_damaged_message_costs_one_message(store: PostgresStore, damage: Any) -> None:
    key = await session_of(store)
    await store.append(key, [user("a"), user("b"), user("c")])
    damage("UPDATE keepthread.messages SET content = %s WHERE seq = 2", b"B")
    for log in (await store.read(key), await store.tail(key, tokens=9)):
        assert [m.state for m in log] == ["live", "damaged", "live"]
        assert said(log) == ["a", "B", "c"]
    gathered = await store.gather(key, tokens=9)
    assert [m.state for m in gathered.messages] == ["live", "damaged", "live"]
    (found,) = (await store.verify()).damages
    assert (found.session, found.seq) == ("s", 2)


@pytest.mark.parametrize("column", ["tokens", "turn", "turns", "total", "created_at"])
async def test_every_number_of_a_row_is_guarded(
    store: PostgresStore, damage: Any, column: str
) -> None:
    key = await session_of(store)
    await store.append(key, [user("a", tokens=1), user("b", tokens=1), user("c", tokens=1)])
    damage(f"UPDATE keepthread.messages SET {column} = 1 << 40 WHERE seq = 2")
    assert [m.state for m in await store.tail(key, tokens=2)] == ["live", "damaged", "live"]
    assert [m.state for m in await store.find(key, seqs=[2])] == ["damaged"]


@pytest.mark.parametrize("column", ["digest", "guard", "counter", "extra", "id"])
async def test_all_else_of_a_row_is_guarded_too(
    store: PostgresStore, damage: Any, column: str
) -> None:
    key = await session_of(store)
    await store.append(key, [user("a"), user("b"), user("c")])
    damage(f"UPDATE keepthread.messages SET {column} = '\\xff' WHERE seq = 2")
    assert [m.state for m in await store.read(key)] == ["live", "damaged", "live"]
    assert len((await store.verify()).damages) == 1


async def test_a_missing_message_is_noticed(store: PostgresStore, damage: Any) -> None:
    key = await session_of(store)
    await store.append(key, [user(c) for c in "abcde"])
    damage("DELETE FROM keepthread.messages WHERE seq = 3")
    for log in (await store.read(key), await store.tail(key)):
        assert [m.state for m in log] == ["live", "live", "damaged", "live", "live"]
        assert [m.seq for m in log] == [1, 2, 3, 4, 5]
    (found,) = (await store.verify()).damages
    assert (found.session, found.seq, found.what) == ("s", 3, "the message is missing")
    damage("DELETE FROM keepthread.messages WHERE seq = 1")
    assert [m.state for m in await store.read(key, limit=2)] == ["damaged", "live"]
    assert (await store.tail(key))[0].state == "damaged"


async def test_a_message_that_strayed_is_noticed(store: PostgresStore, damage: Any) -> None:
    one, two = await session_of(store, "one"), await session_of(store, "two")
    for key in (one, two):
        await store.append(key, [user(c) for c in "abc"])
    damage(
        "UPDATE keepthread.messages SET sid = %s, seq = 4 WHERE sid = %s AND seq = 2",
        int(two),
        int(one),
    )
    assert {(d.session, d.seq) for d in (await store.verify()).damages} == {("one", 2), ("two", 4)}
    assert [m.state for m in await store.read(two)] == ["live", "live", "live", "damaged"]


async def test_a_row_far_behind_the_end_is_not_built_upon(
    store: PostgresStore, damage: Any
) -> None:
    key = await session_of(store)
    await store.append(key, [user("a"), user("b")])
    damage("UPDATE keepthread.messages SET seq = 1000000, guard = '' WHERE seq = 2")
    assert said(await store.read(key)) == ["a"]  # a loss at the very end: `verify` alone tells
    assert not (await store.verify()).sound
    (more,) = await store.append(key, [user("c")])
    assert more.seq == 2
    assert said(await store.tail(key)) == said(await store.read(key)) == ["a", "c"]


async def test_a_damaged_last_row_is_not_built_upon(store: PostgresStore, damage: Any) -> None:
    key = await session_of(store)
    await store.append(key, [user("a", tokens=5), user("b", tokens=5)])
    damage("UPDATE keepthread.messages SET total = 999 WHERE seq = 2")
    (made,) = await store.append(key, [user("c", tokens=1)])
    assert (made.seq, made.turn, made.total) == (3, 2, 6)
    damage("UPDATE keepthread.messages SET total = -1 WHERE seq = 3")
    damage("UPDATE keepthread.messages SET guard = '' WHERE seq = 1")
    (made,) = await store.append(key, [user("d", tokens=1)])
    assert (made.seq, made.total) == (4, 1)


async def test_a_damaged_message_is_answered_to_its_id_and_can_be_erased(
    store: PostgresStore, damage: Any
) -> None:
    key = await session_of(store)
    await store.append(key, [user("a", id="1"), user("secret", id="2")])
    damage("UPDATE keepthread.messages SET content = %s, digest = '' WHERE seq = 2", b"secreT")
    (known,) = await store.append(key, [user("secret", id="2")])
    assert (known.state, known.seq) == ("damaged", 2)
    with pytest.raises(Conflict):
        await store.append(key, [user("other", id="1"), user("secret", id="2")])
    await store.erase(key, [2])
    assert [m.state for m in await store.read(key)] == ["live", "erased"]
    assert (await store.verify()).sound


async def test_a_damaged_session_keeps_its_messages(store: PostgresStore, damage: Any) -> None:
    key = await session_of(store)
    await store.append(key, [user("a")])
    damage("UPDATE keepthread.sessions SET owner = 'eve'")
    (listed,) = await store.list_sessions()
    assert (listed.state, listed.id, listed.messages) == ("damaged", "s", 1)
    assert said(await store.tail(listed.key)) == ["a"]
    for call in (store.put_session(listed), store.erase(key, [1]), store.gather(key, tokens=1)):
        with pytest.raises(Damaged):
            await call
    (found,) = (await store.verify()).damages
    assert found.session == "s"


async def test_a_damaged_record_is_an_error_until_it_is_dropped(
    store: PostgresStore, damage: Any
) -> None:
    scope = Scope(session=await session_of(store))
    await store.put(scope, "pin", "1", "a")
    damage("UPDATE keepthread.records SET value = %s", b'"b"')
    for call in (
        store.get(scope, "pin", "1"),
        store.scan(scope),
        store.gather(scope.session, tokens=1, kinds=["pin"]),
    ):
        with pytest.raises(Damaged, match="pin/1"):
            await call
    (found,) = (await store.verify()).damages
    assert "pin/1" in found.what
    assert await store.drop(scope, "pin", "1")
    assert await store.scan(scope) == []


async def test_a_damaged_record_goes_when_what_it_may_be_made_of_is_erased(
    store: PostgresStore, damage: Any
) -> None:
    key = await session_of(store)
    await store.append(key, [user("a"), user("secret")])
    scope = Scope(session=key)
    for name, seq in (("broken", 2), ("garbled", 2), ("sound", 1)):
        made_of = [Span(session=key, first=seq, last=seq)]
        await store.put(scope, "compact", name, "secret", made_of=made_of)
    await store.put(scope, "marks", "1", [])
    damage("UPDATE keepthread.records SET firsts = '{1}', lasts = '{1}' WHERE key = 'broken'")
    damage("UPDATE keepthread.records SET made_of = '7', kind = '\\xff' WHERE key = 'garbled'")
    damage("UPDATE keepthread.records SET value = '[1]' WHERE kind = 'marks'")
    await store.erase(key, [2])
    assert [r.key for r in await store.scan(scope, "compact")] == ["sound"]
    (found,) = (await store.verify()).damages
    assert "marks/1" in found.what


async def test_a_record_whose_key_is_damaged_is_not_passed_over(
    store: PostgresStore, damage: Any
) -> None:
    await store.put(Scope(), "k", "a", 1)
    damage("UPDATE keepthread.records SET key = '\\xff'")
    with pytest.raises(Damaged):
        await store.scan(Scope(), "k")


async def test_an_orphaned_message_is_named(store: PostgresStore, damage: Any) -> None:
    await store.append(await session_of(store), [user("a")])
    damage("DELETE FROM keepthread.sessions")
    assert len((await store.verify()).damages) == 1


# --- names ---


async def test_the_longest_names_fit_their_indexes(store: PostgresStore) -> None:
    letters = [chr(0x20000 + n) for n in range(4 * 255)]  # four bytes each, and hard to compress
    id, owner, kind, key = ("".join(letters[n::4]) for n in range(4))
    session = await store.put_session(SessionInfo(id=id, owner=owner))
    assert await store.list_sessions(owner=owner) == [session]
    (made,) = await store.append(session.key, [user("a", id=id)])
    assert await store.find(session.key, ids=[id]) == [made]
    for scope in (Scope(owner=owner), Scope(session=session.key)):
        await store.put(scope, kind, key, 1)
        assert [r.key for r in await store.scan(scope, kind)] == [key]
    assert await store.owners() == [owner]


@pytest.mark.parametrize("id", ["0" * 16, "0" * 32, "é" * 8, "x" * 15, "x" * 17, "3" * 31])
async def test_ids_that_look_alike_as_bytes_are_told_apart(store: PostgresStore, id: str) -> None:
    key = await session_of(store)
    twin = id.encode().hex()
    made = await store.append(key, [user("a", id=id), user("b", id=twin)])
    assert await store.find(key, ids=[id]) == made[:1]
    assert await store.find(key, ids=[twin]) == made[1:]


# --- locks ---


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
async def test_a_put_locks_its_sessions_in_one_order_whoever_calls(
    store: PostgresStore, postgres: PostgresServer, order: tuple[int, int]
) -> None:
    """Else a put made of a and b and one made of b and a wait for each other."""
    keys = [await session_of(store, id) for id in ("a", "b")]
    first, last = sorted(map(int, keys))
    lock = "SELECT sid FROM keepthread.sessions WHERE sid = %s FOR NO KEY UPDATE"
    waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    epochs = {keys[n]: 0 for n in order}
    with psycopg.connect(postgres.url()) as holder:
        holder.execute(lock, (last,))
        put = asyncio.create_task(store.put(Scope(owner="ana"), "k", "k", 1, epochs=epochs))
        while not postgres.execute(waiting):
            assert not put.done()
            await asyncio.sleep(0.01)
        assert postgres.execute(lock + " SKIP LOCKED", first) == []
        holder.rollback()
    assert await put > 0
