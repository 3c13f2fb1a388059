"""Patience: how long to wait for a sign of life, and when to ask again."""

import asyncio
import importlib
import random
import re
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from typing import Any, ClassVar, Final, Protocol

from keepthread.errors import InvalidInput, ModelDenied, ModelRefused, ModelUnavailable
from keepthread.event_loops import PerLoop
from keepthread.models.failures import Asked, Exceeded, Failure, Garbled, ended_early, failure_of
from keepthread.models.limits import OVER, Deadline, bound
from keepthread.models.request import Pieces, Question, address_of, conversation, wire_names
from keepthread.types import JSON, Message, Reply, Tool

_FIRST_PAUSE: Final = 0.5
_LONGEST_PAUSE: Final = 20.0


class Patience:
    """How long one question may go without a sign of life, over all tries together."""

    def __init__(
        self, timeout: float, retries: int, sleep: Callable[[float], Awaitable[object]]
    ) -> None:
        """Begin to wait."""
        self._clock = asyncio.get_running_loop().time
        self._end = self._clock() + timeout
        self._retries = retries
        self._sleep = sleep
        self.tried = 1
        self.instead: dict[str, str | None] = {}
        """What the server would not be told, and what it was told instead."""

    @property
    def left(self) -> float:
        """Return the seconds that are left."""
        return self._end - self._clock()

    async def again(self, failure: Failure) -> bool:
        """Wait and return True if it is worth asking again, and there is the time for it."""
        drawn = _FIRST_PAUSE * 2 ** (self.tried - 1) * random.uniform(0.5, 1)  # noqa: S311 - so that not all come at once
        pause = max(drawn, failure.after)
        most = min(self.left, _LONGEST_PAUSE)
        if not failure.again or self.tried > self._retries or pause >= most:
            return False
        await self._sleep(pause)
        self.tried += 1
        return True


_CONNECT: Final = 10.0
"""Seconds to reach a server; how long it may think is another matter."""


class Hearing(Protocol):
    """What is heard of one answer; `ended` once it has come to its own end."""

    said: Pieces
    ended: bool

    def take(self, event: Mapping[str, Any]) -> str:
        """Take an event of a stream, and return what it says."""
        ...

    def reply(self) -> Reply:
        """Return the whole answer."""
        ...


class RemoteModel(ABC):
    """A model behind a provider's SDK, asked in streams alone.

    The SDK is loaded when first needed, or by `warm`. `timeout` is how many seconds may pass
    without a sign of life: until the first byte over all tries, and then between bytes. A whole
    answer may take `max_seconds` and have 1 MB of text; a longer one raises `ModelCut`. What is
    busy, broken or out of reach is asked again, up to `retries` times, as long as nothing was said.
    Several threads may ask it, each in an event loop of its own. No environment is read and no
    redirection followed. The key is in no error, log or `repr`.
    """

    package: ClassVar[str]
    """The SDK, and the extra that brings it."""
    own: ClassVar[str]
    """The provider's own address."""
    ends: ClassVar[Sequence[str]]
    """What people copy along with an address."""
    root: ClassVar[str]
    """The path of an address that has none."""
    path: ClassVar[str]
    optional: ClassVar[Mapping[str, str | None]]
    """What some servers refuse to be told, and what they may be told instead."""

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
        """Know whom to ask; nothing is loaded or asked yet."""
        if key is not None and not re.fullmatch("[!-~]+", key):
            raise InvalidInput("the key has a blank, a line break or no ASCII in it; copy it anew")
        if timeout <= 0 or max_seconds <= 0 or retries < 0:
            raise InvalidInput("timeout and max_seconds must be above 0, and retries 0 or more")
        self.name = name
        self._url, host = address_of(base_url or self.own, ends=self.ends, root=self.root)
        self._asked = Asked(name, host, timeout, key)
        self._retries = retries
        self._max_tokens = max_tokens
        self._max_seconds = max_seconds
        self._sleep = sleep
        self._instead: dict[str, str | None] = {}
        self._sdk: Any = None
        self._loading = threading.Lock()
        self._spare: Any = None
        """A client that was made in a thread, for the first loop that asks."""
        self._clients = PerLoop(self._client, _close)  # connections belong to one event loop

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r} at {self._asked.host})"

    @abstractmethod
    def _request(self, question: Question) -> dict[str, Any]:
        """Return the body of a request."""

    @abstractmethod
    def _hearing(self, names: Mapping[str, str]) -> Hearing:
        """Return what hears one answer; `names` are those of tools, by what the wire calls them."""

    @abstractmethod
    def _connected(self, sdk: Any, **settings: Any) -> Any:
        """Return a client that takes nothing from the environment."""

    async def warm(self) -> None:
        """Load the SDK, in a thread, so that the first answer need not wait for it."""
        if self._sdk is None:
            await asyncio.to_thread(self._load)
        self._clients.current()

    async def close(self) -> None:
        """Close its connections, those of other event loops too.

        It may be asked again, and opens new ones then. When a loop ends, its connections are closed
        with it.
        """
        await self._clients.close()

    async def complete(
        self,
        messages: Sequence[Message],
        *,
        system: str = "",
        tools: Sequence[Tool] = (),
        schema: Mapping[str, JSON] | None = None,
        max_tokens: int | None = None,
    ) -> Reply:
        """Return the whole answer. It is streamed here, too: so a long one is no silence."""
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
        """Yield the answer piece by piece, and at the end the whole of it."""
        names = wire_names(tools)
        selection = conversation(messages, system)
        await self._ready()
        question = Question(selection, tools, schema, max_tokens or self._max_tokens)
        request = _reworded(self._request(question), self._instead)
        patience = Patience(self._asked.timeout, self._retries, self._sleep)
        deadline = Deadline(self._asked.timeout, self._max_seconds)
        while True:
            hearing = self._hearing(names)
            failure = ended_early(self._asked)
            try:
                async with await self._opened(request, patience.left) as stream:
                    events = aiter(stream)
                    while (event := await deadline.event(events)) is not OVER:
                        if piece := _heard(hearing, event):
                            yield piece
            except self._failures as error:
                failure = failure_of(error, self._asked)
            if hearing.ended:
                break
            # Raised out here, an error has no context that holds the request and its key.
            request = await self._next_request(request, failure, hearing.said.text, patience)
        self._instead |= patience.instead
        if rest := hearing.said.rest():
            yield rest
        yield self._whole(hearing)

    def _whole(self, hearing: Hearing) -> Reply:
        """Return the whole answer; raise what to tell if it cannot be put together."""
        try:
            return hearing.reply()
        except (AttributeError, TypeError, ValueError, LookupError, RecursionError):
            failure = failure_of(Garbled(), self._asked)
        raise failure.error(1, hearing.said.text)

    async def _ready(self) -> None:
        asked = self._asked
        if asked.key is None and self._url == self.own:
            raise ModelDenied(
                f"{asked.host} needs a key: give one as key, or the base_url of a server without"
            )
        await self.warm()

    def _load(self) -> None:
        with self._loading:
            if self._sdk is None:
                sdk = _import(self.package)
                self._failures = _failures_of(sdk)
                self._without = dict.fromkeys(("Authorization", "X-Api-Key"), sdk.Omit())
                self._spare = self._new_client(sdk)
                self._sdk = sdk  # last: it tells other threads that all of this is ready

    def _client(self) -> Any:
        """Return a client for the running loop."""
        with self._loading:
            spare, self._spare = self._spare, None
        return spare or self._new_client(self._sdk)

    def _new_client(self, sdk: Any) -> Any:
        settings = _settings(sdk, self._url, self._asked.key, self._asked.timeout)
        return self._connected(sdk, **settings)

    async def _opened(self, request: Mapping[str, Any], seconds: float) -> Any:
        """Return the events of an answer once it has begun."""
        async with asyncio.timeout(seconds):
            return await self._clients.current().post(
                self.path,
                cast_to=object,
                body=request,
                stream=True,
                stream_cls=self._sdk.AsyncStream[object],
                options={} if self._asked.key else {"headers": self._without},
            )

    async def _next_request(
        self, request: dict[str, Any], failure: Failure, said: str, patience: Patience
    ) -> dict[str, Any]:
        """Return what to ask next, when it is time to; raise what to tell if it is never."""
        if not said:
            if refused := self._refused(request, failure, patience.instead):
                patience.instead |= refused
                return _reworded(request, refused)
            if await patience.again(failure):
                return request
        raise failure.error(patience.tried, said)

    def _refused(
        self, request: Mapping[str, Any], failure: Failure, instead: Mapping[str, str | None]
    ) -> dict[str, str | None]:
        """Return what a server names as what it will not be told, and what to tell it instead."""
        if failure.kind is not ModelRefused:
            return {}
        named = (n for n in self.optional if _names(request, n) and n in failure.told)
        return {name: self.optional[name] for name in named if self.optional[name] not in instead}


async def _close(client: Any) -> None:
    await client.close()


def _reworded(request: Mapping[str, Any], instead: Mapping[str, str | None]) -> dict[str, Any]:
    """Return a request in words that a server knows."""
    worded = dict(request)
    for name, other in instead.items():
        if name in worded:
            value = worded.pop(name)
            worded |= {other: value} if other else {}
        elif _names(worded, name):
            worded["messages"] = [_without(message, name) for message in worded["messages"]]
    return worded


def _names(request: Mapping[str, Any], name: str) -> bool:
    """Tell whether a request, a message in it or a call of that has a field of this name."""
    messages: list[dict[str, Any]] = request["messages"]
    return name in request or any(_without(m, name) != m for m in messages)


def _without(message: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a message without a field, and its calls without it."""
    kept = {key: value for key, value in message.items() if key != name}
    if calls := kept.get("tool_calls"):
        kept["tool_calls"] = [{k: v for k, v in call.items() if k != name} for call in calls]
    return kept


def _heard(hearing: Hearing, event: Any) -> str:
    try:
        return hearing.take(event)
    except (AttributeError, TypeError, ValueError, LookupError, RecursionError):
        raise Garbled from None


def _import(package: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError:
        raise ModelUnavailable(
            f"this model needs a package that is not there: pip install 'keepthread[{package}]'"
        ) from None


def _failures_of(sdk: Any) -> tuple[type[Exception], ...]:
    """Return what may go wrong on a wire. Not every SDK hides what it stands on."""
    http: Any = importlib.import_module("httpx2")
    return (
        sdk.APIError,
        http.HTTPError,
        http.StreamError,
        TimeoutError,
        ValueError,
        RecursionError,
        Garbled,
        Exceeded,
    )


def _settings(sdk: Any, url: str, key: str | None, timeout: float) -> dict[str, Any]:
    """Return what both clients are given; whoever gives nothing has the environment read."""
    patience = sdk.Timeout(timeout, connect=min(timeout, _CONNECT))
    return {
        "api_key": key or "none",  # which is left out where it is sent
        "base_url": url,
        "timeout": patience,
        "max_retries": 0,
        "http_client": sdk.DefaultAsyncHttpxClient(
            timeout=patience, follow_redirects=False, event_hooks={"response": [bound]}
        ),
    }
