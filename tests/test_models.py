"""Both adapters over a real wire: their SDKs ask a server on this machine, and keep one promise."""

import asyncio
import copy
import gzip
import json
import logging
import subprocess
import sys
import threading
import traceback
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, asynccontextmanager, suppress
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import httpx2
import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepthread import Memory, Message
from keepthread.errors import (
    InvalidInput,
    ModelBusy,
    ModelCut,
    ModelDenied,
    ModelError,
    ModelRefused,
    ModelUnavailable,
)
from keepthread.models import AnthropicModel, OpenAIModel
from keepthread.models.anthropic import MessageStreamParser
from keepthread.models.base import _parse
from keepthread.models.failures import Endpoint, MalformedAnswer, failure_of
from keepthread.models.limits import MAX_TEXT
from keepthread.models.openai import ChatStreamParser
from keepthread.models.request import Question, TextBuffer, conversation
from keepthread.testing.server import Gate, Line, Say, ScriptedServer
from keepthread.types import Native, Reply, Tool, ToolCall, Usage
from tests.seeds import examples

KEY = "sk-test-0123456789abcdef"
Model: TypeAlias = OpenAIModel | AnthropicModel
ASKED = [Message(role="user", content="What is the weather in Jakarta?")]
LATER = [
    *ASKED,
    Message(role="assistant", content="Sunny."),
    Message(role="user", content="Tokyo?"),
]
WEATHER = Tool("weather.now", "Tell the weather.", {"properties": {"city": {"type": "string"}}})
PLACES = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 80}},
    "required": ["city"],
    "additionalProperties": False,
}


class Wired(NamedTuple):
    """A model, the server behind it, and how long it paused before it asked again."""

    model: Any
    server: ScriptedServer
    paused: list[float]


class Bench:
    """Starts servers, and models that ask them."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.lines: list[Wired] = []

    def connect(self, *script: Line, key: str | None = KEY, **settings: Any) -> Wired:
        server = ScriptedServer(script, key=key).__enter__()
        paused: list[float] = []

        async def pause(seconds: float) -> None:
            paused.append(seconds)

        made = OpenAIModel if self.kind == "openai" else AnthropicModel
        url = getattr(server, self.kind)
        settings = {"key": key, "base_url": url, "timeout": 20, "sleep": pause, **settings}
        line = Wired(made("scripted-1", **settings), server, paused)
        self.lines.append(line)
        return line


@pytest.fixture(params=["openai", "anthropic"])
async def bench(request: pytest.FixtureRequest) -> AsyncIterator[Bench]:
    bench = Bench(request.param)
    yield bench
    for line in bench.lines:
        await line.model.close()
        line.server.__exit__()


async def heard(model: Model, messages: Any = ASKED, **asked: Any) -> tuple[list[str], Reply]:
    """Return the pieces of an answer, and the whole of it."""
    got: list[Any] = [piece async for piece in model.stream(messages, **asked)]
    return got[:-1], got[-1]


async def gathered(model: Model, got: list[Any]) -> None:
    """Gather what arrives, whatever happens then."""
    async for piece in model.stream(ASKED):
        got += [piece]


# --- answers ---


async def test_an_answer_comes_in_pieces_and_at_the_end_as_a_whole(bench: Bench) -> None:
    said = Say("It is sunny, 32 °C.", usage=Usage(120, 8, 100))
    model, server, _ = bench.connect(said, said)
    pieces, reply = await heard(model, system="Be brief.")
    assert pieces == ["It", " is", " sunny,", " 32", " °C."]
    assert reply == Reply("It is sunny, 32 °C.", [], Usage(120, 8, 100))
    assert await model.complete(ASKED, system="Be brief.") == reply
    assert server.requests[0].body == server.requests[1].body
    assert server.requests[0].system == "Be brief."
    assert server.requests[0].text == ASKED[0].content


@pytest.mark.parametrize("finish", ["length", "content_filter"])
async def test_an_answer_that_was_broken_off_is_marked_as_cut(bench: Bench, finish: str) -> None:
    model, _, _ = bench.connect(Say("It is", finish=finish))
    reply = await model.complete(ASKED, max_tokens=2)
    assert reply.content == "It is"
    assert reply.truncated


async def test_a_tool_is_called_and_its_result_goes_back(bench: Bench) -> None:
    calls = [
        ToolCall(id="call_1", name="weather_now", arguments='{"city": "Jakarta"}'),
        ToolCall(id="call_2", name="weather_now", arguments=""),
    ]
    model, server, _ = bench.connect(Say("Let me look.", tool_calls=calls), "Sunny.", "Rain.")
    async with Memory.open("ram://") as memory:
        session = await memory.session("weather")
        async with session.turn(ASKED[0].content) as turn:
            context = await turn.context()
            pieces, reply = await heard(model, context.messages, tools=[WEATHER])
            assert "".join(pieces) == reply.content == "Let me look."
            assert [call.name for call in reply.tool_calls] == ["weather.now", "weather.now"]
            assert [call.arguments for call in reply.tool_calls] == ['{"city": "Jakarta"}', "{}"]
            said = Message(role="assistant", content=reply.content, tool_calls=reply.tool_calls)
            await turn.append(said)
            for call in reply.tool_calls:
                await turn.tool(call.name, {}, lambda: "32 °C", call_id=call.id)
            context = await turn.context()
            await turn.finish((await model.complete(context.messages, tools=[WEATHER])).content)
        context = await session.context()
    # Old calls are told of even where no tool may be called any more.
    assert (await model.complete([*context.messages, *ASKED])).content == "Rain."
    assert not server.refused
    assert "32 °C" in server.requests[1].context
    assert "weather_now" in str(server.requests[1].body["tools"])


async def test_an_answer_obeys_a_schema(bench: Bench) -> None:
    model, server, _ = bench.connect('{"city": "Jakarta"}', '{"city": "Jakarta"}')
    reply = await model.complete(ASKED, schema=PLACES)
    assert reply.content == '{"city": "Jakarta"}'
    loose = {"type": "object", "properties": {"city": {"type": "string"}}}
    await model.complete(ASKED, schema=loose)
    assert not server.refused
    strict, lax = (request.body for request in server.requests)
    if bench.kind == "openai":
        assert strict["response_format"]["json_schema"]["strict"] is True
        assert lax["response_format"]["json_schema"]["strict"] is False
    else:
        assert strict["output_config"]["format"]["schema"]["required"] == ["city"]
        assert lax["output_config"]["format"]["schema"]["additionalProperties"] is False


async def test_the_limit_of_a_question_goes_before_that_of_the_model(bench: Bench) -> None:
    model, server, _ = bench.connect("a", "b", max_tokens=300)
    await model.complete(ASKED)
    await model.complete(ASKED, max_tokens=20)
    assert [request.body["max_tokens"] for request in server.requests] == [300, 20]


@pytest.fixture(scope="module")
def echo() -> Any:
    """Give a runner, models of both kinds and what they are told to say, for many examples."""
    told = [Say()]
    with (
        ScriptedServer(otherwise=lambda _: told[0], key=KEY) as server,
        asyncio.Runner() as runner,
    ):
        models = [
            OpenAIModel("scripted-1", key=KEY, base_url=server.openai),
            AnthropicModel("scripted-1", key=KEY, base_url=server.anthropic),
        ]
        yield runner, models, told
        for model in models:
            runner.run(model.close())


TEXTS = st.text(st.characters(codec=None), max_size=60) | st.text(" \n\r\t\0\u2028\ud83d\ude00é")


@given(TEXTS.map(lambda text: "".join(text).encode("utf-16", "surrogatepass")), st.integers(1, 20))
@settings(max_examples=examples(25))
def test_any_text_in_any_pieces_arrives_exactly(echo: Any, units: bytes, pieces: int) -> None:
    runner, models, told = echo
    text = units.decode("utf-16", "surrogatepass")  # JSON makes one character of a pair
    told[0] = Say(text, pieces=pieces)
    for model in models:
        said, reply = runner.run(heard(model))
        assert "".join(said) == reply.content == text
        assert all(said)


@given(st.text(st.characters(codec=None)), st.lists(st.integers(0, 100)))
def test_a_character_that_is_cut_in_half_is_made_whole(text: str, cuts: list[int]) -> None:
    units = text.encode("utf-16-le", "surrogatepass")
    text = units.decode("utf-16-le", "surrogatepass")
    ends = sorted({min(2 * cut, len(units)) for cut in cuts} | {0, len(units)})
    halves = [units[a:b].decode("utf-16-le", "surrogatepass") for a, b in pairwise(ends)]
    pieces = TextBuffer()
    assert "".join([*map(pieces.add, halves), pieces.rest()]) == text == pieces.text


# --- failures ---


async def test_a_busy_server_is_asked_again_when_it_says_so(bench: Bench) -> None:
    busy = Say(status=429, headers={"Retry-After": "7"})
    model, server, paused = bench.connect(busy, Say(status=500), "Sunny.")
    assert (await model.complete(ASKED)).content == "Sunny."
    assert len(server.requests) == 3
    assert paused[0] == 7
    assert 0.5 <= paused[1] <= 1


@pytest.mark.parametrize("after", ["30", "Fri, 01 Jan 2100 00:00:00 GMT"])
async def test_who_must_wait_too_long_is_told_at_once(bench: Bench, after: str) -> None:
    model, server, paused = bench.connect(Say(status=429, headers={"Retry-After": after}))
    with pytest.raises(ModelBusy, match=r"wait \d+ seconds"):
        await model.complete(ASKED)
    assert not paused
    assert len(server.requests) == 1


@pytest.mark.parametrize("after", ["inf", "1e999", "nan", "-inf", "9" * 400, "soon", ""])
@pytest.mark.parametrize("header", ["retry-after-ms", "retry-after"])
async def test_no_time_to_wait_that_a_server_names_breaks_the_model(
    bench: Bench, header: str, after: str
) -> None:
    busy = Say(status=429, headers={header: after})
    model, _, paused = bench.connect(busy, busy, busy)
    with pytest.raises(ModelBusy, match="wait"):
        await model.complete(ASKED)
    assert all(0 <= pause <= 20 for pause in paused)


@pytest.mark.parametrize(
    ("status", "kind", "asked"),
    [
        (400, ModelRefused, 1),
        (401, ModelDenied, 1),
        (402, ModelDenied, 1),
        (403, ModelDenied, 1),
        (404, ModelRefused, 1),
        (408, ModelUnavailable, 3),
        (409, ModelUnavailable, 3),
        (413, ModelRefused, 1),
        (422, ModelRefused, 1),
        (429, ModelBusy, 3),
        (500, ModelUnavailable, 3),
        (504, ModelUnavailable, 3),
        (529, ModelUnavailable, 3),
    ],
)
async def test_a_status_says_what_to_do(
    bench: Bench, status: int, kind: type[ModelError], asked: int
) -> None:
    said = Say(status=status, message="the provider's own words")
    model, server, paused = bench.connect(*[said] * asked)
    with pytest.raises(ModelError) as raised:
        await model.complete(ASKED)
    assert type(raised.value) is kind
    text = str(raised.value)
    assert str(status) in text
    assert "the provider's own words" in text
    assert server.anthropic.removeprefix("http://") in text
    assert ("after 3 attempts" in text) == (asked == 3)
    assert (len(server.requests), len(paused)) == (asked, asked - 1)
    if status == 404:
        assert "scripted-1" in text


async def test_what_a_provider_says_is_shortened(bench: Bench) -> None:
    model, _, _ = bench.connect(Say(status=400, message="no \n" * 2000))
    with pytest.raises(ModelRefused) as raised:
        await model.complete(ASKED)
    assert len(str(raised.value)) < 450
    assert "\n" not in str(raised.value)


async def test_a_cut_stream_gives_what_had_arrived(bench: Bench) -> None:
    model, server, _ = bench.connect(
        Say("It is sunny today.", cut_after=2),
        Say("It is sunny today.", unfinished=True),
        Say("It is sunny today.", status=529, message="Overloaded", fails_after=3),
    )
    for said in ("It is", "It is sunny today.", "It is sunny"):
        got: list[Any] = []
        with pytest.raises(ModelCut) as raised:
            await gathered(model, got)
        assert raised.value.partial == "".join(got) == said
    assert len(server.requests) == 3


async def test_what_breaks_before_a_word_was_said_is_asked_again(bench: Bench) -> None:
    model, server, paused = bench.connect(
        Say("Sunny.", cut_after=0),
        Say("Sunny.", status=529, message="Overloaded", fails_after=0),
        "Sunny.",
        Say(unfinished=True),
        Say(status=401, message="no more", fails_after=0),
    )
    assert (await heard(model))[0] == ["Sunny."]
    with pytest.raises(ModelDenied):
        await model.complete(ASKED)
    assert len(server.requests) == 5
    assert len(paused) == 3


async def test_a_server_that_is_not_there_is_unavailable(bench: Bench) -> None:
    model, server, paused = bench.connect(retries=1)
    server.__exit__()
    bench.lines[-1] = bench.connect()
    with pytest.raises(
        ModelUnavailable, match=r"cannot be reached.*after 2 attempts: check that it"
    ):
        await model.complete(ASKED)
    assert len(paused) == 1
    await model.close()


async def test_a_server_without_a_sign_of_life_is_given_up(bench: Bench) -> None:
    model, _, paused = bench.connect(
        Say("Sunny.", first_after=30), Say("It is sunny.", hold=Gate()), timeout=3
    )
    with pytest.raises(ModelUnavailable, match=r"sent no data for 3 seconds"):
        await model.complete(ASKED)
    with pytest.raises(ModelCut, match=r"sent no data for 3 seconds") as raised:
        await model.complete(ASKED)
    assert raised.value.partial == "It"
    assert not paused


@pytest.mark.serial
async def test_one_deadline_holds_for_all_tries(bench: Bench) -> None:
    slow = Say(status=500, first_after=0.2)
    model, server, _ = bench.connect(*[slow] * 50, timeout=3, retries=50, sleep=asyncio.sleep)
    clock = asyncio.get_running_loop().time
    began = clock()
    with pytest.raises(ModelUnavailable):
        await model.complete(ASKED)
    assert clock() - began < 10
    assert 1 < len(server.requests) < 16


async def test_leaving_an_answer_closes_the_connection(bench: Bench) -> None:
    gates = [Gate(), Gate()]
    model, server, _ = bench.connect(*[Say("It is sunny.", hold=gate) for gate in gates])
    async with aclosing(model.stream(ASKED)) as pieces:
        assert await anext(pieces) == "It"
    await asyncio.to_thread(server.wait_for, dropped=1)
    asking = asyncio.create_task(model.complete(ASKED))
    await asyncio.to_thread(gates[1].reached.wait)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await asyncio.to_thread(server.wait_for, dropped=2)


async def test_no_redirection_is_followed(bench: Bench) -> None:
    elsewhere = bench.connect("Here I am.").server
    there = Say(status=307, headers={"Location": f"{elsewhere.openai}/chat/completions"})
    model, _, _ = bench.connect(there)
    with pytest.raises(ModelRefused, match="redirects elsewhere"):
        await model.complete(ASKED)
    assert not elsewhere.requests
    assert not elsewhere.refused


def answer(status: int, body: str, kind: str = "application/json", **headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} Told", f"Content-Type: {kind}", "Connection: close"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", body]).encode()


def events(*data: str) -> bytes:
    """Return a stream that both wires take for one."""
    lines = (f"event: message_start\ndata: {each}\n\n" for each in data)
    return answer(200, "".join(lines), "text/event-stream")


@pytest.mark.parametrize(
    ("given", "kind", "told"),
    [
        (answer(500, "<h1>Bad gateway</h1>", "text/html"), ModelUnavailable, "Bad gateway"),
        (answer(422, '{"detail": [{"loc": ["body"]}]}'), ModelRefused, "'loc': ['body']"),
        (answer(404, '{"error": "no such model"}'), ModelRefused, "no such model"),
        (answer(400, '{"message": "too long"}'), ModelRefused, "too long"),
        (answer(418, "7"), ModelRefused, "change the request"),
        (answer(429, "{}", Retry_After_Ms="90000"), ModelBusy, "wait 90 seconds"),
        (answer(429, "{}", Retry_After="soon"), ModelBusy, "wait a little"),
        (answer(503, "{}", X_Should_Retry="false"), ModelUnavailable, "(503): wait"),
        (answer(200, "<html>Welcome</html>", "text/html"), ModelUnavailable, "check base_url"),
        (events("{broken"), ModelUnavailable, "is not a valid answer"),
        (events("[1, 2]"), ModelUnavailable, "is not a valid answer"),
        (
            events('{"type": "message_start", "choices": 5}'),
            ModelUnavailable,
            "is not a valid answer",
        ),
        (events("[" * 200_000 + "]" * 200_000), ModelUnavailable, "is not a valid answer"),
        (events(f'{{"usage": {"9" * 5000}}}'), ModelUnavailable, "is not a valid answer"),
        (answer(400, "[" * 200_000 + "]" * 200_000), ModelRefused, "change the request"),
        (answer(429, "{}", Retry_After="9" * 400), ModelBusy, "wait 86400 seconds"),
        (answer(429, "{}", Retry_After_Ms="inf"), ModelBusy, "wait 86400 seconds"),
    ],
    ids=lambda value: ascii(value)[:60],
)
async def test_whatever_a_server_answers_is_told_in_our_words(
    bench: Bench, given: bytes, kind: type[ModelError], told: str
) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(given)
        await writer.drain()
        writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with listening:
        port = listening.sockets[0].getsockname()[1]
        model = bench.connect(base_url=f"http://127.0.0.1:{port}").model
        with pytest.raises(ModelError) as raised:
            await model.complete(ASKED)
    assert type(raised.value) is kind
    assert told in str(raised.value)


PINGS = b": ping\n\n"
LONG_LINE = b"x" * (1 << 20)
ENDLESS = {
    "openai": (b"", {"choices": [{"index": 0, "delta": {"content": "word " * 2000}}]}),
    "anthropic": (
        b"event: content_block_start\ndata: "
        + json.dumps(
            {
                "type": "content_block_start",
                "index": 0,
                "content_block": {"type": "text", "text": ""},
            }
        ).encode()
        + b"\n\n",
        {
            "type": "content_block_delta",
            "index": 0,
            "delta": {"type": "text_delta", "text": "word " * 2000},
        },
    ),
}
"""What begins a stream of each wire, and an event that says ten thousand characters."""


@asynccontextmanager
async def endless(
    first: bytes, more: bytes, pause: float = 0.0, **headers: str
) -> AsyncIterator[str]:
    """Serve an answer that never ends, and yield the server's address."""

    serving: list[asyncio.Task[None]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer(200, "", "text/event-stream", **headers) + first)
        while True:
            writer.write(more)
            await writer.drain()
            await asyncio.sleep(pause)

    async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(serve(reader, writer))
        serving.append(task)
        await asyncio.wait([task])
        writer.transport.abort()

    listening = await asyncio.start_server(served, "127.0.0.1", 0)
    async with listening:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)


def spoken_without_end(bench: Bench) -> tuple[bytes, bytes]:
    first, event = ENDLESS[bench.kind]
    return first, f"event: {event.get('type', 'x')}\ndata: {json.dumps(event)}\n\n".encode()


async def test_comments_alone_do_not_hold_an_answer_open(bench: Bench) -> None:
    async with endless(b"", PINGS, 0.02) as url:
        model = bench.connect(base_url=url, timeout=0.5).model
        with pytest.raises(ModelUnavailable, match=r"sent no data for 0\.5 seconds"):
            await model.complete(ASKED)


async def test_an_answer_that_grows_without_end_is_cut(bench: Bench) -> None:
    async with endless(*spoken_without_end(bench)) as url:
        model = bench.connect(base_url=url).model
        with pytest.raises(ModelCut, match=r"longer than 1 MB") as raised:
            await model.complete(ASKED)
    assert len(raised.value.partial) == MAX_TEXT


async def test_a_whole_answer_has_a_deadline_however_steadily_it_arrives(bench: Bench) -> None:
    async with endless(*spoken_without_end(bench), 0.05) as url:
        model = bench.connect(base_url=url, max_seconds=0.4).model
        with pytest.raises(ModelCut, match=r"took more than 0\.4 seconds") as raised:
            await model.complete(ASKED)
    assert raised.value.partial.startswith("word ")


async def test_a_line_without_end_is_not_gathered(bench: Bench) -> None:
    async with endless(b"data: ", LONG_LINE) as url:
        model = bench.connect(base_url=url).model
        with pytest.raises(ModelUnavailable, match=r"more than 8 MB"):
            await model.complete(ASKED)


async def test_a_packed_answer_is_bounded_as_it_is_unpacked(bench: Bench) -> None:
    packed = gzip.compress(b"data: " + b"x" * (20 << 20))
    async with endless(packed, b"", 1, Content_Encoding="gzip") as url:
        model = bench.connect(base_url=url).model
        with pytest.raises(ModelUnavailable, match=r"more than 8 MB"):
            await model.complete(ASKED)


async def test_a_call_nested_too_deeply_is_an_answer_that_is_none() -> None:
    for start in (
        {"id": "c", "type": "tool_use", "name": "f", "input": nested(100_000)},
        {"id": "c", "type": "tool_use", "name": "f", "input": {}, "extra": nested(100_000)},
    ):
        model = AnthropicModel("scripted-1", base_url="http://localhost:1")
        hearing = model._parser({})
        hearing.take({"type": "content_block_start", "index": 0, "content_block": start})
        thought = {"type": "thinking", "thinking": ""}
        hearing.take({"type": "content_block_start", "index": 1, "content_block": thought})
        with suppress(ModelUnavailable):
            assert model._whole(hearing).native is None


def nested(depth: int) -> Any:
    value: Any = {}
    for _ in range(depth):
        value = {"a": value}
    return value


async def test_an_error_inside_a_stream_may_name_its_status_in_many_ways() -> None:
    asked = Endpoint("scripted-1", "localhost", 1.0, None)
    for body, kind in (
        ({"code": 502, "message": "upstream"}, ModelUnavailable),
        ({"code": "429"}, ModelBusy),
        ({"code": "insufficient_quota", "type": "x"}, ModelBusy),
        ({"type": "error", "error": {"type": "permission_error"}}, ModelDenied),
        ("what?", ModelUnavailable),
    ):
        error = openai.APIError("", httpx2.Request("POST", "http://localhost"), body=body)
        assert failure_of(error, asked).kind is kind
    late = failure_of(httpx2.ConnectTimeout("too late"), asked)
    assert late.what == "localhost cannot be reached or closed the connection (too late)"


# --- keys and surroundings ---


async def test_the_key_is_in_no_error_log_or_repr(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    echoed = f"{'long ' * 57}{KEY} is not a key"
    model, server, _ = bench.connect(
        Say(status=401, message=echoed),
        Say(status=400, message=f"Bearer {KEY}"),
        Say("It is", status=500, message=KEY, fails_after=1),
        Say("It is", cut_after=1),
        Say("Sunny.", first_after=30),
        timeout=1,
    )
    told: list[str] = [repr(model), repr(model._endpoint), repr(vars(model))]
    for _ in range(5):
        with pytest.raises(ModelError) as raised:
            await model.complete(ASKED)
        told.append("".join(traceback.format_exception(raised.value)))
        assert raised.value.__context__ is None
    assert len(server.requests) == 5
    told += [record.getMessage() for record in caplog.records]
    assert len(told) > 8
    assert KEY not in "\n".join(told)
    assert KEY[:16] not in "\n".join(told)


ENVIRONMENT = {
    "OPENAI_API_KEY": "env-key",
    "OPENAI_ADMIN_KEY": "env-admin",
    "OPENAI_ORG_ID": "env-org",
    "OPENAI_PROJECT_ID": "env-project",
    "OPENAI_BASE_URL": "http://127.0.0.1:9/v1",
    "OPENAI_CUSTOM_HEADERS": "X-Env: env-header\nAuthorization: Bearer env-bearer",
    "ANTHROPIC_API_KEY": "env-key",
    "ANTHROPIC_AUTH_TOKEN": "env-token",
    "ANTHROPIC_BASE_URL": "http://127.0.0.1:9",
    "ANTHROPIC_CUSTOM_HEADERS": "X-Env: env-header\nX-Api-Key: env-custom",
    "ANTHROPIC_PROFILE": "env-profile",
    "ANTHROPIC_FEDERATION_RULE_ID": "env-rule",
    "ANTHROPIC_IDENTITY_TOKEN": "env-identity",
    "ANTHROPIC_ORGANIZATION_ID": "env-org",
}


@pytest.mark.parametrize("key", [KEY, None])
async def test_nothing_is_taken_from_the_environment(
    bench: Bench, key: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    model, server, _ = bench.connect("Sunny.", key=key)
    await model.complete(ASKED)
    headers = server.requests[0].headers
    assert not [value for value in headers.values() if "env-" in value]
    given = [headers[name] for name in ("authorization", "x-api-key") if name in headers]
    assert [value.removeprefix("Bearer ") for value in given] == ([key] if key else [])


async def test_a_provider_is_not_asked_without_a_key(bench: Bench) -> None:
    for url in (None, type(bench.connect().model).own + "/"):
        model = bench.connect(key=None, base_url=url).model
        with pytest.raises(ModelDenied, match=r"requires a key: pass key=…"):
            await model.complete(ASKED)


@pytest.mark.parametrize(
    "wrong",
    [
        {"key": "sk-1\n"},
        {"key": ""},
        {"base_url": "localhost:11434"},
        {"base_url": "https://me:secret@localhost/v1"},
        {"timeout": 0},
        {"max_seconds": 0},
        {"retries": -1},
    ],
)
def test_settings_that_cannot_work_are_refused(wrong: dict[str, Any]) -> None:
    for made in (OpenAIModel, AnthropicModel):
        with pytest.raises(InvalidInput) as raised:
            made("scripted-1", **wrong)
        assert "secret" not in str(raised.value).replace("pass secrets as key", "")


async def test_an_address_is_taken_as_people_copy_it(bench: Bench) -> None:
    model, server, _ = bench.connect(*["Sunny."] * 4)
    root = server.anthropic
    for url in (
        root,
        f"{root}/",
        f"{root}/v1/",
        f"{root}/v1{'/chat/completions' if bench.kind == 'openai' else '/messages'}",
    ):
        other = type(model)("scripted-1", key=KEY, base_url=url)
        await other.complete(ASKED)
        await other.close()
    assert not server.refused


def test_nothing_of_an_sdk_is_loaded_before_it_is_needed() -> None:
    look = (
        "import sys, keepthread, keepthread.models\n"
        "from keepthread.models import AnthropicModel, OpenAIModel\n"
        "OpenAIModel('a', key='k'), AnthropicModel('b', key='k')\n"
        "loaded = {'openai', 'anthropic', 'httpx2', 'pydantic', 'anyio'} & set(sys.modules)\n"
        "assert not loaded, loaded\n"
        "assert not hasattr(keepthread.models, 'OtherModel')\n"
    )
    subprocess.run([sys.executable, "-c", look], check=True)


def test_a_missing_sdk_is_named_by_its_extra() -> None:
    look = (
        "import asyncio, sys\n"
        "sys.modules['{0}'] = None  # as if it were not installed\n"
        "from keepthread.models import AnthropicModel, OpenAIModel\n"
        "model = {1}('a', key='k')\n"
        "try: asyncio.run(model.warm())\n"
        "except Exception as error: print(type(error).__name__, error)\n"
    )
    for package, name in (("openai", "OpenAIModel"), ("anthropic", "AnthropicModel")):
        told = subprocess.run(
            [sys.executable, "-c", look.format(package, name)],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        assert told.startswith("ModelUnavailable")
        assert f"pip install 'keepthread[{package}]'" in told


async def test_many_may_ask_at_once_and_again_after_closing(bench: Bench) -> None:
    model, server, _ = bench.connect(*["Sunny."] * 9)
    await asyncio.gather(model.warm(), *[model.complete(ASKED) for _ in range(8)])
    await model.close()
    await model.close()
    assert (await model.complete(ASKED)).content == "Sunny."
    assert len(server.requests) == 9


@pytest.mark.parametrize("made", [OpenAIModel, AnthropicModel])
def test_a_model_serves_one_event_loop_after_another(made: type[Model]) -> None:
    with ScriptedServer(["One.", "Two."], key=KEY) as server:
        url = server.openai if made is OpenAIModel else server.anthropic
        model = made("scripted-1", key=KEY, base_url=url)

        async def ask() -> str:
            said = (await model.complete(ASKED)).content
            await model.close()
            return said

        assert [asyncio.run(ask()), asyncio.run(ask())] == ["One.", "Two."]


@pytest.mark.parametrize("made", [OpenAIModel, AnthropicModel])
def test_threads_with_loops_of_their_own_may_ask_one_model_at_once(made: type[Model]) -> None:
    threads, asked = 3, 12
    with ScriptedServer(["Sunny."] * threads * asked, key=KEY) as server:
        url = server.openai if made is OpenAIModel else server.anthropic
        model = made("scripted-1", key=KEY, base_url=url)
        begin = threading.Barrier(threads, timeout=60)

        async def ask() -> list[str]:
            begin.wait()
            return [(await model.complete(ASKED)).content for _ in range(asked)]

        with ThreadPoolExecutor(threads) as pool:
            answers = [pool.submit(asyncio.run, ask()) for _ in range(threads)]
            assert [each.result() for each in answers] == [["Sunny."] * asked] * threads
        assert not model._clients._held  # each was closed with its loop
        asyncio.run(model.close())


# --- servers that differ ---


async def test_a_conversation_that_no_provider_takes_is_refused_before_it_is_sent(
    bench: Bench,
) -> None:
    model, server, _ = bench.connect()
    call = Message(role="assistant", tool_calls=[ToolCall(id="1", name="weather")])
    for messages in ([*ASKED, call], [*ASKED, call, *ASKED]):
        with pytest.raises(InvalidInput, match="'1' has no result"):
            await model.complete(messages)
    with pytest.raises(InvalidInput, match="cannot distinguish"):
        await model.complete(ASKED, tools=[Tool("a.b"), Tool("a_b")])
    assert not server.requests


async def test_a_server_that_knows_less_is_asked_for_less(bench: Bench) -> None:
    """And next time from the start."""
    told = {"openai": "stream_options", "anthropic": "cache_control"}[bench.kind]
    refusal = Say(status=400, message=f"Unknown parameter: '{told}'.")
    model, server, paused = bench.connect(refusal, "Sunny.", "Sunny.")
    for _ in range(2):
        reply = await model.complete(LATER)
        assert reply.content == "Sunny."
        assert (reply.usage is None) == (bench.kind == "openai")
    assert [told in request.body for request in server.requests] == [True, False, False]
    assert not paused


@pytest.mark.parametrize("bench", ["openai"], indirect=True)
async def test_either_name_of_the_limit_is_found(bench: Bench) -> None:
    new = Say(status=400, message="'max_tokens' is not supported. Use 'max_completion_tokens'.")
    model, server, _ = bench.connect(new, "Sunny.", "Sunny.", "Sunny.")
    for _ in range(2):
        await model.complete(ASKED, max_tokens=9)
    names = [[n for n in r.body if n.startswith("max_")] for r in server.requests]
    assert names == [["max_tokens"], ["max_completion_tokens"], ["max_completion_tokens"]]

    most = Say(status=400, message="max_tokens and max_completion_tokens must be below 5")
    stubborn, refusing, _ = bench.connect(most, most, "Sunny.")
    with pytest.raises(ModelRefused, match="must be below 5"):
        await stubborn.complete(ASKED, max_tokens=9)
    assert len(refusing.requests) == 2
    await stubborn.complete(ASKED, max_tokens=4)
    assert "max_tokens" in refusing.requests[2].body
    await model.complete(ASKED)

    own = OpenAIModel("gpt-5", key=KEY)
    request = own._request(Question(conversation(ASKED, ""), max_tokens=9))
    assert request["max_completion_tokens"] == 9


@pytest.mark.parametrize("bench", ["anthropic"], indirect=True)
async def test_only_what_may_be_asked_again_is_kept_in_the_providers_cache(bench: Bench) -> None:
    model, server, _ = bench.connect("Sunny.", "Rain.")
    await model.complete(ASKED)
    await model.complete(LATER)
    assert ["cache_control" in request.body for request in server.requests] == [False, True]


@pytest.mark.parametrize("bench", ["anthropic"], indirect=True)
async def test_thoughts_before_a_call_go_back_as_they_came(bench: Bench) -> None:
    call = ToolCall(id="call_1", name="weather_now", arguments='{"city": "Jakarta"}')
    model, server, _ = bench.connect(
        Say("Let me look.", thinking="Where is that?", tool_calls=[call]),
        Say("Sunny.", thinking="Warm."),
    )
    reply = await model.complete(ASKED, tools=[WEATHER])
    assert reply.content == "Let me look."
    said = Message(
        role="assistant",
        content=reply.content,
        tool_calls=reply.tool_calls,
        native=reply.native,
    )
    result = Message(role="tool", content="32 °C", tool_call_id="call_1")
    last = await model.complete([*ASKED, said, result], tools=[WEATHER])
    assert last == Reply("Sunny.", [], last.usage)  # nothing of a last word need go back
    thought, text, called = server.requests[1].body["messages"][1]["content"]
    assert thought["thinking"] == "Where is that?"
    assert thought["signature"]
    assert text == {"type": "text", "text": "Let me look."}
    assert called["input"] == {"city": "Jakarta"}


def chunk(finish: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def called(name: str, arguments: str, **more: Any) -> dict[str, Any]:
    return {"function": {"name": name, "arguments": arguments}, **more}


def test_strange_chunks_make_sense() -> None:
    heard = ChatStreamParser({"weather_now": "weather.now"})
    assert heard.take({"choices": []}) == ""
    assert heard.take({"choices": [{"delta": None}]}) == ""
    assert heard.take(chunk(content=[{"type": "text", "text": "Hm"}])) == "Hm"
    heard.take(chunk(tool_calls=[called("weather_now", '{"a"', id="x", index=0)]))
    heard.take(chunk(tool_calls=[called("weather_now", ": 1}", id="x", index=0)]))
    heard.take(chunk(tool_calls=[called("other", "", id="y", index=0)]))  # each with index 0
    heard.take(chunk(tool_calls=[called("third", "{}", index=1), called("fourth", "", index=2)]))
    heard.take({**chunk("stop"), "usage": {"prompt_tokens": 5, "prompt_tokens_details": None}})
    assert heard.ended
    assert heard.reply() == Reply(
        "Hm",
        [
            ToolCall(id="x", name="weather.now", arguments='{"a": 1}'),
            ToolCall(id="y", name="other", arguments="{}"),
            ToolCall(id="call_2", name="third", arguments="{}"),
            ToolCall(id="call_3", name="fourth", arguments="{}"),
        ],
        Usage(5),
    )


def test_thoughts_before_half_a_call_need_not_go_back() -> None:
    heard = MessageStreamParser()
    for event in ANTHROPIC_STREAM:
        cut = event["type"] == "content_block_delta" and "partial_json" in event["delta"]
        heard.take({**event, "delta": {**event["delta"], "partial_json": "{"}} if cut else event)
    assert [call.arguments for call in heard.reply().tool_calls] == ["{"]
    assert heard.reply().native is None


async def test_a_schema_that_an_sdk_does_not_know_is_left_to_the_provider() -> None:
    model = AnthropicModel("scripted-1", key=KEY)
    await model.warm()
    assert model._schema({"type": ["object", "null"]}) == {"type": ["object", "null"]}
    await model.close()


def test_a_refusal_is_what_was_said_and_cut() -> None:
    heard = ChatStreamParser()
    assert heard.take(chunk(refusal="I cannot.")) == "I cannot."
    heard.take(chunk("stop"))
    assert heard.reply() == Reply("I cannot.", [], truncated=True)


def test_what_other_servers_think_before_a_call_goes_back_too() -> None:
    heard = ChatStreamParser()
    heard.take(chunk(reasoning_content="Where "))
    heard.take(chunk(reasoning_content="is that?"))
    signed = called("look", "{}", id="x", extra_content={"google": {"thought_signature": "s"}})
    heard.take(chunk("tool_calls", tool_calls=[signed]))
    assert heard.reply().native == Native(
        "openai-chat",
        [
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {
                        "id": "x",
                        "type": "function",
                        "function": {"name": "look", "arguments": "{}"},
                        "extra_content": {"google": {"thought_signature": "s"}},
                    }
                ],
                "reasoning_content": "Where is that?",
            }
        ],
    )
    answered = ChatStreamParser()
    answered.take(chunk("stop", reasoning_content="Hm.", content="There."))
    assert answered.reply().native is None


# --- several calls in one answer ---


def heard_openai(*chunks: dict[str, Any]) -> Reply:
    heard = ChatStreamParser()
    for event in chunks:
        heard.take(event)
    return heard.reply()


def heard_anthropic(*blocks: tuple[int, dict[str, Any], str]) -> Reply:
    """Return an answer of blocks: the index of each, how it begins, and its arguments."""
    heard = MessageStreamParser()
    for index, block, arguments in blocks:
        heard.take({"type": "content_block_start", "index": index, "content_block": block})
        if arguments:
            delta = {"type": "input_json_delta", "partial_json": arguments}
            heard.take({"type": "content_block_delta", "index": index, "delta": delta})
    return heard.reply()


def use(id: str | None, name: str = "f") -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": name, "input": {}}


@pytest.mark.parametrize("ids", [["c", "c"], ["call_1", ""], ["", ""], ["a", "a", "", "call_2"]])
def test_calls_of_one_answer_get_ids_that_differ(ids: list[str]) -> None:
    arguments = [json.dumps({"n": n}) for n in range(len(ids))]
    parts = list(zip(ids, arguments, strict=True))
    chat = heard_openai(
        *[chunk(tool_calls=[called("f", a, id=id, index=n)]) for n, (id, a) in enumerate(parts)]
    )
    claude = heard_anthropic(*[(n, use(id), a) for n, (id, a) in enumerate(parts)])
    for reply in (chat, claude):
        got = [call.id for call in reply.tool_calls]
        assert len({*got}) == len(ids)
        assert all(got)
        for n, id in enumerate(ids):  # the first of an id keeps it
            assert id in ("", got[n]) or id in ids[:n]
        assert [call.arguments for call in reply.tool_calls] == arguments


def test_ids_that_were_made_to_differ_go_back_with_the_thoughts_too() -> None:
    same = [called("f", "{}", id="c", index=n) for n in range(2)]
    chat = heard_openai(chunk(reasoning_content="Hm"), chunk(tool_calls=same))
    thought = {"type": "thinking", "thinking": "Hm", "signature": "s"}
    claude = heard_anthropic((0, thought, ""), (1, use("c"), ""), (2, use("c"), ""))
    assert chat.native is not None
    assert claude.native is not None
    message: Any = chat.native.items[0]
    assert [call["id"] for call in message["tool_calls"]] == [c.id for c in chat.tool_calls]
    blocks: Any = claude.native.items[1:]
    assert [block["id"] for block in blocks] == [c.id for c in claude.tool_calls]


@pytest.mark.parametrize("index", [{"index": 0}, {}])
@pytest.mark.parametrize("names", ["fg", "ff"])
def test_calls_with_one_index_and_no_ids_are_not_merged(names: str, index: dict[str, int]) -> None:
    one, two = (called(n, f'{{"a":{at}}}', **index) for at, n in enumerate(names))
    for chunks in (
        [chunk(tool_calls=[one]), chunk(tool_calls=[two])],
        [chunk(tool_calls=[one, two])],
        [
            chunk(tool_calls=[called(n, "", **index)])
            if not a
            else chunk(tool_calls=[{"function": {"arguments": a}, **index}])
            for n, text in zip(names, ('{"a":0}', '{"a":1}'), strict=True)
            for a in ("", text[:3], text[3:])
        ],
    ):
        reply = heard_openai(*chunks)
        assert [(c.name, c.arguments) for c in reply.tool_calls] == [
            (names[0], '{"a":0}'),
            (names[1], '{"a":1}'),
        ]


def test_parts_of_calls_that_alternate_are_put_together_by_their_ids() -> None:
    parts = [("a", '{"n"'), ("b", '{"n"'), ("a", ":1}"), ("b", ":2}")]
    chunks = [chunk(tool_calls=[called("f", text, id=id, index=0)]) for id, text in parts]
    assert [(c.id, c.arguments) for c in heard_openai(*chunks).tool_calls] == [
        ("a", '{"n":1}'),
        ("b", '{"n":2}'),
    ]


def test_blocks_with_one_index_are_not_lost() -> None:
    reply = heard_anthropic((0, use("a"), '{"n":1}'), (0, use("b", "g"), '{"n":2}'))
    assert [(c.name, c.arguments) for c in reply.tool_calls] == [("f", '{"n":1}'), ("g", '{"n":2}')]


def test_a_character_split_between_chunks_does_not_break_arguments_or_thoughts() -> None:
    first, second = '{"x":"\ud83d', '\ude00"}'
    begun = called("f", first, id="c", index=0)
    chat = heard_openai(
        chunk(reasoning_content="\ud83d", tool_calls=[begun]),
        chunk(
            reasoning_content="\ude00", tool_calls=[{"index": 0, "function": {"arguments": second}}]
        ),
    )
    heard = MessageStreamParser()
    for index, block, field, kind, pieces in (
        (0, {"type": "thinking", "signature": "s"}, "thinking", "thinking_delta", "\ud83d\ude00"),
        (1, use("c"), "partial_json", "input_json_delta", (first, second)),
    ):
        heard.take({"type": "content_block_start", "index": index, "content_block": block})
        for piece in pieces:
            delta = {"type": kind, field: piece}
            heard.take({"type": "content_block_delta", "index": index, "delta": delta})
    claude = heard.reply()
    for reply, field in ((chat, "reasoning_content"), (claude, "thinking")):
        assert [call.arguments for call in reply.tool_calls] == ['{"x":"\U0001f600"}']
        assert reply.native is not None
        thought: Any = reply.native.items[0]
        assert thought[field] == "\U0001f600"


def test_a_thought_without_its_signature_does_not_go_back() -> None:
    thought = {"type": "thinking", "thinking": "Hm", "signature": ""}
    assert heard_anthropic((0, thought, ""), (1, use("c"), "")).native is None


@pytest.mark.parametrize("bench", ["openai"], indirect=True)
async def test_thoughts_of_one_server_are_not_sent_to_another(bench: Bench) -> None:
    """The scripted server refuses fields that OpenAI does not know."""
    heard = ChatStreamParser({}, "api.deepseek.com")
    signed = called("look", "{}", id="x", extra_content={"signature": "s"})
    heard.take(chunk("tool_calls", reasoning_content="Hm.", tool_calls=[signed]))
    reply = heard.reply()
    assert reply.native is not None
    assert reply.native.provider == "api.deepseek.com"
    result = Message(role="tool", content="found", tool_call_id="x")

    def log(native: Native | None) -> list[Message]:
        calls = Message(role="assistant", tool_calls=reply.tool_calls, native=native)
        return [*ASKED, calls, result]

    model, server, _ = bench.connect("Sunny.", "Sunny.", "Sunny.")
    await model.complete(log(reply.native))
    assert "reasoning_content" not in server.requests[0].body["messages"][1]
    assert not server.refused

    # Some servers refuse even their own thoughts: they are asked again without them.
    own = reply.native._replace(provider=model._endpoint.host)
    for _ in range(2):
        assert (await model.complete(log(own))).content == "Sunny."
    assert len(server.requests) == 3
    assert len(server.refused) == 1
    sent = model._request(Question(conversation(log(own), "")))["messages"][1]
    assert sent["reasoning_content"] == "Hm."


OPENAI_STREAM = [
    {**chunk(role="assistant", content="", refusal=None), "usage": None},
    chunk(content="It", reasoning_content="Hm"),
    chunk(tool_calls=[called("look", '{"a"', id="x", index=0, extra_content={"a": 1})]),
    chunk(tool_calls=[called("look", ": 1}", index=0)]),
    chunk("tool_calls"),
    {"choices": [], "usage": {"prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": 1}}},
]
ANTHROPIC_STREAM = [
    {"type": "message_start", "message": {"usage": {"input_tokens": 5, "output_tokens": 1}}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking"}},
    {
        "type": "content_block_delta",
        "index": 0,
        "delta": {"type": "thinking_delta", "thinking": "H"},
    },
    {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "It"}},
    {
        "type": "content_block_start",
        "index": 2,
        "content_block": {"type": "tool_use", "id": "x", "name": "look", "input": {}},
    },
    {
        "type": "content_block_delta",
        "index": 2,
        "delta": {"type": "input_json_delta", "partial_json": "{}"},
    },
    {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 3}},
]
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 3) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)


def places(value: Any) -> list[tuple[Any, Any]]:
    """Return every place in JSON: what holds it, and under what name."""
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    found = [(value, name) for name, _ in inner]
    parts = value.values() if isinstance(value, dict) else value
    return found + [at for part in parts if isinstance(part, dict | list) for at in places(part)]


@given(st.data())
@settings(max_examples=examples(150))
def test_whatever_a_server_sends_is_an_answer_or_known_to_be_none(data: st.DataObject) -> None:
    pairs = [(OPENAI_STREAM, ChatStreamParser), (ANTHROPIC_STREAM, MessageStreamParser)]
    stream, hearing = data.draw(st.sampled_from(pairs))
    events = copy.deepcopy(stream)
    for _ in range(data.draw(st.integers(0, 3))):
        holder, name = data.draw(st.sampled_from(places(events)))
        holder[name] = data.draw(JSON_VALUES)
    heard = hearing()
    try:
        said = "".join(_parse(heard, event) for event in events)
    except MalformedAnswer:
        return
    reply = heard.reply()
    assert reply.content == said + heard.said.rest()
    assert all(isinstance(c.id + c.name + c.arguments, str) for c in reply.tool_calls)
    if reply.native:
        json.dumps(reply.native.items, ensure_ascii=False).encode()
