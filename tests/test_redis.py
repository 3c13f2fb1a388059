"""The Redis store: the contract on one server and on a cluster, and what only it promises."""

import asyncio
import itertools
import random
import re
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from keepthread import Scope, SessionInfo, SessionKey
from keepthread.errors import (
    Damaged,
    DurabilityTooLow,
    InvalidInput,
    ReadOnly,
    SessionGone,
    Stale,
    StorageFull,
    Unavailable,
)
from keepthread.protocols import Store
from keepthread.stores.backend import Listing, Put
from keepthread.stores.changes import UPDATED
from keepthread.stores.redis import RedisStore, Timeouts
from keepthread.stores.redis.changes import Announcer, PlaceWriter
from keepthread.stores.redis.engine import LUA, RedisLink, Script, make_client
from keepthread.stores.redis.keys import index_of, session_place
from keepthread.stores.redis.records import ScopedRecords
from keepthread.stores.redis.sessions import _by_activity
from keepthread.stores.redis.store import RedisBackend
from keepthread.testing.contract import (
    FULL,
    Letters,
    StoreContract,
    new_session,
    said,
    span,
    user,
)
from servers.proxy import Proxy
from servers.redis import (
    RedisCluster,
    RedisServer,
    new_server,
    wait_for,
)

QUICK = Timeouts(connect=0.5, answer=0.5, again=0.5)
WAITING = Timeouts(connect=2, answer=2, again=2)
"""For replicas that do not answer: the server itself must, however busy the machine is."""
PATIENT = Timeouts(connect=5, answer=5, again=30)
LONGEST = QUICK.again + QUICK.answer + 5  # the machine may be busy
TENANT = "default"


class TestRedisStore(StoreContract):
    @pytest.fixture(autouse=True)
    def _empty(self, redis_server: RedisServer) -> None:
        redis_server.ask("FLUSHALL")
        self.url = redis_server.url

    async def open_store(self, folder: Path, *, clock: Callable[[], float]) -> Store:
        return await RedisStore.open(self.url, clock=clock)


class TestRedisClusterStore(StoreContract):
    @pytest.fixture(autouse=True)
    def _empty(self, redis_cluster: RedisCluster) -> None:
        redis_cluster.flush()
        self.url = redis_cluster.url

    async def open_store(self, folder: Path, *, clock: Callable[[], float]) -> Store:
        return await RedisStore.open(self.url, clock=clock)


@pytest.fixture
def server(redis_server: RedisServer) -> RedisServer:
    """Give the shared server, empty."""
    redis_server.ask("FLUSHALL")
    return redis_server


@pytest.fixture
async def store(server: RedisServer) -> AsyncIterator[RedisStore]:
    async with await RedisStore.open(server.url) as opened:
        yield opened


@pytest.fixture
def own() -> Iterator[RedisServer]:
    """Give a server of one's own, whose log is on the disk before it answers."""
    with closing(new_server(appendonly="yes", appendfsync="always")) as server:
        yield server


def names_of(key: SessionKey) -> tuple[str, ...]:
    return session_place(TENANT, key).keys


# --- keys ---


async def test_no_name_becomes_part_of_a_key(store: RedisStore, server: RedisServer) -> None:
    strange = "a}{b:*?[x] DROP"
    twin = store.tenant(strange)
    key = await new_session(twin, strange, owner=strange)
    await twin.append(key, [user("x", id=strange)])
    for scope in (Scope(session=key), Scope(owner=strange), Scope()):
        await twin.put(scope, strange, strange, 1)
    keys = [name.decode() for name in server.ask("KEYS", "*")]
    shape = re.compile(r"keepthread:\{[0-9a-f]{32}\}:[a-z_]+(:[0-9a-f]{32})?")
    assert all(shape.fullmatch(name) for name in keys), keys
    assert said(await twin.tail(key)) == ["x"]


async def test_stores_that_clean_at_once_wait_for_each_other(own: RedisServer) -> None:
    async with await RedisStore.open(own.url) as store:
        for _ in range(3):
            for cleaning in await asyncio.gather(*(store.clean() for _ in range(4))):
                assert len(cleaning.done) == 2, cleaning


async def test_a_session_is_in_one_slot_and_sessions_are_in_many(
    redis_cluster: RedisCluster,
) -> None:
    redis_cluster.flush()
    first = redis_cluster.servers[0]
    slots: set[int] = set()
    async with await RedisStore.open(redis_cluster.url) as store:
        for n in range(12):
            key = await new_session(store, f"s{n}")
            await store.append(key, [user("x")])
            mine = {first.ask("CLUSTER", "KEYSLOT", name) for name in names_of(key)}
            assert len(mine) == 1
            slots |= mine
    assert len(slots) > 6
    assert all(server.ask("DBSIZE") for server in redis_cluster.servers)


async def test_a_session_made_again_has_a_new_key_even_if_the_server_forgot_all(
    store: RedisStore, server: RedisServer
) -> None:
    old = await new_session(store)
    version = await store.put(Scope(), "k", "k", 1)
    server.ask("FLUSHALL")
    new = await new_session(store)
    assert new != old
    assert await store.put(Scope(), "k", "k", 1) > version
    with pytest.raises(SessionGone):
        await store.append(old, [user("x")])


# --- numbers ---


async def test_totals_are_exact_up_to_the_most_that_a_log_counts(store: RedisStore) -> None:
    key = await new_session(store)
    tokens = [2**52 + 1, 2**32 - 1, 2**32, 1, 2**52 - 2**33 - 2]
    made = await store.append(key, [user(f"{n}", tokens=n) for n in tokens])
    assert [m.total for m in made] == [sum(tokens[: n + 1]) for n in range(5)]
    assert await store.tail(key) == made
    assert (await store.describe(key)).tokens == sum(tokens) == 2**53 - 1


async def test_eight_stores_append_to_one_session_at_once(
    store: RedisStore, server: RedisServer
) -> None:
    key = await new_session(store)
    others = [await RedisStore.open(server.url) for _ in range(8)]

    async def write(number: int, other: RedisStore) -> None:
        for n in range(40):
            await other.append(key, [user(f"{number}:{n}", tokens=1)])

    await asyncio.gather(*(write(n, other) for n, other in enumerate(others)))
    log = await store.read(key, limit=1000)
    assert [m.seq for m in log] == [m.total for m in log] == list(range(1, 321))
    for number in range(8):
        mine = [m.content for m in log if m.content.startswith(f"{number}:")]
        assert mine == [f"{number}:{n}" for n in range(40)]
    for other in others:
        await other.close()


async def test_what_arrives_during_a_recount_is_not_lost(
    store: RedisStore, server: RedisServer
) -> None:
    key = await new_session(store)
    await store.append(key, [user("four", tokens=9, counter="other") for _ in range(500)])
    async with await RedisStore.open(server.url) as other:

        async def write() -> None:
            for _ in range(60):
                await other.append(key, [user("late", tokens=2, counter="letters")])

        counted, _ = await asyncio.gather(store.recount(key, Letters()), write())
    assert counted >= 500
    log = await store.read(key, limit=1000)
    assert len(log) == 560
    assert [m.total for m in log] == list(itertools.accumulate(m.tokens for m in log))
    assert (await store.describe(key)).tokens == log[-1].total
    assert (await store.verify()).sound


async def test_an_erasure_during_a_recount_begins_it_again(store: RedisStore) -> None:
    key = await new_session(store)
    await store.append(key, [user("four", tokens=9, counter="other") for _ in range(300)])

    class Slow(Letters):
        erased = False

        def count(self, message: Any) -> int:
            if not self.erased:
                self.erased = True
                asyncio.run_coroutine_threadsafe(store.erase(key, [300]), loop).result(10)
            return super().count(message)

    loop = asyncio.get_running_loop()
    assert await store.recount(key, Slow()) == 299
    log = await store.read(key, limit=1000)
    assert (log[-1].state, log[-1].total) == ("erased", 299 * 4)
    assert (await store.verify()).sound


# --- the index ---


async def test_an_entry_without_a_session_is_passed_over_and_cleared_away(
    store: RedisStore, server: RedisServer
) -> None:
    await new_session(store, "there")
    index = index_of(TENANT)
    gone, coming = f"1-{'0' * 32}", f"{time.time_ns() // 1000}-{'0' * 32}"
    for key in (gone, coming):
        server.ask("ZADD", index.sessions, key.partition("-")[0], key)
        server.ask("ZADD", index.active, 2e9, key)
    assert [s.id for s in await store.list_sessions()] == ["there"]
    assert [s.id for s in await store.scan_sessions()] == ["there"]
    for name in (index.sessions, index.active):
        assert server.ask("ZSCORE", name, gone) is None
        assert server.ask("ZSCORE", name, coming) is not None


async def test_activity_heals_a_lost_index(store: RedisStore, server: RedisServer) -> None:
    key = await new_session(store, owner="ana")
    server.ask("DEL", *index_of(TENANT), index_of(TENANT).active_of("ana"))
    assert await store.list_sessions() == []
    await store.append(key, [user("x")])
    for listed in (
        await store.list_sessions(),
        await store.list_sessions(owner="ana"),
        await store.scan_sessions(),
    ):
        assert [s.key for s in listed] == [key]


async def test_a_session_that_becomes_ready_is_listed_and_one_that_is_not_is_not(
    store: RedisStore,
) -> None:
    made = await store.put_session(SessionInfo(id="s", ready=False))
    assert await store.list_sessions() == []
    for ready in (True, False, True):
        await store.put_session(SessionInfo(id="s", key=made.key, ready=ready))
        assert len(await store.list_sessions()) == ready


async def test_an_owner_whose_records_are_gone_is_no_owner(store: RedisStore) -> None:
    await store.put(Scope(owner="ana"), "k", "k", 1)
    await store.put(Scope(owner="bea"), "k", "k", 1)
    await store.drop(Scope(owner="ana"), "k", "k")
    assert await store.owners() == ["bea"]


# --- a time to live ---


async def test_what_a_session_has_lives_for_so_long_after_its_latest_activity(
    server: RedisServer,
) -> None:
    async with await RedisStore.open(server.url, ttl=100) as store:
        key = await new_session(store)
        await store.append(key, [user("x")])
        await store.put(Scope(session=key), "pin", "1", 1)
        await store.put(Scope(owner="ana"), "fact", "1", 1)
        for name in names_of(key):
            assert 99_000 < server.ask("PTTL", name) <= 100_000
            server.ask("PEXPIRE", name, 50_000)
        await store.recount(key, Letters())
        assert 49_000 < server.ask("PTTL", names_of(key)[1]) <= 50_000
    async with await RedisStore.open(server.url) as other:  # what is made elsewhere lives on
        await other.append(key, [user("y")])
        for name in names_of(key):
            assert 99_000 < server.ask("PTTL", name) <= 100_000
        assert server.ask("PTTL", names_of(await new_session(other, "t"))[0]) == -1


async def test_an_expired_session_is_gone_as_a_deleted_one_is(server: RedisServer) -> None:
    async with await RedisStore.open(server.url, ttl=0.05) as store:
        key = await new_session(store)
        await store.append(key, [user("x")])
        wait_for("the end", lambda: not server.ask("EXISTS", *names_of(key)))
        with pytest.raises(SessionGone):
            await store.tail(key)
        assert await store.list_sessions() == await store.scan_sessions() == []
        assert await store.get_session("s") is None
        assert await new_session(store) != key


async def end_long_ago(store: RedisStore, keys: Sequence[SessionKey]) -> None:
    """Let sessions end as if they had been made, and had ended, long ago."""
    index, client = index_of(TENANT), store.backend.link.client
    for key in keys:
        for name in names_of(key):
            await client.execute_command("UNLINK", name)
        await client.execute_command("ZADD", index.sessions, 1, key)
    for entry in await client.execute_command("ZRANGE", index.ends, 0, -1):
        if entry.decode().partition(" ")[0] in keys:
            await client.execute_command("ZADD", index.ends, 1, entry)


async def entries_of(store: RedisStore, owner: str) -> list[int]:
    """Return how long the index of sessions is, in each of its sets."""
    index = index_of(TENANT)
    names = (index.sessions, index.active, index.active_of(owner), index.ends)
    return [await store.backend.link.client.execute_command("ZCARD", name) for name in names]


async def test_a_list_passes_over_no_session_while_it_clears_ended_ones_away(
    store: RedisStore, server: RedisServer
) -> None:
    lasting = [await new_session(store, f"lasting{n}", updated_at=1e9) for n in range(140)]
    async with await RedisStore.open(server.url, ttl=1000) as brief:
        ended = [await new_session(brief, f"brief{n}", updated_at=1e9 + n) for n in range(60)]
    await end_long_ago(store, ended)
    for _ in range(2):
        listed = await store.list_sessions(limit=140)
        assert {info.key for info in listed} == set(lasting)


@pytest.mark.parametrize("number", [5, 10, 60])
async def test_a_list_of_sessions_takes_two_round_trips(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    redis_server.ask("FLUSHALL")
    sent = 0

    def counted(name: str) -> None:
        send = getattr(RedisLink, name)

        async def count(self: RedisLink, *args: Any) -> Any:
            nonlocal sent
            sent += 1
            return await send(self, *args)

        monkeypatch.setattr(RedisLink, name, count)

    counted("_send")
    counted("_send_together")
    store = await RedisStore.open(redis_server.url)
    try:
        keys = [await new_session(store, f"s{n}") for n in range(number)]
        await store.scan_sessions()  # the server knows the scripts now
        sent = 0
        assert {s.key for s in await store.list_sessions(limit=number)} == set(keys)
        assert sent == 2
        sent = 0
        assert [s.key for s in await store.scan_sessions()] == keys
        assert sent == 3  # and once to look for expired ones
    finally:
        await store.close()


async def test_one_of_several_commands_that_fails_is_an_error(redis_server: RedisServer) -> None:
    redis_server.ask("FLUSHALL")
    store = await RedisStore.open(redis_server.url)
    try:
        place = session_place(TENANT, await new_session(store))
        redis_server.ask("DEL", place.session)
        redis_server.ask("SET", place.session, "not ours")
        with pytest.raises(Damaged, match="a key holds data of another program"):
            await store.list_sessions()
    finally:
        await store.close()


async def test_a_list_has_a_session_that_becomes_active_while_it_is_read(
    store: RedisStore,
) -> None:
    keys = [await new_session(store, f"s{n}", updated_at=1e9 + n) for n in range(150)]
    pages = _by_activity(store.backend.link, index_of(TENANT).active, Listing(150), 100)
    seen = await anext(pages)
    await store.append(keys[0], [user("I am back")])
    seen += [place async for page in pages for place in page]
    assert sorted(place.key for place in seen) == sorted(keys)


@pytest.mark.parametrize("kind", ["redis_server", "redis_cluster"])
async def test_the_index_does_not_keep_sessions_that_have_ended(
    kind: str, request: pytest.FixtureRequest
) -> None:
    place: RedisServer | RedisCluster = request.getfixturevalue(kind)
    place.ask("FLUSHALL") if isinstance(place, RedisServer) else place.flush()
    async with await RedisStore.open(place.url, ttl=1000) as store:
        keys = [await new_session(store, f"v{n}", owner="ana") for n in range(100)]
        assert await entries_of(store, "ana") == [100, 100, 100, 100]
        await end_long_ago(store, keys[:50])
        for n in range(3):  # each new one clears more than itself away
            await new_session(store, f"new{n}", owner="ana")
        assert await entries_of(store, "ana") == [53, 53, 53, 53]
        await end_long_ago(store, keys[50:])
        assert len(await store.list_sessions()) == 3
        assert await entries_of(store, "ana") == [3, 3, 3, 3]
        await end_long_ago(store, [info.key for info in await store.scan_sessions()])
        assert await store.scan_sessions() == []
        assert await entries_of(store, "ana") == [0, 0, 0, 0]


async def test_a_session_that_lives_on_beyond_its_first_end_stays_in_the_index(
    server: RedisServer,
) -> None:
    async with await RedisStore.open(server.url, ttl=1000) as store:
        key = await new_session(store, owner="ana")
        (entry,) = server.ask("ZRANGE", index_of(TENANT).ends, 0, -1)
        server.ask("ZADD", index_of(TENANT).ends, 1, entry, 2, "damaged")
        await new_session(store, "t", owner="ana")
        assert await entries_of(store, "ana") == [2, 2, 2, 2]
        assert float(server.ask("ZSCORE", index_of(TENANT).ends, entry)) > time.time() * 1000
        assert {info.key for info in await store.list_sessions(owner="ana")} >= {key}


async def test_erasing_the_only_message_keeps_the_time_to_live(server: RedisServer) -> None:
    async with await RedisStore.open(server.url, ttl=100) as store:
        key = await new_session(store)
        await store.append(key, [user("secret")])
        await store.erase(key, [1])
        for name in names_of(key)[:3]:
            assert 0 < server.ask("PTTL", name) <= 100_000


@pytest.mark.parametrize("ttl", [0, -1, float("nan"), float("inf")])
async def test_a_time_to_live_is_above_nothing(server: RedisServer, ttl: float) -> None:
    with pytest.raises(InvalidInput):
        await RedisStore.open(server.url, ttl=ttl)


# --- durability ---


@pytest.mark.parametrize(
    ("config", "level"),
    [
        ({}, "memory"),
        ({"save": "3600 1"}, "memory"),
        ({"appendonly": "yes", "appendfsync": "everysec"}, "memory"),
        ({"appendonly": "yes", "appendfsync": "no"}, "process"),
        ({"appendonly": "yes", "appendfsync": "always"}, "power"),
        (
            {"appendonly": "yes", "appendfsync": "always", "no-appendfsync-on-rewrite": "yes"},
            "process",
        ),
        (
            {
                "appendonly": "yes",
                "appendfsync": "always",
                "maxmemory": "1gb",
                "maxmemory-policy": "allkeys-lru",
            },
            "memory",
        ),
    ],
)
async def test_the_store_learns_what_its_server_gives(config: dict[str, str], level: Any) -> None:
    levels: list[Any] = ["memory", "process", "power", "replicated"]
    with closing(new_server(**config)) as server:
        for asked in levels[: levels.index(level) + 1]:
            async with await RedisStore.open(server.url, durability=asked) as store:
                assert store.durability == level
        for asked in levels[levels.index(level) + 1 :]:
            with pytest.raises(DurabilityTooLow, match=f"`{level}`"):
                await RedisStore.open(server.url, durability=asked)


async def test_a_server_that_does_not_tell_its_settings_promises_nothing(own: RedisServer) -> None:
    own.ask("ACL", "SETUSER", "eve", "on", ">secret", "~*", "+@all", "-config")
    url = own.url.replace("//", "//eve:secret@")
    async with await RedisStore.open(url) as store:
        assert store.durability == "memory"
        await new_session(store)
    with pytest.raises(DurabilityTooLow, match="CONFIG is forbidden"):
        await RedisStore.open(url, durability="process")


async def test_what_is_acknowledged_is_on_the_replica(own: RedisServer) -> None:
    with closing(new_server(replicaof=f"127.0.0.1 {own.port}")) as replica:
        wait_for("the replica", lambda: b"link_status:up" in _info(replica))
        options: Any = {"durability": "replicated", "replicas": 1}
        async with await RedisStore.open(own.url, **options, timeouts=PATIENT) as store:
            assert store.durability == "replicated"
            key = await new_session(store)
            for n in range(20):
                await store.append(key, [user(f"{n}")])
                assert replica.ask("HLEN", names_of(key)[1]) == n + 1
        async with await RedisStore.open(own.url, **options, timeouts=WAITING) as store:
            assert replica.process
            replica.process.send_signal(signal.SIGSTOP)
            with pytest.raises(Unavailable, match="0 of 1 replicas"):
                await store.append(key, [user("late", id="late")])
            with pytest.raises(Unavailable, match="0 of 1 replicas"):  # stored, not yet safe
                await store.append(key, [user("late", id="late")])
            replica.process.send_signal(signal.SIGCONT)
        async with await RedisStore.open(own.url, replicas=1, timeouts=PATIENT) as store:
            await store.append(key, [user("late", id="late")])
            assert replica.ask("HLEN", names_of(key)[1]) == 21
        with pytest.raises(DurabilityTooLow, match="1 of 2 replicas"):
            await RedisStore.open(own.url, durability="replicated", replicas=2)


async def test_a_cluster_waits_for_replicas_too(redis_cluster: RedisCluster) -> None:
    redis_cluster.flush()
    async with await RedisStore.open(redis_cluster.url, replicas=1, timeouts=WAITING) as store:
        with pytest.raises(Unavailable, match="0 of 1 replicas"):
            await new_session(store)


def _info(server: RedisServer) -> bytes:
    return b"\n".join(
        f"{name}:{value}".encode().replace(b"master_link_status", b"link_status")
        for name, value in server.ask("INFO", "replication").items()
    )


# --- outages ---


@asynccontextmanager
async def both_ways(url: str) -> AsyncIterator[tuple[RedisStore, RedisStore]]:
    """Give a store that soon gives up, and one that does not, however busy the machine is."""
    async with (
        await RedisStore.open(url, timeouts=PATIENT) as patient,
        await RedisStore.open(url, timeouts=QUICK) as quick,
    ):
        yield quick, patient


async def test_a_script_that_a_server_does_not_know_is_told_again(
    store: RedisStore, server: RedisServer
) -> None:
    key = await new_session(store)
    await store.append(key, [user("a")])
    server.ask("SCRIPT", "FLUSH")
    await store.append(key, [user("b")])
    assert said(await store.tail(key)) == ["a", "b"]


async def test_nothing_acknowledged_is_lost_or_doubled_when_the_server_is_killed(
    own: RedisServer,
) -> None:
    async with await RedisStore.open(own.url, durability="power") as store:
        key = await new_session(store)
        done = False

        async def write(number: int) -> int:
            n = 0
            while not done:
                await store.append(key, [user(f"{number}:{n}", id=f"{number}:{n}")])
                n += 1
            return n

        writers = [asyncio.create_task(write(number)) for number in range(4)]
        for _ in range(4):
            await asyncio.sleep(0.1)
            await asyncio.to_thread(own.restart, how=signal.SIGKILL)
        await asyncio.sleep(0.1)
        done = True
        counts = await asyncio.gather(*writers)
        log = await store.read(key, limit=100_000)
        assert [m.seq for m in log] == list(range(1, len(log) + 1))
        for number, count in enumerate(counts):
            mine = [m.content for m in log if m.content.startswith(f"{number}:")]
            assert mine == [f"{number}:{n}" for n in range(count)]
        assert (await store.verify()).sound


@pytest.mark.serial
async def test_a_server_that_is_away_is_no_empty_history(own: RedisServer) -> None:
    async with both_ways(own.url) as (quick, patient):
        key = await new_session(patient)
        await patient.append(key, [user("x")])
        own.stop()
        for call in (
            quick.tail(key),
            quick.get_session("s"),
            quick.list_sessions(),
            quick.append(key, [user("y", id="y")]),
            quick.put(Scope(session=key), "k", "k", 1),
            quick.verify(),
        ):
            began = time.monotonic()
            with pytest.raises(Unavailable):
                await call
            assert time.monotonic() - began < LONGEST
        own.start()
        await patient.append(key, [user("y", id="y")])
        assert said(await patient.tail(key)) == ["x", "y"]
    with pytest.raises(Unavailable):
        await RedisStore.open("redis://127.0.0.1:1", timeouts=QUICK)


@pytest.mark.serial
async def test_a_server_that_hangs_is_waited_for_so_long_and_no_longer(own: RedisServer) -> None:
    async with both_ways(own.url) as (quick, patient):
        key = await new_session(patient)
        await patient.append(key, [user("x", id="x")])
        assert own.process
        own.process.send_signal(signal.SIGSTOP)
        began = time.monotonic()
        with pytest.raises(Unavailable):
            await quick.append(key, [user("y", id="y")])
        assert time.monotonic() - began < LONGEST
        own.process.send_signal(signal.SIGCONT)
        await patient.append(key, [user("y", id="y")])
        assert said(await patient.tail(key)) == ["x", "y"]


async def test_a_cluster_without_one_of_its_servers_says_so(redis_cluster: RedisCluster) -> None:
    redis_cluster.flush()
    async with both_ways(redis_cluster.url) as (quick, patient):
        keys = [await new_session(patient, f"s{n}") for n in range(9)]
        last = redis_cluster.servers[-1].process
        assert last
        last.send_signal(signal.SIGSTOP)
        try:
            answers = await asyncio.gather(*map(quick.tail, keys), return_exceptions=True)
            assert {type(a) for a in answers} <= {list, Unavailable}
            assert any(isinstance(a, Unavailable) for a in answers)
        finally:
            last.send_signal(signal.SIGCONT)
        wait_for("the cluster's agreement", redis_cluster.agrees)
        for key in keys:
            await patient.append(key, [user("x")])


async def test_a_replica_can_be_read_but_not_written(own: RedisServer) -> None:
    async with await RedisStore.open(own.url) as store:
        key = await new_session(store)
        await store.append(key, [user("x")])
        await store.put(Scope(session=key), "k", "k", 1)
        own.ask("REPLICAOF", "127.0.0.1", "1")
        with pytest.raises(ReadOnly):
            await store.append(key, [user("y")])
        with pytest.raises(ReadOnly):
            await new_session(store, "t")
        assert said(await store.tail(key)) == ["x"]
        assert len((await store.gather(key, tokens=9, kinds=["k"])).records) == 1
        assert len(await store.list_sessions()) == 1


async def test_a_full_memory_is_told_and_reading_goes_on(own: RedisServer) -> None:
    async with await RedisStore.open(own.url) as store:
        key = await new_session(store)
        await store.append(key, [user("x")])
        own.ask("CONFIG", "SET", "maxmemory", "1")
        for call in (
            store.append(key, [user("y"), user("z")]),
            store.put(Scope(session=key), "k", "k", 1),
            new_session(store, "t"),
        ):
            with pytest.raises(StorageFull):
                await call
        assert said(await store.tail(key)) == ["x"]
        await store.erase(key, [1])
        assert said(await store.tail(key)) == [""]
        own.ask("CONFIG", "SET", "maxmemory", "0")
        await store.append(key, [user("y")])
        assert (await store.verify()).sound


@pytest.mark.serial
async def test_a_wrong_password_is_said_at_once(own: RedisServer) -> None:
    own.ask("CONFIG", "SET", "requirepass", "right")
    began = time.monotonic()
    for url in (own.url, own.url.replace("//", "//:wrong@")):
        with pytest.raises(Unavailable, match="password"):
            await RedisStore.open(url)
    assert time.monotonic() - began < 5
    async with await RedisStore.open(own.url.replace("//", "//:right@")) as store:
        await new_session(store)


@pytest.mark.parametrize(
    "url", ["", "redis://", "http://x", "redis+cluster://x:y", "redis://x:99999"]
)
async def test_a_url_that_names_no_server_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput):
        await RedisStore.open(url, timeouts=QUICK)


# --- records made of other sessions ---


class Dying(RedisLink):
    """A link whose process dies before it settles what it put."""

    async def run(self, script: Script, keys: Any, args: Any, *, again: Any = None) -> Any:
        if script is LUA["settle"]:
            raise asyncio.CancelledError
        return await super().run(script, keys, args, again=again)


async def put_and_die(server: RedisServer, scope: Scope, value: Any, **options: Any) -> None:
    make = partial(make_client, server.url, connect=1, answer=1, connections=1)
    link = Dying(make, timeouts=QUICK, connections=1)
    store = RedisStore(RedisBackend(link, "memory", 0), tenant=TENANT, ids=str)
    with pytest.raises(asyncio.CancelledError):
        await store.put(scope, "fact", "1", value, **options)
    await store.close()


@pytest.mark.parametrize("before", [False, True])
async def test_a_record_whose_maker_died_stands_or_falls_with_its_sources(
    store: RedisStore, server: RedisServer, before: bool
) -> None:
    one, two = await new_session(store, "one"), await new_session(store, "two")
    for key in (one, two):
        await store.append(key, [user("secret"), user("x")])
    scopes = (Scope(session=two), Scope(owner="ana"), Scope())
    for scope in scopes:
        if before:
            await store.put(scope, "fact", "1", "before")
        await put_and_die(server, scope, "stands", epochs={one: 0}, made_of=[span(one, 1)])
        record = await store.get(scope, "fact", "1")
        assert record
        assert record.value == "stands"
        await put_and_die(server, scope, "falls", epochs={one: 0}, version=record.version)
    await store.erase(one, [1])
    for scope in scopes:
        (record,) = await store.scan(scope, "fact")
        assert record.value == "stands"
        assert (await store.get(scope, "fact", "1")) == record
    assert (await store.gather(two, tokens=0, kinds=["fact"])).records == [
        await store.get(scopes[0], "fact", "1")
    ]
    assert (await store.verify()).records == 3
    assert (await store.verify()).sound


async def test_an_erasure_takes_back_what_waits_and_what_it_would_replace(
    store: RedisStore, server: RedisServer
) -> None:
    one, two = await new_session(store, "one"), await new_session(store, "two")
    for key in (one, two):
        await store.append(key, [user("a"), user("b"), user("c")])
    scope = Scope(session=two)
    await store.put(scope, "fact", "1", "old", made_of=[span(two, 1)])
    await put_and_die(server, scope, "new", epochs={one: 0}, made_of=[span(two, 2)])
    await store.erase(two, [2])
    record = await store.get(scope, "fact", "1")
    assert record
    assert record.value == "old"
    await put_and_die(server, scope, "newer", epochs={one: 0}, made_of=[span(two, 3)])
    await store.erase(two, [1, 3])
    assert await store.get(scope, "fact", "1") is None
    assert await store.scan(scope) == []


async def test_a_record_made_of_other_sessions_is_put_once_their_epochs_hold(
    store: RedisStore,
) -> None:
    one, two = await new_session(store, "one"), await new_session(store, "two")
    await store.append(one, [user("a")])
    both = {one: 0, two: 0}
    version = await store.put(Scope(session=two), "k", "k", 1, epochs=both)
    record = await store.get(Scope(session=two), "k", "k")
    assert record
    assert record.version == version
    await store.erase(one, [1])
    for seen in (None, version):
        with pytest.raises(Stale):
            await store.put(Scope(session=two), "k", "k", 2, epochs=both, version=seen)
    assert await store.get(Scope(session=two), "k", "k") == record
    await store.delete_session(one)
    with pytest.raises(SessionGone):
        await store.put(Scope(session=two), "k", "k", 2, epochs=both)
    with pytest.raises(Stale):
        await store.put(Scope(session=two), "k", "k", 2, epochs=both, version=0)


async def test_a_put_that_is_repeated_is_one_put(store: RedisStore, server: RedisServer) -> None:
    key = await new_session(store)
    place = session_place(TENANT, key)
    make = partial(make_client, server.url, connect=1, answer=1, connections=1)

    class Twice(RedisLink):
        async def run(self, script: Script, keys: Any, args: Any, *, again: Any = None) -> Any:
            await super().run(script, keys, args)  # the answer is lost
            return await super().run(script, keys, args if again is None else again)

    link = Twice(make, timeouts=QUICK, connections=1)
    records = ScopedRecords(link, TENANT, place, Scope(session=key))
    writer = PlaceWriter(Announcer(link), TENANT, place, "ana", "s")
    version = await records.put(Put("k", "k", b"1", None, (), 0, {key: 0}), writer, UPDATED)
    assert await records.drop("k", "k", version, writer, UPDATED)
    await link.close()


# --- damage ---


def flip(server: RedisServer, name: str, field: bytes, bit: int) -> None:
    """Change one bit of a value behind the store's back."""
    value = bytearray(server.ask("HGET", name, field))
    value[bit // 8 % len(value)] ^= 1 << bit % 8
    server.ask("HSET", name, field, bytes(value))


async def a_full_session(store: RedisStore) -> SessionKey:
    key = await new_session(store, system_prompt="Be brief.")
    await store.append(key, [user(f"{n}", tokens=10) for n in range(1, 5)])
    await store.append(key, [FULL])
    await store.erase(key, [2])
    await store.put(Scope(session=key), "pin", "1", {"a": 1}, made_of=[span(key, 1)])
    return key


async def test_every_flipped_bit_of_a_row_is_noticed_and_costs_that_row(
    store: RedisStore, server: RedisServer
) -> None:
    key = await a_full_session(store)
    sound = await store.read(key)
    chance = random.Random(5)
    for seq in range(1, 6):
        field = b"%d" % seq
        before = server.ask("HGET", names_of(key)[1], field)
        bits = range(8 * len(before))
        for bit in chance.sample(bits, 60):
            flip(server, names_of(key)[1], field, bit)
            found = await store.read(key)
            assert [m.seq for m in found if m.state == "damaged"] == [seq], bit
            assert [m for m in found if m.seq != seq] == [m for m in sound if m.seq != seq]
            server.ask("HSET", names_of(key)[1], field, before)
        server.ask("HSET", names_of(key)[1], field, before[:-1])
        assert [(d.session, d.seq) for d in (await store.verify()).damages] == [("s", seq)]
        server.ask("HDEL", names_of(key)[1], field)
        assert [m.seq for m in await store.tail(key) if m.state == "damaged"] == [seq]
        assert [(d.session, d.seq) for d in (await store.verify()).damages] == [("s", seq)]
        server.ask("HSET", names_of(key)[1], field, before)
    assert (await store.verify()).sound


async def test_every_flipped_bit_elsewhere_is_found_by_verify(
    store: RedisStore, server: RedisServer
) -> None:
    key = await a_full_session(store)
    session, _, ids, records, *_ = names_of(key)
    chance = random.Random(6)
    fields = [(session, f) for f in (b"record", b"head", b"active")]
    fields += [(ids, f) for f in server.ask("HKEYS", ids)]
    fields += [(records, f) for f in server.ask("HKEYS", records)]
    for name, field in fields:
        before = server.ask("HGET", name, field)
        for bit in chance.sample(range(8 * len(before)), min(40, 8 * len(before))):
            flip(server, name, field, bit)
            assert not (await store.verify()).sound, (name, field, bit)
            server.ask("HSET", name, field, before)
    assert (await store.verify()).sound


async def test_a_damaged_message_costs_nothing_and_leaves_room(
    store: RedisStore, server: RedisServer
) -> None:
    key = await new_session(store)
    await store.append(key, [user(f"{n}", tokens=10) for n in range(1, 8)])
    for seq, bit in ((6, 8 * 34), (5, -1)):  # once its count, once its text
        flip(server, names_of(key)[1], b"%d" % seq, bit)
    for found in (
        await store.tail(key, tokens=30),
        (await store.gather(key, tokens=30)).messages,
    ):
        assert [m.seq for m in found if m.state == "live"] == [3, 4, 7]


async def test_a_log_goes_on_when_its_end_is_damaged(
    store: RedisStore, server: RedisServer
) -> None:
    key = await a_full_session(store)
    before = await store.read(key)
    described = await store.describe(key)
    flip(server, names_of(key)[0], b"head", 3)
    assert await store.describe(key) == described
    assert await store.read(key) == before
    server.ask("HDEL", names_of(key)[0], "head")
    (made,) = await store.append(key, [user("more", tokens=1)])
    assert (made.seq, made.total) == (6, before[-1].total + 1)
    assert (await store.verify()).sound


async def test_a_damaged_record_is_said_and_not_written_over(
    store: RedisStore, server: RedisServer
) -> None:
    key = await a_full_session(store)
    flip(server, names_of(key)[3], b"pin\x001", 200)
    for call in (
        store.get(Scope(session=key), "pin", "1"),
        store.scan(Scope(session=key)),
        store.gather(key, tokens=1, kinds=["pin"]),
    ):
        with pytest.raises(Damaged):
            await call
    assert await store.drop(Scope(session=key), "pin", "1")
    flip(server, names_of(key)[0], b"record", 300)
    info = await store.describe(key)
    assert (info.state, info.messages) == ("damaged", 5)
    for call in (
        store.gather(key, tokens=1),
        store.erase(key, [1]),
        store.put_session(SessionInfo(id="s", key=key, title="T")),
    ):
        with pytest.raises(Damaged):
            await call
    assert len(await store.tail(key)) == 5
    await store.append(key, [user("x")])
    await store.delete_session(key)


async def test_writes_follow_an_address_that_leads_to_another_primary(own: RedisServer) -> None:
    with closing(own.replica()) as other:
        async with (
            Proxy(own.port).listening() as address,
            await RedisStore.open(f"redis://127.0.0.1:{address.port}", replicas=1) as store,
        ):
            key = await new_session(store)
            await asyncio.gather(*(store.append(key, [user(str(n))]) for n in range(8)))
            other.promote()
            own.ask("REPLICAOF", "127.0.0.1", other.port)
            address.target = other.port  # and its lines still lead to the one that is a replica now
            wait_for("the new replica", own.is_linked)
            await asyncio.gather(*(store.append(key, [user(str(n))]) for n in range(8, 16)))
            assert other.ask("HLEN", names_of(key)[1]) == 16


async def test_a_server_that_misses_its_replicas_refuses_to_write(own: RedisServer) -> None:
    async with await RedisStore.open(own.url) as store:
        key = await new_session(store)
        await store.append(key, [user("a")])
        own.ask("CONFIG", "SET", "min-replicas-to-write", "1")
        with pytest.raises(Unavailable, match="too few replicas"):
            await store.append(key, [user("b")])
        assert said(await store.tail(key)) == ["a"]


async def test_a_store_that_is_written_to_is_verified_without_alarm(store: RedisStore) -> None:
    key = await new_session(store)
    done = False

    async def write() -> None:
        n = 0
        while not done:
            n += 1
            await store.append(key, [user(f"{n}")])
            await store.put(Scope(session=key), "k", f"{n % 7}", n)
            await store.drop(Scope(session=key), "k", f"{(n + 3) % 7}")

    writing = asyncio.create_task(write())
    found = [await store.verify() for _ in range(20)]
    done = True
    await writing
    assert [one.damages for one in found] == [()] * 20


async def test_a_connection_that_was_closed_while_it_sends_is_tried_again(
    server: RedisServer,
) -> None:
    make = partial(make_client, server.url, connect=1.0, answer=1.0, connections=2)
    link = RedisLink(make, timeouts=Timeouts(1.0, 1.0, 0.5), connections=2)
    tries = 0

    async def closed_meanwhile() -> None:
        connection = link.client.connection_pool.make_connection()
        await connection.connect()
        sending = asyncio.create_task(connection.send_command("PING"))
        await asyncio.sleep(0)  # it has looked at the connection, and is about to send
        await connection.disconnect(nowait=True)
        await sending

    async def once() -> str:
        nonlocal tries
        tries += 1
        if tries == 1:
            await closed_meanwhile()
        return "done"

    try:
        with pytest.raises(AttributeError, match="writelines"):
            await closed_meanwhile()  # so redis-py says it
        assert await link.insist(once) == "done"
        assert tries == 2
        with pytest.raises(Unavailable, match="cannot be reached"):
            await link.insist(closed_meanwhile)

        async def mistaken() -> None:
            raise AttributeError("a mistake of ours")

        with pytest.raises(AttributeError, match="a mistake of ours"):
            await link.insist(mistaken)
    finally:
        await link.close()
