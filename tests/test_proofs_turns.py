"""The promise that a turn is whole for the reader, in small."""

import random
from dataclasses import replace
from pathlib import Path

import pytest

from keepthread import Context, Message, ToolCall
from keepthread.memory.tool_calls import INTERRUPTED
from keepthread.types import Selection
from proofs import p06_turns
from tests.proving import hold
from tests.seeds import SEED

CALL = Message(role="assistant", id="m", content="t 0", tool_calls=[ToolCall(id="c", name="look")])


def test_a_turn_is_whole_for_the_reader() -> None:
    hold(p06_turns.PROOF)


def test_the_proof_sees_a_result_behind_another_turns_call() -> None:
    result = Message(role="tool", tool_call_id="c", content="other 0 found 0")
    shown = Selection(budget=99, tokens=9, system="", messages=[CALL, result], choices=())
    assert list(p06_turns.faults(Context(shown))) == [
        "'other 0 found 0' stands behind the call of 't 0'"
    ]


def test_the_proof_sees_a_call_that_cancelling_left_open() -> None:
    log = [replace(CALL, turn=1)]
    closed = Message(role="tool", tool_call_id="c", content=INTERRUPTED, turn=1)
    assert list(p06_turns.left_open(log)) == ["turn 1: call c was left open"]
    assert list(p06_turns.left_open([*log, closed])) == []
    assert list(p06_turns.left_open([closed])) == ["turn 1: a result of c without its call"]


async def test_the_proof_sees_turns_that_do_not_close_their_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("keepthread.memory.turn.Turn._closing", lambda turn: [])
    _, _, broken = await p06_turns.cancel_all(tmp_path, 40, random.Random(SEED))
    assert any("was left open" in line for line in broken)


@pytest.mark.parametrize("wire", ["chat", "responses", "anthropic"])
def test_the_proof_sees_an_open_call_and_a_stray_result(wire: str) -> None:
    asked = {"role": "user", "content": [{"type": "text", "text": "a"}]}
    call, result = {
        "chat": (
            {"role": "assistant", "tool_calls": [{"id": "c"}]},
            {"role": "tool", "tool_call_id": "c"},
        ),
        "responses": (
            {"type": "function_call", "call_id": "c"},
            {"type": "function_call_output", "call_id": "c"},
        ),
        "anthropic": (
            {"role": "assistant", "content": [{"type": "tool_use", "id": "c"}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c"}]},
        ),
    }[wire]
    look = p06_turns.WIRES[wire]
    assert not list(look([asked, call, result]))
    assert list(look([asked, call]))
    assert list(look([asked, call, asked]))
    assert list(look([asked, result]))
