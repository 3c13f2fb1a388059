"""Blobs, blocking: put bytes, read them, list them, delete them."""

from collections.abc import AsyncGenerator, Generator, Iterable
from pathlib import Path

from keepthread.errors import InvalidInput
from keepthread.memory.blobs.blobs import Blobs as AsyncBlobs
from keepthread.memory.blobs.repository import UNKNOWN_TYPE
from keepthread.memory.blobs.types import Blob
from keepthread.stores.validation import show
from keepthread.sync.derive import Wrapper, blocking, stepped
from keepthread.sync.loop import Call


class Blobs(Wrapper[AsyncBlobs]):
    """The blobs of one owner; get it from `OwnerMemory.blobs`.

    The methods are those of `keepthread.memory.blobs.blobs.Blobs`, without `await`.
    """

    @property
    def max_size(self) -> int:
        """Return the bytes of the largest blob that the store takes."""
        return self._wrapped.max_size

    def put(
        self,
        data: bytes | Path | Iterable[bytes],
        *,
        media_type: str = UNKNOWN_TYPE,
        name: str = "",
    ) -> Blob:
        """See `keepthread.memory.blobs.blobs.Blobs.put`; an iterable is read in this thread."""
        call = Call(self._loop)
        if isinstance(data, bytes | bytearray | Path):
            return call.run(self._wrapped.put, data, media_type=media_type, name=name)
        if not hasattr(data, "__iter__"):
            raise InvalidInput(f"a blob is bytes, a Path or an iterable of bytes, not {show(data)}")
        given = iter(data)
        step = call.call_caller(lambda: next(given, None))

        async def stream() -> AsyncGenerator[bytes]:
            while (piece := await step()) is not None:
                yield piece

        return call.run(self._wrapped.put, stream(), media_type=media_type, name=name)

    def open(self, digest: str) -> Generator[bytes]:
        """Yield a blob's bytes piece by piece; see `keepthread.memory.blobs.blobs.Blobs.open`."""
        yield from stepped(self._loop, self._wrapped.open(digest))

    read = blocking(AsyncBlobs.read)
    info = blocking(AsyncBlobs.info)
    list = blocking(AsyncBlobs.list)
    delete = blocking(AsyncBlobs.delete)
