"""Any endpoint of embeddings that speaks as OpenAI's does, with the standard library's HTTP."""

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
from urllib.parse import urlsplit
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
from keepthread.types import JSON, Embedding

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

_TRIES: Final = 4
_FIRST_PAUSE: Final = 0.5
_LONGEST_PAUSE: Final = 20.0
_Answer = TypeVar("_Answer")
_NAMES: Final = re.compile(r'"(?:code|param)"\s*:\s*"([a-z_]{1,40})"').findall


class EndpointEmbedder:
    """Embeds through an endpoint that speaks as OpenAI's does; each text gets one vector.

    `url` is its base, such as `http://localhost:11434/v1`. A server that is busy or broken is asked
    again, with pauses; one that refuses the request is not. The key is in no error, log or `repr`.
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
        """Know whom to ask, and for which model; nothing is asked yet."""
        if key is not None and not re.fullmatch("[!-~]+", key):
            raise InvalidInput("the key has a blank, a line break or no ASCII in it; copy it anew")
        if batch < 1:
            raise InvalidInput(f"batch must be 1 text or more, not {batch}")
        self._url, self._host = _address(url)
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
            raise InvalidInput("a text is empty; no endpoint takes it")
        made: list[Embedding] = []
        for start in range(0, len(texts), self._batch):
            made += await self._batched(texts[start : start + self._batch])
        return made

    async def _batched(self, texts: Sequence[str]) -> list[Embedding]:
        # Half of a surrogate pair is no text to anybody else.
        given = [text.encode(errors="replace").decode() for text in texts]
        body = json.dumps({**self._request, "input": given}).encode()
        pause = _FIRST_PAUSE
        for tried in range(1, _TRIES + 1):
            answer = await _apart(lambda: self._post(body))
            if isinstance(answer, bytes):
                return self._read(answer, len(texts))
            if tried == _TRIES or answer.after > _LONGEST_PAUSE:
                raise Unavailable(f"{self._host} {answer.what}, asked {tried} times: try later")
            drawn = pause * random.uniform(0.5, 1)  # noqa: S311 - so that not all come at once
            await self._sleep(max(drawn, answer.after))
            pause *= 2
        raise AssertionError("the last try returns or raises")

    def _post(self, body: bytes) -> bytes | _Trouble:
        """Ask once; return the answer, or a trouble that may be over when it is asked again."""
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
                    return _Trouble.answered(error.code, error.headers["Retry-After"])
                raise self._refused(error.code, error.read(4096)) from None
        except URLError as error:
            return _Trouble(f"cannot be reached ({error.reason})")
        except (HTTPException, OSError) as error:  # a timeout is among them
            return _Trouble(f"broke off ({type(error).__name__})")

    def _refused(self, status: int, body: bytes) -> Unavailable:
        # The server's own words may repeat the key or a text. Its names for faults cannot.
        named = ", ".join([str(status), *_NAMES(body.decode(errors="replace"))])
        match status:
            case 401 | 403:
                cure = "refuses the key: give another as key"
            case 404:
                cure = "has no such model, or no embeddings there: check url and model"
            case _ if status < 400:
                cure = "points elsewhere: give the address it points to as url"
            case _:
                cure = "refuses the request: check model and dimensions, or give a smaller batch"
        return Unavailable(f"{self._host} {cure} ({named})")

    def _read(self, answer: bytes, count: int) -> list[Embedding]:
        try:
            found = {each["index"]: each["embedding"] for each in json.loads(answer)["data"]}
            vectors = [_in_bytes(found[index]) for index in sorted(found)]
        except (ValueError, TypeError, LookupError, ArithmeticError):
            raise Unavailable(
                f"{self._host} answered, but not with embeddings: check that url is of an endpoint"
                " that speaks as OpenAI's does"
            ) from None
        if sorted(found) != list(range(count)):
            raise Unavailable(
                f"{self._host} gave {len(found)} vectors for {count} texts: give a smaller batch"
            )
        self._dimensions = self._dimensions or len(vectors[0])
        for vector in vectors:
            if len(vector) != self._dimensions:
                raise Unavailable(
                    f"{self._host} gave a vector of {len(vector)} dimensions instead of"
                    f" {self._dimensions}: check model and dimensions"
                )
        return [Embedding(vector, len(vector)) for vector in vectors]


async def _apart(ask: Callable[[], _Answer]) -> _Answer:
    """Ask in a thread of its own: a server that does not answer keeps no program from ending."""
    answer: Future[_Answer] = Future()
    answer.set_running_or_notify_cancel()

    def run() -> None:
        try:
            answer.set_result(ask())
        except BaseException as error:  # noqa: BLE001 - it is raised where the answer is awaited
            answer.set_exception(error)

    Thread(target=run, daemon=True).start()
    return await asyncio.wrap_future(answer)


class _Trouble(NamedTuple):
    """Why there was no answer, and how long to wait at least before asking again."""

    what: str
    after: float = 0.0

    @classmethod
    def answered(cls, status: int, after: str | None) -> _Trouble:
        what = "has too much to do" if status == 429 else "is broken"
        return cls(f"{what} ({status})", float(after) if after and after.isdigit() else 0.0)


@functools.cache
def _opener() -> OpenerDirector:
    """Return what opens addresses, and follows no redirection: it would take the key along."""
    opener = OpenerDirector()
    for handler in (ProxyHandler, HTTPHandler, HTTPSHandler, HTTPDefaultErrorHandler):
        opener.add_handler(handler())
    opener.add_handler(HTTPErrorProcessor())
    return opener


def _address(url: str) -> tuple[str, str]:
    """Return the whole address of the embeddings, and its host."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
        raise InvalidInput("url must be like https://HOST/v1 and nothing more")
    if parts.username is not None:
        raise InvalidInput("url has a user's name in it; give what is secret as key")
    path = parts.path.rstrip("/").removesuffix("/embeddings") or "/v1"
    return f"{parts.scheme}://{parts.netloc}{path}/embeddings", parts.netloc


def _in_bytes(values: list[float]) -> bytes:
    """Return a vector as an embedding writes it, at length 1."""
    scale = 127 / math.hypot(*values)
    return array("b", [round(value * scale) for value in values]).tobytes()
