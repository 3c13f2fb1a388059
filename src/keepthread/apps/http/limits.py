"""Limits: request rate and concurrency per key, per tenant and in total, and request deadlines.

They count within one worker. A refused request was not started, so the client may retry it after
`Retry-After` seconds. Health checks have slots that nothing else can take.
"""

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final

from keepthread.apps.http.caller import identity_of
from keepthread.apps.http.json_input import PASSED_PATHS
from keepthread.apps.http.origins import HEALTH
from keepthread.apps.http.places import place_of
from keepthread.apps.http.problems import Problem
from keepthread.apps.http.settings import KIB, HttpSettings

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

_SLOWEST: Final = 64 * KIB
"""Body bytes that extend the deadline by one second."""
_MANY: Final = 10_000
_HEALTH_CHECKS: Final = 16
"""Health checks at the same time."""


class Deadlines:
    """Cancels requests that take too long, and refuses excess requests."""

    def __init__(self, app: "ASGIApp", settings: HttpSettings) -> None:
        """Wrap an application."""
        self._app = app
        self._settings = settings
        self._slots = Slots(settings.max_requests)
        self._health = Slots(_HEALTH_CHECKS)

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        """Serve one request within its time."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        is_health = scope["path"] in HEALTH
        place = place_of(scope)
        if place is not None and place.is_spare and not is_health:
            raise _overloaded()
        slots = self._health if is_health else self._slots
        with slots.taken("", _overloaded) as release:
            await self._timed(scope, receive, _releasing(send, release))

    async def _timed(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        settings = self._settings
        began = asyncio.get_running_loop().time()
        received, complete, started = 0, False, False
        is_relayed = scope["path"].startswith(PASSED_PATHS)

        async def timed_receive() -> "Message":
            nonlocal received, complete
            message = await receive()
            if message["type"] == "http.request" and not complete:
                received += len(message.get("body", b""))
                complete = not message.get("more_body", False)
                if not started:
                    end = began + settings.deadline + received / _SLOWEST
                    # A provider may take minutes; the proxy has its own timeouts.
                    limit.reschedule(None if complete and is_relayed else end)
            return message

        async def timed_send(message: "Message") -> None:
            nonlocal started
            if not started:
                started = True
                limit.reschedule(None)
            async with asyncio.timeout(settings.send_timeout):
                await send(message)

        limit = asyncio.timeout(settings.deadline)
        try:
            async with limit:
                await self._app(scope, timed_receive, timed_send)
        except TimeoutError:
            if started or not limit.expired():
                raise
            raise _too_late(settings.deadline, complete=complete) from None


def _too_late(seconds: float, *, complete: bool) -> Problem:
    if complete:
        return Problem(
            504,
            "deadline_exceeded",
            f"The request timed out after {seconds:g} seconds; it may or may not have been "
            "completed. Retry it with the same ids or Idempotency-Key.",
            retryable=True,
        )
    return Problem(
        408,
        "request_timeout",
        "The body did not arrive in time.",
        headers={"Connection": "close"},
        retryable=True,
    )


class Slots:
    """Counts running requests by name."""

    def __init__(self, most: int) -> None:
        """Take how many may run at the same time for one name."""
        self._most = most
        self._running: Counter[str] = Counter()

    @contextmanager
    def taken(self, name: str, refusal: Callable[[], Problem]) -> Generator[Callable[[], None]]:
        """Hold a slot, or raise the problem; the yielded function frees it early."""
        if self._running[name] >= self._most:
            raise refusal()
        self._running[name] += 1
        held = True

        def release() -> None:
            nonlocal held
            if held:
                held = False
                self._running[name] -= 1
                if not self._running[name]:
                    del self._running[name]

        try:
            yield release
        finally:
            release()


class _SharedSlots:
    """Slots of each key, of each tenant, and maybe of all together."""

    def __init__(self, key: int, tenant: int, total: int | None, what: str) -> None:
        self._slots = (
            (Slots(key), lambda: _too_many("key", key, what)),
            (Slots(tenant), lambda: _too_many("tenant", tenant, what)),
            *([] if total is None else [(Slots(total), _overloaded)]),
        )

    @contextmanager
    def taken(self, names: Sequence[str]) -> Generator[Callable[[], None]]:
        """Hold a slot of each kind; the yielded function frees them early."""
        with ExitStack() as held:
            for (slots, refusal), name in zip(self._slots, names, strict=False):
                held.enter_context(slots.taken(name, refusal))
            yield held.close


class KeyLimits:
    """Limits the requests of each key and tenant: how many at once, and how many per second."""

    def __init__(
        self,
        app: "ASGIApp",
        settings: HttpSettings,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Wrap an application."""
        self._app = app
        self._slots = _SharedSlots(
            settings.concurrency,
            max(settings.concurrency, settings.tenant_concurrency),
            None,
            "requests",
        )
        self._streams = _SharedSlots(
            settings.streams, settings.tenant_streams, settings.all_streams, "event streams"
        )
        self._buckets = Buckets(settings.rate, settings.burst)
        self._clock = clock

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        """Serve one request if its key and its tenant are within their limits."""
        identity = identity_of(scope)
        if identity is None:
            await self._app(scope, receive, send)
            return
        key = f"{identity.tenant} {identity.key_id}"
        if seconds := self._buckets.take(key, self._clock()):
            raise Problem(
                429,
                "rate_limited",
                "This key sends too many requests; retry after `Retry-After` seconds.",
                headers={"Retry-After": str(math.ceil(seconds))},
                retryable=True,
            )
        names = (key, identity.tenant, "")
        with self._slots.taken(names) as release:
            await self._streamed(self._streams.taken(names), release, scope, receive, send)

    async def _streamed(
        self,
        stream: AbstractContextManager[Any],
        release: Callable[[], None],
        scope: "Scope",
        receive: "Receive",
        send: "Send",
    ) -> None:
        """Serve a request; an event stream, which lasts, moves to slots of its own."""
        opened, refused = False, None

        async def counted(message: "Message") -> None:
            nonlocal opened, refused
            if _begins_stream(message):
                try:
                    stream.__enter__()
                except Problem as problem:
                    refused = problem
                    raise
                opened = True
                release()
            await send(message)

        try:
            await self._app(scope, receive, counted)
        except Exception:
            # A response that streams wraps what is raised in it.
            if refused is not None:
                raise refused from None
            raise
        finally:
            if opened:
                stream.__exit__(None, None, None)


class Buckets:
    """Token buckets: each name has `burst` tokens, and gets `rate` of them back per second."""

    def __init__(self, rate: float, burst: int) -> None:
        """Take the rate per second; 0 means any number."""
        self._rate = rate
        self._burst = burst
        self._left: dict[str, tuple[float, float]] = {}

    def take(self, name: str, now: float) -> float:
        """Take a token and return 0, or return the seconds until one is available."""
        if not self._rate:
            return 0.0
        left, at = self._left.get(name, (float(self._burst), now))
        left = min(self._burst, left + (now - at) * self._rate)
        if left < 1:
            self._left[name] = (left, now)
            return (1 - left) / self._rate
        self._left[name] = (left - 1, now)
        if len(self._left) > _MANY:
            self._drop_full(now)
        return 0.0

    def _drop_full(self, now: float) -> None:
        """Drop names whose bucket is full again: that is also the state of unknown names."""
        full = self._burst / self._rate
        self._left = {name: each for name, each in self._left.items() if now - each[1] < full}


def _releasing(send: "Send", release: Callable[[], None]) -> "Send":
    """Free the slot of a request when it turns out to be an event stream."""

    async def released(message: "Message") -> None:
        await send(message)
        if _begins_stream(message):
            release()

    return released


def _begins_stream(message: "Message") -> bool:
    return message["type"] == "http.response.start" and any(
        name.lower() == b"content-type" and value.startswith(b"text/event-stream")
        for name, value in message.get("headers", ())
    )


def _overloaded() -> Problem:
    return Problem(
        503,
        "overloaded",
        "The server is at its request limit; retry later.",
        headers={"Retry-After": "1"},
        retryable=True,
    )


def _too_many(whose: str, most: int, what: str) -> Problem:
    return Problem(
        429,
        "too_many_requests",
        f"This {whose} already has {most} open {what}, its limit; retry later.",
        headers={"Retry-After": "1"},
        retryable=True,
    )
