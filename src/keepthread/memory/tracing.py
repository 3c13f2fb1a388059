"""Tracing: spans of append, context, compact and tool, with sizes and ids, never with text.

The names are those of OpenTelemetry's conventions for generative AI, where an append is
`create_memory`, a context `search_memory`, a compaction `upsert_memory` and a tool `execute_tool`.
"""

from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from keepthread.errors import Unavailable
from keepthread.protocols import OpenSpan, Tracer

Operation: TypeAlias = Literal["create_memory", "search_memory", "upsert_memory", "execute_tool"]
Size: TypeAlias = str | bool | int | float

RECORDS: Final = "gen_ai.memory.record.count"
TOOL_NAME: Final = "gen_ai.tool.name"
_OPERATION: Final = "gen_ai.operation.name"
_SESSION: Final = "gen_ai.conversation.id"
_ERROR: Final = "error.type"


def opentelemetry(name: str = "keepthread") -> Tracer:
    """Return a tracer of the OpenTelemetry that is installed (extra `otel`) and set up."""
    tracer: Tracer = _api().get_tracer(name)
    return tracer


def server_tracer() -> Any:
    """Return a tracer for requests, or None unless OpenTelemetry is installed and set up."""
    try:
        api = _api()
    except Unavailable:
        return None
    is_set_up = not isinstance(api.get_tracer_provider(), api.ProxyTracerProvider)
    return api.get_tracer("keepthread.http") if is_set_up else None


class RemoteParent(NamedTuple):
    """A span of another program, from the header `traceparent`."""

    trace: int
    span: int
    flags: int


class ServerSpan:
    """The span of a request."""

    def __init__(self, span: Any, failed: Any) -> None:
        """Wrap an open span."""
        self._span = span
        self._failed = failed
        self.set_attribute: Final = span.set_attribute
        self.update_name: Final = span.update_name

    def fail(self, kind: str) -> None:
        """Note that the server failed at the request."""
        self._span.set_attribute(_ERROR, kind)
        self._span.set_status(self._failed)


@contextmanager
def open_server_span(
    tracer: Any, name: str, attributes: Mapping[str, Size], parent: RemoteParent | None
) -> Generator[ServerSpan]:
    """Open the span of a request, which continues the client's trace if there is one."""
    api = _api()
    context = None
    if parent is not None:
        flags = api.TraceFlags(parent.flags)
        remote = api.SpanContext(parent.trace, parent.span, is_remote=True, trace_flags=flags)
        context = api.set_span_in_context(api.NonRecordingSpan(remote))
    with tracer.start_as_current_span(
        name,
        context=context,
        kind=api.SpanKind.SERVER,
        attributes=attributes,
        record_exception=False,
        set_status_on_exception=False,
    ) as span:
        yield ServerSpan(span, api.StatusCode.ERROR)


class Spans:
    """Opens spans; does nothing without a tracer."""

    def __init__(self, tracer: Tracer | None = None) -> None:
        """Take a tracer, if there is one."""
        self.tracer = tracer

    def open(
        self, operation: Operation, session: str, given: Mapping[str, Size] | None = None
    ) -> AbstractContextManager[OpenSpan]:
        """Return the span of one operation on a session, named by its id."""
        if self.tracer is None:
            return _NOTHING
        attributes = {_OPERATION: operation, _SESSION: session, **(given or {})}
        tool = attributes.get(TOOL_NAME)
        return _span(self.tracer, f"{operation} {tool}" if tool else operation, attributes)


@contextmanager
def _span(tracer: Tracer, name: str, attributes: Mapping[str, Size]) -> Generator[OpenSpan]:
    # Neither may be left to the tracer: an error's text can quote a message.
    with tracer.start_as_current_span(
        name, attributes=attributes, record_exception=False, set_status_on_exception=False
    ) as span:
        try:
            yield span
        except BaseException as error:
            span.set_attribute(_ERROR, type(error).__qualname__)
            with suppress(Unavailable):
                span.set_status(_api().StatusCode.ERROR)
            raise


class _Untraced:
    """A span that records nothing."""

    def set_attribute(self, key: str, value: Size) -> None:
        """Do nothing."""

    def set_status(self, status: Any) -> None:
        """Do nothing."""


_NOTHING: Final[AbstractContextManager[OpenSpan]] = nullcontext(_Untraced())


def _api() -> Any:
    try:
        from opentelemetry import trace  # noqa: PLC0415 - an optional driver
    except ImportError:
        raise Unavailable("tracing needs OpenTelemetry: pip install 'keepthread[otel]'") from None
    return trace
