"""Which conversation a request belongs to, and which requests are only about one."""

import json
from typing import Any

import pytest

from keepthread.apps.proxy.request import read_request
from keepthread.apps.proxy.types import ClientIdentity, WireName

UUID = "0198f2c4-7d11-7a52-9b2e-5f2f4a9d1c33"


def identity(
    headers: dict[str, str] | None = None,
    text: str = "Where?",
    wire: WireName = "openai-chat",
    **fields: Any,
) -> ClientIdentity:
    name = "input" if wire == "openai-responses" else "messages"
    body = {name: [{"role": "user", "content": text}], **fields}
    found = read_request(wire, json.dumps(body).encode(), headers or {})
    assert found is not None
    return found.identity


def test_a_request_names_nothing() -> None:
    assert identity() == ClientIdentity()


@pytest.mark.parametrize(
    ("headers", "session"),
    [
        ({"keepthread-session": "a", "x-claude-code-session-id": "b"}, "a"),
        ({"x-claude-code-session-id": "b", "x-session-id": "c"}, "b"),
        ({"x-some-client-session-id": "d"}, "d"),
        ({"x-openwebui-chat-id": "e", "x-session-id": "c"}, "e"),
        ({"x-session-id": " c "}, "c"),
        ({"session-id": "f"}, None),
        ({"session-id": "f", "originator": "codex_cli_rs"}, "f"),
        ({"session_id": "f", "user-agent": "codex_exec/0.60"}, "f"),
        ({"thread-id": "g", "originator": "codex_vscode"}, "g"),
        ({"keepthread-session": "{{LIBRECHAT_BODY_CONVERSATIONID}}"}, None),
        ({"keepthread-session": "x" * 201}, None),
        ({"keepthread-session": "a\x07b"}, None),
        ({"keepthread-session": "  "}, None),
    ],
)
def test_headers_name_a_session(headers: dict[str, str], session: str | None) -> None:
    assert identity(headers).session == session


@pytest.mark.parametrize(
    ("fields", "session"),
    [
        ({"prompt_cache_key": UUID}, UUID),
        ({"prompt_cache_key": "ses_63f98ab1cffe71Qm"}, "ses_63f98ab1cffe71Qm"),
        ({"prompt_cache_key": "my-chat-program-v2"}, None),
        ({"prompt_cache_key": 7}, None),
        ({"metadata": {"user_id": f"user_ab_account__session_{UUID}"}}, UUID),
        ({"metadata": {"user_id": json.dumps({"device_id": "d", "session_id": UUID})}}, UUID),
        ({"metadata": {"user_id": "ann"}}, None),
        ({"metadata": "x"}, None),
    ],
)
def test_the_body_names_a_session(fields: dict[str, Any], session: str | None) -> None:
    assert identity(**fields).session == session
    assert identity({"x-session-id": "h"}, **fields).session in ("h", session)


def test_agents_and_users() -> None:
    main = {"x-claude-code-session-id": "s"}
    assert identity(main).agent is None
    found = identity({**main, "x-claude-code-agent-id": "a1", "x-claude-code-parent-agent-id": "m"})
    assert (found.session, found.agent) == ("s", "a1")
    codex = {"originator": "codex_cli_rs", "session-id": "s", "thread-id": "s"}
    assert identity(codex).agent is None
    spawned = {**codex, "thread-id": "t", "x-openai-subagent": "collab_spawn"}
    assert identity(spawned) == ClientIdentity(session="s", agent="t")
    assert identity({"thread-id": "t"}).agent is None
    assert identity({"keepthread-user": "ann", "x-openwebui-user-id": "u"}, user="v").user == "ann"
    assert identity({"x-openwebui-user-id": "u"}, user="v").user == "u"
    assert identity(user="v").user == "v"


@pytest.mark.parametrize(
    "text",
    [
        "### Task:\nGenerate 1-3 broad tags categorizing the main themes of the chat history",
        "### Task:\nGenerate a concise, 3-5 word title with an emoji summarizing the chat history.",
        "[SUGGESTION MODE: Suggest what the user might naturally type next into Claude Code.]",
        "Your task is to create a detailed summary of the conversation so far, paying close",
        "Provide a concise, 5-word-or-less title for the conversation, using title case",
        "Given the following... please reply with a title for the chat that is 3-4 words",
    ],
)
def test_a_request_about_a_conversation_is_aside_of_it(text: str) -> None:
    assert identity(text=text).is_side
    assert not identity(text=f"Translate: {text}").is_side


def test_signs_of_system_prompts_and_headers() -> None:
    title = [{"type": "text", "text": "Generate a concise, sentence-case title (3-7 words) that"}]
    assert identity(wire="anthropic", system=title).is_side
    assert identity(wire="anthropic", system=title[0]["text"]).is_side
    assert identity(wire="anthropic", text="quota", max_tokens=1).is_side
    assert not identity(wire="anthropic", text="quota", max_tokens=100).is_side
    system = {"role": "system", "content": "You are a title generator. You output ONLY a title."}
    asked = {"role": "user", "content": "Hello"}
    body = json.dumps({"messages": [system, asked]}).encode()
    found = read_request("openai-chat", body, {})
    assert found is not None
    assert found.identity.is_side
    codex = {"originator": "codex_cli_rs", "x-openai-subagent": "compact"}
    assert identity(codex, wire="openai-responses").is_side
    assert not identity({"x-openai-subagent": "compact"}).is_side


def test_a_question_about_documents_is_part_of_a_conversation() -> None:
    text = "### Task:\nRespond to the user query using the provided context, incorporating"
    assert not identity(text=text).is_side
