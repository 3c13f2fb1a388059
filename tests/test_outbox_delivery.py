"""Delivery from the outbox at chosen moments: nothing is left behind, nothing is overtaken."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from keepthread import Message, SessionInfo
from keepthread.errors import StorageFull, Unavailable
from keepthread.stores.outbox.delivery import Delivery
from keepthread.stores.outbox.file import OutboxFile
from keepthread.stores.outbox.store import OutboxBackend, OutboxStore
from keepthread.stores.outbox.types import Batch, KnownSessions
from keepthread.stores.rows import PreparedMessage
from keepthread.stores.sqlite import SQLiteStore
from keepthread.types import SessionKey
from tests import hostile_pairs

PATIENCE = 20.0


class Target:
    """A real store on a file that can be away; `fails` decides for each append."""

    durability = "process"

    def __init__(self, store: SQLiteStore) -> None:
        self.store = store
        self.away = False
        self.fails: Callable[[Message], Awaitable[bool]] | None = None

    @property
    def backend(self) -> Any:
        return self

    def __getattr__(self, name: str) -> Any:
        real = getattr(self.store.backend, name)

        async def call(*args: Any, **options: Any) -> Any:
            if name == "append" and self.fails and await self.fails(args[2].drafts[0].message):
                raise Unavailable("it took too long")
            if self.away and name != "close":
                raise Unavailable("away")
            return await real(*args, **options)

        return call


class SlowFile(OutboxFile):
    """A file whose reads and writes can be stretched to meet each other."""

    empty_page_read: asyncio.Event
    added: asyncio.Event
    stretched = False

    async def oldest(self, session: SessionKey, limit: int) -> list[Batch]:
        page = await super().oldest(session, limit)
        if self.stretched and not page:
            self.empty_page_read.set()
            await self.added.wait()
        return page

    async def add(self, batch: Batch, drafts: Sequence[PreparedMessage]) -> None:
        if self.stretched:
            await self.empty_page_read.wait()
        await super().add(batch, drafts)
        if self.stretched:
            # The reader of the empty page continues after the whole add is done.
            asyncio.get_running_loop().call_later(0.05, self.added.set)


@pytest.fixture
async def target(tmp_path: Path) -> AsyncIterator[Target]:
    async with await SQLiteStore.open(tmp_path / "target.db", durability="process") as store:
        yield Target(store)


async def queued(target: Target, file: OutboxFile) -> OutboxStore:
    async def open_target() -> Any:
        return target

    delivery = Delivery(file, open_target, "target")
    await delivery.begin()
    backend = OutboxBackend(delivery, "process", ())
    return OutboxStore(backend, clock=lambda: 1.0, ids=iter_ids().__next__)


def iter_ids() -> Any:
    return (f"id{number}" for number in range(1_000_000))


def user(text: str) -> Message:
    return Message(role="user", content=text)


async def texts(target: Target, key: SessionKey) -> list[str]:
    return [message.content for message in await target.store.read(key, limit=1000)]


async def test_a_batch_added_while_an_empty_page_is_read_is_delivered_before_later_messages(
    target: Target, tmp_path: Path
) -> None:
    file = await SlowFile.open(tmp_path / "s.outbox", target="t", durability="process")
    file.empty_page_read, file.added = asyncio.Event(), asyncio.Event()
    under_way, ends = asyncio.Event(), asyncio.Event()

    async def b_fails_once(message: Message) -> bool:
        if message.content != "B" or under_way.is_set():
            return False
        under_way.set()
        await ends.wait()
        return True

    target.fails = b_fails_once
    async with asyncio.timeout(PATIENCE), await queued(target, file) as store:
        key = (await store.put_session(SessionInfo(id="s"))).key
        b = asyncio.create_task(store.append(key, [user("B")]))
        await under_way.wait()
        target.away = True
        (a,) = await store.append(key, [user("A")])
        file.stretched, target.away = True, False
        ends.set()
        (second,) = await b
        assert (a.state, second.state) == ("queued", "queued")
        await store.append(key, [user("C")])
        await store.outbox.deliver()
        assert await texts(target, key) == ["A", "B", "C"]
        assert (await store.outbox.survey()).messages == 0


class FullFile(OutboxFile):
    """A file on a disk that is full for a while."""

    is_full = True

    async def add(self, batch: Batch, drafts: Sequence[PreparedMessage]) -> None:
        if self.is_full:
            raise StorageFull("the disk is full")
        await super().add(batch, drafts)


async def test_a_batch_that_could_not_be_queued_is_not_waited_for_or_reported_missing(
    target: Target, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = await FullFile.open(tmp_path / "s.outbox", target="t", durability="process")
    async with asyncio.timeout(PATIENCE), await queued(target, file) as store:
        key = (await store.put_session(SessionInfo(id="s"))).key
        target.away = True
        for _ in range(2):  # the first one notices that the target is away
            with pytest.raises(StorageFull):
                await store.append(key, [user("A")])
        target.away, file.is_full = False, False
        await store.outbox.deliver()
        assert await store.read(key) == []
        (message,) = await store.append(key, [user("B")])
        assert message.state == "live"
        assert await texts(target, key) == ["B"]
    assert [each.message for each in caplog.records if each.levelname == "ERROR"] == []


async def test_what_was_delivered_before_a_failure_inside_a_page_leaves_the_outbox(
    target: Target, tmp_path: Path
) -> None:
    file = await OutboxFile.open(tmp_path / "s.outbox", target="t", durability="process")
    store = await queued(target, file)
    key = (await store.put_session(SessionInfo(id="s"))).key
    target.away = True
    for text in ("A", "B", "C"):
        await store.append(key, [user(text)])
    stuck = True

    async def c_fails(message: Message) -> bool:
        return stuck and message.content == "C"

    target.fails, target.away = c_fails, False
    async with asyncio.timeout(PATIENCE):
        while (await texts(target, key)) != ["A", "B"]:
            with pytest.raises(Unavailable):
                await store.outbox.deliver()
        assert (await store.outbox.survey()).messages == 1
        stuck = False
        with suppress(Unavailable):  # an attempt that began before may still fail
            await store.outbox.deliver()
        await store.outbox.deliver()
        assert await texts(target, key) == ["A", "B", "C"]
    await store.close()


def test_the_sessions_an_outbox_knows_are_bounded() -> None:
    known = KnownSessions((), limit=3)
    for number in range(10):
        known.add(SessionInfo(id=f"s{number}", key=SessionKey(f"k{number}")))
        known.note_written(SessionKey(f"k{number}"))
    assert len(known) == 3
    kept = [known.get("default", f"s{n}") is not None for n in range(10)]
    assert kept == [False] * 7 + [True] * 3
    assert known.by_key(SessionKey("k0")) is None
    assert not known.is_written(SessionKey("k0"))
    assert known.is_written(SessionKey("k9"))


def test_a_session_made_again_under_its_id_leaves_nothing_of_the_old_one() -> None:
    known = KnownSessions([SessionInfo(id="s", key=SessionKey("old"))])
    new = SessionInfo(id="s", key=SessionKey("new"))
    known.add(new)
    assert (known.by_key(SessionKey("old")), known.by_key(SessionKey("new"))) == (None, new)
    assert known.discard("default", "s")
    assert len(known) == 0


@pytest.mark.parametrize(("one", "two"), [("ana", "bob"), *hostile_pairs.NAMES])
def test_an_outbox_knows_sessions_of_two_owners_with_one_id(one: str, two: str) -> None:
    first = SessionInfo(id="s", owner=one, key=SessionKey("1"))
    second = SessionInfo(id="s", owner=two, key=SessionKey("2"))
    known = KnownSessions([first, second])
    assert (known.get(one, "s"), known.get(two, "s")) == (first, second)
    assert known.get("nobody", "s") is None
    assert not known.discard("nobody", "s")
    assert known.discard(one, "s")
    assert (known.by_key(first.key), known.by_key(second.key)) == (None, second)
