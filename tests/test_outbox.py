"""The outbox: what is appended while the server is away is kept, and delivered once, in order."""

import asyncio
import json
import os
import random
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from keepthread import Memory, Message, Options, SessionInfo, ToolCall, sync
from keepthread.errors import (
    Busy,
    DurabilityTooLow,
    InvalidInput,
    SessionGone,
    Stale,
    StorageFull,
    StoreClosed,
    Unavailable,
    WrongFormat,
)
from keepthread.models.tokens import Estimator
from keepthread.protocols import Store
from keepthread.stores.outbox.file import OutboxFile, look
from keepthread.stores.outbox.store import OutboxStore
from keepthread.stores.postgres import PostgresStore
from keepthread.stores.redis import RedisStore
from keepthread.stores.redis.engine import Timeouts
from keepthread.stores.sqlite import SQLiteStore
from keepthread.stores.url import target_of
from keepthread.testing.contract import FULL, StoreContract, said, user
from keepthread.testing.hostile import CASES, try_hostile
from keepthread.types import SessionKey
from servers import free_port
from servers.proxy import Proxy
from servers.redis import RedisServer
from tests import preloaded
from tests.seeds import examples

if TYPE_CHECKING:
    from servers.postgres import PostgresServer

MARKER = "a text that nobody else writes 7f3a"
QUICK = Timeouts(connect=2.0, answer=2.0, again=0.05)


NEEDS_TENANTS: Any = None
Server = RedisStore | PostgresStore


class Field:
    """A real server behind a network that can be cut off, and an outbox's place."""

    def __init__(self, proxy: Proxy, opens: Callable[[], Awaitable[Server]], path: Path) -> None:
        self.proxy = proxy
        self.opens = opens
        self.path = path
        self.name = "server://here/db"
        self._server = proxy.target

    def goes(self) -> None:
        """Let nobody reach the server."""
        self.proxy.target = free_port()
        self.proxy.cut()

    def returns(self) -> None:
        self.proxy.target = self._server
        self.proxy.hangs, self.proxy.lose_answers = False, 0

    async def store(self, **options: Any) -> OutboxStore:
        settings: dict[str, Any] = {"target": self.name} | options
        return await OutboxStore.open(self.path, self.opens, **settings)

    async def session(self, id: str = "s") -> SessionKey:
        """Make a session, behind the outbox's back."""
        async with await self.opens() as store:
            return (await store.put_session(SessionInfo(id=id))).key

    async def log(self, key: SessionKey) -> list[Message]:
        async with await self.opens() as store:
            return await store.read(key, limit=10_000)


@asynccontextmanager
async def field_on(port: int, kind: str, path: Path) -> AsyncIterator[Field]:
    async with Proxy(port).listening() as proxy:
        there = f"127.0.0.1:{proxy.port}"

        async def redis() -> Server:
            return await RedisStore.open(f"redis://{there}", timeouts=QUICK)

        async def postgres() -> Server:
            url = f"postgresql://postgres@{there}/keepthread"
            return await PostgresStore.open(url, deadline=1.0)

        yield Field(proxy, redis if kind == "redis" else postgres, path)


@pytest.fixture(params=["redis", "postgres"])
async def field(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Field]:
    if request.param == "redis":
        redis: RedisServer = request.getfixturevalue("redis_server")
        redis.ask("FLUSHALL")
        port = redis.port
    else:
        postgres: PostgresServer = request.getfixturevalue("postgres")
        postgres.empty()
        port = postgres.port
    async with field_on(port, request.param, tmp_path / "chat.outbox") as field:
        yield field


@pytest.fixture
async def redis_field(redis_server: RedisServer, tmp_path: Path) -> AsyncIterator[Field]:
    redis_server.ask("FLUSHALL")
    async with field_on(redis_server.port, "redis", tmp_path / "chat.outbox") as field:
        yield field


async def delivered(store: OutboxStore) -> None:
    """Wait until all is delivered; an attempt from before the return may still fail."""
    async with asyncio.timeout(30):
        while True:
            with suppress(Unavailable):
                await store.outbox.deliver()
                return


# --- away and back ---


async def test_what_is_appended_in_an_outage_is_delivered_once_and_in_order(field: Field) -> None:
    key = await field.session()
    async with await field.store() as store:
        (before,) = await store.append(key, [user("0")])
        assert (before.state, before.seq) == ("live", 1)
        field.goes()
        taken = [(await store.append(key, [user(str(n))]))[0] for n in range(1, 6)]
        assert {(m.state, m.seq, m.turn, m.total) for m in taken} == {("queued", 0, 0, 0)}
        assert len({m.id for m in taken}) == 5
        field.returns()
        await delivered(store)
        assert (await store.outbox.survey()).messages == 0
        log = await store.read(key)
    assert said(log) == [str(n) for n in range(6)]
    assert [m.turn for m in log] == [m.seq for m in log] == list(range(1, 7))
    assert [m.id for m in log[1:]] == [m.id for m in taken]


async def test_all_but_appending_is_unavailable_while_the_server_is_away(field: Field) -> None:
    async with await field.store() as store:
        memory = Memory(store, Options(counter=Estimator()))
        session = await memory.session("s")
        key = session.key
        await session.append(user("a"))
        field.goes()
        await session.append(user("b"))
        refused: list[Callable[[], Awaitable[object]]] = [
            lambda: session.context(budget=500),
            session.messages,
            lambda: session.append(user("c"), expect=2),
            lambda: session.append(user("c"), expect=0),
            session.status,
            lambda: session.cache_tool("t", {}, "r", 2),
            lambda: memory.session("new"),
            memory.list_sessions,
            lambda: store.tail(key),
            lambda: store.find(key, ids=["x"]),
            lambda: store.append(key, []),
        ]
        for call in refused:
            with pytest.raises(Unavailable):
                await call()
        field.returns()
        await delivered(store)
        assert said(await session.messages()) == ["a", "b"]


async def test_a_reader_waits_for_what_is_not_delivered_yet(field: Field) -> None:
    key = await field.session()
    async with await field.store() as store:
        field.goes()
        for n in range(200):
            await store.append(key, [user(str(n))])
        field.returns()
        found: list[Message] = []
        while not found:
            try:
                found = await store.read(key, limit=1000)
            except Unavailable:
                await asyncio.sleep(0.01)
        assert said(found) == [str(n) for n in range(200)]
        (more,) = await store.append(key, [user("direct")])
        assert (more.state, more.seq) == ("live", 201)


async def test_an_answer_that_was_lost_is_not_stored_twice(field: Field) -> None:
    key = await field.session()
    async with await field.store() as store:
        await store.append(key, [user("a")])
        field.proxy.lose_answers = 1_000_000
        (unknown,) = await store.append(key, [user("b")])
        assert unknown.state == "queued"
        await store.append(key, [user("c")])
        field.returns()
        await delivered(store)
        assert said(await store.read(key)) == ["a", "b", "c"]


async def test_appends_at_the_moment_of_return_keep_their_order(field: Field) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    rng = random.Random(seed)
    keys = [await field.session(f"s{n}") for n in range(3)]
    async with await field.store() as store:
        taken, over = asyncio.Event(), False
        counts = [0] * 6

        async def write(writer: int, key: SessionKey) -> None:
            while not over:
                (made,) = await store.append(key, [user(f"{writer}:{counts[writer]}")])
                counts[writer] += 1
                if made.state == "queued":
                    taken.set()
                if rng.random() < 0.3:
                    await asyncio.sleep(rng.uniform(0, 0.01))

        async def weather() -> None:
            nonlocal over
            for _ in range(3):
                field.goes()
                taken.clear()
                await taken.wait()
                field.returns()
                await asyncio.sleep(rng.uniform(0, 0.3))
            over = True

        await asyncio.gather(*(write(n, keys[n % 3]) for n in range(6)), weather())
        await delivered(store)
    for place, key in enumerate(keys):
        log = said(await field.log(key))
        for writer in (place, place + 3):
            mine = [text for text in log if text.startswith(f"{writer}:")]
            assert mine == [f"{writer}:{n}" for n in range(counts[writer])]


async def test_concurrent_appends_in_an_outage_share_commits_and_keep_each_task_s_order(
    redis_field: Field,
) -> None:
    key = await redis_field.session()
    async with await redis_field.store() as store:
        redis_field.goes()

        async def write(writer: int) -> None:
            for n in range(20):
                await store.append(key, [user(f"{writer}:{n}.0"), user(f"{writer}:{n}.1")])

        await asyncio.gather(*(write(n) for n in range(10)))
        redis_field.returns()
        await delivered(store)
        log = said(await store.read(key, limit=1000))
    for writer in range(10):
        mine = [text for text in log if text.startswith(f"{writer}:")]
        assert mine == [f"{writer}:{n}.{half}" for n in range(20) for half in (0, 1)]
    assert all(a[:-1] == b[:-1] for a, b in zip(log[::2], log[1::2], strict=True))


async def test_delivering_gains_on_those_who_append_without_a_pause(redis_field: Field) -> None:
    key = await redis_field.session()
    async with await redis_field.store() as store:
        redis_field.goes()
        for n in range(300):
            await store.append(key, [user(f"0:{n}")])
        redis_field.returns()

        async def write(writer: int) -> None:
            while (await store.append(key, [user(f"{writer}:")]))[0].state == "queued":
                pass

        async with asyncio.timeout(60):
            await asyncio.gather(*(write(n) for n in range(1, 21)))
        log = said(await store.read(key, limit=100_000))
        assert [text for text in log if text.startswith("0:")] == [f"0:{n}" for n in range(300)]


# --- what the server will not take ---


async def test_a_conflict_is_set_aside_and_the_rest_goes_on(field: Field) -> None:
    key = await field.session()
    async with await field.store() as store:
        await store.append(key, [user("first", id="m")])
        field.goes()
        await store.append(key, [user("before")])
        await store.append(key, [user("other", id="m"), user("with it")])
        await store.append(key, [user("far")], turn=77)
        await store.append(key, [user("after")])
        field.returns()
        await delivered(store)
        assert said(await store.read(key)) == ["first", "before", "after"]
        survey = await store.outbox.survey()
        assert [said(list(each.messages)) for each in survey.set_aside] == [
            ["other", "with it"],
            ["far"],
        ]
        assert "another body" in survey.set_aside[0].reason
        assert "77" in survey.set_aside[1].reason
        assert survey.messages == 0
        assert (await store.append(key, [user("direct")]))[0].state == "live"
        await store.outbox.clear()
        assert (await store.outbox.survey()).set_aside == []


async def test_what_was_deleted_is_dropped_and_reported(field: Field) -> None:
    gone, kept = await field.session("gone"), await field.session("kept")
    async with await field.store() as store:
        (erased,) = await store.append(kept, [user("erased", id="e")])
        for id in ("gone", "kept"):
            await store.get_session(id)
        async with await field.opens() as other:
            await other.delete_session(gone)
            await other.erase(kept, [erased.seq])
        field.goes()
        await store.append(gone, [user("1", id="g1"), user("2", id="g2")])
        await store.append(kept, [user("erased", id="e"), user("new", id="n")])
        field.returns()
        await delivered(store)
        dropped = (await store.outbox.survey()).dropped
        assert sorted((d.session, d.id) for d in dropped) == [
            ("gone", "g1"),
            ("gone", "g2"),
            ("kept", "e"),
        ]
        assert {d.reason for d in dropped} == {"the session was deleted", "the message was erased"}
        assert said(await store.read(kept)) == ["", "new"]
        with pytest.raises(SessionGone):
            await store.append(gone, [user("3")])
        assert await store.get_session("gone") is None
        assert [info.id for info in await store.backend.file.sessions()] == ["kept"]


async def test_what_waits_is_activity_that_keeps_an_idle_session(field: Field) -> None:
    async with await field.store() as store:
        old = SessionInfo(id="s", created_at=1e9, updated_at=1e9)
        key = (await store.put_session(old)).key
        field.goes()
        await store.append(key, [user("I am back")])
        field.returns()
        refused = False
        while not refused:
            try:
                await store.delete_session(key, idle_since=1e9 + 1)
            except Stale:
                refused = True
            except Unavailable:
                await asyncio.sleep(0.01)
        assert said(await store.read(key)) == ["I am back"]


# --- turns ---


async def test_a_whole_turn_is_taken_without_the_server(field: Field) -> None:
    async with await field.store() as store:
        memory = Memory(store, Options(counter=Estimator()))
        session = await memory.session("s")
        async with session.turn("zero") as turn:
            await turn.finish("0")
        field.goes()
        async with session.turn("one", id="known") as turn:
            assert turn.number == 0
            with pytest.raises(Unavailable):
                await turn.context(budget=500)
            with pytest.raises(Unavailable):
                turn.delegate("a task")
            call = Message(role="assistant", tool_calls=[ToolCall(id="c", name="look")])
            await turn.append(call, Message(role="tool", tool_call_id="c", content="found"))
            async with session.turn("two") as other:
                await other.finish("2", usage={"input": 3})
            answer = await turn.finish("1")
        assert answer.state == "queued"
        field.returns()
        await delivered(store)
        log = await session.messages()
        assert [(m.content, m.turn) for m in log] == [
            ("zero", 1),
            ("0", 1),
            ("one", 2),
            ("", 2),
            ("found", 2),
            ("two", 3),
            ("2", 3),
            ("1", 2),
        ]
        assert log[6].meta == {"usage": {"input": 3}}
        async with session.turn("one", id="known") as again:
            assert again.answer == log[-1]
        assert [m.content for m in (await session.context(budget=500)).messages][-1] == "1"


async def test_a_turn_goes_on_when_the_server_returns(field: Field) -> None:
    async with await field.store() as store:
        session = await Memory(store, Options(counter=Estimator())).session("s")
        field.goes()
        async with session.turn("one") as turn:
            field.returns()
            await delivered(store)
            context = await turn.context(budget=500)
            assert (turn.number, turn.user.seq, turn.user.state) == (1, 1, "live")
            assert await turn.tool("t", {}, lambda: "r", cache_turns=2) == "r"
            field.goes()
            answer = await turn.finish("1", usage={"input": 3})
            assert answer.state == "queued"
        assert [m.content for m in context.messages] == ["one"]
        field.returns()
        await delivered(store)
        log = await session.messages()
        assert [m.turn for m in log] == [1] * 4
        assert log[-1].meta["usage"] == {"input": 3}


# --- processes ---


async def test_a_restart_in_an_outage_goes_on_with_known_sessions(field: Field) -> None:
    async with await field.store() as store:
        session = await Memory(store, Options(counter=Estimator())).session("s", owner="ana")
        await session.append(user("a"))
        field.goes()
        await session.append(user("b"))
    assert look(field.path).messages == 1
    async with await field.store() as store:
        memory = Memory(store, Options(counter=Estimator()))
        session = await memory.session("s", owner="ana")
        await session.append(user("c"))
        with pytest.raises(Unavailable):
            await memory.session("unknown")
        with pytest.raises(Unavailable):  # whether bea has one is not known here
            await memory.get_session("s", owner="bea")
    field.returns()
    async with await field.store() as store:
        await store.outbox.deliver()
        assert said(await store.read(session.key)) == ["a", "b", "c"]


async def test_closing_delivers_what_it_can(field: Field) -> None:
    key = await field.session()
    store = await field.store()
    field.goes()
    await store.append(key, [user("a")])
    field.returns()
    await store.close()
    await store.close()
    assert said(await field.log(key)) == ["a"]
    assert look(field.path).messages == 0
    with pytest.raises(StoreClosed):
        await store.append(key, [user("b")])
    with pytest.raises(StoreClosed):
        await store.read(key)


async def test_one_process_owns_a_outbox_and_others_may_look(redis_field: Field) -> None:
    key = await redis_field.session()
    async with await redis_field.store() as store:
        redis_field.goes()
        await store.append(key, [user("a")])
        with pytest.raises(Busy, match="process"):
            await redis_field.store()
        path = str(redis_field.path)
        code = f"from keepthread.stores.outbox.file import look; print(look({path!r}))"
        told = await asyncio.to_thread(subprocess.check_output, [sys.executable, "-c", code])
        assert b"messages=1" in told
        assert b"owner='process " in told
    assert look(redis_field.path).owner == ""


async def test_a_outbox_belongs_to_one_tenant_and_one_target(redis_field: Field) -> None:
    async with await redis_field.store(tenant="ours") as store:
        with pytest.raises(InvalidInput, match="one tenant"):
            Memory(store, Options(counter=Estimator())).tenant("theirs")
    with pytest.raises(InvalidInput, match="tenant 'ours'"):
        await redis_field.store(tenant="theirs")
    with pytest.raises(InvalidInput, match="target 'server://here/db'"):
        await redis_field.store(tenant="ours", target="server://there/db")
    async with await redis_field.store(tenant="ours"):
        pass


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("postgresql://ana:secret@Db.example:5432/chat", "postgresql://db.example:5432/chat"),
        ("postgres://a:1,b:2/chat?sslmode=require", "postgresql://a:1,b:2/chat"),
        ("postgresql:///chat?host=/run&user=ana&password=x", "postgresql:///chat?host=%2Frun"),
        ("redis://:secret@cache:6379/3", "redis://cache:6379/3"),
        ("redis+cluster://ana:pass@a:1,b:2", "redis+cluster://a:1,b:2"),
    ],
)
def test_a_target_is_named_without_its_passwords(url: str, name: str) -> None:
    assert target_of(url) == name


async def test_an_older_format_is_refused_with_the_commit_to_deliver_with(
    tmp_path: Path, redis_field: Field
) -> None:
    async with await redis_field.store():
        pass
    with closing(sqlite3.connect(redis_field.path)) as db:
        db.execute("PRAGMA user_version = 1")
    before = redis_field.path.read_bytes()
    with pytest.raises(WrongFormat, match=r"format 1, .*Deliver .*at commit 4ce31d9"):
        await redis_field.store()
    assert redis_field.path.read_bytes() == before


async def test_other_files_are_refused(tmp_path: Path, redis_field: Field) -> None:
    async with await SQLiteStore.open(redis_field.path):
        pass
    with pytest.raises(WrongFormat, match="not a keepthread outbox"):
        await redis_field.store()
    with pytest.raises(DurabilityTooLow):
        await redis_field.store(durability="replicated")
    with pytest.raises(InvalidInput, match="there is no outbox"):
        look(tmp_path / "missing")
    with pytest.raises(InvalidInput, match="there is no outbox"):
        await OutboxFile.open(tmp_path / "missing")
    with pytest.raises(InvalidInput, match="always available"):
        await Memory.open("ram://", outbox=str(tmp_path / "x"))


async def test_the_durability_is_the_lesser_of_both(redis_field: Field) -> None:
    async with await redis_field.store() as store:
        assert store.durability == "memory"
    redis_field.goes()
    async with await redis_field.store(durability="process") as store:
        assert store.durability == "process"
    async with await redis_field.store() as store:
        assert store.durability == "power"


# --- the file ---


async def test_hostile_messages_go_through_the_outbox_exactly(redis_field: Field) -> None:
    cases = [case for case in CASES if case.messages and case.expect is case.turn is None]
    key, another = await redis_field.session(), await redis_field.session("another")
    given: dict[str, Message] = {}
    async with await redis_field.store() as store:
        redis_field.goes()
        for case in cases:
            assert case.messages
            try:
                if not (batch := list(case.messages())):
                    continue  # nothing to take: the session must be looked at
                for made in await store.append(key, batch):
                    if "stored" in case.verdict:
                        given.setdefault(made.id, made)  # an id that comes again is the same
            except InvalidInput:
                assert "InvalidInput" in case.verdict, case.name
        # In a log of its own: after the hostile ones, a log may be able to count no more tokens.
        (full,) = await store.append(another, [FULL])
        redis_field.returns()
        await delivered(store)
        stored = {m.id: m for m in await store.find(key, ids=[*given])}
        stored |= {m.id: m for m in await store.find(another, ids=[full.id])}
        for message in (*given.values(), full):
            found = stored[message.id]
            for name in ("digest", "content", "meta", "tokens", "counter", "created_at", "native"):
                assert getattr(found, name) == getattr(message, name)
    assert len(given) > 10


async def test_a_delivered_text_is_gone_from_the_outbox(field: Field) -> None:
    key = await field.session()

    def bytes_of_all() -> bytes:
        return b"".join(p.read_bytes() for p in field.path.parent.glob(f"{field.path.name}*"))

    async with await field.store() as store:
        field.goes()
        for n in range(50):
            await store.append(key, [user(f"{MARKER} {n}" * 200)])
        assert MARKER.encode() in bytes_of_all()
        field.returns()
        await delivered(store)
        assert MARKER.encode() not in bytes_of_all()
    assert MARKER.encode() not in bytes_of_all()


async def test_a_full_disk_is_said_and_leaves_nothing_half(redis_field: Field) -> None:
    key = await redis_field.session()
    full = False

    class Connection(sqlite3.Connection):
        def executemany(self, sql: str, *values: Any) -> sqlite3.Cursor:
            if full and "messages" in sql:  # the batch is in already, its messages find no room
                self.execute("PRAGMA max_page_count = 1")
            return super().executemany(sql, *values)

    def connect(uri: str) -> sqlite3.Connection:
        return sqlite3.connect(uri, uri=True, isolation_level=None, timeout=0, factory=Connection)

    async with await redis_field.store(connect=connect) as store:
        redis_field.goes()
        await store.append(key, [user("a")])
        full = True
        with pytest.raises(StorageFull):
            await store.append(key, [user("b" * 500_000), user("c")])
        assert (await store.outbox.survey()).messages == 1
        redis_field.returns()
        await delivered(store)
        assert (await store.append(key, [user("d")]))[0].seq == 2


async def test_damage_in_the_file_costs_one_batch(redis_field: Field) -> None:
    key = await redis_field.session()
    async with await redis_field.store() as store:
        redis_field.goes()
        for text in ("a", "b", "c"):
            await store.append(key, [user(text)])
    with sqlite3.connect(redis_field.path) as db:
        db.execute("UPDATE messages SET content = X'78' WHERE batch = 2")
    db.close()
    redis_field.returns()
    async with await redis_field.store() as store:
        await store.outbox.deliver()
        assert said(await store.read(key)) == ["a", "c"]
        (aside,) = (await store.outbox.survey()).set_aside
        assert "damaged" in aside.reason


# --- like any other store ---


class TestOutboxStore(StoreContract):
    """While its target is there, a store with an outbox does what every store does for a tenant."""

    test_every_session_is_scanned_in_the_order_of_making = NEEDS_TENANTS
    test_hostile_input_is_stored_exactly_or_refused = NEEDS_TENANTS
    test_owners_are_those_who_have_something_on_their_shelf = NEEDS_TENANTS
    test_nothing_leads_to_another_tenant = NEEDS_TENANTS
    test_two_tenants_see_nothing_of_each_other = NEEDS_TENANTS
    test_changes_are_shown_to_their_owner_and_to_the_operator = NEEDS_TENANTS
    test_tenants_are_listed_by_name_page_by_page = NEEDS_TENANTS
    test_a_dropped_tenant_is_gone_and_begins_from_nothing = NEEDS_TENANTS
    test_a_closed_store_says_so = NEEDS_TENANTS

    async def open_store(self, folder: Path, *, clock: Callable[[], float]) -> Store:
        async def opens() -> SQLiteStore:
            return await SQLiteStore.open(folder / "store.db", clock=clock)

        return await OutboxStore.open(folder / "chat.outbox", opens, target="file", clock=clock)


async def test_hostile_input_is_stored_exactly_or_refused(redis_field: Field) -> None:
    async with await redis_field.store() as store:
        for case in CASES:
            if case.tenant is None:
                assert await try_hostile(store, case) == case.verdict, case.name


# --- opening by address, and blocking ---


@pytest.mark.parametrize("kind", ["redis", "postgres"])
async def test_a_silent_server_holds_up_the_first_append_for_seconds_only(
    kind: str, redis_server: RedisServer, postgres: "PostgresServer", tmp_path: Path
) -> None:
    server = redis_server if kind == "redis" else postgres
    async with Proxy(server.port).listening() as proxy:
        urls = {
            "redis": f"redis://127.0.0.1:{proxy.port}",
            "postgres": f"postgresql://postgres@127.0.0.1:{proxy.port}/keepthread",
        }
        outbox = str(tmp_path / "s.outbox")
        async with Memory.open(urls[kind], outbox=outbox, counter=Estimator()) as memory:
            session = await memory.session("silent")
            proxy.hangs = True
            async with asyncio.timeout(15):  # the store by itself would wait up to 30
                (message,) = await session.append(user("hello"))
            assert message.state == "queued"
            async with asyncio.timeout(1):
                (message,) = await session.append(user("again"))
            assert message.state == "queued"
            proxy.hangs = False
            proxy.cut()
            assert isinstance(memory.store, OutboxStore)
            await delivered(memory.store)
            assert said(await session.messages()) == ["hello", "again"]


async def test_a_memory_is_opened_with_a_outbox(redis_server: RedisServer, tmp_path: Path) -> None:
    redis_server.ask("FLUSHALL")
    async with Proxy(redis_server.port).listening() as proxy:
        url, path = f"redis://127.0.0.1:{proxy.port}", str(tmp_path / "chat.outbox")

        def blocking() -> list[str]:
            with sync.Memory.open(url, outbox=path, counter=Estimator()) as memory:
                assert memory.outbox
                session = memory.session("s")
                session.append(user("a"))
                assert memory.outbox.survey().messages == 0
                told: list[tuple[int, int]] = []
                memory.outbox.deliver(progress=lambda *each: told.append(each))
                memory.outbox.clear()
                return said(session.messages())

        assert await asyncio.to_thread(blocking) == ["a"]
        async with Memory.open(url, counter=Estimator()) as memory:
            assert memory.outbox is None
    survey = look(path)
    assert (survey.target, survey.tenant) == (url, "default")


# --- the laws, searched ---

STEPS = st.lists(
    st.one_of(
        st.sampled_from(["goes", "returns", "loses", "restarts", "delivers"]),
        st.tuples(st.integers(0, 1), st.integers(0, 9), st.integers(1, 3)),
    ),
    max_size=25,
)


@settings(
    max_examples=examples(12),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    deadline=None,
)
@given(steps=STEPS)
def test_whatever_happens_each_session_has_its_messages_once_and_in_order(
    redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory, steps: list[Any]
) -> None:
    redis_server.ask("FLUSHALL")
    asyncio.run(play(redis_server.port, tmp_path_factory.mktemp("outbox") / "chat.outbox", steps))


async def play(port: int, path: Path, steps: list[Any]) -> None:
    """Append by chance; an id may come again, with the body it had."""
    async with field_on(port, "redis", path) as field:
        keys = [await field.session(f"s{n}") for n in range(2)]
        wanted: list[list[str]] = [[], []]
        store = await field.store()
        for step in steps:
            if step == "restarts":
                await store.close()
                store = await field.store()
            elif step == "delivers":
                try:
                    await store.outbox.deliver()
                    found = [await store.read(key) for key in keys]
                except Unavailable:
                    continue
                assert [[m.id for m in log] for log in found] == wanted
            elif step == "loses":
                field.proxy.lose_answers = 5
            elif isinstance(step, str):
                getattr(field, step)()
            else:
                which, first, size = step
                ids = [f"m{first + n}" for n in range(size)]
                batch = [Message(role="user", content=id, id=id) for id in ids]
                taken = await store.append(keys[which], batch)
                assert [m.id for m in taken] == ids
                wanted[which] += [id for id in ids if id not in wanted[which]]
        field.returns()
        await delivered(store)
        await store.close()
        for key, ids in zip(keys, wanted, strict=True):
            assert [m.id for m in await field.log(key)] == ids
        assert json.dumps([*look(path).dropped, *look(path).set_aside]) == "[]"


# --- the command ---


async def test_the_command_shows_delivers_and_clears(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    redis_server.ask("FLUSHALL")
    path, url = tmp_path / "chat.outbox", redis_server.url
    away = True

    async def opens() -> RedisStore:
        if away:
            raise Unavailable("not yet")
        return await RedisStore.open(url)

    async with await RedisStore.open(url) as target:
        key = (await target.put_session(SessionInfo(id="s"))).key
        await target.append(key, [user("first", id="m")])
    async with await OutboxStore.open(path, opens, target=target_of(url)) as store:
        await store.append(key, [user("a")])
        await store.append(key, [user(f"{MARKER}\x1b[31m", id="m")])
        code, shown, _ = await command("outbox", str(path))
        assert code == 0
        assert "2 messages wait" in shown
        assert f"open in process {os.getpid()}" in shown
        code, _, told = await command("outbox", str(path), "--deliver", "--store", url)
        assert code == 2
        assert f"process {os.getpid()}" in told
    code, _, told = await command("outbox", str(path), "--deliver", "--store", "redis://other:1")
    assert (code, "is the outbox of target" in told) == (2, True)
    code, shown, told = await command("outbox", str(path), "--deliver", "--store", url, "--json")
    found = json.loads(shown)
    assert (found["waiting"], found["dropped"], found["target"]) == ([], [], url)
    (aside,) = found["set_aside"]
    assert aside["messages"][0]["content"] == f"{MARKER}\x1b[31m"
    _, shown, _ = await command("outbox", str(path))
    assert MARKER not in shown
    assert "another body" in shown
    code, _, told = await command("outbox", str(path), "--clear")
    assert (code, "--yes" in told) == (2, True)
    _, shown, _ = await command("outbox", str(path), "--clear", "--yes")
    assert "No messages are waiting" in shown
    assert look(path).set_aside == []
    assert MARKER.encode() not in path.read_bytes()
    assert (await command("outbox", str(tmp_path / "missing")))[0] == 2


async def command(*arguments: str) -> tuple[int, str, str]:
    done = await asyncio.to_thread(preloaded.command, *arguments)
    return done.returncode, done.stdout, done.stderr
