"""The tables of a server on every store: API keys, secrets, requests and the audit log."""

from pathlib import Path

import psycopg
import pytest

from keepthread.errors import Unsupported
from keepthread.protocols import Store
from keepthread.stores.outbox.store import OutboxStore
from keepthread.stores.postgres import PostgresStore
from keepthread.stores.ram import RamStore
from keepthread.stores.redis import RedisStore
from keepthread.stores.sqlite import SQLiteStore
from keepthread.testing.contract import new_session
from keepthread.testing.tables import DIGEST, NOW, REQUEST, TablesContract, a_key, an_entry
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
        ):
            with pytest.raises(Unsupported, match="keepthread_server"):
                await call
        assert (await store.clean()).found == 0
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
        await tables.audit(an_entry("a"))
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
