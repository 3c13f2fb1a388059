"""Opening a SQLite file: what is refused, and how it is read where it cannot be written."""

import asyncio
import errno
import os
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from keepthread import SessionInfo, SessionKey, SQLiteStore
from keepthread.errors import Busy, Damaged, ReadOnly, WrongFormat
from keepthread.stores.sqlite import file as database_file
from keepthread.stores.sqlite.file import DatabaseFile
from keepthread.stores.sqlite.schema import STORE
from keepthread.testing.contract import said, user


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "chat.db"


async def one_session(path: Path) -> SessionKey:
    """Make a file with a session of one message, and close it."""
    async with await SQLiteStore.open(path) as store:
        key = (await store.put_session(SessionInfo(id="s"))).key
        await store.append(key, [user("a")])
    return key


def prepare(path: Path, script: str) -> None:
    """Change the file with SQL of somebody else."""
    with closing(sqlite3.connect(path)) as db:
        db.executescript(script)


# --- a file that somebody else prepared ---

COPY = "AFTER INSERT ON messages BEGIN INSERT INTO records VALUES (1,2,3,4,5,6,7,8,9); END;"


@pytest.mark.parametrize(
    ("script", "what"),
    [
        (f"CREATE TRIGGER copy {COPY}", "trigger 'copy' on 'messages'"),
        (f"CREATE TRIGGER words_data {COPY}", "trigger 'words_data' on 'messages'"),
        (f"CREATE TRIGGER words_idx_copy {COPY}", "trigger 'words_idx_copy' on 'messages'"),
        ("CREATE VIEW words_docsize AS SELECT load_extension('x')", "view 'words_docsize'"),
        ("CREATE TABLE extra (text)", "table 'extra'"),
        ("CREATE TABLE words_content (x DEFAULT (random()))", "table 'words_content'"),
        (f"CREATE TABLE words_content({'x' * 5000} )", "table 'words_content'"),
        ("CREATE INDEX slow ON messages (hex(content))", "index 'slow' on 'messages'"),
    ],
)
async def test_a_file_with_more_than_our_tables_is_refused(
    path: Path, script: str, what: str
) -> None:
    await one_session(path)
    prepare(path, script)
    before = path.read_bytes()
    with pytest.raises(WrongFormat, match=what):
        await SQLiteStore.open(path)
    with pytest.raises(WrongFormat, match=what):
        reading(path).open_for_reading()
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "script",
    [
        "DROP VIEW v_sessions",
        "DROP VIEW v_messages; CREATE VIEW v_messages AS SELECT * FROM messages",
    ],
)
async def test_a_file_whose_view_was_changed_is_refused(path: Path, script: str) -> None:
    await one_session(path)
    prepare(path, script)
    with pytest.raises(Damaged, match="schema is damaged"):
        await SQLiteStore.open(path)


async def test_a_file_whose_table_was_changed_is_refused(path: Path) -> None:
    await one_session(path)
    prepare(
        path,
        "PRAGMA writable_schema = ON;"
        "UPDATE sqlite_schema SET sql = replace(sql, 'role       INTEGER NOT NULL,', "
        "'role       INTEGER NOT NULL CHECK (abs(random()) > 0),') WHERE name = 'messages';",
    )
    with pytest.raises(Damaged, match="schema is damaged"):
        await SQLiteStore.open(path)


async def test_an_older_format_is_refused_with_the_commit_to_export_with(path: Path) -> None:
    prepare(
        path,
        f"{STORE.tables} CREATE TRIGGER copy {COPY}"
        "PRAGMA user_version = 2; PRAGMA application_id = 0x6B707464;",
    )
    before = path.read_bytes()
    with pytest.raises(WrongFormat, match=r"format 2, .*keepthread at commit 4ce31d9"):
        await SQLiteStore.open(path)
    with pytest.raises(WrongFormat, match=r"format 2, .*keepthread at commit 4ce31d9"):
        reading(path).open_for_reading()
    assert path.read_bytes() == before


async def test_an_empty_file_that_cannot_be_written_is_named(path: Path) -> None:
    path.touch()
    with pytest.raises(WrongFormat, match="is empty"):
        reading(path).open_for_reading()
    async with await SQLiteStore.open(path) as store:
        assert (await store.verify()).sound


async def test_a_file_with_statistics_is_opened(path: Path) -> None:
    key = await one_session(path)
    prepare(path, "ANALYZE")
    async with await SQLiteStore.open(path) as store:
        assert said(await store.tail(key)) == ["a"]
        assert (await store.verify()).sound


async def test_functions_in_a_schema_are_not_trusted(path: Path) -> None:
    def trusted(db: sqlite3.Connection) -> int:
        return db.execute("PRAGMA trusted_schema").fetchone()[0]

    async with await SQLiteStore.open(path) as store:
        assert await store.backend.engine.write(trusted) == 0
        assert await store.backend.engine.read(trusted) == 0


async def test_verify_refuses_a_trigger_that_was_added_to_an_open_file(path: Path) -> None:
    await one_session(path)
    async with await SQLiteStore.open(path) as store:
        prepare(path, f"CREATE TRIGGER copy {COPY}")
        with pytest.raises(WrongFormat, match="trigger 'copy' on 'messages'"):
            await store.verify()


# --- a file in use ---


async def test_verify_sees_one_moment_of_a_file_in_use(path: Path) -> None:
    """Another connection adds a session after verify has read the sessions."""
    await one_session(path)
    added: list[SessionKey] = []

    async def add() -> None:
        async with await SQLiteStore.open(path) as other:
            added.append((await other.put_session(SessionInfo(id="new"))).key)
            await other.append(added[0], [user("b")])

    def after_the_sessions(statement: str) -> None:
        if "count(*) FROM messages" in statement and not added:
            asyncio.run(add())

    def connect(uri: str) -> sqlite3.Connection:
        db = database_file.connect(uri)
        db.set_trace_callback(after_the_sessions)
        return db

    async with await SQLiteStore.open(path, connect=connect) as store:
        found = await store.verify()
        assert added
        assert found.damages == ()
        assert (found.sessions, found.messages) == (1, 1)
        assert (await store.verify()).messages == 2


# --- a file that cannot be written ---


class Protection:
    """Refuses connections that need room or rights, as long as it is on."""

    def __init__(self, *queries: str, error: Callable[[], Exception]) -> None:
        self.queries = queries
        self.error = error
        self.on = True

    def connect(self, uri: str) -> sqlite3.Connection:
        if self.on and any(query in uri for query in self.queries):
            raise self.error()
        return database_file.connect(uri)


def no_rights() -> Exception:
    return PermissionError(errno.EACCES, "Permission denied")


def no_room() -> Exception:
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR_SHMSIZE
    return error


def reading(path: Path, connect: database_file.Connect = database_file.connect) -> DatabaseFile:
    return DatabaseFile(path, synchronous="FULL", timeout=1, connect=connect)


async def test_reads_see_new_writes_once_a_protected_file_can_be_written(path: Path) -> None:
    key = await one_session(path)
    protection = Protection("mode=rw", "mode=ro", error=no_rights)
    async with await SQLiteStore.open(path, connect=protection.connect) as store:
        assert said(await store.tail(key)) == ["a"]
        with pytest.raises(ReadOnly):
            await store.append(key, [user("refused")])
        protection.on = False
        await store.append(key, [user("b")])
        assert said(await store.tail(key)) == ["a", "b"]
        await store.append(key, [user("c")])
        assert said(await store.tail(key)) == ["a", "b", "c"]
        assert (await store.verify()).sound


async def test_an_empty_log_does_not_keep_a_full_disk_from_being_read(path: Path) -> None:
    """A writer that finds no room leaves an empty log."""
    key = await one_session(path)
    path.with_name(f"{path.name}-wal").touch()
    protection = Protection("mode=rw", "mode=ro", error=no_room)
    async with await SQLiteStore.open(path, connect=protection.connect) as store:
        assert said(await store.tail(key)) == ["a"]
        protection.on = False
        await store.append(key, [user("b")])
        assert said(await store.tail(key)) == ["a", "b"]


async def crash(path: Path) -> tuple[Path, SessionKey]:
    """Return a file as a crash leaves it: its log holds messages that it does not."""
    crashed = path.with_name("crashed.db")
    async with await SQLiteStore.open(path) as store:
        key = (await store.put_session(SessionInfo(id="s"))).key
        await store.append(key, [user("a"), user("b")])
        for ending in ("", "-wal"):
            crashed.with_name(f"crashed.db{ending}").write_bytes(
                path.with_name(f"{path.name}{ending}").read_bytes()
            )
    return crashed, key


async def test_a_log_is_read_where_there_is_no_room_for_its_index(path: Path) -> None:
    crashed, _ = await crash(path)
    protection = Protection("mode=ro", error=no_room)
    opened = reading(crashed, protection.connect).open_for_reading()
    with closing(opened.db):
        assert opened.db.execute("SELECT count(*) FROM messages").fetchone() == (2,)
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            opened.db.execute("DELETE FROM messages")
    assert not opened.live
    assert not crashed.with_name("crashed.db-shm").exists()


async def test_reading_alone_keeps_nobody_from_the_file_afterwards(path: Path) -> None:
    crashed, key = await crash(path)
    protection = Protection("mode=ro", error=no_room)

    def connect(uri: str) -> sqlite3.Connection:
        if "writer" in threading.current_thread().name:
            raise no_room()
        return protection.connect(uri)

    async with await SQLiteStore.open(crashed, connect=connect) as store:
        with closing(sqlite3.connect(crashed, timeout=10)) as other:  # opening has read
            assert other.execute("SELECT count(*) FROM messages").fetchone() == (2,)
        assert said(await store.tail(key)) == ["a", "b"]


async def test_what_was_read_without_locks_is_refused_if_the_file_changed(path: Path) -> None:
    key = await one_session(path)

    def change(db: sqlite3.Connection) -> int:
        os.utime(path, (1, 1))
        return db.execute("SELECT count(*) FROM messages").fetchone()[0]

    protection = Protection("mode=rw", "mode=ro", error=no_rights)
    async with await SQLiteStore.open(path, connect=protection.connect) as store:
        with pytest.raises(Busy, match="try again"):
            await store.backend.engine.read(change)
        assert said(await store.tail(key)) == ["a"]


async def test_a_file_whose_schema_cannot_be_decoded_is_damaged(path: Path) -> None:
    await one_session(path)
    written = path.read_bytes()
    name = b"sqlite_autoindex_messages_2"
    assert name in written
    path.write_bytes(written.replace(name, b"\xf3" + name[1:]))
    with pytest.raises(Damaged):
        await SQLiteStore.open(path)
