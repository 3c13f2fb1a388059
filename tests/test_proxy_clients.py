"""Clients through the memory proxy: they work, and each conversation is recorded once, in order."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pydantic
import pytest

from keepthread.apps.proxy.quoted import signed_addition
from keepthread.apps.proxy.request import read_request
from keepthread.testing.server import Received, Say, ScriptedServer
from keepthread.types import ToolCall
from tests.proxy_clients import (
    Aider,
    ClaudeCode,
    Codex,
    Continue,
    LibreChat,
    OpenWebUI,
    ProgramOfClient,
    provider,
)
from tests.proxy_served import (
    QUESTION,
    TOKEN,
    ServedProxy,
    additions,
    items_grow,
    plain,
    served,
    without_additions,
)

SESSION = "5b1f0c9e-0f1a-4c1e-9d2b-3f6a7c8d9e0f"
KEY = b"a key of this test"
ROOT = Path(__file__).parents[1]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {"name": "weather", "description": "The weather of a city."}


class Weather(pydantic.BaseModel):
    city: str
    degrees: int


@pytest.fixture
def upstream() -> Iterator[ScriptedServer]:
    with ScriptedServer(otherwise=provider) as server:
        yield server
        assert server.refused == []


def sent_unchanged(upstream: ScriptedServer, *clients: ProgramOfClient) -> None:
    """Check that upstream got the bytes of the clients, and nothing but additions besides."""
    sent = [plain(e.raw, _encoding(c)) for c in clients for e in c.exchanges]
    assert sorted(sent) == sorted(without_additions(asked) for asked in upstream.requests)
    keys = {asked.headers.get("authorization") for asked in upstream.requests}
    keys |= {asked.headers.get("x-api-key") for asked in upstream.requests}
    assert keys <= {None, "sk-of-the-user", "Bearer sk-of-the-user"}
    assert not any(TOKEN in str([*asked]) for asked in upstream.requests)


def _encoding(client: ProgramOfClient) -> dict[str, str]:
    return {"content-encoding": "zstd"} if isinstance(client, Codex) else {}


def test_a_provider_understands_the_clients_without_a_proxy(upstream: ScriptedServer) -> None:
    base = upstream.anthropic
    claude, codex = ClaudeCode(base, SESSION), Codex(base, SESSION)
    claude.quota()
    assert claude.title("Hello").startswith("You said")
    agents = [claude, codex, claude.sub_agent("a1"), codex.sub_agent("t1")]
    for client in agents:
        with client:
            assert client.ask("Hello") == "You said: Hello"
            assert client.ask("Please run ls") == "The tool said: LS"
            assert client.ask("Thanks") == "You said: Thanks"
    chats = [OpenWebUI(base, "c1"), LibreChat(base, "l1"), Aider(base), Continue(base)]
    for client in chats:
        with client:
            assert client.ask("Hello") == "You said: Hello"
            assert client.ask("Héllo again") == "You said: Héllo again"
    sent = [exchange.raw for client in (*agents, *chats) for exchange in client.exchanges]
    assert sorted(sent) == sorted(asked.raw for asked in upstream.requests)


# --- coding agents ---


def test_claude_code_has_one_session_and_its_sub_agents_have_their_own(
    upstream: ScriptedServer, tmp_path: Path
) -> None:
    with served(upstream, tmp_path) as proxy, ClaudeCode(proxy.base, SESSION) as claude:
        claude.quota()
        claude.ask("Hello")
        claude.title("Hello")
        claude.ask(QUESTION)
        with claude.sub_agent("agent-7") as helper:
            helper.ask("Find the tests, run ls")
            claude.ask("Please run make")
            helper.ask("Thanks")
        claude.ask("Done")
    assert proxy.said() == {SESSION: claude.recorded, f"{SESSION}/agent-7": helper.recorded}
    sent_unchanged(upstream, claude, helper)
    main = [r for r in upstream.requests if r.body.get("tools") and _agent(r) is None]
    assert items_grow(main)
    counts = [len(additions(asked)) for asked in main]
    assert counts == sorted(counts)
    assert counts[:2] == [0, 1]
    assert all("Delft" in asked.context for asked in main[1:])
    assert [e.headers["keepthread-memory"][:12] for e in claude.exchanges[:3]] == [
        "not-recorded",
        "recorded",
        "not-recorded",
    ]


def _agent(asked: Received) -> str | None:
    return asked.headers.get("x-claude-code-agent-id")


def test_codex_keeps_its_encrypted_thoughts_and_its_compressed_bodies(
    upstream: ScriptedServer, tmp_path: Path
) -> None:
    with served(upstream, tmp_path) as proxy, Codex(proxy.base, SESSION) as codex:
        codex.ask("Hello")
        codex.ask(QUESTION)
        codex.ask("Please run make")
        with codex.sub_agent("thread-2") as helper, codex.sub_agent("t3", "review") as review:
            helper.ask("Find the tests")
            review.ask("Review this")
        codex.ask("Done")
    assert proxy.said() == {SESSION: codex.recorded, f"{SESSION}/thread-2": helper.recorded}
    sent_unchanged(upstream, codex, helper, review)
    assert items_grow([r for r in upstream.requests if r.headers["thread-id"] == SESSION])
    first, second = upstream.requests[0], upstream.requests[1]
    assert (first.raw, first.headers["content-encoding"]) == (codex.exchanges[0].raw, "zstd")
    assert "content-encoding" not in second.headers
    assert "Delft" in second.context


# --- chat programs ---


def test_open_webui_has_a_session_for_each_chat_without_its_titles(
    upstream: ScriptedServer, tmp_path: Path
) -> None:
    with (
        served(upstream, tmp_path) as proxy,
        OpenWebUI(proxy.base, "chat-1") as one,
        OpenWebUI(proxy.base, "chat-2", user="u-2") as other,
    ):
        one.ask("Hello")
        one.task()
        other.ask("Hello")
        one.ask(QUESTION)
        one.task("Generate 1-3 broad tags categorizing the main themes.")
        one.ask("Thanks")
    assert proxy.said() == {"chat-1": one.recorded, "chat-2": other.recorded}
    sent_unchanged(upstream, one, other)
    authors = {m.author for m in proxy.sessions()["chat-2"] if m.role == "user"}
    assert authors == {"u-2"}
    titled = [e.headers["keepthread-memory"] for e in one.exchanges]
    assert [state.partition(";")[0] for state in titled] == [
        *("recorded", "not-recorded", "recorded", "not-recorded", "recorded")
    ]


def test_librechat_names_its_conversation_by_a_template(
    upstream: ScriptedServer, tmp_path: Path
) -> None:
    with served(upstream, tmp_path) as proxy, LibreChat(proxy.base, "conv-9") as chat:
        chat.ask("Hello")
        chat.title()
        chat.ask(QUESTION)
        chat.ask("Thanks")
    assert proxy.said() == {"conv-9": chat.recorded}
    modes = [e.headers["keepthread-mode"] for e in chat.exchanges]
    assert modes[0] == modes[2] == modes[3] == "alongside"
    sent_unchanged(upstream, chat)


@pytest.mark.parametrize("kind", [Aider, Continue])
def test_a_client_that_names_nothing_is_known_by_how_it_begins(
    kind: type[Aider | Continue], upstream: ScriptedServer, tmp_path: Path
) -> None:
    with served(upstream, tmp_path) as proxy, kind(proxy.base) as one, kind(proxy.base) as other:
        one.ask("Hello")
        one.ask(QUESTION)
        other.ask("Good morning")
        one.ask("Thanks")
        other.ask("Good night")
        if isinstance(one, Aider):
            one.commit("+ x = 1")
            assert "about the conversation" in one.exchanges[-1].headers["keepthread-memory"]
    assert sorted(proxy.said().values()) == sorted([one.recorded, other.recorded])
    sent_unchanged(upstream, one, other)
    assert all("Delft" in r.context for r in upstream.requests if QUESTION in r.context)


@pytest.mark.parametrize(
    ("said", "mode"),
    [
        (["Hello"], "thread"),
        (["<environment_context>here</environment_context>", "Hello"], "alongside"),
        (["I have *added these files to the chat*: x = 1", "Hello"], "alongside"),
        ([f"Hello\n\n{signed_addition('old', KEY)}"], "alongside"),
        (["<document>\nold\n</document>\n\nHello"], "alongside"),
    ],
)
def test_a_history_is_replaced_only_if_the_client_loses_nothing(said: list[str], mode: str) -> None:
    messages = [{"role": "user", "content": text} for text in said]
    body = json.dumps({"model": "m", "messages": messages}).encode()
    named = {"keepthread-session": "trip"}
    request = read_request("openai-chat", body, named, addition_key=KEY)
    assert request
    own = [m.content for m in request.messages if m.origin is None]
    assert (request.mode, own) == (mode, ["Hello"])


# --- the SDKs ---


def weather(asked: Received) -> Say | str:
    """Call a tool, and tell its result; answer as JSON if the request wants it."""
    wants = ("response_format", "output_config", "text")
    if any("schema" in json.dumps(asked.body.get(name)) for name in wants):
        return '{"city": "Tokyo", "degrees": 21}'
    found = json.dumps([*asked.messages[1:]], ensure_ascii=False)
    if "21 degrees" in found or not asked.body.get("tools"):
        return "It is warm."
    call = ToolCall(id="call_1", name="weather", arguments='{"city": "Tokyo"}')
    return Say("Let me look.", tool_calls=[call])


WEATHER = [
    ("user", "How is Tokyo?"),
    ("assistant", "Let me look."),
    ("tool", "21 degrees"),
    ("assistant", "It is warm."),
    ("user", "Thanks"),
    ("assistant", "It is warm."),
]


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[ServedProxy]:
    with ScriptedServer(otherwise=weather) as server, served(server, tmp_path) as proxy:
        yield proxy
        assert server.refused == []


def one_session(proxy: ServedProxy) -> list[tuple[str, str]]:
    (said,) = proxy.said().values()
    return said


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_the_sdk_of_openai_chats_with_tools(
    upstream: ScriptedServer, tmp_path: Path, streamed: bool
) -> None:
    del upstream
    tools: Any = [{"type": "function", "function": {**TOOL, "parameters": SCHEMA}}]
    with (
        ScriptedServer(otherwise=weather) as server,
        served(server, tmp_path) as proxy,
        openai.OpenAI(base_url=f"{proxy.base}/v1", api_key="k", max_retries=0) as client,
    ):
        messages: list[Any] = [{"role": "system", "content": "Be brief."}]

        def ask(said: dict[str, Any]) -> Any:
            messages.append(said)
            if streamed:
                with client.chat.completions.stream(
                    model="m", messages=messages, tools=tools
                ) as stream:
                    answer = stream.get_final_completion().choices[0].message
            else:
                made = client.chat.completions.create(model="m", messages=messages, tools=tools)
                answer = made.choices[0].message
            kept = {"role", "content", "tool_calls"}
            messages.append(answer.model_dump(include=kept, exclude_none=True))
            for call in messages[-1].get("tool_calls", ()):
                call["function"].pop("parsed_arguments", None)
                call.pop("index", None)
            return answer

        assert ask({"role": "user", "content": "How is Tokyo?"}).tool_calls[0].id == "call_1"
        ask({"role": "tool", "tool_call_id": "call_1", "content": "21 degrees"})
        assert ask({"role": "user", "content": "Thanks"}).content == "It is warm."
        assert server.refused == []
    assert one_session(proxy) == WEATHER


async def test_the_asynchronous_sdk_of_openai_is_answered_in_a_form(tmp_path: Path) -> None:
    with ScriptedServer(otherwise=weather) as server, served(server, tmp_path) as proxy:
        async with openai.AsyncOpenAI(base_url=f"{proxy.base}/v1", api_key="k") as client:
            said: Any = [{"role": "user", "content": "How is Tokyo?"}]
            chat = await client.chat.completions.parse(
                model="m", messages=said, response_format=Weather
            )
            made = await client.responses.parse(
                model="m", input="And how is Tokyo?", text_format=Weather
            )
    expected = Weather(city="Tokyo", degrees=21)
    assert chat.choices[0].message.parsed == made.output_parsed == expected
    answer = ("assistant", '{"city": "Tokyo", "degrees": 21}')
    assert sorted(proxy.said().values()) == [
        [("user", "And how is Tokyo?"), answer],
        [("user", "How is Tokyo?"), answer],
    ]


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_the_sdk_of_openai_makes_responses_with_tools(tmp_path: Path, streamed: bool) -> None:
    tools: Any = [{"type": "function", **TOOL, "parameters": SCHEMA, "strict": False}]
    with (
        ScriptedServer(otherwise=weather) as server,
        served(server, tmp_path) as proxy,
        openai.OpenAI(base_url=f"{proxy.base}/v1", api_key="k", max_retries=0) as client,
    ):
        items: list[Any] = []

        def ask(said: dict[str, Any]) -> Any:
            items.append(said)
            given: Any = {"model": "m", "input": items, "tools": tools, "store": False}
            if streamed:
                with client.responses.stream(**given) as stream:
                    answer = stream.get_final_response()
            else:
                answer = client.responses.create(**given)
            unsent = {"parsed_arguments", "parsed"}
            items.extend(
                item.model_dump(exclude_none=True, exclude=unsent) for item in answer.output
            )
            return answer

        ask({"role": "user", "content": "How is Tokyo?"})
        ask({"type": "function_call_output", "call_id": "call_1", "output": "21 degrees"})
        assert ask({"role": "user", "content": "Thanks"}).output_text == "It is warm."
        assert server.refused == []
    assert one_session(proxy) == WEATHER


def test_responses_that_the_provider_keeps_are_recorded_aside(tmp_path: Path) -> None:
    with (
        ScriptedServer(otherwise=provider) as server,
        served(server, tmp_path) as proxy,
        openai.OpenAI(
            base_url=f"{proxy.base}/v1",
            api_key="k",
            default_headers={"Keepthread-Session": "kept"},
        ) as client,
    ):
        first = client.responses.create(model="m", input="Hello")
        raw = client.responses.with_raw_response.create(
            model="m", input=QUESTION, previous_response_id=first.id
        )
        second = raw.parse()
        assert raw.headers["keepthread-mode"] == "aside"
        assert client.responses.retrieve(second.id).output_text == second.output_text
        kinds = [item.type for item in client.responses.input_items.list(second.id)]
        assert kinds == ["message", "message", "reasoning", "message"]
        client.responses.delete(second.id)
        with pytest.raises(openai.BadRequestError, match="not found"):
            client.responses.create(model="m", input="On", previous_response_id=second.id)
        assert [m.id for m in client.models.list()] == ["scripted"]
        assert server.requests[1].raw == without_additions(server.requests[1])
    assert proxy.said()["kept"][:4] == [
        ("user", "Hello"),
        ("assistant", "You said: Hello"),
        ("user", QUESTION),
        ("assistant", f"You said: {QUESTION}"),
    ]


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_the_sdk_of_anthropic_talks_with_tools(tmp_path: Path, streamed: bool) -> None:
    tools: Any = [{**TOOL, "input_schema": SCHEMA}]
    with (
        ScriptedServer(otherwise=weather) as server,
        served(server, tmp_path) as proxy,
        anthropic.Anthropic(base_url=proxy.base, api_key="k", max_retries=0) as client,
    ):
        messages: list[Any] = []

        def ask(content: Any) -> Any:
            messages.append({"role": "user", "content": content})
            given: Any = {"model": "m", "max_tokens": 99, "messages": messages, "tools": tools}
            if streamed:
                with client.messages.stream(**given) as stream:
                    answer = stream.get_final_message()
            else:
                answer = client.messages.create(**given)
            blocks = [block.model_dump(exclude_none=True) for block in answer.content]
            for block in blocks:
                block.pop("parsed_output", None)
            messages.append({"role": "assistant", "content": blocks})
            return answer

        assert ask("How is Tokyo?").stop_reason == "tool_use"
        ask([{"type": "tool_result", "tool_use_id": "call_1", "content": "21 degrees"}])
        assert ask("Thanks").content[0].text == "It is warm."
        assert server.refused == []
    assert one_session(proxy) == WEATHER


async def test_the_asynchronous_sdk_of_anthropic_is_answered_in_a_form(tmp_path: Path) -> None:
    with ScriptedServer(otherwise=weather) as server, served(server, tmp_path) as proxy:
        async with anthropic.AsyncAnthropic(base_url=proxy.base, api_key="k") as client:
            said: Any = [{"role": "user", "content": "How is Tokyo?"}]
            parsed = await client.messages.parse(
                model="m", max_tokens=99, messages=said, output_format=Weather
            )
            async with client.messages.stream(model="m", max_tokens=99, messages=said) as stream:
                text = await stream.get_final_text()
    assert parsed.parsed_output == Weather(city="Tokyo", degrees=21)
    assert text == "It is warm."


# --- other libraries ---


def test_langchain_remembers_with_both_providers(upstream: ScriptedServer, tmp_path: Path) -> None:
    langchain_openai = pytest.importorskip("langchain_openai")
    langchain_anthropic = pytest.importorskip("langchain_anthropic")
    with served(upstream, tmp_path) as proxy:
        chat = langchain_openai.ChatOpenAI(model="m", base_url=f"{proxy.base}/v1", api_key="k")
        claude = langchain_anthropic.ChatAnthropic(model="m", base_url=proxy.base, api_key="k")
        for model, greeting in ((chat, "Bonjour"), (claude, "Hello")):
            messages: list[Any] = [("system", "Be brief."), ("user", greeting)]
            messages.append(model.invoke(messages))
            messages.append(("user", QUESTION))
            chunks = list(model.stream(messages))
            text = "".join(chunk.text for chunk in chunks)
            assert text == f"You said: {QUESTION}"
    for said, greeting in zip(sorted(proxy.said().values()), ("Bonjour", "Hello"), strict=True):
        assert said == [
            ("user", greeting),
            ("assistant", f"You said: {greeting}"),
            ("user", QUESTION),
            ("assistant", f"You said: {QUESTION}"),
        ]
    assert [len(additions(asked)) for asked in upstream.requests] == [0, 1, 0, 1]


def test_litellm_remembers_with_both_providers(upstream: ScriptedServer, tmp_path: Path) -> None:
    python = os.environ.get("KEEPTHREAD_LITELLM")
    if not python:
        pytest.skip("LiteLLM has an environment of its own: run scripts/litellm")
    with served(upstream, tmp_path) as proxy:
        done = subprocess.run(
            [python, str(ROOT / "tests" / "litellm_client.py"), proxy.base],
            env={**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout.splitlines()[-1])
    assert sorted(answers) == ["anthropic/claude", "openai/m"]
    found = sorted(proxy.said().values())
    for (model, texts), said in zip(sorted(answers.items()), found, strict=True):
        assert [text for role, text in said if role == "assistant"] == texts
        assert said[0] == ("user", f"Hello, {model}")
        assert len(said) == 6
