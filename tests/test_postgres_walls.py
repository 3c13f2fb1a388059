"""PostgreSQL: walls between tenants, one partition for each statement, formats, durability."""

import asyncio
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any, Literal

import psycopg
import pytest

from keepthread import Scope, SessionInfo, Span
from keepthread.errors import (
    DurabilityTooLow,
    InvalidInput,
    NotIsolated,
    Unavailable,
    WrongFormat,
)
from keepthread.recall.positions import VIEW
from keepthread.stores.links import nodes_above
from keepthread.stores.postgres import PostgresStore
from keepthread.stores.postgres.schema import FORMAT, SQL
from keepthread.stores.postgres.server import PgServer, durability_of
from keepthread.stores.postgres.words import letters_of
from keepthread.testing.contract import said, user
from keepthread.testing.finding import VECTORS, embed, first_place, read_on, vector, where
from keepthread.types import Found, Unread
from proofs.p08_walls import WAYS, Looker, Tally, Way
from servers.pgbouncer import pooled
from servers.postgres import PostgresServer, new_server

INDEXES = ("readings", "segments", "words", "vectors")
TABLES = ("sessions", "messages", "records", "changes", *INDEXES)


@pytest.fixture
async def store(postgres: PostgresServer) -> AsyncIterator[PostgresStore]:
    async with await PostgresStore.open(postgres.empty()) as opened:
        yield opened


async def fill(store: PostgresStore, sessions: int) -> list[Any]:
    """Put some sessions with messages and records behind a tenant's wall."""
    keys = [(await store.put_session(SessionInfo(id=f"s{n}"))).key for n in range(sessions)]
    for key in keys:
        await store.append(key, [user("mine", id="m", tokens=3), user("too", id="n", tokens=3)])
        await store.put(Scope(session=key), "pin", "1", 1)
    await store.put(Scope(owner="ana"), "fact", "1", 1)
    await read_on(store)
    await embed(store)
    return keys


# --- walls ---


@pytest.fixture
def app(postgres: PostgresServer, store: PostgresStore) -> Iterator[psycopg.Connection]:
    """Give a connection of the role that keepthread works as."""
    with psycopg.connect(postgres.url(), autocommit=True) as db:
        db.execute("SET ROLE keepthread_app")
        yield db


def see(db: psycopg.Connection, tenant: int | None, statement: str, asked: str = "") -> list[Any]:
    """Return what a statement finds in a transaction that has named a tenant, or none."""
    with db.transaction(force_rollback=True):
        if tenant is not None:
            db.execute("SELECT set_config('keepthread.tenant', %s, true)", [str(tenant)])
        db.execute("SELECT set_config('keepthread.asked', %s, true)", [asked])
        return db.execute(statement.encode()).fetchall()


async def test_a_query_without_its_where_finds_no_foreign_row(
    postgres: PostgresServer, store: PostgresStore, app: psycopg.Connection
) -> None:
    await fill(store, 3)
    await fill(store.tenant("other"), 4)
    numbers = dict(
        postgres.execute("SELECT convert_from(name, 'UTF8'), tenant FROM keepthread.tenants")
    )
    for table, rows in zip(TABLES, (4, 8, 5, 17, 8, 4, 8, 8), strict=True):
        mine = see(app, numbers["other"], f"SELECT tenant FROM keepthread.{table}")
        assert mine == [(numbers["other"],)] * rows
        for nobody in (None, 0, 999_999):
            assert see(app, nobody, f"SELECT * FROM keepthread.{table}") == []
        for write in ("DELETE FROM {}", "UPDATE {} SET sid = sid"):
            statement = f"{write.format(f'keepthread.{table}')} RETURNING tenant"
            assert see(app, numbers["other"], statement) == mine
            assert see(app, None, statement) == []
    names = ("tenant, whose, kind", "keepthread.record_changes")
    for form in ("SELECT {0} FROM {1}", "DELETE FROM {1} RETURNING {0}"):
        statement = form.format(*names)
        assert see(app, numbers["other"], statement) == [(numbers["other"], b"ana", b"fact")]
        assert see(app, None, statement) == []


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
def test_functions_can_be_made_without_their_conditions(
    postgres: PostgresServer, store: PostgresStore, way: Way
) -> None:
    """P8 runs them so; it takes too long for every change."""
    with psycopg.connect(postgres.url()) as db:
        looker = Looker(db, Tally())
        looker.bend_functions(way)
        assert (looker.bent > 0) != (way.conditions and way.number)
        db.rollback()


async def test_words_are_behind_a_door_of_their_own(
    postgres: PostgresServer, store: PostgresStore, app: psycopg.Connection
) -> None:
    """Nothing is seen there but the tenant's rows that hold what is asked for, and none written."""
    await fill(store, 3)
    await fill(store.tenant("other"), 4)
    tenants = [tenant for (tenant,) in postgres.execute("SELECT tenant FROM keepthread.tenants")]
    for tenant in tenants:
        words = f"SELECT tsvector_to_array(words) FROM keepthread.words WHERE tenant = {tenant}"
        ((mine, *_),) = postgres.execute(words)[0]
        ((count,),) = postgres.execute(
            f"SELECT count(*) FROM keepthread.words WHERE tenant = {tenant} AND words @@ %s", mine
        )
        for asked, rows in ((mine, count), ("nothing", 0), ("", 0)):
            look = "SELECT tenant FROM keepthread.asked"
            for nobody in (None, 0):
                assert see(app, nobody, look, asked) == []
            assert see(app, tenant, look, asked) == [(tenant,)] * rows
    for write in ("DELETE FROM {}", "UPDATE {} SET at = 1", "INSERT INTO {} SELECT * FROM {}"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            see(app, tenants[0], write.format(*["keepthread.asked"] * 2))


async def test_views_show_one_tenant_even_with_the_rights_of_their_owner(
    postgres: PostgresServer, store: PostgresStore, app: psycopg.Connection
) -> None:
    await fill(store, 3)
    await fill(store.tenant("other"), 4)
    numbers = dict(
        postgres.execute("SELECT convert_from(name, 'UTF8'), tenant FROM keepthread.tenants")
    )
    for invoker in ("true", "false"):  # servers before 15 have only the second
        for view, rows in (("v_sessions", 4), ("v_messages", 8)):
            postgres.execute(f"ALTER VIEW keepthread.{view} SET (security_invoker = {invoker})")
            look = f"SELECT 1 FROM keepthread.{view}"
            assert len(see(app, numbers["other"], look)) == rows
            for nobody in (None, 0, 999_999):
                assert see(app, nobody, look) == []
            with psycopg.connect(postgres.url(), autocommit=True) as superuser:
                assert len(see(superuser, numbers["other"], look)) == rows
                assert see(superuser, None, look) == []
                with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState):
                    see(superuser, numbers["other"], f"DELETE FROM keepthread.{view} RETURNING 1")


async def test_a_row_of_another_tenant_cannot_be_written(
    postgres: PostgresServer, store: PostgresStore, app: psycopg.Connection
) -> None:
    await fill(store, 1)
    await fill(store.tenant("other"), 1)
    one, other = (n for (n,) in postgres.execute("SELECT tenant FROM keepthread.tenants"))
    for statement in (
        f"UPDATE keepthread.messages SET tenant = {other} RETURNING 1",
        f"UPDATE keepthread.records SET tenant = {other} RETURNING 1",
        f"UPDATE keepthread.sessions SET tenant = {other} RETURNING 1",
        f"UPDATE keepthread.readings SET tenant = {other} RETURNING 1",
        f"UPDATE keepthread.segments SET tenant = {other} RETURNING 1",
        f"UPDATE keepthread.words SET tenant = {other} RETURNING 1",
        f"UPDATE keepthread.vectors SET tenant = {other} RETURNING 1",
        f"INSERT INTO keepthread.sessions SELECT * FROM keepthread.sessions RETURNING {other}",
    ):
        with pytest.raises((psycopg.errors.InsufficientPrivilege, psycopg.errors.UniqueViolation)):
            see(app, one, statement)


async def test_neither_names_of_tenants_nor_partitions_are_readable(
    store: PostgresStore, app: psycopg.Connection
) -> None:
    for table in ("tenants", "messages_0", "records_15", "words_0", "vectors_15"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            app.execute(f"SELECT * FROM keepthread.{table}".encode())


async def test_the_functions_without_their_tenant_find_nothing_to_work_on(
    postgres: PostgresServer, store: PostgresStore, app: psycopg.Connection
) -> None:
    """Take `tenant = _tenant` out of every function: row-level security alone holds."""
    (key,) = await fill(store, 1)
    await store.tenant("other").put_session(SessionInfo(id="theirs"))
    functions = postgres.execute(
        "SELECT pg_get_functiondef(oid) FROM pg_proc"
        " WHERE pronamespace = 'keepthread'::regnamespace AND proname <> 'tenant_number'"
    )
    open_doors = [re.sub(r"\b(\w\.)?tenant = _tenant\b", "true", one) for (one,) in functions]
    assert sum(one != door for (one,), door in zip(functions, open_doors, strict=True)) > 15
    try:
        for door in open_doors:
            postgres.execute(door)
        stranger = await PostgresStore.open(postgres.url(), tenant="other")
        async with stranger:
            finder = await stranger.finder()
            read = Unread(key, 0, 2, 0)
            for call in (
                finder.unread(VIEW, session=key),
                finder.index(VIEW, read, 2, [], []),
                finder.places(VIEW, ["mine"], session=key),
                finder.nearest(VECTORS, vector(1), session=key),
                finder.put_vectors(VECTORS, read, 2, {}),
                stranger.tail(key),
                stranger.append(key, [user("x")]),
                stranger.gather(key, tokens=9, kinds=["pin"]),
                stranger.read(key),
                stranger.find(key, ids=["m"]),
                stranger.describe(key),
                stranger.erase(key, [1]),
                stranger.delete_session(key),
                stranger.scan(Scope(session=key)),
                stranger.get(Scope(session=key), "pin", "1"),
                stranger.drop(Scope(session=key), "pin", "1"),
                stranger.put(Scope(session=key), "pin", "1", 2),
            ):
                with pytest.raises(Exception, match="deleted"):
                    await call
            assert [s.id for s in await stranger.list_sessions()] == ["theirs"]
            assert await stranger.scan(Scope(owner="ana")) == []
            assert await stranger.owners() == []
            for owner in (None, "default"):
                assert await finder.unread(VIEW, owner=owner) == []
                found = await finder.places(VIEW, ["mine"], owner=owner)
                assert found == Found({"mine": []}, [])
                assert await finder.nearest(VECTORS, vector(1), owner=owner) == []
            places = [first_place(key, seq) for seq in (1, 2)]
            assert await finder.parts(VIEW, places) == []
            assert await finder.vectors(VECTORS, places) == {}
            assert await finder.fetch(places, kinds=["pin"]) == ([], [])
            await finder.drop_view(VIEW)
    finally:
        for (one,) in functions:
            postgres.execute(one)
    assert said(await store.tail(key)) == ["mine", "too"]
    assert await where(await store.finder(), "mine too") == [[1], [2]]


def make_visitor(postgres: PostgresServer) -> None:
    """Create a login that has the rights of keepthread_app and no others."""
    postgres.execute("DROP ROLE IF EXISTS visitor")
    postgres.execute("CREATE ROLE visitor LOGIN IN ROLE keepthread_app")


async def test_a_login_that_owns_nothing_is_enough(
    postgres: PostgresServer, store: PostgresStore
) -> None:
    make_visitor(postgres)
    async with await PostgresStore.open(postgres.url(user="visitor")) as visitor:
        (key,) = await fill(visitor, 1)
        assert said(await store.tail(key)) == ["mine", "too"]
        assert await where(await visitor.finder(), "mine too") == [[1], [2]]
        assert (await visitor.verify()).sound


# --- roles ---


@pytest.mark.parametrize("mode", ["session", "transaction"])
async def test_a_superuser_behind_a_pooler_is_refused(
    postgres: PostgresServer, store: PostgresStore, mode: Literal["session", "transaction"]
) -> None:
    with (
        pooled(postgres, mode) as url,
        pytest.raises(NotIsolated, match="a connection pooler in front of the server"),
    ):
        await PostgresStore.open(url)


async def test_a_login_without_special_rights_works_behind_a_pooler(
    postgres: PostgresServer, store: PostgresStore
) -> None:
    make_visitor(postgres)
    with pooled(postgres, "session", "visitor") as url:
        async with await PostgresStore.open(url) as visitor:
            (key,) = await fill(visitor, 1)
            assert said(await store.tail(key)) == ["mine", "too"]


async def test_a_superuser_is_refused_where_no_other_role_can_be_taken(
    postgres: PostgresServer, store: PostgresStore
) -> None:
    # Whoever migrated may have been unable to create the role that owns nothing.
    postgres.execute("ALTER ROLE keepthread_app RENAME TO somebody_else")
    try:
        with pytest.raises(NotIsolated, match="keepthread_app"):
            await PostgresStore.open(postgres.url())
    finally:
        postgres.execute("ALTER ROLE somebody_else RENAME TO keepthread_app")


async def test_every_new_connection_checks_its_role(
    postgres: PostgresServer, store: PostgresStore
) -> None:
    await fill(store, 1)
    postgres.execute("ALTER ROLE keepthread_app BYPASSRLS")
    try:
        kill = (
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
        )
        postgres.execute(kill + " AND backend_type = 'client backend'")
        with pytest.raises(NotIsolated):
            await store.list_sessions()
    finally:
        postgres.execute("ALTER ROLE keepthread_app NOBYPASSRLS")
    assert len(await store.list_sessions()) == 1


# --- plans ---

HOT = (
    "append append_with_care head seq_of sound first_of_tail tail read find gather scan get put"
    " drop is_there records_at name_sessions"
)
LOCALS = {
    "first": "bigint",
    "plain": "boolean",
    "start.seq": "bigint",
    "append_with_care.seq": "bigint",
    "source.place": "bigint",
}


def statements_of(source: str) -> Iterator[str]:
    """Yield the statements inside a function that look for rows."""
    look = r"\b(SELECT|DELETE FROM|UPDATE)\b.*\bkeepthread\.(messages|records|sessions)\b.*"
    source = re.sub(r"--.*", "", source).replace("PERFORM", "SELECT")
    for part in re.split(r";|\bLOOP\b|\bTHEN\b", source):
        behind = part.partition(")")[2] if "INSERT INTO" in part else part
        looking = re.split(r"\b(?:VALUES|RETURNING)\b", behind)[0]  # before it writes
        if found := re.search(look, looking, re.DOTALL):
            yield re.sub(r"\bINTO\s+\w+(, \w+)*(?=\s+FROM)", "", found[0])


def with_numbers(text: str, types: dict[str, str]) -> tuple[str, list[str]]:
    """Return a statement with $1 and so on for variables, and the types of these."""
    names = {name: rf"(?<![\w.]){re.escape(name)}\b" for name in types}
    used = [name for name, pattern in names.items() if re.search(pattern, text)]
    for number, name in enumerate(used, 1):
        text = re.sub(names[name], f"${number}", text)
    return text, [types[name] for name in used]


# What the planner believes of the tables when it makes plans that are kept.
BELIEFS = {
    "nothing": "TRUNCATE {}",
    "that they are empty": "TRUNCATE {0}; ANALYZE {0}",
    "what they hold": "ANALYZE {}",
}


@pytest.mark.parametrize("belief", BELIEFS)
async def test_every_hot_statement_reads_one_partition_by_its_index(
    postgres: PostgresServer, store: PostgresStore, belief: str
) -> None:
    if belief == "what they hold":
        await fill(store, 60)
    for table in TABLES:
        postgres.execute(BELIEFS[belief].format(f"keepthread.{table}"))
    functions = postgres.execute(
        "SELECT proname, prosrc, proargnames, proargtypes::regtype[]::text[] FROM pg_proc"
        " WHERE pronamespace = 'keepthread'::regnamespace AND proname = ANY (%s)",
        HOT.split(),
    )
    assert {name for name, *_ in functions} == set(HOT.split())
    db = await PgServer(postgres.url(), timeout=10).connect()
    seen = 0
    try:
        for name, source, names, types in functions:
            for text in statements_of(source):
                arguments = dict(zip(names, types, strict=False))
                plan = await _plan(db, *with_numbers(text, arguments | LOCALS))
                assert "Seq Scan" not in plan, (name, plan)
                assert not re.search(r"Sort\b(?! Key)", plan), (name, plan)
                assert "Index" in plan, (name, plan)
                for table in ("messages", "records"):
                    if f"keepthread.{table}" in text:
                        partitions = set(re.findall(rf"\bon ({table}_\d+)\b", plan))
                        assert len(partitions) == 1, (name, plan)
                        seen += 1
    finally:
        await db.close()
    assert seen >= 15


async def _plan(db: Any, text: str, types: list[str]) -> str:
    declared = f"({', '.join(types)})" if types else ""
    values = ", ".join("'{1}'" if one.endswith("[]") else "'1'" for one in types)
    await db.execute("DEALLOCATE ALL", prepare=False)
    await db.execute(f"PREPARE one {declared} AS {text}", prepare=False)
    cursor = await db.execute(f"EXPLAIN EXECUTE one ({values})", prepare=False)
    return "\n".join([line for (line,) in await cursor.fetchall()])


@pytest.mark.parametrize("belief", BELIEFS)
async def test_what_runs_reads_one_partition_by_its_index_and_little_of_it(
    postgres: PostgresServer, store: PostgresStore, belief: str
) -> None:
    keys = await fill(store, 60)
    ((tenant,),) = postgres.execute("SELECT tenant FROM keepthread.tenants")
    db = await PgServer(postgres.url(), timeout=10).connect()
    try:
        if belief != "what they hold":
            for table in TABLES:
                postgres.execute(BELIEFS[belief].format(f"keepthread.{table}"))
            await _check_scans(db, tenant, int(keys[0]))  # plans are made, and kept
            keys = await fill(store, 60)
        key = keys[0]
        await store.append(key, [user(f"{n}", tokens=10) for n in range(2000)])
        made_of = [Span(session=key, first=9, last=9)]
        await store.put(Scope(session=key), "pin", "2", 1, made_of=made_of)
        if belief == "what they hold":
            for table in TABLES:
                postgres.execute(BELIEFS[belief].format(f"keepthread.{table}"))
        await _check_scans(db, tenant, int(key))
    finally:
        await db.close()


async def _check_scans(db: Any, tenant: int, sid: int) -> None:
    at = (tenant, sid)
    view, word = VIEW.encode(), letters_of((tenant, VIEW), "mine")
    body = (b"new", 1, b"text", b"", 5, b"", 1.0, bytes(32))
    calls = {
        "append": ((*at, *body, None, None, 2e9), 2),
        "tail": ((*at, 100, None, 1 << 53, 0, 0), 80),
        "gather": ((*at, 100, 0, [b"pin"], [b"pin"], 9), 90),
        "read": ((*at, 1000, 1 << 53, 20), 20),
        "find": ((*at, [b"m"], [7]), 3),
        "scan": ((*at, b"", b"pin", None, None, None), 2),
        "get": ((*at, b"", b"pin", b"1"), 1),
        "put": (
            (
                *(*at, b"", b"", b"pin", b"3", b"1", None, None, None, None),
                *(b"place", [sid], [64], 0, [sid], [0], 1),
            ),
            5,
        ),
        "drop": ((*at, b"", b"pin", b"1", b"place", None, 1), 5),
        "updates": ((tenant, b"", b"fact", 1), 2),
        "made_of": ((*at, nodes_above([9])), 3),
        "drop_made_of": ((*at, [9], nodes_above([9])), 4),
        "name_sessions": ((*at, [b"s7"]), 3),
        "changes": ((tenant, None, "0", 0, 20), 21),
        "note_change": ((tenant, 1, sid, []), 2),
        "recount_messages": ((*at, [7, 8], [1, 1], [b"", b""], [70, 80], [b"", b""]), 2),
        "session_by_id": ((tenant, b"default", b"s7"), 3),
        "unread": ((tenant, view, None, sid, 1 << 22), 3),
        "index_words": ((tenant, view, sid, 0, 2, 2, *([[]] * 11)), 4),
        "places": ((tenant, view, [word], [0], b"default", None, 9, -1, 1 << 22), 61),
        "places_within": (
            (tenant, view, [word], [0], b"default", sid, 9, -1, 1 << 22, 0.0, 1e11, 15),
            60,
        ),
        "parts": ((tenant, view, [sid], [1 << 19]), 1),
        "fetch": ((tenant, [sid, sid], [1, 7], [b"pin"], sid), 4),
        "put_vectors": ((tenant, VECTORS.encode(), sid, 0, 2, 2, [], [], [], []), 4),
        "vectors_at": ((tenant, VECTORS.encode(), [sid], [1 << 19]), 1),
        "unindex": ((*at, [1]), 4),
    }
    for name, (values, most) in calls.items():
        try:
            scans = await _scans(db, name, values)
        except psycopg.Error as error:
            if error.sqlstate not in ("KT001", "KT002"):  # while plans are made, nothing is there
                raise
            continue
        assert all(seq_scan == 0 for _, seq_scan, _, _ in scans), (name, scans)
        for table in TABLES:
            used = [scan for scan in scans if scan[0].startswith(table)]
            assert len(used) <= 1, (name, scans)
            # Every 64th change looks at the last 64 readings of the clock, and at the oldest
            # changes; a loop reads ten at a time.
            looked = 64 + 10 if table == "changes" else 0
            assert sum(rows for *_, rows in used) <= most + looked, (name, scans)


async def _scans(db: Any, name: str, values: tuple[Any, ...]) -> list[Any]:
    """Return which tables a call scanned whole and by index, and how many rows the latter gave."""
    look = (
        "SELECT relname, seq_scan, coalesce(idx_scan, 0), coalesce(idx_tup_fetch, 0)"
        " FROM pg_stat_xact_user_tables WHERE schemaname = 'keepthread'"
    )
    async with db.transaction(force_rollback=True):
        before = {row[0]: row for row in await (await db.execute(look)).fetchall()}
        await db.execute(SQL["name_tenant"], (str(values[0]),))  # as a longer transaction does
        await db.execute(SQL[name], values, binary=True)
        after = await (await db.execute(look)).fetchall()
    return [
        (name, *(new - old for new, old in zip(row, before[name][1:], strict=True)))
        for name, *row in after
        if tuple(row) != before[name][1:]
    ]


# --- formats ---


def test_a_database_is_made_ready_once_however_many_begin_at_once(
    postgres: PostgresServer,
) -> None:
    url = postgres.create_database("cold")
    script = (
        "import asyncio, sys; from keepthread.stores.postgres import PostgresStore\n"
        "async def main():\n"
        "    async with await PostgresStore.open(sys.argv[1]) as s: await s.list_sessions()\n"
        "asyncio.run(main())"
    )
    started = [subprocess.Popen([sys.executable, "-c", script, url]) for _ in range(8)]
    assert [process.wait(timeout=60) for process in started] == [0] * 8
    numbers = postgres.execute(
        "SELECT number FROM keepthread.migrations ORDER BY 1", database="cold"
    )
    assert numbers == [(FORMAT,)]


async def test_a_newer_format_is_refused_by_name(postgres: PostgresServer) -> None:
    url = postgres.create_database("newer")
    await (await PostgresStore.open(url)).close()
    postgres.execute("INSERT INTO keepthread.migrations VALUES (99)", database="newer")
    with pytest.raises(WrongFormat, match=r"format 99.*newer keepthread"):
        await PostgresStore.open(url)


async def test_an_older_format_is_refused_with_the_commit_to_export_with(
    postgres: PostgresServer,
) -> None:
    url = postgres.create_database("older")
    await (await PostgresStore.open(url)).close()
    for number in (1, 15):
        postgres.execute(f"UPDATE keepthread.migrations SET number = {number}", database="older")
        for migrate in (True, False):
            with pytest.raises(WrongFormat, match=rf"format {number}, .*at commit 4ce31d9"):
                await PostgresStore.open(url, migrate=migrate)


async def test_who_may_not_migrate_is_told_what_to_do(postgres: PostgresServer) -> None:
    url = postgres.create_database("bare")
    with pytest.raises(WrongFormat, match="keepthread migrate"):
        await PostgresStore.open(url, migrate=False)
    postgres.execute("DROP ROLE IF EXISTS guest")
    postgres.execute("CREATE ROLE guest LOGIN")
    with pytest.raises(WrongFormat, match="keepthread migrate"):
        await PostgresStore.open(postgres.url("bare", user="guest"))


async def test_an_owner_who_may_make_no_roles_is_held_back_by_the_walls(
    postgres: PostgresServer,
) -> None:
    postgres.execute("DROP DATABASE IF EXISTS owned WITH (FORCE)")
    postgres.execute("DROP ROLE IF EXISTS landlord")
    postgres.execute("CREATE ROLE landlord LOGIN")
    postgres.execute("CREATE DATABASE owned OWNER landlord")
    url = postgres.url("owned", user="landlord")
    async with await PostgresStore.open(url) as store:
        await fill(store, 2)
        await fill(store.tenant("other"), 1)
        assert len(await store.list_sessions()) == 2
        assert await where(await store.finder(), "mine") == [[1, 1]]
    with psycopg.connect(url, autocommit=True) as db:
        for table in (*TABLES, "messages_0", "asked", "words_0"):
            assert db.execute(f"SELECT * FROM keepthread.{table}".encode()).fetchall() == []


# --- opening ---


@pytest.mark.parametrize(
    ("fsync", "commit", "standbys", "level"),
    [
        ("on", "on", "", "power"),
        ("on", "local", "", "power"),
        ("on", "off", "", "process"),
        ("off", "on", "", "process"),
        ("on", "on", "FIRST 1 (a)", "replicated"),
        ("on", "remote_apply", "*", "replicated"),
        ("on", "remote_write", "*", "replicated"),
        ("on", "local", "*", "power"),
        ("on", "off", "*", "process"),
    ],
)
def test_durability_is_what_the_settings_give(
    fsync: str, commit: str, standbys: str, level: str
) -> None:
    assert durability_of(fsync, commit, standbys) == level


async def test_less_durability_than_was_asked_for_is_refused(postgres: PostgresServer) -> None:
    async with await PostgresStore.open(postgres.url()) as store:
        assert store.durability == "process"
    with pytest.raises(DurabilityTooLow, match="fsync off"):
        await PostgresStore.open(postgres.url(), durability="power")


async def test_a_server_with_its_own_settings_survives_a_power_cut() -> None:
    server = new_server(fsync="on")
    try:
        async with await PostgresStore.open(server.url(), durability="power") as store:
            assert store.durability == "power"
        with pytest.raises(DurabilityTooLow, match="replicated"):
            await PostgresStore.open(server.url(), durability="replicated")
        server.execute("ALTER DATABASE keepthread SET synchronous_commit = off")
        with pytest.raises(DurabilityTooLow, match="synchronous_commit off"):
            await PostgresStore.open(server.url(), durability="power")
    finally:
        server.close()


async def test_what_cannot_be_opened_is_an_error_at_once(postgres: PostgresServer) -> None:
    with pytest.raises(InvalidInput, match="URL"):
        await PostgresStore.open("postgresql://[half/an/address")
    for url in (postgres.url("nowhere"), "postgresql://postgres@127.0.0.1:1/x"):
        async with asyncio.timeout(5):
            with pytest.raises(Unavailable):
                await PostgresStore.open(url)
