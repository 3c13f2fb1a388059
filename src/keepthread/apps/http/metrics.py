"""Metrics for Prometheus, on a port of their own: requests and their times, by route.

Labels are routes as the code writes them, never paths: an id in a label would be a leak, and a
series for each. Workers write to files of one folder, and the process that started them adds up.
"""

from typing import TYPE_CHECKING, Any, Final

from prometheus_client import CollectorRegistry, Counter, Histogram, start_http_server
from prometheus_client.multiprocess import MultiProcessCollector

from keepthread.apps.http.access import LOG, route_of

if TYPE_CHECKING:
    from starlette.types import Scope

FOLDER_VARIABLE: Final = "PROMETHEUS_MULTIPROC_DIR"
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_SECONDS: Final = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class Metrics:
    """Counts the requests of one worker."""

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

    def count(self, scope: "Scope", status: int, seconds: float) -> None:
        """Count one request."""
        method = scope["method"] if scope["method"] in _METHODS else "other"
        route = route_of(scope)
        self._requests.labels(method, route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)


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
