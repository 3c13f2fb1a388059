"""What only the SQLite store promises: its file, its settings, its commits, its damage."""

import asyncio
import errno
import os
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from keepthread import Scope, SessionInfo, SessionKey, Span, SQLiteStore
from keepthread.errors import (
    Busy,
    Damaged,
    DurabilityTooLow,
    KeepthreadError,
    ReadOnly,
    StoreClosed,
    Unavailable,
    WrongFormat,
)
from keepthread.stores.sqlite import file as database_file
from keepthread.stores.sqlite.file import FileLock
from keepthread.stores.sqlite.schema import SQL
from keepthread.testing.contract import FULL, said, user


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "chat.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SQLiteStore]:
    async with await SQLiteStore.open(path) as opened:
        yield opened


async def session_of(store: SQLiteStore, id: str = "s") -> SessionKey:
    return (await store.put_session(SessionInfo(id=id))).key


def damage(path: Path, statement: str, *values: Any) -> None:
    """Change the file behind the store's back."""
    with sqlite3.connect(path) as db:
        assert db.execute(statement, values).rowcount == 1
    db.close()


# --- the file ---


async def test_what_was_stored_is_there_after_reopening(path: Path) -> None:
    async with await SQLiteStore.open(path) as store:
        key = await session_of(store)
        stored = await store.append(key, [user("a"), FULL])
    async with await SQLiteStore.open(str(path)) as store:
        assert await store.tail(key) == stored
        assert (await store.verify()).sound


async def test_a_new_file_is_its_owners_alone(store: SQLiteStore, path: Path) -> None:
    await session_of(store)
    for name in (path.name, f"{path.name}-wal", f"{path.name}-lock"):
        assert stat.S_IMODE((path.parent / name).stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("level", "synchronous"), [(None, 2), ("power", 2), ("process", 1), ("memory", 1)]
)
async def test_durability_chooses_the_settings(path: Path, level: Any, synchronous: int) -> None:
    seen: list[dict[str, int | str]] = []

    def ask(db: sqlite3.Connection) -> None:
        names = ("synchronous", "journal_mode", "secure_delete", "wal_autocheckpoint", "fullfsync")
        seen.append({name: db.execute(f"PRAGMA {name}").fetchone()[0] for name in names})

    def connect_insecurely(uri: str) -> sqlite3.Connection:
        db = database_file.connect(uri)  # how SQLite was compiled must not matter
        db.execute("PRAGMA secure_delete = OFF").fetchall()
        return db

    async with await SQLiteStore.open(path, durability=level, connect=connect_insecurely) as store:
        await store.backend.engine.write(ask)
        assert store.durability == ("power" if synchronous == 2 else "process")
    assert seen == [
        {
            "synchronous": synchronous,
            "journal_mode": "wal",
            "secure_delete": 1,
            "wal_autocheckpoint": 0,
            "fullfsync": 1,
        }
    ]


async def test_more_durability_than_a_file_has_is_refused(path: Path) -> None:
    with pytest.raises(DurabilityTooLow, match="replicated"):
        await SQLiteStore.open(path, durability="replicated")
    assert not path.exists()


async def test_a_newer_format_is_refused_by_name(path: Path) -> None:
    async with await SQLiteStore.open(path):
        pass
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(WrongFormat, match=r"format 99.*newer keepthread"):
        await SQLiteStore.open(path)


async def test_somebody_elses_database_is_left_alone(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE precious (x)")
    db.close()
    with pytest.raises(WrongFormat, match="not a keepthread store"):
        await SQLiteStore.open(path)


@pytest.mark.parametrize(
    ("content", "error"),
    [(b"no database " * 500, WrongFormat), (bytes(range(128, 256)) * 50, Damaged)],
    ids=["text", "bytes"],
)
async def test_a_file_that_is_no_database_is_named(
    path: Path, content: bytes, error: type[KeepthreadError]
) -> None:
    path.write_bytes(content)
    with pytest.raises(error, match=r"chat\.db"):
        await SQLiteStore.open(path)


async def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="missing"):
        await SQLiteStore.open(tmp_path / "missing" / "chat.db")


async def test_a_locked_file_is_busy_after_the_timeout(store: SQLiteStore, path: Path) -> None:
    await session_of(store)
    other = await SQLiteStore.open(path, busy_timeout=0.05)
    blocker = sqlite3.connect(path, isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    with pytest.raises(Busy):
        await session_of(other, "t")
    blocker.close()
    await session_of(other, "t")
    await other.close()


async def test_opening_waits_for_another_that_is_opening(path: Path) -> None:
    lock = FileLock(path.with_name(f"{path.name}-lock"))
    assert lock.take()
    with pytest.raises(Busy):
        await SQLiteStore.open(path, busy_timeout=0.02)
    threading.Timer(0.1, lock.release).start()
    async with await SQLiteStore.open(path, busy_timeout=10):
        pass


async def test_the_log_is_moved_into_the_file_as_it_grows(store: SQLiteStore, path: Path) -> None:
    key = await session_of(store)
    for _ in range(24):
        await store.append(key, [user("x" * 500_000)])
    assert path.stat().st_size > 5_000_000
    assert (await store.verify()).sound


async def test_a_store_in_a_read_only_place_can_be_read(path: Path) -> None:
    async with await SQLiteStore.open(path) as store:
        key = await session_of(store)
        await store.append(key, [user("a")])

    def connect_read_only(uri: str) -> sqlite3.Connection:
        if "mode=rw" in uri:
            raise PermissionError(errno.EACCES, "Permission denied")
        return database_file.connect(uri)

    async with await SQLiteStore.open(path, connect=connect_read_only) as store:
        assert said(await store.tail(key)) == ["a"]
        with pytest.raises(ReadOnly):
            await store.append(key, [user("b")])


# --- threads and commits ---


async def test_appends_of_many_tasks_share_commits(store: SQLiteStore) -> None:
    keys = [await session_of(store, f"s{n}") for n in range(8)]
    before = store.backend.engine.commits
    await asyncio.gather(*(store.append(keys[n % 8], [user(str(n))]) for n in range(64)))
    assert store.backend.engine.commits - before <= 4


async def test_what_a_caller_gave_up_on_harms_nobody(store: SQLiteStore) -> None:
    key = await session_of(store)
    tasks = [asyncio.create_task(store.append(key, [user(str(n))])) for n in range(10)]
    await asyncio.sleep(0)
    for task in tasks[::2]:
        task.cancel()
    done = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(d) for d in done[1::2]] == [list] * 5
    log = await store.read(key)
    assert {str(n) for n in range(1, 10, 2)} <= set(said(log))


async def test_one_store_serves_several_event_loops(store: SQLiteStore) -> None:
    key = await session_of(store)

    def elsewhere(n: int) -> None:
        async def append() -> None:
            await asyncio.gather(*(store.append(key, [user(f"{n}")]) for _ in range(20)))

        asyncio.run(append())

    await asyncio.gather(*(asyncio.to_thread(elsewhere, n) for n in range(4)))
    assert len(await store.read(key, limit=100)) == 80


async def test_event_loops_that_come_and_go_are_all_served(store: SQLiteStore) -> None:
    key = await session_of(store)

    def come_and_go() -> None:
        for _ in range(40):
            asyncio.run(store.append(key, [user("x")]))
            asyncio.run(store.tail(key, limit=1))

    await asyncio.gather(*(asyncio.to_thread(come_and_go) for _ in range(6)))
    assert len(await store.read(key, limit=1000)) == 240


async def test_closing_answers_everyone(path: Path) -> None:
    store = await SQLiteStore.open(path)
    key = await session_of(store)
    tasks = [asyncio.create_task(store.append(key, [user(str(n))])) for n in range(300)]
    await asyncio.sleep(0)
    await store.close()
    done = await asyncio.gather(*tasks)
    assert len(done) == 300
    with pytest.raises(StoreClosed):
        await store.tail(key)


def test_a_forked_process_is_told_to_open_its_own(path: Path) -> None:
    code = f"""
import asyncio, os
from keepthread import SQLiteStore
from keepthread.errors import StoreClosed
store = asyncio.run(SQLiteStore.open({str(path)!r}))
if (pid := os.fork()) == 0:
    try:
        asyncio.run(store.list_sessions())
    except StoreClosed as error:
        asyncio.run(store.close())
        os._exit(0 if "fork" in str(error) else 2)
    os._exit(1)
assert os.waitpid(pid, 0)[1] == 0
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)


async def test_an_error_in_work_reaches_its_caller_alone(store: SQLiteStore) -> None:
    def fail(db: sqlite3.Connection) -> None:
        db.execute("INSERT INTO records VALUES (1, 't', 0, 'o', 'k', 'k', x'', NULL, 0)")
        raise ZeroDivisionError

    key = await session_of(store)
    done = await asyncio.gather(
        store.backend.engine.write(fail), store.append(key, [user("a")]), return_exceptions=True
    )
    assert [type(d) for d in done] == [ZeroDivisionError, list]
    with pytest.raises(ZeroDivisionError):
        await store.backend.engine.write(fail)
    assert (await store.verify()).records == 0


# --- damage ---


async def test_a_damaged_message_costs_one_message(path: Path, store: SQLiteStore) -> None:
    key = await session_of(store)
    await store.append(key, [user("a"), user("b"), user("c")])
    damage(path, "UPDATE messages SET content = ? WHERE seq = 2", b"B")
    log = await store.read(key)
    assert [m.state for m in log] == ["live", "damaged", "live"]
    assert said(log) == ["a", "B", "c"]
    (found,) = (await store.verify()).damages
    assert (found.session, found.seq) == ("s", 2)


async def test_a_damaged_id_that_equals_another_costs_one_message(path: Path) -> None:
    async with await SQLiteStore.open(path) as store:
        key = await session_of(store)
        await store.append(key, [user("first", id="id 1"), user("second", id="id 2")])
    whole = path.read_bytes()
    assert whole.count(b"id 2second") == 1
    path.write_bytes(whole.replace(b"id 2second", b"id 1second"))
    async with await SQLiteStore.open(path) as store:
        found = await store.find(key, seqs=[1, 2])
        assert [(m.seq, m.state) for m in found] == [(1, "live"), (2, "damaged")]
        assert len(await store.find(key, ids=["id 1"], seqs=[1])) == 1


async def test_a_missing_message_is_noticed(path: Path, store: SQLiteStore) -> None:
    key = await session_of(store)
    await store.append(key, [user(c) for c in "abcde"])
    damage(path, "DELETE FROM messages WHERE seq = 3")
    for log in (await store.read(key), await store.tail(key)):
        assert [m.state for m in log] == ["live", "live", "damaged", "live", "live"]
        assert [m.seq for m in log] == [1, 2, 3, 4, 5]
    (found,) = (await store.verify()).damages
    assert (found.session, found.seq, found.what) == ("s", 3, "the message is missing")
    damage(path, "DELETE FROM messages WHERE seq = 1")
    assert [m.state for m in await store.read(key, limit=2)] == ["damaged", "live"]


async def test_a_message_that_strayed_is_named_where_it_belongs(
    path: Path, store: SQLiteStore
) -> None:
    one, two = await session_of(store, "one"), await session_of(store, "two")
    for key in (one, two):
        await store.append(key, [user(c) for c in "abc"])
    damage(path, "UPDATE messages SET sid = 2, seq = 4 WHERE sid = 1 AND seq = 2")
    (found,) = (await store.verify()).damages
    assert (found.session, found.seq) == ("one", 2)
    assert [m.state for m in await store.read(two)] == ["live", "live", "live", "damaged"]


async def test_a_hole_of_many_positions_is_an_error_not_a_flood(
    path: Path, store: SQLiteStore
) -> None:
    key = await session_of(store)
    await store.append(key, [user("a"), user("b")])
    damage(path, "UPDATE messages SET seq = 1000000, guard = 0 WHERE seq = 2")
    assert said(await store.read(key)) == ["a"]  # a loss at the very end: `verify` alone tells
    assert [(d.session, d.seq) for d in (await store.verify()).damages] == [("s", 1_000_000)]
    (more,) = await store.append(key, [user("c")])
    assert more.seq == 2
    assert said(await store.tail(key)) == said(await store.read(key)) == ["a", "c"]
    await store.append(key, [user("d") for _ in range(2000)])
    with sqlite3.connect(path) as db:
        db.execute("DELETE FROM messages WHERE seq BETWEEN 5 AND 1900")
    db.close()
    with pytest.raises(Damaged, match="missing"):
        await store.read(key)
    assert len((await store.verify()).damages) == 1001


async def test_a_damaged_last_row_is_not_built_upon(path: Path, store: SQLiteStore) -> None:
    key = await session_of(store)
    await store.append(key, [user("a", tokens=5), user("b", tokens=5)])
    damage(path, "UPDATE messages SET total = 999 WHERE seq = 2")
    (made,) = await store.append(key, [user("c", tokens=1)])
    assert (made.seq, made.turn, made.total) == (3, 2, 6)
    damage(path, "UPDATE messages SET total = 'x' WHERE seq = 3")
    damage(path, "UPDATE messages SET guard = 1 WHERE seq = 1")
    (made,) = await store.append(key, [user("d", tokens=1)])
    assert (made.seq, made.total) == (4, 1)


async def test_a_damaged_message_can_be_erased(path: Path, store: SQLiteStore) -> None:
    key = await session_of(store)
    await store.append(key, [user("a"), user("secret")])
    damage(path, "UPDATE messages SET tokens = 'x', content = ? WHERE seq = 2", b"secreT")
    await store.erase(key, [2])
    assert [m.state for m in await store.read(key)] == ["live", "erased"]
    assert (await store.verify()).sound


async def test_a_damaged_session_keeps_its_messages(path: Path, store: SQLiteStore) -> None:
    key = await session_of(store)
    await store.append(key, [user("a")])
    damage(path, "UPDATE sessions SET owner = 'eve'")
    (listed,) = await store.list_sessions()
    assert (listed.state, listed.id, listed.messages) == ("damaged", "s", 1)
    assert said(await store.tail(listed.key)) == ["a"]
    with pytest.raises(Damaged):
        await store.put_session(listed)
    with pytest.raises(Damaged):
        await store.erase(key, [1])
    (found,) = (await store.verify()).damages
    assert found.session == "s"


async def test_a_damaged_record_is_an_error_until_it_is_dropped(
    path: Path, store: SQLiteStore
) -> None:
    key = await session_of(store)
    scope = Scope(session=key)
    await store.put(scope, "pin", "1", "a")
    damage(path, "UPDATE records SET value = ?", b'"b"')
    for call in (store.get(scope, "pin", "1"), store.scan(scope)):
        with pytest.raises(Damaged, match="pin/1"):
            await call
    (found,) = (await store.verify()).damages
    assert "pin/1" in found.what
    assert await store.drop(scope, "pin", "1")
    assert await store.scan(scope) == []


async def test_a_damaged_record_goes_when_what_it_may_be_made_of_is_erased(
    path: Path, store: SQLiteStore
) -> None:
    key = await session_of(store)
    await store.append(key, [user("a"), user("secret")])
    scope = Scope(session=key)
    await store.put(
        scope, "compact", "broken", "secret", made_of=[Span(session=key, first=2, last=2)]
    )
    await store.put(
        scope, "compact", "garbled", "secret", made_of=[Span(session=key, first=2, last=2)]
    )
    await store.put(scope, "compact", "sound", "a", made_of=[Span(session=key, first=1, last=1)])
    await store.put(scope, "marks", "1", [])
    damage(path, "UPDATE records SET made_of = ? WHERE key = 'broken'", f'[["{key}",1,1]]'.encode())
    damage(path, "UPDATE records SET made_of = 7, kind = ? WHERE key = 'garbled'", b"\xff")
    damage(path, "UPDATE records SET value = ? WHERE kind = 'marks'", b"[1]")
    await store.erase(key, [2])
    assert [r.key for r in await store.scan(scope, "compact")] == ["sound"]
    (found,) = (await store.verify()).damages  # what was hidden must not come to light instead
    assert "marks/1" in found.what


async def test_a_record_whose_key_is_damaged_is_not_passed_over(
    path: Path, store: SQLiteStore
) -> None:
    await store.put(Scope(), "k", "a", 1)
    damage(path, "UPDATE records SET key = ?", b"\xff")
    with pytest.raises(Damaged):
        await store.scan(Scope(), "k")


async def test_an_orphaned_message_is_named(path: Path, store: SQLiteStore) -> None:
    key = await session_of(store)
    await store.append(key, [user("a")])
    damage(path, "DELETE FROM sessions")
    assert len((await store.verify()).damages) == 1


async def test_an_orphaned_message_is_named_though_another_has_its_position(
    path: Path, store: SQLiteStore
) -> None:
    key = await session_of(store)
    await store.append(key, [user("a"), user("b")])
    damage(path, "UPDATE messages SET sid = 99 WHERE seq = 2")
    (said,) = await store.append(key, [user("c")])
    assert said.seq == 2
    assert [(d.session, d.seq) for d in (await store.verify()).damages] == [("s", 2)]


async def test_a_damaged_page_is_reported_not_raised(path: Path) -> None:
    async with await SQLiteStore.open(path) as store:
        key = await session_of(store)
        await store.append(key, [user("x" * 300) for _ in range(200)])
    data = bytearray(path.read_bytes())
    data[8192 : 8192 + 4096] = os.urandom(4096)
    data[-4096:] = b"\xff" * 4096
    path.write_bytes(data)
    async with await SQLiteStore.open(path) as store:
        assert not (await store.verify()).sound


async def test_indexes_that_disagree_are_an_error(path: Path, store: SQLiteStore) -> None:
    key = await session_of(store)
    await store.append(key, [user("a", id="1")])

    def forget_unique(db: sqlite3.Connection) -> None:
        db.execute(
            "CREATE TRIGGER odd BEFORE INSERT ON messages BEGIN SELECT RAISE(ABORT, 'odd'); END"
        )

    await store.backend.engine.write(forget_unique)
    with pytest.raises(Damaged, match="disagree"):
        await store.append(key, [user("b", id="2")])


# --- cost ---


def test_every_hot_statement_uses_its_index(path: Path) -> None:
    db = database_file.DatabaseFile(
        path, synchronous="FULL", timeout=1, connect=database_file.connect
    ).open_for_writing()
    for name, sql in SQL.items():
        if name.startswith(("every_", "count_", "positions", "drop_")):
            continue
        plan = [row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {sql}", (1,) * sql.count("?"))]
        # FTS5 and lists of places, and what a statement inside gave.
        plan = [step for step in plan if "VIRTUAL TABLE" not in step and "(subquery" not in step]
        assert not any("SCAN" in step or "TEMP B-TREE" in step for step in plan), (name, plan)
    db.close()
