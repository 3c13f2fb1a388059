"""Tenants are listed and deleted: all of one, nothing of another, and what is new begins anew."""

import asyncio
import random
from pathlib import Path

import psycopg
import pytest

from keepthread import Memory, Message, Options, Scope, SessionInfo, sync
from keepthread.errors import InvalidInput, NotFound, SessionGone, Unsupported
from keepthread.protocols import Store
from keepthread.stores.outbox.store import OutboxStore
from keepthread.stores.postgres import PostgresStore
from keepthread.stores.redis import RedisStore
from keepthread.stores.redis.keys import TENANTS, index_of, records_place
from keepthread.stores.sqlite import SQLiteStore
from keepthread.testing.contract import Letters, new_session, user
from keepthread.testing.embeddings import ScriptedEmbedder
from keepthread.testing.finding import embed, read_on
from servers.postgres import PostgresServer
from servers.redis import RedisServer
from tests.every_store import store
from tests.seeds import SEED

__all__ = ["store"]

SECRET = "the number is 555-0199, and nobody else has it"
OF_TENANTS = (
    *("sessions", "messages", "records", "changes", "trimmed"),
    *("readings", "segments", "words", "vectors"),
)


@pytest.fixture
def many(store: Store) -> Store:
    """Give a store that serves several tenants."""
    if isinstance(store, OutboxStore):
        pytest.skip("an outbox belongs to one tenant")
    return store


async def fill(memory: Memory, sessions: int = 2) -> None:
    """Store something in every place of a tenant."""
    for number in range(sessions):
        session = await memory.session(f"s{number}", owner="ana", title=SECRET)
        async with session.turn(f"{SECRET} {number}") as turn:
            await turn.context()
            await turn.finish("Noted.")
        await session.pin(turn.user.id)
    await memory.store.put(Scope(owner="bea"), "diary", "1", SECRET)
    await memory.store.put(Scope(), "setting", "1", SECRET)
    if await memory.store.finder() is not None:
        await memory.admin.index()
    await memory.idle()


async def test_a_handle_of_a_deleted_tenant_begins_from_nothing(many: Store) -> None:
    options = Options(counter=Letters(), embedder=ScriptedEmbedder(), keep_why=2)
    memory = Memory(many, options)
    here = memory.tenant("acme")
    for tenant in (memory, here):
        await fill(tenant)
    session = await here.get_session("s0", owner="ana")
    searchable = await many.finder() is not None
    if searchable:
        assert len(await here.search("number", owner="ana")) == 4
        await here.for_owner("ana").facts.remember("Likes tea.")
    await memory.admin.delete_tenant("acme")

    assert memory.tenant("acme") is here
    assert await memory.admin.list_tenants() == ["default"]
    assert await here.admin.list_sessions() == []
    assert await here.admin.receipts() == []
    with pytest.raises(SessionGone):
        await session.append(Message(role="user", content="late"))
    if searchable:
        assert await here.search("number", owner="ana") == []
        assert await here.for_owner("ana").facts.list() == []
        assert len(await memory.search("number", owner="ana")) == 4  # of another tenant
    await fill(here, sessions=1)
    new = await here.get_session("s0", owner="ana")
    assert [message.seq for message in await new.messages()] == [1, 2]
    if searchable:
        assert len(await here.search("number", owner="ana")) == 2
        records = {record.kind for record in await here.store.scan(Scope())}
        assert records == {"setting", "vectors"}
    await (memory.tenant("another")).session("s")
    page = await memory.admin.list_tenants(limit=2)
    assert (page, await memory.admin.list_tenants(cursor=page.next)) == (
        ["acme", "another"],
        ["default"],
    )
    assert (await here.admin.verify()).sound
    await memory.idle()


async def test_what_cannot_be_listed_or_deleted_is_refused(store: Store) -> None:
    memory = Memory(store, Options(counter=Letters()))
    await memory.session("s")
    page = await memory.admin.list_tenants(limit=0)
    assert (page, page.next) == ([], None)
    sessions = await memory.admin.list_sessions(limit=0)
    for cursor in ("", "x", sessions.next):
        if cursor is not None:
            with pytest.raises(InvalidInput, match="cursor"):
                await memory.admin.list_tenants(cursor=cursor)
    with pytest.raises(InvalidInput, match="as another tenant"):
        await memory.admin.delete_tenant("default")
    with pytest.raises(NotFound, match="'nobody'"):
        await memory.admin.delete_tenant("nobody")
    assert await memory.admin.list_tenants() == ["default"]
    assert len(await memory.admin.list_sessions()) == 1


async def test_a_store_with_an_outbox_deletes_other_tenants(tmp_path: Path) -> None:
    target = tmp_path / "target.db"
    async with Memory.open(f"sqlite:///{target}", tenant="acme", counter=Letters()) as memory:
        await fill(memory)
    url, outbox = f"sqlite:///{target}", str(tmp_path / "a.outbox")
    async with Memory.open(url, outbox=outbox, counter=Letters()) as memory:
        await memory.session("s")
        assert await memory.admin.list_tenants() == ["acme", "default"]
        await memory.admin.delete_tenant("acme")
        assert await memory.admin.list_tenants() == ["default"]


async def test_an_interrupted_deletion_stays_in_the_list_and_is_completed(many: Store) -> None:
    rng = random.Random(SEED)
    await new_session(many)
    for number in range(6):
        name = f"t{number}"
        tenant = many.tenant(name)
        for each in range(30):
            key = await new_session(tenant, f"s{each}")
            if each < 3:
                await tenant.append(key, [user("a"), user("b")])
        await tenant.put(Scope(owner="ana"), "fact", "1", 1)
        deleting = asyncio.create_task(many.drop_tenant(name))
        for _ in range(rng.choice([0, 1, 3, 10, 30, 100])):
            await asyncio.sleep(0)
        deleting.cancel()
        await asyncio.wait([deleting])
        left = (await tenant.verify())[:3]
        listed = name in await many.tenants()
        assert listed or left == (0, 0, 0), SEED
        if listed:
            await many.drop_tenant(name)
        assert (await tenant.verify())[:3] == (0, 0, 0), SEED
        if not isinstance(many, RedisStore):  # its index keeps new entries for a minute
            assert await many.tenants() == ["default"]


async def test_what_others_write_during_a_deletion_can_be_deleted_after_it(many: Store) -> None:
    await new_session(many)
    tenant = many.tenant("acme")

    async def write() -> None:
        for number in range(15):
            try:
                key = await new_session(tenant, f"s{number}")
                await tenant.append(key, [user("a")])
                await tenant.put(Scope(session=key), "pin", "1", 1)
            except SessionGone:
                continue

    await new_session(tenant, "first")
    await asyncio.gather(write(), many.drop_tenant("acme"), write_owner(tenant))
    if (await tenant.verify())[:3] != (0, 0, 0):
        assert (await tenant.verify()).sound
        assert "acme" in await many.tenants()
        await many.drop_tenant("acme")
    assert (await tenant.verify())[:3] == (0, 0, 0)
    assert (await many.verify()).sessions == 1


async def write_owner(tenant: Store) -> None:
    for number in range(10):
        await tenant.put(Scope(owner="ana"), "fact", str(number), 1)


# --- what is left ---


async def test_no_byte_of_a_deleted_tenant_is_left_in_the_file(tmp_path: Path) -> None:
    async with Memory.open(f"sqlite:///{tmp_path}/a.db", counter=Letters()) as memory:
        await memory.session("s")
        await fill(memory.tenant("a tenant of that name"))
        cleaning = await memory.admin.delete_tenant("a tenant of that name")
        assert not cleaning.again
        assert cleaning.done
        assert await memory.admin.list_tenants() == ["default"]
    for path in tmp_path.iterdir():
        for text in ("555-0199", "a tenant of that name"):
            assert text.encode() not in path.read_bytes(), path.name


async def test_no_row_of_a_deleted_tenant_is_left_in_postgres(postgres: PostgresServer) -> None:
    async with await PostgresStore.open(postgres.empty()) as store:
        for name in ("acme", "default"):
            tenant = store.tenant(name)
            for number in range(3):
                key = (await tenant.put_session(SessionInfo(id=f"s{number}"))).key
                await tenant.append(key, [user(f"{SECRET} {n}") for n in range(5)])
                await tenant.put(Scope(session=key), "pin", "1", 1)
            await tenant.put(Scope(owner="ana"), "fact", "1", SECRET)
            await read_on(tenant)
            await embed(tenant)
        count = " UNION ALL ".join(f"SELECT tenant FROM keepthread.{t}" for t in OF_TENANTS)
        both = f"SELECT tenant, count(*) FROM ({count}) x GROUP BY tenant ORDER BY tenant"
        before = dict(postgres.execute(both))
        ((number,),) = postgres.execute("SELECT tenant FROM keepthread.tenants WHERE name = 'acme'")

        # In steps of about as many rows as it is told; it is listed until the last.
        postgres.execute("SELECT keepthread.begin_drop('acme')")
        steps = []
        while not steps or steps[-1]:
            assert await store.tenants() == ["acme", "default"]
            steps += postgres.execute(f"SELECT keepthread.drop_some({number}, 4)")[0]
        assert steps[:8] == [6, 6, 6, 4, 4, 4, 3, 4]  # sessions, messages, records
        assert max(steps[8:]) == 4  # changes
        assert steps[-1] == 0
        cleaning = await store.drop_tenant("acme", rewrite=True)
        assert await store.tenants() == ["default"]
        assert not any("tables" in residue.where for residue in cleaning.residues)
        assert dict(postgres.execute(both)) == {t: n for t, n in before.items() if t != number}
        # A process that remembers the tenant's number finds the same tenant again.
        await store.tenant("acme").put(Scope(), "setting", "1", 1)
        assert await store.tenants() == ["acme", "default"]
        assert len(postgres.execute("SELECT name FROM keepthread.tenants")) == 2


async def test_listing_and_deleting_read_nothing_of_other_tenants(
    postgres: PostgresServer,
) -> None:
    async with await PostgresStore.open(postgres.empty()) as store:
        for name in ("acme", "default", "z"):
            key = (await store.tenant(name).put_session(SessionInfo(id="s"))).key
            await store.tenant(name).append(key, [user("a")])
        await store.drop_tenant("z")
        ((number,),) = postgres.execute("SELECT tenant FROM keepthread.tenants WHERE name = 'acme'")
    scanned = (
        "SELECT relname FROM pg_stat_xact_all_tables"
        " WHERE schemaname = 'keepthread' AND relname <> 'tenants' AND seq_scan > 0"
    )
    with psycopg.connect(postgres.url()) as db:
        db.execute("ANALYZE keepthread.sessions, keepthread.records")
        db.commit()
        listed = db.execute("SELECT * FROM keepthread.list_tenants('', 10)").fetchall()
        assert listed == [(b"acme", True), (b"default", True), (b"z", False)]
        assert db.execute(scanned).fetchall() == []
        db.rollback()
        db.execute("SET enable_seqscan = off")
        db.execute("SET enable_bitmapscan = off")
        while db.execute(f"SELECT keepthread.drop_some({number}, 9)".encode()).fetchone() != (0,):
            pass
        assert db.execute(scanned).fetchall() == []


async def test_only_the_owner_of_the_tables_lists_and_deletes_tenants(
    postgres: PostgresServer,
) -> None:
    for role, rights in (("tenant_visitor", "IN ROLE keepthread_app"), ("tenant_operator", "")):
        postgres.execute(f"DROP ROLE IF EXISTS {role}")
        postgres.execute(f"CREATE ROLE {role} LOGIN {rights}")
    url = postgres.create_database("tenanted")
    postgres.execute("GRANT CREATE ON DATABASE tenanted TO tenant_operator")
    postgres.execute("GRANT keepthread_app TO tenant_operator")
    try:
        async with await PostgresStore.open(
            postgres.url("tenanted", user="tenant_operator")
        ) as store:
            await new_session(store.tenant("acme"))
            await store.put(Scope(), "setting", "1", 1)
            async with await PostgresStore.open(
                postgres.url("tenanted", user="tenant_visitor")
            ) as visitor:
                await visitor.put(Scope(), "setting", "1", 1)
                for call in (visitor.tenants(), visitor.drop_tenant("acme")):
                    with pytest.raises(Unsupported, match="owner of keepthread's tables"):
                        await call
            assert await store.tenants() == ["acme", "default"]
            await store.drop_tenant("acme")
            assert await store.tenants() == ["default"]
        with psycopg.connect(url, autocommit=True) as db:
            db.execute("SET ROLE keepthread_app")
            for statement in ("list_tenants('', 9)", "begin_drop('default')", "end_drop('a')"):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    db.execute(f"SELECT keepthread.{statement}".encode())
    finally:
        postgres.execute('DROP DATABASE "tenanted" WITH (FORCE)', database="postgres")
        for role in ("tenant_visitor", "tenant_operator"):
            postgres.execute(f"DROP OWNED BY {role}")
            postgres.execute(f"DROP ROLE {role}")


async def test_no_key_of_a_deleted_tenant_is_left_in_redis(redis_server: RedisServer) -> None:
    redis_server.ask("FLUSHALL")
    async with Memory.open(redis_server.url, counter=Letters()) as memory:
        await memory.session("s")
        before = set(redis_server.ask("KEYS", "*"))
        await fill(memory.tenant("acme"), sessions=3)
        await memory.tenant("acme").store.put(Scope(owner="ana"), "diary", "1", SECRET)
        assert set(redis_server.ask("KEYS", "*")) > before
        await memory.admin.delete_tenant("acme")
        last = index_of("acme").last
        assert set(redis_server.ask("KEYS", "*")) == before | {last.encode()}
        assert 0 < redis_server.ask("PTTL", last) <= 86_400_000
        # What the list does not name, because an earlier program wrote it, is deleted as well.
        await memory.tenant("acme").store.put(Scope(), "setting", "1", 1)
        redis_server.ask("DEL", TENANTS)
        await memory.admin.delete_tenant("acme")
        assert not redis_server.ask("EXISTS", records_place("acme", "").records)


async def test_damaged_sessions_are_deleted_too(tmp_path: Path, redis_server: RedisServer) -> None:
    redis_server.ask("FLUSHALL")
    async with Memory.open(redis_server.url, counter=Letters()) as memory:
        session = await memory.tenant("acme").session("s", owner="ana")
        redis_server.ask("ZADD", index_of("acme").sessions, 5, "damaged")
        for name in redis_server.ask("KEYS", "*:session"):
            redis_server.ask("HSET", name, "record", "damaged")
        await memory.admin.delete_tenant("acme")
        assert await memory.admin.list_tenants() == []
        assert redis_server.ask("KEYS", "*:session") == []
        del session
    path = tmp_path / "a.db"
    async with await SQLiteStore.open(path) as store:
        key = await new_session(store.tenant("acme"), owner="ana")
        await store.tenant("acme").append(key, [user(SECRET)])
        await read_on(store.tenant("acme"))
        await store.backend.engine.write(lambda db: db.execute("UPDATE sessions SET guard = 0"))
        await store.drop_tenant("acme")
        assert await store.tenants() == []
    assert b"555-0199" not in path.read_bytes()


def test_the_blocking_twin_lists_and_deletes_too() -> None:
    with sync.Memory.open("ram://") as memory:
        memory.tenant("acme").session("s")
        assert memory.admin.list_tenants(limit=5) == ["acme"]
        memory.admin.delete_tenant("acme")
        assert memory.admin.list_tenants() == []
