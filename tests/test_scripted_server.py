"""The scripted server speaks as providers do: real SDKs understand it, and it refuses the rest."""

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import anthropic
import httpx2
import openai
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from keepthread.testing.server import Gate, Line, Received, Say, ScriptedServer, lines_of
from keepthread.types import ToolCall, Usage
from tests import known_bad_requests as known
from tests.seeds import examples

WIRES = ("openai-chat", "anthropic")
HELLO = known.HELLO
CALLS = (
    ToolCall(id="call_1", name="weather", arguments='{"city": "Jakarta", "days": [1, 2, 3]}'),
    ToolCall(id="call_2", name="now", arguments="{}"),
)
KEY = {"authorization": "Bearer secret"}
VERSION = {"anthropic-version": "2026-10-21"}


class Heard(NamedTuple):
    """What an SDK made of an answer."""

    text: str
    calls: Sequence[tuple[str, str, Any]]
    finish: str | None
    usage: Usage | None
    thinking: str = ""


class Client:
    """One provider's SDK, asked in the same way as the other's."""

    def __init__(self, server: ScriptedServer, wire: str, **options: Any) -> None:
        self.wire = wire
        options = {"api_key": "secret", "max_retries": 0, **options}
        if wire == "anthropic":
            self.sdk: Any = anthropic.Anthropic(base_url=server.anthropic, **options)
        else:
            self.sdk = openai.OpenAI(base_url=server.openai, **options)

    def close(self) -> None:
        self.sdk.close()

    def ask(self, text: str = "Hello", *, streamed: bool = False, **given: Any) -> Heard:
        given = {"model": "m", "messages": [{"role": "user", "content": text}], **given}
        if self.wire == "anthropic":
            given = {"max_tokens": 100, **given}
            if not streamed:
                return _heard_message(self.sdk.messages.create(**given))
            with self.sdk.messages.stream(**given) as stream:
                return _heard_message(stream.get_final_message())
        if not streamed:
            return _heard_chat(self.sdk.chat.completions.create(**given))
        return _heard_chat(self._last_of_stream(given))

    def _last_of_stream(self, given: Mapping[str, Any]) -> Any:
        options = {"include_usage": True}
        with self.sdk.chat.completions.stream(**given, stream_options=options) as stream:
            stream.until_done()
            return stream.current_completion_snapshot

    def pieces(self, **given: Any) -> Iterator[str]:
        """Yield the text as it arrives."""
        given = {"model": "m", "messages": HELLO, **given}
        if self.wire == "anthropic":
            with self.sdk.messages.stream(max_tokens=100, **given) as stream:
                yield from stream.text_stream
            return
        with self.sdk.chat.completions.create(stream=True, **given) as stream:
            for chunk in stream:
                if chunk.choices and chunk.choices[0].delta.content:
                    yield chunk.choices[0].delta.content


def _heard_message(message: Any) -> Heard:
    calls = [(b.id, b.name, b.input) for b in message.content if b.type == "tool_use"]
    usage = message.usage
    cached = usage.cache_read_input_tokens
    return Heard(
        "".join(block.text for block in message.content if block.type == "text"),
        calls,
        message.stop_reason,
        Usage(usage.input_tokens + cached, usage.output_tokens, cached),
        "".join(block.thinking for block in message.content if block.type == "thinking"),
    )


def _heard_chat(answer: Any) -> Heard:
    choice, usage = answer.choices[0], answer.usage
    calls = choice.message.tool_calls or ()
    return Heard(
        choice.message.content or "",
        [(c.id, c.function.name, json.loads(c.function.arguments)) for c in calls],
        choice.finish_reason,
        Usage(
            usage.prompt_tokens,
            usage.completion_tokens,
            usage.prompt_tokens_details.cached_tokens,
        ),
    )


@contextmanager
def talking(wire: str, script: Sequence[Line] = (), **options: Any) -> Iterator[Any]:
    with (
        ScriptedServer(script, key="secret", **options) as server,
        closing(Client(server, wire)) as client,
    ):
        yield server, client


def post(
    server: ScriptedServer, path: str, body: Any, headers: Mapping[str, str] | None = None
) -> tuple[int, Any]:
    """Send what no SDK would send."""
    headers = {**KEY, **VERSION, "content-type": "application/json"} if headers is None else headers
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    with closing(HTTPConnection(urlsplit(server.anthropic).netloc, timeout=10)) as connection:
        connection.request("POST", path, raw, dict(headers))
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())


# --- what it says ---


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("wire", WIRES)
def test_the_sdks_hear_what_the_script_says(wire: str, streamed: bool) -> None:
    script = [
        "It is sunny.",
        Say("Let me look.", tool_calls=CALLS, usage=Usage(input=90, output=7, cached=60)),
        Say("It is", finish="length"),
        Say("", finish="content_filter"),
    ]
    words = {"stop": "end_turn", "tool_calls": "tool_use", "length": "max_tokens"}
    with talking(wire, script) as (server, client):
        said, called, cut, filtered = (client.ask(streamed=streamed) for _ in script)
    assert said.text == "It is sunny."
    assert said.usage == Usage(input=len("Hello") // 4, output=len("It is sunny.") // 4)
    assert called.text == "Let me look."
    assert called.calls == [(c.id, c.name, json.loads(c.arguments)) for c in CALLS]
    assert called.usage == Usage(input=90, output=7, cached=60)
    finishes = [heard.finish for heard in (said, called, cut, filtered)]
    expected = ["stop", "tool_calls", "length", "content_filter"]
    if wire == "anthropic":
        expected = [*(words[word] for word in expected[:3]), "refusal"]
    assert finishes == expected
    assert (server.refused, server.dropped) == ([], 0)
    assert [asked.streams for asked in server.requests] == [streamed] * 4
    assert server.requests[0].wire == wire
    assert server.requests[0].headers["authorization"] == "Bearer secret"


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_anthropic_thinks_before_it_speaks(streamed: bool) -> None:
    with talking("anthropic", [Say("Sunny.", thinking="They ask for the weather.")]) as (_, client):
        heard = client.ask(streamed=streamed)
    assert (heard.thinking, heard.text) == ("They ask for the weather.", "Sunny.")


@pytest.mark.parametrize("wire", WIRES)
def test_a_line_can_answer_from_what_it_was_asked(wire: str) -> None:
    def oracle(asked: Received) -> str:
        return "blue" if "blue" in asked.context else f"I was not told: {asked.text}"

    system: dict[str, Any] = {"system": "The sky is blue."}
    if wire == "openai-chat":
        said = [{"role": "system", "content": "The sky is blue."}, *HELLO]
        system = {"messages": said}
    with talking(wire, otherwise=oracle) as (server, client):
        answers = [client.ask("Which colour?").text, client.ask(**system).text]
        assert server.requests[1].system == "The sky is blue."
    assert answers == ["I was not told: Which colour?", "blue"]


@pytest.mark.parametrize("wire", WIRES)
def test_whatever_is_said_arrives_however_it_is_cut_in_pieces(wire: str) -> None:
    said: list[Say] = []
    with talking(wire, otherwise=lambda _: said[-1]) as (server, client):

        @settings(max_examples=examples(25), deadline=None)
        @given(
            st.text(st.characters(codec="utf-8"), max_size=40),
            st.none() | st.integers(1, 50),
            st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=9), max_size=3),
        )
        def arrives(text: str, pieces: int | None, arguments: dict[str, Any]) -> None:
            call = ToolCall(id="1", name="f", arguments=json.dumps(arguments, ensure_ascii=False))
            said.append(Say(text, tool_calls=[call], pieces=pieces))
            heard = client.ask(streamed=True)
            assert (heard.text, heard.calls) == (text, [("1", "f", arguments)])

        arrives()
    assert server.refused == []


def events(server: ScriptedServer, path: str, body: Any) -> list[tuple[str, Any]]:
    """Return a stream as it goes over the wire."""
    with closing(HTTPConnection(urlsplit(server.anthropic).netloc, timeout=10)) as connection:
        headers = {**KEY, **VERSION, "content-type": "application/json"}
        connection.request("POST", path, json.dumps(body).encode(), headers)
        answer = connection.getresponse()
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert answer.headers["transfer-encoding"] == "chunked"
        found: list[tuple[str, Any]] = []
        for event in answer.read().decode().removesuffix("\n\n").split("\n\n"):
            kind, _, data = event.rpartition("data: ")
            found.append((kind.removeprefix("event: ").strip(), data))
        return [(k, d if d == "[DONE]" else json.loads(d)) for k, d in found]


def test_a_stream_of_openai_has_its_chunks_in_order() -> None:
    with ScriptedServer(otherwise=Say("It is", tool_calls=CALLS[:1])) as server:
        plain = events(server, "/v1/chat/completions", known.chat(stream=True))
        options = {"include_usage": True}
        counted = events(
            server, "/v1/chat/completions", known.chat(stream=True, stream_options=options)
        )
    deltas = [data["choices"][0]["delta"] for _, data in plain[:-1]]
    assert deltas[0] == {"role": "assistant", "content": "", "refusal": None}
    assert [delta["content"] for delta in deltas[1:3]] == ["It", " is"]
    first, *rest = (delta["tool_calls"][0] for delta in deltas[3:-1])
    function = {"name": "weather", "arguments": ""}
    assert first == {"index": 0, "id": "call_1", "type": "function", "function": function}
    assert len(rest) > 1
    assert "".join(part["function"]["arguments"] for part in rest) == CALLS[0].arguments
    assert deltas[-1] == {}
    assert [data["choices"][0]["finish_reason"] for _, data in plain[:-1]][-2:] == [
        None,
        "tool_calls",
    ]
    assert plain[-1] == ("", "[DONE]")
    assert not any("usage" in data for _, data in plain[:-1])
    assert all(data["usage"] is None for _, data in counted[:-2])
    assert counted[-2][1]["choices"] == []
    assert counted[-2][1]["usage"]["total_tokens"] > 0


def test_a_stream_of_anthropic_has_its_events_in_order() -> None:
    line = Say("It is", thinking="Hm.", tool_calls=CALLS[1:], usage=Usage(50, 9, cached=40))
    with ScriptedServer([line]) as server:
        stream = events(server, "/v1/messages", known.message(stream=True))
    block = ["content_block_start", "content_block_delta", "content_block_stop"]
    assert [kind for kind, _ in stream] == [
        *("message_start", "content_block_start", "ping", "content_block_delta"),
        *("content_block_delta", "content_block_stop"),
        *("content_block_start", "content_block_delta", *block[1:]),
        *("content_block_start", "content_block_delta", *block[1:]),
        *("message_delta", "message_stop"),
    ]
    assert all(kind == data["type"] for kind, data in stream)
    begun, ended = stream[0][1]["message"], stream[-2][1]
    assert begun["content"] == []
    assert begun["stop_reason"] is None
    assert begun["usage"]["input_tokens"] == 10
    assert begun["usage"]["cache_read_input_tokens"] == 40
    assert ended["delta"]["stop_reason"] == "tool_use"
    assert ended["usage"]["output_tokens"] == 9


@pytest.mark.parametrize("wire", WIRES)
def test_half_a_character_arrives_as_servers_send_it(wire: str) -> None:
    path = "/v1/messages" if wire == "anthropic" else "/v1/chat/completions"
    body = known.message(stream=True) if wire == "anthropic" else known.chat(stream=True)
    with ScriptedServer([Say("\ud83d")]) as server:
        assert "\\ud83d" in json.dumps(events(server, path, body))


@pytest.mark.parametrize("wire", WIRES)
def test_the_models_are_listed(wire: str) -> None:
    with talking(wire, ["Hello."], models=["small", "large"]) as (server, client):
        assert [model.id for model in client.sdk.models.list()] == ["small", "large"]
        assert client.ask(model="small").text == "Hello."
        with pytest.raises((openai.NotFoundError, anthropic.NotFoundError)):
            client.ask(model="huge")
        assert server.refused == ["model: huge does not exist or you do not have access to it."]


# --- what goes wrong ---


ERRORS = {
    307: "APIStatusError",
    400: "BadRequestError",
    401: "AuthenticationError",
    403: "PermissionDeniedError",
    404: "NotFoundError",
    429: "RateLimitError",
    500: "InternalServerError",
    503: "InternalServerError",
    529: "InternalServerError",
}


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("wire", WIRES)
def test_the_sdks_raise_their_own_errors(wire: str, streamed: bool) -> None:
    told = {"message": "not now", "headers": {"Retry-After": "7"}}
    with talking(wire, [Say(status=status, **told) for status in ERRORS]) as (server, client):
        for status, name in ERRORS.items():
            expected = getattr(anthropic if wire == "anthropic" else openai, name)
            with pytest.raises(expected, match="not now") as caught:
                client.ask(streamed=streamed)
            assert caught.value.status_code == status
            assert caught.value.response.headers["retry-after"] == "7"
            assert caught.value.request_id.startswith("req_")
    assert (len(server.requests), server.refused) == (len(ERRORS), [])


@pytest.mark.parametrize("wire", WIRES)
def test_an_error_can_come_in_the_middle_of_a_stream(wire: str) -> None:
    line = Say("It is sunny today.", status=529, message="overloaded", fails_after=2)
    heard: list[str] = []
    failure = pytest.raises((openai.APIError, anthropic.APIStatusError), match="overloaded")
    with talking(wire, [line]) as (_, client), failure:
        heard.extend(client.pieces())
    assert heard == ["It", " is"]


@pytest.mark.parametrize("after", [0, 2, 99])
@pytest.mark.parametrize("wire", WIRES)
def test_a_stream_breaks_off_where_it_was_told(wire: str, after: int) -> None:
    heard: list[str] = []
    with talking(wire, [Say("It is sunny.", cut_after=after), "Again."]) as (server, client):
        with pytest.raises((openai.APIConnectionError, httpx2.RemoteProtocolError)):
            heard.extend(client.pieces())
        assert client.ask().text == "Again."
    assert heard == ["It", " is", " sunny."][:after]
    assert server.dropped == 0


@pytest.mark.parametrize("after", [0, 1])
@pytest.mark.parametrize("wire", WIRES)
def test_a_whole_answer_breaks_off_too(wire: str, after: int) -> None:
    failure = pytest.raises((openai.APIConnectionError, anthropic.APIConnectionError))
    with talking(wire, [Say("It is sunny.", cut_after=after)]) as (_, client), failure:
        client.ask()


@pytest.mark.parametrize("wire", WIRES)
def test_a_stream_can_end_in_good_order_without_its_end(wire: str) -> None:
    path = "/v1/messages" if wire == "anthropic" else "/v1/chat/completions"
    body = known.message(stream=True) if wire == "anthropic" else known.chat(stream=True)
    with ScriptedServer([Say("It is sunny.", unfinished=True)]) as server:
        stream = events(server, path, body)
    assert "sunny" in json.dumps(stream)
    assert "[DONE]" not in json.dumps(stream)
    assert not {"message_delta", "message_stop"} & {kind for kind, _ in stream}
    assert "stop" not in [data["choices"][0]["finish_reason"] for _, data in stream if "id" in data]


@pytest.mark.parametrize("wire", WIRES)
def test_a_client_that_does_not_wait_for_a_slow_answer_is_noticed(wire: str) -> None:
    slow = [Say("Late.", first_after=60), Say("It is late.", every=60)]
    with ScriptedServer([*slow, "Soon."]) as server:
        with closing(Client(server, wire, timeout=0.2)) as client:
            with pytest.raises((openai.APITimeoutError, anthropic.APITimeoutError)):
                client.ask()
            server.wait_for(1, dropped=1)
            with pytest.raises((openai.APITimeoutError, httpx2.ReadTimeout)):
                list(client.pieces())
            server.wait_for(2, dropped=2)
            assert client.ask().text == "Soon."
        assert server.dropped == 2


@pytest.mark.parametrize("wire", WIRES)
def test_an_answer_is_held_in_the_middle_until_it_is_let_go(wire: str) -> None:
    gate = Gate()
    with talking(wire, [Say("It is sunny.", hold=gate, hold_after=2)]) as (_, client):
        pieces = client.pieces()
        assert next(pieces) == "It"
        assert gate.reached.wait(10)
        assert not gate.opened.is_set()
        gate.open()
        assert list(pieces) == [" is", " sunny."]


@pytest.mark.parametrize("hold_after", [0, 1])
@pytest.mark.parametrize("wire", WIRES)
def test_a_client_that_leaves_a_held_answer_is_noticed(wire: str, hold_after: int) -> None:
    gate = Gate()
    line = Say("It is sunny.", hold=gate, hold_after=hold_after)
    path = "/v1/messages" if wire == "anthropic" else "/v1/chat/completions"
    body = known.message(stream=True) if wire == "anthropic" else known.chat(stream=True)
    with ScriptedServer([line]) as server:
        with closing(HTTPConnection(urlsplit(server.anthropic).netloc)) as connection:
            headers = {**VERSION, "content-type": "application/json"}
            connection.request("POST", path, json.dumps(body).encode(), headers)
            assert gate.reached.wait(10)
        server.wait_for(dropped=1)
    assert not gate.opened.is_set()


def test_a_held_answer_does_not_keep_the_server_from_closing() -> None:
    gate = Gate()
    failures: list[BaseException] = []

    def ask(server: ScriptedServer) -> None:
        with closing(Client(server, "anthropic")) as client:
            try:
                client.ask()
            except anthropic.APIConnectionError as error:
                failures.append(error)

    with ScriptedServer([Say("Never.", hold=gate)]) as server:
        asking = threading.Thread(target=ask, args=(server,))
        asking.start()
        assert gate.reached.wait(10)
    asking.join(10)
    assert not asking.is_alive()
    assert len(failures) == 1
    assert server.dropped == 0


def test_clients_are_answered_at_once_and_each_line_is_said_once() -> None:
    gates = [Gate() for _ in range(8)]
    script = [Say(f"line {n}", hold=gate, hold_after=0) for n, gate in enumerate(gates)]
    with ScriptedServer(script) as server, ThreadPoolExecutor(8) as pool:
        clients = [Client(server, wire) for wire in WIRES * 4]
        answers = [pool.submit(c.ask, f"client {n}") for n, c in enumerate(clients)]
        assert all(gate.reached.wait(10) for gate in gates)  # all eight stand there at once
        for gate in gates:
            gate.open()
        heard = [answer.result(10).text for answer in answers]
        for client in clients:
            client.close()
    assert sorted(heard) == [f"line {n}" for n in range(8)]
    arrived = [int(asked.text.removeprefix("client ")) for asked in server.requests]
    assert [heard[n] for n in arrived] == [f"line {n}" for n in range(8)]


def test_a_connection_is_kept_for_the_next_request() -> None:
    sockets: set[Any] = set()
    with (
        ScriptedServer(["One.", Say("Two."), Say(status=500), "Four."]) as server,
        closing(HTTPConnection(urlsplit(server.openai).netloc)) as connection,
    ):
        for stream in (False, True, False, True):
            body = json.dumps(known.chat(stream=stream)).encode()
            headers = {"content-type": "application/json"}
            connection.request("POST", "/v1/chat/completions", body, headers)
            sockets.add(connection.sock)
            connection.getresponse().read()
    assert len(sockets) == 1


# --- what it refuses ---


@pytest.fixture(scope="module")
def strict() -> Iterator[ScriptedServer]:
    with ScriptedServer(key="secret", otherwise="Hello.") as server:
        yield server


@pytest.mark.parametrize(
    ("path", "reason", "body"),
    [
        *(("/v1/chat/completions", *bad) for bad in known.BAD_CHAT),
        *(("/v1/messages", *bad) for bad in known.BAD_ANTHROPIC),
    ],
)
def test_what_a_provider_refuses_is_refused_in_its_own_words(
    strict: ScriptedServer, path: str, reason: str, body: Any
) -> None:
    before = len(strict.requests), len(strict.refused)
    status, answer = post(strict, path, body)
    assert status == 400
    assert reason in answer["error"]["message"]
    assert answer["error"]["type"] == "invalid_request_error"
    assert answer.get("type") == ("error" if path == "/v1/messages" else None)
    assert strict.refused[-1] == answer["error"]["message"]
    assert (len(strict.requests), len(strict.refused)) == (before[0], before[1] + 1)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        *(("/v1/chat/completions", good) for good in known.GOOD_CHAT),
        *(("/v1/messages", good) for good in known.GOOD_ANTHROPIC),
    ],
)
def test_what_a_provider_takes_is_taken(strict: ScriptedServer, path: str, body: Any) -> None:
    if body.get("stream"):
        assert events(strict, path, body)
    else:
        assert post(strict, path, body)[0] == 200
    assert strict.requests[-1].body == body


GOOD = {"/v1/chat/completions": known.chat(), "/v1/messages": known.message()}
JSON = {"content-type": "application/json"}


@pytest.mark.parametrize(
    ("status", "kind", "path", "body", "headers"),
    [
        (401, "authentication_error", "/v1/messages", None, {**VERSION, **JSON}),
        (401, "authentication_error", "/v1/messages", None, {**VERSION, **JSON, "x-api-key": "x"}),
        (401, "invalid_request_error", "/v1/chat/completions", None, JSON),
        (
            401,
            "invalid_request_error",
            "/v1/chat/completions",
            None,
            {**JSON, "authorization": "Bearer x"},
        ),
        (400, "invalid_request_error", "/v1/messages", None, {**KEY, **JSON}),
        (
            400,
            "invalid_request_error",
            "/v1/messages",
            None,
            {**KEY, **JSON, "anthropic-version": "2020-01-01"},
        ),
        (400, "invalid_request_error", "/v1/chat/completions", None, KEY),
        (
            400,
            "invalid_request_error",
            "/v1/chat/completions",
            None,
            {**KEY, "content-type": "text/plain"},
        ),
        (400, "invalid_request_error", "/v1/chat/completions", b"{", None),
        (400, "invalid_request_error", "/v1/chat/completions", b"[]", None),
        (400, "invalid_request_error", "/v1/messages", b"\xff", None),
        (400, "invalid_request_error", "/v1/messages", b"[" * 100_000, None),
        (404, "not_found_error", "/v1/complete", b"{}", None),
        (404, "invalid_request_error", "/v1/completions", b"{}", {**KEY, **JSON}),
    ],
)
def test_a_request_in_the_wrong_form_is_refused(
    strict: ScriptedServer,
    status: int,
    kind: str,
    path: str,
    body: bytes | None,
    headers: Mapping[str, str] | None,
) -> None:
    before = len(strict.requests), len(strict.refused)
    got, answer = post(strict, path, GOOD[path] if body is None else body, headers)
    assert (got, answer["error"]["type"]) == (status, kind)
    assert (len(strict.requests), len(strict.refused)) == (before[0], before[1] + 1)
    assert "secret" not in answer["error"]["message"]


def test_what_is_to_be_sent_cannot_be_fetched(strict: ScriptedServer) -> None:
    with closing(HTTPConnection(urlsplit(strict.openai).netloc, timeout=10)) as connection:
        for path, status in (("/v1/messages", 405), ("/v1/files", 404), ("/v1/models", 200)):
            connection.request("GET", path, headers=KEY)
            answer = connection.getresponse()
            assert (answer.status, bool(json.loads(answer.read()))) == (status, True)


def test_either_header_brings_the_key_to_anthropic() -> None:
    with ScriptedServer(["One.", "Two."], key="secret") as server:
        for key in ({"x-api-key": "secret"}, KEY):
            headers = {**key, **VERSION, **JSON}
            assert post(server, "/v1/messages", known.message(), headers)[0] == 200


def test_a_body_whose_length_is_not_told_or_too_long_is_refused() -> None:
    with ScriptedServer() as server:
        assert (
            post(server, "/v1/messages", b"", {**VERSION, "content-length": "99999999"})[0] == 413
        )
        assert post(server, "/v1/messages", b"", {**VERSION, "content-length": "many"})[0] == 411
    assert len(server.refused) == 2


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "content", "name", "text", "id"]), inner, max_size=3
        )
    ),
    max_leaves=8,
)


@pytest.mark.parametrize("path", GOOD)
def test_whatever_is_sent_is_answered_or_refused(path: str) -> None:
    with ScriptedServer(otherwise="Hello.") as server:
        connection = HTTPConnection(urlsplit(server.openai).netloc, timeout=10)
        names = sorted({*known.GOOD_CHAT[1], *known.BAD_ANTHROPIC[-1][1], "tools", "thinking"})
        fields = ("messages", "system", "tool_choice", "response_format", "cache_control", *names)

        @settings(max_examples=examples(60), deadline=None)
        @given(st.dictionaries(st.sampled_from(fields), _VALUES, max_size=4))
        @example({"system": [{"type": []}]})
        def answers(strange: dict[str, Any]) -> None:
            body = json.dumps({**GOOD[path], **strange, "stream": False})
            connection.request("POST", path, body.encode(), {**VERSION, **JSON})
            answer = connection.getresponse()
            assert answer.status in (200, 400)
            assert json.loads(answer.read())

        with closing(connection):
            answers()


def test_at_its_end_the_script_says_so() -> None:
    with talking("openai-chat", ["Once."]) as (server, client):
        assert client.ask().text == "Once."
        with pytest.raises(openai.InternalServerError, match="at its end; this is request 2"):
            client.ask()
    assert server.refused == ["the script is at its end; this is request 2"]


def test_a_line_that_fails_says_so() -> None:
    def broken(asked: Received) -> str:
        assert "weather" in asked.text
        return "Sunny."

    with talking("anthropic", otherwise=broken) as (server, client):
        assert client.ask("How is the weather?").text == "Sunny."
        with pytest.raises(anthropic.InternalServerError, match="a line of the script failed"):
            client.ask("Hello")
    assert len(server.refused) == 1


def test_waiting_for_what_does_not_come_tells_what_came() -> None:
    with talking("openai-chat", ["Once."]) as (server, client):
        client.ask()
        server.wait_for(1)
        with pytest.raises(TimeoutError, match="1 requests, 0 dropped, refused: "):
            server.wait_for(2, timeout=0.01)


# --- as a program ---


def test_as_a_program_it_says_what_a_file_says_and_then_what_is_asked(tmp_path: Path) -> None:
    call = {"id": "call_1", "name": "weather", "arguments": {"city": "Jakarta"}}
    lines = ["Hello.", {"text": "Hm.", "tool_calls": [call], "usage": {"input": 9, "output": 2}}]
    script = tmp_path / "script.json"
    script.write_text(json.dumps(lines), "utf-8")
    command = [sys.executable, "-m", "keepthread.testing.server", "--script", str(script)]
    with subprocess.Popen(
        [*command, "--echo", "--key", "secret"], stdout=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout
        urls = dict(program.stdout.readline().split() for _ in range(2))
        client = openai.OpenAI(base_url=urls["openai"], api_key="secret", max_retries=0)
        other = anthropic.Anthropic(base_url=urls["anthropic"], api_key="secret", max_retries=0)
        with client, other:
            chat: Callable[..., Any] = client.chat.completions.create
            heard = [_heard_chat(chat(model="m", messages=HELLO)) for _ in range(2)]
            echoed = _heard_message(
                other.messages.create(model="m", max_tokens=9, messages=HELLO)  # pyright: ignore[reportArgumentType]
            )
        program.terminate()
    assert [answer.text for answer in heard] == ["Hello.", "Hm."]
    assert heard[1].calls == [("call_1", "weather", {"city": "Jakarta"})]
    assert heard[1].usage == Usage(9, 2)
    assert echoed.text == "You said: Hello"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"text": "Hello."}', "a JSON array of"),
        ("[1]", "a string or an object"),
        ('[{"says": "Hello."}]', "no 'says'; it has text, "),
        ('[{"hold": true}]', "no 'hold'"),
    ],
)
def test_a_file_that_is_no_script_is_refused_with_what_one_is(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        lines_of(text)


def test_a_client_that_goes_away_in_the_middle_of_its_question_has_asked_nothing() -> None:
    with ScriptedServer(["Hello!"]) as server:
        address = urlsplit(server.anthropic)
        with socket.create_connection((address.hostname, address.port)) as line:
            head = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n"
            line.sendall(f"{head}{{".encode())
        server.wait_for(dropped=1)
    assert (server.requests, server.refused) == ([], [])
