"""Long questions in a chat: shown whole, or refused with the numbers; nothing is cut in silence."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from keepthread import Memory, Message, Options, View, Window
from keepthread.apps.cli.chat.prompt_limits import PromptLimits
from keepthread.apps.cli.settings.settings import MemorySettings, ModelSettings, Settings
from keepthread.errors import ModelUnavailable
from keepthread.models import AnthropicModel, OpenAIModel
from keepthread.models.context_window import DEFAULT_WINDOW, known_window, window_of_service
from keepthread.models.tokens import Estimator
from keepthread.stores.ram import RamStore
from keepthread.testing.contract import Letters
from keepthread.testing.model import ScriptedModel
from keepthread.testing.server import ScriptedServer
from tests.test_chat import READY, Place, ask, place

__all__ = ["place"]

Places = Callable[[ScriptedServer], Place]
WIRES = ("openai", "anthropic")


def text_of(kilobytes: int) -> str:
    """Return a text of so many kilobytes in which every line is another."""
    lines = [f"Line {n}: gate {n * 7919 % 10007} has a quince tree." for n in range(30 * kilobytes)]
    return "\n".join(lines)[: kilobytes * 1000]


def on_wire(server: ScriptedServer, wire: str) -> dict[str, str]:
    address = server.anthropic if wire == "anthropic" else server.openai
    return {"KEEPTHREAD_MODEL_PROVIDER": wire, "KEEPTHREAD_MODEL_BASE_URL": address}


# ---------------------------------------------------------------- in a pipe


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("kilobytes", [5, 50])
async def test_a_long_question_reaches_the_model_whole(
    place: Places, wire: str, kilobytes: int
) -> None:
    question = text_of(kilobytes)
    assert len(question) == kilobytes * 1000
    with ScriptedServer(["Noted."]) as server:
        here = place(server)
        done = here.pipe("--json", said=question, **on_wire(server, wire))
        assert done.returncode == 0, done.stderr
        assert server.requests[0].text == question
        record = json.loads(done.stdout)
        assert record["context"]["truncated_newest"] is False
        assert record["context"]["tokens"] <= record["context"]["budget"]
        assert "left out" not in done.stderr
        assert (await here.messages())[0].content == question


@pytest.mark.parametrize("wire", WIRES)
async def test_a_question_that_the_model_cannot_take_is_refused_with_the_numbers(
    place: Places, wire: str
) -> None:
    with ScriptedServer(["Noted."]) as server:
        here = place(server)
        done = here.pipe("-p", "Sum it up.", said=text_of(500), **on_wire(server, wire))
        assert done.returncode == 2
        assert done.stdout == ""
        assert "fit: the context window of scripted is 32,768, with" in done.stderr
        assert "--model NAME" in done.stderr
        assert "model.context_window" in done.stderr
        assert not server.requests
        assert not await sessions_in(here)


@pytest.mark.parametrize("wire", WIRES)
async def test_a_service_that_says_what_it_takes_is_believed(place: Places, wire: str) -> None:
    question = text_of(500)
    with ScriptedServer(["Noted."], window=400_000) as server:
        done = place(server).pipe(said=question, **on_wire(server, wire))
        assert done.returncode == 0, done.stderr
        assert server.requests[0].text == question


async def sessions_in(here: Place) -> list[str]:
    async with Memory.open(f"sqlite:///{here.store}", counter=Estimator()) as memory:
        return [session.id for session in await memory.list_sessions()]


# ---------------------------------------------------------------- at a terminal


async def test_a_person_is_asked_before_a_question_is_shortened(place: Places) -> None:
    question = " ".join(f"word{n}" for n in range(1500))
    with ScriptedServer(["Noted."], window=2048) as server:
        here = place(server)
        with here.terminal() as terminal:
            terminal.wait_for(READY)
            terminal.paste(question)
            terminal.enter()
            terminal.wait_for("Send it with its middle left out?")
            assert "the context window of scripted is 2,048" in " ".join(
                terminal.transcript.split()
            )
            terminal.type("n")
            terminal.enter()
            terminal.wait_for("word1499")  # it is offered again
            assert not server.requests
            terminal.enter()
            terminal.wait_for("Send it with its middle left out?", times=2)
            terminal.type("y")
            terminal.enter()
            terminal.wait_for("Noted.")
            assert "characters left out" in server.requests[0].text
            terminal.key("ctrl-d")
            assert terminal.exit_code() == 0
        assert (await here.messages())[0].content == question


async def test_a_later_turn_says_that_a_long_message_is_shown_shortened(place: Places) -> None:
    question = " ".join(f"word{n}" for n in range(1200))
    script = ["Noted.", "Still here.", "At last."]
    with (
        ScriptedServer(script, window=20_000) as server,
        place(server).terminal(KEEPTHREAD_MEMORY_MAX_HISTORY_TOKENS="600") as terminal,
    ):
        terminal.wait_for(READY)
        terminal.paste(question)
        terminal.enter()
        terminal.wait_for("Noted.")
        assert question in server.requests[0].text
        ask(terminal, "And now?", "Still here.")
        assert question not in server.requests[1].context
        terminal.wait_for("no longer sees all of your message 'word0 word1")
        ask(terminal, "And then?", "At last.")
        assert terminal.transcript.count("no longer sees all") == 1
        terminal.key("ctrl-d")


async def test_a_resumed_chat_says_that_a_long_message_is_shown_shortened(place: Places) -> None:
    question = " ".join(f"word{n}" for n in range(1200))
    few = {"KEEPTHREAD_MEMORY_MAX_HISTORY_TOKENS": "600"}
    with ScriptedServer(["Noted.", "Still here.", "At last."], window=20_000) as server:
        here = place(server)
        assert here.pipe("--session", "s", "-p", question, **few).returncode == 0
        with here.terminal("-r", "s", KEEPTHREAD_MEMORY_MAX_HISTORY_TOKENS="600") as terminal:
            terminal.wait_for(READY)
            ask(terminal, "And now?", "Still here.")
            assert question not in server.requests[1].context
            terminal.wait_for("no longer sees all of your message 'word0 word1")
            ask(terminal, "And then?", "At last.")
            assert terminal.transcript.count("no longer sees all") == 1
            terminal.key("ctrl-d")


async def test_a_resumed_chat_names_several_shortened_messages_once(place: Places) -> None:
    few = {"KEEPTHREAD_MEMORY_MAX_HISTORY_TOKENS": "600"}
    with ScriptedServer(["Noted."] * 3, window=20_000) as server:
        here = place(server)
        for word in ("plum", "pear"):
            long = " ".join(f"{word}{n}" for n in range(1200))
            assert here.pipe("--session", "s", "-p", long, **few).returncode == 0
        done = here.pipe("-r", "s", "-p", "And now?", **few)
        assert done.stderr.count("no longer sees all") == 1
        assert "no longer sees all of 2 of your messages, the latest 'pear0 pear1" in done.stderr


async def test_a_resumed_chat_says_nothing_of_hidden_messages(place: Places) -> None:
    question = " ".join(f"word{n}" for n in range(1200))
    few = {"KEEPTHREAD_MEMORY_MAX_HISTORY_TOKENS": "600"}
    with ScriptedServer(["Noted.", "Here."], window=20_000) as server:
        here = place(server)
        assert here.pipe("--session", "s", "-p", question, **few).returncode == 0
        async with Memory.open(f"sqlite:///{here.store}", counter=Estimator()) as memory:
            await (await memory.get_session("s")).clear()
        done = here.pipe("-r", "s", "-p", "And now?", **few)
        assert done.returncode == 0
        assert "no longer sees" not in done.stderr


# ---------------------------------------------------------------- how many tokens


class FakeService:
    """A service on no wire: what is at its paths, in the shapes that are documented."""

    def __init__(self, answers: Mapping[str, Any]) -> None:
        self.answers = answers

    async def json(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        return self.answers.get(path)


def models(*rows: Any) -> dict[str, Any]:
    return {"object": "list", "data": list(rows)}


VLLM = {"/models": models({"id": "qwen", "max_model_len": 40_960})}
OPENROUTER = {
    "/models": models({"id": "other", "context_length": 1}, {"id": "qwen", "context_length": 5000})
}
LOADED = {"id": "qwen", "max_context_length": 131_072, "loaded_context_length": 8192}
LM_STUDIO = {"/models": models({"id": "qwen"}), "/api/v0/models": models(LOADED)}
LM_STUDIO_IDLE = {"/api/v0/models": models({"id": "qwen", "max_context_length": 131_072})}
OLLAMA_LOADED = {"/api/ps": {"models": [{"name": "qwen:latest", "context_length": 16_384}]}}
OLLAMA_SET = {"/api/ps": {"models": []}, "/api/show": {"parameters": "top_k 1\nnum_ctx   24576"}}
OLLAMA = {"/api/ps": {"models": []}, "/api/show": {"model_info": {"qwen.context_length": 262_144}}}


@pytest.mark.parametrize(
    ("answers", "window"),
    [
        (VLLM, 40_960),
        (OPENROUTER, 5000),
        (LM_STUDIO, 8192),
        (LM_STUDIO_IDLE, 131_072),
        (OLLAMA_LOADED, 16_384),
        (OLLAMA_SET, 24_576),
        (OLLAMA, 4096),  # whatever the model could take, Ollama gives it no more by itself
        ({}, None),
        ({"/models": "nonsense", "/api/ps": [1], "/api/v0/models": {"data": 5}}, None),
        ({"/models": models({"id": "qwen", "max_model_len": True}, 7)}, None),
        ({"/models": models({"id": "qwen", "max_model_len": -1})}, None),
        ({"/models": models({"id": "qwen", "max_model_len": 10**12})}, None),
    ],
)
async def test_services_are_understood(answers: Mapping[str, Any], window: int | None) -> None:
    assert await window_of_service(FakeService(answers), "qwen", "/models") == window


async def test_a_service_is_asked_over_its_wire() -> None:
    with ScriptedServer(window=12_345) as server:
        for model in (
            OpenAIModel("scripted", base_url=server.openai),
            AnthropicModel("scripted", base_url=server.anthropic),
        ):
            assert await model.context_window() == 12_345
            await model.close()
        assert server.refused == []
    with ScriptedServer() as server:
        model = OpenAIModel("gpt-4o-mini", base_url=server.openai)
        assert await model.context_window() == 128_000
        await model.close()
    away = OpenAIModel("scripted", base_url=server.openai)
    with pytest.raises(ModelUnavailable):
        await away.context_window()
    await away.close()


async def test_providers_are_known_and_not_asked() -> None:
    assert await OpenAIModel("gpt-4.1-mini", key="x").context_window() == 1_047_576
    assert await AnthropicModel("claude-sonnet-4-5", key="x").context_window() == 200_000
    assert known_window("gpt-4-0613") == 8_192
    assert known_window("unknown") is None


async def test_the_budget_is_the_history_and_the_question() -> None:
    model = ScriptedModel([])
    limits = PromptLimits(Settings())
    assert await limits.budget(model, 100) == 4096 + 100
    assert await limits.budget(model, 10**6) < DEFAULT_WINDOW
    auto = Settings(
        memory=MemorySettings(max_history_tokens="auto"),
        model=ModelSettings(context_window=100_000, max_tokens=1000),
    )
    assert await PromptLimits(auto).budget(model, 100) == 25_000 + 100
    assert await PromptLimits(auto).budget(model, 10**6) == 100_000 - 1000 - 100_000 // 16


async def test_a_context_says_which_messages_it_cut() -> None:
    memory = Memory(RamStore(), Options(counter=Letters(), views={"chat": View(4000, Window())}))
    session = await memory.session("s")
    await session.append(Message(role="user", content="short"))
    whole = await session.context("chat")
    assert not whole.truncated_newest
    assert whole.truncated == frozenset()
    await session.append(Message(role="user", content="long " * 400))
    cut = await session.context("chat", budget=300)
    assert cut.truncated_newest
    assert cut.truncated == frozenset({2})
    await session.append(Message(role="assistant", content="an answer"))
    after = await session.context("chat", budget=5000)
    assert not after.truncated_newest
