"""The application of one worker: the routes, and the layers around them."""

from typing import TYPE_CHECKING

from fastapi import FastAPI

import keepthread
from keepthread.apps.http import health, problems
from keepthread.apps.http.access import Access
from keepthread.apps.http.auth import Authentication
from keepthread.apps.http.routes import add_routes
from keepthread.apps.http.settings import HttpSettings
from keepthread.apps.http.state import WorkerState
from keepthread.memory.memory import Memory

if TYPE_CHECKING:
    from keepthread.protocols.server import ServerTables


def create_app(
    memory: Memory, tables: "ServerTables", settings: HttpSettings | None = None
) -> FastAPI:
    """Return the application that serves an open memory. Whoever opened the memory closes it."""
    state = WorkerState(memory, tables, settings or HttpSettings())
    app = FastAPI(
        title="keepthread",
        version=keepthread.__version__,
        openapi_url="/openapi.json",
        # The pages of FastAPI load scripts from elsewhere.
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.keepthread = state
    problems.install(app)
    app.include_router(health.router)
    add_routes(app)
    # The last one added is the first one to see a request.
    app.add_middleware(Authentication, state=state)
    app.add_middleware(Access)
    return app
