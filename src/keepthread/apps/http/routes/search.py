"""Search the owner's messages."""

from typing import Final

from fastapi import APIRouter, Response

from keepthread.apps.http.bodies import SearchBody
from keepthread.apps.http.operations import (
    NOTHING,
    Reads,
    Writes,
    operation,
    returns_page,
)
from keepthread.apps.http.replies import cursor_of, nothing, page_of
from keepthread.memory.search.search import Hit

router: Final = APIRouter(prefix="/v1", tags=["search"])


@operation(
    router,
    "POST",
    "/search",
    returns_page(Hit),
    errors=("session_not_found", "unsupported"),
)
async def search_messages(caller: Reads, body: SearchBody) -> Response:
    """Find the messages most relevant to a question, best first, each with the reason.

    The search covers all sessions of the owner, including messages that contexts hide. It is a POST
    because the query must not be in the URL, which is logged.
    """
    page = await caller.memory.search(
        body.query,
        session=body.session,
        since=body.since,
        until=body.until,
        roles=body.roles,
        limit=body.limit,
        cursor=cursor_of(caller, "search_messages", body.cursor),
    )
    return page_of(caller, "search_messages", page)


@operation(router, "POST", "/index", NOTHING, status=204, errors=("unsupported",))
async def index_messages(caller: Writes) -> Response:
    """Index the messages written since the last time; searching does so automatically."""
    await caller.memory.index()
    return nothing()
