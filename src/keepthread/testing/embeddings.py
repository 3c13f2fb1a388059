"""Embedders for tests: one that hashes words, and an endpoint on this machine that serves it.

Texts that share words are near each other; nothing is loaded, and the same text always has the same
vectors. The endpoint checks a request as strictly as a provider does, and fails when scripted to.
"""

import asyncio
import hashlib
import json
import math
import re
import struct
import threading
from array import array
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, NamedTuple, Self, cast

from keepthread.types import JSON, Embedding

_MOST_INPUTS: Final = 2048
_FIELDS: Final = {"model", "input", "encoding_format", "dimensions", "user"}


class ScriptedEmbedder:
    """Embeds by the words that texts share; `calls` lists the texts it was given.

    A line of the script is an error to raise or seconds to wait, one for each call; after the last
    line, calls succeed immediately.

    >>> embedder = ScriptedEmbedder([0.2, TimeoutError()])
    """

    def __init__(
        self,
        script: Iterable[float | BaseException] = (),
        *,
        name: str = "scripted",
        dimensions: int = 64,
        by_token: bool = False,
    ) -> None:
        """Take the script, the name, and the kind of vectors to make."""
        self.name = name
        self.by_token = by_token
        self.calls: list[Sequence[str]] = []
        self._dimensions = dimensions
        self._script = iter(tuple(script))

    async def embed(self, texts: Sequence[str]) -> Sequence[Embedding]:
        self.calls.append(tuple(texts))
        line = next(self._script, 0.0)
        if isinstance(line, BaseException):
            raise line
        await asyncio.sleep(line)
        return [self._embed(text) for text in texts]

    def _embed(self, text: str) -> Embedding:
        if not self.by_token:
            return Embedding(_in_bytes(bag(text, self._dimensions)), self._dimensions)
        words = _words(text)
        vectors = b"".join(_in_bytes(_hashed(word, self._dimensions)) for word in words)
        return Embedding(vectors, self._dimensions, tuple(_number(word) for word in words))


def bag(text: str, dimensions: int) -> list[float]:
    """Return the sum of a text's hashed words, at length 1."""
    words = _words(text) or [text]
    total = [sum(column) for column in zip(*(_hashed(w, dimensions) for w in words), strict=True)]
    length = math.hypot(*total) or 1.0
    return [value / length for value in total]


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def _number(word: str) -> int:
    return int.from_bytes(_bits(word, 2))


def _hashed(word: str, dimensions: int) -> list[float]:
    bits = int.from_bytes(_bits(word, dimensions // 8 + 1))
    side = 1 / math.sqrt(dimensions)
    return [side if bits >> n & 1 else -side for n in range(dimensions)]


def _bits(word: str, size: int) -> bytes:
    return hashlib.shake_128(word.encode(errors="surrogatepass")).digest(size)


def _in_bytes(vector: Sequence[float]) -> bytes:
    return array("b", [round(127 * value) for value in vector]).tobytes()


# --- the endpoint ---


class Fault(NamedTuple):
    """A fault of one answer."""

    status: int = 200
    headers: Mapping[str, str] = {}
    """Such as `Retry-After`."""
    wait: float = 0.0
    """Seconds before it comes."""
    cut: bool = False
    """It breaks off halfway."""
    shuffled: bool = False
    """The vectors are in another order; their `index` says which is which."""
    lost: int = 0
    """Vectors that are left out."""
    dimensions: int | None = None
    """Another size than was asked for."""
    body: bytes | None = None
    """An invalid body instead of the answer."""


class EmbeddingsServer:
    """An endpoint on this machine, which runs while its `with` block does.

    >>> with EmbeddingsServer(script=[Fault(429, {"Retry-After": "1"})]) as server:
    ...     print(server.url)
    """

    def __init__(
        self,
        *,
        model: str = "hashed",
        key: str | None = None,
        dimensions: int = 64,
        script: Iterable[Fault | None] = (),
    ) -> None:
        """Take the model's name and the key it accepts; the script has one line per request."""
        self.model = model
        self.key = key
        self.dimensions = dimensions
        self.requests: list[Mapping[str, Any]] = []
        """The valid requests."""
        self.refused: list[str] = []
        """The faults of the refused requests."""
        self.closing = threading.Event()
        self._script = iter(tuple(script))
        handler = type("Handler", (_Handler,), {"endpoint": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))

    @property
    def url(self) -> str:
        """Return the endpoint's base."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def __enter__(self) -> Self:
        """Serve."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop serving."""
        self.closing.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def answer(self, path: str, headers: Mapping[str, str], body: bytes) -> tuple[Fault, bytes]:
        """Return the answer to a request, and how it is sent."""
        fault = next(self._script, None) or Fault()
        try:
            asked = self._checked(path, headers, body)
        except _Refused as refusal:
            self.refused.append(refusal.message)
            return Fault(refusal.status), refusal.body()
        self.requests.append(asked)
        if fault.body is not None:
            return fault, fault.body
        if fault.status != 200:
            return fault, _Refused(fault.status, "scripted to fail", "scripted").body()
        return fault, json.dumps(self._vectors(asked, fault)).encode()

    def _checked(self, path: str, headers: Mapping[str, str], body: bytes) -> Mapping[str, Any]:
        if path != "/v1/embeddings":
            raise _Refused(404, f"Invalid URL (POST {path})", "unknown_url")
        given = headers.get("Authorization", "")
        if self.key is not None and given != f"Bearer {self.key}":
            raise _Refused(401, f"Incorrect API key provided: {given}", "invalid_api_key")
        if headers.get("Content-Type") != "application/json":
            raise _Refused(400, "The content type must be application/json", "content_type")
        try:
            asked = json.loads(body)
        except ValueError:
            asked = None
        if not isinstance(asked, dict):
            raise _Refused(400, "The body is not a JSON object", "invalid_json")
        request = cast("dict[str, Any]", asked)
        self._check_fields(request)
        return request

    def _check_fields(self, asked: Mapping[str, Any]) -> None:
        if unknown := asked.keys() - _FIELDS:
            raise _Refused(400, f"Unrecognized arguments: {unknown}", "unknown_parameter")
        if asked.get("model") != self.model:
            raise _Refused(404, f"The model {asked.get('model')!r} does not exist", "no_model")
        given = asked.get("input")
        texts = cast("list[object]", given) if isinstance(given, list) else [given]
        if not 0 < len(texts) <= _MOST_INPUTS:
            raise _Refused(400, f"1 to {_MOST_INPUTS} inputs are allowed", "input_count")
        if not all(isinstance(text, str) and text for text in texts):
            raise _Refused(400, "Each input must be a string that is not empty", "invalid_input")
        if asked.get("encoding_format", "float") not in ("float", "base64"):
            raise _Refused(400, "The format must be float or base64", "encoding_format")
        size = asked.get("dimensions", self.dimensions)
        if type(size) is not int or not 0 < size <= self.dimensions:
            raise _Refused(400, f"1 to {self.dimensions} dimensions are allowed", "dimensions")

    def _vectors(self, asked: Mapping[str, Any], fault: Fault) -> JSON:
        texts = [asked["input"]] if isinstance(asked["input"], str) else asked["input"]
        size = fault.dimensions or asked.get("dimensions", self.dimensions)
        data: list[dict[str, JSON]] = []
        for index, text in enumerate(texts):
            vector: JSON = bag(text, size)
            if asked.get("encoding_format") == "base64":
                vector = b64encode(struct.pack(f"<{size}f", *vector)).decode()
            data.append({"object": "embedding", "index": index, "embedding": vector})
        data = data[: len(data) - fault.lost]
        used = sum(len(text) for text in texts) // 4
        return {
            "object": "list",
            "data": data[::-1] if fault.shuffled else data,
            "model": self.model,
            "usage": {"prompt_tokens": used, "total_tokens": used},
        }


class _Refused(Exception):
    """A provider's answer to an invalid request."""

    def __init__(self, status: int, message: str, code: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code

    def body(self) -> bytes:
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        error = {"message": self.message, "type": kind, "param": None, "code": self.code}
        return json.dumps({"error": error}).encode()


class _Handler(BaseHTTPRequestHandler):
    endpoint: EmbeddingsServer

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        fault, answer = self.endpoint.answer(self.path, dict(self.headers), body)
        self.endpoint.closing.wait(fault.wait)
        with suppress(OSError):  # the client may have left
            self.send_response_only(fault.status)  # without a line in a log
            for name, value in fault.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer[: len(answer) // 2] if fault.cut else answer)
