"""The memory of one owner on a server: sessions, search, changes, blobs and forgetting."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

from keepthread.errors import InvalidInput, Unsupported
from keepthread.memory.blobs.blobs import Blobs
from keepthread.memory.blobs.repository import UNKNOWN_TYPE
from keepthread.memory.blobs.types import Blob, check_digest
from keepthread.memory.forgetting.receipt import Receipt
from keepthread.memory.forgetting.receipts import StoredReceipt
from keepthread.memory.owner import OwnerMemory
from keepthread.memory.remote.connection import given, segment
from keepthread.memory.remote.facts import RemoteFacts
from keepthread.memory.remote.requests import PAGE, Requests
from keepthread.memory.remote.session import RemoteSession
from keepthread.memory.remote.values import from_json
from keepthread.memory.search.search import Hit
from keepthread.memory.session import Session
from keepthread.protocols import Progress
from keepthread.stores.codec import new_id
from keepthread.stores.validation import check_count, check_id, check_text, seconds_of
from keepthread.types import JSON, Change, Page, Role, SessionInfo

_PIECE: Final = 1 << 16
_LONGEST_WAIT: Final = 15.0
"""Seconds that one request waits for a change."""


class RemoteOwner(OwnerMemory):
    """The sessions, messages and facts of one owner on a server."""

    def __init__(self, requests: Requests) -> None:
        """Take requests of the owner; callers use `Memory.for_owner`."""
        self._requests = requests
        self._connection = requests.connection
        self._owner = requests.owner

    # --- sessions ---

    async def session(
        self,
        id: str,
        *,
        system_prompt: str | None = None,
        title: str | None = None,
        tags: Sequence[str] = (),
        meta: Mapping[str, JSON] | None = None,
    ) -> Session:
        """Return the session of that id; create it if it does not exist."""
        body = _session_body(system_prompt, title, tags, meta)
        return self._session(await self._requests.json("PUT", _path(id), body))

    async def create_session(
        self,
        id: str | None = None,
        *,
        system_prompt: str | None = None,
        title: str | None = None,
        tags: Sequence[str] = (),
        meta: Mapping[str, JSON] | None = None,
    ) -> Session:
        """Create a session; raise `SessionExists` if this owner has one with that id."""
        body = {"id": new_id() if id is None else id} | _session_body(
            system_prompt, title, tags, meta
        )
        return self._session(await self._requests.json("POST", "/sessions", body, once=True))

    async def get_session(self, id: str) -> Session:
        """Return the session of that id; raise `SessionNotFound` if it does not exist."""
        return self._session(await self._requests.json("GET", _path(id)))

    async def list_sessions(
        self,
        *,
        limit: int = 10,
        cursor: str | None = None,
        tag: str | None = None,
        title: str | None = None,
    ) -> Page[SessionInfo]:
        """Return information about sessions, latest activity first, without delegated tasks."""
        query = given(tag=tag, title=title)
        return await self._requests.pages(SessionInfo, "/sessions", limit, cursor, query=query)

    async def delete_session(self, id: str) -> None:
        """Remove a session with its messages and its records; facts and forks stay."""
        await self._requests.json("DELETE", _path(id))

    def join(self, session: Session) -> Session:
        """Raise `Unsupported`: a key sees the facts of its own owner."""
        del session
        raise Unsupported("shared sessions are not available over HTTP; open the store directly")

    # --- finding ---

    async def search(
        self,
        query: str,
        *,
        session: str | None = None,
        since: float | datetime | None = None,
        until: float | datetime | None = None,
        roles: Collection[Role] | None = None,
        limit: int = 10,
        cursor: str | None = None,
        progress: Progress | None = None,
    ) -> Page[Hit]:
        """Return the messages most related to a question, the best first, each with the reason."""
        del progress  # the server indexes as messages come
        body = {
            "query": query,
            **given(
                session=session,
                since=seconds_of(since, "since"),
                until=seconds_of(until, "until"),
                roles=None if roles is None else list(roles),
            ),
        }
        return await self._requests.pages(Hit, "/search", limit, cursor, body=body)

    async def index(self, *, progress: Progress | None = None) -> None:
        """Index the messages written since the last time, by words and by vectors."""
        del progress
        await self._requests.json("POST", "/index")

    async def changes(
        self, *, after: str | None = None, limit: int = 100, wait: float = 0
    ) -> Page[Change]:
        """Return what was written for this owner after a cursor, without the texts."""
        size, end = min(check_count(limit, "limit"), PAGE), time.monotonic() + wait
        while True:
            left = max(0.0, end - time.monotonic())
            query = {"limit": size, "wait": min(left, _LONGEST_WAIT), **given(after=after)}
            page = await self._requests.page(Change, "GET", "/changes", query=query)
            if page or left <= _LONGEST_WAIT:
                return page
            after = page.next

    async def export(self, *, session: str | None = None) -> AsyncGenerator[bytes]:
        """Yield everything of this owner, or one session, as lines of JSON, without any loss."""
        route = self._requests.route("GET", "/export", query=given(session=session))
        async with self._connection.stream(route) as response:
            rest = b""
            async for piece in response.aiter_bytes():
                *lines, rest = (rest + piece).split(b"\n")
                for line in lines:
                    yield line + b"\n"
            if rest:
                yield rest

    # --- blobs and facts ---

    @property
    def blobs(self) -> Blobs:
        """Return the owner's blobs: bytes and long texts, stored beside the log."""
        return RemoteBlobs(self._requests)

    @property
    def facts(self) -> RemoteFacts:
        """Return the facts about the owner, which hold beyond one session."""
        return RemoteFacts(self._requests)

    # --- forgetting ---

    async def forget(  # noqa: PLR0913 - each names one way to choose
        self,
        *,
        session: str | None = None,
        message: str | None = None,
        author: str | None = None,
        source: str | None = None,
        since: float | datetime | None = None,
        until: float | datetime | None = None,
        everything: bool = False,
        answers: bool = False,
        dry_run: bool = False,
        id: str | None = None,
        progress: Progress | None = None,
    ) -> Receipt:
        """Erase messages, their copies and everything that was made from them, permanently.

        It returns when all is erased, however long that takes.
        """
        del progress  # the server reports none
        body = {
            "id": new_id() if id is None else check_id(id, "id"),
            "everything": everything,
            "answers": answers,
            "dry_run": dry_run,
            **given(
                session=session,
                message=message,
                author=author,
                source=source,
                since=seconds_of(since, "since"),
                until=seconds_of(until, "until"),
            ),
        }
        receipt = from_json(Receipt, await self._requests.json("POST", "/forget", body))
        # The server does not keep names of authors and sources.
        asked = {n: body.get(n) if value is None else value for n, value in receipt.asked.items()}
        return replace(receipt, asked=asked)

    async def receipts(self, *, limit: int = 10, cursor: str | None = None) -> Page[StoredReceipt]:
        """Return the receipts of this handle's `forget`, latest first; they hold no erased text."""
        return await self._requests.pages(StoredReceipt, "/receipts", limit, cursor)

    # --- inside ---

    def _session(self, value: Any) -> Session:
        return RemoteSession(self._requests, from_json(SessionInfo, value))


def _path(id: str) -> str:
    return f"/sessions/{segment(check_id(id, 'a session id'))}"


def _session_body(
    system_prompt: str | None,
    title: str | None,
    tags: Sequence[str],
    meta: Mapping[str, JSON] | None,
) -> dict[str, JSON]:
    return {
        "title": title or "",
        "tags": list(tags),
        "meta": dict(meta or {}),
        **given(system_prompt=system_prompt),
    }


async def _pieces(path: Path) -> AsyncGenerator[bytes]:
    """Yield a file's bytes piece by piece, read in another thread."""
    with closing(cast(BinaryIO, await asyncio.to_thread(path.open, "rb"))) as file:
        while piece := await asyncio.to_thread(file.read, _PIECE):
            yield piece


class RemoteBlobs(Blobs):
    """The blobs of one owner on a server."""

    def __init__(self, requests: Requests) -> None:
        """Take requests of the owner; callers use `OwnerMemory.blobs`."""
        self._requests = requests
        self._connection = requests.connection

    @property
    def max_size(self) -> int:
        """Raise `Unsupported`: the server knows its limit, and names it when it refuses bytes."""
        raise Unsupported("the server's limit is named when it refuses a blob")

    async def put(
        self,
        data: bytes | Path | AsyncIterable[bytes],
        *,
        media_type: str = UNKNOWN_TYPE,
        name: str = "",
    ) -> Blob:
        """Store bytes, a file or a stream, and return the blob; data over the limit is refused."""
        media_type, name = check_text(media_type, "media_type"), check_text(name, "name")
        if isinstance(data, Path):
            return await self.put(_pieces(data), media_type=media_type, name=name or data.name)
        if not isinstance(data, bytes | bytearray | AsyncIterable):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidInput("a blob is bytes, a Path or an asynchronous iterable of bytes")
        content = bytes(data) if isinstance(data, bytes | bytearray) else data
        route = self._requests.route("POST", "/blobs", query=given(name=name or None))
        return from_json(Blob, await self._connection.upload(route, content, media_type))

    async def open(self, digest: str) -> AsyncGenerator[bytes]:
        """Yield a blob's bytes piece by piece: `async for piece in blobs.open(digest)`."""
        route = self._requests.route("GET", f"/blobs/{check_digest(digest)}/content")
        async with self._connection.stream(route) as response:
            async for piece in response.aiter_bytes(_PIECE):
                yield piece

    async def info(self, digest: str) -> Blob:
        """Return the description of a blob; raise `NotFound` if it does not exist."""
        route = self._requests.route("GET", f"/blobs/{check_digest(digest)}")
        return from_json(Blob, await self._connection.json(route))

    async def list(self, *, limit: int = 100, cursor: str | None = None) -> Page[Blob]:
        """Return blobs, in the order of their digests, also those of long messages."""
        return await self._requests.pages(Blob, "/blobs", limit, cursor)

    async def delete(self, digest: str) -> bool:
        """Delete a blob; return False if a message refers to it: then it goes with that message."""
        route = self._requests.route("DELETE", f"/blobs/{check_digest(digest)}")
        return (await self._connection.json(route))["changed"]
