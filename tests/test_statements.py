"""Every SQL statement, function and Lua script of the stores is run by a test.

Coverage tools measure Python alone. Here some tests of the contract run on each backend, and what
the backend ran is recorded. A statement that is missing is dead, or has no test: delete it, or add
the test that runs it to the names below.
"""

import asyncio
import sqlite3
import time
from collections.abc import Awaitable, Callable, Collection, Iterator
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest

from keepthread.protocols import Store
from keepthread.stores.postgres import PostgresStore
from keepthread.stores.postgres import schema as postgres_statements
from keepthread.stores.redis import RedisStore
from keepthread.stores.redis.engine import LUA
from keepthread.stores.redis.keys import index_of, session_place
from keepthread.stores.sqlite import SQLiteStore
from keepthread.stores.sqlite import schema as sqlite_statements
from keepthread.testing.contract import StoreContract, new_session, user
from keepthread.testing.finding import FinderContract
from keepthread.testing.tables import TablesContract
from servers.postgres import PostgresServer
from servers.redis import RedisServer

HERE: Final = Path(__file__).parent
PATIENCE: Final = 20.0
CREATED: Final = "created"
"""A database that the test of PostgreSQL's functions creates."""

_OLD_CHANGES: Final = "test_changes.py::test_a_cursor_after_which_changes_were_deleted_is_refused"
ELSEWHERE: Final = {
    "readable": "test_brief.py::test_090_and_094_the_tables_of_the_note_are_views_on_postgres",
    "readable_json": "test_brief.py::test_090_and_094_the_tables_of_the_note_are_views_on_postgres",
    "count_pieces": "test_finding.py::test_the_largest_session_goes_with_the_whole_index",
    "earliest_recent_time": _OLD_CHANGES,
    "oldest_times": _OLD_CHANGES,
    "old_changes": _OLD_CHANGES,
    "delete_changes": _OLD_CHANGES,
    "note_trimmed": _OLD_CHANGES,
    "feed_holder": "test_feed_holder.py::"
    "test_a_transaction_of_another_database_holds_the_feed_back_and_is_named",
    "points_behind": "test_postgres_finding.py::test_without_pgvector_all_vectors_are_compared",
}
"""What runs only under conditions that are costly to make, and the test that makes them."""

IN_SQLITE: Final = (
    "test_a_reader_learns_which_records_changed",
    "test_changes_are_shown_to_their_owner_and_to_the_operator",
    "test_a_dropped_tenant_is_gone_and_begins_from_nothing",
    "test_a_filter_is_applied_before_the_last_places_are_taken",
    "test_a_context_of_four_kinds_is_gathered_kind_by_kind",
    "test_a_damaged_source_is_gathered_as_it_is",
    "test_a_dropped_view_is_read_again",
    "test_a_message_comes_back_byte_for_byte",
    "test_delegates_and_what_is_not_ready_are_in_no_index",
    "test_every_session_is_scanned_in_the_order_of_making",
    "test_keys_are_ordered_by_code_point",
    "test_messages_are_fetched_once_with_their_sessions_records",
    "test_owners_are_those_who_have_something_on_their_shelf",
    "test_each_view_knows_the_sessions_it_has_not_read",
    "test_owners_sessions_and_tenants_are_walls",
    "test_recounting_counts_what_another_counted",
    "test_the_list_is_by_owner_without_delegates_and_what_is_unready",
    "test_the_nearest_single_vectors_are_found_in_a_scope",
    "test_two_tenants_see_nothing_of_each_other",
    "test_a_session_that_becomes_active_while_pages_are_read_is_not_missed",
    "test_sessions_are_listed_page_by_page",
    "test_what_is_erased_before_it_is_read_is_passed_over",
    "test_what_was_never_read_is_unread_from_the_start",
    "test_idle_sessions_of_all_kinds_are_found_page_by_page",
    "test_nothing_leads_to_another_tenant",
    "test_owners_of_blobs_are_found_without_the_others",
    "test_records_are_found_by_what_they_are_made_of",
    "test_sessions_that_name_another_are_its_relatives",
    "test_the_sessions_of_one_owner_are_scanned_alone",
)
IN_POSTGRES: Final = (
    "test_a_reader_learns_which_records_changed",
    "test_changes_are_shown_to_their_owner_and_to_the_operator",
    "test_a_dropped_tenant_is_gone_and_begins_from_nothing",
    "test_a_damaged_source_is_gathered_as_it_is",
    "test_a_filter_is_applied_before_the_last_places_are_taken",
    "test_a_filter_is_applied_before_the_nearest_are_taken",
    "test_a_retry_does_not_hide_the_activity_that_follows_it",
    "test_a_session_has_a_delimiter_of_its_own_for_life",
    "test_a_dropped_view_is_read_again",
    "test_each_view_knows_the_sessions_it_has_not_read",
    "test_cleaning_lets_go_of_nothing_that_is_there",
    "test_delegates_and_what_is_not_ready_are_in_no_index",
    "test_no_place_leads_behind_another_tenants_wall",
    "test_owners_are_those_who_have_something_on_their_shelf",
    "test_owners_sessions_and_tenants_are_walls",
    "test_recounting_counts_what_another_counted",
    "test_two_tenants_see_nothing_of_each_other",
    "test_idle_sessions_of_all_kinds_are_found_page_by_page",
    "test_nothing_leads_to_another_tenant",
    "test_owners_of_blobs_are_found_without_the_others",
    "test_records_are_found_by_what_they_are_made_of",
    "test_sessions_that_name_another_are_its_relatives",
    "test_the_sessions_of_one_owner_are_scanned_alone",
)
IN_REDIS: Final = (
    "test_a_reader_learns_which_records_changed",
    "test_changes_are_shown_to_their_owner_and_to_the_operator",
    "test_a_dropped_tenant_is_gone_and_begins_from_nothing",
    "test_a_copy_has_no_gaps_and_no_strangers",
    "test_an_update_of_what_another_changed_is_refused",
    "test_every_session_is_scanned_in_the_order_of_making",
    "test_recounting_counts_what_another_counted",
    "test_two_tenants_see_nothing_of_each_other",
    "test_what_was_made_before_an_erasure_is_refused",
    "test_idle_sessions_of_all_kinds_are_found_page_by_page",
    "test_nothing_leads_to_another_tenant",
    "test_owners_of_blobs_are_found_without_the_others",
    "test_records_are_found_by_what_they_are_made_of",
    "test_sessions_that_name_another_are_its_relatives",
    "test_the_sessions_of_one_owner_are_scanned_alone",
)

OF_TABLES: Final = (
    "test_a_key_comes_back_as_it_was_added",
    "test_a_revoked_key_stays_revoked",
    "test_a_secret_is_made_once",
    "test_a_request_is_done_once_and_answered_again",
    "test_an_abandoned_request_is_new_again",
    "test_old_requests_are_purged",
    "test_keys_are_listed_by_id_in_pages",
    "test_entries_are_listed_by_their_numbers",
    "test_the_oldest_entries_are_pruned_in_steps",
    "test_forgetting_deletes_the_bodies_of_answers",
    "test_a_request_that_takes_long_is_renewed",
    "test_a_dropped_tenant_has_no_keys_and_no_requests",
)
"""What runs every statement of a server's tables, on each backend."""

OpenStore = Callable[[Path, Callable[[], float]], Awaitable[Store]]


def run_contract(names: Collection[str], open_store: OpenStore, folder: Path) -> None:
    """Run some tests of the contracts on stores that `open_store` opens."""

    class OnStore(StoreContract):
        async def open_store(self, folder: Path, *, clock: Callable[[], float]) -> Store:
            return await open_store(folder, clock)

    class OnFinder(FinderContract):
        async def open_store(self, folder: Path, *, clock: Callable[[], float]) -> Store:
            return await open_store(folder, clock)

    class OnTables(TablesContract):
        async def open_store(self, folder: Path) -> Store:
            return await open_store(folder, time.time)

    for name in (*names, *OF_TABLES):
        place = folder / name
        place.mkdir()
        kind = OnTables if name in OF_TABLES else OnStore
        contract = kind() if hasattr(kind, name) else OnFinder()
        getattr(contract, name)(place)


def missing(names: Collection[str], ran: Collection[str]) -> list[str]:
    return sorted(set(names) - set(ran) - ELSEWHERE.keys())


def test_what_runs_elsewhere_has_a_test_there() -> None:
    for place in ELSEWHERE.values():
        file, _, name = place.partition("::")
        assert f"def {name}(" in (HERE / file).read_text(), place


# --- SQLite ---


def test_every_statement_of_sqlite_is_run(tmp_path: Path) -> None:
    ran: set[str] = set()

    class Recording(sqlite3.Connection):
        def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
            ran.add(sql)
            return super().execute(sql, *values)

        def executemany(self, sql: str, *values: Any) -> sqlite3.Cursor:
            ran.add(sql)
            return super().executemany(sql, *values)

    def connect(uri: str) -> sqlite3.Connection:
        return sqlite3.connect(uri, uri=True, isolation_level=None, timeout=0, factory=Recording)

    async def open_store(folder: Path, clock: Callable[[], float] = time.time) -> Store:
        return await SQLiteStore.open(folder / "store.db", clock=clock, connect=connect)

    async def damage() -> None:
        store = await open_store(tmp_path)
        key = await new_session(store)
        await store.append(key, [user("a"), user("b"), user("c")])
        with sqlite3.connect(tmp_path / "store.db") as db:
            db.execute("UPDATE messages SET guard = 0 WHERE seq = 3")
        assert (await store.append(key, [user("d")]))[0].seq == 4
        with sqlite3.connect(tmp_path / "store.db") as db:
            db.execute("DELETE FROM messages WHERE seq = 2")
        assert len((await store.verify()).damages) == 2
        await store.close()

    run_contract(IN_SQLITE, open_store, tmp_path)
    asyncio.run(damage())
    names = {name for name, sql in sqlite_statements.SQL.items() if sql in ran}
    assert missing(sqlite_statements.SQL, names) == []


# --- PostgreSQL ---


@pytest.fixture
def counting(postgres: PostgresServer) -> Iterator[PostgresServer]:
    """Give the shared server, which counts the calls of functions for as long."""
    postgres.execute("ALTER DATABASE keepthread SET track_functions = 'all'")
    postgres.execute("SELECT pg_stat_reset()")
    yield postgres
    postgres.execute("ALTER DATABASE keepthread RESET track_functions")


def test_every_statement_and_function_of_postgres_is_run(
    counting: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: set[bytes] = set()
    execute = psycopg.AsyncCursor.execute

    async def recording(self: Any, query: Any, *values: Any, **options: Any) -> Any:
        if isinstance(query, bytes):
            ran.add(query)
        return await execute(self, query, *values, **options)

    monkeypatch.setattr(psycopg.AsyncCursor, "execute", recording)

    async def open_store(folder: Path, clock: Callable[[], float] = time.time) -> Store:
        return await PostgresStore.open(counting.empty(), clock=clock)

    async def damage() -> None:
        store = await open_store(tmp_path)
        key = await new_session(store)
        await store.append(key, [user("a"), user("b")])
        counting.execute("UPDATE keepthread.messages SET guard = '' WHERE seq = 2")
        assert (await store.append(key, [user("c")]))[0].seq == 3
        await store.close()
        created = counting.create_database(CREATED)
        counting.execute(f"ALTER DATABASE {CREATED} SET track_functions = 'all'")
        await (await PostgresStore.open(created)).close()

    run_contract(IN_POSTGRES, open_store, tmp_path)
    asyncio.run(damage())
    names = {name for name, sql in postgres_statements.SQL.items() if sql in ran}
    assert missing(postgres_statements.SQL, names) == []
    deadline = time.monotonic() + PATIENCE
    while (left := functions_not_run(counting)) and time.monotonic() < deadline:
        time.sleep(0.2)  # a server counts what a connection did once that is closed
    assert left == []


def functions_not_run(server: PostgresServer) -> list[str]:
    """Return the functions that were not called, neither by a statement nor by another function."""
    called = {
        name
        for database in ("keepthread", CREATED)  # the shared one may have been created before
        for (name,) in server.execute(
            "SELECT funcname FROM pg_stat_user_functions", database=database
        )
    }
    functions = server.execute(
        "SELECT p.proname, l.lanname, p.prosrc"
        " FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang"
        " WHERE p.pronamespace = 'keepthread'::regnamespace"
    )
    # Functions in plain SQL become part of the statement that calls them, and are not counted.
    texts = [text for name, _, text in functions if name in called]
    inlined = {name for name, language, _ in functions if language == "sql"}
    while new := {
        name for name in inlined - called if any(f"keepthread.{name}(" in text for text in texts)
    }:
        called |= new
        texts += [text for name, _, text in functions if name in new]
    return missing({name for name, _, _ in functions}, called)


# --- Redis ---


def test_every_script_of_redis_is_run(redis_server: RedisServer, tmp_path: Path) -> None:
    async def open_store(folder: Path, clock: Callable[[], float] = time.time) -> Store:
        redis_server.ask("FLUSHALL")
        return await RedisStore.open(redis_server.url, ttl=1000, clock=clock)

    async def damage() -> None:
        store = await open_store(tmp_path)
        key = await new_session(store)
        await store.append(key, [user("a")])
        redis_server.ask("HSET", session_place("default", key).session, "head", b"damaged")
        assert (await store.append(key, [user("b")]))[0].seq == 2
        redis_server.ask("ZADD", index_of("default").ends, 1, f"{key} owner")
        await new_session(store, "another")
        await store.close()

    redis_server.ask("SCRIPT", "FLUSH")  # from here on, the server knows those that were run
    run_contract(IN_REDIS, open_store, tmp_path)
    asyncio.run(damage())
    known = redis_server.ask("SCRIPT", "EXISTS", *(script.sha for script in LUA.values()))
    assert missing(LUA, {name for name, ran in zip(LUA, known, strict=True) if ran}) == []
