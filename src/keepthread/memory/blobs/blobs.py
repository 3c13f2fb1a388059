"""Blobs of one owner, as programs use them: put bytes, read them, list them, delete them."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable
from contextlib import closing
from os import fstat
from pathlib import Path
from typing import BinaryIO, cast

from keepthread.errors import InvalidInput
from keepthread.memory.blobs.chunks import Upload
from keepthread.memory.blobs.repository import UNKNOWN_TYPE, BlobRepository
from keepthread.memory.blobs.types import Blob, check_digest
from keepthread.stores.validation import check_text, show
from keepthread.types import Page


class Blobs:
    """The blobs of one owner; get it from `OwnerMemory.blobs`.

    A blob is named by the SHA-256 of its bytes, so equal bytes are stored once. Another owner's
    blob is not found, as if it did not exist.
    """

    def __init__(self, repository: BlobRepository) -> None:
        """Take the owner's repository; callers use `OwnerMemory.blobs`."""
        self._repository = repository

    @property
    def max_size(self) -> int:
        """Return the store's limit for a blob, in bytes."""
        return self._repository.chunks.limit

    async def put(
        self,
        data: bytes | Path | AsyncIterable[bytes],
        *,
        media_type: str = UNKNOWN_TYPE,
        name: str = "",
    ) -> Blob:
        """Store bytes, a file or a stream, and return the blob; data over the limit is refused.

        A file or a stream is read piece by piece. If the owner has the same bytes already, that
        blob is returned as it was first described; damaged bytes are replaced. `TooLarge` names the
        size and the limit. `Busy` is raised if another process removes the bytes of a stream while
        they are stored.
        """
        given = (check_text(media_type, "media_type"), check_text(name, "name"))
        if isinstance(data, bytes | bytearray):
            repository = self._repository
            return await repository.put(bytes(data), kept=True, media_type=given[0], name=given[1])
        if isinstance(data, Path):
            return await self._put_file(data, given[0], given[1] or data.name)
        if not isinstance(data, AsyncIterable):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidInput(
                f"a blob is bytes, a Path or an asynchronous iterable of bytes, not {show(data)}"
            )
        async with self._repository.uploading() as upload:
            async for piece in data:
                await upload.write(piece)
            return await self._complete(upload, *given)

    async def _put_file(self, path: Path, media_type: str, name: str) -> Blob:
        async def stored() -> Blob:
            with closing(cast(BinaryIO, await asyncio.to_thread(path.open, "rb"))) as file:
                self._repository.check(fstat(file.fileno()).st_size)  # before any of it is read
                async with self._repository.uploading() as upload:
                    while piece := await asyncio.to_thread(file.read, self._repository.sizes.chunk):
                        await upload.write(piece)
                    return await self._complete(upload, media_type, name)

        return await self._repository.retried(stored)

    async def _complete(self, upload: Upload, media_type: str, name: str) -> Blob:
        return await self._repository.complete(upload, kept=True, media_type=media_type, name=name)

    def open(self, digest: str) -> AsyncGenerator[bytes]:
        """Yield a blob's bytes piece by piece: `async for piece in blobs.open(digest)`.

        They are checked against the digest: if a part is missing or changed, `Damaged` is raised
        before the last piece. A blob that does not exist raises `NotFound`.
        """
        return self._repository.read(check_digest(digest))

    async def read(self, digest: str) -> bytes:
        """Return all bytes of a blob; `open` reads them piece by piece."""
        return b"".join([piece async for piece in self.open(digest)])

    async def info(self, digest: str) -> Blob:
        """Return the description of a blob; raise `NotFound` if it does not exist."""
        return (await self._repository.find(check_digest(digest))).blob

    async def list(self, *, limit: int = 100, cursor: str | None = None) -> Page[Blob]:
        """Return blobs, in the order of their digests, also those of long messages.

        The page is a list; its `next` is the `cursor` of the next page, or None.
        """
        return await self._repository.page(limit, cursor)

    async def delete(self, digest: str) -> bool:
        """Delete a blob; return False if a message refers to it: then it is deleted with it.

        A blob that does not exist raises `NotFound`.
        """
        return await self._repository.give_up(check_digest(digest))
