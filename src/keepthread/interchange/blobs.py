"""Blobs that leave a store with the messages that refer to them, one chunk at a time."""

import time
from collections.abc import AsyncGenerator, Sequence

from keepthread.memory.blobs.references import blobs_used_in
from keepthread.memory.blobs.repository import BlobRepository
from keepthread.memory.blobs.types import BlobSizes, Described
from keepthread.protocols import Store
from keepthread.stores.kinds import BLOB, BLOB_CHUNK
from keepthread.types import Message, Record, Scope, SessionKey


async def refer(store: Store, owner: str, session: SessionKey, messages: Sequence[Message]) -> None:
    """Note the blobs that copied messages refer to, before the copies are stored."""
    blobs = BlobRepository(store, owner, sizes=BlobSizes(), clock=time.time)
    await blobs.refer(session, messages)


def is_pending(record: Record) -> bool:
    """Return whether a record describes a blob that is still being stored."""
    return record.kind == BLOB and Described.of(record).pending


async def chunks_of(store: Store, blob: Record) -> AsyncGenerator[Record]:
    """Yield the chunks of a blob, given the record that describes it."""
    described = Described.of(blob)
    for number in range(described.chunks):
        key = f"{described.upload}:{number:06}"
        chunk = await store.get(blob.scope, BLOB_CHUNK, key)
        if chunk is not None:
            yield chunk


async def blobs_of_session(store: Store, owner: str, session: SessionKey) -> list[Record]:
    """Return the records that describe the blobs of a session's messages."""
    scope = Scope(owner=owner)
    found = [await store.get(scope, BLOB, digest) for digest in await blobs_used_in(store, session)]
    return [record for record in found if record is not None and not is_pending(record)]


async def copy_chunks(source: Store, target: Store, records: Sequence[Record]) -> None:
    """Copy the chunks of blobs that the target does not have, before their descriptions."""
    for record in records:
        if record.kind != BLOB or await target.get(record.scope, BLOB, record.key):
            continue
        async for chunk in chunks_of(source, record):
            await target.put(chunk.scope, chunk.kind, chunk.key, chunk.value)
