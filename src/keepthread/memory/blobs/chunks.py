"""The bytes of blobs as records: written chunk by chunk, read and removed in the same way.

An upload has a name of its own, and a record from before its first chunk until a description names
it. So chunks that no description will ever name are found and removed.
"""

from base64 import b64decode, b64encode
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import suppress
from hashlib import sha256
from typing import Any, Final, cast

from keepthread.errors import Damaged, InvalidInput, Stale
from keepthread.memory.blobs.types import BlobSizes, Described, missing_blob, too_large
from keepthread.protocols import Store
from keepthread.stores.kinds import BLOB, BLOB_CHUNK, BLOB_UPLOAD
from keepthread.stores.validation import show
from keepthread.types import JSON, Record, Scope

ABANDONED: Final = 86_400.0
"""Seconds after which an upload that made no progress is removed."""

_OFTEN: Final = 3600.0
"""Seconds after which an upload notes again that it makes progress."""


class Chunks:
    """The chunks of one owner's blobs."""

    def __init__(
        self, store: Store, owner: str, sizes: BlobSizes, clock: Callable[[], float]
    ) -> None:
        """Take the store and the owner."""
        self.store = store
        self.scope = Scope(owner=owner)
        self.clock = clock
        self.size = sizes.chunk
        self.limit = store.max_blob if sizes.blob is None else sizes.blob

    async def describe(self, digest: str) -> Described | None:
        """Return the description of a blob, or None."""
        record = await self.store.get(self.scope, BLOB, digest)
        return None if record is None else Described.of(record)

    async def read(self, found: Described) -> AsyncGenerator[bytes]:
        """Yield the bytes of a blob; raise `Damaged` before the last of them if they are not whole.

        If it is removed and stored again in the meantime, reading continues.
        """
        digest, seen, number = found.blob.digest, sha256(), 0
        while number < found.chunks:
            record = await self.store.get(self.scope, BLOB_CHUNK, _key(found.upload, number))
            if record is None:
                found = await self._moved(found)
                continue
            data = _decoded(record)
            seen.update(data)
            number += 1
            if number == found.chunks and seen.hexdigest() != digest:
                raise Damaged(f"blob {digest} is corrupted; store its bytes again")
            yield data

    async def _moved(self, found: Described) -> Described:
        """Return the description of bytes that were stored again; else a chunk is lost."""
        again = await self.describe(found.blob.digest)
        if again is None:
            raise missing_blob(found.blob.digest)
        if again.upload == found.upload or again.chunks != found.chunks:
            raise Damaged(f"blob {found.blob.digest} lacks a part; store its bytes again")
        return again

    # --- removing ---

    async def mark(self, upload: str, digest: str, count: int) -> int:
        """Record that chunks will be removed, so that cleanup can resume after a crash."""
        return await self._note(upload, {"digest": digest, "count": count, "at": 0.0})

    async def remove(self, upload: str, count: int | None = None) -> None:
        """Remove the chunks of an upload, and then its record."""
        if count is None:
            while page := await self.store.scan(
                self.scope, BLOB_CHUNK, after=f"{upload}:", before=f"{upload};", limit=1
            ):
                await self.store.drop(self.scope, BLOB_CHUNK, page[0].key)
        for number in range(count or 0):
            await self.store.drop(self.scope, BLOB_CHUNK, _key(upload, number))
        await self.store.drop(self.scope, BLOB_UPLOAD, upload)

    async def sweep(self, *, also: Callable[[int], bool] = lambda _: False) -> None:
        """Remove chunks of abandoned uploads, and of those whose version is given up as well."""
        for record in await self.store.scan(self.scope, BLOB_UPLOAD):
            value = cast(Mapping[str, Any], record.value)
            if self.clock() - value["at"] < ABANDONED and not also(record.version):
                continue
            await self.settle(record.key, value["digest"], value["count"], record.version)

    async def settle(self, upload: str, digest: str, count: int | None, version: int) -> None:
        """Drop the note of an upload that a description names; else remove its chunks."""
        named = await self.describe(digest) if digest else None
        if named is not None and named.upload == upload:
            with suppress(Stale):
                await self.store.drop(self.scope, BLOB_UPLOAD, upload, version=version)
        else:
            await self.remove(upload, count)

    async def _note(self, upload: str, value: JSON, version: int | None = None) -> int:
        return await self.store.put(self.scope, BLOB_UPLOAD, upload, value, version=version)


class Upload:
    """Bytes that are being stored: they count once a description names them."""

    def __init__(self, chunks: Chunks, id: str) -> None:
        """Begin; nothing is stored yet."""
        self._chunks = chunks
        self._hash = sha256()
        self._buffer = bytearray()
        self._version = 0
        self._noted = 0.0
        self.id = id
        self.size = 0
        self.count = 0

    async def write(self, piece: object) -> None:
        """Write more bytes; refuse those beyond the limit."""
        if not isinstance(piece, bytes | bytearray | memoryview):
            raise InvalidInput(f"a blob is made of bytes, not {show(piece)}")
        given = memoryview(cast(bytes, piece)).cast("B")
        if self.size + len(given) > self._chunks.limit:
            raise too_large(self.size + len(given), self._chunks.limit, at_least=True)
        self.size += len(given)
        for start in range(0, len(given), self._chunks.size):
            part = given[start : start + self._chunks.size]
            self._hash.update(part)
            self._buffer += part
            if len(self._buffer) >= self._chunks.size:
                await self._store(self._chunks.size)

    async def end(self) -> str:
        """Store the rest, and return the digest of all."""
        if self._buffer:
            await self._store(len(self._buffer))
        digest = self._hash.hexdigest()
        await self._progress(digest)
        return digest

    async def named(self) -> None:
        """Note that a description names it now."""
        with suppress(Stale):  # it is already being removed
            await self._chunks.store.drop(
                self._chunks.scope, BLOB_UPLOAD, self.id, version=self._version
            )

    async def abandon(self) -> None:
        """Remove what was stored."""
        if self._version:
            await self._chunks.remove(self.id, self.count + 1)

    async def _store(self, size: int) -> None:
        if not self._version or self._chunks.clock() - self._noted > _OFTEN:
            await self._progress("")
        text = b64encode(memoryview(self._buffer)[:size]).decode()
        place = (self._chunks.scope, BLOB_CHUNK, _key(self.id, self.count))
        await self._chunks.store.put(*place, text)
        self.count += 1
        del self._buffer[:size]

    async def _progress(self, digest: str) -> None:
        """Note that it is alive; a record that was swept raises `Stale`."""
        self._noted = self._chunks.clock()
        value: JSON = {"digest": digest, "count": None, "at": self._noted}
        self._version = await self._chunks._note(self.id, value, self._version)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - one idea in two classes


def _key(upload: str, number: int) -> str:
    return f"{upload}:{number:06}"


def _decoded(record: Record) -> bytes:
    try:
        return b64decode(cast(str, record.value), validate=True)
    except (TypeError, ValueError):
        raise Damaged(f"the record {record.kind}/{record.key} is not a part of a blob") from None
