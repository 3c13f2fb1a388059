"""Event loops in threads of their own share one memory, on every store."""

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from keepthread import Memory, Message, Options, Session, sync
from keepthread.errors import StoreClosed, Unavailable
from keepthread.event_loops import LoopEnded, PerLoop, run_in
from keepthread.memory.runtime import Background
from keepthread.models.tokens import Estimator
from keepthread.stores.outbox.store import OutboxStore
from keepthread.stores.sqlite import SQLiteStore

if TYPE_CHECKING:
    from servers.postgres import PostgresServer
    from servers.redis import RedisServer

T = TypeVar("T")
PATIENCE = 60.0
STORES = ["ram", "sqlite", "postgres", "redis", "sqlite with an outbox", "redis with an outbox"]


@pytest.fixture(params=STORES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    """Return the arguments that open a memory."""
    kind: str = request.param
    settings: dict[str, Any] = {"url": "ram://", "counter": Estimator()}
    if kind.startswith("sqlite"):
        settings["url"] = f"sqlite:///{tmp_path}/chat.db"
    elif kind == "postgres":
        postgres: PostgresServer = request.getfixturevalue("postgres")
        settings["url"] = postgres.empty()
    elif kind.startswith("redis"):
        redis: RedisServer = request.getfixturevalue("redis_server")
        redis.ask("FLUSHALL")
        settings["url"] = f"redis://127.0.0.1:{redis.port}"
    if "outbox" in kind:
        settings["outbox"] = f"{tmp_path}/chat.outbox"
    return settings


async def elsewhere(call: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run something in an event loop of another thread."""
    return await asyncio.wait_for(asyncio.to_thread(asyncio.run, call()), PATIENCE)


def user(text: str) -> Message:
    return Message(role="user", content=text)


async def test_two_loops_write_and_read_one_session(place: dict[str, Any]) -> None:
    async with asyncio.timeout(PATIENCE), Memory.open(**place) as memory:
        session = await memory.session("s")

        async def write(name: str) -> None:
            for number in range(0, 30, 3):
                await session.append(user(f"{name}{number}"))
                await session.append(user(f"{name}{number + 1}"), user(f"{name}{number + 2}"))
                await session.context(budget=200)

        others = [elsewhere(lambda name=name: write(name)) for name in "bc"]
        await asyncio.gather(write("a"), *others)
        log = [m.content for m in await memory.store.read(session.key, limit=1000)]
        for name in "abc":
            assert [text for text in log if text[0] == name] == [f"{name}{n}" for n in range(30)]
        assert len(log) == 90


async def test_of_two_loops_that_want_one_tool_result_one_runs_the_tool(
    place: dict[str, Any],
) -> None:
    async with asyncio.timeout(PATIENCE), Memory.open(**place) as memory:
        session = await memory.session("s")
        runs: list[str] = []
        began = threading.Event()
        let_go = threading.Event()

        async def slow() -> str:
            runs.append(threading.current_thread().name)
            began.set()
            await asyncio.to_thread(let_go.wait, PATIENCE)
            return "sunny"

        async def ask(text: str) -> str:
            async with session.turn(text) as turn:
                return await turn.tool("weather", {}, slow, cache_turns=3)

        other = asyncio.create_task(elsewhere(lambda: ask("one")))
        await asyncio.to_thread(began.wait, PATIENCE)
        mine = asyncio.create_task(ask("two"))
        await asyncio.wait([mine], timeout=0.1)
        let_go.set()
        assert [await other, await mine] == ["sunny", "sunny"]
        assert len(runs) == 1


async def test_accounts_of_another_loop_are_read_also_when_that_loop_has_ended(
    place: dict[str, Any],
) -> None:
    async with asyncio.timeout(PATIENCE), Memory.open(**place, keep_why=9) as memory:
        session = await memory.session("s")
        await session.append(user("a"))

        async def look() -> None:
            await session.context()

        await elsewhere(look)  # ends before its account is written
        assert len(await session.explanations()) == 1
        await asyncio.gather(elsewhere(look), look())
        await memory.idle()
        assert len(await session.explanations()) == 3


def test_a_memory_goes_on_in_another_loop_when_the_one_that_opened_it_has_ended(
    place: dict[str, Any],
) -> None:
    async def begin() -> tuple[Memory, Session]:
        memory = await Memory.open(**place, keep_why=2)
        session = await memory.session("s")
        await session.append(user("a"))
        await session.context()
        return memory, session

    async def go_on() -> list[str]:
        async with asyncio.timeout(PATIENCE):
            await session.append(user("b"))
            assert len(await session.explanations()) == 1
            return [m.content for m in await memory.store.read(session.key, limit=9)]

    async def end() -> None:
        async with asyncio.timeout(PATIENCE):
            await memory.close()
            with pytest.raises(StoreClosed):
                await session.append(user("c"))

    memory, session = asyncio.run(begin())
    assert asyncio.run(go_on()) == ["a", "b"]
    asyncio.run(end())


def test_the_blocking_memory_is_shared_by_threads_with_running_loops(place: dict[str, Any]) -> None:
    with sync.Memory.open(**place) as memory:
        session = memory.session("s")

        async def write(name: str) -> None:
            for number in range(10):
                session.append(user(f"{name}{number}"))

        with ThreadPoolExecutor(3) as threads:
            for done in [threads.submit(asyncio.run, write(name)) for name in "abc"]:
                done.result(PATIENCE)
        log = [m.content for m in session.context(budget=10_000).messages]
        for name in "abc":
            assert [t for t in log if t[0] == name] == [f"{name}{n}" for n in range(10)]


# --- the outbox ---


class Target:
    """A real store that can be away."""

    durability = "process"

    def __init__(self, store: SQLiteStore) -> None:
        self.store = store
        self.away = False

    @property
    def backend(self) -> Any:
        return self

    def __getattr__(self, name: str) -> Any:
        async def call(*args: Any, **options: Any) -> Any:
            if self.away and name != "close":
                raise Unavailable("away")
            return await getattr(self.store.backend, name)(*args, **options)

        return call


def test_what_waits_in_the_outbox_of_a_loop_that_ended_is_delivered_before_later_messages(
    tmp_path: Path,
) -> None:
    async def begin() -> tuple[Memory, Session, Target]:
        target = Target(await SQLiteStore.open(tmp_path / "t.db", durability="process"))

        async def open_target() -> Any:
            return target

        store = await OutboxStore.open(
            tmp_path / "s.outbox", open_target, target="t", durability="process"
        )
        memory = Memory(store, Options(counter=Estimator()))
        session = await memory.session("s")
        target.away = True
        assert [m.state for m in await session.append(user("a"))] == ["queued"]
        return memory, session, target

    async def go_on() -> None:
        async with asyncio.timeout(PATIENCE):
            assert [m.state for m in await session.append(user("b"))] == ["queued"]
            target.away = False
            assert memory.outbox
            await memory.outbox.deliver()
            assert [m.state for m in await session.append(user("c"))] == ["live"]
            log = await target.store.read(session.key, limit=9)
            assert [m.content for m in log] == ["a", "b", "c"]
            await memory.close()

    memory, session, target = asyncio.run(begin())
    asyncio.run(go_on())


# --- the parts ---


@pytest.fixture
def other_loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join(PATIENCE)
    loop.close()


async def test_a_call_into_a_loop_that_ends_does_not_wait_for_ever(
    other_loop: asyncio.AbstractEventLoop,
) -> None:
    async def never() -> None:
        other_loop.call_soon(other_loop.stop)
        await asyncio.Event().wait()

    started = time.monotonic()
    with pytest.raises(LoopEnded):
        await run_in(other_loop, never)
    assert time.monotonic() - started < PATIENCE
    pending = asyncio.all_tasks(other_loop)
    for task in pending:  # nobody runs it any more
        task.cancel()
    await asyncio.to_thread(
        other_loop.run_until_complete, asyncio.gather(*pending, return_exceptions=True)
    )


async def test_a_call_that_is_given_up_is_cancelled_in_the_other_loop(
    other_loop: asyncio.AbstractEventLoop,
) -> None:
    began, cancelled = threading.Event(), threading.Event()

    async def wait() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    task = asyncio.create_task(run_in(other_loop, wait))
    assert await asyncio.to_thread(began.wait, PATIENCE)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.to_thread(cancelled.wait, PATIENCE)


async def test_each_loop_has_its_own_resource_and_closes_it_at_its_end() -> None:
    closed: list[tuple[int, int]] = []
    numbers = iter(range(10))

    async def close(number: int) -> None:
        closed.append((number, threading.get_ident()))

    per_loop = PerLoop(lambda: next(numbers), close)

    async def use() -> tuple[int, int, int]:
        return per_loop.current(), per_loop.current(), threading.get_ident()

    assert (per_loop.current(), per_loop.current()) == (0, 0)
    first, again, thread = await elsewhere(use)
    assert (first, again) == (1, 1)
    assert closed == [(1, thread)]
    await per_loop.close()
    assert closed[1:] == [(0, threading.get_ident())]


async def test_work_of_a_loop_that_ended_is_done_by_the_next_that_waits() -> None:
    background = Background()
    done: list[str] = []

    async def begin() -> None:
        async def work() -> None:
            if not done:
                done.append("begun")
                await asyncio.sleep(PATIENCE)
            done.append("done")

        background.soon("name", work)
        await asyncio.sleep(0)

    await elsewhere(begin)
    async with asyncio.timeout(PATIENCE):
        await background.done("name")
    assert done == ["begun", "done"]


async def test_closing_breaks_off_the_work_of_other_loops(
    other_loop: asyncio.AbstractEventLoop,
) -> None:
    background, broken_off = Background(), threading.Event()

    async def work() -> None:
        try:
            await asyncio.sleep(PATIENCE)
        finally:
            broken_off.set()

    async def begin() -> None:
        background.soon("name", work)
        await asyncio.sleep(0)

    await run_in(other_loop, begin)
    await background.close(grace=0.1)
    assert broken_off.wait(PATIENCE)


def test_a_forked_child_neither_waits_for_the_parent_s_loops_nor_closes_its_outbox(
    tmp_path: Path,
) -> None:
    settings: dict[str, Any] = {
        "url": f"sqlite:///{tmp_path}/chat.db",
        "outbox": f"{tmp_path}/chat.outbox",
        "counter": Estimator(),
        "keep_why": 3,
    }

    async def in_the_child() -> None:
        await memory.idle()
        with suppress(StoreClosed):
            await session.append(user("b"))
            os._exit(3)
        await memory.close()

    async def begin() -> tuple[Memory, Session]:
        memory = await Memory.open(**settings)
        session = await memory.session("s")
        await session.append(user("a"))
        await session.context()
        return memory, session

    async def end() -> list[str]:
        await session.append(user("c"))
        log = [m.content for m in await memory.store.read(session.key, limit=9)]
        await memory.close()
        return log

    memory, session = asyncio.run(begin())
    child = os.fork()
    if not child:
        signal.alarm(20)  # a child that waits is killed
        asyncio.run(in_the_child())
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert asyncio.run(end()) == ["a", "c"]
