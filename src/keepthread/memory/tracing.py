"""Tracing: spans of append, context, compact and tool, with sizes and ids, never with text.

The names are those of OpenTelemetry's conventions for generative AI, where an append is
`create_memory`, a context `search_memory`, a compaction `upsert_memory` and a tool `execute_tool`.
"""

from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any, Final, Literal, TypeAlias

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
