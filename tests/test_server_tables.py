"""The tables of a server on every store: API keys, secrets, requests and the audit log."""

import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from keepthread import Memory, Options
from keepthread.errors import Damaged, Unsupported
from keepthread.protocols import Store
from keepthread.protocols.server import KEPT
from keepthread.stores.outbox.store import OutboxStore
from keepthread.stores.postgres import PostgresStore
from keepthread.stores.ram import RamStore
from keepthread.stores.redis import RedisStore
from keepthread.stores.redis.keys import SERVER
from keepthread.stores.sqlite import SQLiteStore
from keepthread.testing.contract import Letters, new_session
from keepthread.testing.tables import ANSWER, DIGEST, NOW, REQUEST, TablesContract, a_key, an_entry
from servers.pgbouncer import pooled
from servers.postgres import PostgresServer
from servers.redis import RedisCluster, RedisServer


class TestRamTables(TablesContract):
    async def open_store(self, folder: Path) -> Store:
        return RamStore()


class TestSQLiteTables(TablesContract):
    async def open_store(self, folder: Path) -> Store:
        return await SQLiteStore.open(folder / "store.db")


class TestPostgresTables(TablesContract):
    @pytest.fixture(autouse=True)
    def _server(self, postgres: PostgresServer) -> None:
        self.url = postgres.empty()

    async def open_store(self, folder: Path) -> Store:
        return await PostgresStore.open(self.url)


class TestRedisTables(TablesContract):
    @pytest.fixture(autouse=True)
    def _server(self, redis_server: RedisServer) -> None:
        redis_server.ask("FLUSHALL")
        self.url = redis_server.url

    async def open_store(self, folder: Path) -> Store:
        return await RedisStore.open(self.url)


class TestRedisClusterTables(TablesContract):
    @pytest.fixture(autouse=True)
    def _server(self, redis_cluster: RedisCluster) -> None:
        redis_cluster.flush()
        self.url = redis_cluster.url

    async def open_store(self, folder: Path) -> Store:
        return await RedisStore.open(self.url)


async def test_a_store_with_an_outbox_has_no_tables(tmp_path: Path) -> None:
    target = tmp_path / "target.db"
    async with await OutboxStore.open(
        tmp_path / "outbox.db", lambda: SQLiteStore.open(target), target="file"
    ) as store:
        with pytest.raises(Unsupported, match="without the outbox"):
            store.server_tables()


async def test_requests_last_for_a_day_in_redis(redis_server: RedisServer) -> None:
    redis_server.ask("FLUSHALL")
    async with await RedisStore.open(redis_server.url) as store:
        tables = store.server_tables()
        before = set(redis_server.ask("KEYS", "*"))

        def last() -> float:
            names = set(redis_server.ask("KEYS", "*")) - before - {SERVER.requesting.encode()}
            assert names
            return min(redis_server.ask("PTTL", name) for name in names) / 1000

        begun = await tables.begin_request(REQUEST, DIGEST, NOW)
        assert last() >= KEPT
        assert await tables.renew_request(REQUEST, begun.token, NOW + 1)
        assert last() >= KEPT
        assert await tables.end_request(REQUEST, begun.token, ANSWER)
        assert last() >= KEPT


# --- rights on PostgreSQL ---

TABLES = ("api_keys", "secrets", "requests", "audit")


def new_login(postgres: PostgresServer, name: str, *roles: str) -> str:
    """Create a login with some roles and nothing else, and return how to connect as it."""
    postgres.execute(f"DROP ROLE IF EXISTS {name}")
    postgres.execute(f"CREATE ROLE {name} LOGIN IN ROLE {', '.join(roles)}")
    return postgres.url(user=name)


async def test_the_role_of_programs_cannot_use_the_tables(postgres: PostgresServer) -> None:
    async with await PostgresStore.open(postgres.empty()) as store:
        await store.server_tables().add_key(a_key("k"))
    program = new_login(postgres, "program", "keepthread_app")
    async with await PostgresStore.open(program) as store:
        tables = store.server_tables()
        for call in (
            tables.get_key("k"),
            tables.add_key(a_key("mine")),
            tables.secret("cursor"),
            tables.begin_request(REQUEST, DIGEST, NOW),
            tables.audit(an_entry("a")),
            tables.prune_audit(NOW),
        ):
            with pytest.raises(Unsupported, match="keepthread_server"):
                await call
        assert not (await store.clean()).found
    with psycopg.connect(postgres.url(), autocommit=True) as db:
        db.execute("SET ROLE keepthread_app")
        for table in TABLES:
            for statement in (
                "SELECT * FROM {}",
                "DELETE FROM {}",
                "INSERT INTO {} DEFAULT VALUES",
            ):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    db.execute(statement.format(f"keepthread.{table}").encode())


async def test_the_role_of_servers_is_enough_for_the_tables_and_for_nothing_else(
    postgres: PostgresServer,
) -> None:
    async with await PostgresStore.open(postgres.empty()):
        pass
    login = new_login(postgres, "api", "keepthread_app", "keepthread_server")
    async with await PostgresStore.open(login) as store:
        tables = store.server_tables()
        await tables.add_key(a_key("k"))
        assert await tables.get_key("k") == a_key("k")
        for at in (NOW, NOW, time.time(), time.time()):
            await tables.audit(an_entry("a", at=at))
        assert await tables.prune_audit(time.time() + 9) == 2  # none of the last 30 days
    with psycopg.connect(login, autocommit=True) as db:
        db.execute("SET ROLE keepthread_server")
        for statement in (
            "SELECT * FROM keepthread.sessions",
            "SELECT * FROM keepthread.tenants",
            "UPDATE keepthread.audit SET data = ''",
            "DELETE FROM keepthread.audit",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                db.execute(statement.encode())


async def test_tables_are_used_behind_a_pooler(postgres: PostgresServer) -> None:
    async with await PostgresStore.open(postgres.empty()):
        pass
    new_login(postgres, "api", "keepthread_app", "keepthread_server")
    with pooled(postgres, "session", "api") as url:
        async with await PostgresStore.open(url) as store:
            tables = store.server_tables()
            for number in range(3):
                await tables.add_key(a_key(f"k{number}"))
                await new_session(store, f"s{number}")
            assert len(await tables.list_keys()) == len(await store.list_sessions()) == 3


# --- files ---


async def test_what_is_forgotten_leaves_the_answers_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    said = "the number is 555-0199"
    memory = Memory(await SQLiteStore.open(path, tenant="acme"), Options(counter=Letters()))
    async with memory:
        tables = memory.store.server_tables()
        session = await memory.session("s", owner="ana")
        await session.add_message("user", said)
        begun = await tables.begin_request(REQUEST, DIGEST, NOW)
        await tables.end_request(REQUEST, begun.token, ANSWER._replace(body=said.encode()))
        assert said.encode() in path.read_bytes() + path.with_name("store.db-wal").read_bytes()
        await memory.forget(session="s", owner="ana")
        again = await tables.begin_request(REQUEST, DIGEST, NOW)
        assert again.answer == ANSWER._replace(body=None)
    for file in tmp_path.iterdir():
        assert said.encode() not in file.read_bytes()


async def test_a_damaged_row_is_an_error_and_verify_names_it(tmp_path: Path) -> None:
    async with await SQLiteStore.open(tmp_path / "store.db", tenant="acme") as store:
        tables = store.server_tables()
        for id, tenant in (("mine", "acme"), ("theirs", "other")):
            await tables.add_key(a_key(id, tenant, scopes=frozenset(("read",))))
        await tables.audit(an_entry("keys.create"))
        begun = await tables.begin_request(REQUEST, DIGEST, NOW)
        await tables.end_request(REQUEST, begun.token, ANSWER)
        with closing(sqlite3.connect(tmp_path / "store.db")) as db, db:
            for table in ("api_keys", "audit"):
                changed = "CAST(replace(CAST(data AS TEXT), 'e', 'i') AS BLOB)"
                db.execute(f"UPDATE {table} SET data = {changed}")
            db.execute("UPDATE requests SET body = x'00'")
        for call in (
            tables.get_key("mine"),
            tables.list_keys(),
            tables.revoke_key("mine", NOW),
            tables.list_audit(),
            tables.begin_request(REQUEST, DIGEST, NOW),
        ):
            with pytest.raises(Damaged, match="server's tables is damaged"):
                await call
        assert [damage.what for damage in (await store.verify()).damages] == [
            "the API key 'mine' is corrupted",
            "an API key is corrupted",
            "entry 1 of the audit log is corrupted",
        ]


# --- several processes ---

RACE = """
import asyncio, sys
from keepthread.stores.url import store_at
from keepthread.testing.tables import DIGEST, NOW, REQUEST

async def main() -> None:
    async with await store_at(sys.argv[1])() as store:
        tables = store.server_tables()
        secret = (await tables.secret("cursor")).hex()
        sys.stdin.readline()
        requests = [REQUEST._replace(key=str(number)) for number in range(20)]
        begun = [await tables.begin_request(each, DIGEST, NOW) for each in requests]
        print(secret, *(each.state for each in begun))

asyncio.run(main())
"""


@pytest.mark.parametrize("where", ["sqlite", "postgres", "redis"])
def test_of_several_processes_one_does_each_request(
    where: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    if where == "postgres":
        url = request.getfixturevalue("postgres").empty()
    elif where == "redis":
        server = request.getfixturevalue("redis_server")
        server.ask("FLUSHALL")
        url = server.url
    command = [sys.executable, "-c", RACE, url]
    racers = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    answers = [racer.communicate(timeout=120)[0].split() for racer in racers]
    secrets, *states = zip(*answers, strict=True)
    assert len(set(secrets)) == 1
    assert [sorted(each) for each in states] == [["in_flight", "in_flight", "new"]] * 20
