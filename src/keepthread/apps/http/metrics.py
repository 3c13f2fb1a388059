"""Metrics for Prometheus, on a port of their own, and spans of requests for OpenTelemetry.

Labels are routes as the code writes them, never paths: an id in a label would be a leak, and a
series for each. Workers write to files of one folder, and the process that started them adds up.
"""

import asyncio
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server
from prometheus_client.multiprocess import MultiProcessCollector

from keepthread.apps.http.access import LOG, route_of
from keepthread.apps.http.caller import identity_of
from keepthread.apps.http.state import WorkerState
from keepthread.errors import KeepthreadError
from keepthread.memory.tracing import RemoteParent, open_server_span
from keepthread.stores.changes import FeedHolder, HoldableFeed

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

FOLDER_VARIABLE: Final = "PROMETHEUS_MULTIPROC_DIR"
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_SECONDS: Final = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


_EVERY: Final = 15.0
_LONG: Final = 60.0
"""Seconds after which a transaction that holds the feed back is logged."""


class Metrics:
    """Counts the requests of one worker, and what holds its feed of changes back."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        """Register with a registry of one's own by default."""
        self.registry = registry or CollectorRegistry()
        self._requests = Counter(
            "keepthread_http_requests",
            "Requests by route and status.",
            ("method", "route", "status"),
            registry=self.registry,
        )
        self._seconds = Histogram(
            "keepthread_http_request_seconds",
            "Seconds from the first byte of a request to the last of its response.",
            ("route",),
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._held = Gauge(
            "keepthread_feed_held_seconds",
            "Age of the oldest transaction that keeps later changes from being shown.",
            registry=self.registry,
            multiprocess_mode="mostrecent",
        )
        self._key_ages = Gauge(
            "keepthread_issuer_keys_age_seconds",
            "Seconds since the public keys of an identity provider were read.",
            ("issuer",),
            registry=self.registry,
            multiprocess_mode="mostrecent",
        )
        self._holder, self._seen_at, self._is_logged = "", 0.0, False

    def note_feed_holder(self, holder: FeedHolder | None) -> None:
        """Show how long the feed has been held back, and log it once if that is long."""
        if holder is None:
            self._held.set(0)
            return
        if holder.transaction != self._holder:
            self._holder, self._is_logged = holder.transaction, False
            self._seen_at = time.monotonic()
        seconds = holder.seconds
        if seconds is None:
            seconds = time.monotonic() - self._seen_at
        self._held.set(seconds)
        if seconds > _LONG and not self._is_logged:
            self._is_logged = True
            fields = {"database": holder.database, "transaction": holder.transaction}
            LOG.warning("a transaction holds back the feed", extra={"fields": fields})

    def note_key_ages(self, ages: Mapping[str, float]) -> None:
        """Show how old the keys of identity providers are."""
        for issuer, seconds in ages.items():
            self._key_ages.labels(issuer).set(seconds)

    def count(self, scope: "Scope", status: int, seconds: float) -> None:
        """Count one request."""
        method = scope["method"] if scope["method"] in _METHODS else "other"
        route = route_of(scope)
        self._requests.labels(method, route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)


async def watch_keys(state: WorkerState, metrics: Metrics, every: float = _EVERY) -> None:
    """Look from time to time how old the keys of identity providers are, until cancelled."""
    while True:
        metrics.note_key_ages(state.issuer_key_ages())
        await asyncio.sleep(every)


async def watch_feed(store: HoldableFeed, metrics: Metrics, every: float = _EVERY) -> None:
    """Look from time to time what holds the feed back, until cancelled."""
    while True:
        with suppress(KeepthreadError):
            metrics.note_feed_holder(await store.feed_holder())
        await asyncio.sleep(every)


_FAILED: Final = 500
_PARENT: Final = re.compile(rb"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")


class RequestSpans:
    """Wraps all layers: a span for each request, with its route, status and key; never with text.

    It continues the trace that the header `traceparent` names. Spans of the memory are in it.
    """

    def __init__(self, app: "ASGIApp", tracer: Any) -> None:
        """Wrap an application."""
        self._app = app
        self._tracer = tracer

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        """Serve one request in a span."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        method = scope["method"] if scope["method"] in _METHODS else "_OTHER"
        status = _FAILED

        async def noting(message: "Message") -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        attributes = {"http.request.method": method, "url.scheme": scope["scheme"]}
        with open_server_span(self._tracer, method, attributes, _parent(scope)) as span:
            try:
                await self._app(scope, receive, noting)
            finally:
                route, identity = route_of(scope), identity_of(scope)
                span.update_name(f"{method} {route}")
                span.set_attribute("http.route", route)
                span.set_attribute("http.response.status_code", status)
                if identity is not None:
                    span.set_attribute("keepthread.key", identity.key_id)
                    span.set_attribute("keepthread.tenant", identity.tenant)
                if status >= _FAILED:
                    span.fail(str(status))


def _parent(scope: "Scope") -> RemoteParent | None:
    """Return the span that a client's header names; one that is sent twice names none."""
    found = [value for name, value in scope["headers"] if name.lower() == b"traceparent"]
    form = _PARENT.fullmatch(found[0]) if len(found) == 1 else None
    if form is None:
        return None
    parent = RemoteParent(*(int(part, 16) for part in form.groups()))
    return parent if parent.trace and parent.span else None


def expose(host: str, port: int, registry: CollectorRegistry) -> Any:
    """Serve a registry to Prometheus from a thread; return what stops it."""
    server, _ = start_http_server(port, host, registry)
    LOG.info("metrics", extra={"fields": {"host": host, "port": server.server_port}})
    return server


def sum_of_workers(folder: str) -> CollectorRegistry:
    """Return a registry that adds up what the workers wrote into a folder."""
    registry = CollectorRegistry()
    MultiProcessCollector(registry, path=folder)
    return registry
