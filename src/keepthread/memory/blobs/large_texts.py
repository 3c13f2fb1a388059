"""Messages that refer to blobs: texts that are too long for the log, and attachments.

The order makes it safe to die at any point: reference, chunks, description, message.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final, NamedTuple, TypeAlias

from keepthread.context.full_text import (
    FULL_TEXT,
    blobs_of,
    first_part,
    full_text_of,
    head_and_tail,
    with_full_text,
)
from keepthread.errors import KeepthreadError, NotFound, SessionGone, Unavailable
from keepthread.memory.blobs.references import BlobUse
from keepthread.memory.blobs.repository import BlobRepository
from keepthread.memory.blobs.types import missing_blob
from keepthread.protocols import Store
from keepthread.stores.codec import encode
from keepthread.stores.validation import MAX_BYTES
from keepthread.types import Message, SessionKey

PLAIN_TEXT: Final = "text/plain; charset=utf-8"
Append: TypeAlias = Callable[[Sequence[Message]], Awaitable[list[Message]]]


class _Fitted(NamedTuple):
    """A message that fits into the log, and all of its text if that is to become a blob."""

    message: Message
    data: bytes | None = None


class LargeTexts(NamedTuple):
    """Stores the blobs that a session's messages refer to."""

    store: Store
    session: SessionKey
    blobs: BlobRepository
    ids: Callable[[], str]

    def concern(self, messages: Sequence[Message]) -> bool:
        """Return whether a message may need a blob; cheap, because every append asks."""
        longest = self.blobs.sizes.text // 4  # a character has up to 4 bytes
        return any(
            type(m) is Message
            and type(m.content) is str
            and (len(m.content) > longest or m.attachments or FULL_TEXT in m.meta)
            for m in messages
        )

    def shortened(self, message: Message) -> Message:
        """Return a message as it is stored: one with a long text keeps a part of it."""
        return self._fitted(message).message

    async def append(self, messages: Sequence[Message], append: Append) -> list[Message]:
        """Append messages after the blobs that they refer to."""
        uses: dict[str, list[BlobUse]] = {}
        try:
            stored = await append([await self._prepared(m, uses) for m in messages])
        except Unavailable:  # maybe they are stored: their references stay
            raise
        except KeepthreadError:
            await self._settle([use for found in uses.values() for use in found])
            raise
        erased = {message.id for message in stored if message.state == "erased"}
        await self._settle([use for id in erased for use in uses.get(id, ())])
        for given, message in zip(messages, stored, strict=True):
            if message.state == "live" and message.id in uses:
                await self._keep(given, message, uses[message.id])
        return stored

    async def _keep(self, given: Message, stored: Message, uses: Sequence[BlobUse]) -> None:
        """Store again what another process removed because the message had not followed yet."""
        for use in await self.blobs.references.changed(uses):
            with suppress(SessionGone):  # it was deleted since, with its messages
                again = await self.blobs.references.add(use.digest, use.session, use.message)
                try:
                    await self._stored(use.digest, self._fitted(given).data)
                except NotFound:  # an attachment without its bytes
                    await self.store.erase(self.session, [stored.seq])
                    await self._settle([again])
                    raise
                if not await self._is_used(again):
                    await self._settle([again])

    async def full_text(self, message: Message) -> str:
        """Return all of a message's text."""
        whole = full_text_of(message)
        if whole is None:
            return message.content
        pieces = [piece async for piece in self.blobs.read(whole.digest)]
        return b"".join(pieces).decode("utf-8", "surrogatepass")

    # --- inside ---

    def _fitted(self, message: Message) -> _Fitted:
        if len(message.content) <= self.blobs.sizes.text // 4:
            return _Fitted(message)
        data = message.content.encode("utf-8", "surrogatepass")
        room = self._room(message)
        if len(data) <= room or room <= 0:
            return _Fitted(message)
        is_result = message.role == "tool"
        if is_result and len(data) > self.blobs.chunks.limit:  # a result is never refused
            return _Fitted(head_and_tail(message, data, room, kept=False))
        self.blobs.check(len(data))
        named = replace(with_full_text(message, data), tokens=0, counter="")
        cut = head_and_tail if is_result else first_part
        return _Fitted(cut(named, data, self._room(named)), data)

    def _room(self, message: Message) -> int:
        beside = encode(replace(message, content=""), message.id, limit=MAX_BYTES).extra or b""
        return self.blobs.sizes.text - len(beside)

    async def _prepared(self, given: Message, uses: dict[str, list[BlobUse]]) -> Message:
        """Store the blobs of a message, and return it as it fits."""
        message, data = self._fitted(given)
        if not (digests := blobs_of(message)):
            return message
        message = replace(message, id=message.id or self.ids())
        try:
            if await self.store.find(self.session, ids=[message.id]):
                return message  # a retry; if it was erased, its text must not come back
            found = uses.setdefault(message.id, [])
            for digest in digests:
                found.append(await self.blobs.references.add(digest, self.session, message.id))
                await self._stored(digest, data)
        except Unavailable:
            if data is not None and message.role == "tool" and hasattr(self.store, "outbox"):
                return head_and_tail(given, data, self._room(given), kept=False)
            raise
        return message

    async def _stored(self, digest: str, data: bytes | None) -> None:
        if data is not None:
            stored = await self.blobs.put(data, kept=False, media_type=PLAIN_TEXT, name="")
            if stored.digest == digest:
                return
        if not await self.blobs.hold(digest):
            raise missing_blob(digest)

    async def _settle(self, uses: Sequence[BlobUse]) -> None:
        """Drop the references of messages that are not stored, and release their blobs."""
        with suppress(KeepthreadError):  # pruning does it later
            for use in uses:
                if not await self._is_used(use):
                    await self.blobs.references.drop([use])
                    await self.blobs.release(use.digest)

    async def _is_used(self, use: BlobUse) -> bool:
        try:
            found = await self.store.find(use.session, ids=[use.message])
        except SessionGone:
            return False
        return any(m.state == "live" and use.digest in blobs_of(m) for m in found)
