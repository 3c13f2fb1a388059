"""The scripted server speaks OpenAI's Responses: the real SDK understands it."""

import gzip
import json
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

import openai
import pydantic
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from keepthread.testing.server import Gate, Received, Say, ScriptedServer
from keepthread.types import ToolCall, Usage
from tests import known_bad
from tests import known_bad_requests as known
from tests.seeds import examples

CALLS = (
    ToolCall(id="call_1", name="weather", arguments='{"city": "Jakarta", "days": [1, 2, 3]}'),
    ToolCall(id="call_2", name="now", arguments="{}"),
)
TOOLS = [
    {"type": "function", "name": "weather", "parameters": known.SCHEMA, "strict": False},
    {"type": "function", "name": "now", "parameters": None, "strict": False},
]
JSON = {"content-type": "application/json"}


class Weather(pydantic.BaseModel):
    city: str
    degrees: int


def sdk(server: ScriptedServer, **given: Any) -> Any:
    return openai.OpenAI(base_url=server.openai, **{"api_key": "secret", "max_retries": 0, **given})


def body(**given: Any) -> dict[str, Any]:
    return {"model": "m", "input": "Hello", **given}


def send(
    server: ScriptedServer, raw: bytes, headers: dict[str, str] | None = None
) -> tuple[int, bytes]:
    with closing(HTTPConnection(urlsplit(server.openai).netloc, timeout=10)) as connection:
        connection.request("POST", "/v1/responses", raw, headers or JSON)
        answer = connection.getresponse()
        return answer.status, answer.read()


def events(server: ScriptedServer, **given: Any) -> list[dict[str, Any]]:
    """Return a stream as it goes over the wire."""
    status, stream = send(server, json.dumps(body(stream=True, **given)).encode())
    assert status == 200
    found: list[dict[str, Any]] = []
    for event in stream.decode().removesuffix("\n\n").split("\n\n"):
        kind, _, data = event.partition("\ndata: ")
        found.append(json.loads(data))
        assert kind == f"event: {found[-1]['type']}"
    return found


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer(otherwise=lambda asked: f"You said: {asked.text}") as server:
        yield server


# --- what it says ---


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_the_sdk_hears_what_the_script_says(streamed: bool) -> None:
    script = [
        "It is sunny.",
        Say("Let me look.", tool_calls=CALLS, usage=Usage(input=90, output=7, cached=60)),
        Say("It is", finish="length"),
        Say(finish="content_filter"),
        Say("Hm", finish="failed", message="out of order"),
        Say("Sunny.", thinking="They ask for the weather."),
    ]
    heard: list[Any] = []
    with ScriptedServer(script, key="secret") as server, sdk(server) as client:
        for _ in script:
            given = body(tools=TOOLS, reasoning={"summary": "auto"})
            if streamed:
                with client.responses.create(**given, stream=True) as stream:
                    heard.append([event.response for event in stream if hasattr(event, "response")])
                heard[-1] = heard[-1][-1]
            else:
                heard.append(client.responses.create(**given))
    assert (server.refused, server.dropped) == ([], 0)
    said, called, cut, filtered, failed, thought = heard
    assert (said.output_text, said.status) == ("It is sunny.", "completed")
    assert said.usage.input_tokens == len("Hello") // 4
    assert called.output_text == "Let me look."
    calls = [item for item in called.output if item.type == "function_call"]
    assert [(c.call_id, c.name, c.arguments) for c in calls] == [
        (call.id, call.name, call.arguments) for call in CALLS
    ]
    usage = called.usage
    assert (usage.input_tokens, usage.output_tokens) == (90, 7)
    assert usage.input_tokens_details.cached_tokens == 60
    reasons = [answer.incomplete_details.reason for answer in (cut, filtered)]
    assert reasons == ["max_output_tokens", "content_filter"]
    assert [answer.status for answer in (cut, filtered)] == ["incomplete"] * 2
    assert (failed.status, failed.error.message) == ("failed", "out of order")
    reasoning, message = thought.output
    assert reasoning.summary[0].text == "They ask for the weather."
    assert (reasoning.encrypted_content[:5], message.content[0].text) == ("gAAAA", "Sunny.")


def test_a_stream_has_its_events_in_order() -> None:
    line = Say("It is", thinking="Well now.", tool_calls=CALLS[:1])
    with ScriptedServer([line]) as server:
        stream = events(server, tools=TOOLS, reasoning={"summary": "auto"})
    assert [event["sequence_number"] for event in stream] == list(range(len(stream)))
    kinds = [event["type"].removeprefix("response.") for event in stream]
    arguments = kinds.count("function_call_arguments.delta")
    assert arguments > 1
    assert kinds == [
        *("created", "in_progress"),
        *("output_item.added", "reasoning_summary_part.added"),
        *("reasoning_summary_text.delta", "reasoning_summary_text.delta"),
        *("reasoning_summary_text.done", "reasoning_summary_part.done", "output_item.done"),
        *("output_item.added", "content_part.added", "output_text.delta", "output_text.delta"),
        *("output_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", *["function_call_arguments.delta"] * arguments),
        *("function_call_arguments.done", "output_item.done"),
        "completed",
    ]
    begun = [event["item"] for event in stream if event["type"].endswith("item.added")]
    done = [event["item"] for event in stream if event["type"].endswith("item.done")]
    assert [item["id"] for item in begun] == [item["id"] for item in done]
    assert [item.get("status") for item in begun] == [None, "in_progress", "in_progress"]
    assert stream[0]["response"]["status"] == stream[1]["response"]["status"] == "in_progress"
    assert stream[0]["response"]["output"] == []
    assert stream[-1]["response"]["output"] == done
    assert stream[-1]["response"]["usage"]["total_tokens"] > 0
    assert any(event.get("obfuscation") for event in stream)


def test_a_stream_is_plain_for_a_client_that_asks_for_it(server: ScriptedServer) -> None:
    plain = events(server, stream_options={"include_obfuscation": False})
    assert not any("obfuscation" in event for event in plain)


def test_thoughts_are_told_only_to_those_who_ask() -> None:
    with ScriptedServer(otherwise=Say("Yes.", thinking="Hm.")) as server:
        stream = events(server)
    assert stream[3]["item"]["summary"] == []
    assert "reasoning_summary" not in json.dumps(stream)


def test_a_call_of_a_free_text_tool_has_its_own_events() -> None:
    call = ToolCall(id="call_1", name="apply_patch", arguments="*** Begin Patch")
    with ScriptedServer([Say(tool_calls=[call])]) as server:
        stream = events(server, tools=[{"type": "custom", "name": "apply_patch"}])
    assert "response.custom_tool_call_input.delta" in [event["type"] for event in stream]
    (item,) = stream[-1]["response"]["output"]
    assert (item["type"], item["input"]) == ("custom_tool_call", "*** Begin Patch")


def test_whatever_is_said_arrives_however_it_is_cut_in_pieces() -> None:
    said: list[Say] = []
    with ScriptedServer(otherwise=lambda _: said[-1]) as server, sdk(server) as client:

        @settings(max_examples=examples(15), deadline=None)
        @given(
            st.text(st.characters(codec="utf-8"), max_size=40),
            st.none() | st.integers(1, 50),
            st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=9), max_size=3),
        )
        def arrives(text: str, pieces: int | None, arguments: dict[str, Any]) -> None:
            call = ToolCall(id="1", name="f", arguments=json.dumps(arguments, ensure_ascii=False))
            said.append(Say(text, tool_calls=[call], pieces=pieces))
            with client.responses.stream(model="m", input="Hello") as stream:
                heard = "".join(e.delta for e in stream if e.type == "response.output_text.delta")
                final = stream.get_final_response()
            assert (heard, final.output_text) == (text, text)
            assert final.output[-1].arguments == call.arguments

        arrives()
    assert server.refused == []


async def test_the_asynchronous_sdk_hears_the_same(server: ScriptedServer) -> None:
    async with openai.AsyncOpenAI(base_url=server.openai, api_key="x", max_retries=0) as client:
        whole = await client.responses.create(model="m", input="Hello")
        async with client.responses.stream(model="m", input="Again") as stream:
            final = await stream.get_final_response()
    assert (whole.output_text, final.output_text) == ("You said: Hello", "You said: Again")


def test_an_answer_is_parsed_into_the_form_that_was_asked_for() -> None:
    said = '{"city": "Tokyo", "degrees": 21}'
    call = ToolCall(id="call_1", name="Weather", arguments=said)
    with ScriptedServer([said, said, Say(tool_calls=[call])]) as server, sdk(server) as client:
        parsed = client.responses.parse(model="m", input="Tokyo?", text_format=Weather)
        with client.responses.stream(model="m", input="Tokyo?", text_format=Weather) as stream:
            streamed = stream.get_final_response()
        tool = openai.pydantic_function_tool(Weather)
        tools = [{"type": "function", **tool["function"]}]
        called = client.responses.parse(model="m", input="Tokyo?", tools=tools)
    expected = Weather(city="Tokyo", degrees=21)
    assert parsed.output_parsed == streamed.output_parsed == expected
    assert called.output[0].parsed_arguments in (expected, json.loads(said))
    asked = server.requests[0].body["text"]["format"]
    assert (asked["type"], asked["name"], asked["strict"]) == ("json_schema", "Weather", True)


def test_a_tool_is_called_and_its_result_is_sent_back(server: ScriptedServer) -> None:
    def line(asked: Received) -> Say | str:
        results = [m["output"] for m in asked.messages if m.get("type") == "function_call_output"]
        return Say(tool_calls=CALLS[:1], thinking="Look.") if not results else f"It is {results[0]}"

    with ScriptedServer(otherwise=line) as server, sdk(server) as client:
        items: list[Any] = [{"role": "user", "content": "How is Jakarta?"}]
        first = client.responses.create(model="m", input=items, tools=TOOLS, store=False)
        items += [item.model_dump(exclude_none=True) for item in first.output]
        items.append({"type": "function_call_output", "call_id": "call_1", "output": "sunny"})
        second = client.responses.create(model="m", input=items, tools=TOOLS, store=False)
    assert second.output_text == "It is sunny"
    assert json.loads(server.requests[1].raw) == server.requests[1].body


# --- what it keeps ---


def test_a_response_is_continued_by_its_id(server: ScriptedServer) -> None:
    with sdk(server) as client:
        first = client.responses.create(model="m", input="I live in Delft.", instructions="Brief.")
        second = client.responses.create(model="m", input="And you?", previous_response_id=first.id)
        third = client.responses.create(
            model="m",
            input=[{"type": "item_reference", "id": second.output[0].id}],
            previous_response_id=first.id,
        )
    assert second.previous_response_id == first.id
    assert server.requests[1].context.split("\n")[1:3] == [
        "I live in Delft.",
        "You said: I live in Delft.",
    ]
    assert server.requests[1].text == "And you?"
    assert "You said: And you?" in server.requests[2].context
    assert third.status == "completed"


def test_a_conversation_goes_on_where_it_was(server: ScriptedServer) -> None:
    with sdk(server) as client:
        for text in ("I live in Delft.", "And you?"):
            client.responses.create(model="m", input=text, conversation="conv_1", store=False)
    assert "I live in Delft." in server.requests[1].context


def test_an_unknown_response_is_refused_in_the_words_of_the_provider(
    server: ScriptedServer,
) -> None:
    with sdk(server) as client:
        unkept = client.responses.create(model="m", input="Hello", store=False)
        for id in (unkept.id, "resp_unknown"):
            with pytest.raises(openai.BadRequestError, match=f"'{id}' not found") as caught:
                client.responses.create(model="m", input="Go on.", previous_response_id=id)
            assert caught.value.code == "previous_response_not_found"
            assert caught.value.param == "previous_response_id"
            with pytest.raises(openai.NotFoundError, match=f"Response with id '{id}' not found"):
                client.responses.retrieve(id)
        reference = {"type": "item_reference", "id": "msg_1"}
        with pytest.raises(openai.NotFoundError, match="Item with id"):
            client.responses.create(model="m", input=[reference])
        with pytest.raises(openai.BadRequestError, match="begins with 'conv'"):
            client.responses.create(model="m", input="Hello", conversation="7")
        with pytest.raises(openai.BadRequestError, match="begins with 'resp'"):
            client.responses.create(model="m", input="Hello", previous_response_id="7")
    assert len(server.requests) == 1


def test_a_kept_response_is_read_listed_and_deleted(server: ScriptedServer) -> None:
    with sdk(server) as client:
        first = client.responses.create(model="m", input="One")
        said = [{"role": "user", "content": f"{n}"} for n in range(3)]
        made = client.responses.create(model="m", input=said, previous_response_id=first.id)
        assert client.responses.retrieve(made.id) == made
        listed = list(client.responses.input_items.list(made.id, limit=2, order="asc"))
        newest = next(iter(client.responses.input_items.list(made.id)))
        client.responses.delete(made.id)
        for gone in (client.responses.retrieve, client.responses.delete):
            with pytest.raises(openai.NotFoundError):
                gone(made.id)
        with pytest.raises(openai.BadRequestError, match="'limit'"):
            client.responses.input_items.list(first.id, limit=0)
    texts = [item.content[0].text for item in listed]
    assert texts == ["One", "You said: One", "0", "1", "2"]
    assert newest.content[0].text == "2"
    assert len({item.id for item in listed}) == len(listed)


def test_only_what_runs_in_the_background_is_cancelled(server: ScriptedServer) -> None:
    with sdk(server) as client:
        plain = client.responses.create(model="m", input="Hello")
        with pytest.raises(openai.BadRequestError, match="synchronous"):
            client.responses.cancel(plain.id)
        waiting, stopped = (
            client.responses.create(model="m", input="Hello", background=True) for _ in range(2)
        )
        assert (waiting.status, waiting.output) == ("queued", [])
        assert client.responses.cancel(stopped.id).status == "cancelled"
        assert client.responses.retrieve(stopped.id).status == "cancelled"
        assert client.responses.retrieve(waiting.id).output_text == "You said: Hello"
        assert client.responses.cancel(waiting.id).status == "completed"


def test_thoughts_that_were_changed_on_the_way_are_refused() -> None:
    with ScriptedServer(otherwise=Say("Yes.", thinking="Hm.")) as server, sdk(server) as client:
        made = client.responses.create(model="m", input="Hello", store=False)
        items = [item.model_dump(exclude_none=True) for item in made.output]
        again = {"role": "user", "content": "Again"}
        client.responses.create(model="m", input=[*items, again], store=False)
        sealed = items[0]["encrypted_content"]
        items[0]["encrypted_content"] = sealed[:-4] + sealed[-5:-1]
        with pytest.raises(openai.BadRequestError, match="could not be verified") as caught:
            client.responses.create(model="m", input=[*items, again], store=False)
        assert caught.value.code == "invalid_encrypted_content"
        del items[0]["encrypted_content"]
        with pytest.raises(openai.NotFoundError, match="Item with id 'rs_"):
            client.responses.create(model="m", input=[*items, again], store=False)


# --- what goes wrong ---


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_the_sdk_raises_its_own_errors(streamed: bool) -> None:
    errors = {400: "BadRequest", 401: "Authentication", 429: "RateLimit", 500: "InternalServer"}
    with (
        ScriptedServer([Say(status=n, message="not now") for n in errors]) as server,
        sdk(server) as client,
    ):
        for status, name in errors.items():
            with pytest.raises(getattr(openai, f"{name}Error"), match="not now") as caught:
                client.responses.create(model="m", input="Hello", stream=streamed)
            assert caught.value.status_code == status


def test_an_error_can_come_in_the_middle_of_a_stream() -> None:
    line = Say("It is sunny today.", status=429, message="too much", fails_after=2)
    with ScriptedServer([line]) as server:
        stream = events(server)
    assert [event["sequence_number"] for event in stream] == list(range(len(stream)))
    assert [event["delta"] for event in stream if "delta" in event] == ["It", " is"]
    assert stream[-1]["type"] == "error"
    assert (stream[-1]["code"], stream[-1]["message"]) == ("rate_limit_exceeded", "too much")


@pytest.mark.parametrize("after", [0, 2, 99])
def test_a_stream_breaks_off_where_it_was_told(after: int) -> None:
    heard: list[str] = []
    with (
        ScriptedServer([Say("It is sunny.", cut_after=after), "Again."]) as server,
        sdk(server) as client,
    ):
        with (
            pytest.raises(openai.APIConnectionError),
            client.responses.create(model="m", input="Hello", stream=True) as stream,
        ):
            heard.extend(e.delta for e in stream if e.type == "response.output_text.delta")
        assert client.responses.create(model="m", input="Hello").output_text == "Again."
    assert heard == ["It", " is", " sunny."][:after]


def test_a_stream_can_end_without_its_end() -> None:
    with ScriptedServer([Say("It is sunny.", unfinished=True)]) as server:
        assert events(server)[-1]["type"] == "response.output_item.done"


def test_a_client_that_leaves_a_held_answer_is_noticed() -> None:
    gate = Gate()
    with ScriptedServer([Say("It is sunny.", hold=gate)]) as server:
        with closing(HTTPConnection(urlsplit(server.openai).netloc)) as connection:
            connection.request("POST", "/v1/responses", json.dumps(body(stream=True)), JSON)
            assert gate.reached.wait(10)
        server.wait_for(dropped=1)


# --- what it refuses ---

TOOL = TOOLS[0]
GOOD = [
    body(),
    body(instructions="Brief.", store=False, include=["reasoning.encrypted_content"]),
    body(tools=TOOLS, tool_choice={"type": "function", "name": "weather"}, truncation="auto"),
    body(tools=[], tool_choice="auto", parallel_tool_calls=False, prompt_cache_key="k"),
    body(tools=[{"type": "web_search"}], reasoning={"effort": "low", "summary": None}),
    body(text={"verbosity": "low"}, metadata={"a": "b"}, client_metadata={"turn": "1"}),
    body(input="As JSON.", text={"format": {"type": "json_object"}}),
    *(good for good in known_bad.GOOD_RESPONSES if "rs_" not in repr(good)),  # not kept here
]
BAD = [
    ("'model'", {"input": "Hello"}),
    ("moved to 'input'", body(messages=known.HELLO)),
    ("Unknown parameter: 'max_tokens'", body(max_tokens=5)),
    ("Unknown parameter: 'response_format'", body(response_format={"type": "text"})),
    ("'max_output_tokens'", body(max_output_tokens=15)),
    ("tools[0].name", body(tools=[known.function()])),
    ("tools[0].type", body(tools=[{"type": "retrieval"}])),
    ("Duplicate names", body(tools=[TOOL, TOOL])),
    ("'additionalProperties'", body(tools=[{**TOOL, "strict": True}])),
    ("too long", body(tools=[{"type": "web_search"}] * 129)),
    ("'tool_choice'", body(tools=TOOLS, tool_choice="any")),
    ("'tools' parameter", body(tool_choice="required")),
    ("not found in 'tools'", body(tools=TOOLS, tool_choice={"type": "function", "name": "w"})),
    ("stream_options", body(stream_options={"include_obfuscation": False})),
    ("stream_options.include_usage", body(stream=True, stream_options={"include_usage": True})),
    ("text.format.type", body(text={"format": {"type": "json"}})),
    ("text.format.name", body(text={"format": {"type": "json_schema", "schema": known.STRICT}})),
    ("the word 'json'", body(text={"format": {"type": "json_object"}})),
    ("Unknown parameter: 'text.style'", body(text={"style": "plain"})),
    ("'include'", body(include=["everything"])),
    ("'metadata'", body(metadata={"a": 1})),
    ("reasoning.effort", body(reasoning={"effort": "some"})),
    ("'store' to be true", body(background=True, store=False)),
    ("Mutually exclusive", body(previous_response_id="resp_0", conversation="conv_0")),
    ("No tool call found", body(input=[known_bad.output()])),
]


@pytest.mark.parametrize("good", GOOD)
def test_what_the_provider_takes_is_taken(good: dict[str, Any]) -> None:
    good = {"model": "m", **good}
    with ScriptedServer(["Hello."]) as server:
        status, answer = send(server, json.dumps(good).encode())
    assert (status, server.refused) == (200, []), answer
    assert server.requests[0].body == good


def refusal(server: ScriptedServer, bad: dict[str, Any]) -> str:
    with sdk(server) as client:
        kept = client.responses.create(model="m", input="Hello").id
    bad = json.loads(json.dumps(bad).replace("resp_0", kept))
    status, answer = send(server, json.dumps(bad).encode())
    error = json.loads(answer)["error"]
    assert (status, error["type"]) == (400, "invalid_request_error")
    assert (len(server.requests), server.refused) == (1, [error["message"]])
    return error["message"]


@pytest.mark.parametrize(("reason", "bad"), BAD)
def test_what_the_provider_refuses_is_refused(
    server: ScriptedServer, reason: str, bad: dict[str, Any]
) -> None:
    assert reason in refusal(server, bad)


def test_other_methods_and_paths_do_not_exist(server: ScriptedServer) -> None:
    with closing(HTTPConnection(urlsplit(server.openai).netloc, timeout=10)) as connection:
        for method, path, status in (
            ("GET", "/v1/responses", 405),
            ("DELETE", "/v1/models", 404),
            ("GET", "/v1/responses/resp_1/output", 404),
            ("POST", "/v1/responses/resp_1", 404),
        ):
            connection.request(method, path)
            answer = connection.getresponse()
            assert (answer.status, "error" in json.loads(answer.read())) == (status, True)


@pytest.mark.parametrize(
    ("encoding", "pack"), [("zstd", zstandard.compress), ("gzip", gzip.compress)]
)
def test_a_compressed_request_is_read(server: ScriptedServer, encoding: str, pack: Any) -> None:
    raw = pack(json.dumps(body()).encode())
    headers = {**JSON, "content-encoding": encoding}
    assert send(server, raw, headers)[0] == 200
    assert (server.requests[0].raw, server.requests[0].text) == (raw, "Hello")
    assert send(server, raw[:-9] + b"x", headers)[0] == 400
    assert send(server, json.dumps(body()).encode(), headers)[0] == 400
