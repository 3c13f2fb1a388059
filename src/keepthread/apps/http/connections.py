"""Protection from idle connections: those that prove nothing are closed and cannot block others.

uvicorn lets a client take forever to send the head of a request. Here a connection without a
request in progress has some seconds to send one. When there are too many connections, the least
valuable one makes room: first those on which no credential was ever accepted, then those without a
request, then those whose body does not end. If all have a request that runs, a new connection gets
a spare place, in which health checks are served and all others get 503.
"""

import asyncio
import json
import math
import re
from typing import Any, Final

import h11
from h11._receivebuffer import ReceiveBuffer
from uvicorn.protocols.http.h11_impl import H11Protocol

from keepthread.apps.http.places import PLACE, ConnectionPlace
from keepthread.apps.http.problems import MEDIA_TYPE, Problem

HEAD_SECONDS: Final = 10.0
SPARE_SECONDS: Final = 2.0
"""For the head of a request in a spare place."""
PROOF_SECONDS: Final = 1.0
"""Seconds in which a new connection is worth more than one that is idle: its key is being read."""
BODY_SECONDS: Final = 5.0
"""Seconds after which an unfinished body makes room for a new connection."""
MAX_CONNECTIONS: Final = 512
SPARE: Final = 64
"""Connections beyond these, for health checks and to answer 503."""

_TEXT: Final = "The request is not valid HTTP/1.1, or its head is too large."
_BARE_LF: Final = re.compile(rb"(?<!\r)\n")


class StrictLines(ReceiveBuffer):
    """Bytes that arrived; lines end with CR LF, and none continues the line before it."""

    def maybe_extract_lines(self) -> list[bytearray] | None:
        """Return the lines up to the first empty one; None if there is none yet."""
        if self._data.startswith(b"\r\n"):
            self._extract(2)
            return []
        begun = self._multiple_lines_search
        end = self._data.find(b"\r\n\r\n", begun)
        if end < 0:
            if _BARE_LF.search(self._data, begun):
                raise h11.LocalProtocolError("a line ends without CR")
            self._multiple_lines_search = max(0, len(self._data) - 3)
            return None
        lines = self._extract(end + 4)[:-4].split(b"\r\n")
        if any(line.startswith((b" ", b"\t")) for line in lines):  # h11 refuses LF in a line
            raise h11.LocalProtocolError("a header continues on a second line")
        return lines


class StrictConnection(h11.Connection):
    """Refuses what another server could read differently: h11 alone accepts some of it."""

    def __init__(self, max_head: int) -> None:
        """Be the server's side of a connection."""
        super().__init__(h11.SERVER, max_head)
        self._receive_buffer = StrictLines()

    def next_event(self) -> Any:
        """Return the next event; raise an error at a request with two lengths."""
        event = super().next_event()
        if isinstance(event, h11.Request):
            names = {name for name, _ in event.headers}
            has_two = b"content-length" in names or event.http_version < b"1.1"
            if b"transfer-encoding" in names and has_two:
                raise h11.RemoteProtocolError("a length and a transfer encoding")
        return event


class BoundedProtocol(H11Protocol):
    """HTTP/1.1 with a deadline for the head of each request, and a bound on connections."""

    head_seconds = HEAD_SECONDS
    proof_seconds = PROOF_SECONDS
    body_seconds = BODY_SECONDS
    max_connections = MAX_CONNECTIONS
    spare = SPARE
    _timer: asyncio.TimerHandle | None = None

    def __init__(self, config: Any, *args: Any, **more: Any) -> None:
        """Begin a connection that has proven nothing."""
        super().__init__(config, *args, **more)
        self.conn = StrictConnection(config.h11_max_incomplete_event_size)
        self._place = ConnectionPlace(self._rank)
        self.began = 0.0
        """When its last request began, or the connection itself."""
        self.app_state = {**self.app_state, PLACE: self._place}

    def connection_made(self, transport: Any) -> None:
        """Take a connection; if there are too many, another makes room, or it is a spare one."""
        super().connection_made(transport)
        self.began = self.loop.time()
        ranks = _ranks_of(self.server_state)
        if len(self.connections) - len(ranks.spare) > self.max_connections:
            # It closes later, and other connections may arrive until then.
            now = self.loop.time()
            dropped = ranks.pop_least(now - self.proof_seconds, now - self.body_seconds)
            if dropped is None:
                self._place.is_spare = True
                dropped = next(iter(ranks.spare), None) if len(ranks.spare) >= self.spare else None
            if dropped is not None:
                ranks.remove(dropped)
                dropped.transport.abort()
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._end_wait()
        super().connection_lost(exc)
        self._rank()

    def handle_events(self) -> None:
        """Note when a request begins, and when its body is complete."""
        before = self.cycle
        super().handle_events()
        if self.cycle is not before and not self.cycle.response_complete:
            self._end_wait()
            self.began = self.loop.time()
        self._rank()

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
        seconds = min(self.head_seconds, SPARE_SECONDS) if self._place.is_spare else None
        self._timer = self.loop.call_later(seconds or self.head_seconds, self.transport.abort)
        self._rank()

    def _end_wait(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _rank(self) -> None:
        """Note how valuable the connection is now."""
        ranks = _ranks_of(self.server_state)
        if self not in self.connections:  # its request may run on
            ranks.remove(self)
        elif self._place.is_spare:
            ranks.put(self, ranks.spare)
        elif not self._place.is_proven:
            ranks.put(self, ranks.unproven)
        elif self._timer is not None:
            ranks.put(self, ranks.idle)
        elif self.cycle.more_body:
            ranks.put(self, ranks.unfinished)
        else:
            ranks.remove(self)


class _Ranks:
    """The connections of a server that may have to make room, by rank and then by age."""

    def __init__(self) -> None:
        self.spare: dict[BoundedProtocol, None] = {}
        self.unproven: dict[BoundedProtocol, None] = {}
        self.idle: dict[BoundedProtocol, None] = {}
        self.unfinished: dict[BoundedProtocol, None] = {}

    def put(self, connection: BoundedProtocol, rank: dict[BoundedProtocol, None]) -> None:
        """Give a connection a rank; one that has it keeps its age."""
        if connection not in rank:
            self.remove(connection)
            rank[connection] = None

    def remove(self, connection: BoundedProtocol) -> None:
        """Take a connection out of all ranks."""
        for rank in (self.spare, self.unproven, self.idle, self.unfinished):
            rank.pop(connection, None)

    def pop_least(self, unproven: float, unfinished: float) -> BoundedProtocol | None:
        """Take out the least valuable connection; None if all have a request that runs.

        Those without a credential go before idle ones, and those with a body that does not end at
        all, if they began before these times.
        """
        ranks = (
            (self.unproven, unproven),
            (self.idle, math.inf),
            (self.unproven, math.inf),
            (self.unfinished, unfinished),
        )
        for rank, until in ranks:
            oldest = next(iter(rank), None)
            if oldest is not None and oldest.began <= until:
                del rank[oldest]
                return oldest
        return None


def _ranks_of(server: Any) -> _Ranks:
    ranks: _Ranks | None = getattr(server, "keepthread_ranks", None)
    if ranks is None:
        ranks = server.keepthread_ranks = _Ranks()
    return ranks
