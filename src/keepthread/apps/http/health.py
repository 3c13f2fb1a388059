"""Whether the worker lives, and whether it should be sent requests."""

from typing import Final

from fastapi import APIRouter, Request

from keepthread.apps.http.caller import state_of
from keepthread.apps.http.problems import Problem

router: Final = APIRouter(tags=["health"])


@router.get("/livez", operation_id="livez", summary="Whether the process answers")
async def livez() -> dict[str, str]:
    """Answer always; a server that does not should be restarted."""
    return {"status": "ok"}


@router.get("/readyz", operation_id="readyz", summary="Whether to send requests here")
async def readyz(request: Request) -> dict[str, str]:
    """Answer 200 while the store can be read and the server is not stopping, else 503."""
    state = state_of(request)
    if state.stopping.is_set():
        raise Problem(503, "stopping", "The server is stopping; send requests to another worker.")
    await state.tables.get_key("readiness")
    return {"status": "ok"}
