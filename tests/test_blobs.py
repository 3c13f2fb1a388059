"""Blobs: bytes in chunks, stored once for each owner, on every store."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepthread import Memory, Options, sync
from keepthread.errors import Busy, Damaged, InvalidInput, NotFound, Stale, TooLarge
from keepthread.memory.blobs.types import BlobSizes
from keepthread.models.tokens import Estimator
from keepthread.protocols import Store
from keepthread.stores import RamStore
from keepthread.stores.kinds import BLOB, BLOB_CHUNK, BLOB_UPLOAD
from keepthread.types import Scope
from tests.every_store import store

__all__ = ["store"]

SMALL = BlobSizes(chunk=100, text=2000, blob=5000)
ANN = Scope(owner="ann")
DATA = bytes(range(256)) * 4


def small(store: Store) -> Memory:
    return Memory(store, Options(counter=Estimator(), blob_sizes=SMALL))


async def pieces(data: bytes, size: int) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


async def test_bytes_a_file_and_a_stream_are_one_blob(store: Store, tmp_path: Path) -> None:
    blobs = small(store).for_owner("ann").blobs
    first = await blobs.put(DATA, media_type="image/png", name="a.png")
    assert (first.digest, first.size) == (sha256(DATA).hexdigest(), len(DATA))
    assert len(await store.scan(ANN, BLOB_CHUNK)) == 11
    path = tmp_path / "b.bin"
    path.write_bytes(DATA)
    assert await blobs.put(path) == first
    assert await blobs.put(pieces(DATA, 77)) == first
    assert len(await store.scan(ANN, BLOB_CHUNK)) == 11
    assert await store.scan(ANN, BLOB_UPLOAD) == []
    assert await blobs.read(first.digest) == DATA
    assert [len(piece) async for piece in blobs.open(first.digest)] == [100] * 10 + [24]
    assert await blobs.info(first.digest) == first
    assert first.uri == f"blob:{first.digest}"
    empty = await blobs.put(b"")
    assert (empty.size, await blobs.read(empty.digest)) == (0, b"")


async def test_blobs_are_listed_in_pages(store: Store) -> None:
    blobs = small(store).for_owner("ann").blobs
    stored = {(await blobs.put(b"%d" % n)).digest for n in range(5)}
    page = await blobs.list(limit=2)
    found = [blob.digest for blob in page]
    while page.next:
        page = await blobs.list(limit=2, cursor=page.next)
        found += [blob.digest for blob in page]
    assert found == sorted(stored, reverse=True)
    assert await small(store).for_owner("bob").blobs.list() == []


async def test_another_owners_blob_is_missing_like_any_other(store: Store) -> None:
    memory = small(store)
    digest = (await memory.for_owner("ann").blobs.put(DATA)).digest
    bob = memory.for_owner("bob").blobs
    said = set[str]()
    for name in (digest, "0" * 64):
        for ask in (bob.info, bob.read, bob.delete):
            with pytest.raises(NotFound, match="does not exist; store its bytes first") as caught:
                await ask(name)
            said.add(str(caught.value).replace(name, ""))
    assert len(said) == 1
    assert (await bob.put(DATA)).digest == digest
    assert await bob.delete(digest)
    assert await memory.for_owner("ann").blobs.read(digest) == DATA


async def test_data_over_the_limit_is_refused_with_both_numbers(
    store: Store, tmp_path: Path
) -> None:
    blobs = small(store).for_owner("ann").blobs
    given = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal given
        while True:
            given += 700
            yield bytes(700)

    path = tmp_path / "large"
    path.write_bytes(bytes(5001))
    for data, size in ((bytes(5001), "5,001"), (path, "5,001"), (endless(), "5,600")):
        with pytest.raises(TooLarge, match=rf"{size} bytes; the store's limit is 5,000"):
            await blobs.put(data)
    assert given == 5600
    assert await store.scan(ANN) == []
    assert (await blobs.put(bytes(5000))).size == 5000


async def test_what_is_not_bytes_is_refused(store: Store) -> None:
    blobs = small(store).for_owner("ann").blobs

    async def texts() -> AsyncIterator[str]:
        yield "text"

    for wrong in ("text", ["x"], texts()):
        with pytest.raises(InvalidInput):
            await blobs.put(wrong)  # pyright: ignore[reportArgumentType]
    for digest in ("", "a" * 63, "A" * 64, 5):
        with pytest.raises(InvalidInput, match="64 hexadecimal digits"):
            await blobs.info(digest)  # pyright: ignore[reportArgumentType]
    assert await store.scan(ANN) == []


async def test_a_blob_is_deleted_with_all_its_chunks(store: Store) -> None:
    blobs = small(store).for_owner("ann").blobs
    kept = await blobs.put(b"something else" * 20)
    blob = await blobs.put(DATA)
    assert await blobs.delete(blob.digest)
    with pytest.raises(NotFound):
        await blobs.read(blob.digest)
    assert await blobs.read(kept.digest) == b"something else" * 20
    assert await blobs.delete(kept.digest)
    assert await store.scan(ANN) == []


async def test_a_lost_or_changed_chunk_is_damage(store: Store) -> None:
    blobs = small(store).for_owner("ann").blobs
    blob = await blobs.put(DATA)
    chunk = (await store.scan(ANN, BLOB_CHUNK))[3]
    await store.put(ANN, BLOB_CHUNK, chunk.key, "AAAA")
    stream = blobs.open(blob.digest)
    for _ in range(10):
        await anext(stream)
    with pytest.raises(Damaged, match="is corrupted"):
        await anext(stream)  # the last piece is never given out
    await store.drop(ANN, BLOB_CHUNK, chunk.key)
    with pytest.raises(Damaged, match="lacks a part"):
        await blobs.read(blob.digest)


@pytest.mark.parametrize("loss", ["lost", "changed", "all"])
async def test_damage_is_verified_and_storing_the_bytes_again_repairs_it(
    store: Store, tmp_path: Path, loss: str
) -> None:
    memory = small(store)
    blobs = memory.for_owner("ann").blobs
    path = tmp_path / "data"
    path.write_bytes(DATA)
    for data in (DATA, path, pieces(DATA, 77)):
        blob = await blobs.put(DATA, name="first.bin")
        assert (await memory.admin.verify()).sound
        chunks = await store.scan(ANN, BLOB_CHUNK)
        for chunk in chunks if loss == "all" else chunks[3:4]:
            if loss == "changed":
                await store.put(ANN, BLOB_CHUNK, chunk.key, "AAAA")
            else:
                await store.drop(ANN, BLOB_CHUNK, chunk.key)
        (damage,) = (await memory.admin.verify()).damages
        assert blob.digest in damage.what
        assert "store its bytes again" in damage.what
        assert await blobs.put(data, name="again.bin") == blob
        assert await blobs.read(blob.digest) == DATA
        assert (await memory.admin.verify()).sound
        assert len(await store.scan(ANN, BLOB_CHUNK)) == 11
        assert await store.scan(ANN, BLOB_UPLOAD) == []


async def test_a_description_whose_bytes_were_not_all_stored_is_invisible(store: Store) -> None:
    now = 1_000_000.0
    memory = Memory(store, Options(counter=Estimator(), blob_sizes=SMALL, clock=lambda: now))
    blobs, inside = memory.for_owner("ann").blobs, memory._services.blobs("ann")
    blob = await blobs.put(DATA)
    final = await inside.find(blob.digest)
    pending = final._replace(pending=True)
    await store.put(ANN, BLOB, blob.digest, pending.to_json())  # and the process ends here
    assert await blobs.list() == []
    assert (await memory.admin.verify()).sound
    with pytest.raises(NotFound):
        await blobs.read(blob.digest)
    assert await blobs.put(DATA) == blob
    assert await blobs.read(blob.digest) == DATA
    await store.put(ANN, BLOB, blob.digest, pending.to_json())
    for _ in range(2):
        await inside.sweep()
        now += 86_401
    assert await store.scan(ANN) == []
    assert await store.scan(ANN, BLOB_CHUNK) == []


async def test_a_stream_whose_upload_was_removed_is_refused_and_its_bytes_are_stored_again(
    store: Store, tmp_path: Path
) -> None:
    blobs = small(store).for_owner("ann").blobs
    sweeps = 0

    async def swept() -> AsyncIterator[bytes]:
        nonlocal sweeps
        yield DATA
        sweeps += 1
        await blobs._repository.chunks.sweep(also=lambda _: True)
        yield DATA

    with pytest.raises(Busy, match="store them again"):
        await blobs.put(swept())
    assert sweeps == 1
    assert await store.scan(ANN, BLOB_CHUNK) == []
    assert await store.scan(ANN) == []
    blob = await blobs.put(DATA + DATA)
    assert await blobs.read(blob.digest) == DATA + DATA


async def test_an_upload_that_lasts_for_days_is_not_swept(store: Store) -> None:
    now = 1_000_000.0
    memory = Memory(store, Options(counter=Estimator(), blob_sizes=SMALL, clock=lambda: now))
    blobs = memory.for_owner("ann").blobs

    async def slow() -> AsyncIterator[bytes]:
        nonlocal now
        for piece in [part async for part in pieces(DATA, 100)]:
            yield piece
            now += 40_000
            await memory._services.blobs("ann").sweep()

    blob = await blobs.put(slow())
    assert await blobs.read(blob.digest) == DATA


async def test_an_upload_that_died_is_invisible_and_removed_later(store: Store) -> None:
    now = 1_000_000.0
    memory = Memory(store, Options(counter=Estimator(), blob_sizes=SMALL, clock=lambda: now))
    blobs = memory.for_owner("ann").blobs
    upload = memory._services.blobs("ann").upload()
    await upload.write(DATA)  # and the process ends here
    assert await blobs.list() == []
    assert len(await store.scan(ANN, BLOB_CHUNK)) == 10
    await blobs.put(b"soon after")
    assert len(await store.scan(ANN, BLOB_CHUNK)) == 11  # it may still be running
    now += 86_401
    await blobs.put(b"a day later")
    assert len(await store.scan(ANN, BLOB_CHUNK)) == 2
    assert await store.scan(ANN, BLOB_UPLOAD) == []


async def test_a_removal_that_died_is_completed_by_the_next_put(store: Store) -> None:
    memory = small(store)
    blobs, inside = memory.for_owner("ann").blobs, memory._services.blobs("ann")
    blob = await blobs.put(DATA)
    found = await inside.find(blob.digest)
    await inside.chunks.mark(found.upload, blob.digest, found.chunks)
    await blobs.put(b"one")  # the description exists, so the blob stays
    assert await blobs.read(blob.digest) == DATA
    await inside.chunks.mark(found.upload, blob.digest, found.chunks)
    await store.drop(ANN, BLOB, blob.digest)
    await blobs.put(b"two")
    assert len(await store.scan(ANN, BLOB_CHUNK)) == 2


async def test_the_slower_of_two_deletions_leaves_no_mark(store: Store) -> None:
    blobs = small(store).for_owner("ann").blobs
    repository = blobs._repository
    digest = (await blobs.put(DATA)).digest
    known = await repository.chunks.describe(digest)
    assert known
    await repository.remove(known)
    with pytest.raises(Stale):
        await repository.remove(known)
    assert await store.scan(ANN, BLOB_UPLOAD) == []
    again = await blobs.put(DATA)
    with pytest.raises(Stale):
        await repository.remove(known)
    assert await blobs.read(again.digest) == DATA
    assert await store.scan(ANN, BLOB_UPLOAD) == []


async def test_concurrent_puts_and_deletes_leave_a_whole_blob_or_none(store: Store) -> None:
    blobs = small(store).for_owner("ann").blobs

    async def put() -> None:
        for _ in range(4):
            assert (await blobs.put(DATA)).size == len(DATA)

    async def delete() -> None:
        for _ in range(6):
            try:
                await blobs.delete(sha256(DATA).hexdigest())
            except NotFound:
                await asyncio.sleep(0)

    await asyncio.gather(put(), put(), delete(), delete())
    if await blobs.list():
        assert await blobs.read(sha256(DATA).hexdigest()) == DATA
    await blobs.put(DATA)
    assert await blobs.read(sha256(DATA).hexdigest()) == DATA
    assert len(await store.scan(ANN, BLOB_CHUNK)) == 11
    assert await store.scan(ANN, BLOB_UPLOAD) == []


@given(st.lists(st.binary(max_size=400), max_size=8), st.integers(1, 500))
async def test_a_stream_is_read_back_however_it_was_cut(parts: list[bytes], chunk: int) -> None:
    sizes = BlobSizes(chunk=chunk, blob=5000)
    store = RamStore()
    blobs = Memory(store, Options(counter=Estimator(), blob_sizes=sizes)).for_owner("ann").blobs

    async def stream() -> AsyncIterator[bytes]:
        for part in parts:
            yield part

    whole = b"".join(parts)
    blob = await blobs.put(stream())
    assert await blobs.read(blob.digest) == whole
    assert (blob.size, blob.digest) == (len(whole), sha256(whole).hexdigest())
    assert len(await store.scan(ANN, BLOB_CHUNK)) == -(-len(whole) // chunk)
    assert await blobs.delete(blob.digest)
    assert await store.scan(ANN) == []


def test_the_blocking_surface_takes_bytes_files_and_iterables(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(DATA)
    with sync.Memory.open(f"sqlite:///{tmp_path}/m.db") as memory:
        blobs = memory.for_owner("ann").blobs
        blob = blobs.put(iter([DATA[:300], DATA[300:]]), name="parts")
        assert blobs.put(path) == blobs.put(DATA) == blobs.info(blob.digest) == blob
        assert b"".join(blobs.open(blob.digest)) == blobs.read(blob.digest) == DATA
        assert list(blobs.list()) == [blob]
        with pytest.raises(RuntimeError, match="broke"):
            blobs.put(_broken())
        assert blobs.delete(blob.digest)
        with pytest.raises(NotFound):
            next(blobs.open(blob.digest))


def _broken() -> Iterator[bytes]:
    yield DATA
    raise RuntimeError("it broke")
