"""Clients through the memory proxy: they work, and what is said is recorded once and in order."""

from collections.abc import Iterator

import pytest

from keepthread.testing.server import ScriptedServer
from tests.proxy_clients import (
    Aider,
    ClaudeCode,
    Codex,
    Continue,
    LibreChat,
    OpenWebUI,
    provider,
)

SESSION = "5b1f0c9e-0f1a-4c1e-9d2b-3f6a7c8d9e0f"


@pytest.fixture
def upstream() -> Iterator[ScriptedServer]:
    with ScriptedServer(otherwise=provider) as server:
        yield server


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
            if isinstance(client, OpenWebUI):
                assert client.task()
            if isinstance(client, LibreChat):
                assert client.title()
            if isinstance(client, Aider):
                assert client.commit("+ x")
    assert upstream.refused == []
    sent = [exchange.raw for client in (*agents, *chats) for exchange in client.exchanges]
    assert sorted(sent) == sorted(asked.raw for asked in upstream.requests)
