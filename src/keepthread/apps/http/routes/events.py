"""Events: the owner's changes as they happen, as server-sent events.

The id of an event is the signed cursor of the change feed. The events of one page share the id that
comes with the last of them: a client that lost its connection inside a page gets that page again.
"""

import asyncio
import json
import time
from collections.abc import AsyncGenerator
from typing import Annotated, Final

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.responses import StreamingResponse

from keepthread.apps.http.bodies import MAX_PAGE
from keepthread.apps.http.caller import Caller, state_of
from keepthread.apps.http.cursors import sign
from keepthread.apps.http.feeds import PAGE, EventBatch, Watch
from keepthread.apps.http.operations import Reads, operation, returns_bytes, returns_page
from keepthread.apps.http.problems import problem_of
from keepthread.apps.http.replies import cursor_of, page_of
from keepthread.errors import KeepthreadError
from keepthread.interchange.json_types import to_json
from keepthread.types import Change, Page

router: Final = APIRouter(prefix="/v1", tags=["events"])
EVENT_STREAM: Final = "text/event-stream"
HEARTBEAT: Final = 15.0
"""Seconds after which a stream without events sends a comment, so that proxies keep it open."""
LIFETIME: Final = 300.0
"""Seconds after which a stream ends. A client connects again, and its key is checked again."""
_NAME: Final = "watch_events"
_HEADERS: Final = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


@operation(
    router,
    "GET",
    "/events",
    returns_bytes(EVENT_STREAM, "Events, until the client or the server ends the stream."),
    errors=("cursor_expired",),
)
async def watch_events(
    caller: Reads,
    request: Request,
    last_event_id: Annotated[
        str | None, Header(description="The id of the last event that the client has.")
    ] = None,
    after: Annotated[
        str | None, Query(description="The same, for clients that cannot send the header.")
    ] = None,
) -> Response:
    """Watch the owner's changes: each event says what was written, without the text.

    Every change is delivered at least once, and those of one session in order. Without
    `Last-Event-ID` the stream starts with new changes. Changes are kept for seven days; after that
    the id is refused (`cursor_expired`): read everything again, and watch without an id. A stream
    ends after five minutes; connect again with the last id.
    """
    start = cursor_of(caller, _NAME, last_event_id or after or None)
    limit = PAGE if start else 0
    page = await caller.memory.changes(after=start, limit=limit)
    state = state_of(request)
    watch = Watch(caller.memory, state.feed_of(caller.tenant), page.next)
    events = stream(caller, EventBatch(page), watch, state.stopping)
    return StreamingResponse(events, media_type=EVENT_STREAM, headers=_HEADERS)


@operation(router, "GET", "/changes", returns_page(Change), errors=("cursor_expired",))
async def list_changes(
    caller: Reads,
    after: Annotated[
        str | None, Query(description="The `next` of the page before, unchanged.")
    ] = None,
    limit: Annotated[int, Query(ge=0, le=MAX_PAGE, description="The size of the page.")] = 100,
    wait: Annotated[
        float, Query(ge=0, le=HEARTBEAT, description="Seconds to wait if there is no change.")
    ] = 0.0,
) -> Response:
    """List the owner's changes after a cursor: each says what was written, without the text.

    An empty page has a `next`, too. Without `after` the list begins with the oldest
    change that is kept; `limit=0` returns the current cursor. `watch_events` is the same as
    a stream.
    """
    start = cursor_of(caller, "list_changes", after)
    page = await caller.memory.changes(after=start, limit=limit, wait=wait)
    return page_of(caller, "list_changes", page)


async def stream(
    caller: Caller,
    batch: EventBatch,
    watch: Watch,
    stopping: asyncio.Event,
    *,
    heartbeat: float = HEARTBEAT,
    lifetime: float = LIFETIME,
) -> AsyncGenerator[bytes]:
    """Yield events, the given ones first, until the server stops or the time is over."""
    end = time.monotonic() + lifetime
    stop = asyncio.ensure_future(stopping.wait())
    stop.add_done_callback(lambda _: watch.wake())
    try:
        yield b"retry: 1000\n\n"
        while True:
            batch.data = batch.data or encoded(caller, batch.page)
            yield batch.data
            left = end - time.monotonic()
            if stop.done() or left <= 0:
                return
            try:
                batch = await watch.next(min(heartbeat, left))
            except KeepthreadError as error:
                yield _event("error", json.dumps(problem_of(error).body()))
                return
    finally:
        stop.cancel()
        watch.close()


def encoded(caller: Caller, page: Page[Change]) -> bytes:
    """Return a page of changes as events; an empty one is a comment with the new id."""
    identity = f"id: {sign(caller, _NAME, page.next)}\n" if page.next else ""
    if not page:
        return f": waiting\n{identity}\n".encode()
    *before, last = [_event(change.kind, json.dumps(to_json(change))) for change in page]
    return b"".join([*before, identity.encode(), last])


def _event(name: str, data: str) -> bytes:
    return f"event: {name}\ndata: {data}\n\n".encode()
