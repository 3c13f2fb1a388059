"""PostgreSQL: finding, by the contract, and what only this store promises, on a real server."""

import asyncio
import random
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepthread import SessionKey
from keepthread.errors import InvalidInput, Stale
from keepthread.protocols import Searchable, Store
from keepthread.recall.positions import MOST_SEQ, VIEW, seq_of, session_of
from keepthread.stores.postgres import PostgresStore, words
from keepthread.stores.postgres import vectors as points
from keepthread.stores.postgres.schema import SQL
from keepthread.stores.postgres.server import PgServer
from keepthread.stores.ram import RamStore
from keepthread.testing import ManualClock
from keepthread.testing.contract import assistant, user
from keepthread.testing.finding import (
    VECTORS,
    FinderContract,
    embed,
    first_place,
    read_on,
    talk,
    vector,
    where,
)
from keepthread.types import Embedding
from servers.postgres import PostgresServer
from tests.hostile_pairs import NAMES
from tests.seeds import examples
from tests.test_finding import OWNERS, compared, more_steps, take_more
from tests.test_finding import answers as all_answers

SEED = 20_261_121


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    """Return how to reach a database that has nothing in it."""
    return postgres.empty()


@pytest.fixture
async def store(url: str) -> AsyncIterator[PostgresStore]:
    async with await PostgresStore.open(url) as opened:
        yield opened


class TestPostgresFinder(FinderContract):
    @pytest.fixture(autouse=True)
    def _server(self, url: str) -> None:
        self.url = url

    async def open_store(self, folder: Path, *, clock: Callable[[], float]) -> Store:
        return await PostgresStore.open(self.url, clock=clock)


# --- the same as in memory ---


async def filled(store: Store) -> dict[str, SessionKey]:
    """Let three owners talk in sessions of every size, by chance but always alike."""
    rng = random.Random(SEED)
    keys: dict[str, SessionKey] = {}
    for number, size in enumerate((0, 1, 3, 40, 180, 700)):
        for owner in ("ana", "bea"):
            texts = [" ".join(rng.choices("abcdefgh", k=rng.randrange(1, 9))) for _ in range(size)]
            id = f"{owner} {number}"
            keys[id] = await talk(store, *texts, id=id, owner=owner)
            await store.append(keys[id], [assistant("i j " * rng.randrange(90))])
    await read_on(store)
    for id in ("ana 3", "bea 4"):
        await store.erase(keys[id], rng.sample(range(1, 40), 20))
    return keys


async def answers(finder: Searchable, keys: dict[str, SessionKey]) -> list[Any]:
    """Return what a finder answers in every scope, with sessions by their names."""
    names = {int(key): id for id, key in keys.items()}
    asked = [f"{word}{mark}" for word in "abcdefghijk" for mark in ("", "²", "³")]
    scopes: list[dict[str, Any]] = [{}, {"owner": "ana"}, {"owner": "bea"}, {"owner": "eve"}]
    scopes += [{"session": key} for key in keys.values()]
    told: list[Any] = []
    for scope in scopes:
        for most in (7, 5000):
            found = await finder.places(VIEW, asked, **scope, max_places=most)
            told.append(
                {
                    word: [(names[session_of(p)], p % (1 << 41)) for p in places]
                    for word, places in found.places.items()
                }
            )
            told.append([(names[int(s[0])], s[1], *s[4:]) for s in found.segments])
    return told


async def test_words_are_found_where_a_store_in_memory_finds_them(store: PostgresStore) -> None:
    ram = RamStore()
    expected = await answers(await ram.finder(), await filled(ram))
    keys = await filled(store)
    assert await answers(await store.finder(), keys) == expected
    assert any(len(places) > 500 for places in expected[2].values())


async def test_who_stands_above_the_walls_finds_the_same(
    postgres: PostgresServer, store: PostgresStore
) -> None:
    """Row-level security asks the index; a role that it does not hold back must ask as well."""
    await talk(store, "tea", "milk", "tea tea", owner="ana")
    await read_on(store)
    ((tenant,),) = postgres.execute("SELECT tenant FROM keepthread.tenants")
    asked = ["tea", "tea²", "milk", "water"]
    letters = [words.letters_of((tenant, VIEW), word) for word in asked]
    for owner in (b"ana", None):
        values = (tenant, VIEW.encode(), letters, [0] * 4, owner, None, 9, -1, MOST_SEQ)
        rows = postgres.execute(SQL["places"], *values)
        in_order = {n: sorted(words.places_in(sid, data)) for n, sid, data in rows if n > 0}
        found = {n: [seq_of(place) for place in places] for n, places in in_order.items()}
        assert found == {1: [1, 3], 2: [3], 3: [2]}


# --- eras, changes and unread sessions ---


@pytest.fixture
def short_eras(
    postgres: PostgresServer, store: PostgresStore, request: pytest.FixtureRequest
) -> Iterator[None]:
    """Let a range of positions be divided when it has a few chunks, not thousands."""
    many = getattr(request, "param", 4)
    made = [
        postgres.execute(
            "SELECT pg_get_functiondef(oid) FROM pg_proc WHERE proname = %s"
            " AND pronamespace = 'keepthread'::regnamespace",
            name,
        )[0][0]
        for name in ("count_parts", "places_by_era")
    ]
    assert [function.count("8192") for function in made] == [1, 1]
    for function in made:
        postgres.execute(function.replace("8192", str(many)).replace("2048", str(many // 2)))
    yield
    for function in made:
        postgres.execute(function)


# How many chunks each era has, and how many words have the letters of another era than that of
# their position.
_BY_ERA = """
SELECT count(DISTINCT w),
       count(*) FILTER (WHERE right(l.lexeme, 2) <> keepthread.era_letters(e.number))
FROM keepthread.words w, unnest(w.words) l,
LATERAL (SELECT keepthread.era_of(w.tenant, w.view, w.whose, w.sid, w.at) AS number) e
GROUP BY w.whose, e.number
"""
# Eras of several ranges that count as if they were not full.
_TOO_OPEN = """
SELECT number FROM keepthread.eras GROUP BY whose, number
HAVING count(*) > 1 AND bool_or(parts BETWEEN 0 AND %s)
"""


@pytest.mark.usefixtures("short_eras")
async def test_the_newest_places_are_found_whatever_era_they_are_of(
    postgres: PostgresServer, store: PostgresStore
) -> None:
    rng = random.Random(SEED)
    ram = RamStore()
    keys: list[list[SessionKey]] = []
    found: list[list[Any]] = []
    beside: list[dict[str, Any]] = []
    earlier = 0
    for each in (ram, store):
        chance = random.Random(SEED)
        keys.append([await talk(each, "-", id=str(n), owner="ana") for n in range(3)])
        for _ in range(60):
            if chance.random() < 0.1:
                id = str(len(keys[-1]))
                keys[-1].append(await talk(each, "-", id=id, owner="ana"))
            texts = [
                " ".join(chance.choices(["tea", "milk", "rare", "oat"], (9, 3, 0.3, 0.3), k=4))
                for _ in range(chance.randrange(1, 6))
            ]
            await each.append(chance.choice(keys[-1]), [user(text) for text in texts])
            await read_on(each, limit=chance.randrange(1, 9))
    ((eras,),) = postgres.execute("SELECT count(*) FROM keepthread.eras")
    assert eras > 20
    for most in (0, 1, 3, 10, 25, 40, 5000):
        scopes = [None, *[rng.randrange(len(keys[0])) for _ in range(3)]]
        for number in scopes:
            found.clear()
            beside.clear()
            for each, own in zip((ram, store), keys, strict=True):
                finder = await each.finder()
                assert finder is not None
                session = None if number is None else own[number]
                asked = await finder.places(
                    VIEW,
                    ["tea", "tea²", "tea³", "milk", "rare", "oat"],
                    owner="ana",
                    session=session,
                    max_places=most,
                )
                at = {key: place for place, key in enumerate(own)}
                found.append(
                    [
                        [(at[SessionKey(str(session_of(p)))], seq_of(p)) for p in places]
                        for word, places in asked.places.items()
                        if word[-1] not in "²³" or most == 5000
                    ]
                )
                if session is None:
                    older = asked.older.items()
                    beside.append(
                        {
                            word: [(at[SessionKey(str(session_of(p)))], seq_of(p)) for p in places]
                            for word, places in older
                            if places
                        }
                    )
            assert found[0] == found[1]
            assert beside[:1] == beside[1:]
            earlier += len(beside[0]) if beside else 0
    assert earlier > 1


@pytest.mark.parametrize("order", ["newest first", "oldest first", "by chance"])
@pytest.mark.parametrize("early", [0, 3])
@pytest.mark.usefixtures("short_eras")
async def test_an_index_that_is_made_at_once_is_divided_as_well(
    postgres: PostgresServer, store: PostgresStore, order: str, early: int
) -> None:
    rng = random.Random(f"{SEED} {order} {early}")
    keys = []
    for number in range(60):
        if rng.random() < 0.2:
            await talk(store, "of somebody else", id=f"other {number}", owner="bea")
        texts = ["tea milk"] * rng.randrange(5)
        keys.append(await talk(store, *texts, id=str(number), owner="ana"))
        if number < early:
            await read_on(store, owner="ana")
    asked = list(keys)
    if order == "newest first":
        asked.reverse()
    elif order == "by chance":
        rng.shuffle(asked)
    for key in asked:
        await read_on(store, session=key, limit=rng.randrange(1, 6))
        for later in rng.sample(keys, k=rng.random() < 0.1):
            await store.append(later, [user("tea again")])
    await read_on(store)
    sizes = postgres.execute(_BY_ERA)
    assert not any(misplaced for _, misplaced in sizes)
    assert len(sizes) > 15
    assert max(chunks for chunks, _ in sizes) <= 8  # a range has 3, and a session 4 is added
    assert postgres.execute(_TOO_OPEN, 3) == []
    finder = await store.finder()
    assert finder is not None
    expected = [(key, m.seq) for key in keys for m in await store.read(key) if "tea" in m.content]
    for most in (1, 7, 30, 5000):
        found = (await finder.places(VIEW, ["tea"], owner="ana", max_places=most)).places["tea"]
        assert [(SessionKey(str(session_of(p))), seq_of(p)) for p in found] == expected[-most:]


@pytest.mark.parametrize("short_eras", [16], indirect=True)
@pytest.mark.usefixtures("short_eras")
async def test_an_index_of_short_sessions_in_any_order_has_many_eras(
    postgres: PostgresServer, store: PostgresStore
) -> None:
    rng = random.Random(SEED)
    keys = [await talk(store, "tea", id=str(number), owner="ana") for number in range(128)]
    for key in rng.sample(keys, k=len(keys)):
        await read_on(store, session=key)
    sizes = postgres.execute(_BY_ERA)
    assert not any(misplaced for _, misplaced in sizes)
    assert [chunks for chunks, _ in sizes if chunks > 32] == []
    assert postgres.execute(_TOO_OPEN, 15) == []


@pytest.mark.usefixtures("short_eras")
async def test_a_word_in_every_fourth_message_is_found_over_many_ranges(
    postgres: PostgresServer, store: PostgresStore
) -> None:
    said = ["tea", "-", "-", "-"]
    keys = [await talk(store, *said * 3, id=str(number), owner="ana") for number in range(40)]
    await read_on(store)
    ((eras,),) = postgres.execute("SELECT count(*) FROM keepthread.eras")
    assert eras > 64
    finder = await store.finder()
    assert finder is not None
    expected = [(key, seq) for key in keys for seq in (1, 5, 9)]
    for most in (10, 40, 59):
        found = (await finder.places(VIEW, ["tea"], owner="ana", max_places=most)).places["tea"]
        assert [(SessionKey(str(session_of(p))), seq_of(p)) for p in found] == expected[-most:]


@pytest.mark.usefixtures("short_eras")
async def test_two_processes_that_index_an_owner_agree_about_its_eras(
    postgres: PostgresServer, url: str, store: PostgresStore
) -> None:
    rng = random.Random(SEED)
    keys = [await talk(store, *["tea milk"] * 3, id=str(n), owner="ana") for n in range(40)]
    rng.shuffle(keys)

    async def index(by: PostgresStore, theirs: list[SessionKey]) -> None:
        for key in theirs:
            await read_on(by, session=key, limit=2)

    async with await PostgresStore.open(url) as second:
        await asyncio.gather(*(index((store, second)[n % 2], keys[n::4]) for n in range(4)))
    sizes = postgres.execute(_BY_ERA)
    assert not any(misplaced for _, misplaced in sizes)
    assert sum(chunks for chunks, _ in sizes) == 120
    assert len(sizes) > 15


@pytest.mark.usefixtures("short_eras")
async def test_a_frequent_word_that_is_never_beside_a_rarer_one_has_no_older_places(
    store: PostgresStore,
) -> None:
    for number in range(12):
        key = await talk(store, "oat" if number == 0 else "-", id=str(number), owner="ana")
        await store.append(key, [user("tea") for _ in range(5)])
        await read_on(store)
    finder = await store.finder()
    assert finder is not None
    found = await finder.places(VIEW, ["tea", "oat"], owner="ana", max_places=3)
    assert [len(found.places[word]) for word in ("tea", "oat")] == [3, 1]
    assert not any(found.older.values())


@given(st.lists(st.tuples(st.booleans(), more_steps), max_size=12))
@settings(max_examples=examples(6), deadline=None)
def test_two_processes_know_what_a_third_finds_out(
    postgres: PostgresServer, taken: list[Any]
) -> None:
    async def three(url: str) -> None:
        clock = ManualClock()
        async with (
            await PostgresStore.open(url, clock=clock) as one,
            await PostgresStore.open(url, clock=clock) as two,
        ):
            for second, step in taken:
                await take_more(two if second else one, clock, step)
                for owner in OWNERS:
                    finder = await one.finder()
                    assert finder is not None
                    await finder.places(VIEW, ["tea"], owner=owner)
            async with await PostgresStore.open(url, clock=clock) as third:
                expected = await all_answers(third)
                assert await all_answers(one) == await all_answers(two) == expected
                finder = await third.finder()
                assert finder is not None
                for view, owner in product((VIEW, VECTORS), (None, *OWNERS)):
                    marks = (
                        "SELECT sid, upto FROM keepthread.readings"
                        " WHERE view = keepthread.view_of(%s)"
                    )
                    read = dict(postgres.execute(marks, view.encode()))
                    unread = await finder.unread(view, owner=owner)
                    found = {u.session: u.last for u in unread}
                    assert found == await compared(third, owner, read)

    asyncio.run(three(postgres.empty()))


# --- plans ---


@pytest.mark.parametrize("belief", ["TRUNCATE {}", "TRUNCATE {0}; ANALYZE {0}", "ANALYZE {}"])
async def test_a_word_is_looked_up_in_its_index_behind_the_wall(
    postgres: PostgresServer, store: PostgresStore, belief: str
) -> None:
    if "TRUNCATE" not in belief:
        await filled(store)
    postgres.execute(belief.format("keepthread.words"))
    db = await PgServer(postgres.url(), timeout=10).connect()
    ask = (
        "PREPARE ask (integer, bigint) AS SELECT sid, at FROM keepthread.{} WHERE tenant = $1"
        " AND {} ORDER BY sid DESC, at DESC LIMIT 5"
    )
    try:
        await db.execute("SET enable_bitmapscan = on")
        plans: list[str] = []
        for table, condition in (
            ("asked", "whose = $2"),
            ("asked", "$2 = 1"),
            ("words", "whose = $2 AND words @@ 'tea'"),
        ):
            await db.execute(ask.format(table, condition).encode(), prepare=False)
            cursor = await db.execute("EXPLAIN EXECUTE ask (1, 1)", prepare=False)
            plans.append("\n".join([line for (line,) in await cursor.fetchall()]))
            await db.execute("DEALLOCATE ask", prepare=False)
    finally:
        await db.close()
    of_owner, of_tenant, as_a_condition = plans
    assert of_owner.count("Index Cond: (words @@") == 1
    assert of_tenant.count("Index Cond: (words @@") == 16
    assert "Seq Scan" not in of_owner + of_tenant
    # If this changes, the wall need not ask any more.
    assert "Index Cond: (words @@" not in as_a_condition


# --- more than one at once ---


async def test_what_is_erased_while_it_is_read_is_in_no_index(
    postgres: PostgresServer, store: PostgresStore
) -> None:
    rng = random.Random(SEED)
    key = await talk(store, *["tea for two"] * 60)
    erased = rng.sample(range(1, 90), 30)
    done = asyncio.Event()

    async def read() -> None:
        while not done.is_set():
            with suppress(Stale):
                await read_on(store, limit=rng.randrange(1, 9))
            with suppress(Stale, InvalidInput):  # what came since is not what was to be read
                await embed(store)

    async def change() -> None:
        for number in range(30):
            await store.append(key, [user("more tea")])
            if erased[number] <= 61 + number:
                await store.erase(key, [erased[number]])
            await asyncio.sleep(0)
        done.set()

    await asyncio.gather(read(), read(), read(), change())
    await store.erase(key, erased)
    await read_on(store)
    kept = sorted(set(range(1, 91)) - set(erased))
    finder = await store.finder()
    assert await where(finder, "tea") == [kept], SEED
    places = (await finder.places(VIEW, ["tea"])).places["tea"]
    assert len(await finder.parts(VIEW, places)) == len(kept)
    rows = postgres.execute("SELECT at >> 19 FROM keepthread.vectors ORDER BY 1")
    assert not {seq for (seq,) in rows} & set(erased), SEED
    counted = postgres.execute("SELECT sum(parts), sum(length) FROM keepthread.segments")
    lengths = postgres.execute("SELECT count(*), sum(at & 255) FROM keepthread.words")
    assert counted == lengths, SEED


async def test_a_session_is_deleted_while_it_is_read(
    postgres: PostgresServer, store: PostgresStore
) -> None:
    for _ in range(10):
        key = await talk(store, *["tea"] * 50)
        finder = await store.finder()
        [read] = await finder.unread(VIEW)
        calls = [finder.index(VIEW, read, 50, [], []), store.delete_session(key)]
        await asyncio.gather(*calls, read_on(store), embed(store), return_exceptions=True)
    for table in ("words", "vectors", "segments", "readings"):
        assert postgres.execute(f"SELECT * FROM keepthread.{table}") == []


# --- formats, encodings, extensions ---


async def test_words_are_found_whatever_the_databases_encoding(postgres: PostgresServer) -> None:
    postgres.execute("DROP DATABASE IF EXISTS latin WITH (FORCE)")
    postgres.execute("CREATE DATABASE latin ENCODING LATIN1 LOCALE 'C' TEMPLATE template0")
    async with await PostgresStore.open(postgres.url("latin")) as store:
        await talk(store, "我明天去北京", "naïve 北京 北京")
        await read_on(store)
        finder = await store.finder()
        assert await where(finder, "北京 naive") == [[1, 2], [2]]
        found = await finder.places(VIEW, ["北京²"])
        assert [seq_of(place) for place in found.places["北京²"]] == [2]


async def test_without_pgvector_all_vectors_are_compared(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An extension that may not be created is done without; once it is there, it is used."""
    url = postgres.create_database("plain")
    postgres.execute(
        "CREATE FUNCTION refuse() RETURNS event_trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE insufficient_privilege; END $$;"
        " CREATE EVENT TRIGGER refuse ON ddl_command_start WHEN TAG IN ('CREATE EXTENSION')"
        " EXECUTE FUNCTION refuse()",
        database="plain",
    )
    async with await PostgresStore.open(url) as store:
        key = await talk(store, *["tea"] * 30, id="a", owner="ana")
        await talk(store, *["tea"] * 20, id="b", owner="bea")
        made = await embed(store)
        large = {p: Embedding(bytes([100, *[0] * 4998, n]), 5000) for n, p in enumerate(made)}
        finder = await store.finder()
        for read in await finder.unread("vectors:large"):
            own = {p: each for p, each in large.items() if session_of(p) == int(read.session)}
            await finder.put_vectors("vectors:large", read, read.last, own)

        async def answers() -> list[list[int]]:
            scopes: list[dict[str, Any]] = [{"owner": "ana"}, {"session": key}, {}, {"limit": 4}]
            near = [await finder.nearest(VECTORS, vector(5), **scope) for scope in scopes]
            to = Embedding(bytes([0] * 4999 + [1]), 5000)
            return [*near, await finder.nearest("vectors:large", to, owner="bea")]

        by_numpy = await answers()
        assert [len(places) for places in by_numpy] == [30, 30, 50, 4, 20]
        monkeypatch.setattr(points, "_PAGE", 7)
        monkeypatch.setitem(sys.modules, "numpy", None)
        assert await answers() == by_numpy
        postgres.execute("DROP EVENT TRIGGER refuse", database="plain")
        postgres.execute("CREATE EXTENSION vector", database="plain")
        assert postgres.execute("SELECT keepthread.use_pgvector()", database="plain") == [(True,)]
        assert [set(places) for places in await answers()] == [set(places) for places in by_numpy]
        ((kept,),) = postgres.execute(
            "SELECT count(point) FROM keepthread.vectors", database="plain"
        )
        assert kept == len(made)


async def test_a_vector_of_another_length_than_it_says_is_refused(store: PostgresStore) -> None:
    key = await talk(store, "tea")
    finder = await store.finder()
    [read] = await finder.unread(VECTORS)
    for wrong in (Embedding(bytes(4), 3), Embedding(bytes(6), 3, (1, 2, 3)), Embedding(b"", 3)):
        with pytest.raises(InvalidInput):
            await finder.put_vectors(VECTORS, read, 1, {first_place(key, 1): wrong})
        with pytest.raises(InvalidInput):
            await finder.nearest(VECTORS, wrong)
    assert await finder.unread(VECTORS) == [read]


async def test_a_large_scope_is_looked_through_by_its_index(
    postgres: PostgresServer, store: PostgresStore
) -> None:
    """The index is made when there is much, gives what is near, and never less than there is."""
    rng = random.Random(SEED)
    key = await talk(store, *["tea"] * 3, owner="ana")
    finder = await store.finder()
    [read] = await finder.unread(VECTORS)
    place = first_place(key, 1)
    vectors = {place + (n << 8): Embedding(rng.randbytes(16), 16) for n in range(2000)}
    await finder.put_vectors(VECTORS, read, 3, vectors)
    index = "SELECT to_regclass('keepthread.vectors_nearest_16') IS NOT NULL"
    assert postgres.execute(index) == [(False,)]
    postgres.execute("UPDATE keepthread.readings SET upto = 10000 WHERE NOT of_words")
    postgres.execute(
        "SELECT keepthread.index_nearest(tenant, %s, 16) FROM keepthread.readings", VECTORS.encode()
    )
    assert postgres.execute(index) == [(True,)]
    to = Embedding(rng.randbytes(16), 16)
    exact = await finder.nearest(VECTORS, to, owner="ana", limit=20)
    function = "SELECT pg_get_functiondef('keepthread.nearest'::regproc)"
    ((text,),) = postgres.execute(function)
    assert "bigint := 20000;" in text
    try:
        postgres.execute(text.replace("bigint := 20000;", "bigint := 1000;"))
        near = await finder.nearest(VECTORS, to, owner="ana", limit=20)
        assert len(set(near) & set(exact)) >= 16, SEED
        assert len(await finder.nearest(VECTORS, to, limit=3000)) == 2000
    finally:
        postgres.execute(text)
        postgres.execute("DROP INDEX keepthread.vectors_nearest_16")


async def test_each_owner_has_statistics_of_its_own(
    postgres: PostgresServer, store: PostgresStore
) -> None:
    """What is cached of one owner is not another's, though their counts of changes are alike."""
    owners = dict.fromkeys(["ana", "bea", *(name for pair in NAMES for name in pair)])
    keys = {
        owner: [await talk(store, "tea " * number, "milk", id=id, owner=owner) for id in ("s", "t")]
        for number, owner in enumerate(owners, start=1)
    }
    await read_on(store)
    # They begin with the time in microseconds, so they are rarely alike by themselves.
    postgres.execute("UPDATE keepthread.corpora SET changes = 1000")
    finder = await store.finder()
    for owner, own in [*keys.items()] * 2:
        shared = await finder.places(VIEW, ["tea"], owner=owner)
        alone = [await finder.places(VIEW, ["tea"], session=key) for key in own]  # not cached
        assert list(shared.segments) == [each for one in alone for each in one.segments]
        assert shared.places["tea"] == [place for one in alone for place in one.places["tea"]]
