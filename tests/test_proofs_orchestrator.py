"""The promise that a request ends well and a sub-agent sees its task alone, in small."""

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest

from keepthread import Message, ToolCall
from keepthread.orchestrator.prompts import prompt
from keepthread.testing.script import Received
from proofs import p23_orchestrator
from proofs.errands import Mind, errand, strangers
from proofs.p23_orchestrator import wrong_in
from tests.proving import hold
from tests.seeds import SEED

ONE = errand(SEED, 1)


@pytest.mark.timeout(300)
def test_a_request_ends_in_an_answer_or_a_typed_error_and_a_sub_agent_sees_its_task_alone() -> None:
    outcome = hold(p23_orchestrator.PROOF)
    assert outcome.figures["kills"]
    assert outcome.figures["answered"]


def asked(task: str, *more: str) -> Received:
    said = [{"role": "user", "content": text} for text in (*more, task)]
    orders = {"role": "system", "content": prompt("specialist")}
    return Received("openai-chat", "/v1/chat/completions", {}, {"messages": [orders, *said]})


def test_the_proof_sees_a_word_of_the_conversation() -> None:
    mind, (step, *_) = Mind(SEED), json.loads(ONE.plan())["steps"]
    assert strangers(mind, asked(step["task"], step["snippet"])) == set()
    assert strangers(mind, asked(step["task"], "I am MARK7Q.")) == {"MARK7Q"}
    assert strangers(mind, asked(f"{step['task']} MARKSYS")) == {"MARKSYS"}


def log() -> list[Message]:
    """Return the log of one request with one step, as it should be."""
    task = f'{{"agent":"s0","task":"#{ONE.number} step s0: see to it."}}'
    call = ToolCall(id="c", name="delegate", arguments=task)
    return [
        Message(role="user", content=ONE.text, id=ONE.id, turn=1, seq=1),
        Message(role="assistant", tool_calls=[call], source="tool:delegate", turn=1, seq=2),
        Message(role="tool", content="done", tool_call_id="c", turn=1, seq=3),
        Message(role="assistant", content=ONE.answer, turn=1, seq=4),
    ]


def faults(messages: Sequence[Message]) -> list[str]:
    return list(wrong_in(messages, {ONE.number: ONE}, {ONE.number: ONE.answer}))


def test_the_proof_sees_what_is_wrong_in_a_log() -> None:
    user, call, result, answer = log()
    again = [replace(call, tool_calls=[replace(call.tool_calls[0], id="d")])]
    assert faults([user, call, result, answer]) == []
    assert "no answers to" in faults([user, call, result])[0]
    assert "has 2 answers" in faults([user, call, result, answer, answer])[0]
    assert "another answer was told" in faults([user, replace(answer, content="Other.")])[0]
    assert "calls without results" in faults([user, call, answer])[0]
    assert (
        "was done 2 times"
        in faults([user, call, result, *again, replace(result, tool_call_id="d"), answer])[0]
    )
    assert "do not open one turn" in faults([replace(user, turn=2), answer])[0]
