"""P25 at a small size: what agents are shown is quoted; and its proof is not blind."""

import pytest

from keepthread.apps.mcp import quotations
from keepthread.apps.proxy import memory, request
from keepthread.apps.proxy.documents import Piece
from proofs.p25_agents import PROOF, WAYS
from tests.seeds import SEED


def small(size: int = PROOF.small) -> tuple[str, ...]:
    outcome = PROOF.run(size, SEED, lambda done, of: None)
    assert outcome.figures["attacks"] == size
    return outcome.broken


def test_an_agents_memory_is_not_poisoned_silently() -> None:
    assert small() == ()


def test_text_that_is_not_quoted_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotations, "delimited", lambda text, delimiter, title: f"{title}\n{text}")
    broken = small(len(WAYS))
    assert any("outside a quotation" in each for each in broken)


def test_names_that_are_not_encoded_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotations, "session_uri", lambda id: f"session {id}")
    broken = small(2 * len(WAYS))
    assert any("a session's name" in each for each in broken)


def test_words_through_the_proxy_that_hold_as_facts_are_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Known-bad: documents are not divided, and a user's role is trusted."""
    monkeypatch.setattr(request, "divide", lambda text: [Piece(text, "user")])
    monkeypatch.setattr(memory, "LOWEST_ORIGIN", "another name")
    broken = small(len(WAYS))
    assert any("a document of" in each and "a fact holds" in each for each in broken)
