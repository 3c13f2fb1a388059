"""Any embeddings endpoint with OpenAI's API, through the standard library's HTTP client."""

from __future__ import annotations

import asyncio
import functools
import json
import math
import random
import re
from array import array
from concurrent.futures import Future
from http.client import HTTPException
from threading import Thread
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar
from urllib.error import HTTPError, URLError
from urllib.request import (
    HTTPDefaultErrorHandler,
    HTTPErrorProcessor,
    HTTPHandler,
    HTTPSHandler,
    OpenerDirector,
    ProxyHandler,
    Request,
)

from keepthread.errors import InvalidInput, Unavailable
from keepthread.models.request import address_of, check_key
from keepthread.types import JSON, Embedding

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

_TRIES: Final = 4
_FIRST_PAUSE: Final = 0.5
_LONGEST_PAUSE: Final = 20.0
_Answer = TypeVar("_Answer")
_NAMES: Final = re.compile(r'"(?:code|param)"\s*:\s*"([a-z_]{1,40})"').findall


class EndpointEmbedder:
    """Embeds through an endpoint with OpenAI's API; each text gets one vector.

    `url` is its base URL, such as `http://localhost:11434/v1`. If the server is busy or fails, the
    request is sent again after a pause; if it rejects the request, an error is raised. No error,
    log or `repr` contains the key.
    """

    def __init__(
        self,
        url: str,
        model: str,
        *,
        key: str | None = None,
        dimensions: int | None = None,
        timeout: float = 30,
        batch: int = 64,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        """Keep the settings; nothing is sent yet."""
        check_key(key)
        if batch < 1:
            raise InvalidInput(f"batch must be 1 text or more, not {batch}")
        base, self._host = address_of(url, ends=("/embeddings",), root="/v1", argument="url")
        self._url = f"{base}/embeddings"
        self._key = key
        self._timeout = timeout
        self._batch = batch
        self._sleep = sleep
        self._request: dict[str, JSON] = {"model": model, "encoding_format": "float"}
        if dimensions is not None:
            self._request["dimensions"] = dimensions
        self._dimensions = dimensions
        self.by_token = False
        self.name = model if dimensions is None else f"{model}:{dimensions}"

    def __repr__(self) -> str:
        return f"EndpointEmbedder({self.name!r} at {self._host})"

    async def embed(self, texts: Sequence[str]) -> Sequence[Embedding]:
        """Return the vector of each text, or raise `Unavailable` saying what to do."""
        if not all(texts):
            raise InvalidInput("a text is empty; no endpoint accepts it")
        made: list[Embedding] = []
        for start in range(0, len(texts), self._batch):
            made += await self._batched(texts[start : start + self._batch])
        return made

    async def _batched(self, texts: Sequence[str]) -> list[Embedding]:
        # Half of a surrogate pair cannot be encoded as UTF-8.
        given = [text.encode(errors="replace").decode() for text in texts]
        body = json.dumps({**self._request, "input": given}).encode()
        pause = _FIRST_PAUSE
        for tried in range(1, _TRIES + 1):
            answer = await _apart(lambda: self._post(body))
            if isinstance(answer, bytes):
                return self._read(answer, len(texts))
            if tried == _TRIES or answer.after > _LONGEST_PAUSE:
                times = f", after {tried} attempts" if tried > 1 else ""
                raise Unavailable(f"{self._host} {answer.what}{times}: try later")
            drawn = pause * random.uniform(0.5, 1)  # noqa: S311 - spreads the retries of many clients
            await self._sleep(max(drawn, answer.after))
            pause *= 2
        raise AssertionError("the last try returns or raises")

    def _post(self, body: bytes) -> bytes | _Failure:
        """Send one request; return the answer, or a failure for which a retry may help."""
        headers = {"Content-Type": "application/json", "User-Agent": "keepthread"}
        if self._key is not None:
            headers["Authorization"] = f"Bearer {self._key}"
        request = Request(self._url, body, headers)  # noqa: S310 - the scheme was checked
        try:
            with _opener().open(request, timeout=self._timeout) as answer:
                return answer.read()
        except HTTPError as error:
            with error:
                if error.code == 429 or error.code >= 500:
                    return _Failure.answered(error.code, error.headers["Retry-After"])
                raise self._refused(error.code, error.read(4096)) from None
        except URLError as error:
            return _Failure(f"cannot be reached ({error.reason})")
        except (HTTPException, OSError) as error:  # a timeout is among them
            return _Failure(f"closed the connection or timed out ({type(error).__name__})")

    def _refused(self, status: int, body: bytes) -> Unavailable:
        # The server's error text may repeat the key or a text; its error codes cannot.
        named = ", ".join([str(status), *_NAMES(body.decode(errors="replace"))])
        match status:
            case 401 | 403:
                cure = "rejects the key: pass another key"
            case 404:
                cure = "has no such model, or no embeddings there: check url and model"
            case _ if status < 400:
                cure = "redirects elsewhere: set url to its target"
            case _:
                cure = "rejects the request: check model and dimensions, or use a smaller batch"
        return Unavailable(f"{self._host} {cure} ({named})")

    def _read(self, answer: bytes, count: int) -> list[Embedding]:
        try:
            found = {each["index"]: each["embedding"] for each in json.loads(answer)["data"]}
            vectors = [_in_bytes(found[index]) for index in sorted(found)]
        except (ValueError, TypeError, LookupError, ArithmeticError):
            raise Unavailable(
                f"{self._host} answered, but not with embeddings: check that url is of an endpoint"
                " with OpenAI's API"
            ) from None
        if sorted(found) != list(range(count)):
            raise Unavailable(
                f"{self._host} returned {len(found)} vectors for {count} texts: use a smaller batch"
            )
        self._dimensions = self._dimensions or len(vectors[0])
        for vector in vectors:
            if len(vector) != self._dimensions:
                raise Unavailable(
                    f"{self._host} returned a vector of {len(vector)} dimensions instead of"
                    f" {self._dimensions}: check model and dimensions"
                )
        return [Embedding(vector, len(vector)) for vector in vectors]


async def _apart(ask: Callable[[], _Answer]) -> _Answer:
    """Run in a daemon thread, so that a server that does not answer cannot keep a program alive."""
    answer: Future[_Answer] = Future()
    answer.set_running_or_notify_cancel()

    def run() -> None:
        try:
            answer.set_result(ask())
        except BaseException as error:  # noqa: BLE001 - it is raised where the answer is awaited
            answer.set_exception(error)

    Thread(target=run, daemon=True).start()
    return await asyncio.wrap_future(answer)


class _Failure(NamedTuple):
    """Why there was no answer, and the least time to wait before a retry."""

    what: str
    after: float = 0.0

    @classmethod
    def answered(cls, status: int, after: str | None) -> _Failure:
        what = "is overloaded" if status == 429 else "failed"
        return cls(f"{what} ({status})", float(after) if after and after.isdigit() else 0.0)


@functools.cache
def _opener() -> OpenerDirector:
    """Return an opener that follows no redirects: they would send the key elsewhere."""
    opener = OpenerDirector()
    for handler in (ProxyHandler, HTTPHandler, HTTPSHandler, HTTPDefaultErrorHandler):
        opener.add_handler(handler())
    opener.add_handler(HTTPErrorProcessor())
    return opener


def _in_bytes(values: list[float]) -> bytes:
    """Return a vector in the format of `Embedding`, scaled to length 1."""
    scale = 127 / math.hypot(*values)
    return array("b", [round(value * scale) for value in values]).tobytes()
