"""Messages of a session: read them in either order, append some."""

from contextlib import suppress
from typing import Annotated, Final, Literal

from fastapi import APIRouter, Query, Response

from keepthread.apps.http.bodies import AppendBody, HistoryBody
from keepthread.apps.http.caller import Caller
from keepthread.apps.http.idempotency import with_ids
from keepthread.apps.http.operations import (
    OF_SESSIONS,
    Cursor,
    Limit,
    MessageId,
    Reads,
    SessionId,
    Writes,
    operation,
    returns,
    returns_page,
)
from keepthread.apps.http.replies import MessageText, cursor_of, page_of, reply
from keepthread.errors import SessionGone
from keepthread.memory.alignment import Aligned
from keepthread.memory.session import Session
from keepthread.stores.cursors import check_position, decode_cursor, encode_cursor
from keepthread.stores.validation import MAX_COUNT
from keepthread.types import Message, Page

router: Final = APIRouter(prefix="/v1/sessions/{session:id}/messages", tags=["messages"])

Order = Literal["oldest", "newest"]
Position = Annotated[int, Query(ge=0, le=MAX_COUNT)]


@operation(router, "GET", "", returns_page(Message), errors=OF_SESSIONS)
async def list_messages(
    caller: Reads,
    session: SessionId,
    order: Annotated[Order, Query(description="Which messages come first.")] = "oldest",
    after: Annotated[int, Query(ge=0, le=MAX_COUNT, description="After this position.")] = 0,
    before: Annotated[
        int | None, Query(ge=0, le=MAX_COUNT, description="Before this position.")
    ] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Response:
    """List the messages of a session, hidden ones included.

    A cursor belongs to its order and its filters: with others it is refused.
    """
    found = await caller.memory.get_session(session)
    of = ("messages", found.key, order, after, before)
    given = cursor_of(caller, "list_messages", cursor)
    last = None if given is None else _position(of, given)
    if order == "oldest":
        items = await _oldest(found, after if last is None else last, before, limit + 1)
    else:
        items = await _newest(found, after, before if last is None else last, limit + 1)
    more = len(items) > limit
    following = encode_cursor(of, [items[limit - 1].seq]) if more else None
    return page_of(caller, "list_messages", Page(items[:limit], cursor=following))


def _position(of: tuple[str | int | None, ...], cursor: str) -> int:
    position = decode_cursor(of, cursor)
    check_position(position, (int,))
    return int(position[0])


async def _oldest(session: Session, after: int, before: int | None, limit: int) -> list[Message]:
    page = await session.messages(after, limit)
    return [message for message in page if before is None or message.seq < before]


async def _newest(session: Session, after: int, before: int | None, limit: int) -> list[Message]:
    end = session.info.messages + 1 if before is None else before
    return [*reversed(await session.messages(after, limit, before=end))]


@operation(
    router,
    "POST",
    "",
    returns_page(Message),
    status=201,
    errors=(*OF_SESSIONS, "conflict", "stale", "too_large"),
)
async def append_messages(caller: Writes, session: SessionId, body: AppendBody) -> Response:
    """Append messages to a session, all or none, and return them as stored.

    Messages with ids can be sent again: those that are stored already are returned. So can messages
    without ids, if the request has an `Idempotency-Key`. With `expect`
    the request is refused (`stale`) if others appended in the meantime.
    """
    response = page_of(caller, "append_messages", await _append(caller, session, body))
    response.status_code = 201
    return response


async def _append(caller: Caller, id: str, body: AppendBody) -> list[Message]:
    """Append to a cached session handle, or else to a fresh one.

    A deleted session accepts no messages, and a forgotten one returns only their remains. In both
    cases the session is looked up again, so every worker gives the same answer.
    """
    known = caller.known.get(caller.tenant, caller.owner, id)
    if known is not None:
        with suppress(SessionGone):
            stored = await _append_to(caller, known, body)
            if all(each.state == "live" for each in stored):
                return stored
        caller.known.discard(caller.tenant, known)
    found = await caller.memory.get_session(id)
    stored = await _append_to(caller, found, body)
    caller.known.add(caller.tenant, found)
    return stored


async def _append_to(caller: Caller, session: Session, body: AppendBody) -> list[Message]:
    messages = with_ids(caller, session.key, [each.message() for each in body.messages])
    return await session.append(*messages, expect=body.expect)


@operation(
    router,
    "POST",
    "/align",
    returns(Aligned),
    errors=(*OF_SESSIONS, "too_large"),
)
async def align_messages(caller: Writes, session: SessionId, body: HistoryBody) -> Response:
    """Make a session continue with the history that a client sends again with every request.

    Messages that the session has are kept, new ones are appended, and those that the client no
    longer has are hidden, as by `rewind`. Messages are compared by role, text and calls; their ids
    are not used. The request is idempotent.
    """
    found = await caller.memory.get_session(session)
    return reply(await found.align([each.message() for each in body.messages]))


@operation(
    router,
    "GET",
    "/{message:id}/text",
    returns(MessageText),
    errors=(*OF_SESSIONS, "message_not_found"),
)
async def get_message_text(caller: Reads, session: SessionId, message: MessageId) -> Response:
    """Get all of a message's text; the log holds a part of a text over 1 MiB."""
    found = await caller.memory.get_session(session)
    return reply(MessageText(await found.full_text(message)))
