"""What the proxy reads of answers, whole or as streams that are split anywhere."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepthread.apps.proxy.answers import answer_reader
from keepthread.apps.proxy.types import ProviderAnswer, WireName
from keepthread.types import Message, ToolCall

CALL = ToolCall(id="c1", name="weather", arguments='{"city":"Oslo"}')
SAID = Message(role="assistant", content="It is 9 °C. 😀")


def read(wire: WireName, *data: bytes, streams: bool = True) -> ProviderAnswer | None:
    reader = answer_reader(wire, streams, provider="host")
    for each in data:
        reader.feed(each)
    return reader.finish()


def sse(events: Sequence[Any], end: str = "\n", done: bool = False) -> bytes:
    parts = [f"event: {e.get('type')}{end}data: {json.dumps(e)}{end}{end}" for e in events]
    return (f": ping{end}{end}" + "".join(parts) + ("data: [DONE]\n\n" if done else "")).encode()


def delta(text: str = "", **more: Any) -> dict[str, Any]:
    finish = more.pop("finish_reason", None)
    index = more.pop("index", 0)
    given = {"content": text, **more} if text else more
    return {"choices": [{"index": index, "delta": given, "finish_reason": finish}]}


def part(index: int, **function: Any) -> dict[str, Any]:
    id = {"id": function.pop("id")} if "id" in function else {}
    return {"tool_calls": [{"index": index, **id, "function": function}]}


CHAT = [
    delta(role="assistant", reasoning_content="Hm."),
    delta("It is 9 °C"),
    delta(". 😀"),
    delta(**part(0, id="c1", name="weather", arguments="")),
    delta(**part(0, arguments='{"city":')),
    delta(**part(0, arguments='"Oslo"}')),
    delta(finish_reason="tool_calls"),
    {"choices": [], "usage": {"prompt_tokens": 5}},
]


def block(index: int, start: dict[str, Any], *deltas: dict[str, Any]) -> list[dict[str, Any]]:
    begin = {"type": "content_block_start", "index": index, "content_block": start}
    added = [{"type": "content_block_delta", "index": index, "delta": each} for each in deltas]
    return [begin, *added, {"type": "content_block_stop", "index": index}]


THOUGHT = {"type": "thinking", "thinking": "Hm.", "signature": "sig"}
USE = {"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Oslo"}}
ANTHROPIC = [
    {"type": "message_start", "message": {"role": "assistant", "content": [], "usage": {}}},
    *block(
        0,
        {"type": "thinking", "thinking": "", "signature": ""},
        {"type": "thinking_delta", "thinking": "Hm."},
        {"type": "signature_delta", "signature": "sig"},
    ),
    {"type": "ping"},
    *block(
        1,
        {"type": "text", "text": ""},
        {"type": "text_delta", "text": "It is 9 °C"},
        {"type": "text_delta", "text": ". 😀"},
    ),
    *block(
        2,
        {"type": "tool_use", "id": "c1", "name": "weather", "input": {}},
        {"type": "input_json_delta", "partial_json": '{"city":'},
        {"type": "input_json_delta", "partial_json": '"Oslo"}'},
    ),
    {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {}},
    {"type": "message_stop"},
]

ITEM = {
    "type": "message",
    "role": "assistant",
    "id": "m1",
    "content": [{"type": "output_text", "text": SAID.content, "annotations": []}],
}
FUNCTION = {
    "type": "function_call",
    "id": "f1",
    "call_id": "c1",
    "name": "weather",
    "arguments": CALL.arguments,
}
REASONING = {"type": "reasoning", "id": "r1", "summary": [], "encrypted_content": "secret"}
OUTPUT = [REASONING, ITEM, FUNCTION]
RESPONSES = [
    {"type": "response.created", "response": {"status": "in_progress", "output": []}},
    {"type": "response.output_item.done", "output_index": 0, "item": REASONING},
    {"type": "response.output_text.delta", "output_index": 1, "delta": "It is 9 °C"},
    {"type": "response.output_text.delta", "output_index": 1, "delta": ". 😀"},
    {"type": "response.output_item.done", "output_index": 1, "item": ITEM},
    {"type": "response.output_item.done", "output_index": 2, "item": FUNCTION},
    {"type": "response.completed", "response": {"status": "completed", "output": OUTPUT}},
]
STREAMS: dict[WireName, list[dict[str, Any]]] = {
    "openai-chat": CHAT,
    "anthropic": ANTHROPIC,
    "openai-responses": RESPONSES,
}
CHAT_MESSAGE = {
    "role": "assistant",
    "content": SAID.content,
    "reasoning_content": "Hm.",
    "tool_calls": [
        {
            "id": "c1",
            "type": "function",
            "function": {"name": "weather", "arguments": CALL.arguments},
        }
    ],
}
WHOLE: dict[WireName, dict[str, Any]] = {
    "openai-chat": {
        "choices": [{"index": 0, "message": CHAT_MESSAGE, "finish_reason": "tool_calls"}]
    },
    "anthropic": {
        "type": "message",
        "content": [THOUGHT, {"type": "text", "text": SAID.content}, USE],
        "stop_reason": "tool_use",
    },
    "openai-responses": {"status": "completed", "output": OUTPUT},
}
each_wire = pytest.mark.parametrize("wire", list(STREAMS))


@each_wire
def test_a_stream_and_a_whole_answer_say_the_same(wire: WireName) -> None:
    streamed = read(wire, sse(STREAMS[wire], done=wire == "openai-chat"))
    whole = read(wire, json.dumps(WHOLE[wire]).encode(), streams=False)
    assert streamed == whole
    assert streamed is not None
    assert streamed.complete
    (message,) = streamed.messages
    assert message.content == SAID.content
    assert list(message.tool_calls) == [CALL]
    assert message.native is not None
    assert message.native.provider == "host"
    assert any(word in str(message.native.items) for word in ("sig", "secret", "Hm."))


@each_wire
@given(data=st.data())
def test_a_stream_may_be_split_anywhere(wire: WireName, data: st.DataObject) -> None:
    end = data.draw(st.sampled_from(["\n", "\r\n", "\r"]))
    body = sse(STREAMS[wire], end, done=data.draw(st.booleans()))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=20)))
    pieces = [body[a:b] for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True)]
    assert read(wire, *pieces) == read(wire, body)
    assert read(wire, *pieces) == read(wire, sse(STREAMS[wire]))


@each_wire
@given(data=st.data())
def test_a_stream_that_is_cut_is_never_complete_and_has_only_text(
    wire: WireName, data: st.DataObject
) -> None:
    events = STREAMS[wire]
    end = {"openai-chat": 6, "anthropic": 14, "openai-responses": 6}[wire]
    body = sse(events[:end])
    answer = read(wire, body[: data.draw(st.integers(0, len(body)))])
    if answer is not None:
        assert not answer.complete
        (message,) = answer.messages
        assert SAID.content.startswith(message.content)
        assert not message.tool_calls
        assert message.native is None


@each_wire
def test_an_error_inside_a_stream_ends_the_answer(wire: WireName) -> None:
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}
    answer = read(wire, sse([*STREAMS[wire][:5], error]))
    if wire == "anthropic":
        assert answer is None  # only reasoning had arrived
    else:
        assert answer is not None
        assert not answer.complete
    assert read(wire, sse([error])) is None


@each_wire
@pytest.mark.parametrize("streams", [True, False])
def test_what_is_not_an_answer_gives_none(wire: WireName, streams: bool) -> None:
    for body in (
        b"",
        b"   ",
        b"<html>Bad gateway</html>",
        b'{"error":{"message":"no"}}',
        b'{"type":"error","error":{}}',
        b'{"choices":7,"content":7,"output":7}',
        b'{"choices":[7],"content":[7],"output":[7]}',
        b'{"choices":[',
        b"null",
        b"data: 7\n\ndata: {\n\n",
    ):
        assert read(wire, body, streams=streams) is None


@each_wire
@given(data=st.data())
def test_no_event_makes_reading_fail(wire: WireName, data: st.DataObject) -> None:
    values = st.recursive(
        st.none() | st.integers() | st.text(max_size=3),
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
        max_leaves=4,
    )
    events = [dict(event) for event in STREAMS[wire]]
    for _ in range(data.draw(st.integers(1, 4))):
        event = data.draw(st.sampled_from(events))
        event[data.draw(st.sampled_from(sorted(event)))] = data.draw(values)
    read(wire, sse(events))


@each_wire
def test_a_long_body_that_is_not_an_answer_is_not_kept(wire: WireName) -> None:
    for streams in (True, False):
        reader: Any = answer_reader(wire, streams)
        for _ in range(70):
            reader.feed(b"x" * 2**20)
        kept = [*(reader._whole or ())]
        if reader._events:
            kept += reader._events._pending
        assert sum(map(len, kept)) == 0
        assert reader.finish() is None


def test_of_several_choices_the_first_is_read() -> None:
    events = [delta("a"), delta("x", index=1), delta("b"), delta(finish_reason="stop")]
    answer = read("openai-chat", sse(events))
    assert answer is not None
    (message,) = answer.messages
    assert (message.content, message.meta) == ("ab", {"choices": 2})


def test_a_refusal_is_the_answer() -> None:
    answer = read("openai-chat", sse([delta(refusal="No."), delta(finish_reason="stop")]))
    assert answer == ProviderAnswer([Message(role="assistant", content="No.")], True)


def test_a_custom_tool_is_called() -> None:
    call = {"index": 0, "id": "c", "type": "custom", "custom": {"name": "sql", "input": "SELECT"}}
    events = [delta(tool_calls=[call]), delta(finish_reason="tool_calls")]
    answer = read("openai-chat", sse(events))
    assert answer is not None
    assert list(answer.messages[0].tool_calls) == [ToolCall(id="c", name="sql", arguments="SELECT")]


def test_a_call_that_a_limit_cut_is_left_out() -> None:
    cut = [event for event in ANTHROPIC if '"Oslo\\"' not in json.dumps(event)]
    answer = read("anthropic", sse(cut))
    assert answer == ProviderAnswer([SAID], True)


def test_reasoning_without_a_signature_is_not_kept() -> None:
    body = {"content": [{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "A"}]}
    answer = read("anthropic", json.dumps(body).encode(), streams=False)
    assert answer == ProviderAnswer([Message(role="assistant", content="A")], True)


def test_a_response_that_lists_no_output_at_its_end_has_what_came_before() -> None:
    last = {"type": "response.completed", "response": {"status": "completed", "output": []}}
    assert read("openai-responses", sse([*RESPONSES[:-1], last])) == read(
        "openai-responses", sse(RESPONSES)
    )


def test_a_response_in_the_background_is_not_an_answer_yet() -> None:
    body = json.dumps({"status": "queued", "output": []}).encode()
    assert read("openai-responses", body, streams=False) is None


def test_a_response_that_reached_its_limit_of_tokens_is_complete() -> None:
    call = {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{}"}
    item = {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "Hi"}],
    }
    events = [
        *(
            {"type": "response.output_item.done", "output_index": n, "item": each}
            for n, each in enumerate((item, call))
        ),
        {
            "type": "response.incomplete",
            "response": {"status": "incomplete", "output": [item, call]},
        },
    ]
    answer = read("openai-responses", sse(events))
    assert answer is not None
    assert answer.complete
    assert [each.id for m in answer.messages for each in m.tool_calls] == ["c1"]
