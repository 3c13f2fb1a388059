"""The resources under `/v1`: a module for each, over the memory of the caller's owner."""

from fastapi import FastAPI

from keepthread.apps.http.openapi import document
from keepthread.apps.http.paths import EncodedSlashes
from keepthread.apps.http.routes import (
    blobs,
    contexts,
    events,
    export,
    facts,
    forgetting,
    history,
    keys,
    messages,
    search,
    sessions,
    tools,
    turns,
)


def add_routes(app: FastAPI) -> None:
    """Add all resources to an application, and its OpenAPI document."""
    parts = (
        *(sessions, messages, turns, contexts, history, tools),
        *(search, facts, forgetting, events, blobs, export, keys),
    )
    for part in parts:  # flat: FastAPI would look through a router twice for each request
        app.router.routes += part.router.routes
    app.add_middleware(EncodedSlashes)
    app.openapi = lambda: document(app)
