"""PostgreSQL: what happens when the server restarts, hangs, loses an answer or cannot write."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from keepthread import Scope, SessionInfo
from keepthread.errors import (
    Busy,
    DurabilityTooLow,
    ReadOnly,
    Stale,
    StorageFull,
    StoreClosed,
    Unavailable,
)
from keepthread.stores.postgres import PostgresStore
from keepthread.stores.postgres.engine import PgConnection, PgLink, Pool
from keepthread.stores.postgres.schema import SQL
from keepthread.testing.contract import said, user
from keepthread.types import Durability
from proofs.interposed import cancel_caller
from servers.postgres import PostgresServer, new_server
from servers.proxy import Proxy


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """Give a server of our own, to be hurt."""
    server = new_server()
    yield server
    server.close()


@pytest.fixture
async def proxy(server: PostgresServer) -> AsyncIterator[Proxy]:
    server.empty()
    async with Proxy(server.port).listening() as proxy:
        yield proxy


async def behind(proxy: Proxy, deadline: float = 10.0) -> PostgresStore:
    url = f"postgresql://postgres@127.0.0.1:{proxy.port}/keepthread"
    return await PostgresStore.open(url, deadline=deadline)


async def session_of(store: PostgresStore) -> Any:
    return (await store.put_session(SessionInfo(id="s"))).key


# --- the server goes and comes back ---


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT])
async def test_a_restart_under_load_loses_nothing_and_shows_nobody_an_error(
    server: PostgresServer, how: signal.Signals
) -> None:
    async with await PostgresStore.open(server.empty()) as store:
        key = await session_of(store)
        acknowledged: list[str] = []

        async def write(writer: int) -> None:
            for n in range(60):
                (made,) = await store.append(key, [user(f"{writer}:{n}")])
                acknowledged.append(made.content)
                await asyncio.sleep(0.005)

        writing = asyncio.gather(*(write(writer) for writer in range(4)))
        for _ in range(2):
            await asyncio.sleep(0.1)
            await asyncio.to_thread(server.restart, how=how)
        await writing
        log = await store.read(key, limit=1000)
        assert sorted(said(log)) == sorted(acknowledged)
        for writer in range(4):
            mine = [text for text in said(log) if text.startswith(f"{writer}:")]
            assert mine == [f"{writer}:{n}" for n in range(60)]


async def test_reading_goes_on_after_a_restart(server: PostgresServer) -> None:
    async with await PostgresStore.open(server.empty()) as store:
        key = await session_of(store)
        await store.append(key, [user("a")])
        await asyncio.gather(*(store.tail(key) for _ in range(8)))
        await asyncio.to_thread(server.restart)
        found = await asyncio.gather(*(store.tail(key) for _ in range(8)))
        assert [said(tail) for tail in found] == [["a"]] * 8


async def test_what_cannot_be_repeated_is_not_sent_on_a_dead_line(server: PostgresServer) -> None:
    async with await PostgresStore.open(server.empty()) as store:
        for n in range(3):
            key = (await store.put_session(SessionInfo(id=f"s{n}"))).key
            await asyncio.to_thread(server.restart)
            await store.delete_session(key)
            assert await store.get_session(f"s{n}") is None
            await asyncio.to_thread(server.restart)
            version = await store.put(Scope(), "k", f"{n}", n, version=0)
            record = await store.get(Scope(), "k", f"{n}")
            # Put once: a second attempt would have been refused, or have a later version.
            assert record is not None
            assert (record.value, record.version) == (n, version)
            await asyncio.to_thread(server.restart)
        assert [record.value for record in await store.scan(Scope(), "k")] == [0, 1, 2]
        assert await store.list_sessions() == []


async def test_a_server_that_stops_waiting_for_its_standby_is_noticed() -> None:
    primary = new_server(fsync="on")
    try:
        standby = primary.standby()
    except BaseException:
        primary.close()
        raise
    try:
        primary.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
        primary.execute("SELECT pg_reload_conf()")
        async with (
            await PostgresStore.open(primary.url(), durability="replicated") as strict,
            await PostgresStore.open(primary.url()) as easy,
        ):
            key = await session_of(strict)
            await easy.append(key, [user("a")])
            assert easy.durability == "replicated"
            primary.execute("ALTER SYSTEM RESET synchronous_standby_names")
            primary.execute("SELECT pg_reload_conf()")
            async with asyncio.timeout(10):
                while easy.durability == "replicated":
                    await easy.append(key, [user("b")])
            assert easy.durability == "power"
            await asyncio.sleep(1.1)  # it asks once a second
            for _ in range(3):
                with pytest.raises(DurabilityTooLow, match="replicated"):
                    await strict.append(key, [user("c")])
    finally:
        primary.close()
        standby.close()


@pytest.mark.parametrize("ports", ["{silent},{there}", "{silent},{away},{there}"])
async def test_a_silent_host_leaves_time_for_the_others(server: PostgresServer, ports: str) -> None:
    server.empty()
    async with Proxy(server.port).listening() as silent:
        silent.hangs = True
        names = ports.format(silent=silent.port, away=1, there=server.port).split(",")
        hosts = ",".join(f"127.0.0.1:{port}" for port in names)
        url = f"postgresql://postgres@{hosts}/keepthread"
        async with await PostgresStore.open(url, deadline=6) as store:
            key = await session_of(store)
            asked = silent.accepted
            assert asked
            await asyncio.gather(*(store.append(key, [user(str(n))]) for n in range(8)))
            assert silent.accepted == asked  # who answered is asked first from then on
            assert len(await store.read(key)) == 8


@pytest.mark.serial
async def test_a_server_that_is_away_is_an_error_within_the_deadline(
    server: PostgresServer,
) -> None:
    async with await PostgresStore.open(server.empty(), deadline=0.5) as store:
        key = await session_of(store)
        await asyncio.to_thread(server.stop)
        try:
            for call in (
                store.append(key, [user("a")]),
                store.tail(key),
                store.list_sessions(),
                store.put(Scope(), "k", "k", 1),
            ):
                began = time.monotonic()
                with pytest.raises(Unavailable, match="PostgreSQL"):
                    await call
                assert time.monotonic() - began < 3
        finally:
            await asyncio.to_thread(server.start)
        assert await store.tail(key) == []


@pytest.mark.parametrize("asked", ["replicated", None])
async def test_writes_follow_the_primary_after_a_failover(asked: Durability | None) -> None:
    primary = new_server(fsync="on")
    try:
        standby = primary.standby()
    except BaseException:
        primary.close()
        raise
    try:
        primary.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
        primary.execute("SELECT pg_reload_conf()")
        await fail_over(primary, standby, asked)
    finally:
        primary.close()
        standby.close()


async def fail_over(
    primary: PostgresServer, standby: PostgresServer, asked: Durability | None
) -> None:
    hosts = f"127.0.0.1:{primary.port},127.0.0.1:{standby.port}"
    url = f"postgresql://postgres@{hosts}/keepthread"
    async with await PostgresStore.open(url, durability=asked, deadline=20) as store:
        assert store.durability == "replicated"
        key = await session_of(store)
        made = [(await store.append(key, [user(str(n))]))[0] for n in range(20)]
        await asyncio.to_thread(primary.stop, how=signal.SIGQUIT)
        standby.execute("SELECT pg_promote()", database="postgres")
        if asked:
            with pytest.raises(DurabilityTooLow, match="replicated"):
                await store.append(key, [user("no")])
        else:
            made += await store.append(key, [user("after")])
            assert store.durability == "power"
            assert await store.read(key) == made


# --- the network ---


async def test_an_append_whose_answer_was_lost_is_stored_once(
    server: PostgresServer, proxy: Proxy
) -> None:
    async with await behind(proxy) as store:
        key = await session_of(store)
        await store.append(key, [user("before")])
        for batch in ([user("one")], [user("two"), user("three")]):
            proxy.lose_answers = 1
            made = await store.append(key, batch)
            assert said(made) == said(batch)
            assert await store.find(key, ids=[m.id for m in made]) == made
        proxy.lose_answers = 1
        made = await store.append(key, [user("expected")], expect=4)
        assert made[0].seq == 5
        assert said(await store.tail(key)) == ["before", "one", "two", "three", "expected"]


async def test_a_put_with_a_version_whose_answer_was_lost_is_not_tried_again(
    proxy: Proxy,
) -> None:
    async with await behind(proxy) as store:
        await store.put(Scope(), "k", "other", 0, version=0)
        proxy.lose_answers = 1
        with pytest.raises(Unavailable):
            await store.put(Scope(), "k", "k", 1, version=0)
        record = await store.get(Scope(), "k", "k")
        assert record is not None
        with pytest.raises(Stale):
            await store.put(Scope(), "k", "k", 2, version=0)
        proxy.lose_answers = 1
        assert await store.put(Scope(), "k", "k", 3) > record.version


@pytest.mark.serial
async def test_a_network_that_hangs_is_an_error_within_the_deadline(proxy: Proxy) -> None:
    async with await behind(proxy, deadline=0.5) as store:
        key = await session_of(store)
        proxy.hangs = True
        for call in (store.tail(key), store.append(key, [user("a")])):
            began = time.monotonic()
            with pytest.raises(Unavailable):
                await call
            assert time.monotonic() - began < 5
        proxy.hangs = False
        proxy.cut()
        assert said(await store.append(key, [user("b")])) == ["b"]


async def test_a_cut_line_is_made_anew(proxy: Proxy) -> None:
    async with await behind(proxy) as store:
        key = await session_of(store)
        for n in range(5):
            proxy.cut()
            await store.append(key, [user(str(n))])
        proxy.cut()
        assert said(await store.read(key)) == list("01234")


# --- the server cannot do it ---


async def test_a_server_that_only_reads_says_so(server: PostgresServer) -> None:
    async with await PostgresStore.open(server.empty()) as store:
        key = await session_of(store)
        await store.append(key, [user("a")])
    server.execute("ALTER DATABASE keepthread SET default_transaction_read_only = on")
    try:
        async with await PostgresStore.open(server.url()) as store:
            assert said(await store.tail(key)) == ["a"]
            for call in (
                store.append(key, [user("b")]),
                store.erase(key, [1]),
                store.tenant("new").put_session(SessionInfo(id="s")),
            ):
                with pytest.raises(ReadOnly):
                    await call
            assert await store.tenant("new").list_sessions() == []
    finally:
        server.execute(
            "ALTER DATABASE keepthread RESET default_transaction_read_only", database="postgres"
        )


@pytest.mark.parametrize(
    ("code", "error"), [("53100", StorageFull), ("53200", Unavailable), ("58030", Unavailable)]
)
async def test_what_runs_out_is_named_and_reading_goes_on(
    server: PostgresServer, code: str, error: type[Exception]
) -> None:
    async with await PostgresStore.open(server.empty()) as store:
        key = await session_of(store)
        await store.append(key, [user("a")])
        server.execute(
            "CREATE FUNCTION public.fail() RETURNS trigger LANGUAGE plpgsql AS"
            f" $$ BEGIN RAISE EXCEPTION USING ERRCODE = '{code}', MESSAGE = 'no room'; END $$;"
            "CREATE TRIGGER fail BEFORE INSERT ON keepthread.messages"
            " FOR EACH ROW EXECUTE FUNCTION public.fail()"
        )
        try:
            with pytest.raises(error, match="no room"):
                await store.append(key, [user("b")])
        finally:
            server.execute("DROP FUNCTION public.fail CASCADE")
        assert said(await store.tail(key)) == ["a"]
        assert (await store.append(key, [user("c")]))[0].seq == 2


async def test_a_session_that_another_holds_too_long_is_busy(server: PostgresServer) -> None:
    async with (
        await PostgresStore.open(server.empty(), deadline=0.5) as store,
        await PostgresStore.open(server.url()) as other,
    ):
        key = await session_of(store)
        number = await store.backend.number(store._tenant)

        async def hold(link: Any) -> None:
            await link.run(SQL["lock_session"], (number, int(key)))
            with pytest.raises(Busy):
                await store.append(key, [user("a")])

        await other.backend.engine.transact(hold)
        await store.append(key, [user("b")])


async def test_more_work_than_connections_waits_its_turn(server: PostgresServer) -> None:
    async with await PostgresStore.open(server.empty(), connections=2) as store:
        key = await session_of(store)
        await asyncio.gather(*(store.append(key, [user(str(n))]) for n in range(30)))
        assert len(await store.read(key)) == 30
        used = server.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'keepthread'"
        )
        assert used == [(2,)]


async def test_a_caller_who_goes_away_leaves_the_store_usable(server: PostgresServer) -> None:
    async with await PostgresStore.open(server.empty(), connections=1) as store:
        key = await session_of(store)
        for pause in (0, 0.001, 0.002, 0.005):
            task = asyncio.create_task(store.append(key, [user("a", id="m")]))
            await asyncio.sleep(pause)
            task.cancel()
            await asyncio.wait([task])
        assert said(await store.append(key, [user("a", id="m")])) == ["a"]
        assert len(await store.read(key)) == 1


async def test_a_transaction_that_is_canceled_takes_no_later_write_with_it(
    server: PostgresServer,
) -> None:
    """Its connection is closed: in it, the next caller's write would never be committed."""
    async with (
        await PostgresStore.open(server.empty(), connections=1) as store,
        await PostgresStore.open(server.url()) as other,
    ):
        key = await session_of(store)

        async def go_away(link: PgLink) -> None:
            await link.run(b"SELECT * FROM keepthread.sessions FOR UPDATE")
            await cancel_caller()

        with pytest.raises(asyncio.CancelledError):
            await asyncio.create_task(store.backend.engine.transact(go_away))
        await store.append(key, [user("a")])
        assert said(await other.read(key)) == ["a"]


async def test_a_caller_who_goes_away_while_connecting_leaves_its_place(
    server: PostgresServer,
) -> None:
    begun, is_silent = asyncio.Event(), True

    async def connect() -> PgConnection:
        begun.set()
        if is_silent:
            await asyncio.Event().wait()
        return await PgConnection.connect(server.url(), autocommit=True)

    pool = Pool(connect, 1, 10.0)
    task = asyncio.create_task(pool.take())
    await begun.wait()
    task.cancel()
    await asyncio.wait([task])
    is_silent = False
    async with asyncio.timeout(10):
        link = await pool.take()
    assert await link.run(b"SELECT 1") == [(1,)]
    await pool.give_back(link)
    await pool.close()


async def test_a_store_is_not_used_behind_a_fork(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with await PostgresStore.open(server.empty()) as store:
        await store.list_sessions()
        own = os.getpid()
        with monkeypatch.context() as patch:
            patch.setattr(os, "getpid", lambda: own + 1)
            with pytest.raises(StoreClosed, match="fork"):
                await store.list_sessions()
