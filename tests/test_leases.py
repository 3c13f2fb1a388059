"""Leases: one does a thing, another takes over should it die, and no two clocks need agree."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest

from keepthread import RamStore, Scope, SessionInfo
from keepthread.errors import Unavailable
from keepthread.protocols import Store
from keepthread.stores.kinds import LEASE
from keepthread.stores.leases import Leases
from keepthread.types import JSON


class Time:
    """Time that passes when it is told to, and wakes who sleeps."""

    def __init__(self) -> None:
        self.now = 100.0
        self.sleepers: list[tuple[float, asyncio.Future[None]]] = []
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        waking = asyncio.get_running_loop().create_future()
        self.sleepers.append((self.now + seconds, waking))
        await waking

    async def go_on(self, seconds: float) -> None:
        """Let so many seconds pass, and everybody do what they have to."""
        end = self.now + seconds
        await settle()
        while due := sorted((s for s in self.sleepers if s[0] <= end), key=lambda s: s[0]):
            self.now, waking = due[0]
            self.sleepers.remove(due[0])
            if not waking.done():
                waking.set_result(None)
            await settle()
        self.now = end


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def store() -> RamStore:
    return RamStore()


@pytest.fixture
async def shelf(store: RamStore) -> Scope:
    return Scope(session=(await store.put_session(SessionInfo(id="s"))).key)


@pytest.fixture
def leases(store: RamStore, time: Time) -> Leases:
    """Return leases of a process whose wall clock is an hour behind."""
    return Leases(store=store, clock=lambda: time.now - 3600, monotonic=time, sleep=time.sleep)


Work = Callable[..., Coroutine[Any, Any, bool]]


@pytest.fixture
def work(leases: Leases, shelf: Scope) -> Work:
    """Return work that is done under a lease, for as long as an event is not set."""

    async def working(done: asyncio.Event, begun: list[str], name: str = "", **how: Any) -> bool:
        async with leases.held(shelf, "k", **{"wait": True, **how}) as held:
            if held:
                begun.append(name)
                await done.wait()
            return held

    return working


async def test_a_lease_is_held_and_let_go(store: RamStore, leases: Leases, shelf: Scope) -> None:
    async with leases.held(shelf, "k", wait=False) as held:
        assert held
        assert await store.get(shelf, LEASE, "k")
        async with leases.held(shelf, "k", wait=False) as second:
            assert not second
        async with leases.held(shelf, "other", wait=False) as another:
            assert another
    assert await store.scan(shelf, LEASE) == []


async def test_a_lease_is_let_go_when_the_work_fails(leases: Leases, shelf: Scope) -> None:
    with pytest.raises(ZeroDivisionError):
        async with leases.held(shelf, "k", wait=False):
            raise ZeroDivisionError
    async with leases.held(shelf, "k", wait=False) as held:
        assert held


async def test_who_waits_gets_it_when_it_is_let_go(time: Time, work: Work) -> None:
    done, begun = asyncio.Event(), list[str]()
    first = asyncio.create_task(work(done, begun, "first"))
    await time.go_on(0)
    second = asyncio.create_task(work(done, begun, "second"))
    await time.go_on(5)
    assert begun == ["first"]
    done.set()
    await time.go_on(0.2)
    assert await first
    assert await second
    assert begun == ["first", "second"]


async def test_looking_again_grows_gentle(
    time: Time, leases: Leases, shelf: Scope, work: Work
) -> None:
    await leases.put(shelf, "k", 0)
    waiting = asyncio.create_task(work(asyncio.Event(), list[str]()))
    await time.go_on(2)
    assert time.slept[:6] == [0.01, 0.02, 0.04, 0.08, 0.16, 0.2]
    assert set(time.slept[5:]) == {0.2}
    waiting.cancel()


async def test_a_lease_is_renewed_as_long_as_the_work_takes(time: Time, work: Work) -> None:
    done, begun = asyncio.Event(), list[str]()
    first = asyncio.create_task(work(done, begun, "first"))
    await time.go_on(0)
    second = asyncio.create_task(work(done, begun, "second"))
    await time.go_on(500)
    assert begun == ["first"]
    done.set()
    await time.go_on(1)
    assert await first
    assert await second


async def test_what_a_dead_process_held_is_taken_over_after_its_length(
    time: Time, leases: Leases, shelf: Scope, work: Work
) -> None:
    await leases.put(shelf, "k", 0)
    done, begun = asyncio.Event(), list[str]()
    done.set()
    waiting = asyncio.create_task(work(done, begun, "second"))
    await time.go_on(29.9)
    assert begun == []
    await time.go_on(0.4)
    assert await waiting


async def test_of_those_who_wait_for_a_dead_process_one_takes_over(
    time: Time, leases: Leases, shelf: Scope, work: Work
) -> None:
    await leases.put(shelf, "k", 0)
    done, begun = asyncio.Event(), list[str]()
    waiting = [asyncio.create_task(work(done, begun, str(n))) for n in range(5)]
    await time.go_on(300)
    assert len(begun) == 1
    done.set()
    await time.go_on(2)
    assert all([await each for each in waiting])
    assert len(begun) == 5


async def test_the_wall_clock_ends_a_lease_only_for_who_asks_for_it(
    time: Time, store: RamStore, leases: Leases, shelf: Scope
) -> None:
    ahead = Leases(store=store, clock=lambda: time.now, monotonic=time, sleep=time.sleep)
    await leases.put(shelf, "k", 0)  # by a clock an hour behind: over, as this one sees it
    async with ahead.held(shelf, "k", wait=False) as held:
        assert not held
    async with leases.held(shelf, "k", wait=False, by_clock=True) as held:
        assert not held
    async with ahead.held(shelf, "k", wait=False, by_clock=True) as held:
        assert held


async def test_who_lost_a_lease_goes_on_and_leaves_it_to_the_other(
    time: Time, store: RamStore, leases: Leases, shelf: Scope, work: Work
) -> None:
    done, begun = asyncio.Event(), list[str]()
    first = asyncio.create_task(work(done, begun))
    await time.go_on(0)
    record = await store.get(shelf, LEASE, "k")
    assert record
    taken = await leases.put(shelf, "k", record.version)
    await time.go_on(60)
    assert not first.done()
    done.set()
    assert await first
    record = await store.get(shelf, LEASE, "k")
    assert record
    assert record.version == taken


async def test_waiting_ends_when_there_is_nothing_left_to_do(
    time: Time, leases: Leases, shelf: Scope, work: Work
) -> None:
    await leases.put(shelf, "k", 0)
    over = asyncio.Event()

    async def needless() -> bool:
        return over.is_set()

    waiting = asyncio.create_task(work(asyncio.Event(), list[str](), needless=needless))
    await time.go_on(3)
    assert not waiting.done()
    over.set()
    await time.go_on(0.2)
    assert not await waiting


class Unsteady(RamStore):
    """A store that cannot be written to for a while."""

    away = False

    async def put(self, scope: Scope, kind: str, key: str, value: JSON, **rest: Any) -> int:
        if self.away:
            raise Unavailable("the disk is away")
        return await super().put(scope, kind, key, value, **rest)


async def test_a_renewal_that_fails_is_tried_again(time: Time) -> None:
    store = Unsteady()
    leases = Leases(store=cast(Store, store), clock=time, monotonic=time, sleep=time.sleep)
    shelf = Scope(session=(await store.put_session(SessionInfo(id="s"))).key)
    async with leases.held(shelf, "k", wait=False):
        before = await store.get(shelf, LEASE, "k")
        store.away = True
        await time.go_on(11)
        assert await store.get(shelf, LEASE, "k") == before
        store.away = False
        await time.go_on(10)
        assert await store.get(shelf, LEASE, "k") != before


async def test_a_lease_in_a_session_that_is_deleted_meanwhile_is_no_error(
    time: Time, store: RamStore, leases: Leases, shelf: Scope
) -> None:
    async with leases.held(shelf, "k", wait=False):
        await store.delete_session(shelf.session)
        await time.go_on(40)


async def test_cancelled_work_lets_go(
    time: Time, store: RamStore, shelf: Scope, work: Work
) -> None:
    working = asyncio.create_task(work(asyncio.Event(), list[str]()))
    await time.go_on(15)
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    assert await store.scan(shelf, LEASE) == []
    await time.go_on(60)
    assert await store.scan(shelf, LEASE) == []


class Slow(RamStore):
    """A store that answers some time after it has written."""

    async def put(self, scope: Scope, kind: str, key: str, value: JSON, **rest: Any) -> int:
        version = await super().put(scope, kind, key, value, **rest)
        await settle()
        return version

    async def drop(self, scope: Scope, kind: str, key: str, **rest: Any) -> bool:
        await asyncio.sleep(0)
        return await super().drop(scope, kind, key, **rest)


async def _yield(_: float) -> None:
    await asyncio.sleep(0)


@pytest.mark.parametrize("renews", [False, True])
@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("steps", range(1, 60, 3))
async def test_work_that_is_canceled_while_a_lease_is_taken_or_released_leaves_none(
    time: Time, steps: int, times: int, renews: bool
) -> None:
    store = Slow()
    sleep = _yield if renews else time.sleep
    leases = Leases(store=cast(Store, store), clock=time, monotonic=time, sleep=sleep)
    shelf = Scope(session=(await store.put_session(SessionInfo(id="s"))).key)

    async def working() -> None:
        async with leases.held(shelf, "k", wait=True):
            await asyncio.sleep(0)

    task = asyncio.create_task(working())
    for _ in range(steps):
        await asyncio.sleep(0)
    for _ in range(times):
        task.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    await asyncio.wait([task])
    assert task.cancelled() or not task.exception()
    assert await store.scan(shelf, LEASE) == []
