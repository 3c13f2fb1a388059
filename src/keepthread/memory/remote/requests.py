"""Requests about one owner's data, and the bodies and values that sessions and turns share."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Final, TypeVar

from keepthread.context.context import Context
from keepthread.context.why import Why
from keepthread.memory.messages import Messages
from keepthread.memory.remote.connection import (
    OWNER_HEADER,
    ApiRequest,
    ServerConnection,
    given,
    segment,
)
from keepthread.memory.remote.values import from_json
from keepthread.stores.codec import encode, new_id
from keepthread.stores.rows import check_positions
from keepthread.stores.validation import check_count, check_id, check_message, check_text
from keepthread.types import JSON, Attachment, Message, Page, Selection, SessionInfo

T = TypeVar("T")

PAGE: Final = 200
"""Items in one response."""


class Requests:
    """Requests about one owner's data, below a path."""

    def __init__(self, connection: ServerConnection, owner: str, path: str = "") -> None:
        """Take the owner that the server is asked about, and where the paths begin."""
        self.connection = connection
        self.owner = owner
        self._path = path
        self._headers = {OWNER_HEADER: segment(owner)}

    def below(self, path: str) -> "Requests":
        """Return requests below a longer path."""
        return Requests(self.connection, self.owner, self._path + path)

    def route(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        once: bool = False,
    ) -> ApiRequest:
        """Return a request of this owner."""
        sent = {**self._headers, **(headers or {})}
        return ApiRequest(method, self._path + path, body, query, sent, once)

    async def json(self, method: str, path: str, body: Any = None, *, once: bool = False) -> Any:
        """Send a request, and return the JSON of the response."""
        return await self.connection.json(self.route(method, path, body, once=once))

    async def page(
        self,
        kind: type[T],
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, Any] | None = None,
        once: bool = False,
    ) -> Page[T]:
        """Send a request whose response is a page of values."""
        route = self.route(method, path, body, query=query, once=once)
        return await self.connection.page(kind, route)

    async def pages(
        self,
        kind: type[T],
        path: str,
        limit: int,
        cursor: str | None = None,
        *,
        query: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> Page[T]:
        """Return up to `limit` values after a cursor, in as many requests as they take.

        With a `body` they are POST requests.
        """
        left = check_count(limit, "limit")
        found: list[T] = []
        while left > 0:
            asked = {"limit": min(PAGE, left), **given(cursor=cursor)}
            if body is None:
                page = await self.page(kind, "GET", path, query={**(query or {}), **asked})
            else:
                page = await self.page(kind, "POST", path, {**body, **asked})
            found += page
            left -= len(page)
            cursor = page.next
            if cursor is None:
                break
        return Page(found, cursor=cursor)


class RemoteContext(Context):
    """A context that a server built; it is rendered here."""

    def __init__(self, value: Mapping[str, Any], *, is_text: bool) -> None:
        """Read what the server sent."""
        why = from_json(Why, value["why"])
        messages = [from_json(Message, each) for each in value["messages"]]
        super().__init__(
            Selection(value["budget"], value["tokens"], value["system"], messages, why.choices),
            is_text=is_text,
        )
        self._truncated: frozenset[int] = frozenset(value["truncated"])

    @cached_property
    def truncated(self) -> frozenset[int]:
        """Return the positions of messages that are shown with their middle left out."""
        return self._truncated


class RemoteMessages(Messages):
    """The messages of a session on a server."""

    def __init__(
        self, requests: Requests, after: int, limit: int | None, before: int | None
    ) -> None:
        """Take what `Session.messages` was called with; nothing is read yet."""
        check_positions(after=after, before=before, limit=limit)
        self._requests = requests
        self._after = after
        self._limit = limit
        self._before = before

    async def __aiter__(self) -> AsyncGenerator[Message]:
        """Yield them, reading a page at a time."""
        if self._before is not None and self._limit is not None:
            for message in await self._newest(self._limit, self._before):
                yield message
            return
        left = self._limit
        # Messages that the body of the loop appends are left out: it would never end.
        end = await self._end() if left is None else None
        cursor: str | None = None
        while left is None or left > 0:
            size = PAGE if left is None else min(left, PAGE)
            page = await self._page("oldest", size, end, cursor)
            for message in page:
                yield message
            cursor = page.next
            if cursor is None:
                return
            left = None if left is None else left - len(page)

    async def read(self) -> list[Message]:
        """Return them as a list."""
        return [message async for message in self]

    async def _end(self) -> int:
        end = from_json(SessionInfo, await self._requests.json("GET", "")).messages + 1
        return end if self._before is None else min(end, self._before)

    async def _newest(self, limit: int, before: int) -> list[Message]:
        found: list[Message] = []
        cursor: str | None = None
        while len(found) < limit:
            page = await self._page("newest", min(PAGE, limit - len(found)), before, cursor)
            found += page
            cursor = page.next
            if cursor is None:
                break
        return found[::-1]

    async def _page(
        self, order: str, limit: int, before: int | None, cursor: str | None
    ) -> Page[Message]:
        query = {"order": order, "after": self._after, "limit": limit}
        query |= given(before=before, cursor=cursor)
        return await self._requests.page(Message, "GET", "/messages", query=query)


def context_body(
    view: str | None, budget: int | None, query: str | None, *, newest: bool, text: bool
) -> dict[str, JSON]:
    """Return the body that asks for a context."""
    shown = "text" if text else "messages"
    return {"newest": newest, "format": shown, **given(view=view, budget=budget, query=query)}


def message_body(message: Message) -> dict[str, JSON]:
    """Return a message as a request has it; it gets its id here, so that it can be sent again."""
    # JSON would change some types in silence. A long text is fine: the server keeps it apart.
    check_text(check_message(message).content, "content")
    encode(replace(message, content=""), "")
    if check_text(message.id, "a message id"):
        check_id(message.id, "a message id")
    message = replace(message, id=message.id or new_id())
    native = message.native
    return {
        "role": message.role,
        "content": message.content,
        "id": message.id,
        "tool_calls": [
            {"id": call.id, "name": call.name, "arguments": call.arguments}
            for call in message.tool_calls
        ],
        "attachments": attachment_bodies(message.attachments),
        "meta": dict(message.meta),
        "created_at": message.created_at,
        **given(
            tool_call_id=message.tool_call_id,
            name=message.name,
            author=message.author,
            origin=message.origin,
            source=message.source,
            native=None
            if native is None
            else {"wire": native.wire, "items": list(native.items), "provider": native.provider},
        ),
    }


def attachment_bodies(attachments: Sequence[Attachment]) -> list[JSON]:
    """Return attachments as a request has them."""
    return [{"media_type": a.media_type, "name": a.name, "uri": a.uri} for a in attachments]
