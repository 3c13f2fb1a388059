"""Export: everything of the owner, as lines of JSON."""

from collections.abc import AsyncGenerator
from typing import Annotated, Final

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse

from keepthread.apps.http.caller import audit, state_of
from keepthread.apps.http.operations import OF_SESSIONS, Reads, operation, returns_bytes
from keepthread.stores.validation import MAX_ID

router: Final = APIRouter(prefix="/v1", tags=["export"])
LINES: Final = "application/x-ndjson"
_PIECE: Final = 1 << 16
_HEADERS: Final = {"Content-Disposition": 'attachment; filename="keepthread.jsonl"'}


@operation(
    router,
    "GET",
    "/export",
    returns_bytes(LINES, "The lines; the last one begins with `end`, else they are incomplete."),
    errors=OF_SESSIONS,
)
async def export_owner(
    caller: Reads,
    request: Request,
    session: Annotated[
        str | None, Query(min_length=1, max_length=MAX_ID, description="Only this session.")
    ] = None,
) -> Response:
    """Export everything of the owner, or one session, without any loss.

    `keepthread import` reads the lines. They are sent while they are read, so an export of any size
    takes little memory.
    """
    if session is not None:
        await caller.memory.get_session(session)  # an error has its status only before the lines
    await audit(state_of(request), caller, "export", session)
    lines = pieces(caller.memory.export(session=session))
    return StreamingResponse(lines, media_type=LINES, headers=_HEADERS)


async def pieces(lines: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    """Yield lines in larger pieces: each piece is a write to the network."""
    waiting: list[bytes] = []
    size = 0
    try:
        async for line in lines:
            waiting.append(line)
            size += len(line)
            if size >= _PIECE:
                yield b"".join(waiting)
                waiting, size = [], 0
        yield b"".join(waiting)
    finally:
        await lines.aclose()
