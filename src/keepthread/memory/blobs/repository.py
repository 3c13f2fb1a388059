"""One owner's blobs in a store: put, hold and release them, safe with concurrent processes."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from hashlib import sha256
from typing import Final

from keepthread.context.full_text import blobs_of
from keepthread.errors import Damaged, KeepthreadError, NotFound, SessionGone, Stale
from keepthread.memory.blobs.chunks import ABANDONED, Chunks, Upload, UploadLost
from keepthread.memory.blobs.references import BlobReferences, BlobUse, blobs_used_in
from keepthread.memory.blobs.types import Blob, BlobSizes, Described, missing_blob, too_large
from keepthread.protocols import Store
from keepthread.stores.codec import new_id
from keepthread.stores.kinds import BLOB
from keepthread.stores.listing import record_page
from keepthread.types import Message, Page, SessionKey

UNKNOWN_TYPE: Final = "application/octet-stream"
_RETRIES: Final = 5
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

    @asynccontextmanager
    async def uploading(self) -> AsyncGenerator[Upload]:
        """Begin to store bytes of unknown length; they are removed if the block raises."""
        upload = self.upload()
        try:
            yield upload
        except BaseException:
            await self.abandon(upload)
            raise

    async def put(self, data: bytes, *, kept: bool, media_type: str, name: str) -> Blob:
        """Store bytes, unless the owner has the same already; damaged ones are replaced."""
        self.check(len(data))
        large = len(data) > _IN_LOOP
        seen = await asyncio.to_thread(sha256, data) if large else sha256(data)
        known = await self.hold(seen.hexdigest(), kept=kept)
        if known is not None and await self.chunks.are_sound(known):
            return known.blob

        async def stored() -> Blob:
            async with self.uploading() as upload:
                await upload.write(data)
                return await self.complete(upload, kept=kept, media_type=media_type, name=name)

        return await self.retried(stored)

    async def retried(self, stored: Callable[[], Awaitable[Blob]]) -> Blob:
        """Store bytes that can be read again; repeat it if another process removes the upload."""
        for _ in range(_RETRIES):
            with suppress(UploadLost):
                return await stored()
        return await stored()

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
            with suppress(Stale):  # another caller changed the description: read it again
                if known := await self._completed(upload, new):
                    break
        await self.chunks.sweep()
        return known

    async def _completed(self, upload: Upload, new: Described) -> Blob | None:
        """Describe uploaded bytes, or hold and return the same that the owner has already."""
        known = await self.chunks.state(new.blob.digest)
        if known is None or known.pending:
            await self._describe(upload, new, known.version if known else 0)
            return new.blob
        held = await self.hold(new.blob.digest, kept=new.kept)
        if held is None:
            return None
        if held.upload == upload.id:  # another caller completed it
            await upload.named()
            return held.blob
        if await self.chunks.are_sound(held):
            await upload.abandon()
            return held.blob
        return await self._replace(held, upload, new)

    async def _describe(self, upload: Upload, new: Described, version: int) -> None:
        """Write a description in place of the one at a version; it is final when this returns."""
        place = (self._scope, BLOB, new.blob.digest)
        pending = new._replace(pending=True)
        version = await self._store.put(*place, pending.to_json(), version=version)
        try:
            await upload.commit()
        except UploadLost:
            with suppress(Stale):
                await self._store.drop(*place, version=version)
            raise
        await self._store.put(*place, new.to_json(), version=version)
        await upload.named()

    async def _replace(self, damaged: Described, upload: Upload, new: Described) -> Blob:
        """Describe uploaded bytes in place of damaged ones."""
        digest = damaged.blob.digest
        mark = await self.chunks.mark(damaged.upload, digest, damaged.chunks)
        try:
            repaired = new._replace(blob=damaged.blob, kept=damaged.kept)
            await self._describe(upload, repaired, damaged.version)
        finally:
            await self.chunks.settle(damaged.upload, digest, damaged.chunks, mark)
        return damaged.blob

    async def abandon(self, upload: Upload) -> None:
        """Remove the chunks of an upload that failed; if that fails too, a later put does."""
        with suppress(KeepthreadError):
            await asyncio.shield(upload.abandon())

    async def hold(self, digest: str, *, kept: bool = False) -> Described | None:
        """Mark a stored blob as used, so that no concurrent cleanup removes it, and return it."""
        while known := await self.chunks.describe(digest):
            with suppress(Stale):
                held = known._replace(kept=kept or known.kept)
                version = await self._store.put(
                    self._scope, BLOB, digest, held.to_json(), version=known.version
                )
                return held._replace(version=version)
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
        described = [await self._listed(Described.of(record)) for record in page]
        return Page((one.blob for one in described if one is not None), cursor=page.next)

    async def _listed(self, described: Described) -> Described | None:
        if not described.pending:
            return described
        return await self.chunks.describe(described.blob.digest)

    async def damages(self) -> AsyncGenerator[str]:
        """Yield what is damaged: blobs whose bytes are missing or are not those that were put."""
        for record in await self._store.scan(self._scope, BLOB):
            described = await self._listed(Described.of(record))
            if described is None:
                continue
            try:
                async for _ in self.chunks.read(described):
                    pass
            except NotFound:  # it was deleted in the meantime
                continue
            except Damaged as error:
                yield f"{error} (owner {self.owner!r})"

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
        """Remove a blob as it was read, also a pending one; raise `Stale` if it changed since."""
        upload, digest, count = known.upload, known.blob.digest, known.chunks
        mark = await self.chunks.mark(upload, digest, count)
        try:
            await self.chunks.drop_entry(known)
        except Stale:  # another caller was faster and may already have dropped its mark
            await self.chunks.settle(upload, digest, count, mark)
            raise
        await self.chunks.remove(upload, count)

    async def release_session(self, session: SessionKey, digests: list[str]) -> None:
        """Release what a session referred to that is deleted."""
        for digest in digests:
            await self.references.drop(await self.references.of_session(digest, session))
            await self.release(digest)

    async def refer(self, session: SessionKey, messages: Sequence[Message]) -> list[BlobUse]:
        """Note the blobs that copied messages refer to, before the copies are stored."""
        uses: list[BlobUse] = []
        for message in messages:
            for digest in blobs_of(message) if message.state == "live" else ():
                uses.append(await self.references.add(digest, session, message.id))
                await self.hold(digest)
        return uses

    async def sweep(self) -> None:
        """Remove leftovers of crashed processes: chunks without a description, unused blobs."""
        await self.chunks.sweep()
        await self.chunks.adopt()
        for use in await self.references.all():
            if await self._is_unused(use):
                # Its message may be stored at this moment: the process that stores it then finds
                # the reference changed, or this one finds the message.
                with suppress(Stale):
                    touched = await self.references.touch(use)
                    if await self._is_unused(touched):
                        await self.references.drop([touched])
        uses = {use.digest for use in await self.references.all()}
        for record in await self._store.scan(self._scope, BLOB):
            if record.key not in uses and not Described.of(record).kept:
                await self.release(record.key)

    async def _is_unused(self, use: BlobUse) -> bool:
        try:
            found = await self._store.find(use.session, ids=[use.message])
        except SessionGone:
            return True
        if not found and self._clock() - use.at < ABANDONED:
            return False  # its message may follow
        return not any(message.state == "live" for message in found)

    async def used_in(self, session: SessionKey) -> list[str]:
        """Return the digests of the blobs that a session refers to."""
        return await blobs_used_in(self._store, session)
