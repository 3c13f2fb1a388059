"""Models reached through a provider's SDK: requests, streams, timer and retries."""

import asyncio
import importlib
import random
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from typing import Any, ClassVar, Final, Protocol
from urllib.parse import urlsplit

from keepthread.errors import InvalidInput, ModelDenied, ModelRefused, ModelUnavailable
from keepthread.event_loops import PerLoop
from keepthread.models.context_window import known_window, window_of_service
from keepthread.models.failures import (
    Endpoint,
    Failure,
    LimitExceeded,
    MalformedAnswer,
    ended_early,
    failure_of,
)
from keepthread.models.limits import OVER, Deadline, bound
from keepthread.models.request import (
    Question,
    TextBuffer,
    address_of,
    check_key,
    conversation,
    wire_names,
)
from keepthread.types import JSON, Message, Reply, Tool

_FIRST_PAUSE: Final = 0.5
_LONGEST_PAUSE: Final = 20.0


class RetryTimer:
    """The time left until the first byte of an answer, and the retries, over all tries together."""

    def __init__(
        self, timeout: float, retries: int, sleep: Callable[[float], Awaitable[object]]
    ) -> None:
        """Start the clock."""
        self._clock = asyncio.get_running_loop().time
        self._end = self._clock() + timeout
        self._retries = retries
        self._sleep = sleep
        self.tried = 1
        self.instead: dict[str, str | None] = {}
        """Request fields that the server rejected, and the fields sent instead."""

    @property
    def left(self) -> float:
        """Return the remaining seconds."""
        return self._end - self._clock()

    async def again(self, failure: Failure) -> bool:
        """If a retry may help and there is time for it, wait and return True."""
        drawn = _FIRST_PAUSE * 2 ** (self.tried - 1) * random.uniform(0.5, 1)  # noqa: S311 - spreads the retries of many clients
        pause = max(drawn, failure.after)
        max_pause = min(self.left, _LONGEST_PAUSE)
        if not failure.again or self.tried > self._retries or pause >= max_pause:
            return False
        await self._sleep(pause)
        self.tried += 1
        return True


_CONNECT: Final = 10.0
"""Seconds to connect to a server; `timeout` limits how long it may take to answer."""


class StreamParser(Protocol):
    """Parses the events of one streamed answer; `ended` is true once the answer is complete."""

    said: TextBuffer
    ended: bool

    def take(self, event: Mapping[str, Any]) -> str:
        """Parse an event, and return the text it adds to the answer."""
        ...

    def reply(self) -> Reply:
        """Return the whole answer."""
        ...


class RemoteModel(ABC):
    """A model called through its provider's SDK; every answer is streamed.

    The SDK is imported on first use, or by `warm`. `timeout` is the number of seconds without a
    sign of life: until the first byte over all tries, and then between bytes. A whole answer may
    take `max_seconds` and have 1 MB of text; a longer one raises `ModelCut`. If the server is busy,
    fails or cannot be reached, the request is sent again up to `retries` times, unless part of the
    answer has arrived. Several threads may call it, each in its own event loop. Environment
    variables are not read, redirects are not followed, and no error, log or `repr` contains the
    key.
    """

    package: ClassVar[str]
    """The SDK's package, which is also the name of our extra."""
    own: ClassVar[str]
    """The provider's own URL."""
    ends: ClassVar[Sequence[str]]
    """Suffixes to remove from a base URL; people often copy them along."""
    root: ClassVar[str]
    """The path to use if a base URL has none."""
    path: ClassVar[str]
    models_path: ClassVar[str]
    """The path of the list of models."""
    answer_tokens: ClassVar[int] = 4096
    """Tokens to leave for an answer of which no limit is set."""
    optional: ClassVar[Mapping[str, str | None]]
    """Request fields that some servers reject, and the fields to send instead, if any."""

    def __init__(
        self,
        name: str,
        *,
        key: str | None = None,
        base_url: str | None = None,
        timeout: float = 60.0,
        retries: int = 2,
        max_tokens: int | None = None,
        max_seconds: float = 1800.0,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        """Keep the settings; nothing is imported or sent yet."""
        check_key(key)
        if timeout <= 0 or max_seconds <= 0 or retries < 0:
            raise InvalidInput("timeout and max_seconds must be above 0, and retries 0 or more")
        self.name = name
        self._url, host = address_of(base_url or self.own, ends=self.ends, root=self.root)
        self._endpoint = Endpoint(name, host, timeout, key)
        self._retries = retries
        self._max_tokens = max_tokens
        self._max_seconds = max_seconds
        self._sleep = sleep
        self._instead: dict[str, str | None] = {}
        self._sdk: Any = None
        self._loading = threading.Lock()
        self._spare: Any = None
        """A client that `warm` created in a thread, for the first loop that needs one."""
        self._clients = PerLoop(self._client, _close)  # connections belong to one event loop

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r} at {self._endpoint.host})"

    @abstractmethod
    def _request(self, question: Question) -> dict[str, Any]:
        """Return the body of a request."""

    @abstractmethod
    def _parser(self, names: Mapping[str, str]) -> StreamParser:
        """Return a parser for one answer; `names` maps names on the wire to names of tools."""

    @abstractmethod
    def _connected(self, sdk: Any, **settings: Any) -> Any:
        """Return a client that ignores environment variables."""

    async def warm(self) -> None:
        """Import the SDK, in a thread, so that the first answer need not wait for it."""
        if self._sdk is None:
            await asyncio.to_thread(self._load)
        self._clients.current()

    async def close(self) -> None:
        """Close its connections, including those of other event loops.

        It may be used again, and opens new ones then. When a loop ends, its connections are closed
        with it.
        """
        await self._clients.close()

    async def context_window(self) -> int | None:
        """Return the context window in tokens, prompt and answer together; None if unknown.

        The provider's own models are known; other services are asked. One that cannot be reached
        raises `ModelUnavailable`.
        """
        if self._url == self.own:
            return known_window(self.name)
        await self.warm()
        client = self._clients.current()
        service = _ServiceInfo(client, self._failures, self._url, self._endpoint)
        found = await window_of_service(service, self.name, self.models_path)
        return found or known_window(self.name)

    async def complete(
        self,
        messages: Sequence[Message],
        *,
        system: str = "",
        tools: Sequence[Tool] = (),
        schema: Mapping[str, JSON] | None = None,
        max_tokens: int | None = None,
    ) -> Reply:
        """Return the whole answer; it is streamed too, so that a long one does not time out."""
        reply = Reply()
        async for piece in self.stream(
            messages, system=system, tools=tools, schema=schema, max_tokens=max_tokens
        ):
            if not isinstance(piece, str):
                reply = piece
        return reply

    async def stream(
        self,
        messages: Sequence[Message],
        *,
        system: str = "",
        tools: Sequence[Tool] = (),
        schema: Mapping[str, JSON] | None = None,
        max_tokens: int | None = None,
    ) -> AsyncGenerator[str | Reply, None]:
        """Yield the answer's text in pieces, then the whole answer."""
        names = wire_names(tools)
        selection = conversation(messages, system)
        await self._ready()
        question = Question(selection, tools, schema, max_tokens or self._max_tokens)
        request = _reworded(self._request(question), self._instead)
        timer = RetryTimer(self._endpoint.timeout, self._retries, self._sleep)
        deadline = Deadline(self._endpoint.timeout, self._max_seconds)
        while True:
            parser = self._parser(names)
            failure = ended_early(self._endpoint)
            try:
                async with await self._opened(request, timer.left) as stream:
                    events = aiter(stream)
                    while (event := await deadline.event(events)) is not OVER:
                        if piece := _parse(parser, event):
                            yield piece
            except self._failures as error:
                failure = failure_of(error, self._endpoint)
            if parser.ended:
                break
            # Raised out here, an error has no context that holds the request and its key.
            request = await self._next_request(request, failure, parser.said.text, timer)
        self._instead |= timer.instead
        if rest := parser.said.rest():
            yield rest
        yield self._whole(parser)

    def _whole(self, parser: StreamParser) -> Reply:
        """Return the whole answer, or raise an error if it is malformed."""
        try:
            return parser.reply()
        except (AttributeError, TypeError, ValueError, LookupError, RecursionError):
            failure = failure_of(MalformedAnswer(), self._endpoint)
        raise failure.error(1, parser.said.text)

    async def _ready(self) -> None:
        endpoint = self._endpoint
        if endpoint.key is None and self._url == self.own:
            raise ModelDenied(
                f"{endpoint.host} requires a key: pass key=…, or the base_url of a server that "
                "needs none"
            )
        await self.warm()

    def _load(self) -> None:
        with self._loading:
            if self._sdk is None:
                sdk = _import(self.package)
                self._failures = _failures_of(sdk)
                self._without = dict.fromkeys(("Authorization", "X-Api-Key"), sdk.Omit())
                self._spare = self._new_client(sdk)
                self._sdk = sdk  # set last: other threads use it to check readiness

    def _client(self) -> Any:
        """Return a client for the running loop."""
        with self._loading:
            spare, self._spare = self._spare, None
        return spare or self._new_client(self._sdk)

    def _new_client(self, sdk: Any) -> Any:
        settings = _settings(sdk, self._url, self._endpoint.key, self._endpoint.timeout)
        return self._connected(sdk, **settings)

    async def _opened(self, request: Mapping[str, Any], seconds: float) -> Any:
        """Send a request, and return the stream of events once the answer has begun."""
        async with asyncio.timeout(seconds):
            return await self._clients.current().post(
                self.path,
                cast_to=object,
                body=request,
                stream=True,
                stream_cls=self._sdk.AsyncStream[object],
                options={} if self._endpoint.key else {"headers": self._without},
            )

    async def _next_request(
        self, request: dict[str, Any], failure: Failure, said: str, timer: RetryTimer
    ) -> dict[str, Any]:
        """Wait, and return the request to send next; raise an error if a retry is pointless."""
        if not said:
            if refused := self._refused(request, failure, timer.instead):
                timer.instead |= refused
                return _reworded(request, refused)
            if await timer.again(failure):
                return request
        raise failure.error(timer.tried, said)

    def _refused(
        self, request: Mapping[str, Any], failure: Failure, instead: Mapping[str, str | None]
    ) -> dict[str, str | None]:
        """Return the optional fields that the server's error names, and their replacements."""
        if failure.kind is not ModelRefused:
            return {}
        named = (n for n in self.optional if _names(request, n) and n in failure.provider_text)
        return {name: self.optional[name] for name in named if self.optional[name] not in instead}


class _ServiceInfo:
    """Asks a model's service about the model."""

    def __init__(
        self, client: Any, failures: tuple[type[Exception], ...], url: str, endpoint: Endpoint
    ) -> None:
        self._client = client
        self._failures = failures
        self._endpoint = endpoint
        parts = urlsplit(url)
        self._host = f"{parts.scheme}://{parts.netloc}"

    async def json(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Return the JSON at a path, or the one that answers a body; None if there is none."""
        url = f"{self._host}{path}" if path.startswith("/api/") else path
        try:
            if body is None:
                return await self._client.get(url, cast_to=object)
            return await self._client.post(url, cast_to=object, body=body)
        except self._failures as error:
            failure = failure_of(error, self._endpoint)
            answered = isinstance(error, ValueError) or hasattr(error, "status_code")
        if answered:
            return None
        raise failure.error(1, "")


async def _close(client: Any) -> None:
    await client.close()


def _reworded(request: Mapping[str, Any], instead: Mapping[str, str | None]) -> dict[str, Any]:
    """Return a request with rejected fields renamed or removed."""
    worded = dict(request)
    for name, other in instead.items():
        if name in worded:
            value = worded.pop(name)
            worded |= {other: value} if other else {}
        elif _names(worded, name):
            worded["messages"] = [_without(message, name) for message in worded["messages"]]
    return worded


def _names(request: Mapping[str, Any], name: str) -> bool:
    """Return whether the request, one of its messages or one of their calls has this field."""
    messages: list[dict[str, Any]] = request["messages"]
    return name in request or any(_without(m, name) != m for m in messages)


def _without(message: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a message without a field, in its calls too."""
    kept = {key: value for key, value in message.items() if key != name}
    if calls := kept.get("tool_calls"):
        kept["tool_calls"] = [{k: v for k, v in call.items() if k != name} for call in calls]
    return kept


def _parse(parser: StreamParser, event: Any) -> str:
    try:
        return parser.take(event)
    except (AttributeError, TypeError, ValueError, LookupError, RecursionError):
        raise MalformedAnswer from None


def _import(package: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError:
        raise ModelUnavailable(
            f"this model needs a package that is missing: pip install 'keepthread[{package}]'"
        ) from None


def _failures_of(sdk: Any) -> tuple[type[Exception], ...]:
    """Return the errors that a request may raise; not every SDK wraps those of its HTTP client."""
    http: Any = importlib.import_module("httpx2")
    return (
        sdk.APIError,
        http.HTTPError,
        http.StreamError,
        TimeoutError,
        ValueError,
        RecursionError,
        MalformedAnswer,
        LimitExceeded,
    )


def _settings(sdk: Any, url: str, key: str | None, timeout: float) -> dict[str, Any]:
    """Return the settings of a client; SDKs read missing ones from environment variables."""
    limits = sdk.Timeout(timeout, connect=min(timeout, _CONNECT))
    return {
        "api_key": key or "none",  # requests without a key omit the header
        "base_url": url,
        "timeout": limits,
        "max_retries": 0,
        "http_client": sdk.DefaultAsyncHttpxClient(
            timeout=limits, follow_redirects=False, event_hooks={"response": [bound]}
        ),
    }
