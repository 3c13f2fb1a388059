"""The proofs of order, of exactly once and of outages are not blind: they notice planted bugs."""

import asyncio
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from keepthread import Memory, Message, Options, SessionInfo
from keepthread.errors import Conflict, Unavailable
from keepthread.models.tokens import Estimator
from keepthread.stores.outbox.delivery import Delivery
from keepthread.stores.outbox.file import OutboxFile
from keepthread.stores.outbox.store import OutboxBackend, OutboxStore
from keepthread.stores.outbox.types import Batch
from keepthread.stores.ram import RamStore
from keepthread.stores.rows import PreparedMessage
from keepthread.stores.sqlite import SQLiteStore
from keepthread.types import SessionKey
from proofs import p04_order, p05_once, p14_outages

SIZE = 60
PATIENCE = 60.0


class Planted:
    """A store, and in front of it the bug of a subclass."""

    def __init__(self, store: RamStore) -> None:
        self.store = store
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    async def append(
        self, session: SessionKey, messages: Sequence[Message], **options: Any
    ) -> list[Message]:
        self.calls += 1
        return await self.store.append(session, messages, **options)


class Loses(Planted):
    """Some appends are acknowledged and not stored."""

    async def append(
        self, session: SessionKey, messages: Sequence[Message], **options: Any
    ) -> list[Message]:
        self.calls += 1
        if self.calls % 7 == 0:
            return [replace(message, seq=self.calls) for message in messages]
        return await self.store.append(session, messages, **options)


class Doubles(Planted):
    """Some messages are stored twice, under another id."""

    async def append(
        self, session: SessionKey, messages: Sequence[Message], **options: Any
    ) -> list[Message]:
        self.calls += 1
        stored = await self.store.append(session, messages, **options)
        if self.calls % 7 == 0:
            again = [replace(message, id=f"{message.id} again") for message in messages]
            await self.store.append(session, again, **options)
        return stored


class Parts(Planted):
    """The messages of one append are stored one by one, and others come in between."""

    async def append(
        self, session: SessionKey, messages: Sequence[Message], **options: Any
    ) -> list[Message]:
        stored: list[Message] = []
        for message in messages:
            stored += await self.store.append(session, [message], **options)
            await asyncio.sleep(0)
        return stored


# --- P4 ---


async def ordered(store: Planted, folder: Path) -> tuple[list[Message], list[p04_order.Call]]:
    memory = Memory(store, Options(counter=Estimator()))  # pyright: ignore[reportArgumentType]
    session = await memory.session("one")
    writers = [
        p04_order._Writer(folder, session.key, number, random.Random(number)) for number in range(2)
    ]
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(*(writer.run(memory, session, SIZE // 2) for writer in writers))
    lines = [line for number in range(2) for line in p04_order._lines(folder, number)]
    calls = [line for line in lines if isinstance(line, p04_order.Call)]
    return await store.store.read(session.key, limit=10_000), calls


async def test_the_proof_of_order_holds_on_a_sound_store(tmp_path: Path) -> None:
    log, calls = await ordered(Planted(RamStore()), tmp_path)
    assert p04_order._violations(log, calls, SIZE) == []


@pytest.mark.parametrize("bug", [Loses, Doubles, Parts])
async def test_the_proof_of_order_notices_a_planted_bug(bug: type[Planted], tmp_path: Path) -> None:
    log, calls = await ordered(bug(RamStore()), tmp_path)
    assert p04_order._violations(log, calls, SIZE)


async def test_the_proof_of_order_notices_two_appends_that_changed_places(tmp_path: Path) -> None:
    """Log and answers agree here: only the order in time is wrong."""
    _, calls = await ordered(Planted(RamStore()), tmp_path)
    single = sorted((c for c in calls if len(c.answers) == 1), key=lambda call: call.first)
    one, other = next(
        (a, b)
        for a in single
        for b in single
        if a.acknowledged < b.sent and a.writer != b.writer and a.first < b.first
    )
    late = one._replace(sent=other.sent, acknowledged=other.acknowledged)
    early = other._replace(sent=one.sent, acknowledged=one.acknowledged)
    calls = [late if call is one else early if call is other else call for call in calls]
    assert list(p04_order._out_of_time(calls))


# --- P5 ---


class ForgetsIds(Planted):
    """An id that was sent before is stored again, under another one."""

    def __init__(self, store: RamStore) -> None:
        super().__init__(store)
        self.seen: set[str] = set()

    async def append(
        self, session: SessionKey, messages: Sequence[Message], **options: Any
    ) -> list[Message]:
        named = [replace(m, id=f"{m.id} 2") if m.id in self.seen else m for m in messages]
        self.seen.update(message.id for message in messages)
        return await self.store.append(session, named, **options)


class TakesAnotherBody(Planted):
    """Another body under a known id is taken, and dropped."""

    async def append(
        self, session: SessionKey, messages: Sequence[Message], **options: Any
    ) -> list[Message]:
        try:
            return await self.store.append(session, messages, **options)
        except Conflict:
            return list(messages)


class AnswersWithWhatWasSent(Planted):
    """The caller is told of its own message, not of the one that is stored."""

    async def append(
        self, session: SessionKey, messages: Sequence[Message], **options: Any
    ) -> list[Message]:
        stored = await self.store.append(session, messages, **options)
        return [replace(s, tokens=m.tokens) for s, m in zip(stored, messages, strict=True)]


async def sent_by_two(store: Planted, folder: Path) -> list[str]:
    keys = [
        (await store.store.put_session(SessionInfo(id=f"{number}"))).key
        for number in range(p05_once.SESSIONS)
    ]
    writers = [
        p05_once._Writer(folder, "", keys, number, random.Random(number)) for number in range(2)
    ]
    for number in range(SIZE):
        for writer in writers:
            with suppress(Conflict):  # it is tallied
                await writer.settle(store, number)  # pyright: ignore[reportArgumentType]
    await writers[0].replace(store, 0)  # pyright: ignore[reportArgumentType]
    logs = [await store.store.read(key, limit=10_000) for key in keys]
    answers = [answer for number in range(2) for answer in p05_once._answers(folder, number)]
    tallies = p05_once._tallies(folder, 0) + p05_once._tallies(folder, 1)
    broken = [*p05_once._not_once(logs, SIZE), *p05_once._differing(logs, answers)]
    return broken + [line for line in tallies if line.startswith("error")]


async def test_the_proof_of_exactly_once_holds_on_a_sound_store(tmp_path: Path) -> None:
    assert await sent_by_two(Planted(RamStore()), tmp_path) == []


@pytest.mark.parametrize(
    "bug", [Loses, Doubles, ForgetsIds, TakesAnotherBody, AnswersWithWhatWasSent]
)
async def test_the_proof_of_exactly_once_notices_a_planted_bug(
    bug: type[Planted], tmp_path: Path
) -> None:
    assert await sent_by_two(bug(RamStore()), tmp_path)


# --- P14 ---


class Away:
    """A store on a file that can be away."""

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


class LosingFile(OutboxFile):
    """Some batches are acknowledged and not kept."""

    added = 0

    async def add(self, batch: Batch, drafts: Sequence[PreparedMessage]) -> None:
        self.added += 1
        if self.added % 5:
            await super().add(batch, drafts)


class HastyDelivery(Delivery):
    """Lets messages pass what waits before them."""

    async def is_free(self, session: SessionKey) -> bool:
        return not self._away


async def through_outages(
    folder: Path, file: type[OutboxFile], delivery: type[Delivery]
) -> p14_outages.Told:
    """Run P14's writer and its comparison in this process, over a store that comes and goes."""
    target = Away(await SQLiteStore.open(folder / "target.db", durability="process"))

    async def open_target() -> Any:
        return target

    opened = await file.open(folder / "outbox", target="t", durability="process")
    delivering = delivery(opened, open_target, "t")
    await delivering.begin()
    backend = OutboxBackend(delivering, "process", ())
    store = OutboxStore(backend, clock=lambda: 1.0, ids=fresh_ids())
    async with asyncio.timeout(PATIENCE), Memory(store, Options(counter=Estimator())) as memory:
        writer = p14_outages.Writer(folder, life=1, seed=1)
        sessions = [await memory.session(name) for name in p14_outages.SESSIONS]
        work = asyncio.create_task(writer.work(sessions))
        for _ in range(4):
            for state, away in (("queued", True), ("live", False)):
                target.away = away
                await noted(folder, state, 20)
        writer.stopped = True
        await work
        assert memory.outbox
        while (await memory.outbox.survey()).messages:
            with suppress(Unavailable):  # an attempt that began in an outage may still fail
                await memory.outbox.deliver()
        logs = {
            name: [m.content for m in await target.store.read(session.key, limit=100_000)]
            for name, session in zip(p14_outages.SESSIONS, sessions, strict=True)
        }
    return p14_outages.compare((folder / "notes").read_text(), logs)


def fresh_ids() -> Callable[[], str]:
    numbers = iter(range(1_000_000))
    return lambda: f"given {next(numbers)}"


async def noted(folder: Path, state: str, count: int) -> None:
    """Wait until the writer has noted so many more acknowledgements of a kind."""
    notes = folder / "notes"

    def so_far() -> int:
        return notes.read_text().count(f" {state}\n") if notes.exists() else 0

    wanted = so_far() + count
    while so_far() < wanted:  # noqa: ASYNC110 - a file tells
        await asyncio.sleep(0.01)


async def test_the_proof_of_outages_holds_for_a_sound_outbox(tmp_path: Path) -> None:
    told = await through_outages(tmp_path, OutboxFile, Delivery)
    assert told.broken == []
    assert told.queued


async def test_the_proof_of_outages_notices_an_outbox_that_loses_batches(tmp_path: Path) -> None:
    assert (await through_outages(tmp_path, LosingFile, Delivery)).lost


async def test_the_proof_of_outages_notices_messages_that_overtake(tmp_path: Path) -> None:
    assert (await through_outages(tmp_path, OutboxFile, HastyDelivery)).moved
