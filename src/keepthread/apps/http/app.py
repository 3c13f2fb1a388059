"""The application of one worker: the routes, and the layers around them."""

from typing import TYPE_CHECKING, Any, Final

from fastapi import APIRouter, FastAPI, Request
from starlette.middleware.cors import CORSMiddleware

import keepthread
from keepthread.apps.http import problems
from keepthread.apps.http.access import REQUEST_ID, Access, Count
from keepthread.apps.http.auth import Authentication
from keepthread.apps.http.caller import OWNER_HEADER, state_of
from keepthread.apps.http.idempotency import HEADER, REPLAYED, Idempotency
from keepthread.apps.http.json_input import JsonInput
from keepthread.apps.http.limits import Deadlines, KeyLimits
from keepthread.apps.http.mcp import add_mcp
from keepthread.apps.http.metrics import RequestSpans
from keepthread.apps.http.origins import Origins
from keepthread.apps.http.problems import Problem
from keepthread.apps.http.proxy import ProxyKeys, add_proxy
from keepthread.apps.http.routes import add_routes
from keepthread.apps.http.settings import HttpSettings
from keepthread.apps.http.state import WorkerState
from keepthread.memory.memory import Memory

if TYPE_CHECKING:
    from keepthread.protocols.server import ServerTables

router: Final = APIRouter(tags=["health"])


def create_app(
    memory: Memory,
    tables: "ServerTables",
    settings: HttpSettings | None = None,
    *,
    count: Count | None = None,
    tracer: Any = None,
) -> FastAPI:
    """Return the application that serves an open memory, and does not close it.

    `count` is called after each request, for metrics; `tracer`, one of OpenTelemetry, opens a span
    for each.
    """
    state = WorkerState(memory, tables, settings or HttpSettings())
    app = FastAPI(
        title="keepthread",
        version=keepthread.__version__,
        openapi_url="/openapi.json",
        # FastAPI's documentation pages load scripts from other hosts.
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.keepthread = state
    problems.install(app)
    app.include_router(router)
    add_routes(app)
    add_mcp(app)
    add_proxy(app)
    _add_layers(app, state, count)
    if tracer is not None:
        app.add_middleware(RequestSpans, tracer=tracer)
    app.add_middleware(ProxyKeys)  # last, so that no other layer sees a key in a path
    return app


def _add_layers(app: FastAPI, state: WorkerState, count: Count | None) -> None:
    """Wrap the routes; the last layer added is the first one to see a request."""
    settings = state.settings
    app.add_middleware(Idempotency, state=state)
    app.add_middleware(JsonInput, settings=settings)
    app.add_middleware(KeyLimits, settings=settings)
    app.add_middleware(Authentication, state=state)
    app.add_middleware(Deadlines, settings=settings)
    app.add_middleware(Origins, settings=settings)
    app.add_middleware(Access, count=count)
    if settings.origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=sorted(settings.origins),
            allow_methods=["GET", "POST", "PUT", "PATCH", "DELETE"],
            allow_headers=["Authorization", "If-Match", "Last-Event-ID", OWNER_HEADER, HEADER],
            expose_headers=["ETag", "Retry-After", REQUEST_ID, REPLAYED],
        )


# --- health ---


@router.get("/livez", operation_id="livez", summary="Whether the process answers")
async def livez() -> dict[str, str]:
    """Return 200 in any case; restart a server that does not answer."""
    return {"status": "ok"}


@router.get("/readyz", operation_id="readyz", summary="Whether to send requests here")
async def readyz(request: Request) -> dict[str, str]:
    """Answer 200 while the store can be read and the server is not stopping, else 503."""
    state = state_of(request)
    if state.stopping.is_set():
        raise Problem(503, "stopping", "The server is stopping; send requests to another worker.")
    await state.tables.get_key("readiness")
    return {"status": "ok"}
