"""Blobs beside other operations: one runs just before each store call of another, in turn."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from hashlib import sha256
from itertools import product
from typing import Final, NamedTuple, TypeAlias, cast

import pytest

from keepthread import Attachment, Memory, Message, Options, OwnerMemory
from keepthread.context.full_text import blobs_of, full_text_of
from keepthread.errors import Busy, KeepthreadError, NotFound, SessionGone, StoreClosed
from keepthread.memory.blobs.types import BlobSizes, Described
from keepthread.models.tokens import Estimator
from keepthread.protocols import Store
from keepthread.stores import RamStore
from keepthread.stores.kinds import BLOB, BLOB_CHUNK, BLOB_UPLOAD, BLOB_USE
from keepthread.types import Scope
from proofs.interposed import Interposed, Once, cancel_caller
from tests.every_store import store

__all__ = ["store"]

DATA: Final = b"contract " * 300
DIGEST: Final = sha256(DATA).hexdigest()
TEXT: Final = "a long text " * 200
ANN: Final = Scope(owner="ann")
DAY: Final = 86_400.0
SIZES: Final = BlobSizes(chunk=1000, text=2000, blob=5000)

Operation: TypeAlias = Callable[[OwnerMemory], Awaitable[object]]


def ann_of(store: Store, ahead: float = 0.0) -> OwnerMemory:
    options = Options(counter=Estimator(), blob_sizes=SIZES, clock=lambda: time.time() + ahead)
    return Memory(store, options).for_owner("ann")


async def chunked(data: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(data), 700):
        yield data[start : start + 700]


# --- what runs ---


async def put(ann: OwnerMemory) -> None:
    await ann.blobs.put(DATA, name="contract.pdf")


async def put_stream(ann: OwnerMemory) -> None:
    await ann.blobs.put(chunked(DATA), name="contract.pdf")


async def append_text(ann: OwnerMemory) -> None:
    session = await ann.session("t")
    await session.append(Message(role="user", content=TEXT))


async def append_attachment(ann: OwnerMemory) -> None:
    session = await ann.session("t")
    given = Attachment(media_type="application/pdf", uri=f"blob:{DIGEST}")
    await session.append(Message(role="user", content="Look.", attachments=[given]))


async def forget_everything(ann: OwnerMemory) -> None:
    await ann.forget(everything=True)


async def forget_and_begin_again(ann: OwnerMemory) -> None:
    await ann.forget(everything=True)
    await (await ann.session("t")).add_message("user", "Hello again.")


async def sweep(ann: OwnerMemory) -> None:
    await ann.blobs._repository.sweep()


async def sweep_a_day_ahead(ann: OwnerMemory) -> None:
    await sweep(ann_of(ann._services.store, ahead=DAY + 60))


async def delete(ann: OwnerMemory) -> None:
    with suppress(NotFound):
        await ann.blobs.delete(DIGEST)


async def delete_session(ann: OwnerMemory) -> None:
    with suppress(KeepthreadError):
        await ann.delete_session("s")


async def forget_session(ann: OwnerMemory) -> None:
    with suppress(NotFound):
        await ann.forget(session="s")


WRITES: Final = (put, append_text, append_attachment, put_stream)
ENDINGS: Final = (forget_everything, sweep_a_day_ahead, delete, delete_session, forget_session)
REMOVALS: Final = (forget_and_begin_again, *ENDINGS)
BESIDE: Final = [
    *product(["ram"], WRITES, REMOVALS),
    *product(["sqlite", "postgres"], WRITES[:-1], REMOVALS[:-1]),
]


async def cancel(_: OwnerMemory) -> None:
    await cancel_caller()


# --- what must be so afterwards ---


class _Before(NamedTuple):
    """What an owner has when the operation starts."""

    blob: bool
    """A blob of the same bytes that the program put."""
    message: bool
    """A message in another session that refers to the same bytes."""


async def begun(ann: OwnerMemory, before: _Before) -> None:
    session = await ann.session("s")
    if before.blob or before.message:
        await put(ann)
    if before.message:
        given = Attachment(media_type="application/pdf", uri=f"blob:{DIGEST}")
        await session.append(Message(role="user", content="See.", attachments=[given]))
        await session.append(Message(role="user", content=TEXT))
    if not before.blob:
        await delete(ann)


async def unreadable(ann: OwnerMemory) -> list[str]:
    """Return what is listed or referred to, and cannot be read."""
    wrong = [what async for what in ann.blobs._repository.damages()]
    for blob in await ann.blobs.list():
        try:
            await ann.blobs.read(blob.digest)
        except KeepthreadError as error:
            wrong.append(f"listed: {error}")
    for info in await ann.list_sessions(limit=100):
        session = await ann.get_session(info.id)
        for message in await session.messages():
            for digest in blobs_of(message) if message.state == "live" else ():
                try:
                    await ann.blobs.read(digest)
                    if full_text_of(message):
                        assert await session.full_text(message) == TEXT
                except KeepthreadError as error:
                    wrong.append(f"message {message.seq} in {info.id}: {error}")
    return wrong


async def left_over(ann: OwnerMemory) -> list[str]:
    """Return what two later sweeps, a day apart, have left of what nothing refers to."""
    store = ann._services.store
    for days in (2, 4):
        await sweep(ann_of(store, ahead=days * DAY))
    entries = [Described.of(record) for record in await store.scan(ANN, BLOB)]
    chunks = await store.scan(ANN, BLOB_CHUNK)
    uploads = {chunk.key.partition(":")[0] for chunk in chunks}
    left = [f"chunks of {name}" for name in uploads - {entry.upload for entry in entries}]
    left += [f"upload {record.key}" for record in await store.scan(ANN, BLOB_UPLOAD)]
    left += [f"pending {entry.blob.digest}" for entry in entries if entry.pending]
    uses = {record.key.partition(":")[0] for record in await store.scan(ANN, BLOB_USE)}
    unused = [e.blob.digest for e in entries if not e.kept and e.blob.digest not in uses]
    return left + [f"unused blob {digest}" for digest in unused]


async def trial(
    store: Store, one: Operation, other: Operation, n: int, before: _Before, *, after: bool = False
) -> bool:
    """Run one operation with another inside; return whether it made so many calls."""
    ann = ann_of(store)
    await begun(ann, before)
    inside = Once(n, lambda: other(ann))
    beside = Interposed(store, after=inside) if after else Interposed(store, inside)
    task = asyncio.create_task(_ended(one(ann_of(cast(Store, beside)))))
    with suppress(asyncio.CancelledError):
        await task
    assert await unreadable(ann) == [], n
    if one in WRITES:
        await _ended(one(ann))
    await put(ann)
    assert await ann.blobs.read(DIGEST) == DATA
    assert await unreadable(ann) == [], n
    assert await left_over(ann) == [], n
    assert await unreadable(ann) == [], n
    return inside.calls >= n


async def _ended(work: Awaitable[object]) -> None:
    # An erasure is a task of its own: where that is canceled, as by closing, its caller is told.
    with suppress(Busy, SessionGone, NotFound, StoreClosed):
        await work


async def every_call(
    store: Store, one: Operation, other: Operation, *, after: bool = False
) -> None:
    """Run the other operation at every call of the first, each time for a new tenant."""
    everything = (_Before(False, True), _Before(False, False), _Before(True, False))
    trials = 0
    for before in everything if type(store) is RamStore and one in WRITES else everything[:1]:
        for n in range(1, 500):
            trials += 1
            if not await trial(store.tenant(f"t{trials}"), one, other, n, before, after=after):
                break
        else:
            raise AssertionError("the operation never ended")


stores = pytest.mark.parametrize("store", ["ram", "sqlite", "postgres"], indirect=True)


@pytest.mark.parametrize(("store", "one", "other"), BESIDE, indirect=["store"])
async def test_what_is_stored_beside_a_removal_can_be_read(
    store: Store, one: Operation, other: Operation
) -> None:
    await every_call(store, one, other)


@pytest.mark.parametrize("store", ["ram"], indirect=True)
@pytest.mark.parametrize("other", WRITES)
@pytest.mark.parametrize("one", ENDINGS)
async def test_a_removal_beside_a_write_leaves_what_is_stored(
    store: Store, one: Operation, other: Operation
) -> None:
    await every_call(store, one, other)


@stores
async def test_a_sweep_leaves_the_blob_of_a_message_that_is_being_stored(store: Store) -> None:
    """The program gives the blob up just before the message that refers to it is stored."""
    ann = ann_of(store)
    await put(ann)

    async def give_up() -> None:
        assert not await ann.blobs.delete(DIGEST)
        await sweep(ann)

    beside = Interposed(store, Once("append", give_up))
    await append_attachment(ann_of(cast(Store, beside)))
    assert await ann.blobs.read(DIGEST) == DATA
    assert await unreadable(ann) == []


@stores
async def test_a_message_that_follows_its_reference_late_keeps_its_blob(store: Store) -> None:
    """A sweep beside a clock a day ahead runs between the two; the message follows at each call."""
    for n in range(1, 100):
        part = store.tenant(f"t{n}")
        ann, ready, go = ann_of(part), asyncio.Event(), asyncio.Event()

        async def wait(ready: asyncio.Event = ready, go: asyncio.Event = go) -> None:
            ready.set()
            await go.wait()

        late = Interposed(part, Once("append", wait))
        task = asyncio.create_task(append_text(ann_of(cast(Store, late))))
        await ready.wait()

        async def follow(go: asyncio.Event = go, task: asyncio.Task[None] = task) -> None:
            go.set()
            await task

        inside = Once(n, follow)
        await sweep_a_day_ahead(ann_of(cast(Store, Interposed(part, inside))))
        await follow()
        assert await unreadable(ann) == [], n
        assert await left_over(ann) == [], n
        if inside.calls < n:
            return
    raise AssertionError("the sweep never ended")


@stores
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("one", WRITES)
async def test_a_write_that_is_canceled_at_any_call_leaves_nothing_broken(
    store: Store, one: Operation, after: bool
) -> None:
    await every_call(store, one, cancel, after=after)


@pytest.mark.parametrize("store", ["ram"], indirect=True)
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("one", ENDINGS)
async def test_a_removal_that_is_canceled_at_any_call_leaves_nothing_broken(
    store: Store, one: Operation, after: bool
) -> None:
    await every_call(store, one, cancel, after=after)
