"""Finding: every backend that can through one contract, and what is SQLite's own."""

import asyncio
import errno
import sqlite3
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import closing
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepthread import SQLiteStore
from keepthread.errors import Damaged, ReadOnly, Stale, Unavailable
from keepthread.protocols import Searchable, Store
from keepthread.recall.chunks import parts_of
from keepthread.recall.positions import MOST_SEQ, VIEW
from keepthread.stores.ram import RamStore
from keepthread.stores.rows import Head, draft, next_row
from keepthread.stores.sqlite import file as database_file
from keepthread.stores.sqlite.schema import SQL
from keepthread.testing import ManualClock
from keepthread.testing.contract import assistant, new_session, user
from keepthread.testing.finding import (
    VECTORS,
    FinderContract,
    embed,
    first_place,
    hand_made,
    read_on,
    talk,
    vector,
    where,
)
from keepthread.types import Unread
from tests.formats.content import make
from tests.seeds import examples


class TestRamFinder(FinderContract):
    async def open_store(self, folder: Path, *, clock: Callable[[], float]) -> Store:
        return RamStore(clock=clock)


class TestSQLiteFinder(FinderContract):
    async def open_store(self, folder: Path, *, clock: Callable[[], float]) -> Store:
        return await SQLiteStore.open(folder / "store.db", clock=clock)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "chat.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SQLiteStore]:
    async with await SQLiteStore.open(path) as opened:
        yield opened


async def test_what_was_asked_for_lately_is_looked_up_anew_once_the_index_has_changed(
    store: SQLiteStore, path: Path
) -> None:
    finder = await store.finder()
    key = await talk(store, "tea and tea", "no milk", "more tea")
    await read_on(store)
    for _ in range(2):
        found = await finder.places(VIEW, ["tea", "tea²", "tea³", "milk", "milk²"])
        assert [len(places) for places in found.places.values()] == [2, 1, 0, 1, 0]
    async with await SQLiteStore.open(path) as other:  # as another process would
        await other.append(key, [user("milk, tea, milk")])
        await read_on(other)
        assert await where(finder, "tea milk") == [[1, 3, 4], [2, 4]]
        await other.erase(key, [1, 4])
        assert await where(finder, "tea milk") == [[3], [2]]
        await other.delete_session(key)
    assert await where(finder, "tea milk") == [[], []]


async def finder_of(store: Store) -> Searchable:
    finder = await store.finder()
    assert finder is not None
    return finder


def ask(path: Path, statement: str, *values: Any) -> list[Any]:
    """Ask the file, or change it, behind the store's back."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        return db.execute(statement, values).fetchall()


def postings(path: Path) -> set[tuple[str, int]]:
    """Return every word that the file's index has, and where."""
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE VIRTUAL TABLE temp.v USING fts5vocab(main, words, instance)")
        return set(db.execute("SELECT term, doc FROM temp.v"))


# --- the same as in memory, and no more than that ---

WORDS = ("tea", "milk", "naïve", "北京市", "running", "Berlin's")
STEMS = ("tea", "milk", "naiv", "naive", "北京", "京市", "run", "berlin")
OWNERS = ("ana", "bea")
NAMES = ("a", "b", "c")

names = st.sampled_from(NAMES)
texts = st.lists(st.sampled_from(WORDS), max_size=5).map(" ".join)
steps = st.one_of(
    st.tuples(st.just("say"), names, st.lists(texts, min_size=1, max_size=4)),
    st.tuples(st.just("read"), st.integers(1, 3)),
    st.tuples(st.just("erase"), names, st.integers(1, 9)),
    st.tuples(st.just("delete"), names),
    st.tuples(st.just("turn"), names),
    st.tuples(st.just("wait"), st.sampled_from((60, 100_000))),
    st.tuples(st.just("drop")),
)


async def take(store: Store, clock: ManualClock, step: Any) -> None:
    """Take one step; what cannot be done is left."""
    what, *rest = step
    owner, session = "", None
    if what in ("say", "erase", "delete", "turn"):
        owner = OWNERS[NAMES.index(rest[0]) % 2]
        session = await store.get_session(rest[0], owner)
    if what == "say":
        key = session.key if session else await talk(store, id=rest[0], owner=owner)
        said = [(user if n % 2 else assistant)(text) for n, text in enumerate(rest[1])]
        await store.append(key, said)
    elif what == "read":
        await read_on(store, limit=rest[0])
    elif what == "drop":
        await (await finder_of(store)).drop_view(VIEW)
    elif session and what == "erase" and rest[1] <= session.messages:
        await store.erase(session.key, [rest[1]])
    elif session and what == "delete":
        await store.delete_session(session.key)
    elif session and what == "turn":
        await store.put_session(replace(session, ready=not session.ready))


async def answers(store: Store) -> list[Any]:
    """Return all that a finder can say of a store."""
    finder = await finder_of(store)
    words = [f"{stem}{mark}" for stem in STEMS for mark in ("", "²", "³")]
    found = [await finder.places(VIEW, words, owner=owner) for owner in (None, *OWNERS)]
    places = sorted({place for each in found for some in each.places.values() for place in some})
    return [
        await finder.unread(VIEW),
        [
            ({word: list(places) for word, places in f.places.items()}, list(f.segments))
            for f in found
        ],
        await finder.parts(VIEW, places),
        await finder.fetch(places),
    ]


@given(st.lists(steps, max_size=25))
@settings(max_examples=examples(25))
def test_a_file_finds_what_memory_finds_and_holds_no_other_word(taken: list[Any]) -> None:
    async def both(folder: Path) -> None:
        clock = ManualClock()
        ids = iter(range(10**6))
        ram = RamStore(clock=clock, ids=lambda: f"{next(ids):032x}")
        same = iter(range(10**6))
        path = folder / "store.db"
        async with await SQLiteStore.open(
            path, clock=clock, ids=lambda: f"{next(same):032x}", durability="process"
        ) as file:
            for step in taken:
                if step[0] == "wait":
                    clock.advance(step[1])
                    continue
                await take(ram, clock, step)
                await take(file, clock, step)
                await (await finder_of(file)).places(VIEW, [])  # it may remember what it saw
            assert await answers(file) == await answers(ram)
            assert postings(path) == await _expected(ram, path)

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(both(Path(folder)))


async def _expected(ram: RamStore, path: Path) -> set[tuple[str, int]]:
    scopes = {owner: number for number, owner in ask(path, "SELECT number, owner FROM scopes")}
    finder = await finder_of(ram)
    unread = {read.session: read.until for read in await finder.unread(VIEW)}
    expected: set[tuple[str, int]] = set()
    for session in await ram.list_sessions(limit=100):
        until = unread.get(session.key, session.messages)
        for message in await ram.read(session.key, until=until):
            for part in parts_of(int(session.key), message):
                end = f"·{scopes['']}x{scopes[session.owner]}"
                expected |= {(f"{w}{end}", part.place) for w in part.words}
    return expected


# --- more than one process ---

more_steps = st.one_of(
    steps,
    st.tuples(st.just("embed")),
    st.tuples(st.just("copy"), names, names),
)


async def take_more(store: Store, clock: ManualClock, step: Any) -> None:
    """Take a step of one of two processes: also vectors, and copies that become ready."""
    if step[0] == "embed":
        await embed(store)
    elif step[0] == "copy":
        _, source, id = step
        known = await store.get_session(source, OWNERS[NAMES.index(source) % 2])
        owner = OWNERS[NAMES.index(id) % 2]
        if known and not await store.get_session(id, owner):
            copy = await new_session(store, id, owner=owner, ready=False)
            messages = [m for m in await store.read(known.key) if m.state == "live"]
            if [m.seq for m in messages] == list(range(1, len(messages) + 1)):
                await store.load(copy, messages)
            await store.put_session(replace(await store.describe(copy), ready=True))
    elif step[0] == "wait":
        clock.advance(step[1])
    else:
        await take(store, clock, step)


async def compared(store: Store, owner: str | None, marks: Mapping[int, int]) -> dict[str, int]:
    """Return the unread sessions by comparing the end of every log with what was read of it."""
    found = await store.list_sessions(owner=owner, limit=100)
    return {s.key: s.messages for s in found if s.messages > marks.get(int(s.key), 0)}


@given(st.lists(st.tuples(st.booleans(), more_steps), max_size=25))
@settings(max_examples=examples(25))
def test_two_processes_know_what_a_third_finds_out(taken: list[Any]) -> None:
    async def three(folder: Path) -> None:
        clock, path = ManualClock(), folder / "store.db"
        async with (
            await SQLiteStore.open(path, clock=clock, durability="process") as one,
            await SQLiteStore.open(path, clock=clock, durability="process") as two,
        ):
            for second, step in taken:
                await take_more(two if second else one, clock, step)
                for owner in OWNERS:  # one of them remembers every state, the other some
                    await (await finder_of(one)).places(VIEW, ["tea"], owner=owner)
            async with await SQLiteStore.open(path, clock=clock) as third:
                expected = await answers(third)
                assert await answers(one) == await answers(two) == expected
                finder = await finder_of(third)
                for view, owner in product((VIEW, VECTORS), (None, *OWNERS)):
                    number = "SELECT number FROM views WHERE name = ?"
                    marks = f"SELECT sid, upto FROM watermarks WHERE view = ({number})"
                    plain = await compared(third, owner, dict(ask(path, marks, view)))
                    unread = await finder.unread(view, owner=owner)
                    assert {u.session: u.last for u in unread} == plain

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(three(Path(folder)))


# --- nothing is left ---


async def test_nothing_is_left_of_sessions_that_were_deleted(
    store: SQLiteStore, path: Path
) -> None:
    for id in ("a", "b"):
        await talk(store, "tea and milk", "more", id=id, owner=f"owner-{id}")
    await read_on(store)
    await embed(store)
    for id in ("a", "b"):
        session = await store.get_session(id, f"owner-{id}")
        assert session is not None
        await store.delete_session(session.key)
    for table in ("scopes", "pieces", "segments", "watermarks", "vectors"):
        assert ask(path, f"SELECT * FROM {table}") == []
    assert postings(path) == set()


async def test_the_largest_session_goes_with_the_whole_index(
    store: SQLiteStore, path: Path
) -> None:
    large = await talk(store, *["tea"] * 1100, id="large")
    await talk(store, "tea", id="small")
    await read_on(store)
    await store.delete_session(large)
    assert postings(path) == set()
    finder = await finder_of(store)
    assert [read.until for read in await finder.unread(VIEW)] == [0]
    await read_on(store)
    assert await where(finder, "tea") == [[1]]


async def test_words_told_apart_in_another_way_are_forgotten_whole(
    store: SQLiteStore, path: Path
) -> None:
    finder = await finder_of(store)
    key = await talk(store, "tea", "milk")
    parts = [hand_made(key, 1, "téa"), hand_made(key, 2, "mílk")]
    await finder.index("words:0", Unread(key, 0, 2, 0), 2, parts, [])
    await store.erase(key, [1])
    assert postings(path) == set()
    assert (await finder.places("words:0", ["mílk"])).places == {"mílk": ()}
    await read_on(store)
    assert await where(finder, "tea milk") == [[], [2]]


# --- a whole tenant ---


async def test_words_of_many_owners_are_read_by_one_query_for_each_word(path: Path) -> None:
    asked: list[str] = []

    class Recording(sqlite3.Connection):
        def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
            asked.append(sql)
            return super().execute(sql, *values)

    def connect(uri: str) -> sqlite3.Connection:
        return sqlite3.connect(uri, uri=True, isolation_level=None, timeout=0, factory=Recording)

    async with await SQLiteStore.open(path, connect=connect) as store:
        other = store.tenant("other")
        for n in range(50):
            texts = ("tea", "teax", "tea7 tea1x1", f"x tea{n}")[: n % 4 + 1]
            await talk(store, *texts, id=str(n), owner=f"owner {n}")
            await talk(other, "tea milk", id=str(n), owner=f"owner {n}")
        for each in (store, other):
            await read_on(each)
        finder = await finder_of(store)
        asked.clear()
        [tea, milk, seven] = await where(finder, "tea milk tea7")
        assert asked.count(SQL["places"]) == 3
        assert (len(tea), milk, len(seven)) == (50, [], 24 + 1)
        assert await where(finder, "tea", max_places=3) == [[1, 1, 1]]
        assert await where(finder, "tea", owner="owner 7") == [[1]]
        assert len((await finder.places(VIEW, [])).segments) == 50


# --- more than one ---


async def test_two_programs_read_one_file_on_together(store: SQLiteStore, path: Path) -> None:
    keys = [await talk(store, *["tea"] * 30, id=str(n), owner=str(n % 2)) for n in range(6)]

    async def read_all(own: Store) -> int:
        refused = 0
        while await (await finder_of(own)).unread(VIEW):
            try:
                await read_on(own, limit=7)
            except Stale:
                refused += 1
        return refused

    async with await SQLiteStore.open(path) as other:
        await asyncio.gather(read_all(store), read_all(other), read_all(store))
        for key in keys:
            assert await where(await finder_of(other), "tea", session=key) == [[*range(1, 31)]]
    assert len(postings(path)) == 180
    assert (await store.verify()).sound


async def test_writing_and_reading_on_share_a_commit(store: SQLiteStore) -> None:
    key = await talk(store, "tea", id="a")
    other = await talk(store, "milk", id="b")
    finder = await finder_of(store)
    stale = Unread(other, 5, 6, 0)
    parts = [hand_made(key, 1, "tea")]
    ends = await asyncio.gather(
        store.append(key, [user("more")]),
        finder.index(VIEW, Unread(key, 0, 1, 0), 1, parts, []),
        finder.index(VIEW, stale, 6, [], []),
        store.append(other, [user("tea")]),
        return_exceptions=True,
    )
    assert [isinstance(end, Stale) for end in ends] == [False, False, True, False]
    assert await where(finder, "tea") == [[1]]
    assert {read.session: read.until for read in await finder.unread(VIEW)} == {key: 1, other: 0}


# --- the file ---


async def test_a_file_with_one_of_everything_can_be_searched(path: Path) -> None:
    await make(path)
    async with await SQLiteStore.open(path) as store:
        await read_on(store)
        finder = await finder_of(store)
        assert await where(finder, "你好", owner="ana") == [[1]]
        assert await where(finder, "secret") == [[]]
        assert (await store.verify()).sound


async def test_a_file_that_cannot_be_written_can_be_searched(path: Path) -> None:
    async with await SQLiteStore.open(path) as store:
        key = await talk(store, "tea")
        await read_on(store)
        await store.append(key, [user("milk")])

    def connect_read_only(uri: str) -> sqlite3.Connection:
        if "mode=rw" in uri:
            raise PermissionError(errno.EACCES, "Permission denied")
        return database_file.connect(uri)

    async with await SQLiteStore.open(path, connect=connect_read_only) as store:
        finder = await finder_of(store)
        assert await where(finder, "tea milk") == [[1], []]
        assert [read.until for read in await finder.unread(VIEW)] == [1]
        with pytest.raises(ReadOnly):
            await read_on(store)
        assert (await store.verify()).sound


async def test_a_backup_can_be_searched(store: SQLiteStore, tmp_path: Path) -> None:
    await talk(store, "tea")
    await read_on(store)
    await store.backup(tmp_path / "copy.db")
    async with await SQLiteStore.open(tmp_path / "copy.db") as copy:
        assert await where(await finder_of(copy), "tea") == [[1]]


# --- damage ---


@pytest.mark.parametrize("how", ["erase", "delete"])
async def test_words_of_a_damaged_message_do_not_stay(
    store: SQLiteStore, path: Path, how: str
) -> None:
    key = await talk(store, "tea", "secret", id="a")
    await talk(store, "milk", id="b")
    await read_on(store)
    ask(path, "UPDATE messages SET content = ? WHERE sid = ? AND seq = 2", b"Secret", int(key))
    if how == "erase":
        await store.erase(key, [2])
    else:
        await store.delete_session(key)
    assert postings(path) == set()
    await read_on(store)
    finder = await finder_of(store)
    assert await where(finder, "tea secret milk") == [[1] if how == "erase" else [], [], [1]]


async def test_words_of_a_session_whose_record_is_damaged_do_not_stay(
    store: SQLiteStore, path: Path
) -> None:
    key = await talk(store, "tea", id="a", owner="ana")
    await talk(store, "milk", id="b", owner="bea")
    await read_on(store)
    ask(path, "UPDATE sessions SET owner = 'bea' WHERE sid = ?", int(key))
    assert await (await finder_of(store)).fetch([hand_made(key, 1).place]) == ([], [])
    await store.delete_session(key)
    assert postings(path) == set()
    await read_on(store)
    assert await where(await finder_of(store), "tea milk") == [[], [1]]


GARBAGE = "UPDATE words_data SET block = ? WHERE id > 1000", b"\xff" * 99


async def test_a_damaged_index_is_told_of_and_made_anew(store: SQLiteStore, path: Path) -> None:
    await talk(store, *["tea and milk"] * 50)
    await read_on(store)
    ask(path, *GARBAGE)
    async with await SQLiteStore.open(path) as opened:
        [damage] = (await opened.verify()).damages
        assert damage.what.startswith("the word index cannot be read")
        finder = await finder_of(opened)
        with pytest.raises(Damaged):
            await finder.places(VIEW, ["tea"])
        await read_on(opened)
        assert await where(finder, "tea") == [[*range(1, 51)]]
        assert (await opened.verify()).sound


async def test_a_damaged_index_keeps_nobody_from_erasing(store: SQLiteStore, path: Path) -> None:
    key = await talk(store, *["tea"] * 15)
    await read_on(store, limit=1)  # after so many commits the next one merges what they left
    ask(path, *GARBAGE)
    ends = await asyncio.gather(store.append(key, [user("more")]), store.erase(key, [1]))
    assert ends[1] == 1
    assert postings(path) == set()
    await read_on(store)
    assert await where(await finder_of(store), "tea more") == [[*range(2, 16)], [16]]


async def test_a_damaged_row_does_not_move_the_end_of_what_is_to_be_read(
    store: SQLiteStore, path: Path
) -> None:
    key = await talk(store, "tea", "milk")
    ask(path, "UPDATE messages SET seq = 1000000 WHERE seq = 2")
    finder = await finder_of(store)
    assert [read.last for read in await finder.unread(VIEW, session=key)] == [1]


# --- limits ---


async def test_what_a_place_cannot_say_is_passed_over(store: SQLiteStore, path: Path) -> None:
    long = await talk(store, id="long")
    one = draft(user("tea"), clock=lambda: 1.0, ids=lambda: "1")
    row = next_row(int(long), Head(seq=MOST_SEQ - 1), one, None)
    ask(path, SQL["insert_message"], int(long), *row)
    ask(path, "INSERT OR REPLACE INTO watermarks VALUES (?, 1, ?)", int(long), MOST_SEQ - 1)
    ask(path, "INSERT INTO views VALUES (1, ?, 1)", VIEW)
    await store.append(long, [user("tea"), user("tea")])
    finder = await finder_of(store)
    [read] = await finder.unread(VIEW)
    assert (read.until, read.last) == (MOST_SEQ - 1, MOST_SEQ)
    [message] = await store.find(long, seqs=[MOST_SEQ])
    await finder.index(VIEW, read, MOST_SEQ, parts_of(int(long), message), [])
    assert await finder.unread(VIEW) == []
    assert await where(finder, "tea") == [[MOST_SEQ]]
    await store.erase(long, [MOST_SEQ + 1])
    ask(path, "UPDATE sqlite_sequence SET seq = ? WHERE name = 'sessions'", (1 << 22) - 1)
    late = await talk(store, "tea", id="late")
    assert int(late) == 1 << 22
    assert await finder.unread(VIEW) == []
    await store.erase(late, [1])
    await store.delete_session(late)
    await store.delete_session(long)
    assert await where(finder, "tea") == [[]]


async def test_comparing_vectors_says_what_it_needs(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await talk(store, "tea")
    made = await embed(store)
    monkeypatch.setitem(sys.modules, "numpy", None)
    finder = await finder_of(store)
    with pytest.raises(Unavailable, match=r"keepthread\[embed\]"):
        await finder.nearest(VECTORS, *made.values())


@pytest.mark.parametrize("changes", [1, 63, 64, 65, 66, 200])
async def test_statistics_are_whole_after_any_number_of_changes(
    store: SQLiteStore, path: Path, changes: int
) -> None:
    """The store remembers the last changed sessions; of more, all statistics are read again."""
    finder = await store.finder()
    for number in range(changes + 3):
        await talk(store, "tea", id=f"s{number}")
    await read_on(store)
    await finder.places(VIEW, ["tea"])
    for number in range(changes):
        session = await store.get_session(f"s{number}", "default")
        assert session is not None
        await store.append(session.key, [user("tea milk " * 9)])
    await read_on(store)
    async with await SQLiteStore.open(path) as fresh:
        expected = await (await fresh.finder()).places(VIEW, ["tea"])
    assert (await finder.places(VIEW, ["tea"])).segments == expected.segments


@pytest.mark.parametrize("kind", ["ram", "sqlite"])
async def test_of_equally_near_vectors_the_newest_come_first(kind: str, path: Path) -> None:
    store: Store = RamStore() if kind == "ram" else await SQLiteStore.open(path)
    try:
        finder = await store.finder()
        assert finder is not None
        key = await talk(store, *["tea"] * 8)
        (unread,) = await finder.unread(VECTORS)
        places = [first_place(key, seq) for seq in range(1, 9)]
        made = {place: vector(seq % 2) for seq, place in enumerate(places, start=1)}
        await finder.put_vectors(VECTORS, unread, unread.last, made)
        order = [places[seq - 1] for seq in (8, 6, 4, 2, 7, 5, 3, 1)]
        for limit in (1, 3, 6, 8):
            assert await finder.nearest(VECTORS, vector(0), limit=limit) == order[:limit]
    finally:
        await store.close()
