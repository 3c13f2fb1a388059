"""The history of a session: pins, hidden ranges, forks and summaries."""

from typing import Final

from fastapi import APIRouter, Response

from keepthread.apps.http.bodies import ForkBody, RewindBody
from keepthread.apps.http.idempotency import ids_of
from keepthread.apps.http.operations import (
    NOTHING,
    OF_SESSIONS,
    Limit,
    MessageId,
    Reads,
    SessionId,
    Writes,
    operation,
    returns,
    returns_page,
    returns_session,
)
from keepthread.apps.http.paths import segment
from keepthread.apps.http.replies import Outcome, nothing, page_of, reply, session_reply
from keepthread.errors import NotFound, SessionExists
from keepthread.types import Hidden, Message, Summary

router: Final = APIRouter(prefix="/v1/sessions/{session:id}", tags=["history"])
PIN: Final = "/pins/{message:id}"
_OF_MESSAGES: Final = (*OF_SESSIONS, "message_not_found")


@operation(router, "GET", "/pins", returns_page(Message), errors=OF_SESSIONS)
async def list_pins(caller: Reads, session: SessionId) -> Response:
    """List the pinned messages, oldest first."""
    found = await caller.memory.get_session(session)
    return page_of(caller, "list_pins", await found.pins())


@operation(router, "PUT", PIN, NOTHING, status=204, errors=_OF_MESSAGES)
async def pin_message(caller: Writes, session: SessionId, message: MessageId) -> Response:
    """Keep a message in every context."""
    await (await caller.memory.get_session(session)).pin(message)
    return nothing()


@operation(router, "DELETE", PIN, NOTHING, status=204, errors=(*OF_SESSIONS, "not_found"))
async def unpin_message(caller: Writes, session: SessionId, message: MessageId) -> Response:
    """Unpin a message."""
    if not await (await caller.memory.get_session(session)).unpin(message):
        raise NotFound(f"message {message!r} is not pinned")
    return nothing()


@operation(router, "GET", "/hidden", returns_page(Hidden), errors=OF_SESSIONS)
async def list_hidden(caller: Reads, session: SessionId) -> Response:
    """List the ranges of messages that contexts skip, oldest first, each with the reason."""
    found = await caller.memory.get_session(session)
    return page_of(caller, "list_hidden", await found.hidden())


@operation(router, "POST", "/rewind", NOTHING, status=204, errors=_OF_MESSAGES)
async def rewind_session(caller: Writes, session: SessionId, body: RewindBody) -> Response:
    """Hide the messages after a position; the log keeps them."""
    await (await caller.memory.get_session(session)).rewind(body.to)
    return nothing()


@operation(router, "POST", "/clear", NOTHING, status=204, errors=OF_SESSIONS)
async def clear_session(caller: Writes, session: SessionId) -> Response:
    """Start over: contexts no longer show earlier messages; the log keeps them."""
    await (await caller.memory.get_session(session)).clear()
    return nothing()


@operation(router, "POST", "/unhide", returns_page(Hidden), errors=OF_SESSIONS)
async def unhide_messages(caller: Writes, session: SessionId) -> Response:
    """Undo the latest `clear` or `rewind`; the page contains the range that is visible again.

    It is empty if nothing is hidden, or if messages were added since.
    """
    shown = await (await caller.memory.get_session(session)).unhide()
    return page_of(caller, "unhide_messages", [] if shown is None else [shown])


@operation(
    router,
    "POST",
    "/fork",
    returns_session("The fork."),
    status=201,
    errors=(*_OF_MESSAGES, "session_exists"),
)
async def fork_session(
    caller: Writes, session: SessionId, body: ForkBody | None = None
) -> Response:
    """Create a session with a copy of this one, up to a position if one is given."""
    given, found = body or ForkBody(), await caller.memory.get_session(session)
    ids = ids_of(caller, found.key) if given.id is None else None
    id = ids() if ids else given.id
    try:
        fork = await found.fork(given.at, id=id)
    except SessionExists:
        if ids is None or id is None:
            raise
        fork = await caller.memory.get_session(id)  # made by a worker that died after it
    return session_reply(fork.info, 201, location=f"/v1/sessions/{segment(fork.id)}")


@operation(router, "POST", "/compact", returns(Outcome), errors=OF_SESSIONS)
async def compact_session(caller: Writes, session: SessionId) -> Response:
    """Compact old turns into the summary; `count` is the number of compactions."""
    count = await (await caller.memory.get_session(session)).compact()
    return reply(Outcome(count > 0, count))


@operation(router, "GET", "/compactions", returns_page(Summary), errors=OF_SESSIONS)
async def list_compactions(caller: Reads, session: SessionId, limit: Limit = 10) -> Response:
    """List the newest summaries of a session, newest first."""
    found = await caller.memory.get_session(session)
    return page_of(caller, "list_compactions", await found.compactions(limit))
