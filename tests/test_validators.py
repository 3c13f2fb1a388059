"""The validators refuse what providers refuse, for the same reason, and accept what they accept."""

from collections.abc import Callable
from typing import Any

import pytest

from keepthread.testing.wires import anthropic, openai_chat, openai_responses
from tests import known_bad

WIRES = {
    "openai-chat": (openai_chat.check, known_bad.BAD_CHAT, known_bad.GOOD_CHAT),
    "openai-responses": (
        openai_responses.check,
        known_bad.BAD_RESPONSES,
        known_bad.GOOD_RESPONSES,
    ),
    "anthropic": (anthropic.check, known_bad.BAD_ANTHROPIC, known_bad.GOOD_ANTHROPIC),
}
REFUSED = [
    pytest.param(check, reason, request, id=f"{wire}-{number}")
    for wire, (check, bad, _) in WIRES.items()
    for number, (reason, request) in enumerate(bad)
]
ACCEPTED = [
    pytest.param(check, request, id=f"{wire}-{number}")
    for wire, (check, _, good) in WIRES.items()
    for number, request in enumerate(good)
]


@pytest.mark.parametrize(("check", "reason", "request_"), REFUSED)
def test_what_a_provider_refuses_is_refused_for_the_same_reason(
    check: Callable[[Any], list[str]], reason: str, request_: Any
) -> None:
    problems = check(request_)
    assert any(reason in problem for problem in problems), problems


@pytest.mark.parametrize(("check", "request_"), ACCEPTED)
def test_what_a_provider_accepts_is_accepted(
    check: Callable[[Any], list[str]], request_: Any
) -> None:
    assert check(request_) == []


def test_each_wire_knows_at_least_25_bad_requests() -> None:
    for wire, (_, bad, _) in WIRES.items():
        assert len({repr(request) for _, request in bad}) >= 25, wire
