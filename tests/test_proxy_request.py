"""What the proxy reads of a request, and that it changes nothing but what it adds."""

import gzip
import json
import time
import zlib
from typing import Any

import pytest
import zstandard
from hypothesis import example, given
from hypothesis import strategies as st

from keepthread.apps.proxy.encodings import decoded
from keepthread.apps.proxy.errors import ProxyError
from keepthread.apps.proxy.json_text import document
from keepthread.apps.proxy.quoted import signed_addition
from keepthread.apps.proxy.request import read_request, splice
from keepthread.apps.proxy.types import ReadRequest, WireName
from keepthread.types import Message
from tests.proxy_requests import WIRES, history_of, request_texts, requests

KEY = b"a key of this test"
ADDITION = signed_addition('Ann lives in Oslo. "Yes" \\ ☃', KEY)


def read(wire: WireName, body: Any, **headers: str) -> ReadRequest:
    text = body if isinstance(body, str) else json.dumps(body)
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    found = read_request(wire, text.encode(), names, addition_key=KEY)
    assert found is not None
    return found


def added(wire: WireName, content: Any, text: str = ADDITION) -> Any:
    """Return the content of a question after an addition."""
    name = history_of(wire)
    found = read(wire, {"model": "m", name: [{"role": "user", "content": content}]})
    (turn,) = found.turns
    return json.loads(splice(found, {turn.digest: text}))[name][0]["content"]


# --- laws ---


@given(requests())
def test_a_request_without_an_addition_keeps_its_bytes(given: tuple[WireName, str]) -> None:
    wire, text = given
    found = read_request(wire, text.encode(), {})
    if found is not None:
        assert splice(found, {}) == text.encode()
        assert splice(found, {"another turn": "text"}) == text.encode()


@given(requests(), st.lists(st.text(min_size=1), min_size=1))
def test_an_addition_is_all_that_changes(given: tuple[WireName, str], texts: list[str]) -> None:
    wire, text = given
    found = read_request(wire, text.encode(), {})
    if found is None:
        return
    placed = [turn for turn in found.turns if turn.place]
    additions = {turn.digest: texts[n % len(texts)] for n, turn in enumerate(placed)}
    result = splice(found, additions).decode()
    document(result)  # it is JSON
    rest, done = "", 0
    for turn in placed:
        assert turn.place is not None
        before = len(text[done : turn.place.at])
        rest, result = rest + result[:before], result[before:]
        size = inserted_size(turn.place.before, turn.place.after, additions[turn.digest])
        inserted, result = result[:size], result[size:]
        assert inserted.startswith(turn.place.before)
        assert inserted.endswith(turn.place.after)
        done = turn.place.at
    assert rest + result == text


@given(requests(), st.text())
def test_an_addition_that_comes_back_changes_no_digest(
    given: tuple[WireName, str], text: str
) -> None:
    wire, body = given
    found = read_request(wire, body.encode(), {})
    if found is None:
        return
    addition = signed_addition(text, KEY)
    sent = splice(found, {turn.digest: addition for turn in found.turns})
    again = read_request(wire, sent, {}, addition_key=KEY)
    assert again is not None
    assert [turn.digest for turn in again.turns] == [turn.digest for turn in found.turns]
    assert len(again.messages) == len(found.messages)
    assert splice(again, {}) == sent


def inserted_size(before: str, after: str, text: str) -> int:
    clean = text.replace("\0", "").encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return len(before) + len(json.dumps(clean, ensure_ascii=False)) - 2 + len(after)


@given(request_texts())
@example((WIRES[0], "[" * 100_000))
@example((WIRES[0], '{"messages":' + "[" * 100_000))
@example((WIRES[2], '{"messages":[{"role":"user","content":[[]]}]}'))
def test_no_text_makes_reading_fail(given: tuple[WireName, str]) -> None:
    wire, text = given
    found = read_request(wire, text.encode("utf-8", "surrogatepass"), {})
    if found is not None:
        assert splice(found, {}) == text.encode()


# --- places ---


@pytest.mark.parametrize("wire", WIRES)
def test_a_text_gets_the_addition_after_a_blank_line(wire: WireName) -> None:
    assert added(wire, "Where?") == f"Where?\n\n{ADDITION}"


@pytest.mark.parametrize("wire", WIRES)
def test_a_list_gets_the_addition_as_its_last_part(wire: WireName) -> None:
    kind = "input_text" if wire == "openai-responses" else "text"
    parts = [{"type": kind, "text": "Where?", "cache_control": {"type": "ephemeral"}}]
    assert added(wire, parts) == [*parts, {"type": kind, "text": ADDITION}]


def test_the_input_of_a_response_may_be_a_text() -> None:
    found = read("openai-responses", '{"input" : "Where?" , "model":"m"}')
    assert found.turns[0].text == "Where?"
    assert found.messages == [Message(role="user", content="Where?")]
    result = splice(found, {found.turns[0].digest: "Oslo."})
    assert result == b'{"input" : "Where?\\n\\nOslo." , "model":"m"}'


def test_of_names_that_come_twice_the_last_counts() -> None:
    text = (
        '{"messages":[],"model":"m","messages":'
        '[{"content":"first","role":"user","content":"last"}]}'
    )
    found = read("openai-chat", text)
    assert [turn.text for turn in found.turns] == ["last"]
    result = splice(found, {found.turns[0].digest: "more"}).decode()
    assert result == text.replace('"last"', '"last\\n\\nmore"')


def test_results_of_tools_get_nothing() -> None:
    call = {"type": "tool_use", "id": "t1", "name": "f", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": "9"}
    body = {
        "messages": [
            {"role": "user", "content": "Where?"},
            {"role": "assistant", "content": [call]},
            {"role": "user", "content": [result]},
        ]
    }
    found = read("anthropic", body)
    assert [turn.text for turn in found.turns] == ["Where?"]
    assert not found.ends_with_user
    body["messages"][2]["content"] = [result, {"type": "text", "text": "And Tokyo?"}]
    found = read("anthropic", body)
    assert [turn.text for turn in found.turns] == ["Where?", "And Tokyo?"]
    assert found.ends_with_user
    sent = json.loads(splice(found, {found.turns[1].digest: "more"}))
    assert [part["type"] for part in sent["messages"][2]["content"]] == [
        "tool_result",
        "text",
        "text",
    ]


def test_a_history_is_replaced_after_the_system_prompt() -> None:
    text = '{"messages": [ {"role":"system","content":"S"} , {"role":"user","content":"Q"} ],"n":1}'
    found = read("openai-chat", text, keepthread_session="s")
    assert (found.mode, found.leading) == ("thread", 1)
    assert splice(found, {}, '[{"a":1}, 2]').decode() == (
        '{"messages": [ {"role":"system","content":"S"},{"a":1}, 2],"n":1}'
    )
    assert json.loads(splice(found, {}, "[]"))["messages"] == [{"role": "system", "content": "S"}]
    plain = read("openai-responses", '{"input":"Q","n":1}')
    assert splice(plain, {}, "[1]") == b'{"input":[1],"n":1}'


# --- what is read ---


def test_digests_name_the_conversation_up_to_a_turn() -> None:
    def digests(*texts: str, name: str = "openai-chat") -> list[str]:
        items = [
            {"role": "user" if n % 2 == 0 else "assistant", "content": text}
            for n, text in enumerate(texts)
        ]
        return [turn.digest for turn in read("openai-chat", {"messages": items}).turns]

    first = digests("a")
    assert digests("a", "b", "c")[:1] == first
    assert digests("a  ", "b", "c") == digests(" a", "b", "c")
    assert digests("a", "x", "c")[1] != digests("a", "b", "c")[1]
    assert digests(f"a\n\n{ADDITION}", "b", "c") == digests("a", "b", "c")
    assert len(set(digests("a", "b", "a", "b", "a"))) == 3


def test_what_clients_tell_the_model_is_not_the_users_text() -> None:
    note = {"type": "text", "text": "<system-reminder>\nToday is Monday.\n</system-reminder>"}
    asked = {"type": "text", "text": "Where?", "cache_control": {"type": "ephemeral"}}
    found = read("anthropic", {"messages": [{"role": "user", "content": [note, asked]}]})
    assert found.turns[0].text == "Where?"
    assert found.messages == [Message(role="user", content="Where?")]
    alone = read("anthropic", {"messages": [{"role": "user", "content": [note]}]})
    assert not alone.turns
    assert not alone.messages


def test_an_addition_that_comes_back_is_not_recorded() -> None:
    found = read("openai-chat", {"messages": [{"role": "user", "content": f"Q\n\n{ADDITION}"}]})
    assert found.messages == [Message(role="user", content="Q")]
    parts = [{"type": "text", "text": "Q"}, {"type": "text", "text": ADDITION}]
    found = read("openai-chat", {"messages": [{"role": "user", "content": parts}]})
    assert found.messages == [Message(role="user", content="Q")]


def test_system_prompts_are_not_part_of_the_history() -> None:
    body = {
        "messages": [
            {"role": "developer", "content": "D"},
            {"role": "user", "content": "Q"},
            {"role": "system", "content": "S"},
        ]
    }
    found = read("openai-chat", body)
    assert found.leading == 1
    assert found.messages == [Message(role="user", content="Q")]
    assert found.ends_with_user


def test_what_no_message_can_hold_is_left_out_and_counted() -> None:
    parts = [{"type": "text", "text": "Q"}, {"type": "hologram", "data": "…"}]
    result = {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "new"}]}
    body = {
        "messages": [
            {"role": "user", "content": parts},
            {"role": "assistant", "content": "A"},
            {"role": "observer", "content": "?"},
            {"role": "user", "content": [result, {"type": "text", "text": "R"}]},
        ]
    }
    found = read("anthropic", body)
    assert [m.content for m in found.messages] == ["Q", "A", "", "R"]
    assert found.unread == 3


def test_calls_of_other_kinds_are_calls() -> None:
    body = {
        "input": [
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Q"}]},
            {"type": "reasoning", "id": "r", "summary": [], "encrypted_content": "x"},
            {"type": "custom_tool_call", "call_id": "c", "name": "apply_patch", "input": "***"},
            {"type": "custom_tool_call_output", "call_id": "c", "output": "Done"},
        ]
    }
    question, call, result = read("openai-responses", body).messages
    assert question.content == "Q"
    assert [each.id for each in call.tool_calls] == ["c"]
    assert (result.role, result.tool_call_id, result.content) == ("tool", "c", "Done")


def test_modes() -> None:
    one = {"input": [{"role": "user", "content": "Q"}]}
    assert read("openai-responses", one).mode == "alongside"
    assert read("openai-responses", one, keepthread_session="s").mode == "thread"
    assert read("openai-responses", one, x_claude_code_session_id="s").mode == "alongside"
    assert read("openai-responses", one, keepthread_mode="Off").mode == "off"
    for name in ("previous_response_id", "conversation"):
        assert read("openai-responses", {**one, name: "r1"}).mode == "aside"
        assert read("openai-responses", {**one, name: None}).mode == "alongside"
    unknown = {"messages": [{"role": "user", "content": [{"type": "text", "text": "Q"}, {}]}]}
    assert read("anthropic", unknown, keepthread_session="s").mode == "alongside"
    longer = {"messages": [{"role": r, "content": "x"} for r in ("user", "assistant", "user")]}
    assert read("anthropic", longer, keepthread_session="s").mode == "alongside"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b'{"messages":"text"}',
        b'{"messages":{}}',
        b'{"messages":["text"]}',
        b'{"model":"m"}',
        b'{"messages":[]} more',
        b'\xef\xbb\xbf{"messages":[]}',
        b'{"messages":[],"a":"\xff"}',
        '{"messages":[]}'.encode("utf-16"),
        b'{"messages":[],"a":"\n"}',
    ],
)
def test_what_cannot_be_read_is_relayed_as_it_is(body: bytes) -> None:
    assert read_request("openai-chat", body, {}) is None


def test_odd_numbers_and_characters_do_not_matter() -> None:
    long = "9" * 5000
    text = (
        f'{{"seed":{long},"x":[NaN,-Infinity,1e999,1E-400],"model":"m",'
        '"messages":[{"role":"user","content":"\\ud800 \\u0000?"}]}'
    )
    found = read("openai-chat", text)
    assert splice(found, {}) == text.encode()
    assert found.turns[0].text == "\ud800 \0?"
    assert splice(found, {found.turns[0].digest: "\ud800\0x"}).decode().count("�x") == 1


def test_a_large_body_costs_a_small_multiple_of_parsing_it() -> None:
    items = [
        {"role": "user" if n % 2 == 0 else "assistant", "content": f"{n} " + "word " * 300}
        for n in range(1000)
    ]
    text = json.dumps({"model": "m", "messages": items, "tools": [{"a": "b" * 100}] * 1000})
    body = text.encode()

    def cost(run: Any) -> float:
        best = float("inf")
        for _ in range(3):
            start = time.process_time()
            run()
            best = min(best, time.process_time() - start)
        return best

    once = cost(lambda: json.loads(body))
    assert cost(lambda: read_request("openai-chat", body, {})) < 40 * once


# --- encodings ---


@pytest.mark.parametrize(
    ("name", "pack"),
    [
        ("gzip", gzip.compress),
        ("deflate", zlib.compress),
        ("zstd", zstandard.ZstdCompressor().compress),
        ("", bytes),
        ("identity", bytes),
        ("gzip, zstd", lambda data: zstandard.ZstdCompressor().compress(gzip.compress(data))),
    ],
)
def test_bodies_are_unpacked(name: str, pack: Any) -> None:
    data = b'{"a":1}' * 1000
    assert decoded(pack(data), name) == data
    if name not in ("", "identity"):
        assert decoded(b"no such thing", name) is None
        with pytest.raises(ProxyError) as refusal:
            decoded(pack(data), name, limit=100)
        assert refusal.value.status == 413


def test_an_unknown_encoding_is_not_unpacked() -> None:
    assert decoded(b"x", "br") is None
