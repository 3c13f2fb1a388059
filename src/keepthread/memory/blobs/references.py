"""References from messages to blobs, so that a blob is deleted with the last message that uses it.

A reference is stored before its message, and before its blob is looked up. The process that removes
a blob reads its description, sees no reference, and drops the description at the version it read.
The process that adds a reference writes the description again. So at least one of the two detects
the other.

A reference whose message does not follow is dropped, after it was written again and the message was
searched for once more. The process that stores the message reads its reference after that, and adds
it again if it changed.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, cast

from keepthread.context.ids import derived_id
from keepthread.errors import SessionGone, Stale
from keepthread.protocols import Store
from keepthread.stores.kinds import BLOB_USE
from keepthread.types import Record, Scope, SessionKey


class BlobUse(NamedTuple):
    """A message that refers to a blob."""

    digest: str
    session: SessionKey
    message: str
    """The message's id."""
    at: float
    key: str
    version: int

    @classmethod
    def of(cls, record: Record) -> "BlobUse":
        """Return the reference that a record of an owner holds."""
        value = cast(Mapping[str, Any], record.value)
        digest = record.key.partition(":")[0]
        session = SessionKey(value["session"])
        return cls(digest, session, value["message"], value["at"], record.key, record.version)


class BlobReferences:
    """The references of one owner's messages to blobs."""

    def __init__(self, store: Store, owner: str, clock: Callable[[], float]) -> None:
        """Take the store and the owner."""
        self._store = store
        self._scope = Scope(owner=owner)
        self._clock = clock

    async def add(self, digest: str, session: SessionKey, message: str) -> BlobUse:
        """Note that a message refers to a blob, before either is stored."""
        # A session names its blobs as well: they are released when it is deleted.
        await self._store.put(Scope(session=session), BLOB_USE, digest, None)
        key, at = f"{_prefix(digest, session)}{derived_id('use', message)}", self._clock()
        value = {"session": session, "message": message, "at": at}
        version = await self._store.put(self._scope, BLOB_USE, key, value)
        return BlobUse(digest, session, message, at, key, version)

    async def touch(self, use: BlobUse) -> BlobUse:
        """Write a reference again as it was read; raise `Stale` if it changed since."""
        value = {"session": use.session, "message": use.message, "at": use.at}
        return use._replace(
            version=await self._store.put(
                self._scope, BLOB_USE, use.key, value, version=use.version
            )
        )

    async def changed(self, uses: Sequence[BlobUse]) -> list[BlobUse]:
        """Return the references that another process has changed or dropped since."""
        stored = [await self._store.get(self._scope, BLOB_USE, use.key) for use in uses]
        return [
            use
            for use, record in zip(uses, stored, strict=True)
            if record is None or record.version != use.version
        ]

    async def exist(self, digest: str) -> bool:
        """Return whether a message refers to a blob."""
        found = await self._store.scan(
            self._scope, BLOB_USE, after=f"{digest}:", before=f"{digest};", limit=1
        )
        return bool(found)

    async def all(self) -> list[BlobUse]:
        """Return all references."""
        return [BlobUse.of(record) for record in await self._store.scan(self._scope, BLOB_USE)]

    async def of_blob(self, digest: str) -> list[BlobUse]:
        """Return the references to one blob."""
        found = await self._store.scan(
            self._scope, BLOB_USE, after=f"{digest}:", before=f"{digest};"
        )
        return [BlobUse.of(record) for record in found]

    async def of_session(self, digest: str, session: SessionKey) -> list[BlobUse]:
        """Return the references of one session to a blob."""
        first = _prefix(digest, session)
        found = await self._store.scan(self._scope, BLOB_USE, after=first, before=f"{first[:-1]};")
        return [BlobUse.of(record) for record in found]

    async def drop(self, uses: Sequence[BlobUse]) -> None:
        """Drop references; one that was noted again in the meantime stays."""
        for use in uses:
            try:
                await self._store.drop(self._scope, BLOB_USE, use.key, version=use.version)
            except Stale:
                continue
            await self._drop_name(use.session, use.digest)

    async def drop_names(self, session: SessionKey) -> None:
        """Drop the names of the blobs that a session no longer refers to."""
        with suppress(SessionGone):
            for digest in await blobs_used_in(self._store, session):
                await self._drop_name(session, digest)

    async def _drop_name(self, session: SessionKey, digest: str) -> None:
        place = (Scope(session=session), BLOB_USE, digest)
        with suppress(SessionGone, Stale):
            named = await self._store.get(*place)
            if named is not None and not await self.of_session(digest, session):
                await self._store.drop(*place, version=named.version)


async def blobs_used_in(store: Store, session: SessionKey) -> list[str]:
    """Return the digests of the blobs that messages of a session refer to."""
    return [record.key for record in await store.scan(Scope(session=session), BLOB_USE)]


def _prefix(digest: str, session: SessionKey) -> str:
    return f"{digest}:{session}:"
