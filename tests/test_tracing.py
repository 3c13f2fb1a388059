"""Spans, as OpenTelemetry's own SDK sees them."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

import keepthread
from keepthread import Compaction, Hybrid, Memory, Message, OwnerMemory, View, sync
from keepthread.apps.http.app import create_app
from keepthread.errors import BudgetTooSmall
from keepthread.memory.tracing import opentelemetry, server_tracer
from keepthread.testing.contract import Letters
from tests.http_world import HttpWorld

SECRET = "swordfish"


class Traced:
    """A tracer, and the spans it was given."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = self.provider.get_tracer("test")

    def spans(self, name: str = "") -> list[ReadableSpan]:
        spans = self.exporter.get_finished_spans()
        return [span for span in spans if not name or span.name == name]

    def one(self, name: str) -> dict[str, Any]:
        (span,) = self.spans(name)
        return dict(span.attributes or {})


async def test_append_context_and_tool_are_spans_with_the_names_of_the_convention() -> None:
    traced = Traced()
    async with Memory.open("ram://", counter=Letters(), tracer=traced.tracer) as memory:
        session = await memory.session("s")
        await session.append(Message(role="user", content="hello"), Message(role="assistant"))
        context = await session.context("planner")
    assert traced.one("create_memory") == {
        "gen_ai.operation.name": "create_memory",
        "gen_ai.conversation.id": "s",
        "gen_ai.memory.record.count": 2,
        "keepthread.tokens": 5,
    }
    assert traced.one("search_memory") == {
        "gen_ai.operation.name": "search_memory",
        "gen_ai.conversation.id": "s",
        "gen_ai.memory.record.count": 2,
        "keepthread.view": "planner",
        "keepthread.budget": 1000,
        "keepthread.tokens": context.tokens,
    }


async def test_a_tool_says_whether_its_result_was_remembered() -> None:
    traced = Traced()
    async with Memory.open("ram://", counter=Letters(), tracer=traced.tracer) as memory:
        session = await memory.session("s")
        async with session.turn("look") as turn:
            for cache_turns in (0, 2, 2):
                await turn.tool("look", {"at": "x"}, lambda at: at, cache_turns=cache_turns)
    spans = traced.spans("execute_tool look")
    assert [(span.attributes or {})["keepthread.hit"] for span in spans] == [False, False, True]
    attributes = dict(spans[0].attributes or {})
    assert attributes["gen_ai.operation.name"] == "execute_tool"
    assert attributes["gen_ai.tool.name"] == "look"
    inside = [s for s in traced.spans("create_memory") if s.parent]
    assert [s.parent.span_id for s in inside if s.parent] == [
        span.context.span_id for span in spans[:2] if span.context
    ]


async def test_each_compact_is_a_span() -> None:
    traced = Traced()
    compaction = Compaction(turns=4, batch_size=2)
    views = {"chat": View(2000, Hybrid())}
    async with Memory.open(
        "ram://", counter=Letters(), views=views, compaction=compaction, tracer=traced.tracer
    ) as memory:
        session = await memory.session("s")
        for n in range(9):
            async with session.turn(f"question {n}") as turn:
                await turn.finish(f"answer {n}")
        await session.compact()
        assert (await session.status()).summary_bytes
    spans = traced.spans("upsert_memory")
    assert [dict(span.attributes or {}) for span in spans] == [
        {
            "gen_ai.operation.name": "upsert_memory",
            "gen_ai.conversation.id": "s",
            "gen_ai.memory.record.count": 1,
            "keepthread.messages": 4,
        }
    ] * len(spans)
    assert len(spans) == 3


async def test_an_error_is_named_and_never_quoted() -> None:
    traced = Traced()

    def fail(**_: object) -> str:
        raise RuntimeError(f"no {SECRET} here")

    async with Memory.open("ram://", counter=Letters(), tracer=traced.tracer) as memory:
        session = await memory.session("s", system_prompt=SECRET)
        async with session.turn(f"look for {SECRET}") as turn:
            with pytest.raises(RuntimeError):
                await turn.tool("look", {"for": SECRET}, fail)
            with pytest.raises(BudgetTooSmall):
                await turn.context(budget=3)
            await turn.finish(SECRET)
    (tool,) = traced.spans("execute_tool look")
    assert (tool.attributes or {})["error.type"] == "RuntimeError"
    (context,) = traced.spans("search_memory")
    assert (context.attributes or {})["error.type"] == "BudgetTooSmall"
    assert tool.status.status_code is context.status.status_code is StatusCode.ERROR
    for span in traced.spans():
        assert SECRET not in span.to_json()


async def test_a_fork_and_a_tenant_are_traced_under_their_own_ids() -> None:
    traced = Traced()
    async with Memory.open("ram://", counter=Letters(), tracer=traced.tracer) as memory:
        session = await memory.session("s")
        await (await session.fork(id="copy")).context()
        await (await memory.tenant("other").session("theirs")).context()
    ids = [(s.attributes or {})["gen_ai.conversation.id"] for s in traced.spans("search_memory")]
    assert ids == ["copy", "theirs"]


def test_the_blocking_surface_is_traced_too_inside_the_span_of_its_caller() -> None:
    traced = Traced()
    with sync.Memory.open("ram://", counter=Letters(), tracer=traced.tracer) as memory:
        session = memory.session("s")
        with traced.tracer.start_as_current_span("outer") as outer:
            session.context()
    (span,) = traced.spans("search_memory")
    assert span.parent
    assert span.parent.span_id == outer.get_span_context().span_id


async def test_the_installed_opentelemetry_gives_a_tracer() -> None:
    async with Memory.open("ram://", counter=Letters(), tracer=opentelemetry()) as memory:
        session = await memory.session("s")
        await session.context()  # no provider is set up: it does nothing
        with pytest.raises(BudgetTooSmall):
            await session.context(budget=3)


def test_without_the_extra_it_says_what_to_install() -> None:
    source = str(Path(keepthread.__file__).parents[1])
    code = (
        f"import sys; sys.path.insert(0, {source!r})\n"
        "from keepthread.memory.tracing import opentelemetry\n"
        "opentelemetry()\n"
    )
    command = [sys.executable, "-I", "-S", "-c", code]  # no installed package is seen
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "tracing needs OpenTelemetry: pip install 'keepthread[otel]'" in result.stderr


# --- requests of the HTTP server ---

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


async def test_a_request_is_a_span_of_the_clients_trace_without_text() -> None:
    traced = Traced()
    async with Memory.open("ram://", counter=Letters(), tracer=traced.tracer) as memory:
        tables = memory.store.server_tables()
        world = HttpWorld(memory, tables, create_app(memory, tables, tracer=traced.tracer))
        key = await world.key("ann", frozenset({"read", "write"}))
        client = world.client(key, traceparent=f"00-{TRACE}-{PARENT}-01")
        await client.put(f"/sessions/{SECRET}", json={"title": SECRET})
        message = {"role": "user", "content": SECRET}
        await client.post(f"/sessions/{SECRET}/messages", json={"messages": [message]})
        await client.get(f"/sessions?title={SECRET}&limit=0")
        await world.client("kt_wrong", traceparent="00-zz-1-01").get("/sessions")
        await client.aclose()
    put, post, invalid, denied = (s for s in traced.spans() if s.kind is SpanKind.SERVER)
    assert put.name == "PUT /v1/sessions/{session:id}"
    assert dict(put.attributes or {}) == {
        "http.request.method": "PUT",
        "url.scheme": "http",
        "http.route": "/v1/sessions/{session:id}",
        "http.response.status_code": 201,
        "keepthread.key": key.split("_")[1],
        "keepthread.tenant": "default",
    }
    for span in (put, post, invalid):
        assert span.context is not None
        assert span.parent is not None
        assert f"{span.context.trace_id:032x}" == TRACE
        assert (f"{span.parent.span_id:016x}", span.parent.is_remote) == (PARENT, True)
    (append,) = traced.spans("create_memory")
    assert append.parent is not None
    assert post.context is not None
    assert append.parent.span_id == post.context.span_id
    statuses = [(s.attributes or {})["http.response.status_code"] for s in (invalid, denied)]
    assert (statuses, denied.parent) == ([422, 401], None)
    assert "keepthread.key" not in (denied.attributes or {})
    server = [s.to_json() for s in (put, post, invalid, denied)]
    assert SECRET not in "".join(server)
    assert key.split("_", 2)[2] not in "".join(server)


async def test_a_request_that_fails_is_a_span_with_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise RuntimeError(SECRET)

    traced = Traced()
    async with Memory.open("ram://", counter=Letters()) as memory:
        tables = memory.store.server_tables()
        world = HttpWorld(memory, tables, create_app(memory, tables, tracer=traced.tracer))
        client = await world.of("ann")
        monkeypatch.setattr(OwnerMemory, "list_sessions", fail)
        assert (await client.get("/sessions")).status_code == 500
        await client.aclose()
    (span,) = traced.spans()
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, None)
    assert (span.attributes or {})["error.type"] == "500"
    assert (SECRET in span.to_json(), span.events) == (False, ())


def test_requests_are_traced_only_if_tracing_is_set_up() -> None:
    assert server_tracer() is None
