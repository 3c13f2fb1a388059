"""Sessions: list, create, read, change and delete them."""

from typing import Annotated, Any, Final

from fastapi import APIRouter, Header, Query, Request, Response

from keepthread.apps.http.bodies import NewSessionBody, SessionBody, SessionChangesBody
from keepthread.apps.http.caller import audit, state_of
from keepthread.apps.http.idempotency import ids_of
from keepthread.apps.http.operations import (
    NOT_MODIFIED,
    NOTHING,
    OF_SESSIONS,
    Cursor,
    Forgets,
    Limit,
    Reads,
    SessionId,
    Writes,
    operation,
    returns,
    returns_page,
    returns_session,
)
from keepthread.apps.http.paths import segment
from keepthread.apps.http.replies import (
    cursor_of,
    is_known,
    matched,
    not_modified,
    nothing,
    page_of,
    reply,
    session_reply,
    stale,
)
from keepthread.errors import SessionExists, SessionNotFound, Stale
from keepthread.memory.session import Session, Status
from keepthread.types import SessionInfo

router: Final = APIRouter(prefix="/v1/sessions", tags=["sessions"])
ONE: Final = "/{session:id}"

IfMatch = Annotated[
    str | None, Header(description="The `ETag` of the version that the change is based on, or *.")
]
IfNoneMatch = Annotated[
    str | None, Header(description="The `ETag` of the version that the client has.")
]


@operation(router, "GET", "", returns_page(SessionInfo))
async def list_sessions(
    caller: Reads,
    limit: Limit = 50,
    cursor: Cursor = None,
    tag: Annotated[str | None, Query(description="One of the tags.")] = None,
    title: Annotated[str | None, Query(description="A part of the title, ignoring case.")] = None,
) -> Response:
    """List the sessions, latest activity first.

    With `tag` or `title` a page may be short although there is a next one.
    """
    before = cursor_of(caller, "list_sessions", cursor)
    page = await caller.memory.list_sessions(limit=limit, cursor=before, tag=tag, title=title)
    return page_of(caller, "list_sessions", page)


@operation(
    router,
    "POST",
    "",
    returns_session("The new session."),
    status=201,
    errors=("session_exists",),
)
async def create_session(caller: Writes, body: NewSessionBody) -> Response:
    """Create a session.

    To make retries safe, use `put_session` or an `Idempotency-Key`.
    """
    ids = ids_of(caller, "session") if body.id is None else None
    given: dict[str, Any] = body.model_dump() | ({"id": ids()} if ids else {})
    try:
        return _created(await caller.memory.create_session(**given))
    except SessionExists:
        if ids is None:
            raise
        return _created(await caller.memory.get_session(given["id"]))


def _created(session: Session) -> Response:
    return session_reply(session.info, 201, location=f"{router.prefix}/{segment(session.id)}")


@operation(
    router,
    "PUT",
    ONE,
    returns_session("The session already existed; it is unchanged."),
    also={201: returns_session("The new session.")},
)
async def put_session(
    caller: Writes, session: SessionId, body: SessionBody | None = None
) -> Response:
    """Create a session of that id if it does not exist.

    The body applies to a new session only, so the request can be repeated. `update_session`
    changes a session.
    """
    given = (body or SessionBody()).model_dump()
    try:
        return session_reply((await caller.memory.get_session(session)).info)
    except SessionNotFound:
        pass
    try:
        return _created(await caller.memory.create_session(session, **given))
    except SessionExists:  # another request made it in the meantime
        return session_reply((await caller.memory.get_session(session)).info)


@operation(
    router,
    "GET",
    ONE,
    returns_session("The session."),
    errors=OF_SESSIONS,
    also={304: NOT_MODIFIED},
)
async def get_session(
    caller: Reads, session: SessionId, if_none_match: IfNoneMatch = None
) -> Response:
    """Get a session.

    Its `ETag` changes with its title, tags, prompt and metadata, not with new messages.
    """
    found = await caller.memory.get_session(session)
    if is_known(if_none_match, found.info.version):
        return not_modified(found.info.version)
    return session_reply(found.info)


@operation(
    router,
    "PATCH",
    ONE,
    returns_session("The session as it is now."),
    errors=(*OF_SESSIONS, "message_not_found", "stale", "precondition_required"),
)
async def update_session(
    caller: Writes, session: SessionId, body: SessionChangesBody, if_match: IfMatch = None
) -> Response:
    """Change the title, tags, prompt or metadata of a session.

    The header `If-Match` is required: `*` overwrites whatever others changed.
    """
    found = await caller.memory.get_session(session)
    version = matched(if_match, found.info.version)
    try:
        return session_reply(await found.update(**body.model_dump(), version=version))
    except Stale:
        raise stale() from None


@operation(router, "DELETE", ONE, NOTHING, status=204, errors=OF_SESSIONS)
async def delete_session(caller: Forgets, request: Request, session: SessionId) -> Response:
    """Delete a session with its messages; facts and forks stay.

    `forget` also erases what was made from the messages, and their bytes.
    """
    await caller.memory.get_session(session)
    await audit(state_of(request), caller, "sessions.delete", session)
    await caller.memory.delete_session(session)
    return nothing()


@operation(router, "GET", f"{ONE}/status", returns(Status), errors=OF_SESSIONS)
async def get_session_status(caller: Reads, session: SessionId) -> Response:
    """Get the size of a session: its log, its visible part, its summary and its tool cache."""
    return reply(await (await caller.memory.get_session(session)).status())
