"""Notes of the program, and tool results that are cached for later turns."""

from typing import Final

from fastapi import APIRouter, Response

from keepthread.apps.http.bodies import CachedResultBody, NoteBody, ProvideBody, ToolQueryBody
from keepthread.apps.http.idempotency import ids_of
from keepthread.apps.http.operations import (
    NOTHING,
    OF_SESSIONS,
    Reads,
    SessionId,
    Writes,
    operation,
    returns,
    returns_page,
)
from keepthread.apps.http.replies import (
    AddedNotes,
    CachedText,
    Outcome,
    nothing,
    page_of,
    reply,
)
from keepthread.types import CachedTool

router: Final = APIRouter(prefix="/v1/sessions/{session:id}", tags=["tools"])


@operation(
    router,
    "POST",
    "/notes",
    returns(Outcome, "Whether this request added the note."),
    errors=(*OF_SESSIONS, "too_large"),
)
async def add_note(caller: Writes, session: SessionId, body: NoteBody) -> Response:
    """Add text that the program knows, such as an open file; contexts show it as a quotation.

    With `once` it is skipped while the session has a note of that key, else while that note has
    the same text.
    """
    found = await caller.memory.get_session(session)
    tools = [each.tool() for each in body.tools]
    added = await found.add_note(body.key, body.text, tools=tools, once=body.once, turns=body.turns)
    return reply(Outcome(added, int(added)))


@operation(router, "POST", "/provide", returns(AddedNotes), errors=(*OF_SESSIONS, "too_large"))
async def provide_notes(caller: Writes, session: SessionId, body: ProvideBody) -> Response:
    """Ask the server's providers for notes that the session does not have yet, and add them.

    A server without providers adds none.
    """
    found = await caller.memory.get_session(session)
    return reply(AddedNotes(await found.provide(body.data)))


@operation(router, "GET", "/tools", returns_page(CachedTool), errors=OF_SESSIONS)
async def list_cached_tools(caller: Reads, session: SessionId) -> Response:
    """List the cached tool results that can still be used, oldest first."""
    found = await caller.memory.get_session(session)
    return page_of(caller, "list_cached_tools", await found.cached_tools())


@operation(router, "POST", "/tools", NOTHING, status=204, errors=(*OF_SESSIONS, "too_large"))
async def cache_tool(caller: Writes, session: SessionId, body: CachedResultBody) -> Response:
    """Record a tool's call and result, and cache the result for some turns."""
    found = await caller.memory.get_session(session)
    ids = ids_of(caller, found.key)
    await found.cache_tool(
        body.name,
        body.arguments,
        body.result,
        body.cache_turns,
        author=body.author,
        id=body.id or (ids and ids()),
    )
    return nothing()


@operation(router, "POST", "/tools/find", returns(CachedText), errors=OF_SESSIONS)
async def find_cached_tool(caller: Writes, session: SessionId, body: ToolQueryBody) -> Response:
    """Get the cached result of a tool's call, or null; its lifetime starts again."""
    found = await caller.memory.get_session(session)
    result = await found.cached_tool(body.name, body.arguments, author=body.author)
    return reply(CachedText(result))
