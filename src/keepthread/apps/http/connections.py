"""Protection from idle connections: silent ones are closed and cannot block others.

uvicorn lets a client take forever to send the head of a request. Here a connection without a
request in progress has some seconds to send one, and when there are too many connections, the one
that has been waiting longest makes room.
"""

import asyncio
import json
from typing import Any, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from keepthread.apps.http.problems import MEDIA_TYPE, Problem

HEAD_SECONDS: Final = 10.0
MAX_CONNECTIONS: Final = 512

_TEXT: Final = "The request is not valid HTTP/1.1, or its head is too large."


class BoundedProtocol(H11Protocol):
    """HTTP/1.1 with a deadline for the head of each request, and a bound on connections."""

    head_seconds = HEAD_SECONDS
    max_connections = MAX_CONNECTIONS
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Take a connection; if there are too many, close the one that waits longest."""
        super().connection_made(transport)
        waiting = _waiting_of(self.server_state)
        if len(self.connections) > self.max_connections:
            oldest = next(iter(waiting), self)
            # It closes later, and other connections may arrive until then.
            waiting.pop(oldest, None)
            oldest.transport.abort()
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._end_wait()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        """Note when a request begins."""
        before = self.cycle
        super().handle_events()
        if self.cycle is not before and not self.cycle.response_complete:
            self._end_wait()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        self._wait()
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - it has only one
        """Answer what is not HTTP, if no response has begun, and close the connection."""
        body = json.dumps(Problem(400, "bad_request", _TEXT).body()).encode()
        headers = [
            ("Content-Type", MEDIA_TYPE),
            ("Content-Length", str(len(body))),
            ("Connection", "close"),
        ]
        try:
            for event in (
                h11.Response(status_code=400, headers=headers),
                h11.Data(data=body),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        except h11.LocalProtocolError:
            pass  # a response has begun: the connection ends in the middle of it
        self.transport.close()

    def _wait(self) -> None:
        self._end_wait()
        _waiting_of(self.server_state)[self] = None
        self._timer = self.loop.call_later(self.head_seconds, self.transport.abort)

    def _end_wait(self) -> None:
        _waiting_of(self.server_state).pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _waiting_of(server: Any) -> dict[BoundedProtocol, None]:
    """Return the connections of a server without a request, those that wait longest first."""
    found: dict[BoundedProtocol, None] | None = getattr(server, "keepthread_waiting", None)
    if found is None:
        found = server.keepthread_waiting = {}
    return found
