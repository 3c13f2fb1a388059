"""HTTP of a scripted server: it answers as providers do, or as slowly and badly as scripted."""

import selectors
import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from math import inf
from time import monotonic
from types import MappingProxyType
from typing import Any, Final

from keepthread.testing.play import Play
from keepthread.testing.script import Gate, Received, Say
from keepthread.testing.wires import Refused, Stream, as_json, asking, openai_responses_answer
from keepthread.types import Wire

_LOOK: Final = 0.02
"""Seconds between two checks whether the client is still connected."""
_MOST_BYTES: Final = 32 * 1024 * 1024
_PLAIN: Final = Say()
_OTHER_LISTS: Final = "/api/"
"""Where other servers than providers list their models."""


class Switchboard(ThreadingHTTPServer):
    """Listens on this machine, and knows its open connections, so that it can close them."""

    daemon_threads = False
    request_queue_size = 128

    def __init__(self, play: Play, port: int) -> None:
        """Bind the port; 0 takes a free one."""
        self._lines: set[socket.socket] = set()
        self._lock = threading.Lock()
        answers = {"play": play, "numbers": count(1)}
        super().__init__(("127.0.0.1", port), type("Connection", (RequestHandler,), answers))

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._lines.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._lines.discard(request)
        super().shutdown_request(request)

    def hang_up(self) -> None:
        """Close every connection."""
        with self._lock:
            for line in self._lines:
                with suppress(OSError):
                    line.shutdown(socket.SHUT_RDWR)


class _Gone(Exception):
    """The answer is no longer needed: the client closed the connection, or the server closes."""


class RequestHandler(BaseHTTPRequestHandler):
    """One client, which may send several requests."""

    play: Play
    numbers: "count[int]"
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def setup(self) -> None:
        super().setup()
        self._ear = selectors.DefaultSelector()
        self._ear.register(self.connection, selectors.EVENT_READ)

    def handle(self) -> None:
        with suppress(ConnectionError):  # of a client that goes away between two requests
            super().handle()

    def finish(self) -> None:
        self._ear.close()
        super().finish()

    def log_message(self, *_: object, **__: object) -> None:
        """Write no log."""

    def do_GET(self) -> None:
        self._answer(b"")

    def do_DELETE(self) -> None:
        self._answer(b"")

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        if length.isdecimal() and int(length) <= _MOST_BYTES:
            body = self.rfile.read(int(length))
            if len(body) == int(length):
                return self._answer(body)
            self.close_connection = True
            return self.play.drop()  # the client left before it had sent its request
        self.close_connection = True  # the rest is not read
        status = 413 if length.isdecimal() else 411
        return self._refuse(self._wire(), Refused(status, "a length of up to 32 MB must be given"))

    # --- what is asked ---

    def _wire(self) -> Wire:
        return asking.wire_of(self._path(), self._headers())

    def _path(self) -> str:
        return self.path.partition("?")[0]

    def _headers(self) -> Mapping[str, str]:
        return MappingProxyType({name.lower(): value for name, value in self.headers.items()})

    def _answer(self, body: bytes) -> None:
        wire, path, headers = self._wire(), self._path(), self._headers()
        try:
            asking.check_key(wire, headers, self.play.key)
            if asking.is_kept(path):
                query = self.path.partition("?")[2]
                return self._whole(_PLAIN, self.play.kept.answer(self.command, path, query), wire)
            if self.command == "DELETE":
                raise Refused(404, f"Invalid URL (DELETE {path})")
            if self.command == "GET":
                return self._list_models(path, wire)
            asked, say = self.play.answer(path, headers, body)
        except Refused as refusal:
            return self._refuse(wire, refusal)
        try:
            self._say(say, asked)
        except (_Gone, OSError):
            self.close_connection = True
            if not self.play.closing.is_set():
                self.play.drop()
        return None

    def _list_models(self, path: str, wire: Wire) -> None:
        if path.startswith(_OTHER_LISTS):  # asked to find out whose server it is: no fault
            missing = _PLAIN._replace(status=404)
            return self._whole(missing, asking.ANSWERS[wire].error(404, "Not Found"), wire)
        names = asking.check_list(path, self.play.models)
        listed = asking.ANSWERS[wire].models(names)
        if (window := self.play.window) is not None:  # as vLLM does
            rows = [{**row, "max_model_len": window} for row in listed["data"]]
            listed = {**listed, "data": rows}
        return self._whole(_PLAIN, listed, wire)

    # --- what is said ---

    def _say(self, say: Say, asked: Received) -> None:
        self._wait(say.first_after)
        if say.hold and (say.hold_after == 0 or not asked.streams):
            self._stand_at(say.hold)
        answers, number = asking.ANSWERS[asked.wire], next(self.numbers)
        failed = say.status != 200 and (say.fails_after is None or not asked.streams)
        breaks = say.cut_after is not None or say.unfinished or say.fails_after is not None
        if asked.wire == "openai-responses" and not failed and not breaks:
            # First: a client may continue a response as soon as it has read its last event.
            self.play.kept.keep(asked, openai_responses_answer.finished(say, asked, number))
        if failed:
            message = say.message or f"the script says {say.status}"
            self._whole(say, answers.error(say.status, message), asked.wire)
        elif asked.streams:
            stream = answers.stream(say, asked, number)
            if say.fails_after is not None:
                pieces = stream.pieces[: say.fails_after]
                said = b"".join([stream.opening, *pieces]).count(b"\n\n")
                failure = answers.error_event(say.status, say.message, said)
                stream = Stream(stream.opening, pieces, failure)
            self._stream(say, stream, asked.wire)
        else:
            self._whole(say, answers.whole(say, asked, number), asked.wire)

    def _refuse(self, wire: Wire, refusal: Refused) -> None:
        self.play.refuse(refusal.message)
        error = asking.ANSWERS[wire].error(refusal.status, refusal.message)
        error = {**error, "error": {**error["error"], **refusal.fields}}
        self._whole(_PLAIN._replace(status=refusal.status), error, wire)

    def _whole(self, say: Say, answer: Mapping[str, Any], wire: Wire) -> None:
        body = as_json(answer)
        self._head(say, wire, "application/json", ("Content-Length", str(len(body))))
        if say.cut_after is None:
            self.wfile.write(body)
        else:
            self.close_connection = True
            self.wfile.write(body[: len(body) // 2 if say.cut_after else 0])

    def _stream(self, say: Say, stream: Stream, wire: Wire) -> None:
        begun = say._replace(status=200)
        chunked = ("Transfer-Encoding", "chunked")
        self._head(begun, wire, "text/event-stream; charset=utf-8", chunked)
        pieces = stream.pieces[: say.cut_after]
        if say.cut_after != 0:
            self.wfile.write(_chunk(stream.opening))
        for said, piece in enumerate(pieces, start=1):
            self._wait(say.every if said > 1 else 0.0)
            self.wfile.write(_chunk(piece))
            if say.hold and said == say.hold_after:
                self._stand_at(say.hold)
        self._wait(0.0)
        if say.cut_after is not None:
            self.close_connection = True
            return
        # In one write: a client disconnects as soon as it has read the closing event.
        self.wfile.write((b"" if say.unfinished else _chunk(stream.closing)) + b"0\r\n\r\n")

    def _head(self, say: Say, wire: Wire, kind: str, size: tuple[str, str]) -> None:
        self.send_response(say.status)
        for name, value in say.headers.items():
            self.send_header(name, value)
        name = "request-id" if wire == "anthropic" else "x-request-id"
        self.send_header(name, f"req_{next(self.numbers)}")
        self.send_header("Content-Type", kind)
        self.send_header(*size)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()

    # --- whether somebody listens ---

    def _stand_at(self, gate: Gate) -> None:
        gate.reached.set()
        self._wait(inf, gate.opened)

    def _wait(self, seconds: float, opened: threading.Event | None = None) -> None:
        """Wait some seconds or for a gate, and give up when the client has left."""
        until = monotonic() + seconds
        self._look()
        while (left := until - monotonic()) > 0:
            if (opened or self.play.closing).wait(min(_LOOK, left)):
                break
            self._look()
        self._look()

    def _look(self) -> None:
        if self.play.closing.is_set():
            raise _Gone
        if self._ear.select(0) and not self.connection.recv(1, socket.MSG_PEEK):
            raise _Gone


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)
