"""One owner's blobs in a store: put, hold and release them, safe with concurrent processes."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import Final

from keepthread.context.full_text import blobs_of
from keepthread.errors import KeepthreadError, SessionGone, Stale
from keepthread.memory.blobs.chunks import ABANDONED, Chunks, Upload
from keepthread.memory.blobs.references import BlobReferences, blobs_used_in
from keepthread.memory.blobs.types import Blob, BlobSizes, Described, missing_blob, too_large
from keepthread.protocols import Store
from keepthread.stores.codec import new_id
from keepthread.stores.kinds import BLOB
from keepthread.stores.listing import record_page
from keepthread.types import Message, Page, SessionKey

UNKNOWN_TYPE: Final = "application/octet-stream"
_IN_LOOP: Final = 1 << 20  # bytes; more are hashed in a thread, not in the event loop


class BlobRepository:
    """The blobs of one owner."""

    def __init__(
        self, store: Store, owner: str, *, sizes: BlobSizes, clock: Callable[[], float]
    ) -> None:
        """Take the store and the owner."""
        self.chunks = Chunks(store, owner, sizes, clock)
        self.references = BlobReferences(store, owner, clock)
        self.sizes = sizes
        self.owner = owner
        self._store = store
        self._scope = self.chunks.scope
        self._clock = clock

    # --- storing ---

    def upload(self) -> Upload:
        """Begin to store bytes of unknown length."""
        return Upload(self.chunks, new_id())

    async def put(self, data: bytes, *, kept: bool, media_type: str, name: str) -> Blob:
        """Store bytes, unless the owner has the same already."""
        self.check(len(data))
        large = len(data) > _IN_LOOP
        seen = await asyncio.to_thread(sha256, data) if large else sha256(data)
        if known := await self.hold(seen.hexdigest(), kept=kept):
            return known
        upload = self.upload()
        try:
            await upload.write(data)
            return await self.complete(upload, kept=kept, media_type=media_type, name=name)
        except BaseException:
            await self.abandon(upload)
            raise

    def check(self, size: int) -> None:
        """Raise `TooLarge` for more bytes than the store takes."""
        if size > self.chunks.limit:
            raise too_large(size, self.chunks.limit)

    async def complete(self, upload: Upload, *, kept: bool, media_type: str, name: str) -> Blob:
        """Describe uploaded bytes; if the owner has the same already, remove them."""
        digest = await upload.end()
        blob = Blob(
            digest=digest,
            size=upload.size,
            media_type=media_type,
            name=name,
            created_at=self._clock(),
        )
        new = Described(blob, upload.id, upload.count, kept)
        while True:
            if known := await self.hold(digest, kept=kept):
                await upload.abandon()
                break
            with suppress(Stale):  # another caller stored the same in the meantime
                await self._store.put(self._scope, BLOB, digest, new.to_json(), version=0)
                await upload.named()
                known = blob
                break
        await self.chunks.sweep()
        return known

    async def abandon(self, upload: Upload) -> None:
        """Remove the chunks of an upload that failed; if that fails too, a later put does."""
        with suppress(KeepthreadError):
            await asyncio.shield(upload.abandon())

    async def hold(self, digest: str, *, kept: bool = False) -> Blob | None:
        """Return a stored blob and mark it as used, so that no concurrent cleanup removes it."""
        while known := await self.chunks.describe(digest):
            with suppress(Stale):
                value = known._replace(kept=kept or known.kept).to_json()
                await self._store.put(self._scope, BLOB, digest, value, version=known.version)
                return known.blob
        return None

    # --- reading ---

    async def find(self, digest: str) -> Described:
        """Return the description of a blob; raise `NotFound` if the owner does not have it."""
        found = await self.chunks.describe(digest)
        if found is None:
            raise missing_blob(digest)
        return found

    async def read(self, digest: str) -> AsyncGenerator[bytes]:
        """Yield the bytes of a blob, chunk by chunk."""
        async for data in self.chunks.read(await self.find(digest)):
            yield data

    async def page(self, limit: int, cursor: str | None) -> Page[Blob]:
        """Return blobs, ordered by digest, the last first."""
        of = ("blobs", self.owner)
        page = await record_page(self._store, self._scope, BLOB, of, limit, cursor)
        return Page((Described.of(record).blob for record in page), cursor=page.next)

    # --- removing ---

    async def give_up(self, digest: str) -> bool:
        """Remove a blob that the program put, unless a message refers to it."""
        await self.find(digest)
        await self.mark_unused(digest)
        return await self.release(digest)

    async def mark_unused(self, digest: str) -> None:
        """Let a blob go with the last message that refers to it, also if the program put it."""
        while (known := await self.chunks.describe(digest)) and known.kept:
            with suppress(Stale):
                value = known._replace(kept=False).to_json()
                await self._store.put(self._scope, BLOB, digest, value, version=known.version)

    async def release(self, digest: str) -> bool:
        """Remove a blob to which no message refers, and return whether that was so.

        Those that the program put stay.
        """
        while known := await self.chunks.describe(digest):
            if known.kept or await self.references.exist(digest):
                return False
            with suppress(Stale):  # another process is adding a reference: check again
                await self.remove(known)
                return True
        return False

    async def remove(self, known: Described) -> None:
        """Remove a blob as it was read; raise `Stale` if it changed since."""
        upload, digest, count = known.upload, known.blob.digest, known.chunks
        mark = await self.chunks.mark(upload, digest, count)
        try:
            await self._store.drop(self._scope, BLOB, digest, version=known.version)
        except Stale:  # another caller was faster and may already have dropped its mark
            await self.chunks.settle(upload, digest, count, mark)
            raise
        await self.chunks.remove(upload, count)

    async def release_session(self, session: SessionKey, digests: list[str]) -> None:
        """Release what a session referred to that is deleted."""
        for digest in digests:
            await self.references.drop(await self.references.of_session(digest, session))
            await self.release(digest)

    async def refer(self, session: SessionKey, messages: Sequence[Message]) -> None:
        """Note the blobs that copied messages refer to, before the copies are stored."""
        for message in messages:
            for digest in blobs_of(message) if message.state == "live" else ():
                await self.references.add(digest, session, message.id)
                await self.hold(digest)

    async def sweep(self) -> None:
        """Remove leftovers of crashed processes: chunks without a description, unused blobs."""
        await self.chunks.sweep()
        for use in await self.references.all():
            try:
                found = await self._store.find(use.session, ids=[use.message])
            except SessionGone:
                found = None
            waits = found == [] and self._clock() - use.at < ABANDONED  # its message may follow
            if not waits and not any(message.state == "live" for message in found or ()):
                await self.references.drop([use])
                await self.release(use.digest)

    async def used_in(self, session: SessionKey) -> list[str]:
        """Return the digests of the blobs that a session refers to."""
        return await blobs_used_in(self._store, session)
