"""Messages from what providers and their SDKs write, and that nothing of it is lost in silence."""

import json
from typing import Any

import pytest
from anthropic.types import Message as AnthropicAnswer
from openai.types.chat import ChatCompletionMessage

from keepthread import (
    Attachment,
    Memory,
    Message,
    ToolCall,
    from_anthropic,
    from_openai_chat,
    from_openai_responses,
)
from keepthread.context.wires import anthropic, openai_chat, openai_responses
from keepthread.errors import InvalidInput
from keepthread.types import Selection
from proofs.p33_read_back import PROOF
from tests.proving import hold

PNG = "data:image/png;base64,iVBORw0KGgo="
CALL = ToolCall(id="c1", name="weather", arguments='{"city":"Oslo"}')


def rendered(render: Any, read: list[Message], provider: str = "") -> Any:
    return render(Selection(0, 0, "", read, ()), provider)


def test_what_is_read_from_a_request_is_what_was_sent() -> None:
    outcome = hold(PROOF)
    for figure in ("attachments", "native parts", "odd ids", "parallel calls"):
        assert outcome.figures[figure]


# --- OpenAI's chat completions ---


def test_a_chat_with_tools_is_read_as_messages() -> None:
    function = {"name": "weather", "arguments": CALL.arguments}
    read = from_openai_chat(
        [
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": "Oslo?", "name": "ann"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "c1", "type": "function", "function": function}],
            },
            {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "9 °C"}]},
            {"role": "assistant", "content": "9 °C."},
        ]
    )
    assert read == [
        Message(role="system", content="Be brief."),
        Message(role="user", content="Oslo?", author="ann"),
        Message(role="assistant", tool_calls=(CALL,)),
        Message(role="tool", content="9 °C", tool_call_id="c1"),
        Message(role="assistant", content="9 °C."),
    ]


def test_parts_of_a_question_become_its_text_and_its_attachments() -> None:
    (read,) = from_openai_chat(
        [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "What is this?"},
                    {"type": "image_url", "image_url": {"url": PNG}},
                    {"type": "image_url", "image_url": {"url": "https://example.org/a.webp?b=1"}},
                    {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
                    {"type": "file", "file": {"filename": "a.pdf", "file_id": "file-1"}},
                ],
            }
        ]
    )
    assert read.content == "What is this?"
    assert list(read.attachments) == [
        Attachment(media_type="image/png", uri=PNG),
        Attachment(media_type="image/webp", uri="https://example.org/a.webp?b=1"),
        Attachment(media_type="audio/wav", uri="data:audio/wav;base64,AAAA"),
        Attachment(media_type="application/octet-stream", name="a.pdf", uri="file:file-1"),
    ]


def test_an_answer_of_the_sdk_is_read_with_what_only_its_provider_knows() -> None:
    said = ChatCompletionMessage.model_validate(
        {"role": "assistant", "content": "Yes.", "reasoning_content": "Hm.", "annotations": []}
    )
    (read,) = from_openai_chat([said], provider="api.deepseek.com")
    assert read.content == "Yes."
    assert read.native is not None
    assert read.native.provider == "api.deepseek.com"
    again = rendered(openai_chat.render, [read], "api.deepseek.com")["messages"]
    assert again[0]["reasoning_content"] == "Hm."
    (plain,) = from_openai_chat([ChatCompletionMessage(role="assistant", content="Yes.")])
    assert plain == Message(role="assistant", content="Yes.")


def test_a_refusal_is_what_the_assistant_said() -> None:
    (read,) = from_openai_chat([{"role": "assistant", "content": None, "refusal": "No."}])
    assert read.content == "No."
    (part,) = from_openai_chat(
        [{"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}]
    )
    assert part.content == "No."


def test_a_custom_call_keeps_its_text() -> None:
    custom = {"id": "c1", "type": "custom", "custom": {"name": "sql", "input": "SELECT 1"}}
    (read,) = from_openai_chat([{"role": "assistant", "tool_calls": [custom]}])
    assert read.tool_calls == (ToolCall(id="c1", name="sql", arguments="SELECT 1"),)
    assert read.native is not None


# --- OpenAI's responses ---


def test_an_answer_with_reasoning_stays_one_message_and_goes_back_as_it_was() -> None:
    thought = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "g"}
    call = {
        "type": "function_call",
        "id": "fc_1",
        "call_id": "c1",
        "name": "weather",
        "arguments": CALL.arguments,
    }
    output = {"type": "function_call_output", "call_id": "c1", "output": "9 °C"}
    said = {
        "type": "message",
        "id": "m_1",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "9 °C.", "annotations": []}],
    }
    items = [{"role": "user", "content": "Oslo?"}, thought, call, output, said]
    read = from_openai_responses(items)
    assert [(m.role, m.content, m.tool_calls) for m in read] == [
        ("user", "Oslo?", ()),
        ("assistant", "", (CALL,)),
        ("tool", "9 °C", ()),
        ("assistant", "9 °C.", ()),
    ]
    assert rendered(openai_responses.render, read)["input"] == items


def test_a_text_is_the_input_of_a_user() -> None:
    assert from_openai_responses("Oslo?") == [Message(role="user", content="Oslo?")]


def test_files_and_images_of_an_input_become_attachments() -> None:
    (read,) = from_openai_responses(
        [
            {
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "See."},
                    {"type": "input_image", "image_url": PNG},
                    {"type": "input_image", "file_id": "file-2"},
                    {"type": "input_file", "filename": "a.pdf", "file_id": "file-1"},
                ],
            }
        ]
    )
    assert [a.uri for a in read.attachments] == [PNG, "file:file-2", "file:file-1"]


# --- Anthropic ---


def test_a_turn_of_results_and_texts_becomes_several_messages() -> None:
    read = from_anthropic(
        [
            {"role": "user", "content": "Oslo?"},
            {
                "role": "assistant",
                "content": [
                    {"type": "text", "text": "I look."},
                    {"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Oslo"}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "c1", "content": "9 °C"},
                    {"type": "text", "text": "And this?"},
                    {"type": "image", "source": {"type": "url", "url": "https://a.org/b.png"}},
                ],
            },
        ]
    )
    assert read == [
        Message(role="user", content="Oslo?"),
        Message(role="assistant", content="I look.", tool_calls=(CALL,)),
        Message(role="tool", content="9 °C", tool_call_id="c1"),
        Message(
            role="user",
            content="And this?",
            attachments=(Attachment(media_type="image/png", uri="https://a.org/b.png"),),
        ),
    ]


def test_an_image_before_its_text_belongs_to_it() -> None:
    source = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
    blocks = [{"type": "image", "source": source}, {"type": "text", "text": "What is this?"}]
    (read,) = from_anthropic([{"role": "user", "content": blocks}])
    assert (read.content, [a.uri for a in read.attachments]) == ("What is this?", [PNG])
    (alone,) = from_anthropic([{"role": "user", "content": blocks[:1]}])
    assert (alone.content, len(alone.attachments)) == ("", 1)


def test_thinking_goes_back_as_it_was_and_a_text_after_a_call_keeps_its_place() -> None:
    thinking = {"type": "thinking", "thinking": "Hm.", "signature": "s"}
    call = {"type": "tool_use", "id": "c1", "name": "weather", "input": {}}
    text = {"type": "text", "text": "I look."}
    for blocks in ([thinking, text, call], [call, text]):
        said = {"role": "assistant", "content": blocks}
        asked = {"role": "user", "content": [{"type": "text", "text": "Oslo?"}]}
        result = {"type": "tool_result", "tool_use_id": "c1", "content": "9 °C"}
        turn = [asked, said, {"role": "user", "content": [result]}]
        read = from_anthropic(turn)
        assert [m.content for m in read] == ["Oslo?", "I look.", "9 °C"]
        assert rendered(anthropic.render, read)["messages"] == turn


def test_an_answer_of_the_sdk_is_a_message() -> None:
    said = AnthropicAnswer.model_validate(
        {
            "id": "m",
            "type": "message",
            "role": "assistant",
            "model": "claude",
            "content": [{"type": "text", "text": "Yes."}],
            "stop_reason": "end_turn",
            "usage": {"input_tokens": 1, "output_tokens": 1},
        }
    )
    assert from_anthropic([said]) == [Message(role="assistant", content="Yes.")]


def test_a_result_that_is_an_error_says_so_in_its_own_words() -> None:
    block = {"type": "tool_result", "tool_use_id": "c1", "content": "no", "is_error": True}
    (read,) = from_anthropic([{"role": "user", "content": [block]}])
    assert read.content == "no"
    assert read.native is not None
    assert read.native.items == [block]


# --- on every wire ---


@pytest.mark.parametrize("read", [from_openai_chat, from_openai_responses, from_anthropic])
@pytest.mark.parametrize(
    ("items", "said"),
    [
        ([3], "must be a mapping, not int"),
        ({"role": "user"}, "must be a list"),
        ([{"role": "user", "content": 3}], "has neither text nor parts"),
        ([{"role": "user", "content": [{"type": "hologram"}]}], "cannot be stored as a message"),
        ([{"role": "user", "content": [{"type": "text"}]}], "needs a text in 'text'"),
    ],
)
def test_what_no_message_can_hold_is_refused_and_named(read: Any, items: Any, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        read(items)


@pytest.mark.parametrize("role", ["function", "critic", None])
def test_an_unknown_speaker_is_refused(role: str | None) -> None:
    for read in (from_openai_chat, from_anthropic):
        with pytest.raises(InvalidInput, match="cannot be stored"):
            read([{"role": role, "content": "Hi"}])


async def test_what_was_read_can_be_stored_and_shown_to_another_provider() -> None:
    call = {"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Oslo"}}
    result = {"type": "tool_result", "tool_use_id": "c1", "content": "9 °C"}
    async with Memory.open("ram://") as memory:
        session = await memory.session("s")
        await session.append(
            *from_anthropic(
                [
                    {"role": "user", "content": "Oslo?"},
                    {"role": "assistant", "content": [call]},
                    {"role": "user", "content": [result]},
                    {"role": "assistant", "content": "9 °C."},
                ]
            )
        )
        shown = (await session.context(budget=1000)).to_openai_chat()["messages"]
    assert [message["role"] for message in shown] == ["user", "assistant", "tool", "assistant"]
    assert json.loads(shown[1]["tool_calls"][0]["function"]["arguments"]) == {"city": "Oslo"}
