"""The bytes of blobs as records: written chunk by chunk, read and removed in the same way.

An upload has a name of its own, and a record from before its first chunk until a description names
it. So chunks that no description will ever name are found and removed.

No step changes two records, so two orders keep a described blob readable. The process that stores
bytes writes a pending description, then notes in the upload's record that all bytes are stored,
then makes the description final: each at the version that it read or wrote. The process that
removes bytes first changes the upload's record, then reads the description: it drops a pending one,
and leaves the chunks of a final one alone. So one of the two always detects the other.
"""

from base64 import b64decode, b64encode
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, Final, cast

from keepthread.errors import Busy, Damaged, InvalidInput, NotFound, Stale
from keepthread.memory.blobs.types import BlobSizes, Described, missing_blob, too_large
from keepthread.protocols import Store
from keepthread.stores.kinds import BLOB, BLOB_CHUNK, BLOB_UPLOAD
from keepthread.stores.validation import show
from keepthread.types import JSON, Record, Scope

ABANDONED: Final = 86_400.0
"""Seconds after which an upload that made no progress is removed."""

_OFTEN: Final = 3600.0
"""Seconds after which an upload notes again that it makes progress."""


class UploadLost(Busy):
    """Another process removed the upload; nothing was stored. Store the bytes again."""


@dataclass(frozen=True, slots=True)
class _Note:
    """The record of an upload."""

    at: float
    """When it last made progress; 0 if its chunks are being removed."""
    digest: str | None = ""
    """The digest of its bytes; empty before the last of them, None if it is unknown."""
    count: int | None = None
    """The number of its chunks; None if it is unknown."""
    whole: bool = False
    """Whether all bytes are stored, and a pending description that names them is valid."""

    @classmethod
    def of(cls, record: Record) -> "_Note":
        value = cast(Mapping[str, Any], record.value)
        return cls(value["at"], value["digest"], value["count"], value.get("whole", False))

    def to_json(self) -> JSON:
        value: dict[str, JSON] = {"digest": self.digest, "count": self.count, "at": self.at}
        return {**value, "whole": True} if self.whole else value


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

    async def entry(self, digest: str) -> Described | None:
        """Return the description of a blob as it is stored; it may be pending."""
        record = await self.store.get(self.scope, BLOB, digest)
        return None if record is None else Described.of(record)

    async def state(self, digest: str) -> Described | None:
        """Return the description of a blob, still pending only if its bytes are not all stored."""
        before: Described | None = None
        while (described := await self.entry(digest)) is not None and described.pending:
            record = await self.store.get(self.scope, BLOB_UPLOAD, described.upload)
            if record is not None and _Note.of(record).whole:
                return described._replace(pending=False)
            if described == before:  # it did not become final while the upload was read
                break
            before = described
        return described

    async def describe(self, digest: str) -> Described | None:
        """Return the description of a blob whose bytes are all stored, or None."""
        described = await self.state(digest)
        return None if described is None or described.pending else described

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

    async def are_sound(self, described: Described) -> bool:
        """Return whether the bytes of a blob can be read, and are those that were stored."""
        try:
            async for _ in self.read(described):
                pass
        except (Damaged, NotFound):
            return False
        return True

    # --- removing ---

    async def mark(self, upload: str, digest: str, count: int) -> int:
        """Record that chunks will be removed, so that cleanup can resume after a crash."""
        return await self.note(upload, _Note(0.0, digest, count))

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

    async def sweep(self, *, also: Callable[[Record], bool] = lambda _: False) -> None:
        """Remove chunks of abandoned uploads, and of those that `also` accepts the record of."""
        for record in await self.store.scan(self.scope, BLOB_UPLOAD):
            note, version = _Note.of(record), record.version
            if self.clock() - note.at < ABANDONED and not also(record):
                continue
            with suppress(Stale):  # it makes progress, or another process removes it
                if note.at:
                    version = await self.note(
                        record.key, replace(note, at=0.0, whole=False), version
                    )
                await self.settle(record.key, note.digest, note.count, version)

    async def settle(
        self, upload: str, digest: str | None, count: int | None, version: int
    ) -> None:
        """Remove the chunks of a marked upload; if a description names them, drop the mark."""
        while (described := await self._naming(upload, digest)) is not None:
            with suppress(Stale):  # the description changed: read it again
                if described.pending:
                    await self.drop_entry(described)
                    break
                place = (self.scope, BLOB, described.blob.digest)
                # Written again, so that a process which is removing the blob sees that its mark is
                # gone.
                await self.store.put(*place, described.to_json(), version=described.version)
                with suppress(Stale):
                    await self.store.drop(self.scope, BLOB_UPLOAD, upload, version=version)
                return
        await self.remove(upload, count)

    async def _naming(self, upload: str, digest: str | None) -> Described | None:
        """Return the description that names an upload; with an unknown digest, read them all."""
        if digest is None:
            every = [Described.of(record) for record in await self.store.scan(self.scope, BLOB)]
            return next((one for one in every if one.upload == upload), None)
        described = await self.entry(digest) if digest else None
        return described if described is not None and described.upload == upload else None

    async def adopt(self) -> set[str]:
        """Give a record to chunks that have neither a record nor a description: `sweep` finds them.

        Returns their uploads.

        A process that died while another one removed its upload may leave such chunks. Pending
        descriptions of removed uploads are dropped.
        """
        described = [Described.of(record) for record in await self.store.scan(self.scope, BLOB)]
        uploads = {record.key for record in await self.store.scan(self.scope, BLOB_UPLOAD)}
        for pending in described:
            if pending.pending and pending.upload not in uploads:
                with suppress(Stale):  # it became final since
                    await self.drop_entry(pending)
        names = uploads | {final.upload for final in described if not final.pending}
        adopted: set[str] = set()
        last: str | None = None
        for name in [*sorted(names), None]:
            after = None if last is None else f"{last};"
            before = None if name is None else f"{name}:"
            while chunks := await self.store.scan(
                self.scope, BLOB_CHUNK, after=after, before=before, limit=1
            ):
                upload = chunks[0].key.partition(":")[0]
                with suppress(Stale):  # it began after the records were read
                    await self.note(upload, _Note(self.clock(), None), 0)
                    adopted.add(upload)
                before = f"{upload}:"
            last = name
        return adopted

    async def drop_entry(self, described: Described) -> None:
        """Drop a description as it was read; raise `Stale` if it changed since."""
        await self.store.drop(self.scope, BLOB, described.blob.digest, version=described.version)

    async def note(self, upload: str, note: _Note, version: int | None = None) -> int:
        """Write the record of an upload, and return its version."""
        return await self.store.put(
            self.scope, BLOB_UPLOAD, upload, note.to_json(), version=version
        )


class Upload:
    """Bytes that are being stored: they count once a description names them."""

    def __init__(self, chunks: Chunks, id: str) -> None:
        """Begin; nothing is stored yet."""
        self._chunks = chunks
        self._hash = sha256()
        self._buffer = bytearray()
        self._version = 0
        self._noted = 0.0
        self._digest = ""
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
        self._digest = self._hash.hexdigest()
        return self._digest

    async def commit(self) -> None:
        """Note that all bytes are stored, after a pending description names them."""
        await self._progress(_Note(0.0, self._digest, self.count, whole=True))

    async def named(self) -> None:
        """Drop its record: a final description names it."""
        with suppress(Stale):  # a process that removes leftovers leaves a described upload alone
            await self._chunks.store.drop(
                self._chunks.scope, BLOB_UPLOAD, self.id, version=self._version
            )

    async def abandon(self) -> None:
        """Remove what was stored, unless a final description names it."""
        if self._version:
            mark = await self._chunks.mark(self.id, self._digest, self.count + 1)
            await self._chunks.settle(self.id, self._digest, self.count + 1, mark)

    async def _store(self, size: int) -> None:
        if not self._version or self._chunks.clock() - self._noted > _OFTEN:
            await self._progress(_Note(0.0))
        text = b64encode(memoryview(self._buffer)[:size]).decode()
        place = (self._chunks.scope, BLOB_CHUNK, _key(self.id, self.count))
        await self._chunks.store.put(*place, text)
        self.count += 1
        del self._buffer[:size]

    async def _progress(self, note: _Note) -> None:
        """Note that it is alive; raise `UploadLost` if another process removes it."""
        self._noted = self._chunks.clock()
        note = replace(note, at=self._noted)
        try:
            self._version = await self._chunks.note(self.id, note, self._version)
        except Stale:
            raise UploadLost(
                "another process removed the bytes while they were stored; store them again"
            ) from None


def _key(upload: str, number: int) -> str:
    return f"{upload}:{number:06}"


def _decoded(record: Record) -> bytes:
    try:
        return b64decode(cast(str, record.value), validate=True)
    except (TypeError, ValueError):
        raise Damaged(f"the record {record.kind}/{record.key} is not a part of a blob") from None
