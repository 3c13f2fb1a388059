"""Transports to untrusted servers: standard input and output, and HTTP, with limits of size.

Answers over HTTP are not decompressed, and refusals are noted. Lines of a program are read in
linear time: the SDK appends each chunk it reads to the line so far and scans all of it again, and a
line may grow without limit. It accepts no other reader, but an encoding: with this one, the decoder
returns whole lines. A line that is too long is replaced by an error for the call that waits for it.
"""

import asyncio
import codecs
import json
import os
import re
import selectors
import sys
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TextIO, cast

if TYPE_CHECKING:
    import httpx2


ENCODING: Final = "keepthread_mcp_lines"
_EDGE: Final = 1000
_ID: Final = re.compile(rb'"id"\s*:\s*(-?[0-9]{1,18}|"[^"\\\x00-\x1f]{1,100}")')


class LineDecoder(codecs.IncrementalDecoder):
    """Decodes text line by line; an incomplete line is kept back."""

    def __init__(self, errors: str = "strict") -> None:
        """Begin with no data."""
        super().__init__(errors)
        self.reset()

    def reset(self) -> None:
        """Begin a new line."""
        self._parts: list[bytes] = []
        self._size = 0
        self._head = self._tail = b""

    def decode(self, input: Any, final: bool = False) -> str:  # noqa: A002, ARG002 - as in codecs
        """Return the lines that end in these bytes, each with its line end."""
        *ended, rest = bytes(input).split(b"\n")
        whole: list[str] = []
        for part in ended:
            self._add(part)
            whole.append(self._line())
            self.reset()
        self._add(rest)
        return "".join(whole)

    def _add(self, part: bytes) -> None:
        self._size += len(part)
        if self._size <= MOST_BYTES:
            self._parts.append(part)
            return
        if self._parts:
            self._head = b"".join(self._parts)[:_EDGE]
            self._parts = []
        self._tail = (self._tail + part[-_EDGE:])[-_EDGE:]

    def _line(self) -> str:
        if self._size <= MOST_BYTES:
            return b"".join(self._parts).decode("utf-8", self.errors) + "\n"
        early = _ID.search(self._head.partition(b'"result"')[0])
        found = early or next(reversed(list(_ID.finditer(self._tail))), None)
        if found is None:  # it does not answer a request of ours
            return ""
        message = f"its answer is larger than {MOST_BYTES >> 20} MB"
        error = json.dumps({"code": -32000, "message": message})
        id = found[1].decode("utf-8", "replace")
        return f'{{"jsonrpc":"2.0","id":{id},"error":{error}}}\n'


def _search(name: str) -> codecs.CodecInfo | None:
    if name != ENCODING:
        return None
    utf_8 = codecs.lookup("utf-8")
    return codecs.CodecInfo(
        utf_8.encode, utf_8.decode, incrementaldecoder=LineDecoder, name=ENCODING
    )


codecs.register(_search)


_MOST: Final = 2000
_PATIENCE: Final = 0.5
"""Seconds to read the rest of the output of a program that has ended."""


class StderrTail:
    """The last lines of stderr; read in a thread, since not every event loop can read pipes."""

    def __init__(self) -> None:
        """Begin with no output."""
        self._heard = b""
        self._file: TextIO | None = None
        self._listening = threading.Thread(target=self._listen, daemon=True)

    def __enter__(self) -> "StderrTail":
        return self

    def __exit__(self, *error: object) -> None:
        if self._file:
            self._file.close()
            os.close(self._stop)  # the reading thread sees the end of that pipe

    def open(self) -> TextIO:
        """Return a file to write to, and start reading it."""
        self._reading, writing = os.pipe()
        self._stopped, self._stop = os.pipe()
        self._file = os.fdopen(writing, "w")
        self._listening.start()
        return self._file

    async def last_line(self) -> str:
        """Return the last line that is not empty."""
        if self._file:
            self._file.close()
            await asyncio.to_thread(self._listening.join, _PATIENCE)
        lines = self._heard.decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    def _listen(self) -> None:
        """Read to the end, or until it is closed: a child of the program may keep the pipe open."""
        with (
            os.fdopen(self._stopped, "rb", buffering=0) as stopped,
            os.fdopen(self._reading, "rb", buffering=0) as pipe,
            selectors.DefaultSelector() as selector,
        ):
            if sys.platform != "win32":  # Windows cannot wait for pipes
                selector.register(stopped, selectors.EVENT_READ)
                selector.register(pipe, selectors.EVENT_READ)
            while not any(key.fileobj is stopped for key, _ in _ready(selector)):
                if not (data := pipe.read(_MOST)):
                    break
                self._heard = (self._heard + data)[-_MOST:]


def _ready(selector: selectors.BaseSelector) -> list[tuple[selectors.SelectorKey, int]]:
    return selector.select() if selector.get_map() else []


MOST_BYTES: Final = 16 << 20
"""Bytes of one answer, or of one event of a stream, at most."""
_CONNECT: Final = 10.0
"""Seconds to connect to a server; a tool may take longer."""
_REFUSED: Final = 400


def bounded_client(
    headers: Mapping[str, str], refused: Callable[[int], object]
) -> "httpx2.AsyncClient":
    """Return a client that reports refusals, and stops reading an answer that is too large."""
    import httpx2  # noqa: PLC0415 - the SDK brings it

    class Bounded(httpx2.AsyncByteStream):
        def __init__(self, stream: httpx2.AsyncByteStream) -> None:
            self._stream = stream

        async def __aiter__(self) -> AsyncIterator[bytes]:
            left = MOST_BYTES
            async for chunk in self._stream:
                left -= len(chunk)
                if left < 0:
                    raise httpx2.StreamError(f"the answer is larger than {MOST_BYTES >> 20} MB")
                yield chunk

        async def aclose(self) -> None:
            await self._stream.aclose()

    async def bound(response: httpx2.Response) -> None:
        if response.status_code >= _REFUSED:
            refused(response.status_code)
        # A small compressed answer can be very large, and we did not ask for compression.
        response.headers.pop("content-encoding", None)
        if not response.headers.get("content-type", "").startswith("text/event-stream"):
            response.stream = Bounded(cast("httpx2.AsyncByteStream", response.stream))

    return httpx2.AsyncClient(
        headers={"accept-encoding": "identity", **headers},
        timeout=httpx2.Timeout(_CONNECT, read=None),
        event_hooks={"response": [bound]},
    )
