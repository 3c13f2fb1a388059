"""New messages are indexed once, however many searches and contexts of an owner wait for them."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from keepthread import Hybrid, Memory, Message, Options, View
from keepthread.errors import Unavailable
from keepthread.memory.search.search import Hit
from keepthread.protocols import Searchable, Store
from keepthread.types import Unread
from proofs.places import opened

PATIENCE = 30.0
SESSIONS, EACH = 4, 10


class Index:
    """A store's index that counts what is indexed; a test may hold it up, or make it fail."""

    def __init__(self, finder: Searchable) -> None:
        self.finder = finder
        self.users = self.calls = self.messages = self.refused = self.cancelled = 0
        self.before: Callable[[], Awaitable[object]] | None = None
        """Awaited before each call of `index`."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.finder, name)

    async def index(self, view: str, read: Unread, until: int, *rest: Any) -> None:
        self.calls += 1
        try:
            if self.before is not None:
                await self.before()
            await self.finder.index(view, read, until, *rest)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        except Exception:
            self.refused += 1
            raise
        self.messages += until - read.until


class Indexed:
    """A store whose index counts."""

    def __init__(self, store: Store, finder: Searchable) -> None:
        self.store = store
        self.index = Index(finder)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    async def finder(self) -> Any:
        self.index.users += 1
        return self.index


class Opened:
    """A memory with messages in several sessions of one owner, and its index."""

    def __init__(self, memory: Memory, index: Index) -> None:
        self.memory = memory
        self.index = index

    async def write(self) -> None:
        for name in range(SESSIONS):
            session = await self.memory.session(f"s{name}")
            texts = [f"apples {name} {number}" for number in range(EACH)]
            await session.append(*(Message(role="user", content=text) for text in texts))

    async def search(self) -> list[Hit]:
        return list(await self.memory.search("apples", limit=1000))


@pytest.fixture(params=["sqlite", "postgres"])
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Opened]:
    url = f"sqlite:///{tmp_path}/chat.db"
    if request.param == "postgres":
        url = request.getfixturevalue("postgres").empty()
    async with opened(url) as store:
        finder = await store.finder()
        assert finder is not None
        counting: Any = Indexed(store, finder)
        options = Options(recall="owner", views={"chat": View(600, Hybrid())})
        async with asyncio.timeout(PATIENCE), Memory(counting, options) as memory:
            place = Opened(memory, counting.index)
            await place.write()
            yield place


async def test_searches_that_start_together_index_each_message_once(place: Opened) -> None:
    found = await asyncio.gather(*(place.search() for _ in range(60)))
    assert {len(hits) for hits in found} == {SESSIONS * EACH}
    assert (place.index.calls, place.index.messages) == (SESSIONS, SESSIONS * EACH)


async def test_a_search_finds_the_messages_written_before_it_while_others_are_indexed(
    place: Opened,
) -> None:
    async def write_and_find(number: int) -> None:
        session = await place.memory.session(f"s{number % SESSIONS}")
        message = Message(role="user", content=f"more apples {number}", id=f"m{number}")
        await session.append(message)
        assert message.id in {hit.message.id for hit in await place.search()}

    await asyncio.gather(*(write_and_find(number) for number in range(60)))
    assert place.index.messages == SESSIONS * EACH + 60
    assert place.index.refused == 0


async def test_contexts_that_start_together_index_each_message_once(place: Opened) -> None:
    session = await place.memory.session("s0")
    await asyncio.gather(*(session.context("chat", query=f"apples {n}") for n in range(20)))
    assert (place.index.calls, place.index.messages) == (SESSIONS, SESSIONS * EACH)


async def held(place: Opened) -> tuple[threading.Event, threading.Event]:
    """Hold up the index; return what is set once it is called, and what lets it continue."""
    began, let_go = threading.Event(), threading.Event()

    async def wait() -> None:
        began.set()
        while not let_go.is_set():  # noqa: ASYNC110 - another thread sets it
            await asyncio.sleep(0.01)

    place.index.before = wait
    return began, let_go


async def reached(event: threading.Event) -> None:
    assert await asyncio.to_thread(event.wait, PATIENCE)


async def joined(place: Opened, users: int) -> None:
    """Wait until some searches have begun; the next thing they do is to wait for the index."""
    while place.index.users < users:  # noqa: ASYNC110 - other threads count too
        await asyncio.sleep(0)
    await asyncio.sleep(0)


async def cancel(task: "asyncio.Task[Any]") -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("which", [0, 1])
async def test_a_canceled_search_leaves_the_others_their_index(place: Opened, which: int) -> None:
    began, let_go = await held(place)
    first = asyncio.create_task(place.search())
    await reached(began)
    searches = [first, asyncio.create_task(place.search())]
    await joined(place, 2)
    await cancel(searches.pop(which))
    let_go.set()
    assert len(await searches[0]) == SESSIONS * EACH
    assert (place.index.cancelled, place.index.messages) == (0, SESSIONS * EACH)


async def test_indexing_ends_with_the_last_search_that_waits_for_it(place: Opened) -> None:
    began, let_go = await held(place)
    searches = [asyncio.create_task(place.search()) for _ in range(3)]
    await reached(began)
    await joined(place, 3)
    for search in searches:
        assert place.index.cancelled == 0
        await cancel(search)
    while not place.index.cancelled:  # noqa: ASYNC110 - the index counts it
        await asyncio.sleep(0)
    let_go.set()
    assert len(await place.search()) == SESSIONS * EACH


async def test_an_error_reaches_every_search_that_waits_and_none_that_comes_later(
    place: Opened,
) -> None:
    async def fail() -> None:
        await joined(place, 5)
        raise Unavailable("the index is unavailable")

    place.index.before = fail
    found = await asyncio.gather(*(place.search() for _ in range(5)), return_exceptions=True)
    assert [type(each) for each in found] == [Unavailable] * 5
    assert place.index.calls == 1
    place.index.before = None
    assert len(await place.search()) == SESSIONS * EACH


async def test_searches_of_several_event_loops_share_one_indexing_task(place: Opened) -> None:
    began, let_go = await held(place)
    first = asyncio.create_task(place.search())
    await reached(began)

    async def search() -> list[Hit]:
        task = asyncio.create_task(place.search())
        await joined(place, 2)
        let_go.set()
        return await task

    other = await asyncio.to_thread(asyncio.run, search())
    assert [len(await first), len(other)] == [SESSIONS * EACH] * 2
    assert (place.index.calls, place.index.messages) == (SESSIONS, SESSIONS * EACH)


async def test_a_search_finds_a_message_that_the_running_task_listed_too_early(
    place: Opened,
) -> None:
    began, let_go = await held(place)
    first = asyncio.create_task(place.search())
    await reached(began)
    session = await place.memory.session("s0")
    await session.append(Message(role="user", content="late apples", id="late"))
    second = asyncio.create_task(place.search())
    await joined(place, 2)
    let_go.set()
    assert len(await first) >= SESSIONS * EACH
    assert "late" in {hit.message.id for hit in await second}


async def test_a_search_takes_over_from_an_event_loop_that_ended(place: Opened) -> None:
    began, let_go = await held(place)

    async def search_and_end() -> None:
        search = asyncio.create_task(place.search())
        await reached(began)
        await joined(place, 2)
        assert not search.done()  # `asyncio.run` cancels it

    other = asyncio.create_task(asyncio.to_thread(asyncio.run, search_and_end()))
    await reached(began)
    mine = asyncio.create_task(place.search())
    await other
    assert place.index.cancelled == 1
    let_go.set()
    assert len(await mine) == SESSIONS * EACH
    assert place.index.messages == SESSIONS * EACH
